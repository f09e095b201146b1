// SPDX-License-Identifier: Apache-2.0
#include "kuafu/optim/layer_watch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/formulas.h"
#include "kuafu/optim/norm.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

constexpr int64_t kNumSums = LayerWatch::kRatio;  // columns that ranks add up

/// Sums of squares of factor x by layer, (layers) f64.
Tensor squares_of(const Tensor& x, double factor, const ops::LayerRun& run) {
  const bool is_wide = x.scalar_type() == at::kDouble || x.scalar_type() == at::kFloat;
  const Tensor wide = (is_wide ? x.detach() : x.detach().to(at::kFloat)).contiguous();
  return ops::lars_norms(wide, wide, factor, run, 0, formulas::lars_norms).select(1, 1);
}

}  // namespace

LayerWatch::LayerWatch(std::vector<WatchedParam> model, int64_t batch, at::Device device)
    : model_(std::move(model)), batch_(batch), device_(device) {
  for (const WatchedParam& w : model_) num_layers_ += kuafu::num_layers(*w.param);
}

void LayerWatch::lay_out(std::span<const ParamShard> shards, const Mesh& mesh) {
  const CategoryScope scope(Category::kTemporary);
  pieces_.clear();
  tables_.clear();
  std::map<uint64_t, int64_t> heights;  // in the same order on every rank
  for (const ParamShard& shard : shards) {
    WatchedPiece& piece = pieces_.emplace_back();
    if (shard.param->is_copy) continue;
    piece.param = shard.param;
    piece.axes = splitting_axes(shard, mesh);
    piece.first = heights[piece.axes];
    piece.held = layers_of(shard, mesh);
    heights[piece.axes] += kuafu::num_layers(*shard.param);
  }
  const auto f64 = at::TensorOptions(at::kDouble).device(device_);
  for (const auto& [axes, height] : heights) tables_[axes] = at::zeros({height, kNumSums}, f64);
}

Tensor LayerWatch::rows_of(const WatchedPiece& piece) const {
  return tables_.at(piece.axes).narrow(0, piece.first, kuafu::num_layers(*piece.param));
}

Tensor LayerWatch::held_rows_of(const WatchedPiece& piece) const {
  return rows_of(piece).narrow(0, piece.held.first, piece.held.run.layers);
}

LayerWatch::Own& LayerWatch::own_of(const Param& p, const Axes& replicas, const Mesh& mesh) {
  const auto [found, is_new] = own_.try_emplace(&p);
  Own& own = found->second;
  if (is_new) {
    ParamShard whole;
    whole.param = &p;
    whole.split_axes = mesh.canonical(replicas);
    own.axes = splitting_axes(whole, mesh);
    own.held = layers_of(whole, mesh);
    own.squares = at::zeros({kuafu::num_layers(p)}, at::TensorOptions(at::kDouble).device(device_));
  }
  int64_t copies = 1;
  for (const std::string& axis : replicas) copies *= mesh.size(axis);
  own.parts += copies;
  return own;
}

void LayerWatch::add_own(const Param& p, const Tensor& part, const Axes& replicas,
                         const Mesh& mesh) {
  if (p.is_copy) return;
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kTemporary);
  const Own& own = own_of(p, replicas, mesh);
  own.squares.narrow(0, own.held.first, own.held.run.layers)
      .add_(squares_of(part, 1, own.held.run));
}

void LayerWatch::add_grown(const Param& p, bool is_last, const Mesh& mesh) {
  const Tensor gradient = p.value.grad();
  if (p.is_copy || !gradient.defined()) return;
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kTemporary);
  const auto known = own_.find(&p);
  const bool has_grown = known != own_.end() && known->second.before.defined();
  add_own(p, has_grown ? gradient - known->second.before : gradient, {}, mesh);
  own_.at(&p).before = is_last ? Tensor() : gradient.detach().clone();
}

void LayerWatch::begin(std::span<const ParamShard> shards, double factor, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  lay_out(shards, mesh);
  is_skipped_ = false;
  factor_ = factor;
  std::vector<const ParamShard*> seen;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (pieces_[i].param != nullptr) seen.push_back(&shards[i]);
  }
  expect_gradients(seen);
  for (size_t i = 0; i < shards.size(); ++i) {
    const WatchedPiece& piece = pieces_[i];
    if (piece.param == nullptr) continue;
    bring_gradient(shards[i]);
    const Tensor squares = squares_of(shards[i].grad, factor, piece.held.run);
    held_rows_of(piece).select(1, kGradient).copy_(squares);
  }
}

void LayerWatch::before_update(size_t shard, const Tensor& value) {
  const CategoryScope scope(Category::kTemporary);
  if (pieces_.at(shard).param != nullptr) before_ = value.detach().clone();
}

void LayerWatch::after_update(size_t shard, const Tensor& value) {
  const CategoryScope scope(Category::kTemporary);
  const WatchedPiece& piece = pieces_.at(shard);
  if (piece.param == nullptr) return;
  const ops::LayerRun& run = piece.held.run;
  const Tensor rows = held_rows_of(piece);
  rows.select(1, kWeight).copy_(squares_of(before_, 1, run));
  before_.sub_(value.detach());
  rows.select(1, kUpdate).copy_(squares_of(before_, 1, run));
  before_ = Tensor();
}

void LayerWatch::set_ratios(size_t shard, const Tensor& ratios) {
  pieces_.at(shard).ratios = ratios;
}

/// n parts g_i of a batch of B samples, each the sum over B / n of them, and G their sum: with S the
/// sum of all |g_i|^2,
///     E |G|^2 = |mean|^2 + tr Sigma / B,     n E S = |mean|^2 + n tr Sigma / B
/// for the mean gradient of a sample, of the same scale as G.   [McCandlish et al., 1812.06162, A.1]
void LayerWatch::estimate(const Own& own, const Tensor& rows) const {
  if (own.parts < 2) return;
  const auto n = static_cast<double>(own.parts);
  const Tensor whole = rows.select(1, kGradient), parts = own.squares * (factor_ * factor_);
  rows.select(1, kVariance).copy_((parts * n - whole) * (static_cast<double>(batch_) / (n - 1)));
  rows.select(1, kSquare).copy_((whole - parts) * (n / (n - 1)));
}

Tensor LayerWatch::finish(const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kTemporary);
  std::vector<PartialSums::value_type> partial(tables_.begin(), tables_.end());
  for (const WatchedParam& w : model_) {  // their order is the same on every rank
    const auto own = own_.find(w.param);
    if (own != own_.end()) partial.emplace_back(own->second.axes, own->second.squares);
  }
  sum_over_axes(partial, mesh);
  const Tensor all =
      at::zeros({num_layers_, kNumColumns}, at::TensorOptions(at::kDouble).device(device_));
  std::map<const Param*, const WatchedPiece*> piece_of;
  for (const WatchedPiece& piece : pieces_) piece_of[piece.param] = &piece;
  int64_t row = 0;
  for (const WatchedParam& w : model_) {
    const int64_t layers = kuafu::num_layers(*w.param);
    const Tensor mine = all.narrow(0, row, layers);
    row += layers;
    if (!w.is_mine) continue;
    const auto found = piece_of.find(w.param);
    if (found == piece_of.end() || is_skipped_) {
      mine.fill_(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    mine.narrow(1, 0, kNumSums).copy_(rows_of(*found->second));
    mine.narrow(1, kVariance, 2).fill_(std::numeric_limits<double>::quiet_NaN());
    if (const auto own = own_.find(w.param); own != own_.end()) estimate(own->second, mine);
    const Tensor& ratios = found->second->ratios;
    if (ratios.defined()) mine.select(1, kRatio).copy_(ratios);
  }
  if (mesh.size("pipeline") > 1) raw::all_reduce(all, mesh.comm("pipeline"));
  pieces_.clear();
  tables_.clear();
  own_.clear();
  return all;
}

}  // namespace kuafu
