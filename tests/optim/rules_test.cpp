// SPDX-License-Identifier: Apache-2.0
//
// Rules against their definitions in doubles, number by number, and rules of layers over meshes
// against the same on one rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/optim/optimizer.h"
#include "tests/optim/axes.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;

constexpr int kRuleSteps = 3;

/// A parameter, where its shards lie, and how replicas cut those further.
struct LayerPiece {
  std::string name;
  Shape global;
  LayerSplit layers = {};
  Layout layout = {};
  bool is_cut = false;  ///< over "data", in the middle of a row
};

/// q, k, v in turns of two columns; experts with gate and up side by side; a norm; a vector of
/// experts; a plain matrix that replicas share; turns that shards cut in their middle.
std::vector<LayerPiece> layer_pieces() {
  const Axes none, row = {"row"}, col = {"col"};
  const Axes both(std::initializer_list<std::string>{"col", "row"});
  const auto layout = [](std::vector<Axes> dims) { return Layout{std::move(dims)}; };
  return {{"qkv", {6, 24}, {.parts = 3, .width = 2}, layout({row, col})},
          {"qkv.bias", {24}, {.parts = 3, .width = 2}, layout({col})},
          {"experts", {4, 6, 8}, {.is_stacked = true, .parts = 2}, layout({row, none, col})},
          {"experts.bias", {4, 8}, {.is_stacked = true, .parts = 2}, layout({row, col}), true},
          {"norm", {7}, {}, layout({none})},
          {"cut", {12, 8}, {.parts = 2, .width = 2}, layout({none, col}), true},
          {"stack", {4, 3, 4}, {.is_stacked = true}, layout({none, none, none}), true},
          {"down", {24, 8}, {}, layout({both, none}), true},
          {"turns", {2, 20}, {.parts = 2, .width = 2}, layout({none, col})}};
}

/// Stages of a pipeline hold other numbers: another size of values, another of gradients.
Tensor first_value(size_t i, int64_t stage = 0) {
  return closed_form(layer_pieces()[i].global, static_cast<int64_t>(i)) /
         static_cast<double>(1 + stage);
}
Tensor gradient_of(size_t i, int step, int64_t stage = 0) {
  const auto salt = 100 + 10 * step + static_cast<int64_t>(i);
  return closed_form(layer_pieces()[i].global, salt) * (stage == 0 ? 0.1 : 0.7);
}

std::vector<OptimizerPlan> rule_plans() {
  std::vector<OptimizerPlan> all;
  for (const char* kind : {"sgd", "adam", "adamw", "lars", "lamb"}) {
    for (const char* exclude : {"auto", "none", "vectors"}) {
      OptimizerPlan plan{.kind = kind, .lr = 0.05, .weight_decay = 0.1, .exclude = exclude};
      if (plan.kind == "lars") plan.coefficient = 0.1;
      if (plan.kind == "sgd") plan.nesterov = plan.exclude != "auto";
      if (plan.kind == "lamb" && plan.exclude == "none") plan.bias_correction = false;
      if (plan.kind == "lamb" && plan.exclude == "vectors") plan.ratio_max = 0.6;
      all.push_back(plan);
    }
  }
  return all;
}

/// The same, and variants whose formulas tests/oracle/variants_test.cpp has.
std::vector<OptimizerPlan> sharded_plans() {
  std::vector<OptimizerPlan> all = rule_plans();
  const auto add = [&](const char* kind, auto change) {
    OptimizerPlan plan{.kind = kind, .lr = 0.05, .coefficient = 0.1, .weight_decay = 0.1};
    change(plan);
    all.push_back(plan);
  };
  add("lars", [](OptimizerPlan& o) { o.denominator = "norm_of_sum", o.rate_in = "step"; });
  add("lars", [](OptimizerPlan& o) { o.bound = "rate", o.rate_in = "step_with_ratio"; });
  add("lamb", [](OptimizerPlan& o) { o.correction_in = "rate", o.scaled_layers = "all"; });
  add("lamb", [](OptimizerPlan& o) { o.bound = "weights", o.ratio_max = 0.5; });
  add("lamb", [](OptimizerPlan& o) { o.scaled_layers = "decayed", o.weight_decay = 0; });
  add("adam", [](OptimizerPlan& o) { o.correction_in = "rate"; });
  add("sgd", [](OptimizerPlan& o) { o.dampening = 0.5; });
  return all;
}

/// One parameter by the definitions, number by number.
class Definition {
 public:
  Definition(const OptimizerPlan& plan, size_t i) : o_(plan), piece_(layer_pieces()[i]) {
    const Tensor start = first_value(i).flatten();
    for (int64_t e = 0; e < start.numel(); ++e) w_.push_back(start[e].item<double>());
    m_ = v_ = std::vector<double>(w_.size(), 0.0);
    const size_t dims = piece_.global.size() - (piece_.layers.is_stacked ? 1 : 0);
    const bool leaves = o_.exclude == "vectors" ||
                        (o_.exclude == "auto" && (o_.kind == "lars" || o_.kind == "lamb"));
    is_out_ = leaves && dims == 1;
    decay_ = is_out_ ? 0 : o_.weight_decay;
  }

  void step(const Tensor& gradient) {
    ++t_;
    std::vector<double> g;
    const Tensor flat = gradient.flatten();
    for (int64_t e = 0; e < flat.numel(); ++e) g.push_back(flat[e].item<double>());
    if (o_.kind == "sgd") sgd(g);
    if (o_.kind == "adam" || o_.kind == "adamw") adam(g);
    if (o_.kind == "lars") lars(g);
    if (o_.kind == "lamb") lamb(g);
  }
  const std::vector<double>& values() const { return w_; }

 private:
  int64_t layer(size_t e) const {
    const int64_t columns = piece_.global.back(), at = static_cast<int64_t>(e);
    const int64_t part = at % columns / piece_.layers.width % piece_.layers.parts;
    int64_t stacked = static_cast<int64_t>(w_.size());
    if (piece_.layers.is_stacked) stacked /= piece_.global[0];
    return at / stacked * piece_.layers.parts + part;
  }
  std::map<int64_t, double> norms(const std::vector<double>& x) const {
    std::map<int64_t, double> sums;
    for (size_t e = 0; e < x.size(); ++e) sums[layer(e)] += x[e] * x[e];
    for (auto& [l, sum] : sums) sum = std::sqrt(sum);
    return sums;
  }
  void sgd(const std::vector<double>& g) {
    for (size_t e = 0; e < w_.size(); ++e) {
      const double d = g[e] + decay_ * w_[e];
      m_[e] = o_.momentum * m_[e] + d;
      w_[e] -= o_.lr * (o_.nesterov ? d + o_.momentum * m_[e] : m_[e]);
    }
  }
  double moments(size_t e, double g, bool is_corrected) {
    m_[e] = o_.beta1 * m_[e] + (1 - o_.beta1) * g;
    v_[e] = o_.beta2 * v_[e] + (1 - o_.beta2) * g * g;
    const double first = is_corrected ? 1 - std::pow(o_.beta1, t_) : 1;
    const double second = is_corrected ? 1 - std::pow(o_.beta2, t_) : 1;
    return m_[e] / first / (std::sqrt(v_[e] / second) + o_.epsilon);
  }
  void adam(const std::vector<double>& g) {
    for (size_t e = 0; e < w_.size(); ++e) {
      const double own = o_.kind == "adam" ? decay_ * w_[e] : 0;
      const double apart = o_.kind == "adamw" ? decay_ * w_[e] : 0;
      w_[e] -= o_.lr * (moments(e, g[e] + own, true) + apart);
    }
  }
  void lars(const std::vector<double>& g) {
    auto w = norms(w_), n = norms(g);
    for (size_t e = 0; e < w_.size(); ++e) {
      const int64_t l = layer(e);
      const double ratio = is_out_ ? 1 : o_.coefficient * w[l] / (n[l] + decay_ * w[l]);
      m_[e] = o_.momentum * m_[e] + o_.lr * ratio * (g[e] + decay_ * w_[e]);
      w_[e] -= m_[e];
    }
  }
  void lamb(const std::vector<double>& g) {
    std::vector<double> r;
    for (size_t e = 0; e < w_.size(); ++e) {
      r.push_back(moments(e, g[e], o_.bias_correction) + decay_ * w_[e]);
    }
    auto w = norms(w_), n = norms(r);
    for (size_t e = 0; e < w_.size(); ++e) {
      const int64_t l = layer(e);
      const double ratio = is_out_ ? 1 : std::clamp(w[l] / n[l], o_.ratio_min, o_.ratio_max);
      w_[e] -= o_.lr * ratio * r[e];
    }
  }

  OptimizerPlan o_;
  LayerPiece piece_;
  std::vector<double> w_, m_, v_;
  bool is_out_ = false;
  double decay_ = 0;
  int t_ = 0;
};

/// What of a whole tensor a rank holds of piece i, flat where replicas cut it.
Tensor mine_of(const Param& p, const LayerPiece& piece, const Tensor& whole, const Mesh& mesh,
               int64_t* first = nullptr) {
  const Tensor shard = scatter_param(p, whole, mesh);
  if (!piece.is_cut) return shard.contiguous();
  const int64_t parts = mesh.size(Axes{"data"}), n = shard.numel();
  const int64_t at = mesh.coord(Axes{"data"});
  const auto cut = [&](int64_t k) { return k == 0 ? 0 : k == parts ? n : n * k / parts + 1; };
  if (first != nullptr) *first = cut(at);
  return shard.flatten().narrow(0, cut(at), cut(at + 1) - cut(at)).clone();
}

/// kRuleSteps steps of a rank over all pieces, of which it holds its shards.
struct Held {
  std::vector<Param> params;
  std::vector<ParamShard> shards;
};
void hold(const Mesh& mesh, at::Device device, Held& held, int64_t stage = 0) {
  held.params.reserve(layer_pieces().size());
  const bool is_whole = mesh.num_ranks() == 1;
  for (size_t i = 0; i < layer_pieces().size(); ++i) {
    const LayerPiece piece = layer_pieces()[i];
    Param& p = held.params.emplace_back();
    p.name = piece.name;
    p.global = p.padded = piece.global;
    p.layers = piece.layers;
    p.layout = is_whole ? Layout::replicated(p.global.size()) : piece.layout;
    ParamShard shard{.value = {}, .grad = {}, .param = &p, .split_axes = {}};
    const Tensor first = first_value(i, stage);
    shard.value = is_whole ? first.contiguous().clone()
                           : mine_of(p, piece, first, mesh, &shard.first_element);
    shard.value = shard.value.to(device);
    if (piece.is_cut && !is_whole) shard.split_axes = {"data"};
    held.shards.push_back(shard);
  }
}
void train_layers(const OptimizerPlan& plan, const Mesh& mesh, Held& held, int64_t stage = 0) {
  const auto optimizer = make_optimizer(plan);
  for (int t = 0; t < kRuleSteps; ++t) {
    for (size_t i = 0; i < layer_pieces().size(); ++i) {
      const bool is_whole = mesh.num_ranks() == 1;
      const Tensor all = gradient_of(i, t, stage);
      const Tensor g = is_whole ? all : mine_of(held.params[i], layer_pieces()[i], all, mesh);
      held.shards[i].grad = g.to(held.shards[i].value.options());
    }
    optimizer->step(held.shards, plan.lr, mesh);
  }
}

std::string rule_words(const OptimizerPlan& plan) {
  return plan.kind + ", exclude " + plan.exclude + ", bound " + plan.bound + ", scaled " +
         plan.scaled_layers + ", correction in " + plan.correction_in + ", rate in " + plan.rate_in;
}

// A dozen roundings a step of values near one, and sums of 200 squares.
TEST(Rules, EqualTheirDefinitions) {
  for (const OptimizerPlan& plan : rule_plans()) {
    Held held;
    const Mesh alone({}, 0);
    hold(alone, at::kCPU, held);
    train_layers(plan, alone, held);
    for (size_t i = 0; i < layer_pieces().size(); ++i) {
      Definition definition(plan, i);
      for (int t = 0; t < kRuleSteps; ++t) definition.step(gradient_of(i, t));
      const Tensor expected = at::tensor(definition.values(), at::kDouble);
      testing::expect_close(held.shards[i].value.flatten(), expected,
                            200 * kRuleSteps * testing::kEps,
                            rule_words(plan) + ", " + layer_pieces()[i].name);
    }
  }
}

std::vector<std::vector<Axis>> layer_meshes() {
  return {{{"data", 2}, {"row", 1}, {"col", 1}},
          {{"data", 1}, {"row", 2}, {"col", 2}},
          {{"data", 3}, {"row", 1}, {"col", 2}},
          {{"pipeline", 2}, {"data", 2}, {"row", 2}, {"col", 1}},
          {{"data", 2}, {"row", 2}, {"col", 2}}};
}

// Replicas count once, each axis that splits a layer in, stages of a pipeline apart.
TEST(Rules, OfShardsAreThoseOfTheWholeOnEveryRank) {
  for (const OptimizerPlan& plan : sharded_plans()) {
    Held whole[2];
    const Mesh alone({}, 0);
    for (const int64_t stage : {0, 1}) {
      hold(alone, at::kCPU, whole[stage], stage);
      train_layers(plan, alone, whole[stage], stage);
    }
    for (const auto& axes : layer_meshes()) {
      run_on_threads(ranks_of(axes), [&](Communicator& world) {
        Mesh mesh(axes, world.rank());
        mesh.connect(world, nullptr);
        Held held;
        const int64_t stage = mesh.size("pipeline") > 1 ? mesh.coord("pipeline") : 0;
        hold(mesh, at::kCPU, held, stage);
        train_layers(plan, mesh, held, stage);
        for (size_t i = 0; i < layer_pieces().size(); ++i) {
          const Tensor expected =
              mine_of(held.params[i], layer_pieces()[i], whole[stage].shards[i].value, mesh);
          testing::expect_close(
              held.shards[i].value, expected, 100 * kRuleSteps * testing::kEps,
              rule_words(plan) + ", " + layer_pieces()[i].name + " on " + mesh.describe());
        }
      });
    }
  }
}

// All norms of a rule in one all-reduce a step and axis; none where steps need no norm.
TEST(Rules, SendOneAllReduceAnAxisAndTheSameOnMeta) {
  for (const OptimizerPlan& plan : sharded_plans()) {
    for (const auto& axes : layer_meshes()) {
      const int n = ranks_of(axes);
      SimulatedWorld simulated(n);
      for (int r = 0; r < n; ++r) {
        Ledger ledger;
        const auto world = simulated.communicator(r);
        Mesh mesh(axes, r);
        mesh.connect(*world, &ledger);
        Held held;
        hold(mesh, at::kMeta, held);
        train_layers(plan, mesh, held);
        for (const Axis& axis : axes) {
          if (axis.size == 1) continue;
          const bool has_ratios = make_rule(plan).has_ratios() && plan.scales(false);
          const bool is_summed = has_ratios && axis.name != "pipeline";
          const auto row = ledger.axes().find(axis.name);
          int64_t calls = 0;
          if (row != ledger.axes().end()) {
            for (const int64_t n : row->second.calls) calls += n;
          }
          EXPECT_EQ(calls, is_summed ? kRuleSteps : 0)
              << rule_words(plan) << ", " << axis.name << " of " << mesh.describe();
        }
      }
    }
  }
}

// An overflow skips the update, not its messages, which the simulated world counts on.
TEST(Rules, SendWithoutAnUpdateWhatAStepSends) {
  for (const OptimizerPlan& plan : sharded_plans()) {
    const std::vector<Axis> axes = {{"data", 2}, {"row", 2}, {"col", 2}};
    std::vector<std::map<std::string, AxisLedger>> sent;
    for (const bool is_skipped : {false, true}) {
      SimulatedWorld simulated(ranks_of(axes));
      Ledger ledger;
      const auto world = simulated.communicator(5);
      Mesh mesh(axes, 5);
      mesh.connect(*world, &ledger);
      Held held;
      hold(mesh, at::kMeta, held);
      for (ParamShard& s : held.shards) s.grad = s.value;
      if (is_skipped) {
        make_optimizer(plan)->skip(held.shards, mesh);
      } else {
        make_optimizer(plan)->step(held.shards, plan.lr, mesh);
      }
      sent.emplace_back(ledger.axes().begin(), ledger.axes().end());
    }
    ASSERT_EQ(sent[0].size(), sent[1].size());
    for (const auto& [axis, row] : sent[0]) {
      EXPECT_EQ(row.calls, sent[1].at(axis).calls) << rule_words(plan) << ", " << axis;
      EXPECT_EQ(row.bytes_sent, sent[1].at(axis).bytes_sent) << rule_words(plan) << ", " << axis;
    }
  }
}

TEST(Rules, OfHalfPrecisionRoundTheirMasters) {
  for (const OptimizerPlan& plan : sharded_plans()) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      std::vector<Tensor> results;
      for (const bool is_half : {true, false}) {
        Held held;
        const Mesh alone({}, 0);
        hold(alone, at::kCPU, held);
        const auto optimizer = make_optimizer(plan);
        for (ParamShard& s : held.shards) s.value = s.value.to(type);
        if (!is_half) {
          for (ParamShard& s : held.shards) s.value = s.value.to(at::kFloat);
        }
        for (int t = 0; t < kRuleSteps; ++t) {
          for (size_t i = 0; i < layer_pieces().size(); ++i) {
            held.shards[i].grad = gradient_of(i, t).to(type);
          }
          optimizer->step(held.shards, plan.lr);
        }
        std::vector<Tensor> all;
        for (const ParamShard& s : held.shards) all.push_back(s.value.to(type).flatten());
        results.push_back(at::cat(all));
      }
      EXPECT_TRUE(at::equal(results[0], results[1])) << rule_words(plan) << " " << type;
    }
  }
}

// A layer of zeros, and one whose gradients are, move as if they were not scaled.
TEST(Rules, LeaveLayersWithoutANormUnscaled) {
  for (const char* kind : {"lars", "lamb"}) {
    const OptimizerPlan plan{.kind = kind, .momentum = 0, .weight_decay = 0};
    Param p;
    p.name = "w";
    p.global = p.padded = {2, 2};
    p.layout = Layout::replicated(2);
    std::vector<ParamShard> shards = {
        {at::zeros({2, 2}, at::kDouble), at::full({2, 2}, 0.5, at::kDouble), &p, {}}};
    make_optimizer(plan)->step(shards, 0.1);
    const double moved = plan.kind == "lars" ? -0.05 : -0.1;
    EXPECT_NEAR(shards[0].value[0][0].item<double>(), moved, 1e-8) << kind;
    shards[0].value = at::ones({2, 2}, at::kDouble);
    shards[0].grad = at::zeros({2, 2}, at::kDouble);
    make_optimizer(plan)->step(shards, 0.1);
    EXPECT_TRUE(shards[0].value.eq(1).all().item<bool>()) << kind;
  }
}

}  // namespace
}  // namespace kuafu
