// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "tests/tensor/support.h"

// Hidden matrices of all kinds, where their pieces lie, and their training by Muon.
namespace kuafu::tests {

inline constexpr int kMatrixSteps = 3;
/// Newton-Schulz makes an error of rounding up to 1e4 times as large.
inline constexpr double kRounding = 1e4 * kMatrixSteps * testing::kEps;
struct MatrixPiece {
  std::string name;
  Shape global;
  LayerSplit layers = {};
  Layout layout = {};
  bool is_cut = false;  ///< over "data", in the middle of a row; the last piece may be empty
};

/// q, k, v in turns; a tall matrix; one that no axis divides; experts; one that is whole on a row;
/// and what is no hidden matrix.
inline std::vector<MatrixPiece> matrix_pieces() {
  const Axes none, row = {"row"}, col = {"col"};
  const Axes both(std::initializer_list<std::string>{"col", "row"});
  const auto layout = [](std::vector<Axes> dims) { return Layout{std::move(dims)}; };
  return {{"blocks.0.qkv", {6, 24}, {.parts = 3, .width = 2}, layout({row, col})},
          {"blocks.0.down", {24, 6}, {}, layout({both, none}), true},
          {"blocks.0.padded", {5, 7}, {}, layout({row, col}), true},
          {"blocks.1.experts",
           {4, 6, 8},
           {.is_stacked = true, .parts = 2},
           layout({row, none, col}),
           true},
          {"blocks.1.wide", {3, 10}, {}, layout({none, none}), true},
          {"blocks.1.bias", {10}, {}, layout({none}), true},
          {"head.weight", {6, 8}, {}, layout({none, col})}};
}

struct HeldMatrices {
  std::vector<Param> params;
  std::vector<ParamShard> shards;
};

/// The piece of a shard of `p` that this rank has.
inline Tensor piece_of(const ParamShard& s, const Tensor& shard, const Mesh& mesh) {
  if (s.bounds.empty()) return shard;
  const auto at = static_cast<size_t>(mesh.coord("data"));
  return shard.flatten().narrow(0, s.bounds[at], s.bounds[at + 1] - s.bounds[at]).clone();
}

inline HeldMatrices hold(const Mesh& mesh, at::Device device) {
  HeldMatrices held;
  const std::vector<MatrixPiece> pieces = matrix_pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamFactory factory{&mesh, device, DType::kF64, 1, false};
    Param p = factory.make(pieces[i].name, pieces[i].global, pieces[i].layout, {}, {});
    p.layers = pieces[i].layers;
    if (!device.is_meta()) {
      p.value = scatter_param(p, testing::closed_form(p.global, static_cast<int64_t>(i)), mesh);
    }
    held.params.push_back(std::move(p));
  }
  const int64_t replicas = mesh.size("data");
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Param& p = held.params[i];
    ParamShard s;
    s.param = &p;
    const int64_t n = p.value.numel(), part = (n + replicas - 1) / replicas + 1;
    if (pieces[i].is_cut && replicas > 1) {
      s.split_axes = {"data"};
      for (int64_t r = 0; r <= replicas; ++r) s.bounds.push_back(std::min(n, r * part));
      s.first_element = s.bounds[static_cast<size_t>(mesh.coord("data"))];
    }
    s.value = piece_of(s, p.value.detach().clone(), mesh);
    s.grad = at::zeros_like(s.value);
    held.shards.push_back(std::move(s));
  }
  return held;
}

inline Tensor matrix_gradient(size_t i, int step) {
  return testing::closed_form(matrix_pieces()[i].global,
                              100 + 10 * step + static_cast<int64_t>(i)) *
         0.1;
}

inline OptimizerPlan muon_plan() {
  return {.kind = "muon", .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1};
}

inline void train_matrices(const Mesh& mesh, HeldMatrices& held,
                           const OptimizerRules& rules = builtin_optimizers()) {
  const auto optimizer = make_optimizer(muon_plan(), rules);
  for (int t = 0; t < kMatrixSteps; ++t) {
    for (size_t i = 0; i < held.shards.size(); ++i) {
      if (held.shards[i].grad.is_meta()) continue;
      held.shards[i].grad = piece_of(
          held.shards[i], scatter_param(held.params[i], matrix_gradient(i, t), mesh), mesh);
    }
    optimizer->step(held.shards, muon_plan().lr, mesh);
  }
}

inline HeldMatrices trained_alone(const OptimizerRules& rules = builtin_optimizers()) {
  const Mesh alone({}, 0);
  HeldMatrices held = hold(alone, at::kCPU);
  train_matrices(alone, held, rules);
  return held;
}

}  // namespace kuafu::tests
