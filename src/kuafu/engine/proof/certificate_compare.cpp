// SPDX-License-Identifier: Apache-2.0
//
// Bounds as certificate_step.cpp derives them, and what its checks share.

#include "kuafu/engine/proof/certificate_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

namespace kuafu {

oracle::Tensors in_type(const oracle::Tensors& tensors, at::ScalarType type) {
  oracle::Tensors out;
  for (const auto& [name, t] : tensors) out[name] = t.to(type);
  return out;
}

std::string at_step(const Evidence& evidence, const std::string& what) {
  const int64_t worker = evidence.worker;
  return text(what, ", step ", evidence.step + 1, worker < 0 ? "" : text(" of worker ", worker));
}

std::string divergence(const Plan& plan, const Evidence& evidence, const std::string& what,
                       double y, const std::string& of) {
  return text("step ", evidence.step + 1, ": rounding in ", to_string(plan.model.dtype),
              " alone moves the ", what, " by ", y, " of ", of,
              ": the run has diverged or is saturated");
}

void add_elements(const Elements& e, double bound, const std::string& where, Proof& proof) {
  if (e.mine.sizes() != e.exact.sizes()) return proof.refute(where + ": another shape");
  // Below the smallest normal number rounding is as large as at it.
  const Tensor far = (e.mine - e.exact).abs() / (e.scale + 0x1p-126);
  proof.update.add(far.numel() == 0 ? 0 : far.max().item<double>(), bound, where);
}

double unit_roundoff(DType type) {
  switch (type) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

namespace {

double size_of_loss(double reference) {
  return std::max(std::abs(reference), std::numeric_limits<double>::min());
}

}  // namespace

double gradient_bound(const Plan& plan, double rounding) {
  return kFactor * (rounding + unit_roundoff(plan.model.dtype));
}

double loss_bound(const Plan& plan, double rounding, double reference) {
  const double halves = 2.0 * static_cast<double>(plan.model.layers + 1);
  const bool is_of_images = plan.model.input() == ModelInput::kImages;
  const int64_t sequence = is_of_images ? 1 : plan.model.sequence;
  // Of BERT's positions about one in seven has a loss.
  const DataParallelPlan& data = plan.parallel.data;
  const int64_t batch = plan.train.batch / (data.is_stale() ? data.size : 1);  // a worker's own
  const auto positions = static_cast<double>(std::max<int64_t>(batch * sequence / 8, 1));
  const double u = unit_roundoff(plan.model.dtype);
  const double of_sum = std::min(u, 0x1p-24);  // half precision adds up losses in f32
  // log(sum of exp(z - largest z)) is that of a number from 1 on: near 0 its last rounding is absolute.
  const double absolute = std::max(1.0, 1 / size_of_loss(reference));
  return kFactor * (rounding + of_sum * absolute + u * std::sqrt(halves / positions));
}

double loss_error(double loss, double reference) {
  return std::abs(loss - reference) / size_of_loss(reference);
}

}  // namespace kuafu
