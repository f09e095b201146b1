// SPDX-License-Identifier: Apache-2.0
//
// The oracle's attention inside documents, by hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kuafu/oracle/layers.h"

namespace kuafu {
namespace {

/// Queries and keys 0, so that each position gets the mean of the values it sees: of one sample
/// 1 2 4 8 16.
Tensor means(const std::vector<int64_t>& tokens, std::optional<int64_t> end) {
  ModelPlan plan;
  plan.hidden = 2;
  plan.heads = 1;
  plan.bias = false;
  const Tensor eye = at::eye(2, at::kDouble);
  oracle::Tensors weights = {{"a.qkv.weight", at::cat({at::zeros({2, 4}, at::kDouble), eye}, 1)},
                             {"a.out.weight", eye}};
  oracle::Samples samples{
      .tokens = {.inputs = tokens, .targets = tokens, .samples = 1, .sequence = 5}, .batch = 1};
  samples.tokens.end_token = end;
  oracle::Extra extra;
  const Tensor x = at::tensor({1.0, 2.0, 4.0, 8.0, 16.0}).view({1, 5, 1}).expand({1, 5, 2});
  const oracle::Call call{plan, 1, weights, samples, extra};
  return oracle::attention(call, x.to(at::kDouble), "a", oracle::Sees::kEarlier)[0].select(1, 0);
}

TEST(OracleOfDocuments, SeesItsOwnDocumentAlone) {
  const auto expect = [](const Tensor& got, const std::vector<double>& expected) {
    EXPECT_TRUE(at::allclose(got, at::tensor(expected, at::kDouble), 0, 1e-14)) << got;
  };
  // The end token, 0, belongs to the document that it ends: {3 0} {5 0} {2}.
  expect(means({3, 0, 5, 0, 2}, 0), {1, 1.5, 4, 6, 16});
  expect(means({0, 0, 5, 7, 0}, 0), {1, 2, 4, 6, 28.0 / 3});
  expect(means({3, 0, 5, 0, 2}, 9), {1, 1.5, 7.0 / 3, 15.0 / 4, 31.0 / 5});
  expect(means({3, 0, 5, 0, 2}, {}), {1, 1.5, 7.0 / 3, 15.0 / 4, 31.0 / 5});
}

}  // namespace
}  // namespace kuafu
