// SPDX-License-Identifier: Apache-2.0
#include "kuafu/optim/loss_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

constexpr double kLeastScale = 0x1.0p-24;  // the least f16

}  // namespace

LossScaler::LossScaler(const Plan& plan)
    : is_active_(plan.has_loss_scale()),
      is_dynamic_(plan.has_dynamic_scale()),
      interval_(plan.train.loss_scale_interval) {
  if (!is_active_) return;
  now_.scale = is_dynamic_ ? plan.train.loss_scale_start : plan.train.loss_scale;
}

void LossScaler::step(bool has_overflow) {
  if (!is_active_) return;
  if (has_overflow) ++now_.skipped;
  if (!is_dynamic_) return;
  ++now_.good_steps;
  if (has_overflow) {
    KUAFU_REQUIRE(now_.scale / 2 >= kLeastScale, "gradients overflow at every loss scale down to ",
                  now_.scale, ": training diverged; lower optimizer.lr or raise optimizer.warmup");
    now_.scale /= 2;
    now_.good_steps = 0;
  } else if (now_.good_steps >= interval_) {  // more where a resumed run has a shorter one
    now_.scale *= 2;
    now_.good_steps = 0;
  }
}

void LossScaler::restore(const LossScale& from) {
  now_.skipped = from.skipped;
  if (!is_dynamic_) return;
  now_.scale = from.scale;
  now_.good_steps = from.good_steps;
}

bool is_on_any_rank(bool mine, const Mesh& mesh, at::Device device) {
  const at::NoGradGuard no_grad;
  const Tensor flag = at::full({1}, mine ? 1 : 0, at::TensorOptions(at::kFloat).device(device));
  for (const Axis& axis : mesh.axes()) {
    if (axis.size > 1) raw::all_reduce(flag, mesh.comm(axis.name), ReduceOp::kMax);
  }
  const bool is = flag.is_meta() ? mine : flag.item<float>() != 0;
  TraceRecorder* trace = current_trace();
  return trace == nullptr ? is : trace->oracle("overflow", is ? 1 : 0) != 0;
}

}  // namespace kuafu
