// SPDX-License-Identifier: Apache-2.0
//
// A small block of a transformer, forward and backward, has the same books on meta and on a CPU.
#include <gtest/gtest.h>

#include "kuafu/meter/allocator.h"
#include "kuafu/meter/flops.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    return {{ops::matmul_bias(rows(in[0]), in[1], in[2]).view({in[0].size(0), in[0].size(1), -1})},
            {in[0], in[1]}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    const Tensor dy = rows(g[0].contiguous());
    return {ops::matmul(dy, saved[1].t()).view(saved[0].sizes()),
            ops::matmul(rows(saved[0]).t(), dy), dy.sum(0)};
  };
  return differentiable({x, w, b}, forward, backward)[0];
}

Tensor norm(const Tensor& x, const Tensor& w, const Tensor& b) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    const ops::NormOut out = ops::layer_norm(in[0], in[1], in[2], 1e-5);
    return {{out.y}, {in[0], in[1], out.mean, out.rstd}};
  };
  const Backward backward = [](const Tensors& s, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    const ops::NormGrads d = ops::layer_norm_backward(g[0].contiguous(), s[0], s[2], s[3], s[1]);
    return {d.dx, d.dweight, d.dbias};
  };
  return differentiable({x, w, b}, forward, backward)[0];
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    const ops::AttentionOut out = ops::attention(in[0], in[1], in[2], true);
    return {{out.out}, {in[0], in[1], in[2], out.out, out.lse}};
  };
  const Backward backward = [](const Tensors& s, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    const auto [dq, dk, dv] = ops::attention_backward(g[0], s[0], s[1], s[2], {s[3], s[4]}, true);
    return {dq, dk, dv};
  };
  return differentiable({q, k, v}, forward, backward)[0];
}

Tensor activate(const Tensor& x) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    return {{ops::gelu(in[0])}, {in[0]}};
  };
  const Backward backward = [](const Tensors& s, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    return {ops::gelu_backward(g[0].contiguous(), s[0])};
  };
  return differentiable({x}, forward, backward)[0];
}

/// (B, S, 3 H) -> q, k, v (B, N, S, D), one tensor's gradient built once.
Tensors split_heads(const Tensor& qkv, int64_t heads) {
  const auto parts = [heads](const Tensor& t) {
    return t.view({t.size(0), t.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
  };
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const Tensor p = parts(in[0]);
    return {{p[0], p[1], p[2]}, {}};
  };
  const Backward backward = [parts, shape = qkv.sizes().vec()](
                                const Tensors&, const Tensors& g, const std::vector<bool>&) -> Tensors {
    const Tensor whole = at::empty(shape, g[0].options());
    for (size_t i = 0; i < 3; ++i) parts(whole)[static_cast<int64_t>(i)].copy_(g[i]);
    return {whole};
  };
  return differentiable({qkv}, forward, backward);
}

struct Books {
  int64_t peak, flops, bytes_moved, watched;
  BytesByCategory at_peak, peaks;
};

/// x -> gelu(x + contract(attention(expand(norm x)))), and its gradients.
Books run_block(at::Device device, at::ScalarType type) {
  const int64_t batch = 2, sequence = 24, hidden = 32, heads = 4;
  RankBook book(0);
  const BookScope scope(&book);
  const FlopWatcher watcher;
  {
    const auto make = [&](at::IntArrayRef sizes, int64_t salt) {
      const CategoryScope parameters(Category::kParameter);
      // Made on the CPU outside of the books, so that only what the device holds is counted.
      Tensor value;
      {
        const BookScope nobody(nullptr);
        value = testing::closed_form(sizes, salt, type);
      }
      const Tensor t = at::empty(sizes, value.options().device(device));
      if (!device.is_meta()) t.copy_(value);
      return t.requires_grad_(true);
    };
    const Tensor x = make({batch, sequence, hidden}, 1), w1 = make({hidden}, 2), b1 = make({hidden}, 3);
    const Tensor wqkv = make({hidden, 3 * hidden}, 4), bqkv = make({3 * hidden}, 5);
    const Tensor wo = make({hidden, hidden}, 6), bo = make({hidden}, 7);
    const CategoryScope activations(Category::kActivation);
    const Tensors residual = fan_out(x, 2);
    const Tensors qkv = split_heads(linear(norm(residual[1], w1, b1), wqkv, bqkv), heads);
    const Tensor merged =
        attend(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape({batch, sequence, hidden});
    const Tensor y = activate(residual[0] + linear(merged, wo, bo));
    const CategoryScope gradients(Category::kGradient);
    y.backward(at::ones_like(y));
    EXPECT_TRUE(wqkv.grad().defined());
  }
  EXPECT_EQ(book.live(), 0);
  Books b{book.peak(), book.flops(), book.bytes_moved(), watcher.total(), book.at_peak(),
          book.peak_by_category()};
  b.peaks[static_cast<size_t>(Category::kScratch)] = 0;
  return b;
}

class BlockBooks : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(BlockBooks, AreTheSameOnMetaToTheByte) {
  const Books cpu = run_block(at::kCPU, GetParam()), meta = run_block(at::kMeta, GetParam());
  EXPECT_GT(cpu.peak, 0);
  EXPECT_EQ(cpu.peak, meta.peak);
  EXPECT_EQ(cpu.at_peak, meta.at_peak);
  EXPECT_EQ(cpu.peaks, meta.peaks);
  EXPECT_EQ(cpu.flops, meta.flops);
  EXPECT_EQ(cpu.bytes_moved, meta.bytes_moved);
}

TEST_P(BlockBooks, CountTheFlopsTheDispatcherSees) {
  const Books cpu = run_block(at::kCPU, GetParam());
  EXPECT_EQ(cpu.flops, cpu.watched);
  const int64_t rows = 2 * 24, hidden = 32;
  EXPECT_EQ(cpu.flops, 3 * (flops::matmul(rows, hidden, 4 * hidden) +
                            flops::attention({2, 4, 24, 24, 8, true})));
}

INSTANTIATE_TEST_SUITE_P(Types, BlockBooks, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Budget, ThrowsOutOfMemoryFromInsideAnOp) {
  RankBook book(0, 100'000);
  const BookScope scope(&book);
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const Tensor a = at::zeros({100, 100}, at::TensorOptions(at::kFloat).device(device));
    try {
      const Tensor y = ops::matmul(a, a), z = ops::matmul(a, a);
      FAIL() << "120000 bytes fit into 100000";
    } catch (const OutOfMemory& e) {
      EXPECT_EQ(e.requested, 40'000);
      EXPECT_EQ(e.live, 80'000);
    }
  }
  EXPECT_EQ(book.live(), 0);
}

}  // namespace
}  // namespace kuafu
