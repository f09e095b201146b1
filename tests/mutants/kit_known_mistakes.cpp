// SPDX-License-Identifier: Apache-2.0
//
// What is known to go wrong with Adam (decay in the gradient), Nesterov's momentum and Muon: each once
// in f32 or f64, and once in bf16, where weights and slots are masters in f32.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tests/mutants/update_kit.h"

namespace kuafu::tests {
namespace {

using at::Tensor;
using torch::jit::Stack;
using Right = OpFault::Right;

/// Adds a mistake of a rule in both precisions.
class Mistakes {
 public:
  Mistakes(Kit& kit, std::string rule, std::string optimizer, Overrides plan)
      : kit_(kit),
        rule_(std::move(rule)),
        optimizer_(std::move(optimizer)),
        plan_(std::move(plan)) {}

  void add(const std::string& what, const OpFault& fault) {
    kit_.add(rule_ + " " + what, plan_, fault).optimizer = optimizer_;
    Mutant& half = kit_.add(rule_ + " in bf16 " + what, plan_, fault);
    half.optimizer = optimizer_;
    half.dtype = DType::kBF16;
  }

 private:
  Kit& kit_;
  std::string rule_, optimizer_;
  Overrides plan_;
};

/// Tensors `first` and the one after it in each other's places.
OpFault with_slots_exchanged(const std::string& op, size_t first) {
  return instead(op, [first](Stack& s, const Right& right) {
    std::swap(s[first], s[first + 1]);
    right(s);
  });
}

void add_adam_mistakes(Kit& kit) {
  Mistakes adam(kit, "adam", "adam", kPlan);
  adam.add("with m and v in each other's places", with_slots_exchanged("adam", 2));
  adam.add("with m and v exchanged in one call", in_call(with_slots_exchanged("adam", 2), 9));
  adam.add("without bias correction",
           with_argument("adam", 9, [](c10::IValue& v) { v = int64_t{1} << 30; }));
  adam.add("with the correction of the step before", with_argument("adam", 9, [](c10::IValue& v) {
             v = std::max<int64_t>(1, v.toInt() - 1);
           }));
  adam.add("with decoupled decay", adam_by("adam", {}));
  adam.add("with epsilon inside the root",
           adam_by("adam", {.is_epsilon_inside = true, .is_decay_coupled = true}));
  adam.add("without decay", with_number("adam", kAdamW.decay, [](double) { return 0.0; }));
  adam.add("that keeps its second moment", forgets("adam", 3));
  adam.add("with beta2 0.99", with_number("adam", 6, [](double) { return 0.99; }));
}

/// What differs between those who say Nesterov: u is the velocity after the step, `before` that
/// before it, g the gradient with its decay.
using Ahead =
    std::function<Tensor(const Tensor& g, const Tensor& u, const Tensor& before, double mu)>;

OpFault nesterov_by(const Ahead& ahead, bool is_decoupled = false) {
  return instead("nesterov", [=](Stack& s, const Right&) {
    const Tensor w = s[0].toTensor(), u = s[2].toTensor(), before = u.clone();
    const double lr = s[3].toDouble(), mu = s[4].toDouble(), decay = s[5].toDouble();
    Tensor g = s[1].toTensor().to(w.scalar_type()) * s[6].toDouble();
    if (is_decoupled) {
      w.mul_(1 - lr * decay);
    } else {
      g = g + decay * w;
    }
    u.mul_(mu).add_(g);
    w.sub_(ahead(g, u, before, mu) * lr);
    s.clear();
  });
}

void add_nesterov_mistakes(Kit& kit) {
  Overrides plan = kPlan;
  plan.emplace_back("optimizer.nesterov", "true");
  Mistakes nesterov(kit, "nesterov", "sgd", plan);
  using Of = const Tensor&;
  nesterov.add("that looks ahead without momentum's factor",
               nesterov_by([](Of g, Of u, Of, double) { return g + u; }));
  nesterov.add("by the velocity before",
               nesterov_by([](Of g, Of, Of before, double mu) { return g + mu * before; }));
  nesterov.add("as heavy ball", nesterov_by([](Of, Of u, Of, double) { return u; }));
  nesterov.add("that looks ahead twice",
               nesterov_by([](Of g, Of u, Of, double mu) { return g + mu * (g + mu * u); }));
  nesterov.add("with decoupled decay",
               nesterov_by([](Of g, Of u, Of, double mu) { return g + mu * u; }, true));
  nesterov.add("without momentum", with_number("nesterov", 4, [](double) { return 0.0; }));
  nesterov.add("that keeps its velocity", forgets("nesterov", 2));
}

/// The factor of a step by the rows and columns of its matrix.
OpFault with_scale(double (*scale)(double rows, double columns)) {
  return instead("newton_schulz", [scale](Stack& s, const Right& right) {
    const Tensor u = s[0].toTensor();
    const auto rows = static_cast<double>(u.size(0));
    s[5] = scale(rows, static_cast<double>(u.size(1) / s[3].toInt()));
    right(s);
  });
}

void add_muon_mistakes(Kit& kit) {
  const std::string whole = "newton_schulz";
  Mistakes muon(kit, "muon", "muon", keys::both(kPlan, {{"optimizer.nesterov", "true"}}));
  muon.add("whose iteration is left out",
           instead(whole, [](Stack& s, const Right&) { s = {s[0].toTensor().clone()}; }));
  // Memory read by the other shape: no transpose.
  muon.add("of the transposed shape", instead(whole, [](Stack& s, const Right& right) {
             const Tensor u = s[0].toTensor();
             if (s[3].toInt() > 1) return right(s);
             s[0] = u.reshape({u.size(1), u.size(0)});
             s[4] = u.size(0);
             right(s);
             s[0] = s[0].toTensor().reshape(u.sizes());
           }));
  muon.add("with the scale of the transposed matrix",
           with_scale([](double r, double c) { return std::sqrt(std::max(1.0, r / c)); }));
  muon.add("with a scale that has no least",
           with_scale([](double r, double c) { return std::sqrt(c / r); }));
  muon.add("without a scale", with_scale([](double, double) { return 1.0; }));
  muon.add("of q, k and v as one matrix", instead(whole, [](Stack& s, const Right& right) {
             s[3] = int64_t{1};
             s[4] = s[0].toTensor().size(1);
             right(s);
           }));
  muon.add("with momentum before scaling", instead("momentum", [](Stack& s, const Right&) {
             const Tensor u = s[0].toTensor(), g = s[1].toTensor().to(u.scalar_type());
             u.mul_(s[2].toDouble()).add_(g).mul_(s[3].toDouble());
             s.clear();
           }));
  muon.add("that looks ahead without momentum's factor",
           with_number("momentum_ahead", 2, [](double) { return 1.0; }));
  muon.add("that does not look ahead", instead("momentum_ahead", [](Stack& s, const Right&) {
             s = {s[0].toTensor().clone()};
           }));
  muon.add("without decay of its matrices",
           with_number("decayed_step", 3, [](double) { return 0.0; }));
  muon.add("with m and v of all else in each other's places", with_slots_exchanged("adamw", 2));
  muon.add("without bias correction of all else",
           with_argument("adamw", 9, [](c10::IValue& v) { v = int64_t{1} << 30; }));
}

}  // namespace

void add_known_mistakes(Kit& kit) {
  add_adam_mistakes(kit);
  add_nesterov_mistakes(kit);
  add_muon_mistakes(kit);
}

}  // namespace kuafu::tests
