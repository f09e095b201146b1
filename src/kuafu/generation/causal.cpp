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
/// Pairs of forwards.
constexpr int64_t kTrials = 16;

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

/// A position of each sample, over all trials from the first of the sequence to the last but one.
std::vector<int64_t> spread(const Plan& plan, int64_t trial) {
  const int64_t last = std::max<int64_t>(0, plan.model.sequence - 2), b = plan.train.batch;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < b; ++i) {
    positions.push_back(last * (trial * b + i) / std::max<int64_t>(1, kTrials * b - 1));
  }
  return positions;
}

bool is_apart(const Tensor& one, const Tensor& other, DType type) {
  const double eps = type == DType::kF64    ? 0x1p-52
                     : type == DType::kF32  ? 0x1p-23
                     : type == DType::kBF16 ? 0x1p-7
                                            : 0x1p-10;
  const Tensor moved = (one.to(at::kDouble) - other.to(at::kDouble)).abs().max();
  const double allowed = kRoundings * eps * one.to(at::kDouble).abs().max().item<double>();
  return !(moved.item<double>() <= allowed);  // no number is apart, too
}

}  // namespace

void require_causal(Engine& engine, Communicator& world) {
  const Plan& plan = engine.plan();
  const std::vector<std::string> known = builtin_model_names();
  if (std::find(known.begin(), known.end(), plan.model.kind) != known.end()) return;
  int64_t is_moved = 0;
  for (int64_t trial = 0; trial < kTrials; ++trial) {
    const std::vector<int64_t> positions = spread(plan, trial);
    const Tensor one = engine.logits(filled(plan, positions, 1), positions);
    const Tensor other = engine.logits(filled(plan, positions, 2), positions);
    if (world.rank() == 0 && is_apart(one, other, plan.model.dtype)) is_moved = 1;
  }
  world.broadcast({&is_moved, 1, DType::kI64}, 0).wait_host();
  KUAFU_REQUIRE(is_moved == 0, "model.kind = ", in_quotes(plan.model.kind),
                ": what it says of a token changes with tokens behind it, of its own sample or of "
                "another, so "
                "that it foretells none");
}

}  // namespace kuafu
