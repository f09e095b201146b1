// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/arrange.h"

#include <algorithm>
#include <set>

#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

std::vector<Axis> axes_of(const Plan& plan, const Arrangement& a, const TensorModes& modes) {
  const auto found = modes.find(a.mode);
  KUAFU_REQUIRE(found != modes.end(), "tensor mode ", in_quotes(a.mode), " is unknown");
  return found->second.axes(plan.parallel.tensor.size, a.depth);
}

/// Ranks inside each cut, the minor end first, without 1.
std::vector<int64_t> cuts_of(const std::vector<Axis>& axes) {
  std::vector<int64_t> cuts;
  int64_t product = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    product *= axes[i].size;
    if (axes[i].size > 1) cuts.push_back(product);
  }
  return cuts;
}

std::string text_of(const Arrangement& a) {
  return a.depth == 1 ? in_quotes(a.mode) : text(in_quotes(a.mode), " with depth = ", a.depth);
}

/// True where every arrangement has the axes of the first: then these are the mesh's.
bool is_uniform(const Plan& plan, const TensorModes& modes) {
  const std::vector<Arrangement> all = arrangements(plan);
  return std::all_of(all.begin(), all.end(), [&](const Arrangement& a) {
    return axes_of(plan, a, modes) == axes_of(plan, all[0], modes);
  });
}

/// Cuts of all arrangements, ascending.
std::set<int64_t> all_cuts(const Plan& plan, const TensorModes& modes) {
  std::set<int64_t> cuts;
  for (const Arrangement& a : arrangements(plan)) {
    const std::vector<int64_t> own = cuts_of(axes_of(plan, a, modes));
    cuts.insert(own.begin(), own.end());
  }
  return cuts;
}

bool is_chain(const std::set<int64_t>& cuts) {
  int64_t below = 1;
  for (const int64_t cut : cuts) {
    if (cut % below != 0) return false;
    below = cut;
  }
  return true;
}

[[noreturn]] void refuse_cuts(const Plan& plan, const TensorModes& modes) {
  std::string words;
  for (const Arrangement& a : arrangements(plan)) {
    words += words.empty() ? "" : ", ";
    words += text_of(a) + " cuts at";
    for (const int64_t cut : cuts_of(axes_of(plan, a, modes))) words += text(" ", cut);
  }
  // A smaller group of the same modes, else the base mode alone.
  std::string near = text("mode = ", in_quotes(plan.parallel.tensor.mode), " for every layer");
  for (int64_t size = plan.parallel.tensor.size - 1; size > 1; --size) {
    Plan other = plan;
    other.parallel.tensor.size = size;
    try {
      if (!is_chain(all_cuts(other, modes))) continue;
    } catch (const Refused&) {
      continue;
    }
    near = text("tensor.size = ", size, ", or ", near);
    break;
  }
  throw Refused(text("the modes of [[parallel.layers]] do not share a mesh of ",
                     plan.parallel.tensor.size, " tensor ranks: ", words,
                     ", and each cut must divide the next; nearest: ", near));
}

}  // namespace

Arrangement base_arrangement(const Plan& plan) {
  return {plan.parallel.tensor.mode, plan.parallel.tensor.depth};
}

Arrangement arrangement_of(const Plan& plan, int64_t layer) {
  for (const LayerPlan& range : plan.parallel.layers) {
    if (range.from <= layer && layer <= range.to) return {range.mode, range.depth};
  }
  return base_arrangement(plan);
}

std::vector<Arrangement> arrangements(const Plan& plan) {
  std::vector<Arrangement> all = {base_arrangement(plan)};
  for (const LayerPlan& range : plan.parallel.layers) {
    const Arrangement one{range.mode, range.depth};
    if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
  }
  return all;
}

Plan with_arrangement(Plan plan, const Arrangement& arrangement) {
  plan.parallel.tensor.mode = arrangement.mode;
  plan.parallel.tensor.depth = arrangement.depth;
  plan.parallel.layers.clear();
  return plan;
}

std::vector<Axis> tensor_axes(const Plan& plan, const TensorModes& modes) {
  if (is_uniform(plan, modes)) return axes_of(plan, base_arrangement(plan), modes);
  const std::set<int64_t> cuts = all_cuts(plan, modes);
  if (!is_chain(cuts)) refuse_cuts(plan, modes);
  std::vector<Axis> axes;
  int64_t below = 1;
  for (const int64_t cut : cuts) {
    axes.insert(axes.begin(), {"", cut / below});
    below = cut;
  }
  for (size_t i = 0; i < axes.size(); ++i) axes[i].name = text("t", i);
  return axes;
}

AxisAliases parts_of(const Plan& plan, const Arrangement& arrangement, const TensorModes& modes) {
  if (is_uniform(plan, modes)) return {};
  const std::vector<Axis> mesh = tensor_axes(plan, modes);
  const std::vector<Axis> own = axes_of(plan, arrangement, modes);
  AxisAliases parts;
  size_t next = mesh.size();
  for (size_t i = own.size(); i-- > 0;) {
    Axes& run = parts[own[i].name];
    for (int64_t size = 1; size < own[i].size; size *= mesh[next].size) {
      run.insert(run.begin(), mesh[--next].name);
    }
  }
  return parts;
}

}  // namespace kuafu
