// SPDX-License-Identifier: Apache-2.0
//
// The update of a step by a rule that a plug-in brings: made again by its formula in
// f64 from the step's own gradients, norm and state, and once more a few times with every
// operation's result moved by a rounding error drawn at random (RandomRounding).
//
// u is the unit roundoff of the type that is updated. An element may differ from the formula by
//
//   kFactor x the largest difference of a draw      how rounding travels through this very formula:
//                                                   cancellation, norms of layers, small quotients
//   + kRoundings u (|before| + |after|)             of what is added up in the end, where a draw
//                                                   happens to be small
//   + kFactor x that difference's root mean square  where rules are by layers: what rounding does to a
//     in the layer                                  norm or a product reaches all elements alike, and
//                                                   in one of many thousands all draws are small
//   + kOfStep u |step|                              rates and corrections of moments in f32, which are
//                                                   numbers, not tensors, so that no draw moves them:
//                                                   1 - powf(0.999f, 1) is 0.001 off by up to 500 u,
//                                                   its root by half of that
//
// What a layer lacks as a whole though each element is within its bound: certificate_projections.cpp.
//
// Where the draws move a tensor by more than kDiverged of its norm nothing can be compared, and the proof ends
// so: terms that cancel leave nothing of it, or the formula leaves the range of numbers.
//
// A formula that jumps where rounding decides has no bound but the jump: where a draw jumps, so may
// the run.
//
// The errors are told as shares of the bound, in units of 16 u.

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/engine/proof/certificate_rounding.h"
#include "kuafu/oracle/random_rounding.h"

namespace kuafu {
namespace {

constexpr double kRoundings = 16;
/// Two terms that cancel leave a draw below x u of them in x of cases, and a run, which rounds its
/// rates too, up to 3 u: all of so many draws are below an eighth of that in 1 of 10^7 elements.
constexpr uint64_t kOwnDraws = 16;

oracle::Tensors cloned(const oracle::Tensors& tensors) {
  oracle::Tensors out;
  for (const auto& [name, t] : tensors) out[name] = t.clone();
  return out;
}

/// Weights and state after a step.
struct After {
  oracle::Tensors weights;
  oracle::State state;
};

class OwnUpdateCheck {
 public:
  OwnUpdateCheck(const Plan& plan, const oracle::Weights& layers, const Evidence& evidence,
                 Proof& proof, const oracle::UpdateRules& rules)
      : plan_(plan),
        layers_(layers),
        is_(evidence),
        proof_(proof),
        rules_(rules),
        u_(plan.model.dtype == DType::kF64 ? 0x1p-52 : 0x1p-24),
        before_(updated(evidence.before)),
        state_before_(state_of(evidence.before)) {}

  void run() {
    const After exact = stepped();
    std::vector<After> draws;
    for (uint64_t draw = 0; draw < kOwnDraws; ++draw) {
      const oracle::RandomRounding at_random(u_, draw);
      draws.push_back(stepped());
    }
    compare_weights(exact, draws);
    compare_state(exact, draws);
  }

 private:
  After stepped() const {
    After after{cloned(before_), {.num_steps = state_before_.num_steps, .slots = {}}};
    for (const auto& [slot, tensors] : state_before_.slots) {
      after.state.slots[slot] = cloned(tensors);
    }
    const double lr = oracle::learning_rate(plan_.optimizer, is_.step - is_.scale_before.skipped,
                                            plan_.schedule_steps(), plan_.train.batch);
    oracle::update(plan_.optimizer, lr, is_.report.grad_norm, is_.gradients, after.weights,
                   after.state, layers_, nullptr, rules_);
    return after;
  }
  /// What rounding may make of it.
  template <class Of>
  Tensor bound_of(const std::string& name, const Tensor& before, const Tensor& exact,
                  const std::vector<After>& draws, Of of, const std::string& what) {
    Tensor most = at::zeros_like(exact);
    for (const After& draw : draws) most = at::maximum(most, (of(draw) - exact).abs());
    const double moved = length(most), all = std::max(length(before), length(exact));
    if (!(moved <= kDiverged * all)) {
      proof_.give_up(text("step ", is_.step + 1, ": rounding alone moves what the formula of ",
                          plan_.optimizer.kind, " makes of ", what, " by ", moved / all,
                          " of its norm: terms cancel, or leave the range of numbers"));
    }
    if (rules_.find(plan_.optimizer.kind).is_by_layers) most = most + in_layer(name, most);
    return kFactor * most + kRoundings * u_ * (before.abs() + exact.abs());
  }
  /// The root mean square over the layer of each element.
  Tensor in_layer(const std::string& name, const Tensor& t) const {
    const auto found = layers_.find(name);
    const oracle::Weight of =
        found != layers_.end() ? found->second : oracle::Weight{.shape = t.sizes().vec()};
    const int64_t count = of.fused * (of.is_stacked ? t.size(0) : 1);
    return oracle::norms_of_layers(t, of) *
           std::sqrt(static_cast<double>(count) / static_cast<double>(t.numel()));
  }
  void compare(const Tensor& mine, const Tensor& exact, const Tensor& bound,
               const std::string& what) {
    const double whole = kRoundings * u_;
    add_elements({mine, exact, bound / whole}, whole, at_step(is_, what), proof_);
  }

  void compare_weights(const After& exact, const std::vector<After>& draws) {
    const oracle::Tensors mine = updated(is_.after);
    for (const auto& [name, w] : exact.weights) {
      const auto found = mine.find(name);
      if (found == mine.end()) {
        proof_.refute(at_step(is_, text("no rank holds ", name)));
        continue;
      }
      const auto of = [&name = name](const After& a) { return a.weights.at(name); };
      const Tensor bound = bound_of(name, before_.at(name), w, draws, of, name);
      compare(found->second, w, bound + kOfStep * u_ * (w - before_.at(name)).abs(), name);
      std::vector<Tensor> moved;
      for (const After& draw : draws) moved.push_back(draw.weights.at(name) - w);
      compare_along({name, before_.at(name), found->second, w, bound, std::move(moved)}, layers_,
                    u_, kRoundings * u_, is_, proof_);
      compare_master(name, is_, proof_);
    }
  }
  void compare_state(const After& exact, const std::vector<After>& draws) {
    if (exact.state.num_steps != is_.after.num_steps) {
      proof_.refute(at_step(is_, text("the optimizer counts ", is_.after.num_steps, " updates for ",
                                      exact.state.num_steps)));
    }
    const oracle::State mine = state_of(is_.after);
    for (const auto& [slot, tensors] : exact.state.slots) {
      for (const auto& [name, t] : tensors) {
        const auto held = mine.slots.find(slot);
        if (held == mine.slots.end() || !held->second.contains(name)) {
          proof_.refute(at_step(is_, text("no rank holds ", slot, " of ", name)));
          continue;
        }
        const auto of = [&slot = slot, &name = name](const After& a) {
          return a.state.slots.at(slot).at(name);
        };
        const std::string what = text(slot, " of ", name);
        compare(held->second.at(name), t, bound_of(name, at::zeros_like(t), t, draws, of, what),
                what);
      }
    }
  }

  const Plan& plan_;
  const oracle::Weights& layers_;
  const Evidence& is_;
  Proof& proof_;
  const oracle::UpdateRules& rules_;
  double u_;
  oracle::Tensors before_;  // what is updated, f64
  oracle::State state_before_;
};

}  // namespace

void check_own_update(const Plan& plan, const oracle::Weights& weights, const Evidence& evidence,
                      Proof& proof, const oracle::UpdateRules& rules) {
  OwnUpdateCheck(plan, weights, evidence, proof, rules).run();
}

}  // namespace kuafu
