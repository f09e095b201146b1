// SPDX-License-Identifier: Apache-2.0
//
// Every scheme on meta tensors and a simulated world: the same traffic, FLOPs and memory as
// threads.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/comm/trace.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/tensor/layers.h"
#include "tests/parallel/tensor/schemes.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::SchemeCase;

constexpr int64_t kBatch = 36, kSequence = 6, kHidden = 36, kInner = 72, kVocab = 29;

struct Counts {
  std::map<std::string, AxisLedger> axes;
  int64_t flops = 0, peak = 0;
  BytesByCategory at_peak{};
};

/// Embedding, positions, dropout, norm, two linears, tied head and loss, forward and backward.
void run_stack(const TensorParallel& tp, at::Device device) {
  const Mesh& mesh = tp.mesh();
  const CategoryScope scope(Category::kActivation);
  const auto param = [&](const char* name, const Shape& shape, const Layout& layout) {
    const CategoryScope parameters(Category::kParameter);
    return tests::shard(name, shape, layout, mesh, {}, device).value;
  };
  const auto last = [&](Stream s) { return Layout{{tp.activation(s).dims[2]}}; };
  const TokenGrid outer{tp.activation(Stream::kOuter), kBatch, kSequence};
  const TokenGrid inner{tp.activation(Stream::kInner), kBatch, kSequence};
  const Layout table_layout = tp.weight(Role::kContract);
  const Tensor table = param("table", {kVocab, kHidden}, table_layout);
  const Tensor positions =
      param("positions", {kSequence, kHidden}, {{{}, tp.activation(Stream::kOuter).dims[2]}});
  const Tensor scale = param("scale", {kHidden}, last(Stream::kOuter));
  const Tensor shift = param("shift", {kHidden}, last(Stream::kOuter));
  const Tensor up = param("up", {kHidden, kInner}, tp.weight(Role::kExpand));
  const Tensor up_bias = param("up.bias", {kInner}, last(Stream::kInner));
  const Tensor down = param("down", {kInner, kHidden}, tp.weight(Role::kContract));
  const Tensor down_bias = param("down.bias", {kHidden}, last(Stream::kOuter));

  Tensor x =
      embedding(mesh, tests::ids(kBatch, kSequence, kVocab, 1, device), table, table_layout, outer);
  x = add_positions(mesh, x, positions, outer);
  x = dropout(mesh, x, {.p = 0.2, .seed = 1, .site = 2}, kHidden, outer);
  const Tensor n = layer_norm(tp, x, scale, shift, kHidden, 1e-5);
  x = x + linear(tp, linear(tp, n, up, up_bias, Role::kExpand), down, down_bias, Role::kContract);
  const Tensor loss =
      cross_entropy(mesh, tied_head(tp, x, table), tests::ids(kBatch, kSequence, kVocab, 2, device),
                    1.0 / (kBatch * kSequence), kVocab, inner);
  torch::autograd::backward({loss}, {at::ones_like(loss)});
}

Counts count(const SchemeCase& scheme, Communicator& world, at::Device device) {
  RankBook book(world.rank());
  const BookScope booked(&book);
  tests::MeshRank me(scheme.axes(), world);
  run_stack(*scheme.make(me.mesh), device);
  return {me.ledger.axes(), book.flops(), book.peak(), book.at_peak()};
}

class SimulatedSchemes : public testing::TestWithParam<SchemeCase> {};

TEST_P(SimulatedSchemes, CountWhatThreadsCount) {
  const auto n = static_cast<size_t>(GetParam().ranks());
  std::vector<Counts> real(n);
  tests::run_ranks(GetParam().ranks(), [&](Communicator& world) {
    real[static_cast<size_t>(world.rank())] = count(GetParam(), world, at::kCPU);
  });
  SimulatedWorld simulated(GetParam().ranks());
  for (size_t r = 0; r < n; ++r) {
    const auto world = simulated.communicator(static_cast<int>(r));
    const Counts counts = count(GetParam(), *world, at::kMeta);
    EXPECT_EQ(counts.axes, real[r].axes) << "rank " << r;
    EXPECT_EQ(counts.flops, real[r].flops) << "rank " << r;
    EXPECT_EQ(counts.peak, real[r].peak) << "rank " << r;
    EXPECT_EQ(counts.at_peak, real[r].at_peak) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SimulatedSchemes, testing::ValuesIn(tests::scheme_cases()),
                         [](const auto& info) { return tests::name_of(info.param); });

}  // namespace
}  // namespace kuafu
