// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/row.h"

#include "kuafu/states/bucket.h"

namespace kuafu {
namespace {

using Types = std::vector<std::pair<std::string, AxisType>>;

/// `partial`: axes of which each rank has a term.
Types types_of(const Param& p, const Axes& partial, const Mesh& mesh) {
  const Axes sharded = mesh.canonical(p.layout.all_axes()), terms = mesh.canonical(partial);
  Types types;
  for (const Axis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    types.emplace_back(axis.name, contains(sharded, axis.name) ? AxisType::kSharded
                                  : contains(terms, axis.name) ? AxisType::kPartial
                                                               : AxisType::kReplicated);
  }
  return types;
}

}  // namespace

std::string_view to_string(AxisType type) {
  switch (type) {
    case AxisType::kReplicated:
      return "replicated";
    case AxisType::kPartial:
      return "partial";
    case AxisType::kSharded:
      return "sharded";
  }
  return "";
}

StateRow row_of(const Param& p, const Axes& replicas, const Residency& residency,
                const RuleSlots::Row& slots, const Mesh& mesh) {
  Axes summed = p.grad_axes;
  summed.insert(summed.end(), replicas.begin(), replicas.end());
  const auto here = [&](Residence r) {  // a lone replica's part is the whole
    if (mesh.size(replicas) == 1) r.portion = Portion::kWhole;
    return r;
  };
  StateRow row{.name = p.name,
               .shape = p.global,
               .layers = p.layers,
               .placement = p.layout,
               .parameter_types = types_of(p, {}, mesh),
               .gradient_types = types_of(p, summed, mesh),
               .replicas = replicas,
               .dtype = dtype_of(p.value),
               .parameter = here(residency.parameters),
               .gradient = here(residency.gradients)};
  if (row.parameter.portion == Portion::kPart) {
    for (auto& [axis, type] : row.parameter_types) {
      if (contains(replicas, axis)) type = AxisType::kSharded;
    }
  }
  for (size_t k = 0; k < slots.slots.size(); ++k) {
    row.slots.push_back({slots.names[k], dtype_of(slots.slots[k]), here(residency.slots)});
  }
  if (slots.master.defined()) {
    Residence master = here(residency.slots);
    if (master.tier == Tier::kDisk) master.tier = Tier::kHost;
    row.slots.push_back({"master", dtype_of(slots.master), master});
  }
  return row;
}

}  // namespace kuafu
