// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/differentiable.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>
#include <thread>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;

Tensor leaf(at::IntArrayRef sizes, int64_t salt) {
  return closed_form(sizes, salt).requires_grad_(true);
}

/// (a b, a + b) element by element.
Tensors product_and_sum(const Tensor& a, const Tensor& b, std::vector<bool>* asked = nullptr) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    return {{in[0] * in[1], in[0] + in[1]}, {in[0], in[1]}};
  };
  const Backward backward = [asked](const Tensors& saved, const Tensors& g,
                                    const std::vector<bool>& needs) -> Tensors {
    if (asked != nullptr) *asked = needs;
    Tensor da, db;
    if (g[0].defined()) {
      da = g[0] * saved[1];
      db = g[0] * saved[0];
    }
    if (g[1].defined()) {
      da = da.defined() ? da + g[1] : g[1];
      db = db.defined() ? db + g[1] : g[1];
    }
    return {da, db};
  };
  return differentiable({a, b}, forward, backward);
}

TEST(Differentiable, GivesTheGradientsOfItsBackward) {
  const Tensor a = leaf({4, 3}, 1), b = leaf({4, 3}, 2);
  const Tensors y = product_and_sum(a, b);
  (y[0] * 3 + y[1]).sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), b.detach() * 3 + 1));
  EXPECT_TRUE(at::equal(b.grad(), a.detach() * 3 + 1));
}

TEST(Differentiable, LeavesTheGradientOfAnUnusedOutputUndefined) {
  const Tensor a = leaf({4}, 1), b = leaf({4}, 2);
  product_and_sum(a, b)[0].sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), b.detach()));
}

TEST(Differentiable, SaysWhichInputsNeedAGradient) {
  const Tensor a = leaf({4}, 1), b = closed_form({4}, 2);
  std::vector<bool> asked;
  product_and_sum(a, b, &asked)[1].sum().backward();
  EXPECT_EQ(asked, (std::vector<bool>{true, false}));
  EXPECT_FALSE(b.grad().defined());
}

TEST(Differentiable, TakesUndefinedInputs) {
  const Tensor a = leaf({4}, 1);
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    EXPECT_FALSE(in[1].defined());
    return {{in[0] * 2}, {in[1]}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    EXPECT_FALSE(saved[0].defined());
    return {g[0] * 2, Tensor()};
  };
  differentiable({a, Tensor()}, forward, backward)[0].sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), at::full({4}, 2, at::kDouble)));
}

TEST(Differentiable, RunsOnlyForwardWhereNothingNeedsAGradient) {
  RankBook book(0);
  const BookScope scope(&book);
  const Tensor a = closed_form({64}, 1), b = closed_form({64}, 2);
  const int64_t before = book.live();
  {
    const Tensor y = product_and_sum(a, b)[0];
    EXPECT_FALSE(y.requires_grad());
    EXPECT_EQ(book.live() - before, 64 * 8);
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(product_and_sum(leaf({4}, 1), leaf({4}, 2))[0].requires_grad());
}

TEST(Differentiable, AnIdentityHasAnIdentityOfItsOwn) {
  const Tensor a = leaf({4}, 1);
  const Forward forward = [](const Tensors& in) -> ForwardResult { return {{in[0]}, {in[0]}}; };
  const Backward backward = [](const Tensors& saved, const Tensors& g,
                               const std::vector<bool>&) -> Tensors { return {g[0] * saved[0]}; };
  const Tensor y = differentiable({a}, forward, backward)[0];
  EXPECT_TRUE(y.is_alias_of(a));
  EXPECT_FALSE(y.is_leaf());
  EXPECT_TRUE(a.is_leaf());
  y.sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), a.detach()));
}

/// exp(x), saving its output.
Tensor own_exp(const Tensor& x) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    const Tensor y = in[0].exp();
    return {{y}, {y}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& g,
                               const std::vector<bool>&) -> Tensors { return {g[0] * saved[0]}; };
  return differentiable({x}, forward, backward)[0];
}

TEST(Differentiable, ASavedOutputDoesNotKeepItsGraphAlive) {
  RankBook book(0);
  const BookScope scope(&book);
  {
    const Tensor x = leaf({100}, 1);
    Tensor y = own_exp(x);
    y.reset();
  }
  EXPECT_EQ(book.live(), 0);
  const Tensor x = leaf({100}, 1);
  const Tensor y = own_exp(x);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y.detach()));
}

TEST(Differentiable, NoticesASavedTensorThatWasOverwritten) {
  const Tensor x = leaf({8}, 1);
  const Tensor y = own_exp(x);
  {
    const at::NoGradGuard no_grad;
    y.mul_(2);
  }
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(Differentiable, FreesWhatItSavedAfterBackward) {
  RankBook book(0);
  const BookScope scope(&book);
  const Tensor x = leaf({100}, 1);
  const int64_t before = book.live();
  const Tensor held = closed_form({100}, 2);
  std::optional<Tensor> loss = own_exp(x * held).sum();
  EXPECT_GT(book.live(), before + 2 * 800);
  loss->backward();
  EXPECT_EQ(book.live(), before + 800 /* held */ + 800 /* gradient */ + 8 /* loss */);
  EXPECT_THROW(loss->backward(), std::exception);
}

TEST(FanOut, AddsTheGradientsOfItsUsersInOrder) {
  const Tensor x = leaf({8}, 3);
  const Tensors users = fan_out(x, 3);
  ASSERT_EQ(users.size(), 3U);
  (users[0] * 2 + own_exp(users[2])).sum().backward();  // one has no user
  EXPECT_TRUE(at::equal(x.grad(), x.detach().exp() + 2));
}

TEST(FanOut, LeavesAGradientThatOthersHoldAlone) {
  const Tensor x = leaf({8}, 3);
  const Tensors users = fan_out(x, 2);
  const Tensor dy = closed_form({8}, 5), before = dy.clone();
  torch::autograd::backward({users[0], users[1]}, {dy, dy});
  EXPECT_TRUE(at::equal(dy, before));
  EXPECT_TRUE(at::equal(x.grad(), 2 * before));
}

TEST(FanOut, WithoutRecordingGivesTheTensorItself) {
  const Tensor x = closed_form({8}, 3);
  for (const Tensor& user : fan_out(x, 2)) EXPECT_TRUE(user.is_same(x));
}

TEST(Differentiable, CallsNest) {
  const Tensor x = leaf({8}, 3);
  own_exp(own_exp(x)).sum().backward();
  const Tensor inner = x.detach().exp();
  EXPECT_TRUE(at::equal(x.grad(), inner.exp() * inner));
}

// LibTorch would run the backward of a card's tensors on a thread of its own, for all ranks of the card:
// ranks turn that off (tensor.h), and an op that finds itself elsewhere says so.
TEST(Differentiable, BackwardOnAnotherThreadIsRefused) {
  const Tensor x = at::ones({2}, at::kDouble).requires_grad_();
  const Tensor y = differentiable(
      {x},
      [](const Tensors& in) -> ForwardResult {
        return {{in[0] * 2}, {}};
      },
      [](const Tensors&, const Tensors& grads, const std::vector<bool>&) -> Tensors {
        return {grads[0] * 2};
      })[0];
  std::string why;
  std::thread([&] {
    try {
      torch::autograd::backward({y.sum()}, {});
    } catch (const std::exception& error) {
      why = error.what();
    }
  }).join();
  EXPECT_NE(why.find("on another thread than its forward"), std::string::npos) << why;
  torch::autograd::backward({y.sum()}, {});
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 2.0, at::kDouble)));
}

}  // namespace
}  // namespace kuafu
