// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/mesh/axis.h"

namespace kuafu {

/// Ranks arranged on named axes; the last axis varies fastest.
///
///   Mesh({{"dep",2},{"row",2},{"col",2}})        dep 0:  r0 r1     dep 1:  r4 r5
///                                                        r2 r3             r6 r7
/// comm(axis) holds the ranks that differ from me ONLY in `axis`, ordered by it:
///   on rank 2:  comm("col") = {2,3}   comm("row") = {0,2}   comm("dep") = {2,6}
/// So "broadcast along a row of the grid" is a broadcast on comm("col").
///
/// An alias stands for several axes, flattened: with "data" = replica.expert, comm("data") holds
/// the ranks that differ from me in replica or expert. Layouts name axes of the mesh: see
/// canonical().
///
/// Arithmetic needs no communication: layouts are checked on an unconnected mesh.
class Mesh {
 public:
  /// @pre 0 <= rank < product of the sizes, names are distinct, sizes positive; an alias names
  /// axes.
  Mesh(std::vector<Axis> axes, int rank, AxisAliases aliases = {});

  /// Builds one communicator for every axis and alias longer than 1, metered under its name.
  /// Collective.
  /// @pre world.size() is the product of the axes; world and ledger outlive the mesh.
  void connect(Communicator& world, Ledger* ledger);

  const std::vector<Axis>& axes() const { return axes_; }
  int rank() const { return rank_; }
  int64_t num_ranks() const;
  /// The same axes without aliases.
  Axes canonical(const Axes& axes) const;
  /// Number of ranks along one axis, or along several flattened; 1 for axes the mesh lacks.
  int64_t size(const std::string& axis) const;
  int64_t size(const Axes& axes) const;
  /// My index along one axis, or along several flattened (major first); 0 for axes the mesh lacks.
  int64_t coord(const std::string& axis) const;
  int64_t coord(const Axes& axes) const;
  /// My group along `axis`; a group of one for axes of size 1 or that the mesh lacks.
  /// @pre connected, where the axis is longer than 1.
  Communicator& comm(const std::string& axis) const;

  /// "dep2 x row2 x col2, rank 5 = (1,0,1)"
  std::string describe() const;

 private:
  std::vector<Axis> axes_;
  AxisAliases aliases_;
  int rank_;
  std::map<std::string, std::unique_ptr<Communicator>> comms_;
  std::unique_ptr<Communicator> alone_;
};

}  // namespace kuafu
