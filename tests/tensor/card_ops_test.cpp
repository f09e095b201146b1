// SPDX-License-Identifier: Apache-2.0
//
// Own ops on a card beside the CPU's, small ones and those that fill its kernels: many rows, wide pieces
// and odd ones, runs of one layer, long sequences. Skipped where there is no card.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "kuafu/comm/worlds.h"
#include "kuafu/device/device.h"
#include "kuafu/tensor/tensor.h"
#include "tests/tensor/op_cases.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::Case;
using testing::closed_form;
using testing::Stack;
using Type = at::ScalarType;

/// Updates of `count` elements in one layer.
std::vector<Case> card_updates(int64_t count) {
  const auto wide = [=](int64_t salt, Type t) {
    return closed_form({count}, salt, testing::stats_type(t));
  };
  const auto grad = [=](Type t) { return closed_form({count}, 2, t); };
  const std::vector<int64_t> run = {0, 1, 0, 1, 1, 0};
  return {
      {"adamw",
       [=](Type t) {
         return Stack{wide(1, t), grad(t), wide(3, t), wide(4, t).square(), 0.1, 0.9, 0.99, 1e-8,
                      0.01,       3,       0.5};
       }},
      {"sgd", [=](Type t) { return Stack{wide(1, t), grad(t), wide(3, t), 0.1, 0.9, 0.01, 0.5}; }},
      {"lamb_norms",
       [=](Type t) {
         return Stack{
             wide(1, t), grad(t), wide(3, t), wide(4, t).square(), 0.9, 0.99, 1e-8, 0.01, 3, 0.5,
             run,        1,       false};
       }},
      {"lamb",
       [=](Type t) {
         return Stack{wide(1, t),
                      wide(3, t),
                      wide(4, t).square(),
                      closed_form({1}, 5).abs(),
                      0.9,
                      0.99,
                      1e-8,
                      0.01,
                      3,
                      run};
       }},
      {"lars_norms", [=](Type t) { return Stack{wide(1, t), grad(t), 0.5, 0.01, run, 1}; }},
      {"lars",
       [=](Type t) {
         return Stack{wide(1, t), grad(t), wide(3, t), closed_form({1}, 5).abs(), 0.9, 0.01, 0.5,
                      0.3,        0.2,     run};
       }},
      {"lars",
       [=](Type t) {
         return Stack{wide(1, t), grad(t), wide(3, t), closed_form({1, 2}, 5).abs(), 0.9, 0.01, 0.5,
                      0.3,        0.2,     run};
       }},
      {"sum_of_squares", [=](Type t) { return Stack{closed_form({count}, 1, t)}; }}};
}

/// Norms, sums, biases and losses of 2,000 rows of `width`.
std::vector<Case> card_rows(int64_t width) {
  const auto x = [=](int64_t salt, Type t) { return closed_form({2, 1000, width}, salt, t); };
  const auto w = [=](Type t) { return closed_form({width}, 3, t); };
  const auto stat = [](int64_t salt, Type t) {
    return closed_form({2000}, salt, testing::stats_type(t)) + 2;
  };
  const auto ids = [=] {
    return (at::arange(2000, at::kLong) * 37).remainder(width + 50).view({2, 1000});
  };
  return {
      {"layer_norm",
       [=](Type t) {
         return Stack{x(1, t), w(t), w(t), 1e-5};
       }},
      {"layer_norm_backward",
       [=](Type t) { return Stack{x(2, t), x(1, t), stat(4, t) - 2, stat(5, t), w(t), x(7, t)}; }},
      {"sum_rows", [=](Type t) { return Stack{x(1, t)}; }},
      {"add_bias",
       [=](Type t) {
         return Stack{x(1, t), w(t)};
       }},
      {"cross_entropy_stats",
       [=](Type t) {
         return Stack{x(1, t), ids(), 20, width + 50};
       }},
      {"cross_entropy_backward", [=](Type t) {
         return Stack{
             x(1, t), ids(),     stat(2, t).view({2, 1000}), stat(3, t).view({2, 1000}), 0.5,
             20,      width + 50};
       }}};
}

/// Attention and heads of 300 positions.
std::vector<Case> card_heads(int64_t width) {
  const auto heads = [=](int64_t salt, Type t) {
    return closed_form({2, 300, 3, width}, salt, t).transpose(1, 2);
  };
  return {{"attention",
           [=](Type t) {
             return Stack{heads(1, t), heads(2, t), heads(3, t), true, c10::IValue()};
           }},
          {"split_heads",
           [=](Type t) {
             return Stack{closed_form({2, 300, 9 * width}, 1, t), width, 3};
           }},
          {"join_heads", [=](Type t) {
             return Stack{c10::List<at::Tensor>({heads(1, t), heads(2, t), heads(3, t)})};
           }}};
}

std::vector<Case> all_of_them() {
  std::vector<Case> all = testing::all_cases();
  for (const auto& some : {card_updates(4096), card_updates(4097), card_rows(2048), card_rows(2047),
                           card_heads(64), card_heads(20)}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void expect_same(const Case& c, Type type) {
  const std::map<Type, double> units = {{at::kDouble, 0x1.0p-52},
                                        {at::kFloat, 0x1.0p-23},
                                        {at::kBFloat16, 0x1.0p-8},
                                        {at::kHalf, 0x1.0p-11}};
  const std::string what = c.op + " " + c10::toString(type);
  const auto cpu = testing::call("kuafu::" + c.op, c.arguments(type));
  const auto card = testing::call(
      "kuafu::" + c.op,
      testing::mapped(c.arguments(type), [](const Tensor& t) { return t.to(at::kCUDA); }));
  ASSERT_EQ(cpu.size(), card.size()) << what;
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_TRUE(card[i].is_cuda()) << what << " tensor " << i;
    EXPECT_EQ(cpu[i].scalar_type(), card[i].scalar_type()) << what << " tensor " << i;
    if (cpu[i].numel() == 0) continue;
    // Half precision is rounded a few times, at most to the unit of the largest number; sums of up to 2,000
    // terms in f32 and f64 are rounded at each.
    const bool is_half = cpu[i].scalar_type() == at::kBFloat16 || cpu[i].scalar_type() == at::kHalf;
    const Tensor finite = cpu[i].to(at::kDouble).nan_to_num(0, 0, 0).abs();
    const double unit = cpu[i].is_floating_point() ? units.at(cpu[i].scalar_type()) : 0;
    testing::expect_close(cpu[i], card[i].cpu(),
                          (is_half ? 4 : 300) * unit * finite.max().item<double>(),
                          what + " tensor " + std::to_string(i));
  }
}

TEST(CardOps, EqualTheCpu) {
  if (device::num_devices() == 0) GTEST_SKIP() << device::why_none();
  compute_on(at::kCUDA);
  run_on_threads(1, [](Communicator&) {
    for (const Case& c : all_of_them()) {
      for (const Type type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
        expect_same(c, type);
    }
  });
  compute_on(at::kCPU);
}

}  // namespace
}  // namespace kuafu
