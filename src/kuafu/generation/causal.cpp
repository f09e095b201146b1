// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/causal.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

/// Roundings of the largest logit that may differ: what lies behind has the same shape, so that sums
/// are the same ones in the same order.
constexpr double kRoundings = 4;

/// Tokens up to a position of each sample, and behind it others by `fill`.
Tokens filled(const Plan& plan, const std::vector<int64_t>& positions, int64_t fill) {
  const int64_t samples = plan.train.batch, sequence = plan.model.sequence;
  Tokens out{.inputs = {}, .targets = {}, .samples = samples, .sequence = sequence};
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t s = 0; s < sequence; ++s) {
      const int64_t token = 7 * b + 5 * s + (s > positions[static_cast<size_t>(b)] ? fill : 0);
      out.inputs.push_back(token % plan.model.vocab);
    }
  }
  return out;
}

}  // namespace

void require_causal(Engine& engine, Communicator& world) {
  const Plan& plan = engine.plan();
  const std::vector<std::string> known = builtin_model_names();
  if (std::find(known.begin(), known.end(), plan.model.kind) != known.end()) return;
  std::vector<int64_t> positions;
  for (int64_t b = 0; b < plan.train.batch; ++b) {
    positions.push_back(b % std::max<int64_t>(1, plan.model.sequence - 1));
  }
  const Tensor one = engine.logits(filled(plan, positions, 1), positions);
  const Tensor other = engine.logits(filled(plan, positions, 2), positions);
  int64_t is_moved = 0;
  if (world.rank() == 0) {
    const double eps = plan.model.dtype == DType::kF64    ? 0x1p-52
                       : plan.model.dtype == DType::kF32  ? 0x1p-23
                       : plan.model.dtype == DType::kBF16 ? 0x1p-7
                                                          : 0x1p-10;
    const Tensor moved = (one.to(at::kDouble) - other.to(at::kDouble)).abs().max();
    const double allowed = kRoundings * eps * one.to(at::kDouble).abs().max().item<double>();
    is_moved = moved.item<double>() <= allowed ? 0 : 1;  // no number is moved, too
  }
  world.broadcast({&is_moved, 1, DType::kI64}, 0).wait_host();
  KUAFU_REQUIRE(
      is_moved == 0, "model.kind = ", in_quotes(plan.model.kind),
      ": what it says of a token changes with those behind it, so that it foretells none");
}

}  // namespace kuafu
