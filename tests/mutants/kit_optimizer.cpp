// SPDX-License-Identifier: Apache-2.0
//
// Wrong updates: coefficients, bias correction, decay, clipping, learning rate, state.

#include <ATen/ATen.h>

#include <cmath>

#include "tests/mutants/mutant.h"
#include "tests/mutants/update_kit.h"

namespace kuafu::tests {
namespace {

using at::Tensor;
using torch::jit::Stack;
using Right = OpFault::Right;

void add_common(Kit& kit, const std::string& op, const Indices& at) {
  const auto add = [&](const std::string& what, const OpFault& fault, const Overrides& o = kPlan) {
    kit.add(op + " " + what, o, fault).optimizer = op;
  };
  add("with 1.0001 times the rate", with_number(op, at.lr, [](double r) { return 1.0001 * r; }));
  add("with half the rate for the first parameter",
      in_call(with_number(op, at.lr, [](double r) { return r / 2; }), 1));
  add("without decay", with_number(op, at.decay, [](double) { return 0.0; }));
  add("with 1.01 times the decay", with_number(op, at.decay, [](double d) { return 1.01 * d; }));
  add("with twice the decay for the third parameter",
      in_call(with_number(op, at.decay, [](double d) { return 2 * d; }), 3));
  add("without clipping", with_gradient(op, [](const Tensor& g, const Tensor&) { return 10 * g; }));
  add("clipped to 1.001 times the norm",
      with_gradient(op, [](const Tensor& g, const Tensor&) { return 1.001 * g; }));
  add("clipped element by element",
      with_gradient(op, [](const Tensor& g, const Tensor&) { return g.clamp(-0.001, 0.001); }));
  add("that keeps its state", forgets(op, at.state));
  add("that keeps its weights", forgets(op, at.value));
  add("made twice", twice(op));
  add("skipped for the third parameter", in_call(skips(op), 3));
  add("skipped for the third parameter on one replica", in_call(on_rank_1(skips(op)), 3));
  add("with 1.01 times the rate on one replica",
      on_rank_1(with_number(op, at.lr, [](double r) { return 1.01 * r; })));
  add("that keeps its state on one replica", on_rank_1(forgets(op, at.state)));
  Overrides sharded = kPlan;
  sharded.emplace_back("parallel.zero", "1");
  add("with 1.01 times the rate for one rank's shards",
      on_rank_1(with_number(op, at.lr, [](double r) { return 1.01 * r; })), sharded);
  add("that keeps the state of one rank's shards", on_rank_1(forgets(op, at.state)), sharded);
  add("skipped for one rank's third shard", in_call(on_rank_1(skips(op)), 3), sharded);
}

void add_adamw(Kit& kit) {
  const auto add = [&](const std::string& what, const OpFault& fault) {
    kit.add("adamw " + what, kPlan, fault).optimizer = "adamw";
  };
  add("with beta1 0.9001", with_number("adamw", 5, [](double b) { return b + 1e-4; }));
  add("with beta2 0.99901", with_number("adamw", 6, [](double b) { return b + 1e-5; }));
  add("with both betas the other way", instead("adamw", [](Stack& s, const Right& right) {
        std::swap(s[5], s[6]);
        right(s);
      }));
  add("with ten times epsilon", with_number("adamw", 7, [](double e) { return 10 * e; }));
  add("without epsilon", with_number("adamw", 7, [](double) { return 1e-30; }));
  add("with epsilon inside the root", adam_by("adamw", {.is_epsilon_inside = true}));
  add("with decay in the gradient", adam_by("adamw", {.is_decay_coupled = true}));
  add("with the largest second moment", adam_by("adamw", {.is_maximal = true}));
  add("with Nesterov's first moment", adam_by("adamw", {.is_nesterov = true}));
  add("without bias correction",
      with_argument("adamw", 9, [](c10::IValue& v) { v = int64_t{1} << 30; }));
  add("with the correction of the step before",
      with_argument("adamw", 9, [](c10::IValue& v) { v = std::max<int64_t>(1, v.toInt() - 1); }));
  add("with the correction of the step after", with_int("adamw", 9, 1));
  add("that keeps its second moment", forgets("adamw", 3));
  add("with the moments of the gradient before clipping",
      with_gradient("adamw", [](const Tensor& g, const Tensor&) { return 3 * g; }));
}

void add_sgd(Kit& kit) {
  const auto add = [&](const std::string& what, const OpFault& fault) {
    kit.add("sgd " + what, kPlan, fault).optimizer = "sgd";
  };
  add("with momentum 0.9001", with_number("sgd", 4, [](double m) { return m + 1e-4; }));
  add("without momentum", with_number("sgd", 4, [](double) { return 0.0; }));
  add("with dampening",
      with_gradient("sgd", [](const Tensor& g, const Tensor&) { return 0.1 * g; }));
  const auto by_hand = [](bool is_nesterov, bool is_decoupled, bool is_rate_inside) {
    return instead("sgd", [=](Stack& s, const Right&) {
      const Tensor w = s[0].toTensor(), u = s[2].toTensor();
      const double lr = s[3].toDouble(), momentum = s[4].toDouble(), decay = s[5].toDouble();
      Tensor g = s[1].toTensor() * s[6].toDouble();
      if (!is_decoupled) g = g + decay * w;
      u.mul_(momentum).add_(g, is_rate_inside ? lr : 1);
      if (is_decoupled) w.mul_(1 - lr * decay);
      const Tensor step = is_nesterov ? g + momentum * u : u;
      w.sub_(step, is_rate_inside ? 1 : lr);
      s.clear();
    });
  };
  add("with Nesterov's momentum", by_hand(true, false, false));
  add("with decoupled decay", by_hand(false, true, false));
  add("with the rate inside of the velocity", by_hand(false, false, true));
}

void add_norm(Kit& kit) {
  kit.add("the norm of 1.001 times the squares", kPlan,
          with_result_times("sum_of_squares", 0, 1.001));
  kit.add("the norm without the third gradient", kPlan,
          in_call(with_result_times("sum_of_squares", 0, 0), 3));
  kit.add("one replica's norm without the third gradient", kPlan,
          in_call(on_rank_1(with_result_times("sum_of_squares", 0, 0)), 3));
  kit.add("the norm of sums, not of squares", kPlan,
          with_formula("sum_of_squares", 0, [](const Arguments& a, const Arguments&) {
            return a[0].abs().sum().to(at::kDouble);
          }));
  const auto believe = [&](const std::string& what, const std::string& optimizer, auto change) {
    kit.believe(what, kPlan, change).optimizer = optimizer;
  };
  believe("replica 1 has 1.01 times the rate", "", [](Plan& p) { p.optimizer.lr *= 1.01; });
  believe("replica 1 does not clip", "", [](Plan& p) { p.optimizer.clip = 0; });
  believe("replica 1 does not decay", "", [](Plan& p) { p.optimizer.weight_decay = 0; });
  believe("replica 1 warms up for another step", "", [](Plan& p) { ++p.optimizer.warmup; });
  // Without warm-up, so that the first three steps differ.
  kit.believe("replica 1 has another horizon", keys::both(kPlan, {{"optimizer.warmup", "0"}}),
              [](Plan& p) { p.optimizer.schedule_steps = 4; });
  believe("replica 1 dampens", "sgd", [](Plan& p) { p.optimizer.dampening = 0.1; });
  believe("replica 1 has no momentum", "sgd", [](Plan& p) { p.optimizer.momentum = 0; });
  believe("replica 1 has another beta2", "adamw", [](Plan& p) { p.optimizer.beta2 = 0.99; });
}

}  // namespace

OpFault adam_by(const std::string& op, Habits h) {
  return instead(op, [h](Stack& s, const Right&) {
    const Tensor w = s[0].toTensor(), m = s[2].toTensor(), v = s[3].toTensor();
    const double lr = s[4].toDouble(), beta1 = s[5].toDouble(), beta2 = s[6].toDouble();
    const double epsilon = s[7].toDouble(), decay = s[8].toDouble();
    const auto t = static_cast<double>(s[9].toInt());
    Tensor g = s[1].toTensor().to(w.scalar_type()) * s[10].toDouble();
    if (h.is_decay_coupled) g = g + decay * w;
    m.mul_(beta1).add_(g, 1 - beta1);
    const Tensor next = beta2 * v + (1 - beta2) * g * g;
    v.copy_(h.is_maximal ? at::maximum(v, next) : next);
    Tensor first = m / (1 - std::pow(beta1, t));
    if (h.is_nesterov) first = beta1 * first + (1 - beta1) / (1 - std::pow(beta1, t)) * g;
    const Tensor second = v / (1 - std::pow(beta2, t));
    const Tensor root = h.is_epsilon_inside ? (second + epsilon).sqrt() : second.sqrt() + epsilon;
    if (!h.is_decay_coupled) w.mul_(1 - lr * decay);
    w.sub_(lr * first / root);
    s.clear();
  });
}

Kit optimizer_kit() {
  Kit kit{.name = "optimizer"};
  add_common(kit, "adamw", kAdamW);
  add_common(kit, "sgd", kSgd);
  add_adamw(kit);
  add_sgd(kit);
  add_layer_rules(kit);
  add_known_mistakes(kit);
  add_norm(kit);
  Mutant& none = kit.harmless.emplace_back(Mutant{.name = "nothing", .overrides = kPlan});
  for (const char* op :
       {"adamw", "adam", "sgd", "nesterov", "lars", "lars_norms", "layer_step", "lamb_norms",
        "lamb", "newton_schulz", "momentum", "momentum_ahead", "decayed_step", "sum_of_squares"}) {
    set_fault(none, instead(op, [](Stack& s, const Right& right) { right(s); }));
  }
  return kit;
}

}  // namespace kuafu::tests
