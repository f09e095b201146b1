// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace kuafu {
namespace {

TEST(Flops, FollowTheirFormulas) {
  EXPECT_EQ(flops::matmul(3, 4, 5), 120);
  const flops::AttentionExtents a{2, 3, 8, 8, 16, false};
  EXPECT_EQ(flops::attention(a), 4 * 2 * 3 * 8 * 8 * 16);
  EXPECT_EQ(flops::attention({2, 3, 8, 8, 16, true}), flops::attention(a) / 2);
  EXPECT_EQ(flops::attention_backward(a), 2 * flops::attention(a));
}

TEST(FlopWatcher, SeesMatrixProductsForwardAndBackward) {
  const at::Tensor a = at::ones({3, 4}).requires_grad_(true),
                   b = at::ones({4, 5}).requires_grad_(true);
  const FlopWatcher watcher;
  const at::Tensor y = at::matmul(a, b).sum();
  EXPECT_EQ(watcher.total(), 120);
  y.backward();
  EXPECT_EQ(watcher.total(), 360);
  EXPECT_EQ(watcher.by_op().at("aten::mm"), 360);
}

TEST(FlopWatcher, CountsEveryLeafOnce) {
  const at::Tensor m = at::ones({2, 3, 4}), q = at::ones({2, 3, 8, 16});
  const FlopWatcher watcher;
  at::bmm(m, m.transpose(1, 2));
  at::baddbmm(at::ones({2, 3, 3}), m, m.transpose(1, 2));
  at::addmm(at::ones({5}), at::ones({3, 4}), at::ones({4, 5}));
  at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
  EXPECT_EQ(watcher.by_op().at("aten::bmm"), 2 * flops::matmul(3, 4, 3));
  EXPECT_EQ(watcher.by_op().at("aten::baddbmm"), 2 * flops::matmul(3, 4, 3));
  EXPECT_EQ(watcher.by_op().at("aten::addmm"), flops::matmul(3, 4, 5));
  EXPECT_EQ(watcher.by_op().at("aten::_scaled_dot_product_flash_attention_for_cpu"),
            flops::attention({2, 3, 8, 8, 16, true}));
}

TEST(FlopWatcher, StopsWithItsScope) {
  {
    const FlopWatcher watcher;
    at::mm(at::ones({2, 2}), at::ones({2, 2}));
    EXPECT_EQ(watcher.calls().at("aten::mm"), 1);
  }
  const FlopWatcher second;
  EXPECT_EQ(second.total(), 0);
}

}  // namespace
}  // namespace kuafu
