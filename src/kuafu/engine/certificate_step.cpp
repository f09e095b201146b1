// SPDX-License-Identifier: Apache-2.0
//
// One step against the reference. u is the unit roundoff of the type that it was computed in.
//
//   gradients   run and reference sum the same terms, in orders of their own. Rounding errors are
//               independent with mean zero to a good approximation, so that the error of a sum of K
//               terms grows with sqrt(K) u, and its norm over a tensor is about the same whatever
//               the order [Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4]. That
//               error is measured, not guessed: the reference computes the step once more in the
//               run's own type, and differs by y from itself in f64 (in the first of the steps
//               that follow each other, and in any that is beyond what that one allows). Sums of absolute terms, a,
//               cost u a by their last rounding alone, however small y happens to be:
//
//                   |g - reference|  <=  kFactor (y + u a)
//
//               in the Euclidean norm of each tensor, and with kElementFactor in its largest
//               element. To first order rounding is proportional to u: for a run in f64 y is that
//               of f32 times 2^-29.
//   loss        the same; its error is a single number that may be small by chance, so u stands
//               for one rounding of each of the 2 (layers + 1) halves of blocks: sqrt of that.
//   routes      a router visits the experts of its largest scores. Where the run's scores p' and
//               the reference's p differ by at most d, so do the j-th largest of both, and what
//               the run chose as its j-th is at most 2 d below the j-th best of p; the coin of a
//               random second expert, 2 p2 / (p1 + p2) with p1 + p2 >= 2 / E, moves by E d. d is
//               kElementFactor (y + u), y measured as above, u that of the type of scores, at
//               least f32. The reference takes the run's decisions over.
//   update      at most kUpdateRoundings of each element on its way (AdamW: clipping, two constants
//               and a sum for m, one more product for v, bias corrections, root, sum, quotient,
//               rate, decay), each u of what is added up: |w| and |dw| of absolute values.

#include "kuafu/engine/certificate_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// Of two samples of one distribution of errors, summed in two orders: running sums and pairwise
/// ones of K = 4096 terms differ by sqrt(K / log2 K) = 18, blocked ones by far less, and a norm
/// averages over a tensor. The largest element is a single sum: the 18, and nearly twice by chance.
constexpr double kFactor = 8, kElementFactor = 32;
constexpr double kUpdateRoundings = 16;

oracle::Tensors in_type(const oracle::Tensors& tensors, at::ScalarType type) {
  oracle::Tensors out;
  for (const auto& [name, t] : tensors) out[name] = t.to(type);
  return out;
}

bool is_finite(const oracle::Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) {
    return at::isfinite(t.second).all().template item<bool>();
  });
}

double length(const Tensor& t) { return t.norm().item<double>(); }
double largest(const Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); }

class Check {
 public:
  Check(const Plan& plan, const Evidence& evidence, Reference& reference, Rounding& rounding,
        Proof& proof)
      : plan_(plan),
        is_(evidence),
        reference_(reference),
        rounding_(rounding),
        proof_(proof),
        u_(unit_roundoff(plan.model.dtype)),
        weights_(in_type(evidence.before.values, at::kDouble)) {}

  void run() {
    if (is_.step == 0) check_initial();
    check_loss_and_gradients();
    if (is_.report.is_skipped) {
      check_skipped();
    } else {
      check_update();
    }
    if (!is_.after.disagreement.empty()) proof_.refute(at_step(is_.after.disagreement));
    proof_.steps.push_back(is_.step);
  }

 private:
  std::string at_step(const std::string& what) const { return text(what, ", step ", is_.step + 1); }

  /// Weights are drawn in f64 and rounded.
  void check_initial() {
    if (!is_.before.disagreement.empty()) proof_.refute(at_step(is_.before.disagreement));
    for (const auto& [name, w] : reference_.initial_weights()) {
      const auto mine = weights_.find(name);
      if (mine == weights_.end()) {
        proof_.refute(text("no rank holds ", name));
        continue;
      }
      const double least = plan_.model.dtype == DType::kF16 ? 0x1p-14 : 0;  // normal number
      add_elements(proof_.update, mine->second, w, w.abs() + least, kFactor * u_,
                   name + " at the start");
    }
  }

  /// Where the run's own type is f64, f32's rounding stands for it, times the ratio of both u.
  void measure_rounding(const oracle::Gradients& exact) {
    const DType type = plan_.model.dtype == DType::kF64 ? DType::kF32 : plan_.model.dtype;
    const double share = u_ / unit_roundoff(type);
    const oracle::Gradients rounded = reference_.rounded_gradients(
        is_.step, in_type(weights_, scalar_type(type)), is_.routes.tensors, is_.report.loss_scale);
    rounding_.loss = std::abs(rounded.loss / exact.loss - 1) * share;
    for (const auto& [name, p] : exact.scores) {
      const Tensor far = rounded.scores.at(name).to(at::kDouble) - p;
      rounding_.scores = std::max(rounding_.scores, largest(far) * share);
    }
    for (const auto& [name, g] : exact.gradients) {
      const auto mine = rounded.gradients.find(name);
      if (mine == rounded.gradients.end()) continue;
      const Tensor far = mine->second - g, terms = terms_of(name, exact);
      // What overflows in half precision says nothing of rounding.
      if (length(terms) == 0 || !std::isfinite(length(far))) continue;
      rounding_.gradient[name] = {.norm = length(far) / length(terms) * share,
                                  .largest = largest(far) / largest(terms) * share};
    }
  }

  /// The sums of absolute terms of a gradient.
  static Tensor terms_of(const std::string& name, const oracle::Gradients& exact) {
    const auto found = exact.absolute.find(name);
    return found == exact.absolute.end() ? exact.gradients.at(name).abs() : found->second;
  }

  void check_loss_and_gradients() {
    const oracle::Gradients exact = reference_.gradients(is_.step, weights_, is_.routes.tensors);
    const bool is_measured = rounding_.loss < 0;
    if (is_measured) measure_rounding(exact);
    const Proof before = proof_;
    compare_gradients(exact);
    const bool holds = proof_.loss.holds() && proof_.gradient.holds() && proof_.routes.holds();
    if (is_measured || holds) return;
    proof_ = before;  // steps may be conditioned otherwise: this one's own rounding decides
    measure_rounding(exact);
    compare_gradients(exact);
  }

  void compare_gradients(const oracle::Gradients& exact) {
    proof_.loss.add(std::abs(is_.report.loss - exact.loss) / std::abs(exact.loss),
                    loss_bound(plan_, rounding_.loss), at_step("loss"));
    check_routes(exact.regret);
    if (is_.report.is_skipped) return;  // gradients that are no numbers
    for (const auto& [name, g] : exact.gradients) check_gradient(name, g, terms_of(name, exact));
    for (const auto& [name, g] : is_.gradients) {
      if (exact.gradients.contains(name)) continue;
      proof_.refute(at_step(text(name, " has a gradient, and the reference does not use it")));
    }
    const auto terms = static_cast<double>(num_elements());
    proof_.gradient.add(std::abs(is_.report.grad_norm / oracle::norm_of(is_.gradients) - 1),
                        kFactor * std::min(u_, 0x1p-24) * std::sqrt(terms), at_step("norm"));
  }

  void check_routes(const oracle::Regret& regret) {
    if (!is_.routes.disagreement.empty()) proof_.refute(at_step(is_.routes.disagreement));
    if (regret.where.empty()) return;
    const double experts = static_cast<double>(plan_.model.experts);
    const double share = plan_.model.random_second ? std::max(2.0, experts) : 2;
    const double far = kElementFactor * (rounding_.scores + std::min(u_, 0x1p-24));
    proof_.routes.add(regret.most, share * far, at_step(regret.where));
  }

  void check_gradient(const std::string& name, const Tensor& g, const Tensor& terms) {
    const auto found = is_.gradients.find(name);
    const Tensor mine = found == is_.gradients.end() ? at::zeros_like(g) : found->second;
    if (mine.sizes() != g.sizes()) return proof_.refute(at_step(text(name, ": another shape")));
    if (length(terms) == 0 && length(mine) == 0) return;
    const Tensor far = mine - g;
    const Rounding::Size y = rounding_.gradient[name];
    proof_.gradient.add(length(far) / length(terms), kFactor * (y.norm + u_), at_step(name));
    proof_.gradient.add(largest(far) / largest(terms), kElementFactor * (y.largest + u_),
                        at_step(name + ", an element"));
  }

  /// |mine - exact| <= bound * scale, element by element.
  void add_elements(Measure& measure, const Tensor& mine, const Tensor& exact, const Tensor& scale,
                    double bound, const std::string& where) const {
    if (mine.sizes() != exact.sizes()) return proof_.refute(at_step(where + ": another shape"));
    // Below the smallest normal number rounding is as large as at it.
    const Tensor far = (mine - exact).abs() / (scale + 0x1p-126);
    measure.add(far.numel() == 0 ? 0 : far.max().item<double>(), bound, where);
  }

  int64_t num_elements() const {
    int64_t n = 0;
    for (const auto& [name, g] : is_.gradients) n += g.numel();
    return n;
  }

  /// The run's own gradients overflow, and so do the reference's at no more than kOverflow times the
  /// scale: parts of a sum may be larger than the whole.
  void check_skipped() {
    constexpr double kOverflow = 16;
    if (is_finite(is_.gradients)) proof_.refute(at_step("skipped, and all gradients are finite"));
    const DType type = plan_.model.dtype;
    const oracle::Gradients far =
        reference_.rounded_gradients(is_.step, in_type(weights_, scalar_type(type)),
                                     is_.routes.tensors, kOverflow * is_.report.loss_scale);
    if (is_finite(far.gradients)) {
      proof_.refute(at_step(text("skipped, and the reference does not overflow at ", kOverflow,
                                 " times its loss scale")));
    }
    const bool is_same = is_.after.num_steps == is_.before.num_steps;
    if (!is_same) proof_.refute(at_step("a skipped step counts as an update"));
    for (const auto& [name, w] : is_.before.values) {
      if (!at::equal(w, is_.after.values.at(name))) {
        proof_.refute(at_step(text("a skipped step changed ", name)));
      }
    }
  }

  /// What is updated: the values, or the f32 masters of half-precision ones.
  static oracle::Tensors updated(const WholeState& state) {
    oracle::Tensors values = in_type(state.values, at::kDouble);
    const auto masters = state.slots.find("master");
    if (masters == state.slots.end()) return values;
    for (const auto& [name, master] : masters->second) values[name] = master.to(at::kDouble);
    return values;
  }

  static oracle::State state_of(const WholeState& whole) {
    oracle::State state{.num_steps = whole.num_steps, .slots = {}};
    for (const auto& [slot, tensors] : whole.slots) {
      if (slot != "master") state.slots[slot] = in_type(tensors, at::kDouble);
    }
    return state;
  }

  void check_update() {
    const double lr = oracle::learning_rate(plan_.optimizer, is_.step - is_.updates_skipped,
                                            plan_.schedule_steps());
    oracle::Tensors weights = updated(is_.before);
    oracle::State state = state_of(is_.before);
    // The same with all terms positive and from no weight: the sums of absolute terms.
    oracle::Tensors moved, sizes;
    oracle::State absolute = state;
    for (auto& [slot, tensors] : absolute.slots) {
      for (auto& [name, t] : tensors) t = t.abs();
    }
    const double norm = is_.report.grad_norm, clip = plan_.optimizer.clip;
    const double factor = clip > 0 && norm > clip ? clip / norm : 1;  // of gradients, not of decay
    OptimizerPlan bare = plan_.optimizer;
    bare.weight_decay = bare.clip = 0;
    for (const auto& [name, g] : is_.gradients) {
      sizes[name] = factor * g.abs() + decay_inside() * weights.at(name).abs();
      moved[name] = at::zeros_like(g);
    }
    oracle::Tensors before = weights;
    oracle::update(plan_.optimizer, lr, norm, is_.gradients, weights, state);
    oracle::update(bare, lr, norm, sizes, moved, absolute);
    const oracle::Tensors mine = updated(is_.after);
    for (const auto& [name, w] : weights) compare_update(name, w, before, moved, mine);
    compare_state(state, absolute);
  }

  /// SGD's decay is part of its gradient.
  double decay_inside() const {
    return plan_.optimizer.kind == "sgd" ? plan_.optimizer.weight_decay : 0;
  }
  /// bf16 gradients are clipped where they are, f16 ones inside the update (see loss_scaler.h).
  bool is_rounded_by_clipping() const {
    const bool is_half = plan_.model.dtype == DType::kBF16 || plan_.model.dtype == DType::kF16;
    const double clip = plan_.optimizer.clip;
    return is_half && !plan_.has_loss_scale() && clip > 0 && is_.report.grad_norm > clip;
  }
  /// Of the type that is updated, in units of its terms; factor and product are rounded where they
  /// are clipped, and v squares both.
  double update_bound() const {
    if (is_rounded_by_clipping()) return 4 * u_;
    return kUpdateRoundings * std::min(u_, 0x1p-24);
  }

  void compare_update(const std::string& name, const Tensor& exact, const oracle::Tensors& before,
                      const oracle::Tensors& moved, const oracle::Tensors& mine) {
    const auto found = mine.find(name);
    if (found == mine.end()) return proof_.refute(at_step(text("no rank holds ", name)));
    const double fine = kUpdateRoundings * std::min(u_, 0x1p-24), bound = update_bound();
    Tensor scale = before.at(name).abs() * (fine / bound);
    if (const auto by = moved.find(name); by != moved.end()) scale = scale + by->second.abs();
    add_elements(proof_.update, found->second, exact, scale, bound, at_step(name));
    const auto& masters = is_.after.slots.find("master");
    if (masters == is_.after.slots.end()) return;
    const auto master = masters->second.find(name);
    const Tensor& value = is_.after.values.at(name);
    if (master == masters->second.end()) return;
    if (!at::equal(master->second.to(value.scalar_type()), value)) {
      proof_.refute(at_step(text(name, " is not its master copy, rounded")));
    }
  }

  void compare_state(const oracle::State& exact, const oracle::State& absolute) {
    if (exact.num_steps != is_.after.num_steps) {
      proof_.refute(at_step(
          text("the optimizer counts ", is_.after.num_steps, " updates for ", exact.num_steps)));
    }
    for (const auto& [slot, tensors] : exact.slots) {
      if (slot == "master") continue;
      for (const auto& [name, t] : tensors) {
        const auto mine = is_.after.slots.find(slot);
        if (mine == is_.after.slots.end() || !mine->second.contains(name)) {
          proof_.refute(at_step(text("no rank holds ", slot, " of ", name)));
          continue;
        }
        add_elements(proof_.update, mine->second.at(name).to(at::kDouble), t,
                     absolute.slots.at(slot).at(name), update_bound(),
                     at_step(text(slot, " of ", name)));
      }
    }
  }

  const Plan& plan_;
  const Evidence& is_;
  Reference& reference_;
  Rounding& rounding_;
  Proof& proof_;
  double u_;
  oracle::Tensors weights_;  // before the step, f64
};

}  // namespace

double unit_roundoff(DType type) {
  switch (type) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

double loss_bound(const Plan& plan, double rounding) {
  const double halves = 2.0 * static_cast<double>(plan.model.layers + 1);
  return kFactor * (rounding + unit_roundoff(plan.model.dtype) * std::sqrt(halves));
}

Evidence observe(Engine& engine, Communicator& world, WholeState before) {
  Evidence e;
  e.step = engine.steps_done();
  e.updates_skipped = engine.loss_scaler().state().skipped;
  e.before = std::move(before);
  const double scale = engine.loss_scaler().scale();
  engine.keep_routes();
  e.report = engine.step([&](std::span<const ParamShard> ready) {
    e.gradients = whole_gradients(ready, 1 / scale, engine, world);
  });
  e.after = whole_state(engine, world);
  e.routes = whole_routes(engine, world);
  return e;
}

void check_step(const Plan& plan, const Evidence& evidence, Reference& reference,
                Rounding& rounding, Proof& proof) {
  const at::NoGradGuard no_grad;
  Check(plan, evidence, reference, rounding, proof).run();
}

}  // namespace kuafu
