// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/optimizer/rank.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include <ATen/ATen.h>

#include "kuafu/tensor/ops.h"

namespace kuafu::micro {
namespace {

std::vector<Shape> shapes_of(const ModelSize& s) {
  const int64_t h = s.hidden;
  std::vector<Shape> shapes = {{256, h}, {h, h}};
  for (int64_t l = 0; l < s.layers; ++l) {
    for (const Shape& shape : std::vector<Shape>{{h}, {h}, {h, 3 * h}, {3 * h}, {h, h}, {h}}) {
      shapes.push_back(shape);
    }
    for (const Shape& shape : std::vector<Shape>{{h}, {h}, {h, 4 * h}, {4 * h}, {4 * h, h}, {h}}) {
      shapes.push_back(shape);
    }
  }
  shapes.insert(shapes.end(), {{h}, {h}});
  return shapes;
}

/// Positive numbers, so that v stays positive whichever loop wrote it.
Tensor made(const Shape& shape, double frequency) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  Tensor t = at::empty(shape, at::kFloat);
  float* values = t.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    const auto angle = static_cast<float>(frequency * static_cast<double>(i % 100003));
    values[i] = 0.02F * std::sin(angle) + 0.03F;
  }
  return t;
}

/// Every layer decays and has a ratio, which is what LibTorch's ops below do.
OptimizerPlan plan_of(const TimedRule& rule) {
  OptimizerPlan plan;
  plan.kind = rule.kind == "norm" ? "sgd" : rule.kind;
  plan.exclude = "none";
  plan.bound = "none";
  return plan;
}

}  // namespace

int TimedRule::bytes() const {
  int sum = 0;
  for (const RulePass& pass : passes) sum += pass.kind().bytes();
  return sum;
}

const std::vector<TimedRule>& timed_rules() {
  static const std::vector<TimedRule> rules = {{"adamw", {{"wmv", "g"}}, "fused"},
                                               {"adam", {{"wmv", "g"}}, "fused"},
                                               {"sgd", {{"wm", "g"}}, "fused"},
                                               {"lars", {{"", "wg"}, {"wm", "g"}}, "foreach"},
                                               {"lamb", {{"mvg", "w"}, {"w", "g"}}, "foreach"},
                                               {"norm", {{"", "g"}}, "foreach"}};
  return rules;
}

Rank::Rank(const ModelSize& size, const TimedRule& rule)
    : rule_(rule), plan_(plan_of(rule)), optimizer_(make_optimizer(plan_)) {
  for (const Shape& shape : shapes_of(size)) {
    Param& p = params_.emplace_back();
    p.name = "p" + std::to_string(params_.size());
    p.global = p.padded = shape;
    p.layout = Layout::replicated(shape.size());
    p.value = made(shape, 0.37);
  }
  for (const Param& p : params_) {
    shards_.push_back(
        {.value = p.value, .grad = made(p.global, 0.61), .param = &p, .split_axes = {}});
  }
  optimizer_->begin(shards_, kStepsBefore);
  for (const SlotTensor& state : optimizer_->state().tensors) {
    (state.slot == "v" ? v_ : m_).push_back(state.tensor);
  }
  for (const ParamShard& s : shards_) {
    w_.push_back(s.value);
    g_.push_back(s.grad);
    steps_.push_back(at::full({}, static_cast<double>(kStepsBefore) + 1, at::kFloat));
    elements_ += s.value.numel();
  }
}

void Rank::kuafu() {
  if (!is_norm()) return optimizer_->step(shards_, plan_.lr);
  double squares = 0;
  for (const Tensor& g : g_) squares += ops::sum_of_squares(g).item<double>();
  norm_ = std::sqrt(squares);
}

void Rank::peer() {
  const OptimizerPlan& o = plan_;
  if (is_norm()) {
    norm_ = at::stack(at::_foreach_norm(g_, 2)).norm().item<double>();
  } else if (o.kind == "adamw") {
    at::_fused_adamw_(w_, g_, m_, v_, {}, steps_, o.lr, o.beta1, o.beta2, o.weight_decay, o.epsilon,
                      false, false);
  } else if (o.kind == "adam") {
    at::_fused_adam_(w_, g_, m_, v_, {}, steps_, o.lr, o.beta1, o.beta2, o.weight_decay, o.epsilon,
                     false, false);
  } else if (o.kind == "sgd") {
    at::_fused_sgd_(w_, g_, m_, o.weight_decay, o.momentum, o.lr, 0, false, false, false);
  } else if (o.kind == "lars") {
    foreach_lars();
  } else {
    foreach_lamb();
  }
}

/// As a user of LibTorch writes them: it has neither.
void Rank::foreach_lars() {
  const OptimizerPlan& o = plan_;
  auto ratio = at::_foreach_norm(w_, 2);
  auto below = at::_foreach_norm(g_, 2);
  at::_foreach_add_(below, ratio, o.weight_decay);
  at::_foreach_div_(ratio, below);
  at::_foreach_mul_(ratio, o.coefficient * o.lr);
  auto step = at::_foreach_add(g_, w_, o.weight_decay);
  at::_foreach_mul_(step, ratio);
  at::_foreach_mul_(m_, o.momentum);
  at::_foreach_add_(m_, step);
  at::_foreach_sub_(w_, m_);
}

void Rank::foreach_lamb() {
  const OptimizerPlan& o = plan_;
  const double t = static_cast<double>(kStepsBefore) + 1;
  at::_foreach_lerp_(m_, g_, 1 - o.beta1);
  at::_foreach_mul_(v_, o.beta2);
  at::_foreach_addcmul_(v_, g_, g_, 1 - o.beta2);
  auto below = at::_foreach_sqrt(v_);
  at::_foreach_div_(below, std::sqrt(1 - std::pow(o.beta2, t)));
  at::_foreach_add_(below, o.epsilon);
  auto r = at::_foreach_div(m_, below);
  at::_foreach_div_(r, 1 - std::pow(o.beta1, t));
  at::_foreach_add_(r, w_, o.weight_decay);
  auto ratio = at::_foreach_norm(w_, 2);
  at::_foreach_div_(ratio, at::_foreach_norm(r, 2));
  at::_foreach_mul_(r, ratio);
  at::_foreach_add_(w_, r, -o.lr);
}

float* Rank::stream_of(char name, size_t param) {
  const Tensors& all = name == 'w' ? w_ : name == 'g' ? g_ : name == 'm' ? m_ : v_;
  return all[param].mutable_data_ptr<float>();
}

void Rank::stream(const StreamLoop& loop) {
  for (const RulePass& of_rule : rule_.passes) {
    for (size_t i = 0; i < w_.size(); ++i) {
      Pass pass{.count = w_[i].numel()};
      for (size_t k = 0; k < of_rule.written.size(); ++k) {
        pass.written[k] = stream_of(of_rule.written[k], i);
      }
      for (size_t k = 0; k < of_rule.read.size(); ++k) {
        pass.read[k] = stream_of(of_rule.read[k], i);
      }
      loop.run(of_rule.kind(), pass);
    }
  }
}

void Rank::go_back_to(const Tensors& weights) {
  for (size_t i = 0; i < w_.size(); ++i) {
    w_[i].copy_(weights[i]);
    m_[i].copy_(made(params_[i].global, 0.53)).mul_(0.1);
    if (!v_.empty()) v_[i].copy_(made(params_[i].global, 0.71)).square_();
    g_[i].copy_(made(params_[i].global, 0.61));  // LAMB leaves its direction there
  }
}

/// LibTorch adds numbers that are alike in f32, each layer by itself.
void Rank::check_norm() {
  kuafu();
  const double ours = norm_;
  peer();
  KUAFU_REQUIRE(std::abs(ours / norm_ - 1) < 1e-2, "the norm is ", ours, ", of LibTorch ", norm_);
}

/// Weights and state after a step, element by element: some 10 roundings of numbers no larger than
/// what was there and what was added. LibTorch's foreach ops compute in f64 here: their norms in
/// f32 of millions of numbers that are alike are 1e-3 off.
void Rank::check() {
  if (is_norm()) return check_norm();
  Tensors before;
  for (const Tensor& w : w_) before.push_back(w.clone());
  const std::array<Tensors, 4> own = {w_, g_, m_, v_};
  const auto step = [&](const std::function<void()>& run) {
    go_back_to(before);
    run();
    std::array<Tensors, 3> after;
    for (size_t k = 0; k < 3; ++k) {
      for (const Tensor& t : *std::array{&w_, &m_, &v_}[k])
        after[k].push_back(t.to(at::kFloat, false, true));
    }
    std::tie(w_, g_, m_, v_) = std::tie(own[0], own[1], own[2], own[3]);
    return after;
  };
  const auto ours = step([&] { kuafu(); });
  const auto theirs = step([&] {
    if (rule_.peer == "foreach") {
      for (Tensors* all : {&w_, &g_, &m_, &v_}) {
        for (Tensor& t : *all) t = t.to(at::kDouble);
      }
    }
    peer();
  });
  go_back_to(before);
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  for (size_t k = 0; k < 3; ++k) {
    for (size_t i = 0; i < ours[k].size(); ++i) {
      Tensor size = theirs[k][i].abs();
      if (k == 0) size += (theirs[k][i] - before[i]).abs();
      const auto worst =
          ((theirs[k][i] - ours[k][i]).abs() / (10 * kEps * size)).max().item<double>();
      KUAFU_REQUIRE(worst <= 1, params_[i].name, ": ", std::array{"weights", "m", "v"}[k], " of ",
                    rule_.kind, " of Kuafu and of LibTorch differ by ", worst,
                    " of what rounding allows");
    }
  }
}

}  // namespace kuafu::micro
