// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kuafu/mesh/mesh.h"
#include "kuafu/states/residency.h"
#include "kuafu/states/slots.h"

// What is known of a parameter's states without looking at their elements: a view of Param, Residency
// and slots in one place, for `kuafu explain` and for counts. What acts on states reads those three.
namespace kuafu {

/// How a tensor lies along an axis: all have the same, all have a term of a sum, each has its part.
enum class AxisType : uint8_t { kReplicated, kPartial, kSharded };
/// "replicated", "partial", "sharded".
std::string_view to_string(AxisType type);

/// Between its uses.
struct StateRow {
  struct Slot {
    std::string name;  ///< of the rule, or "master"
    DType dtype = DType::kF32;
    Residence residence;
  };

  std::string name;  ///< of the parameter, the same under every plan
  Shape shape;       ///< logical, without padding
  LayerSplit layers;
  Layout placement;  ///< of the padded shape
  /// Along each axis of several ranks, in the order of the mesh: of the parameter between its uses, and
  /// of the gradient that backward leaves, before any sum.
  std::vector<std::pair<std::string, AxisType>> parameter_types, gradient_types;
  Axes replicas;  ///< what is in parts is split over these
  DType dtype = DType::kF32;
  Residence parameter, gradient;
  std::vector<Slot> slots = {};
};

/// Of one parameter, whose gradient is summed over `replicas` too.
StateRow row_of(const Param& p, const Axes& replicas, const Residency& residency,
                const RuleSlots::Row& slots, const Mesh& mesh);

}  // namespace kuafu
