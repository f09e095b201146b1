// SPDX-License-Identifier: Apache-2.0
//
// Loss and gradients of one step against the reference. u is the unit roundoff of the type that it
// was computed in. The update is in certificate_update.cpp.
//
//   gradients   run and reference sum the same terms, in orders of their own. Rounding errors are
//               independent with mean zero to a good approximation, so that the error of a sum of K
//               terms grows with sqrt(K) u, and its norm over a tensor is about the same whatever
//               the order [Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4]. That
//               error is measured, not guessed: the reference computes the step once more in the
//               run's own type, and differs by y from itself in f64 (in the first of the steps
//               that follow each other). Sums of absolute terms, a, cost u a by their last rounding
//               alone, however small y happens to be:
//
//                   |g - reference|  <=  kFactor (y + u a)
//
//               in the Euclidean norm of each layer (layers_apart), and with kElementFactor in its largest
//               element. To first order rounding is proportional to u: for a run in f64 y is that
//               of f32 times 2^-29.
//   loss        the same; its error is a single number that may be small by chance, so u stands
//               for one rounding of each of the 2 (layers + 1) halves of blocks: sqrt of that, over
//               sqrt(T), since it is a mean over T positions whose roundings are independent, and one
//               more of that mean, which is f32 at least. Of a loss below 1 the last rounding
//               is absolute: it is the logarithm of a sum of 1 and more.
//   norm        of the run's own gradients; squares are summed in f64 whatever the type.
//   routes      a router visits the experts of its largest scores. Where the run's scores p' and
//               the reference's p differ by at most d, so do the j-th largest of both, and what
//               the run chose as its j-th is at most 2 d below the j-th best of p; the coin of a
//               random second expert, 2 p2 / (p1 + p2) with p1 + p2 >= 2 / E, moves by E d. d is
//               kElementFactor (y + u), y measured as above, u that of the type of scores, at
//               least f32. The reference takes the run's decisions over.
//   cancelling  a is summed from what backward hands on, dy = p - y of a softmax say. Where p is
//               near y, its rounding u (p + y) is larger than dy, and a says nothing of it; one
//               computation in the run's type may even have none by chance, p rounded to 1. So a
//               step that is beyond its bound is judged by its own y: the largest of kDraws
//               computations in which every result is moved at random by u of itself
//               (RandomRounding), each term before it cancels too; and of kManyDraws where it is
//               beyond that: few of the draws may take an input of a ReLU across its kink, or a small
//               norm to another direction.
//   divergence  where that y is above kDiverged, rounding alone moves a gradient by a tenth of its
//               absolute terms (a layer's by a tenth of those of its whole weight: keys may have no
//               gradient but rounding, as where all tokens are equal, while values have one): nothing is compared, the proof ends with the step, not_run, and the
//               reason says so, unless something before it is wrong or the step is beyond even
//               that; also where all of it is within its bound, which then is wide. y is the
//               reference's, from the step's own weights: what a run does wrong in
//               this step cannot raise it. A step that ends a run, its loss or gradient being no
//               number, is held to the reference in the run's type from the same weights: that has
//               none either, or a loss that kDiverged or more is missing of f64's, as where squares
//               leave the range of the type and a norm divides by infinity. Where a router's scores
//               are saturated, rounding may choose experts that have a score of 0 in f64, and the
//               reference, which takes them over, has no numbers: routes are held to their bound,
//               and nothing else is compared. Where logits of z have a rounding u |z| > 88, exp of it
//               overflows: a draw that leaves the range of a type with the exponents of f32 or f64,
//               from weights with finite exact gradients, counts as y without bound, and of scores
//               as 1, the most that two of them differ by. Of the same kind is a loss or gradient
//               that is no number in the run and in the reference in the run's type.

#include "kuafu/engine/proof/certificate_step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/engine/proof/certificate_blocks.h"
#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/engine/proof/certificate_rounding.h"
#include "kuafu/oracle/random_rounding.h"

namespace kuafu {
namespace {

class GradientCheck {
 public:
  GradientCheck(const Plan& plan, const Evidence& evidence, CertificateReference& reference,
                const RoundingOf& rounding, Proof& proof)
      : plan_(plan),
        is_(evidence),
        reference_(reference),
        rounding_(rounding),
        proof_(proof),
        u_(unit_roundoff(plan.model.dtype)),
        mine_(layers_apart(evidence.gradients, reference.weights())),
        weights_(in_type(evidence.before.values, at::kDouble)),
        rounded_(plan, evidence, reference, weights_) {}

  void run() {
    if (!is_.before.disagreement.empty()) proof_.refute(at_this(is_.before.disagreement));
    if (!is_.gradients_disagreement.empty()) proof_.refute(at_this(is_.gradients_disagreement));
    check_counts();
    if (is_.is_first) check_initial();
    check_loss_and_gradients();
    if (is_.report.is_skipped) check_overflow();
    if (!is_.report.is_skipped) check_blocks(plan_, is_, weights_, reference_, proof_);
  }

  /// A run whose step had no finite loss or gradient: from the same weights the reference has none
  /// either, in the run's type; in f16, whose range is small, at kOverflow times the scale.
  void check_divergence() {
    if (!is_finite(weights_)) {
      return proof_.give_up(at_this(
          text(is_.diverged, "; weights were no numbers before it, after an update that was ",
               is_.is_after_compared ? "compared: the run has diverged" : "not compared")));
    }
    const DType type = plan_.model.dtype;
    const oracle::Gradients own = rounded_.in(type, type == DType::kF16 ? kOverflow : 1);
    const std::string both = text(is_.diverged, "; the reference ", words_of(own));
    const oracle::Gradients exact = reference_.gradients(is_.step, weights_, is_.routes.tensors);
    if (!has_diverged(own, exact)) return proof_.refute(at_this(both));
    proof_.give_up(at_this(both + ": the run has diverged or is saturated"));
  }

 private:
  std::string at_this(const std::string& what) const { return at_step(is_, what); }

  /// Every step but those that were skipped is an update. A run begins with none, with slots of
  /// zero and the plan's own loss scale. (Of a push the server counts.)
  void check_counts() {
    if (is_.worker >= 0) return;
    const LossScale& scale = is_.scale_before;
    if (is_.before.num_steps != is_.step - scale.skipped + is_.more_updates) {
      proof_.refute(at_this(text("the optimizer counts ", is_.before.num_steps, " updates after ",
                                 is_.step, " steps, ", scale.skipped, " of them skipped")));
    }
    if (!is_.is_first) return;
    for (const auto& [slot, tensors] : is_.before.slots) {
      for (const auto& [name, t] : tensors) {
        if (slot == "master" || t.count_nonzero().item<int64_t>() == 0) continue;
        proof_.refute(text(slot, " of ", name, " is not zero at the start"));
      }
    }
    const TrainPlan& train = plan_.train;
    const double fixed = plan_.has_loss_scale() ? train.loss_scale : 1;
    const LossScale own{plan_.has_dynamic_scale() ? train.loss_scale_start : fixed, 0, 0};
    if (scale == own) return;
    proof_.refute(text("the loss scale begins as ", scale.scale, " after ", scale.good_steps,
                       " good steps, ", scale.skipped, " skipped; by the plan as ", own.scale));
  }

  /// Weights are drawn in f64 and rounded.
  void check_initial() {
    for (const auto& [name, w] : reference_.initial_weights()) {
      const auto mine = weights_.find(name);
      if (mine == weights_.end()) {
        proof_.refute(text("no rank holds ", name));
        continue;
      }
      const double least = plan_.model.dtype == DType::kF16 ? 0x1p-14 : 0;  // normal number
      add_elements({mine->second, w, w.abs() + least}, kFactor * u_,
                   at_this(name + " at the start"), proof_);
    }
  }

  /// A skipped step's own gradients overflow, and so do the reference's at no more than kOverflow
  /// times the scale: parts of a sum may be larger than the whole. Where rounding alone moves them
  /// by kDiverged, it may have made them overflow too.
  void check_overflow() {
    if (is_finite(is_.gradients)) proof_.refute(at_this("skipped, and all gradients are finite"));
    const DType type = plan_.model.dtype;
    if (!is_finite(rounded_.in(type, kOverflow).gradients)) return;
    const oracle::Gradients exact = reference_.gradients(is_.step, weights_, is_.routes.tensors);
    if (name_divergence(most_moved(rounded_.of_overflow(exact)))) return;
    proof_.refute(at_this(text("skipped, and the reference does not overflow at ", kOverflow,
                               " times its loss scale")));
  }

  /// The reference in the run's type has no numbers, or none that are those of f64.
  static bool is_out_of_range(const oracle::Gradients& own, const oracle::Gradients& exact) {
    return !std::isfinite(own.loss) || !std::isfinite(oracle::norm_of(own.gradients)) ||
           !(loss_error(own.loss, exact.loss) <= kDiverged);
  }
  /// It may have some by luck: the run rounds otherwise, and where rounding at random moves anything by
  /// kDiverged it may leave the range of numbers too.
  bool has_diverged(const oracle::Gradients& own, const oracle::Gradients& exact) const {
    return is_out_of_range(own, exact) || most_moved(rounded_.at_random(exact)).by > kDiverged;
  }
  std::string words_of(const oracle::Gradients& own) const {
    return text("in ", to_string(plan_.model.dtype), " from the same weights: loss ", own.loss,
                ", gradient norm ", oracle::norm_of(own.gradients));
  }

  /// Where the reference has no numbers from weights that are some: routes alone can be held to it.
  void compare_routes_alone(const oracle::Gradients& exact) {
    check_routes(exact.regret, rounded_.at_random(exact).scores);
    if (!proof_.holds()) return;
    proof_.give_up(at_this(text("the reference in f64 has loss ", exact.loss,
                                " by the run's own routes: the run has diverged or is saturated")));
  }

  void check_loss_and_gradients() {
    const oracle::Gradients exact = reference_.gradients(is_.step, weights_, is_.routes.tensors);
    const bool has_no_numbers = !std::isfinite(exact.loss) || !is_finite(exact.gradients);
    if (has_no_numbers && !exact.regret.where.empty() && is_finite(weights_)) {
      return compare_routes_alone(exact);
    }
    const ReferenceError known = rounding_([&] { return rounded_.measured(exact); });
    const Proof before = proof_;
    compare(exact, known);
    Moved moved;
    if (before.verdict == "different" || !before.holds()) {
      // What cancels is not to be told beside what is wrong.
      if (is_within() || is_no_number()) return;
      proof_ = before;
      return compare(exact, rounded_.at_random(exact));
    }
    if (proof_.holds()) {
      ReferenceError all = known;
      all.loss *= std::min(1.0, std::abs(exact.loss));  // near 0 it is rounded by more of itself
      moved = most_moved(all);
    } else {
      if (is_no_number()) return name_overflow(before, exact);
      proof_ = before;
      const std::vector<std::string> beyond = std::move(beyond_);
      const bool is_loss_beyond = is_beyond_loss_;
      ReferenceError own = rounded_.at_random(exact);
      compare(exact, own);
      if (!proof_.holds()) {
        proof_ = before;
        own = rounded_.at_random(exact, kManyDraws);
        compare(exact, own);
      }
      if (!proof_.holds()) return;
      moved = most_moved_of(beyond, is_loss_beyond, own);
      if (moved.by <= kDiverged)
        proof_.random_rounding = std::max(proof_.random_rounding, moved.by);
    }
    if (!name_divergence(moved)) return;
    proof_.loss = before.loss;  // what is beyond comparing is no measure
    proof_.gradient = before.gradient;
    proof_.routes = before.routes;
  }

  /// Whether the last comparison found loss and gradients within their bounds.
  bool is_within() const { return beyond_.empty() && !is_beyond_loss_; }

  bool is_no_number() const {
    return !is_.report.is_skipped &&
           (!std::isfinite(is_.report.loss) || !std::isfinite(is_.report.grad_norm));
  }

  /// Only where the reference has no numbers either, or by luck alone, is it the plan that diverges.
  void name_overflow(const Proof& before, const oracle::Gradients& exact) {
    const oracle::Gradients own = rounded_.in(plan_.model.dtype);
    if (!has_diverged(own, exact)) return;
    proof_ = before;
    proof_.give_up(text("step ", is_.step + 1, ": loss ", is_.report.loss, ", gradient norm ",
                        is_.report.grad_norm, ", and of the reference ", words_of(own),
                        ": the run has diverged or is saturated"));
  }

  /// What rounding moves most, and by how much of itself or of its sums of absolute terms.
  struct Moved {
    std::string what = "loss";
    double by = 0;
  };

  static Moved most_moved(const ReferenceError& y) {
    Moved most{.by = y.loss};
    if (y.scores > most.by) most = {"scores of a router", y.scores};
    for (const auto& [name, size] : y.gradient) {
      if (size.of_weight > most.by) {
        most = {"gradient of " + weight_of_layer(name), size.of_weight};
      }
    }
    return most;
  }

  /// Of what is beyond its bound.
  static Moved most_moved_of(const std::vector<std::string>& beyond, bool is_loss_beyond,
                             const ReferenceError& y) {
    ReferenceError of_these{.loss = is_loss_beyond ? y.loss : 0};
    for (const std::string& name : beyond) {
      const auto found = y.gradient.find(name);
      if (found == y.gradient.end()) continue;
      ReferenceError::Size size = found->second;
      // Where rounding is all of a gradient it moves it by more than any share of its terms.
      if (size.alone > 0 && size.of_weight == 0)
        size.of_weight = std::numeric_limits<double>::infinity();
      of_these.gradient[name] = size;
    }
    return most_moved(of_these);
  }

  /// Ends the proof where rounding moves something by more than kDiverged.
  bool name_divergence(const Moved& moved) {
    if (moved.by <= kDiverged) return false;
    proof_.give_up(divergence(plan_, is_, moved.what, moved.by,
                              moved.what.starts_with("gradient") ? "its sums of absolute terms"
                              : moved.what == "loss"             ? "itself"
                                                                 : "1"));
    return true;
  }

  void compare(const oracle::Gradients& exact, const ReferenceError& y) {
    const double far = loss_error(is_.report.loss, exact.loss);
    const double bound = loss_bound(plan_, y.loss, exact.loss);
    is_beyond_loss_ = !(far <= bound);
    beyond_.clear();
    proof_.loss.add(far, bound, at_this("loss"));
    check_routes(exact.regret, y.scores);
    if (is_.report.is_skipped) return;  // gradients that are no numbers
    for (const auto& [name, g] : exact.gradients) {
      const auto size = y.gradient.find(name);
      compare_gradient(name, g, terms_of(name, exact),
                       size == y.gradient.end() ? ReferenceError::Size{} : size->second);
    }
    for (const auto& [name, g] : mine_) {
      // Only what stops gradients reaches it: zero here, and none for autograd.
      if (exact.gradients.contains(name) || g.count_nonzero().item<int64_t>() == 0) continue;
      proof_.refute(at_this(text(name, " has a gradient, and the reference does not use it")));
    }
    const auto terms = static_cast<double>(num_elements());
    const double norm = oracle::norm_of(is_.gradients), mine = is_.report.grad_norm;
    proof_.gradient.add(mine == norm ? 0 : std::abs(mine / norm - 1),
                        kFactor * unit_roundoff(DType::kF64) * std::sqrt(terms), at_this("norm"));
  }

  void check_routes(const oracle::Regret& regret, double rounding) {
    if (!is_.routes.disagreement.empty()) proof_.refute(at_this(is_.routes.disagreement));
    if (regret.where.empty()) return;
    const double experts = static_cast<double>(plan_.model.experts);
    const double share = plan_.model.random_second ? std::max(2.0, experts) : 2;
    const double far = kElementFactor * (rounding + std::min(u_, 0x1p-24));
    proof_.routes.add(regret.most, share * far, at_this(regret.where));
  }

  void compare_gradient(const std::string& name, const Tensor& g, const Tensor& terms,
                        const ReferenceError::Size& y) {
    const auto found = mine_.find(name);
    const Tensor mine = found == mine_.end() ? at::zeros_like(g) : found->second;
    if (mine.sizes() != g.sizes()) return proof_.refute(at_this(text(name, ": another shape")));
    const Tensor far = mine - g;
    if (length(terms) == 0) {  // then g is zero, and what the run has is rounding, or wrong
      const double bound = kFactor * y.alone + std::numeric_limits<double>::min();
      proof_.gradient.add(length(far), bound, at_this(name + ", of no terms"));
      if (!(length(far) <= bound)) beyond_.push_back(name);
      return;
    }
    const double norm = length(far) / length(terms), most = largest(far) / largest(terms);
    const double of_norm = kFactor * (y.norm + u_), of_most = kElementFactor * (y.largest + u_);
    proof_.gradient.add(norm, of_norm, at_this(name));
    proof_.gradient.add(most, of_most, at_this(name + ", an element"));
    if (!(norm <= of_norm && most <= of_most)) beyond_.push_back(name);
    if (of_norm >= 1 && of_most >= 1 && proof_.unseen.empty()) proof_.unseen = at_this(name);
  }

  int64_t num_elements() const {
    int64_t n = 0;
    for (const auto& [name, g] : is_.gradients) n += g.numel();
    return n;
  }

  const Plan& plan_;
  const Evidence& is_;
  CertificateReference& reference_;
  const RoundingOf& rounding_;
  Proof& proof_;
  double u_;
  oracle::Tensors mine_;     // the run's gradients, of each layer by itself
  oracle::Tensors weights_;  // before the step, f64
  StepRounding rounded_;
  std::vector<std::string> beyond_;  // gradients that the last comparison found so
  bool is_beyond_loss_ = false;      // the same of the loss
};

}  // namespace

void check_validation(const Plan& plan, const oracle::Tensors& weights, double loss,
                      CertificateReference& reference, Proof& proof) {
  const int64_t steps = plan.train.steps;
  const auto in = [&](DType type) {
    return reference.validation_loss(steps, in_type(weights, scalar_type(type)));
  };
  const std::optional<double> exact = in(DType::kF64);
  const std::string where = text("validation loss after step ", steps);
  if (!exact) {
    proof.unseen = text("the ", where, ", which ",
                        plan.model.has_mixtures() ? "the oracle makes of no mixture of experts"
                                                  : "no oracle of this model makes",
                        ": it is compared with nothing");
    return;
  }
  if (!std::isfinite(loss)) {  // as of a step: see is_out_of_range()
    const double own = in(plan.model.dtype).value_or(loss);
    const std::string both = text(where, ": ", loss, "; of the reference in ",
                                  to_string(plan.model.dtype), " ", own, ", in f64 ", *exact);
    if (loss_error(own, *exact) <= kDiverged) return proof.refute(both);
    return proof.give_up(both + ": the run has diverged or is saturated");
  }
  if (!std::isfinite(*exact)) {
    return proof.refute(text(where, ": ", loss, "; of the reference in f64 ", *exact));
  }
  const DType type = plan.model.dtype == DType::kF64 ? DType::kF32 : plan.model.dtype;
  const double share = unit_roundoff(plan.model.dtype) / unit_roundoff(type);
  const auto far = [&](double other) { return loss_error(other, *exact); };
  const auto bound = [&](double rounding) { return loss_bound(plan, rounding, *exact); };
  double rounding = far(in(type).value_or(*exact)) * share;
  // As of a step: what one computation in the type says too little of, draws at random say.
  const double u = unit_roundoff(plan.model.dtype);
  for (uint64_t draw = 0; draw < kManyDraws && far(loss) > bound(rounding); ++draw) {
    const oracle::RandomRounding at_random(u, draw);
    const double drawn = in(is_wide(type) ? DType::kF64 : type).value_or(*exact);
    const double moved =
        std::isfinite(drawn) ? far(drawn) : std::numeric_limits<double>::infinity();
    if (plan.model.dtype != DType::kF16 || std::isfinite(drawn))
      rounding = std::max(rounding, moved);
    if (rounding <= kDiverged) proof.random_rounding = std::max(proof.random_rounding, rounding);
  }
  if (rounding > kDiverged && far(loss) <= bound(rounding)) {
    return proof.give_up(text(where, ": rounding in ", to_string(plan.model.dtype),
                              " alone moves it by ", rounding,
                              " of itself: the run has diverged or is saturated"));
  }
  proof.loss.add(far(loss), bound(rounding), where);
}

void check_gradients(const Plan& plan, const Evidence& evidence, CertificateReference& reference,
                     const RoundingOf& rounding, Proof& proof) {
  const at::NoGradGuard no_grad;
  LayersReference of_layers(reference);
  GradientCheck(plan, evidence, of_layers, rounding, proof).run();
}

void check_step(const Plan& plan, const Evidence& evidence, CertificateReference& reference,
                const RoundingOf& rounding, Proof& proof, const oracle::UpdateRules& rules) {
  const at::NoGradGuard no_grad;
  if (!evidence.diverged.empty()) {
    LayersReference of_layers(reference);
    return GradientCheck(plan, evidence, of_layers, rounding, proof).check_divergence();
  }
  const Proof before = proof;
  check_gradients(plan, evidence, reference, rounding, proof);
  if (!evidence.after.disagreement.empty())
    proof.refute(at_step(evidence, evidence.after.disagreement));
  check_scale(plan, evidence, proof);
  if (evidence.report.is_skipped) {
    check_skipped(evidence, proof);
  } else if (std::isfinite(evidence.report.grad_norm)) {
    check_update(plan, reference.weights(), evidence, proof, rules);
  }
  if (proof.verdict != "not_run") {
    proof.steps.push_back(evidence.step);
  } else if (proof.holds()) {  // a step that is not named has no part in what is told
    for (Measure Proof::*m :
         {&Proof::loss, &Proof::gradient, &Proof::routes, &Proof::blocks, &Proof::update}) {
      proof.*m = before.*m;
    }
  }
}

}  // namespace kuafu
