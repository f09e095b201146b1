// SPDX-License-Identifier: Apache-2.0
//
// Muon of matrices that ranks hold parts of, against the same on one rank; and what is known to go
// wrong there, each mistake made and seen.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "kuafu/optim/optimizer.h"
#include "tests/optim/axes.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;

constexpr int kMatrixSteps = 3;
/// Newton-Schulz makes an error of rounding up to 1e4 times as large.
constexpr double kRounding = 1e4 * kMatrixSteps * testing::kEps;
/// A mistake moves some element at least so far.
constexpr double kMistake = 1e-3;

struct MatrixPiece {
  std::string name;
  Shape global;
  LayerSplit layers = {};
  Layout layout = {};
  bool is_cut = false;  ///< over "data", in the middle of a row; the last piece may be empty
};

/// q, k, v in turns; a tall matrix; one that no axis divides; experts; one that is whole on a row;
/// and what is no hidden matrix.
std::vector<MatrixPiece> matrix_pieces() {
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
Tensor piece_of(const ParamShard& s, const Tensor& shard, const Mesh& mesh) {
  if (s.bounds.empty()) return shard;
  const auto at = static_cast<size_t>(mesh.coord("data"));
  return shard.flatten().narrow(0, s.bounds[at], s.bounds[at + 1] - s.bounds[at]).clone();
}

HeldMatrices hold(const Mesh& mesh, at::Device device) {
  HeldMatrices held;
  const std::vector<MatrixPiece> pieces = matrix_pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamFactory factory{&mesh, device, DType::kF64, 1, false};
    Param p = factory.make(pieces[i].name, pieces[i].global, pieces[i].layout, {}, {});
    p.layers = pieces[i].layers;
    if (!device.is_meta()) {
      p.value = scatter_param(p, closed_form(p.global, static_cast<int64_t>(i)), mesh);
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

Tensor matrix_gradient(size_t i, int step) {
  return closed_form(matrix_pieces()[i].global, 100 + 10 * step + static_cast<int64_t>(i)) * 0.1;
}

OptimizerPlan muon_plan() {
  return {.kind = "muon", .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1};
}

void train_matrices(const Mesh& mesh, HeldMatrices& held,
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

std::vector<std::vector<Axis>> matrix_meshes() {
  return {{{"data", 2}, {"row", 1}, {"col", 1}},
          {{"data", 1}, {"row", 2}, {"col", 2}},
          {{"data", 3}, {"row", 1}, {"col", 2}},
          {{"data", 2}, {"row", 2}, {"col", 2}}};
}

/// Does work on every rank of a mesh.
void on_mesh(const std::vector<Axis>& axes,
             const std::function<void(const Mesh&, const Ledger&)>& work) {
  run_on_threads(ranks_of(axes), [&](Communicator& world) {
    Ledger ledger;
    Mesh mesh(axes, world.rank());
    mesh.connect(world, &ledger);
    work(mesh, ledger);
  });
}

HeldMatrices trained_alone(const OptimizerRules& rules = builtin_optimizers()) {
  const Mesh alone({}, 0);
  HeldMatrices held = hold(alone, at::kCPU);
  train_matrices(alone, held, rules);
  return held;
}

/// The largest difference of piece i from what it is on one rank.
double distance(const HeldMatrices& held, const HeldMatrices& whole, size_t i, const Mesh& mesh) {
  const Tensor expected =
      piece_of(held.shards[i], scatter_param(held.params[i], whole.shards[i].value, mesh), mesh);
  if (expected.numel() == 0) return 0;
  return (held.shards[i].value - expected).abs().max().item<double>();
}

TEST(Matrices, OfShardsStepAsOnOneRank) {
  const HeldMatrices whole = trained_alone();
  for (const auto& axes : matrix_meshes()) {
    on_mesh(axes, [&](const Mesh& mesh, const Ledger&) {
      HeldMatrices held = hold(mesh, at::kCPU);
      train_matrices(mesh, held);
      for (size_t i = 0; i < held.shards.size(); ++i) {
        EXPECT_LE(distance(held, whole, i, mesh), kRounding)
            << held.params[i].name << " on " << mesh.describe();
      }
    });
  }
}

/// FLOPs of the steps of a parameter's matrices, each once.
int64_t iterations_of(const MatrixPiece& p) {
  if (!p.name.starts_with("blocks.") || p.global.size() == 1) return 0;
  const size_t dim = p.layers.is_stacked ? 1 : 0;
  return (p.layers.is_stacked ? p.global[0] : 1) * p.layers.parts *
         flops::newton_schulz(p.global[dim], p.global[dim + 1] / p.layers.parts, 5);
}

// As many iterations as matrices and steps, by one of those that hold parts, evenly; and the
// simulated world knows them and the bytes.
TEST(Matrices, AreIteratedOnceAmongThoseWhoHoldPartsAndTheSameOnMeta) {
  for (const auto& axes : matrix_meshes()) {
    const auto n = static_cast<size_t>(ranks_of(axes));
    std::vector<int64_t> counted(n);
    on_mesh(axes, [&](const Mesh& mesh, const Ledger& ledger) {
      const auto rank = static_cast<size_t>(mesh.rank());
      RankBook book(mesh.rank());
      {
        const BookScope booked(&book);
        HeldMatrices held = hold(mesh, at::kCPU);
        train_matrices(mesh, held);
      }
      counted[rank] = book.flops_optimizer();
      EXPECT_EQ(book.flops(), 0);
      SimulatedWorld simulated(static_cast<int>(n));
      Ledger predicted;
      RankBook foreseen(mesh.rank());
      const auto me = simulated.communicator(mesh.rank());
      Mesh there(axes, mesh.rank());
      there.connect(*me, &predicted);
      const BookScope booked(&foreseen);
      HeldMatrices held = hold(there, at::kMeta);
      train_matrices(there, held);
      EXPECT_EQ(foreseen.flops_optimizer(), counted[rank]) << mesh.describe();
      for (const auto& [axis, row] : ledger.axes()) {
        EXPECT_EQ(predicted.axes().at(axis).bytes_sent, row.bytes_sent) << mesh.describe();
        EXPECT_EQ(row.bytes_sent, row.bytes_received) << "there and back, " << mesh.describe();
      }
    });
    const Mesh mesh(axes, 0);
    int64_t expected = 0, largest = 0;
    for (const MatrixPiece& p : matrix_pieces()) {
      Axes split = p.layout.all_axes();
      if (p.is_cut) split.emplace_back("data");
      const int64_t all = kMatrixSteps * iterations_of(p);
      expected += all * static_cast<int64_t>(n) / mesh.size(split);
      largest = std::max(largest, all);
    }
    EXPECT_EQ(std::accumulate(counted.begin(), counted.end(), int64_t{0}), expected);
    const auto [least, most] = std::minmax_element(counted.begin(), counted.end());
    EXPECT_LE(*most - *least, largest) << mesh.describe();
  }
}

/// Muon's rule, changed.
OptimizerRules changed(const std::function<void(Rule&)>& change) {
  OptimizerRules rules("optimizer");
  rules.add("muon", "Muon with a mistake", {{}, [change](const OptimizerPlan& plan) {
                                              Rule rule = make_muon(plan);
                                              change(rule);
                                              return rule;
                                            }});
  return rules;
}

/// A hidden matrix by itself after steps of a rate, two of them where gradients come in halves.
Tensor matrix_after(const Tensor& start, const std::function<Tensor(int)>& gradient, int steps,
                    double lr, const OptimizerRules& rules = builtin_optimizers()) {
  Param p;
  p.name = "blocks.0.matrix";
  p.global = p.padded = shape_of(start);
  p.layout = Layout::replicated(2);
  p.value = start.clone();
  const auto optimizer = make_optimizer(muon_plan(), rules);
  for (int t = 0; t < steps; ++t) {
    std::vector<ParamShard> shards(1);
    shards[0].value = p.value;
    shards[0].grad = gradient(t);
    shards[0].param = &p;
    optimizer->step(shards, lr);
  }
  return p.value;
}

void expect_seen(const Tensor& wrong, const Tensor& right, const std::string& what) {
  EXPECT_GT((wrong - right).abs().max().item<double>(), kMistake) << what;
}

// Mistakes that were made elsewhere: momentum without an iteration, q, k and v as one matrix, the
// scale of a padded matrix, the scale of a shard.
TEST(MistakesOfMuon, OfTheRuleAreSeen) {
  const HeldMatrices whole = trained_alone();
  const auto no_iteration = changed([](Rule& rule) {
    rule.whole = [](const Tensor& u, const LayerSplit&) { return u.clone(); };
  });
  const auto as_one = changed([](Rule& rule) {
    rule.whole = [right = rule.whole](const Tensor& u, const LayerSplit&) { return right(u, {}); };
  });
  const auto scaled_as = [](double columns) {
    return changed([columns](Rule& rule) {
      rule.whole = [columns, right = rule.whole](const Tensor& u, const LayerSplit& layers) {
        const auto rows = static_cast<double>(u.size(0));
        const double is = std::max(1.0, static_cast<double>(u.size(1)) / rows);
        return right(u, layers) * std::sqrt(std::max(1.0, columns / rows) / is);
      };
    });
  };
  const auto of = [](const HeldMatrices& held, size_t i) { return held.shards[i].value; };
  expect_seen(of(trained_alone(no_iteration), 1), of(whole, 1), "no iteration");
  expect_seen(of(trained_alone(as_one), 0), of(whole, 0), "q, k, v as one matrix");
  expect_seen(of(trained_alone(scaled_as(12)), 4), of(whole, 4), "scale with padding");
  expect_seen(of(trained_alone(scaled_as(5)), 4), of(whole, 4), "scale of a shard");
}

// Orthogonalised shards, gradients that are summed in one part alone, an iteration a micro-batch.
TEST(MistakesOfMuon, OfWhereItRunsAreSeen) {
  constexpr size_t kTall = 1;
  const double lr = muon_plan().lr;
  const Tensor start = closed_form(matrix_pieces()[kTall].global, 1);
  const auto gradient = [](int t) { return matrix_gradient(kTall, t); };
  const Tensor right = matrix_after(start, gradient, kMatrixSteps, lr);
  EXPECT_LE((right - trained_alone().shards[kTall].value).abs().max().item<double>(), kRounding);

  const Tensor shard = matrix_after(
      start.narrow(0, 0, 12), [&](int t) { return gradient(t).narrow(0, 0, 12); }, kMatrixSteps,
      lr);
  expect_seen(shard, right.narrow(0, 0, 12), "an orthogonal shard");

  const auto partial = [&](int t) {
    const Tensor g = gradient(t).clone();
    g.narrow(0, 12, 12).mul_(0.5);
    return g;
  };
  expect_seen(matrix_after(start, partial, kMatrixSteps, lr), right, "partial gradients");

  const auto halves = [&](int t) {
    const Tensor g = gradient(t / 2) * 0.5, tilt = closed_form({24, 6}, 7) * 0.05;
    return t % 2 == 0 ? g + tilt : g - tilt;
  };
  expect_seen(matrix_after(start, halves, 2 * kMatrixSteps, lr / 2), right, "once a micro-batch");
}

}  // namespace
}  // namespace kuafu
