// SPDX-License-Identifier: Apache-2.0
//
// Slots against dense one-hot products, and over ranks against one rank.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/parallel/expert/interface.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/expert_ops.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::kEps;

constexpr int64_t kSamples = 4, kTokens = 8, kExperts = 4, kSlots = 4, kHidden = 3;

Tensor normal(const std::string& name, const Shape& shape) {
  const Mesh alone({}, 0);
  return tests::shard(name, shape, Layout::replicated(shape.size()), alone).value.detach();
}

/// (B, E, C): tokens in some order, some slots empty, no token twice in one expert.
Tensor some_tokens() {
  const Tensor t = at::empty({kSamples, kExperts, kSlots}, at::kLong);
  for (int64_t b = 0; b < kSamples; ++b) {
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int64_t c = 0; c < kSlots; ++c) {
        const bool is_empty = (b + e + c) % 5 == 0;
        t[b][e][c].fill_(is_empty ? -1 : (3 * c + 2 * e + b) % kTokens);
      }
    }
  }
  return t;
}

/// What an expert does in these tests: each scales by its own number.
Tensor experts(const Tensor& rows, int64_t first) {
  const Tensor scale = at::arange(first + 1, first + 1 + rows.size(0), at::kDouble);
  return rows * scale.view({-1, 1, 1, 1});
}

struct Result {
  Tensor y, dx, dgates;
};

Result run(const ExpertParallel& experts_of, const Tensor& x, const Tensor& gates,
           const Slots& slots, int64_t first_expert, const Tensor& dy) {
  const Tensor a = x.clone().requires_grad_(), g = gates.clone().requires_grad_();
  const Tensor y =
      experts_of.combine(experts(experts_of.dispatch(a, slots), first_expert), g, slots);
  y.backward(dy);
  return {y.detach(), a.grad(), g.grad()};
}

Result dense(const Tensor& x, const Tensor& gates, const Tensor& token, const Tensor& dy) {
  const Tensor a = x.clone().requires_grad_(), g = gates.clone().requires_grad_();
  const Tensor hot =  // (B, E, C, S)
      at::one_hot(at::where(token.ge(0), token, at::full({}, kTokens, token.options())),
                  kTokens + 1)
          .narrow(-1, 0, kTokens)
          .to(at::kDouble);
  const Tensor rows = experts(at::einsum("becs,bsh->ebch", {hot, a}), 0);
  const Tensor y = at::einsum("becs,bec,ebch->bsh", {hot, g, rows});
  y.backward(dy);
  return {y.detach(), a.grad(), g.grad()};
}

// Sums of at most E C terms.
constexpr double kTolerance = kExperts * kSlots * 4 * kEps;

TEST(Slots, EqualDenseOneHotProducts) {
  const Mesh mesh({}, 0);
  const auto all_to_all = make_all_to_all_experts(mesh);
  const Tensor x = normal("x", {kSamples, kTokens, kHidden});
  const Tensor gates = normal("gates", {kSamples, kExperts, kSlots});
  const Tensor dy = normal("dy", {kSamples, kTokens, kHidden}), token = some_tokens();
  const Result mine = run(*all_to_all, x, gates, {token, kTokens}, 0, dy);
  const Result theirs = dense(x, gates, token, dy);
  EXPECT_LT(tests::relative_error(mine.y, theirs.y), kTolerance);
  EXPECT_LT(tests::relative_error(mine.dx, theirs.dx), kTolerance);
  // An empty slot's gate has no gradient, in both.
  EXPECT_LT(tests::relative_error(mine.dgates, theirs.dgates), kTolerance);
}

/// Samples over "expert", tokens over "sequence": each rank's part equals the whole's.
void expect_equal_over(int64_t expert, int64_t sequence) {
  const Tensor x = normal("x", {kSamples, kTokens, kHidden});
  const Tensor gates = normal("gates", {kSamples, kExperts, kSlots});
  const Tensor dy = normal("dy", {kSamples, kTokens, kHidden}), token = some_tokens();
  const Result whole = dense(x, gates, token, dy);
  tests::run_ranks(static_cast<int>(expert * sequence), [&](Communicator& world) {
    tests::MeshRank rank({{"expert", expert}, {"sequence", sequence}}, world);
    const auto all_to_all = make_all_to_all_experts(rank.mesh);
    const int64_t samples = kSamples / expert, tokens = kTokens / sequence;
    const int64_t sample = rank.mesh.coord("expert") * samples;
    const int64_t first = rank.mesh.coord("sequence") * tokens;
    const auto mine = [&](const Tensor& t) {
      return t.narrow(0, sample, samples).narrow(1, first, tokens).contiguous();
    };
    const Tensor place = at::full({kTokens}, -1, at::kLong);
    place.narrow(0, first, tokens).copy_(at::arange(tokens, at::kLong));
    const Slots slots{.rows = ops::local_rows(token.narrow(0, sample, samples), place),
                      .num_rows = tokens,
                      .sequence = {"sequence"}};
    const Result part = run(*all_to_all, mine(x), gates.narrow(0, sample, samples).contiguous(),
                            slots, rank.mesh.coord("expert") * kExperts / expert, mine(dy));
    EXPECT_LT(tests::relative_error(part.y, mine(whole.y)), kTolerance);
    EXPECT_LT(tests::relative_error(part.dx, mine(whole.dx)), kTolerance);
    // Gates meet the tokens of one rank each.
    tests::sum_over(rank.mesh, {"sequence"}, part.dgates);
    EXPECT_LT(tests::relative_error(part.dgates, whole.dgates.narrow(0, sample, samples)),
              kTolerance);
    // The closed form of the file's header, forward and backward.
    const int64_t buffer = kExperts * samples * kSlots * kHidden;
    const int64_t travelled =
        4 * buffer / sequence * (expert - 1) / expert + 4 * buffer * (sequence - 1) / sequence;
    const int64_t gate_sum = 2 * (sequence - 1) * samples * kExperts * kSlots / sequence;
    EXPECT_EQ(rank.received(), (travelled + gate_sum) * 8);
  });
}

TEST(AllToAll, OverExpertRanksEqualsOneRank) {
  expect_equal_over(2, 1);
  expect_equal_over(4, 1);
}

TEST(AllToAll, OverSequenceRanksEqualsOneRank) {
  expect_equal_over(1, 2);
  expect_equal_over(2, 2);
  expect_equal_over(2, 4);
}

}  // namespace
}  // namespace kuafu
