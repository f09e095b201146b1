// SPDX-License-Identifier: Apache-2.0
//
// A small block of a transformer, forward and backward, has the same books on meta and on a CPU.
#include <gtest/gtest.h>

#include <functional>

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

/// norm(x), and x for what goes around the branch: their gradients are one pass.
Tensors norm(const Tensor& x, const Tensor& w, const Tensor& b) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    const ops::NormOut out = ops::layer_norm(in[0], in[1], in[2], 1e-5);
    return {{out.y, in[0]}, {in[0], in[1], out.mean, out.rstd}};
  };
  const Backward backward = [](const Tensors& s, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    const ops::NormGrads d =
        ops::layer_norm_backward(g[0].contiguous(), s[0], s[2], s[3], s[1], g[1]);
    return {d.dx, d.dweight, d.dbias};
  };
  return differentiable({x, w, b}, forward, backward);
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
                                const Tensors&, const Tensors& g,
                                const std::vector<bool>&) -> Tensors {
    const Tensor whole = at::empty(shape, g[0].options());
    for (size_t i = 0; i < 3; ++i) parts(whole)[static_cast<int64_t>(i)].copy_(g[i]);
    return {whole};
  };
  return differentiable({qkv}, forward, backward);
}

/// (B, S, (N + 2 Nkv) D) -> q (B, N, S, D), k, v (B, Nkv, S, D)
Tensors split_groups(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const auto parts = [heads, kv_heads](const Tensor& t) {
    return t.view({t.size(0), t.size(1), heads + 2 * kv_heads, -1})
        .transpose(1, 2)
        .split_with_sizes({heads, kv_heads, kv_heads}, 1);
  };
  const Forward forward = [&](const Tensors& in) -> ForwardResult { return {parts(in[0]), {}}; };
  const Backward backward = [parts, shape = qkv.sizes().vec()](
                                const Tensors&, const Tensors& g,
                                const std::vector<bool>&) -> Tensors {
    const Tensor whole = at::empty(shape, g[0].options());
    const Tensors into = parts(whole);
    for (size_t i = 0; i < 3; ++i) into[i].copy_(g[i]);
    return {whole};
  };
  return differentiable({qkv}, forward, backward);
}

Tensor rms(const Tensor& x, const Tensor& w) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    const ops::RmsOut out = ops::rms_norm(in[0], in[1], 1e-5);
    return {{out.y}, {in[0], in[1], out.rstd}};
  };
  const Backward backward = [](const Tensors& s, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    const ops::RmsGrads d = ops::rms_norm_backward(g[0].contiguous(), s[0], s[2], s[1]);
    return {d.dx, d.dweight};
  };
  return differentiable({x, w}, forward, backward)[0];
}

Tensor rotate(const Tensor& x, const Tensor& positions) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{ops::rope(in[0], positions, 10000, false)}, {}};
  };
  const Backward backward = [positions](const Tensors&, const Tensors& g,
                                        const std::vector<bool>&) -> Tensors {
    return {ops::rope(g[0], positions, 10000, true)};
  };
  return differentiable({x}, forward, backward)[0];
}

/// Attention to the keys in two halves, joined: what a ring of two does.
Tensor attend_in_halves(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t half = k.size(2) / 2;
  const Forward forward = [half](const Tensors& in) -> ForwardResult {
    ops::AttentionOut all;
    for (const int64_t begin : {int64_t{0}, half}) {
      ops::attention_merge(all, ops::attention(in[0], in[1].narrow(2, begin, half),
                                               in[2].narrow(2, begin, half), false));
    }
    const Tensor out = all.out.to(in[0].scalar_type());
    return {{out}, {in[0], in[1], in[2], out, all.lse}};
  };
  const Backward backward = [half](const Tensors& s, const Tensors& g,
                                   const std::vector<bool>&) -> Tensors {
    Tensor dq;
    Tensors dk, dv;
    for (const int64_t begin : {int64_t{0}, half}) {
      const auto d = ops::attention_backward(g[0], s[0], s[1].narrow(2, begin, half),
                                             s[2].narrow(2, begin, half), {s[3], s[4]}, false);
      dq = dq.defined() ? dq.add_(d.dq) : d.dq;
      dk.push_back(d.dk);
      dv.push_back(d.dv);
    }
    return {dq, at::cat(dk, 2), at::cat(dv, 2)};
  };
  return differentiable({q, k, v}, forward, backward)[0];
}

Tensor gate(const Tensor& x) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    return {{ops::swiglu(in[0])}, {in[0]}};
  };
  const Backward backward = [](const Tensors& s, const Tensors& g,
                               const std::vector<bool>&) -> Tensors {
    return {ops::swiglu_backward(g[0].contiguous(), s[0])};
  };
  return differentiable({x}, forward, backward)[0];
}

struct Books {
  int64_t peak, flops, bytes_moved, watched;
  BytesByCategory at_peak, peaks;
};

constexpr int64_t kBatch = 2, kSequence = 24, kHidden = 32, kHeads = 4, kKvHeads = 2;

/// Makes a leaf of closed-form values on a device.
using Leaf = std::function<Tensor(at::IntArrayRef sizes, int64_t salt)>;

/// gelu(x + contract(attention(expand(norm x))))
Tensor gpt_block(const Leaf& make) {
  const Tensor x = make({kBatch, kSequence, kHidden}, 1), w1 = make({kHidden}, 2),
               b1 = make({kHidden}, 3);
  const Tensor wqkv = make({kHidden, 3 * kHidden}, 4), bqkv = make({3 * kHidden}, 5);
  const Tensor wo = make({kHidden, kHidden}, 6), bo = make({kHidden}, 7);
  const CategoryScope activations(Category::kActivation);
  const Tensors n = norm(x, w1, b1);
  const Tensors qkv = split_heads(linear(n[0], wqkv, bqkv), kHeads);
  const Tensor merged =
      attend(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape({kBatch, kSequence, kHidden});
  return activate(n[1] + linear(merged, wo, bo));
}

/// The same with RMS norm, rotary embeddings, groups of query heads, keys in two halves and SwiGLU.
Tensor palm_block(const Leaf& make) {
  const int64_t width = kHidden + 2 * kKvHeads * kHidden / kHeads;
  const Tensor x = make({kBatch, kSequence, kHidden}, 1), w1 = make({kHidden}, 2);
  const Tensor wqkv = make({kHidden, width}, 4), bqkv = make({width}, 5);
  const Tensor wo = make({kHidden, kHidden}, 6), bo = make({kHidden}, 7);
  const Tensor positions = at::full({kSequence}, 7, x.options().dtype(at::kLong));
  const CategoryScope activations(Category::kActivation);
  const Tensors residual = fan_out(x, 2);
  const Tensors qkv = split_groups(linear(rms(residual[1], w1), wqkv, bqkv), kHeads, kKvHeads);
  const Tensor out = attend_in_halves(rotate(qkv[0], positions), rotate(qkv[1], positions), qkv[2]);
  const Tensor merged = out.transpose(1, 2).reshape({kBatch, kSequence, kHidden});
  return gate(residual[0] + linear(merged, wo, bo));
}

/// Of a block and its gradients.
Books books_of(Tensor (*block)(const Leaf&), at::Device device, at::ScalarType type) {
  RankBook book(0);
  const BookScope scope(&book);
  const FlopWatcher watcher;
  {
    Tensors leaves;
    const Leaf make = [&](at::IntArrayRef sizes, int64_t salt) {
      const CategoryScope parameters(Category::kParameter);
      // Made on the CPU outside of the books, so that only what the device holds is counted.
      Tensor value;
      {
        const BookScope nobody(nullptr);
        value = testing::closed_form(sizes, salt, type);
      }
      const Tensor t = at::empty(sizes, value.options().device(device));
      if (!device.is_meta()) t.copy_(value);
      leaves.push_back(t.requires_grad_(true));
      return t;
    };
    const Tensor y = block(make);
    const CategoryScope gradients(Category::kGradient);
    y.backward(at::ones_like(y));
    for (const Tensor& t : leaves) EXPECT_TRUE(t.grad().defined());
  }
  EXPECT_EQ(book.live(), 0);
  Books b{book.peak(),     book.flops(),   book.bytes_moved(),
          watcher.total(), book.at_peak(), book.peak_by_category()};
  b.peaks[static_cast<size_t>(Category::kScratch)] = 0;
  return b;
}

class BlockBooks : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(BlockBooks, AreTheSameOnMetaToTheByte) {
  for (const auto& block : {gpt_block, palm_block}) {
    const Books cpu = books_of(block, at::kCPU, GetParam());
    const Books meta = books_of(block, at::kMeta, GetParam());
    EXPECT_GT(cpu.peak, 0);
    EXPECT_EQ(cpu.peak, meta.peak);
    EXPECT_EQ(cpu.at_peak, meta.at_peak);
    EXPECT_EQ(cpu.peaks, meta.peaks);
    EXPECT_EQ(cpu.flops, meta.flops);
    EXPECT_EQ(cpu.bytes_moved, meta.bytes_moved);
  }
}

TEST_P(BlockBooks, CountTheFlopsTheDispatcherSees) {
  const int64_t rows = kBatch * kSequence, dim = kHidden / kHeads;
  const Books gpt = books_of(gpt_block, at::kCPU, GetParam());
  EXPECT_EQ(gpt.flops, gpt.watched);
  EXPECT_EQ(gpt.flops, 3 * (flops::matmul(rows, kHidden, 4 * kHidden) +
                            flops::attention({kBatch, kHeads, kSequence, kSequence, dim, true})));
  const Books palm = books_of(palm_block, at::kCPU, GetParam());
  EXPECT_EQ(palm.flops, palm.watched);
  EXPECT_EQ(palm.flops, 3 * (flops::matmul(rows, kHidden, 2 * kHidden + 2 * kKvHeads * dim) +
                             flops::attention({kBatch, kHeads, kSequence, kSequence, dim, false})));
}

INSTANTIATE_TEST_SUITE_P(Types, BlockBooks,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
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
