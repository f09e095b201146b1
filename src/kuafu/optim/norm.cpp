// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/norm.h"
#include "kuafu/optim/shard_layers.h"
#include "kuafu/states/bucket.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

constexpr const char* kPipeline = "pipeline";

}  // namespace

ShardLayers layers_of(const ParamShard& shard, const Mesh& mesh) {
  const Param& p = *shard.param;
  const Slice mine = my_slice(p.layout, p.padded, mesh, p.name);
  ShardLayers held{.run = {.first = shard.first_element,
                           .columns = mine.extent.back(),
                           .parts = p.layers.parts,
                           .width = p.layers.width,
                           .column = mine.offset.back(),
                           .layers = p.layers.parts}};
  if (!p.layers.is_stacked) return held;
  held.run.stacked = 1;
  for (size_t d = 1; d < mine.extent.size(); ++d) held.run.stacked *= mine.extent[d];
  held.run.layers *= mine.extent[0];
  held.first = p.layers.parts * mine.offset[0];
  KUAFU_CHECK(held.first + held.run.layers <= num_layers(p), p.name, ": layers ", held.first,
              " to ", held.first + held.run.layers, " of ", num_layers(p));
  return held;
}

uint64_t splitting_axes(const ParamShard& shard, const Mesh& mesh) {
  Axes axes = shard.param->layout.all_axes();
  axes.insert(axes.end(), shard.split_axes.begin(), shard.split_axes.end());
  uint64_t bits = 0;
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    const Axis& axis = mesh.axes()[i];
    if (axis.size == 1 || axis.name == kPipeline) continue;
    if (contains(axes, axis.name)) bits |= uint64_t{1} << i;
  }
  return bits;
}

void sum_over_axes(const std::vector<PartialSums::value_type>& partial, const Mesh& mesh) {
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    std::vector<Tensor> needed;
    for (const auto& [axes, sums] : partial) {
      if ((axes >> i & 1) != 0 && sums.numel() > 0) needed.push_back(sums.view(-1));
    }
    if (needed.empty()) continue;
    const Tensor batch = at::cat(needed);
    raw::all_reduce(batch, mesh.comm(mesh.axes()[i].name));
    int64_t at = 0;
    for (const Tensor& sums : needed) {
      sums.copy_(batch.narrow(0, at, sums.numel()));
      at += sums.numel();
    }
  }
}

double global_grad_norm(std::span<const ParamShard> shards, const Mesh& mesh, at::Device device) {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kTemporary);
  KUAFU_CHECK(mesh.axes().size() < 64, mesh.axes().size(), " mesh axes");
  // One partial sum for each set of axes; the map's order is the same on every rank.
  PartialSums partial;
  std::vector<const ParamShard*> summed;
  for (const ParamShard& shard : shards) {
    if (!shard.param->is_copy) summed.push_back(&shard);
  }
  expect_gradients(summed);
  for (const ParamShard* each : summed) {
    const ParamShard& shard = *each;
    bring_gradient(shard);
    const Tensor sum = ops::sum_of_squares(shard.grad);
    Tensor& total = partial[splitting_axes(shard, mesh)];
    total = total.defined() ? total.add_(sum) : sum;
  }
  sum_over_axes({partial.begin(), partial.end()}, mesh);
  const bool has_values =
      !device.is_meta() && std::none_of(partial.begin(), partial.end(),
                                        [](const auto& p) { return p.second.is_meta(); });
  double total = 0;
  for (const auto& [axes, sum] : partial) total += has_values ? sum.item<double>() : 1;
  if (mesh.size(kPipeline) > 1) {
    // Stages differ in their parameters, so they meet in one number.
    const Tensor whole = at::full({1}, total, at::TensorOptions(at::kDouble).device(device));
    raw::all_reduce(whole, mesh.comm(kPipeline));
    if (has_values) total = whole.item<double>();
  }
  const double norm = has_values ? std::sqrt(total) : 1;
  TraceRecorder* trace = current_trace();
  return trace == nullptr ? norm : trace->oracle("gradient norm", norm);
}

double clip_factor(double norm, double clip) {
  KUAFU_REQUIRE(clip >= 0, "optimizer.clip = ", clip,
                "; 0 turns clipping off, else a positive norm");
  return clip == 0 || !(norm > clip) ? 1 : clip / norm;
}

}  // namespace kuafu
