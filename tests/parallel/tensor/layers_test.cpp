// SPDX-License-Identifier: Apache-2.0
//
// What every model is made of, under every scheme against serial: values and all gradients.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/parallel/tensor/layers.h"
#include "tests/parallel/tensor/schemes.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::is_same;
using tests::kEps;
using tests::relative_error;
using tests::SchemeCase;

// 36 and 72 are divided by every grid of the table, 29 by none.
constexpr int64_t kBatch = 36, kSequence = 6, kHidden = 36, kInner = 72, kVocab = 29;
constexpr int64_t kTokens = kBatch * kSequence;

/// A differentiable input: an activation, or a parameter that meets the stream `meets`.
struct Leaf {
  std::string name;
  Shape global;
  Layout layout;
  Axes grad_axes = {};
};

/// A layer under test on one rank.
struct Layer {
  std::vector<Leaf> leaves;
  Layout out_layout;
  Shape out_shape;
  std::function<Tensor(const Tensors&)> call;
};
using MakeLayer = std::function<Layer(const TensorParallel&)>;

/// Whole output and whole gradients, by leaf.
struct Outcome {
  Tensor y;
  Tensors grads;
};

Leaf parameter(const TensorParallel& tp, const std::string& name, const Shape& global,
               const Layout& layout, Stream meets) {
  return {name, global, layout, grad_axes(tp.activation(meets), layout)};
}

Layout last_dim(const TensorParallel& tp, Stream s) { return {{tp.activation(s).dims[2]}}; }

TokenGrid grid(const TensorParallel& tp, Stream s) { return {tp.activation(s), kBatch, kSequence}; }

Outcome evaluate(const TensorParallel& tp, const MakeLayer& make) {
  const Layer layer = make(tp);
  std::vector<Param> params;
  Tensors leaves;
  for (const Leaf& leaf : layer.leaves) {
    params.push_back(tests::shard(leaf.name, leaf.global, leaf.layout, tp.mesh(), leaf.grad_axes));
    leaves.push_back(params.back().value);
  }
  const Tensor y = layer.call(leaves);
  const Param dy = tests::shard("dy", layer.out_shape, layer.out_layout, tp.mesh());
  torch::autograd::backward({y}, {dy.value.detach()});
  const at::NoGradGuard no_grad;
  Outcome out{gather_param(dy, y.detach(), tp.mesh()), {}};
  for (const Param& p : params) {
    const Tensor grad = p.value.grad().clone();
    tests::sum_over(tp.mesh(), p.grad_axes, grad);
    out.grads.push_back(gather_param(p, grad, tp.mesh()));
  }
  return out;
}

class TensorLayers : public testing::TestWithParam<SchemeCase> {
 protected:
  static Outcome serial(const MakeLayer& make) {
    const Mesh alone({}, 0);
    return evaluate(*make_serial(alone), make);
  }
  /// Longest reduction of the layer -> tolerance: see linear_test.cpp. A norm chains three sums.
  void expect_serial(const MakeLayer& make, int64_t longest) const {
    const double tolerance = 8 * kEps * static_cast<double>(longest);
    const Outcome expected = serial(make);
    on_ranks([&](const TensorParallel& tp) {
      const Outcome mine = evaluate(tp, make);
      EXPECT_LE(relative_error(mine.y, expected.y), tolerance) << tp.mesh().describe();
      ASSERT_EQ(mine.grads.size(), expected.grads.size());
      for (size_t i = 0; i < mine.grads.size(); ++i) {
        EXPECT_LE(relative_error(mine.grads[i], expected.grads[i]), tolerance)
            << "gradient of input " << i << " on " << tp.mesh().describe();
      }
    });
  }
  void on_ranks(const std::function<void(const TensorParallel&)>& f) const {
    tests::run_ranks(GetParam().ranks(), [&](Communicator& world) {
      const tests::MeshRank me(GetParam().axes(), world);
      const auto scheme = GetParam().make(me.mesh);
      f(*scheme);
    });
  }
};

Layer linear_layer(const TensorParallel& tp, Role r) {
  const bool expands = r == Role::kExpand;
  const Stream in = expands ? Stream::kOuter : Stream::kInner;
  const Stream out = expands ? Stream::kInner : Stream::kOuter;
  const int64_t k = expands ? kHidden : kInner, m = expands ? kInner : kHidden;
  return {{{"x", {kBatch, kSequence, k}, tp.activation(in)},
           parameter(tp, "w", {k, m}, tp.weight(r), in),
           parameter(tp, "b", {m}, last_dim(tp, out), out)},
          tp.activation(out),
          {kBatch, kSequence, m},
          [&tp, r](const Tensors& t) { return linear(tp, t[0], t[1], t[2], r); }};
}

TEST_P(TensorLayers, LinearWithBiasMatchesSerial) {
  for (const Role r : {Role::kExpand, Role::kContract}) {
    expect_serial([r](const TensorParallel& tp) { return linear_layer(tp, r); }, kTokens);
  }
}

TEST_P(TensorLayers, LayerNormMatchesSerial) {
  const MakeLayer make = [](const TensorParallel& tp) -> Layer {
    const Layout vector = last_dim(tp, Stream::kOuter);
    return {{{"x", {kBatch, kSequence, kHidden}, tp.activation(Stream::kOuter)},
             parameter(tp, "w", {kHidden}, vector, Stream::kOuter),
             parameter(tp, "b", {kHidden}, vector, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {kBatch, kSequence, kHidden},
            [&tp](const Tensors& t) { return layer_norm(tp, t[0], t[1], t[2], kHidden, 1e-5); }};
  };
  expect_serial(make, 3 * kTokens);
}

// One rank owns a token's row and the others add zeros: exact.
TEST_P(TensorLayers, EmbeddingMatchesSerial) {
  const MakeLayer make = [](const TensorParallel& tp) -> Layer {
    const Layout table = tp.weight(Role::kContract);
    return {{parameter(tp, "table", {kVocab, kHidden}, table, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {kBatch, kSequence, kHidden},
            [&tp, table](const Tensors& t) {
              return embedding(tp.mesh(), tests::ids(kBatch, kSequence, kVocab, 1), t[0], table,
                               grid(tp, Stream::kOuter));
            }};
  };
  const Outcome expected = serial(make);
  on_ranks([&](const TensorParallel& tp) {
    EXPECT_TRUE(is_same(evaluate(tp, make).y, expected.y)) << tp.mesh().describe();
  });
  expect_serial(make, kTokens);
}

TEST_P(TensorLayers, PositionsMatchSerial) {
  const MakeLayer make = [](const TensorParallel& tp) -> Layer {
    const Layout table{{{}, tp.activation(Stream::kOuter).dims[2]}};
    return {{{"x", {kBatch, kSequence, kHidden}, tp.activation(Stream::kOuter)},
             parameter(tp, "table", {kSequence, kHidden}, table, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {kBatch, kSequence, kHidden},
            [&tp](const Tensors& t) {
              return add_positions(tp.mesh(), t[0], t[1], grid(tp, Stream::kOuter));
            }};
  };
  const Outcome expected = serial(make);
  on_ranks([&](const TensorParallel& tp) {
    EXPECT_TRUE(is_same(evaluate(tp, make).y, expected.y)) << tp.mesh().describe();
  });
  expect_serial(make, kBatch);
}

TEST_P(TensorLayers, DropoutMaskIsTheSerialOne) {
  const MakeLayer make = [](const TensorParallel& tp) -> Layer {
    return {{{"x", {kBatch, kSequence, kHidden}, tp.activation(Stream::kOuter)}},
            tp.activation(Stream::kOuter),
            {kBatch, kSequence, kHidden},
            [&tp](const Tensors& t) {
              const DropoutSite site{.p = 0.3, .seed = 3, .site = 17, .step = 2, .first_sample = 5};
              return dropout(tp.mesh(), t[0], site, kHidden, grid(tp, Stream::kOuter));
            }};
  };
  const Outcome expected = serial(make);
  const double kept = expected.y.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.7, 0.05);  // 7776 elements: 9 standard deviations
  on_ranks([&](const TensorParallel& tp) {
    const Outcome mine = evaluate(tp, make);
    EXPECT_TRUE(is_same(mine.y, expected.y)) << tp.mesh().describe();
    EXPECT_TRUE(is_same(mine.grads[0], expected.grads[0])) << tp.mesh().describe();
  });
}

// The table is a contract weight whose vocabulary is padded where ranks do not divide it.
TEST_P(TensorLayers, TiedHeadMatchesSerial) {
  const MakeLayer make = [](const TensorParallel& tp) -> Layer {
    const Layout table = tp.weight(Role::kContract);
    return {{{"x", {kBatch, kSequence, kHidden}, tp.activation(Stream::kOuter)},
             parameter(tp, "table", {kVocab, kHidden}, table, Stream::kOuter)},
            tp.activation(Stream::kInner),
            {kBatch, kSequence, kVocab},
            [&tp](const Tensors& t) { return tied_head(tp, t[0], t[1]); }};
  };
  expect_serial(make, kTokens);
}

/// Loss over whole tokens and the whole gradient of the logits.
Outcome evaluate_loss(const TensorParallel& tp, const Tensor& targets) {
  const Param logits =
      tests::shard("logits", {kBatch, kSequence, kVocab}, tp.activation(Stream::kInner), tp.mesh());
  const TokenGrid tokens = grid(tp, Stream::kInner);
  const Tensor loss =
      cross_entropy(tp.mesh(), logits.value, targets, 1.0 / kTokens, kVocab, tokens);
  torch::autograd::backward({loss}, {at::ones_like(loss)});
  const at::NoGradGuard no_grad;
  const Tensor sum = loss.detach().clone();
  for (size_t d = 0; d < 2; ++d) tests::sum_over(tp.mesh(), tokens.activation.dims[d], sum);
  return {sum, {gather_param(logits, logits.value.grad(), tp.mesh())}};
}

TEST_P(TensorLayers, CrossEntropyOverAPaddedVocabularyMatchesSerial) {
  const Tensor targets = tests::ids(kBatch, kSequence, kVocab, 2);
  targets[0][3] = -1;  // ignored
  targets[11][0] = kVocab - 1;
  const Mesh alone({}, 0);
  const Outcome expected = evaluate_loss(*make_serial(alone), targets);
  // Two orders of the sum over the vocabulary, then over the tokens.
  const double tolerance = 8 * kEps * static_cast<double>(kVocab + kTokens);
  on_ranks([&](const TensorParallel& tp) {
    const Outcome mine = evaluate_loss(tp, targets);
    EXPECT_LE(relative_error(mine.y, expected.y), tolerance) << tp.mesh().describe();
    EXPECT_LE(relative_error(mine.grads[0], expected.grads[0]), tolerance) << tp.mesh().describe();
  });
}

// Closed form: the loss of logits that are all equal is ln(vocab), whatever the padding.
TEST_P(TensorLayers, CrossEntropyOfEqualLogitsIsLogVocab) {
  on_ranks([&](const TensorParallel& tp) {
    Param logits = tests::shard("logits", {kBatch, kSequence, kVocab},
                                tp.activation(Stream::kInner), tp.mesh());
    const at::NoGradGuard no_grad;
    logits.value.fill_(2.5);
    const TokenGrid tokens = grid(tp, Stream::kInner);
    const Tensor loss =
        cross_entropy(tp.mesh(), logits.value, tests::ids(kBatch, kSequence, kVocab, 2),
                      1.0 / kTokens, kVocab, tokens)
            .clone();
    for (size_t d = 0; d < 2; ++d) tests::sum_over(tp.mesh(), tokens.activation.dims[d], loss);
    EXPECT_NEAR(loss.item<double>(), std::log(static_cast<double>(kVocab)),
                8 * kEps * static_cast<double>(kVocab + kTokens));
  });
}

INSTANTIATE_TEST_SUITE_P(All, TensorLayers, testing::ValuesIn(tests::scheme_cases()),
                         [](const auto& info) { return tests::name_of(info.param); });

}  // namespace
}  // namespace kuafu
