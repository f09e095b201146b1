// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "kuafu/comm/communicator.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// FLOP/s that all ranks reach together in square products of the plan's type, of the fastest
/// extent and layout of factors (plain, left or right transposed), measured for about 0.2 s on the
/// threads that they train on. Books nothing, changes no number of a run. Collective.
double measured_peak(const Plan& plan, at::Device device, Communicator& world);

}  // namespace kuafu
