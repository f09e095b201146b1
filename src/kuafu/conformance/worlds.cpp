// SPDX-License-Identifier: Apache-2.0
//
// A scheme on meta tensors and a simulated world: the traffic, FLOPs and memory of thread ranks.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/comm/simulated.h"
#include "kuafu/conformance/subject.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/tensor/layers.h"

namespace kuafu::conformance {
namespace {

struct Counts {
  std::map<std::string, AxisLedger> axes;
  int64_t flops = 0, peak = 0;
  BytesByCategory at_peak{};
};

/// "activation 640, gradient 240": what was live at a peak.
std::string composition(const BytesByCategory& bytes) {
  std::string out;
  for (int c = 0; c < kNumCategories; ++c) {
    if (bytes[static_cast<size_t>(c)] == 0) continue;
    out += text(out.empty() ? "" : ", ", to_string(static_cast<Category>(c)), " ",
                bytes[static_cast<size_t>(c)]);
  }
  return out;
}

/// Embedding, positions, dropout, norm, two linears, tied head and loss, forward and backward. No
/// activation is used twice: autograd adds up the two gradients in place on the CPU, but into new
/// memory on meta, which no scheme can help.
void run_stack(const TensorParallel& tp, const LayerShape& e, at::Device device) {
  const Mesh& mesh = tp.mesh();
  const CategoryScope scope(Category::kActivation);
  const auto param = [&](const char* name, const Shape& shape, const Layout& layout) {
    const CategoryScope parameters(Category::kParameter);
    return shard(name, shape, layout, mesh, {}, device).value;
  };
  const TokenGrid outer{tp.activation(Stream::kOuter), e.b, e.s};
  const TokenGrid inner{tp.activation(Stream::kInner), e.b, e.s};
  const Layout table_layout = tp.weight(Role::kContract);
  const Tensor table = param("table", {e.v, e.h}, table_layout);
  // One graph: a table that both ends share would have its gradients added by LibTorch's engine, in
  // place on a CPU but never on meta. Models keep the ends in blocks of their own.
  const Tensor head = param("head", {e.v, e.h}, table_layout);
  const Tensor positions = param("positions", {e.s, e.h}, {{{}, outer.activation.dims[2]}});
  const Tensor scale = param("scale", {e.h}, last_dim(tp, Stream::kOuter));
  const Tensor shift = param("shift", {e.h}, last_dim(tp, Stream::kOuter));
  const Tensor up = param("up", {e.h, e.f}, tp.weight(Role::kExpand));
  const Tensor up_bias = param("up.bias", {e.f}, last_dim(tp, Stream::kInner));
  const Tensor down = param("down", {e.f, e.h}, tp.weight(Role::kContract));
  const Tensor down_bias = param("down.bias", {e.h}, last_dim(tp, Stream::kOuter));

  Tensor x = embedding(mesh, ids(e.b, e.s, e.v, 1, device), table, table_layout, outer);
  x = add_positions(mesh, x, positions, outer);
  x = dropout(mesh, x, {.p = 0.2, .seed = 1, .site = 2}, e.h, outer);
  const Tensor n = layer_norm(tp, x, scale, shift, e.h, 1e-5);
  x = linear(tp, linear(tp, n, up, up_bias, Role::kExpand), down, down_bias, Role::kContract);
  const Tensor loss =
      cross_entropy(mesh, tied_head(tp, x, head), ids(e.b, e.s, e.v, 2, device), 1.0, e.v, inner);
  torch::autograd::backward({loss}, {at::ones_like(loss)});
}

Counts count(const Subject& subject, const LayerShape& e, Communicator& world, at::Device device) {
  RankBook book(world.rank());
  const BookScope booked(&book);
  MeshRank me(subject.axes(), world);
  run_stack(*subject.make(me.mesh), e, device);
  return {me.ledger.axes(), book.flops(), book.peak(), book.at_peak()};
}

}  // namespace

void check_worlds(const Subject& subject, const LayerShape& e, Notes& notes) {
  std::vector<Counts> real(static_cast<size_t>(subject.ranks()));
  subject.on_threads([&](Communicator& world) {
    real[static_cast<size_t>(world.rank())] = count(subject, e, world, compute_device());
  });
  SimulatedWorld simulated(subject.ranks());
  for (int r = 0; r < subject.ranks(); ++r) {
    const auto world = simulated.communicator(r);
    const Counts mine = count(subject, e, *world, at::kMeta);
    const Counts& threads = real[static_cast<size_t>(r)];
    for (const auto& [axis, entry] : threads.axes) {
      const auto found = mine.axes.find(axis);
      const int64_t received = found == mine.axes.end() ? -1 : found->second.bytes_received;
      notes.expect(found != mine.axes.end() && found->second == entry, "ledger of ", axis,
                   " on rank ", r, ": simulated ", received, " bytes received, threads ",
                   entry.bytes_received);
    }
    notes.expect(mine.axes.size() == threads.axes.size(), "axes used by rank ", r);
    notes.expect(mine.flops == threads.flops, "FLOPs of rank ", r, ": simulated ", mine.flops,
                 ", threads ", threads.flops);
    notes.expect(mine.peak == threads.peak && mine.at_peak == threads.at_peak,
                 "peak bytes of rank ", r, ": simulated ", mine.peak, " (",
                 composition(mine.at_peak), "), threads ", threads.peak, " (",
                 composition(threads.at_peak), ")");
  }
}

}  // namespace kuafu::conformance
