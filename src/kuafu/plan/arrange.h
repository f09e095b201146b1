// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/plan/plan.h"

// How several tensor modes share the tensor ranks of one mesh.
//
// Each mode cuts the ranks of a replica into axes, minor end first: 2d on 16 ranks at 4 and
// 16, 2.5d with depth 4 at 2, 4 and 16. The mesh of a plan with layers of several modes has the
// common refinement: an axis between two neighbouring cuts (t0 4, t1 2, t2 2). An axis of a mode is
// then a run of those: col of 2d = t1.t2.
namespace kuafu {

/// The tensor ranks under one mode.
struct Arrangement {
  std::string mode;
  int64_t depth = 1;
  bool operator==(const Arrangement&) const = default;
};

/// Of a transformer layer: the plan's own, or that of the range the layer lies in.
Arrangement arrangement_of(const Plan& plan, int64_t layer);
/// Of embedding, head and all layers that no range names.
Arrangement base_arrangement(const Plan& plan);
/// Every one of the plan once, the base first.
std::vector<Arrangement> arrangements(const Plan& plan);

/// The plan with one arrangement for everything.
Plan with_arrangement(Plan plan, const Arrangement& arrangement);

/// Tensor axes of the plan's mesh, outermost first: those of its mode where there is one, else the
/// common refinement. Throws Refused where a mode cannot arrange the ranks or where cuts of two
/// modes do not divide each other.
std::vector<Axis> tensor_axes(const Plan& plan, const TensorModes& modes);

/// What an arrangement's own axes are made of on the plan's mesh; empty where they are the mesh's.
AxisAliases parts_of(const Plan& plan, const Arrangement& arrangement, const TensorModes& modes);

}  // namespace kuafu
