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
//               in the Euclidean norm of each tensor, and with kElementFactor in its largest
//               element. To first order rounding is proportional to u: for a run in f64 y is that
//               of f32 times 2^-29.
//   loss        the same; its error is a single number that may be small by chance, so u stands
//               for one rounding of each of the 2 (layers + 1) halves of blocks: sqrt of that, over
//               sqrt(T), since it is a mean over T positions whose roundings are independent, and one
//               more of that mean, which is f32 at least.
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
//               (RandomRounding), each term before it cancels too.
//   divergence  where that y is above kDiverged, rounding alone moves a gradient by a tenth of its
//               absolute terms: nothing is compared, the proof ends with the step, not_run, and the
//               reason says so, unless something before it is wrong or the step is beyond even
//               that. y is the reference's, from the step's own weights: what a run does wrong in
//               this step cannot raise it. A step that ends a run, its loss or gradient being no
//               number, is held to the reference in the run's type from the same weights. Where logits of z have a rounding u |z| > 88, exp of it
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
#include "kuafu/base/trace.h"
#include "kuafu/engine/proof/certificate_blocks.h"
#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/oracle/random_rounding.h"

namespace kuafu {
namespace {

constexpr double kOverflow = 16;

double length(const Tensor& t) { return t.norm().item<double>(); }
double largest(const Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); }

bool is_finite(const oracle::Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) {
    return at::isfinite(t.second).all().template item<bool>();
  });
}

/// The sums of absolute terms of a gradient.
Tensor terms_of(const std::string& name, const oracle::Gradients& exact) {
  const auto found = exact.absolute.find(name);
  return found == exact.absolute.end() ? exact.gradients.at(name).abs() : found->second;
}

/// Of draws at random: what leaves the range of numbers is moved by more than any share of itself.
/// In f16, whose range is small, it says nothing (see rounding_in).
void take_overflow(Rounding& to, const oracle::Gradients& drawn, const oracle::Gradients& exact) {
  const double beyond = std::numeric_limits<double>::infinity();
  if (std::isfinite(exact.loss) && !std::isfinite(drawn.loss)) to.loss = beyond;
  // Scores are probabilities: two of them are never further apart than 1.
  if (!is_finite(drawn.scores) && is_finite(exact.scores)) to.scores = std::max(to.scores, 1.0);
  for (const auto& [name, g] : exact.gradients) {
    const auto moved = drawn.gradients.find(name);
    if (moved == drawn.gradients.end() || !std::isfinite(length(g))) continue;
    if (!std::isfinite(length(moved->second))) {
      to.gradient[name] = {.norm = beyond, .largest = beyond};
    }
  }
}

/// Takes over what is larger in a computation that rounds, times `share`.
void take_larger(Rounding& to, const oracle::Gradients& rounded, const oracle::Gradients& exact,
                 double share) {
  to.loss = std::max(to.loss, std::abs(rounded.loss / exact.loss - 1) * share);
  for (const auto& [name, p] : exact.scores) {
    const Tensor far = rounded.scores.at(name).to(at::kDouble) - p;
    to.scores = std::max(to.scores, largest(far) * share);
  }
  for (const auto& [name, g] : exact.gradients) {
    const auto mine = rounded.gradients.find(name);
    if (mine == rounded.gradients.end()) continue;
    const Tensor far = mine->second - g, terms = terms_of(name, exact);
    // What overflows in half precision says nothing of rounding.
    if (!std::isfinite(length(far))) continue;
    Rounding::Size& size = to.gradient[name];
    if (length(terms) == 0) {  // a softmax without doubt: rounding is all there is, or nothing
      if (length(far) > 0) size.norm = size.largest = std::numeric_limits<double>::infinity();
      continue;
    }
    size.norm = std::max(size.norm, length(far) / length(terms) * share);
    size.largest = std::max(size.largest, largest(far) / largest(terms) * share);
  }
}

class GradientCheck {
 public:
  GradientCheck(const Plan& plan, const Evidence& evidence, Reference& reference,
                const RoundingOf& rounding, Proof& proof)
      : plan_(plan),
        is_(evidence),
        reference_(reference),
        rounding_(rounding),
        proof_(proof),
        u_(unit_roundoff(plan.model.dtype)),
        weights_(in_type(evidence.before.values, at::kDouble)) {}

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
      return proof_.give_up(at_this(text(is_.diverged,
                                         "; weights were no numbers before it, after "
                                         "an update that was not compared")));
    }
    const DType type = plan_.model.dtype;
    const oracle::Gradients own = rounded_in(type, type == DType::kF16 ? kOverflow : 1);
    const double norm = oracle::norm_of(own.gradients);
    const std::string both =
        text(is_.diverged, "; the reference in ", to_string(type), " from the same weights: loss ",
             own.loss, ", gradient norm ", norm);
    if (std::isfinite(own.loss) && std::isfinite(norm)) return proof_.refute(at_this(both));
    proof_.give_up(at_this(both + ": the run has diverged"));
  }

 private:
  std::string at_this(const std::string& what) const { return at_step(is_, what); }

  /// Every step but those that were skipped is an update. A run begins with none, with slots of
  /// zero and the plan's own loss scale. (Of a push the server counts.)
  void check_counts() {
    if (is_.worker >= 0) return;
    const LossScale& scale = is_.scale_before;
    if (is_.before.num_steps != is_.step - scale.skipped) {
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
    if (!is_finite(rounded_in(type, kOverflow).gradients)) return;
    const oracle::Gradients exact = reference_.gradients(is_.step, weights_, is_.routes.tensors);
    Rounding y;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      const oracle::RandomRounding at_random(u_, draw);
      const auto drawn = rounded_in(is_wide(type) ? DType::kF64 : type);
      if (!is_finite(drawn.gradients)) y.loss = std::numeric_limits<double>::infinity();
      take_larger(y, drawn, exact, 1);
    }
    std::vector<std::string> all;
    for (const auto& [name, size] : y.gradient) all.push_back(name);
    if (name_divergence(all, true, y)) return;
    proof_.refute(at_this(text("skipped, and the reference does not overflow at ", kOverflow,
                               " times its loss scale")));
  }

  oracle::Gradients rounded_in(DType type, double times = 1) const {
    return reference_.rounded_gradients(is_.step, in_type(weights_, scalar_type(type)),
                                        is_.routes.tensors, times * is_.report.loss_scale);
  }

  /// A loss scale is a power of two, which moves no rounding: where the reference overflows, and the
  /// run may not, it rounds at a smaller one.
  oracle::Gradients rounding_in(DType type) const {
    oracle::Gradients g = rounded_in(type);
    return is_finite(g.gradients) ? g : rounded_in(type, 1 / kOverflow);
  }

  /// Where the run's own type is f64, f32's rounding stands for it, times the ratio of both u.
  Rounding measured(const oracle::Gradients& exact) const {
    const DType type = plan_.model.dtype == DType::kF64 ? DType::kF32 : plan_.model.dtype;
    Rounding y;
    take_larger(y, rounding_in(type), exact, u_ / unit_roundoff(type));
    return y;
  }

  /// Rounding of this very step: at random, and of numbers with many bits measured too, whose sums
  /// of equal terms err alike.
  Rounding measured_at_random(const oracle::Gradients& exact) const {
    const DType type = plan_.model.dtype;
    Rounding y = is_wide(type) ? measured(exact) : Rounding{};
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      const oracle::RandomRounding at_random(u_, draw);
      const auto drawn = rounding_in(is_wide(type) ? DType::kF64 : type);
      take_larger(y, drawn, exact, 1);
      if (type != DType::kF16) take_overflow(y, drawn, exact);
    }
    return y;
  }

  void check_loss_and_gradients() {
    const oracle::Gradients exact = reference_.gradients(is_.step, weights_, is_.routes.tensors);
    const Rounding known = rounding_([&] { return measured(exact); });
    if (proof_.verdict == "different" || !proof_.holds()) return compare(exact, known);
    const Proof before = proof_;
    compare(exact, known);
    if (proof_.holds()) return;
    if (is_no_number()) return name_overflow(before);
    proof_ = before;
    const std::vector<std::string> beyond = std::move(beyond_);
    const Rounding own = measured_at_random(exact);
    const bool is_loss_beyond = is_beyond_loss_;
    compare(exact, own);
    if (!proof_.holds()) return;
    if (!name_divergence(beyond, is_loss_beyond, own)) return;
    proof_.loss = before.loss;  // what is beyond comparing is no measure
    proof_.gradient = before.gradient;
  }

  bool is_no_number() const {
    return !is_.report.is_skipped &&
           (!std::isfinite(is_.report.loss) || !std::isfinite(is_.report.grad_norm));
  }

  /// Only where the reference has no numbers either is it the plan that diverges.
  void name_overflow(const Proof& before) {
    const oracle::Gradients own = rounded_in(plan_.model.dtype);
    if (std::isfinite(own.loss) && std::isfinite(oracle::norm_of(own.gradients))) return;
    proof_ = before;
    proof_.give_up(text("step ", is_.step + 1, ": loss ", is_.report.loss, ", gradient norm ",
                        is_.report.grad_norm, ", and of the reference in ",
                        to_string(plan_.model.dtype), " loss ", own.loss, ", gradient norm ",
                        oracle::norm_of(own.gradients), ": the run has diverged"));
  }

  /// Ends the proof where rounding moves the loss or one of these gradients by kDiverged.
  bool name_divergence(const std::vector<std::string>& beyond, bool is_loss_beyond,
                       const Rounding& own) {
    double most = is_loss_beyond ? own.loss : 0;
    std::string what = "loss";
    for (const std::string& name : beyond) {
      const auto y = own.gradient.find(name);
      if (y == own.gradient.end() || y->second.norm <= most) continue;
      most = y->second.norm;
      what = "gradient of " + name;
    }
    if (most <= kDiverged) {
      proof_.random_rounding = std::max(proof_.random_rounding, most);
      return false;
    }
    proof_.give_up(divergence(plan_, is_, what, most,
                              what == "loss" ? "itself" : "its sums of absolute terms"));
    return true;
  }

  void compare(const oracle::Gradients& exact, const Rounding& y) {
    const double far = std::abs(is_.report.loss - exact.loss) / std::abs(exact.loss);
    is_beyond_loss_ = !(far <= loss_bound(plan_, y.loss));
    proof_.loss.add(far, loss_bound(plan_, y.loss), at_this("loss"));
    check_routes(exact.regret, y.scores);
    if (is_.report.is_skipped) return;  // gradients that are no numbers
    for (const auto& [name, g] : exact.gradients) {
      const auto size = y.gradient.find(name);
      compare_gradient(name, g, terms_of(name, exact),
                       size == y.gradient.end() ? Rounding::Size{} : size->second);
    }
    for (const auto& [name, g] : is_.gradients) {
      if (exact.gradients.contains(name)) continue;
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
                        const Rounding::Size& y) {
    const auto found = is_.gradients.find(name);
    const Tensor mine = found == is_.gradients.end() ? at::zeros_like(g) : found->second;
    if (mine.sizes() != g.sizes()) return proof_.refute(at_this(text(name, ": another shape")));
    if (length(terms) == 0 && length(mine) == 0) return;
    const Tensor far = mine - g;
    const double norm = length(far) / length(terms), most = largest(far) / largest(terms);
    const double of_norm = kFactor * (y.norm + u_), of_most = kElementFactor * (y.largest + u_);
    proof_.gradient.add(norm, of_norm, at_this(name));
    proof_.gradient.add(most, of_most, at_this(name + ", an element"));
    if (norm > of_norm || most > of_most) beyond_.push_back(name);
  }

  int64_t num_elements() const {
    int64_t n = 0;
    for (const auto& [name, g] : is_.gradients) n += g.numel();
    return n;
  }

  const Plan& plan_;
  const Evidence& is_;
  Reference& reference_;
  const RoundingOf& rounding_;
  Proof& proof_;
  double u_;
  oracle::Tensors weights_;          // before the step, f64
  std::vector<std::string> beyond_;  // gradients that the last comparison found so
  bool is_beyond_loss_ = false;      // the same of the loss
};

}  // namespace

namespace {

/// Writes down a step's ops while it is there, but for what evidence is made of.
class StepOps {
 public:
  explicit StepOps(std::set<std::string>* unbooked) : unbooked_(unbooked) {
    if (unbooked_ != nullptr) watch_.emplace(recorder_);
  }
  ~StepOps() {
    if (unbooked_ == nullptr) return;
    for (const std::string& op : unknown_ops(recorder_.trace())) unbooked_->insert(op);
  }
  StepOps(const StepOps&) = delete;
  StepOps& operator=(const StepOps&) = delete;

 private:
  std::set<std::string>* const unbooked_;
  TraceRecorder recorder_{TraceRecorder::Clock::kNone};
  std::optional<OpTraceScope> watch_;
};

}  // namespace

Evidence observe(Engine& engine, Communicator& world, WholeState before, Look look,
                 std::set<std::string>* unbooked) {
  Evidence e;
  e.step = engine.steps_done();
  e.is_first = e.step == 0;
  e.scale_before = engine.loss_scaler().state();
  e.before = std::move(before);
  engine.keep_routes();
  if (look == Look::kBlocksToo) engine.keep_flows();
  try {
    const StepOps watched(unbooked);
    e.report = engine.step([&](std::span<const ParamShard> ready) {
      const TraceScope untraced(nullptr);
      WholeGradients all = whole_gradients(ready, 1 / e.scale_before.scale, engine, world);
      e.gradients = std::move(all.tensors);
      e.gradients_disagreement = std::move(all.disagreement);
    });
  } catch (const Diverged& why) {  // on all ranks, before the update
    e.diverged = why.what();
    e.report.loss_scale = e.scale_before.scale;
    e.after = e.before;
    e.routes = whole_routes(engine, world);
    return e;
  }
  e.after = whole_state(engine, world);
  e.scale_after = engine.loss_scaler().state();
  e.routes = whole_routes(engine, world);
  if (look == Look::kBlocksToo) e.flows = whole_flows(engine, world);
  return e;
}

void check_validation(const Plan& plan, const oracle::Tensors& weights, double loss,
                      Reference& reference, Proof& proof) {
  const int64_t steps = plan.train.steps;
  const auto in = [&](DType type) {
    return reference.validation_loss(steps, in_type(weights, scalar_type(type)));
  };
  const std::optional<double> exact = in(DType::kF64);
  if (!exact) return;
  const std::string where = text("validation loss after step ", steps);
  if (!std::isfinite(loss)) {
    const double own = in(plan.model.dtype).value_or(loss);
    if (std::isfinite(own)) proof.refute(text(where, ": ", loss, "; of the reference ", own));
    return;
  }
  if (!std::isfinite(*exact)) return;
  const DType type = plan.model.dtype == DType::kF64 ? DType::kF32 : plan.model.dtype;
  const double share = unit_roundoff(plan.model.dtype) / unit_roundoff(type);
  const double rounding = std::abs(in(type).value_or(*exact) / *exact - 1) * share;
  proof.loss.add(std::abs(loss - *exact) / std::abs(*exact), loss_bound(plan, rounding), where);
}

void check_gradients(const Plan& plan, const Evidence& evidence, Reference& reference,
                     const RoundingOf& rounding, Proof& proof) {
  const at::NoGradGuard no_grad;
  GradientCheck(plan, evidence, reference, rounding, proof).run();
}

void check_step(const Plan& plan, const Evidence& evidence, Reference& reference,
                const RoundingOf& rounding, Proof& proof, const oracle::UpdateRules& rules) {
  const at::NoGradGuard no_grad;
  if (!evidence.diverged.empty()) {
    return GradientCheck(plan, evidence, reference, rounding, proof).check_divergence();
  }
  check_gradients(plan, evidence, reference, rounding, proof);
  if (!evidence.after.disagreement.empty())
    proof.refute(at_step(evidence, evidence.after.disagreement));
  check_scale(plan, evidence, proof);
  if (evidence.report.is_skipped) {
    check_skipped(evidence, proof);
  } else if (std::isfinite(evidence.report.grad_norm)) {
    check_update(plan, reference.weights(), evidence, proof, rules);
  }
  if (proof.verdict != "not_run") proof.steps.push_back(evidence.step);
}

}  // namespace kuafu
