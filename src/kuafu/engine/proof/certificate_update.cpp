// SPDX-License-Identifier: Apache-2.0
//
// The update of a step, made again by the oracle in f64 from the step's own gradients, norm and
// state. u is the unit roundoff of the type that is updated: f32 for half precision, whose masters
// are.
//
//   elements    at most as many of each on its way as the formula is registered with
//               (oracle::Rounding), each u of what is added up: |w| and |dw| of absolute values.
//   Adam        decays through its gradient, G = c g + d w, whose terms s = |c g| + d |w| may cancel:
//               with b the bound, m / (sqrt(v) + eps) moves by b s times its derivative in G,
//               at most ((1 - b1) + |m| sqrt(1 - b2) / (sqrt(v) + eps)) / (sqrt(v) + eps), for v
//               the least of G +- b s, bias corrections beside their moments.
//   LARS, LAMB  the ratio of a layer has the relative error of its norms. Elements x with errors
//               b t, t their terms, have a norm within b |t| / |x| of itself: |g| of LARS (t = g),
//               |r| of LAMB, r = direction + d w, whose terms may cancel. Sums of K
//               squares, in f64 in any order, differ by less than 2 sqrt(K) 2^-53 of themselves.
//               Each element of the step has that error besides its own. LARS by |g + d w|: the terms
//               of those elements are |c g| + d |w|.
//               Clipped elements (clip_elements) have at most the error of those that are not.
//   rate        with the bias corrected by the rate, k = sqrt(1 - b2^t) / (1 - b1^t), k m / (sqrt(v) +
//               eps) is m^ / (sqrt(v^) + eps / sqrt(1 - b2^t)): the same with another epsilon. LAMB
//               adds d w to m / (sqrt(v) + eps), and k is with its rate.
//   matrices    U = c g + mu B of B = mu b + c g, both with 6 roundings at most of |c g| + mu (mu |b| +
//               |c g|); a matrix's step has the error that oracle/orthogonal.cpp derives, in its
//               Frobenius norm, and each element no more than that. All else has the rate of AdamW.
//   underflow   a result below the least normal number of the updated type is rounded by up to half
//               its least subnormal number e, whatever its size (sums of such are exact). The factor c
//               of a gradient S g, S the loss scale, and their product: d = e (1 + S |g|) / 2.
//               m, two products more:       dm = (1 - beta1) d + 2 e
//               v, of the squares:          dv = (1 - beta2) d (2 |c g| + d) + 2 e
//               so the root, r = sqrt(v^) + eps, is r' = sqrt((v - dv)^) + eps at least (concave: it
//               rises by less), and lr m^ / r is off by
//                   lr |m|^ (1 / r' - 1 / r) + (lr dm^ + e) / r' + (2 + lr) e,
//               x^ being corrected for its bias: product with the rate, or k lr, quotient, decay. SGD's
//               u has du = d + 2 e, its weight lr du + e; LARS has its rate inside, or its ratio
//               alone, or neither, LAMB its ratio in lr.
//               All of it is far below u of anything normal.
//   layers      of weights that are no matrix of Muon's: what all of a layer's elements lack together
//               is told by certificate_projections.cpp, and how much of it.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <ATen/ATen.h>

#include "kuafu/engine/proof/certificate_compare.h"

namespace kuafu {
namespace {

using Decay = oracle::Rounding::Decay;
using Ratio = oracle::Rounding::Ratio;

constexpr double kOfMomentum = 6;

class UpdateCheck {
 public:
  UpdateCheck(const Plan& plan, const oracle::Weights& layers, const Evidence& evidence,
              const oracle::UpdateRules& rules, Proof& proof)
      : plan_(plan),
        rule_(plan.optimizer),
        layers_(layers),
        is_(evidence),
        rules_(rules),
        rounding_(rules.find(plan.optimizer.kind).rounding),
        proof_(proof),
        norm_(evidence.report.grad_norm),
        u_(std::min(unit_roundoff(plan.model.dtype), 0x1p-24)),
        bound_(static_cast<double>(rounding_.per_element) * u_),
        lr_(oracle::learning_rate(rule_, evidence.step - evidence.scale_before.skipped,
                                  plan.schedule_steps(), plan.train.batch)),
        before_(updated(evidence.before)) {}

  void run() {
    oracle::Tensors weights = before_;
    oracle::State& state = after_ = state_of(is_.before);
    oracle::update(rule_, lr_, norm_, is_.gradients, weights, state, layers_, &trust_, rules_);
    // The same with all terms positive and from no weight: the sums of absolute terms.
    oracle::State absolute = state_of(is_.before);
    for (auto& [slot, tensors] : absolute.slots) {
      for (auto& [name, t] : tensors) t = t.abs();
    }
    const oracle::State start = absolute;
    oracle::Tensors moved = movement(absolute_terms(), absolute);
    if (rounding_.has_root && rounding_.decay == Decay::kInGradient) {
      moved = adam_movement(start, absolute);
    }
    if (has_ratio(Ratio::kOfDirection)) {
      for (auto& [name, by] : moved) by = lamb_movement(name, by);
    } else if (has_ratio(Ratio::kOfGradient) && !has_ratio_in_velocity()) {
      for (auto& [name, by] : moved) by = by * lars_ratio(name);
    }
    const Underflow lost = underflow(state);
    compare_weights(weights, moved, lost);
    compare_state(state, absolute, lost.state);
  }

 private:
  double factor() const {
    const double clip = rule_.clip;
    return clip > 0 && norm_ > clip ? clip / norm_ : 1;
  }
  /// What underflow may add to the errors of weights and of every slot.
  struct Underflow {
    oracle::Tensors weights;
    std::map<std::string, oracle::Tensors> state;
  };
  /// The least subnormal number.
  double least() const { return plan_.model.dtype == DType::kF64 ? 0x1p-1074 : 0x1p-149; }
  /// d: what it takes from a gradient that is clipped or scaled.
  Tensor underflow_of(const Tensor& g) const {
    const bool is_multiplied = factor() < 1 || is_.report.loss_scale != 1 || rule_.dampening > 0;
    return (is_multiplied ? least() / 2 : 0) * (1 + is_.report.loss_scale * g.abs());
  }
  Underflow underflow(const oracle::State& state) const {
    const double e = least();
    const auto steps = static_cast<double>(state.num_steps);
    const bool is_corrected = rule_.bias_correction;  // of LAMB alone it can be false
    const double first = is_corrected ? 1 - std::pow(rule_.beta1, steps) : 1;
    const double second = is_corrected ? 1 - std::pow(rule_.beta2, steps) : 1;
    Underflow lost;
    for (const auto& [name, g] : is_.gradients) {
      const Tensor d = underflow_of(g);
      const auto ratio = trust_.ratio.find(name);
      const Tensor lr = ratio != trust_.ratio.end() ? lr_ * ratio->second
                                                    : at::scalar_tensor(rate_of(name), d.options());
      if (has_velocity(state, name)) {
        const bool has_rate = has_ratio(Ratio::kOfGradient) && rule_.rate_in == "velocity";
        const Tensor one = at::ones({}, d.options());
        const Tensor inside = has_rate ? lr : has_ratio_in_velocity() ? ratio->second : one;
        const Tensor outside = has_rate ? one : has_ratio_in_velocity() ? lr_ * one : lr;
        const Tensor own = inside * d + 2 * e;
        lost.state["velocity"][name] = own;
        lost.weights[name] = outside * own + e;
        continue;
      }
      const Tensor dm = (1 - rule_.beta1) * d + 2 * e;
      const Tensor dv = (1 - rule_.beta2) * d * (2 * factor() * g.abs() + d) + 2 * e;
      const Tensor& v = state.slots.at("v").at(name);
      const Tensor root = (v / second).sqrt() + epsilon(steps);
      const Tensor least = ((v - dv).clamp_min(0) / second).sqrt() + epsilon(steps);
      const Tensor turned = state.slots.at("m").at(name).abs() * (root - least) / root;
      lost.state["m"][name] = dm;
      lost.state["v"][name] = dv;
      // Without an epsilon a v below dv leaves no bound: its root may be lost as a whole.
      lost.weights[name] = (lr / first * (turned + dm) + e) / least +
                           (2 + lr * std::max(1.0, rate_factor(steps))) * e;
    }
    return lost;
  }
  bool is_corrected_in_rate() const {
    return rule_.correction_in == "rate" && rule_.bias_correction;
  }
  /// k, 1 where moments are corrected or nothing is.
  double rate_factor(double t) const {
    if (!is_corrected_in_rate()) return 1;
    return std::sqrt(1 - std::pow(rule_.beta2, t)) / (1 - std::pow(rule_.beta1, t));
  }
  /// Beside the root of the corrected v.
  double epsilon(double t) const {
    if (!is_corrected_in_rate()) return rule_.epsilon;
    return rule_.epsilon / std::sqrt(1 - std::pow(rule_.beta2, t));
  }
  bool has_ratio(Ratio ratio) const { return rounding_.ratio == ratio; }
  static bool has_velocity(const oracle::State& state, const std::string& name) {
    const auto found = state.slots.find("velocity");
    return found != state.slots.end() && found->second.contains(name);
  }
  bool is_matrix(const oracle::State& state, const std::string& name) const {
    return rounding_.of_matrices && has_velocity(state, name);
  }
  /// Beside matrices, all else follows their schedule by its own rate.
  double rate_of(const std::string& name) const {
    const bool is_other = rounding_.of_matrices && !is_matrix(after_, name);
    return is_other ? rule_.adam_lr * (lr_ / rule_.lr) : lr_;
  }

  oracle::Weight layers_of(const std::string& name) const {
    const auto found = layers_.find(name);
    if (found != layers_.end()) return found->second;
    return {.shape = before_.at(name).sizes().vec()};
  }
  bool is_excluded(const std::string& name) const {
    return oracle::is_excluded(rule_, layers_of(name), rules_);
  }
  bool is_scaled(const std::string& name) const {
    return oracle::is_scaled(rule_, layers_of(name), rules_);
  }
  double decay(const std::string& name) const { return is_excluded(name) ? 0 : rule_.weight_decay; }
  /// Of decay that is part of the gradient.
  double coupled_decay(const std::string& name) const {
    return rounding_.decay == Decay::kInGradient ? decay(name) : 0;
  }

  /// Clipping is of gradients, not of decay. LARS: with the ratios of layers that are in its velocity.
  oracle::Tensors absolute_terms() const {
    oracle::Tensors sizes;
    for (const auto& [name, g] : is_.gradients) {
      const Tensor clipped = factor() * g.abs();
      sizes[name] = clipped + coupled_decay(name) * before_.at(name).abs();
      if (has_ratio_in_velocity()) sizes[name] = sizes[name] * lars_ratio(name);
    }
    return sizes;
  }
  bool has_ratio_in_velocity() const {
    return has_ratio(Ratio::kOfGradient) && rule_.rate_in != "step_with_ratio";
  }
  /// What LARS takes a norm of, beside the weights; `is_absolute`: of its terms.
  Tensor measured_of(const std::string& name, bool is_absolute = false) const {
    const double inside = rule_.denominator == "norm_of_sum" ? decay(name) : 0;
    const Tensor &w = before_.at(name), g = factor() * is_.gradients.at(name);
    return is_absolute ? g.abs() + inside * w.abs() : g + inside * w;
  }
  /// What underflow may take from that norm, over it, by layer.
  Tensor lost_share(const std::string& name) const {
    const oracle::Weight of = layers_of(name);
    const Tensor lost = oracle::norms_of_layers(underflow_of(is_.gradients.at(name)), of);
    return lost / oracle::norms_of_layers(measured_of(name), of);
  }
  /// Whether it leaves the ratio of a layer open: then nothing is known of the layer as a whole.
  bool is_ratio_lost(const std::string& name) const {
    if (!has_ratio(Ratio::kOfGradient) || !is_scaled(name)) return false;
    return !(lost_share(name).max().item<double>() < u_);
  }
  /// Of LARS, and what it may be wrong by: what underflow takes from the norm, the ratio has; a norm
  /// that it may take as a whole may leave none, which makes the ratio 1.
  Tensor lars_ratio(const std::string& name) const {
    const Tensor& ratio = trust_.ratio.at(name);
    if (!is_scaled(name)) return ratio;
    const Tensor share = lost_share(name);
    const Tensor far = at::where(share < 0.5, 2 * share, 1 + 1 / ratio).nan_to_num(0);
    return ratio *
           (1 + norm_error(name, measured_of(name), measured_of(name, true)) + far / bound_);
  }
  /// How far gradients of these sizes move a weight, LAMB's before its ratio and rate; state goes on
  /// by a step.
  oracle::Tensors movement(const oracle::Tensors& sizes, oracle::State& state) const {
    OptimizerPlan rule = rule_;
    rule.weight_decay = rule.clip = rule.clip_elements = 0;
    oracle::Tensors moved;
    for (const auto& [name, g] : sizes) moved[name] = at::zeros_like(g);
    oracle::update(rule, has_ratio(Ratio::kOfDirection) ? 1 : lr_, norm_, sizes, moved, state,
                   layers_, nullptr, rules_);
    for (auto& [name, by] : moved) by = by.abs();
    return moved;
  }
  /// The relative error of a layer's norm whose elements x have terms t, at each element, over the
  /// bound; with the sums of two norms.
  Tensor norm_error(const std::string& name, const Tensor& x, const Tensor& t) const {
    const oracle::Weight of = layers_of(name);
    const Tensor norm = oracle::norms_of_layers(x, of), terms = oracle::norms_of_layers(t, of);
    const double stacked = of.is_stacked ? static_cast<double>(x.size(0)) : 1;
    const double count = static_cast<double>(x.numel()) / (stacked * static_cast<double>(of.fused));
    const Tensor far = at::where(norm.gt(0), terms / norm, at::zeros_like(norm));
    return far + 2 * std::sqrt(count) * 0x1p-53 / bound_;
  }
  /// ratio k rate (terms of r + |r| times the error of |r|). `moved`: k times the terms of Adam's.
  Tensor lamb_movement(const std::string& name, const Tensor& moved) const {
    const Tensor &ratio = trust_.ratio.at(name), &r = trust_.direction.at(name);
    const double k = rate_factor(static_cast<double>(is_.after.num_steps));
    Tensor terms = moved / k + decay(name) * before_.at(name).abs();
    if (is_scaled(name)) terms = terms + r.abs() * norm_error(name, r, terms);
    return lr_ * k * ratio * terms;
  }
  /// By the derivative above. `absolute`: state after the step, its first moment of absolute terms.
  oracle::Tensors adam_movement(const oracle::State& start, const oracle::State& absolute) const {
    const oracle::Tensors terms = absolute_terms();
    oracle::Tensors least_gradients;
    for (const auto& [name, g] : is_.gradients) {
      const Tensor whole = factor() * g + decay(name) * before_.at(name);
      least_gradients[name] = (whole.abs() - bound_ * terms.at(name)).clamp_min(0);
    }
    oracle::State least = start;
    movement(least_gradients, least);
    const auto t = static_cast<double>(least.num_steps);
    const double first = 1 - std::pow(rule_.beta1, t), second = 1 - std::pow(rule_.beta2, t);
    oracle::Tensors moved;
    for (const auto& [name, s] : terms) {
      const Tensor m = absolute.slots.at("m").at(name) / first;
      const Tensor root = (least.slots.at("v").at(name) / second).sqrt() + epsilon(t);
      const Tensor own = 1 + s * std::sqrt((1 - rule_.beta2) / second) / root;
      moved[name] = lr_ * m / root * own;
    }
    return moved;
  }
  void compare_weights(const oracle::Tensors& exact, const oracle::Tensors& moved,
                       const Underflow& all_lost) {
    const oracle::Tensors& lost = all_lost.weights;
    const oracle::Tensors mine = updated(is_.after);
    for (const auto& [name, w] : exact) {
      const auto found = mine.find(name);
      if (found == mine.end()) {
        proof_.refute(at_step(is_, text("no rank holds ", name)));
        continue;
      }
      // AdamW's decay is of the weight itself: (1 - lr decay) w.
      const double terms =
          rounding_.decay == Decay::kOfWeight ? 1 + rate_of(name) * decay(name) : 1;
      const bool has_gradient = is_.gradients.contains(name);  // else it stays as it is
      const bool is_iterated = has_gradient && is_matrix(after_, name);
      Tensor scale = before_.at(name).abs() * terms;
      if (is_iterated) {
        scale = scale + (w - before_.at(name)).abs() + lr_ * decay(name) * before_.at(name).abs();
      } else if (const auto by = moved.find(name); by != moved.end()) {
        scale = scale + by->second;
      }
      if (const auto by = lost.find(name); by != lost.end()) scale = scale + by->second / bound_;
      if (is_iterated) scale = compare_matrix(name, found->second - w, scale, all_lost);
      add_elements({found->second, w, scale}, bound_, at_step(is_, name), proof_);
      if (!is_iterated && !(has_gradient && is_ratio_lost(name))) {
        const auto by = lost.find(name);
        compare_along({name,
                       before_.at(name),
                       found->second,
                       w,
                       bound_ * scale,
                       {},
                       by == lost.end() ? Tensor() : by->second},
                      layers_, u_, bound_, is_, proof_);
      }
      compare_master(name, is_, proof_);
    }
  }

  /// The norm of `far`, of which each element may have `scale` of the bound and the step of its matrix
  /// its own error; what both leave to an element.
  Tensor compare_matrix(const std::string& name, const Tensor& far, const Tensor& scale,
                        const Underflow& lost) {
    const double mu = rule_.momentum, unit = plan_.model.dtype == DType::kF64 ? 2 * u_ : u_;
    const oracle::Weight of = layers_of(name);
    const Tensor g = factor() * is_.gradients.at(name);
    Tensor u = after_.slots.at("velocity").at(name), terms = g.abs();
    const auto started = is_.before.slots.find("velocity");
    if (started != is_.before.slots.end() && started->second.contains(name)) {
      terms = terms + mu * started->second.at(name).to(at::kDouble).abs();
    }
    if (rule_.nesterov) u = g + mu * u, terms = g.abs() + mu * terms;
    const Tensor spread = kOfMomentum * unit * terms + lost.state.at("velocity").at(name);
    const Tensor step = lr_ / bound_ * rounding_.of_matrices(rule_, u, spread, of, unit);
    add_elements({oracle::norms_of_layers(far, of), at::zeros_like(far),
                  oracle::norms_of_layers(scale, of) + step},
                 bound_, at_step(is_, text("the norm of ", name)), proof_);
    return scale + step;
  }

  void compare_state(const oracle::State& exact, const oracle::State& absolute,
                     const std::map<std::string, oracle::Tensors>& lost) {
    if (exact.num_steps != is_.after.num_steps) {
      proof_.refute(at_step(is_, text("the optimizer counts ", is_.after.num_steps, " updates for ",
                                      exact.num_steps)));
    }
    for (const auto& [slot, tensors] : exact.slots) {
      if (slot == "master") continue;
      for (const auto& [name, t] : tensors) {
        const auto mine = is_.after.slots.find(slot);
        if (mine == is_.after.slots.end() || !mine->second.contains(name)) {
          proof_.refute(at_step(is_, text("no rank holds ", slot, " of ", name)));
          continue;
        }
        Tensor scale = absolute.slots.at(slot).at(name);
        if (const auto of = lost.find(slot); of != lost.end() && of->second.contains(name)) {
          scale = scale + of->second.at(name) / bound_;
        }
        add_elements({mine->second.at(name).to(at::kDouble), t, scale}, bound_,
                     at_step(is_, text(slot, " of ", name)), proof_);
      }
    }
  }

  const Plan& plan_;
  const OptimizerPlan& rule_;
  const oracle::Weights& layers_;
  const Evidence& is_;
  const oracle::UpdateRules& rules_;
  const oracle::Rounding& rounding_;
  Proof& proof_;
  double norm_;
  double u_, bound_;
  double lr_;
  oracle::Tensors before_;  // what is updated, f64
  oracle::State after_;     // what it should be
  oracle::Trust trust_;
};

}  // namespace

oracle::Tensors updated(const WholeState& state) {
  oracle::Tensors values = in_type(state.values, at::kDouble);
  const auto masters = state.slots.find("master");
  if (masters == state.slots.end()) return values;
  for (const auto& [name, master] : masters->second) values[name] = master.to(at::kDouble);
  return values;
}

oracle::State state_of(const WholeState& whole) {
  oracle::State state{.num_steps = whole.num_steps, .slots = {}};
  for (const auto& [slot, tensors] : whole.slots) {
    if (slot != "master") state.slots[slot] = in_type(tensors, at::kDouble);
  }
  return state;
}

void compare_master(const std::string& name, const Evidence& evidence, Proof& proof) {
  const auto masters = evidence.after.slots.find("master");
  if (masters == evidence.after.slots.end()) return;
  const auto master = masters->second.find(name);
  if (master == masters->second.end()) return;
  const Tensor& value = evidence.after.values.at(name);
  if (at::equal(master->second.to(value.scalar_type()), value)) return;
  proof.refute(at_step(evidence, text(name, " is not its master copy, rounded")));
}

void check_update(const Plan& plan, const oracle::Weights& weights, const Evidence& evidence,
                  Proof& proof, const oracle::UpdateRules& rules) {
  const bool is_derived = rules.find(plan.optimizer.kind).rounding.is_derived();
  if (!is_derived) return check_own_update(plan, weights, evidence, proof, rules);
  UpdateCheck(plan, weights, evidence, rules, proof).run();
}

void check_skipped(const Evidence& evidence, Proof& proof) {
  if (evidence.after.num_steps != evidence.before.num_steps) {
    proof.refute(at_step(evidence, "a skipped step counts as an update"));
  }
  const auto compare = [&](const std::string& of, const WholeTensors& a, const WholeTensors& b) {
    for (const auto& [name, t] : a) {
      const auto found = b.find(name);
      if (found != b.end() && at::equal(t, found->second)) continue;
      proof.refute(at_step(evidence, text("a skipped step changed ", of, name)));
    }
  };
  compare("", evidence.before.values, evidence.after.values);
  const auto slots_of = [](const WholeState& state, const std::string& slot) {
    const auto found = state.slots.find(slot);
    return found == state.slots.end() ? WholeTensors() : found->second;
  };
  for (const WholeState* one : {&evidence.before, &evidence.after}) {
    const WholeState& other = one == &evidence.before ? evidence.after : evidence.before;
    for (const auto& [slot, tensors] : one->slots)
      compare(slot + " of ", tensors, slots_of(other, slot));
  }
}

void check_scale(const Plan& plan, const Evidence& evidence, Proof& proof) {
  const bool is_skipped = evidence.report.is_skipped;
  LossScale want = evidence.scale_before;
  if (is_skipped) ++want.skipped;
  if (plan.has_dynamic_scale()) {
    if (is_skipped || ++want.good_steps >= plan.train.loss_scale_interval) {
      want.scale *= is_skipped ? 0.5 : 2;
      want.good_steps = 0;
    }
  }
  const LossScale& is = evidence.scale_after;
  if (is != want) {
    proof.refute(
        at_step(evidence, text("the loss scale goes on as ", is.scale, " after ", is.good_steps,
                               " good steps, ", is.skipped, " skipped in all; by its rule as ",
                               want.scale, " after ", want.good_steps, ", ", want.skipped)));
  }
  if (evidence.report.loss_scale == evidence.scale_before.scale) return;
  proof.refute(at_step(evidence, text("the loss was scaled by ", evidence.report.loss_scale,
                                      ", not by ", evidence.scale_before.scale)));
}

}  // namespace kuafu
