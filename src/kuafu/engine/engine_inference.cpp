// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/engine/engine_state.h"
#include "kuafu/engine/proof/box_gathering.h"
#include "kuafu/meter/book.h"
#include "kuafu/model/inference.h"

namespace kuafu {
namespace {

void check_given(const Plan& plan, const Tokens& batch) {
  KUAFU_CHECK(batch.samples == plan.train.batch && batch.sequence == plan.model.sequence,
              batch.samples, " samples of ", batch.sequence, " tokens, for ", plan.train.batch,
              " of ", plan.model.sequence);
  KUAFU_REQUIRE(plan.model.is_causal(), "model.kind = \"", plan.model.kind,
                "\" is not causal: its logits are of no next token");
}

}  // namespace

double Engine::surprisal(const Tokens& batch) {
  State& s = *state_;
  check_given(s.plan, batch);
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  s.micro_batches.use_given(batch);
  return s.global_loss(s.run(s.validation_row, false));
}

Tensor Engine::logits(const Tokens& batch, const std::vector<int64_t>& positions) {
  State& s = *state_;
  const int64_t samples = s.plan.train.batch, vocab = s.plan.model.vocab;
  check_given(s.plan, batch);
  KUAFU_CHECK(std::ssize(positions) == samples, positions.size(), " positions for ", samples,
              " samples");
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  Inference inference{.positions = positions};
  s.micro_batches.use_given(batch, inference);
  s.run(s.validation_row, false);
  std::vector<Box> mine;
  for (const LogitRow& row : inference.rows) {
    mine.push_back({.name = "logits",
                    .global = {samples, row.width},
                    .place = {{row.sample, row.first}, {1, row.values.numel()}},
                    .data = row.values});
  }
  const GatheredBoxes whole =
      gather_boxes(std::move(mine), Copies::kAnyIsGood, s.world, s.options.device);
  KUAFU_CHECK(whole.disagreement.empty(), whole.disagreement);
  if (s.world.rank() != 0) return {};
  const auto found = whole.tensors.find("logits");
  KUAFU_REQUIRE(found != whole.tensors.end(), "model.kind = \"", s.plan.model.kind,
                "\": its last block hands out no logits");
  return found->second.narrow(1, 0, vocab);
}

}  // namespace kuafu
