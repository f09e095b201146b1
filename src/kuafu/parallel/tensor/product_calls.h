// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kuafu/comm/buffer.h"
#include "kuafu/mesh/mesh.h"

// Which operand of a product goes through which collective: products are run on meta tensors in a world
// that only notes the calls, and operands are told from each other by their numbers of elements.
namespace kuafu {

/// Global extents of B, S, K and M: each divisible by all ranks and by a prime that no other has.
class MarkedExtents {
 public:
  explicit MarkedExtents(const std::vector<Axis>& axes);
  int64_t of(char letter) const { return extent_.at(letter); }
  /// Whether a part with so many elements has the dim of a letter, cut or not.
  bool has(char letter, int64_t elements) const { return elements % prime_.at(letter) == 0; }

 private:
  std::map<char, int64_t> prime_, extent_;
};

/// Axes along which an operand went through collectives.
struct OperandCalls {
  std::set<std::string> moved, summed;
  std::set<std::string>
      in_runs;  ///< by verbs that join or cut runs of a dim: all_gather, reduce_scatter
};

/// Of one product.
struct ProductCalls {
  OperandCalls left, right, out;
  std::set<std::string> unknown;  ///< axes of calls whose operand cannot be told
};

/// Rank 0 of a mesh whose communicators note their calls. On meta tensors they do no more. On the host
/// (f64) each call leaves what it would if every rank held what this one does: of tensors of ones no rank
/// has anything else, so a sum is a factor.
class NotingWorld {
 public:
  explicit NotingWorld(const std::vector<Axis>& axes, Place place = Place::kMeta);
  ~NotingWorld();
  const Mesh& mesh() const { return *mesh_; }
  std::vector<std::string> names() const;
  bool has(const std::string& axis) const;
  void clear();
  /// From now on a sum along this axis is twice as much, so that its sums can be counted; empty: none.
  void mark(const std::string& axis);
  /// Whether a call since clear() left what cannot be told: a message that is not exchanged for another.
  bool is_untold() const;
  /// The calls since clear(), by the operands that have these letters: "BSK", "KM", "BSM".
  ProductCalls calls(const MarkedExtents& extents, const std::string& left,
                     const std::string& right, const std::string& out) const;

 private:
  struct Notes;
  std::unique_ptr<Notes> notes_;
  std::unique_ptr<Mesh> mesh_;
};

}  // namespace kuafu
