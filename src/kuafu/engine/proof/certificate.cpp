// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/certificate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "kuafu/base/plugin_error.h"
#include "kuafu/comm/gather.h"
#include "kuafu/engine/plain_words.h"
#include "kuafu/engine/proof/certificate_replay.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "kuafu/engine/proof/certificate_text.h"
#include "kuafu/engine/proof/miniature.h"
#include "kuafu/engine/proof/witness.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

/// The same bits: NaN is equal to none, not to itself.
bool is_same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// Parameters, gradients, AdamW state and the largest activations of one copy, roughly: decides
/// between "full" and "scaled" only.
int64_t estimated_bytes(const Plan& plan) {
  const ModelPlan& m = plan.model;
  const int64_t mixtures = m.has_mixtures() ? m.layers / m.moe_every : 0;
  const int64_t mlp = (m.mlp == "swiglu" ? 3 : 2) * m.hidden * m.ffn_width();
  const int64_t weights = m.layers * (4 * m.hidden * m.hidden + mlp) +
                          (m.vocab + m.sequence) * m.hidden +
                          mixtures * (m.experts + m.shared_experts) * mlp;
  const int64_t tokens = plan.train.batch * m.sequence;
  const int64_t activations =
      tokens * (m.layers * (12 * m.hidden + 2 * m.ffn_width()) + 3 * m.vocab);
  return 8 * (6 * weights + activations);
}

/// Everything that certifying takes, on one rank.
class Certification {
 public:
  using MakeData = std::function<std::unique_ptr<Dataset>(const Plan&)>;
  Certification(const Registries& registries, Communicator& world, const MakeData& make_data,
                const EngineOptions& options, bool is_resumed)
      : registries_(registries),
        world_(world),
        make_data_(make_data),
        options_(options),
        is_resumed_(is_resumed) {
    options_.ledger = nullptr;
  }

  /// The f64 twin.
  void run_twin(Plan plan, Certificate& c) {
    plan.train.steps = std::max<int64_t>(plan.train.steps, kCertificateSteps);
    if (plan.has_dynamic_scale()) plan.train.loss_scale = TrainPlan::kDynamicScale;
    plan.model.dtype = DType::kF64;
    const auto data = make_data_(plan);
    prove(plan, *data, nullptr, kCertificateSteps, c, nullptr);
    c.judge();
  }

  /// The plan itself, as it was timed.
  void run_native(const Plan& plan, const Witness* witness, Proof& proof) {
    const auto data = make_data_(plan);
    if (witness == nullptr) {
      const int64_t steps = std::min(plan.train.steps, kCertificateSteps);
      if (steps > 0) prove(plan, *data, nullptr, steps, proof, nullptr);
    } else {
      for (const Snapshot& from : witness->snapshots()) {
        const bool is_first = from.step == witness->first();
        const int64_t left = plan.train.steps - from.step;
        const int64_t steps = is_first ? std::min(left, kCertificateSteps) : 1;
        prove(plan, *data, &from, steps, proof, witness);
      }
    }
    if (proof.steps.empty() && proof.reason.empty()) proof.reason = "no step was made";
    proof.judge();
  }

 private:
  /// Makes steps of a plan, from a snapshot of it or from the start, and checks each.
  void prove(const Plan& plan, const Dataset& data, const Snapshot* from, int64_t steps,
             Proof& proof, const Witness* witness) {
    Engine engine(plan, registries_, world_, data, options_);
    if (from != nullptr) go_back_to(*from, engine);
    if (proof.verdict == "not_run" && proof.reason.empty()) proof.verdict = "equal";
    std::unique_ptr<Reference> reference;
    if (world_.rank() == 0) {
      guarded(proof,
              [&] { reference = make_reference(plan, registries_, data, engine.all_params()); });
    }
    Rounding rounding;
    WholeState state = whole_state(engine, world_);
    // Later steps follow no other that was compared: they are looked at closer.
    const bool is_later = witness != nullptr && from->step != witness->first();
    const bool has_blocks = registries_.oracles.contains(plan.model.kind);
    const Look look = is_later && has_blocks ? Look::kBlocksToo : Look::kWhole;
    for (int64_t step = 0; step < steps; ++step) {
      Evidence e = observe(engine, world_, std::move(state), look);
      if (from != nullptr && is_resumed_) e.is_first = false;
      if (reference != nullptr) {
        guarded(proof,
                [&] { check_step(plan, e, *reference, rounding, proof, registries_.updates); });
      }
      if (witness != nullptr) compare_with_run(engine, e, *witness, proof);
      state = std::move(e.after);
    }
  }

  /// An error of the reference itself is no rank's fault: it is the reason why nothing is proven.
  static void guarded(Proof& proof, const std::function<void()>& part) {
    if (proof.verdict == "not_run") return;
    try {
      part();
    } catch (const oracle::WrongRoutes& error) {
      proof.refute(error.what());
    } catch (const PluginError&) {  // what is certified cannot be trusted either
      throw;
    } catch (const std::exception& error) {
      proof.give_up(plain_words(error));
    } catch (...) {
      proof.give_up(kNoException);
    }
  }

  /// Loss, norm and state after the timed run's step, to the bit.
  void compare_with_run(Engine& engine, const Evidence& e, const Witness& witness, Proof& proof) {
    const StepReport& timed = witness.reports().at(static_cast<size_t>(e.step - witness.first()));
    std::string why;
    if (!is_same(timed.loss, e.report.loss) || !is_same(timed.grad_norm, e.report.grad_norm)) {
      why = text("step ", e.step + 1, " of the run had loss ", timed.loss, " and gradient norm ",
                 timed.grad_norm, "; made again from the same state: ", e.report.loss, " and ",
                 e.report.grad_norm);
    }
    const std::optional<uint64_t> after = witness.hash_after(e.step);
    if (why.empty() && after && *after != hash_of(engine)) {
      why = text("step ", e.step + 1, " of the run left rank ", world_.rank(),
                 " with other bits than the same step made again");
    }
    for (const std::string& words : gather_texts(world_, why)) {
      if (!words.empty()) proof.refute(words);
    }
  }

  const Registries& registries_;
  Communicator& world_;
  const MakeData& make_data_;
  EngineOptions options_;
  bool is_resumed_;
};

/// Errors that every rank meets alike (checks of plans before any message, a loss that is no
/// number): what could not be certified, and why. Others end the run, as they do everywhere.
void run_part(Proof& proof, const std::function<void()>& part) {
  try {
    part();
  } catch (const ConfigError& e) {
    proof.give_up(e.what());
  }
}

}  // namespace

void Measure::add(double e, double b, const std::string& name) {
  if (std::isnan(e)) e = std::numeric_limits<double>::infinity();
  const bool is_nearer = error == 0 ? e > 0 : e / b > error / bound;
  if (bound != 0 && !is_nearer) return;
  error = e;
  bound = b;
  where = name;
}

void Proof::refute(const std::string& why) {
  if (verdict != "different") reason = why;
  verdict = "different";
}

void Proof::give_up(const std::string& why) {
  judge();
  if (verdict == "different") return;
  verdict = "not_run";
  reason = why;
}

void Proof::judge() {
  if (holds() || verdict == "different") return;
  verdict = "different";
  reason.clear();
}

const Measure& Proof::worst() const {
  const Measure* most = &gradient;
  for (const Measure* m : {&loss, &routes, &blocks, &update}) {
    const auto share = [](const Measure& x) { return x.bound > 0 ? x.error / x.bound : 0; };
    if (share(*m) > share(*most)) most = m;
  }
  return *most;
}

double Proof::ratio() const {
  const Measure& m = worst();
  return m.error > 0 ? m.bound / m.error : 0;
}

std::string Proof::describe() const {
  const auto one = [](const Measure& m) {
    return text(m.error, " of ", m.bound, " (", m.where, ")");
  };
  return text(verdict, reason.empty() ? "" : ": ", reason, "; loss ", one(loss), ", gradient ",
              one(gradient), routes.where.empty() ? "" : ", routes " + one(routes),
              blocks.where.empty() ? "" : ", blocks " + one(blocks), ", update ", one(update));
}

void Certificate::conclude() {
  const bool is_weaker = verdict == "equal" ? native.verdict != "equal"
                                            : verdict == "not_run" && native.verdict == "different";
  if (!is_weaker) return;
  verdict = native.verdict;
  reason = native.reason;
}

bool is_certified_whole(const Plan& plan, int64_t memory_limit) {
  return 2 * estimated_bytes(plan) <= memory_limit;
}

Certificate certify(const Plan& original, const Registries& registries, Communicator& world,
                    const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                    const EngineOptions& options, int64_t memory_limit, const TimedRun& given) {
  const BookScope unbooked(nullptr);
  Certificate c;
  TimedRun timed = given;
  Plan plan = original;
  if (!is_certified_whole(plan, memory_limit)) {
    const Miniature small = miniature(plan, registries);
    c.level = c.native.level = "scaled";
    if (!small.plan) {
      c.reason = c.native.reason = small.reason;
      return c;
    }
    plan = *small.plan;
    timed = {};
  }
  if (!registries.oracles.contains(plan.model.kind)) c.reference = "engine";
  if (is_replayed(plan)) {
    certify_replayed(plan, registries, world, make_data, options, timed.pushed, c);
    return shared(c, world);
  }
  Certification certification(registries, world, make_data, options, timed.is_resumed);
  run_part(c.native, [&] { certification.run_native(plan, timed.witness, c.native); });
  if (plan.model.dtype == DType::kF64 && plan.train.steps >= kCertificateSteps) {
    static_cast<Proof&>(c) = c.native;
  } else {
    run_part(c, [&] { certification.run_twin(plan, c); });
  }
  c.conclude();
  return shared(c, world);
}

}  // namespace kuafu
