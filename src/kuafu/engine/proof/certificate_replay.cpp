// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/certificate_replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/engine/plain_words.h"
#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/engine/proof/push_replay.h"
#include "kuafu/engine/whole.h"
#include "kuafu/meter/book.h"
#include "kuafu/oracle/random_rounding.h"
#include "kuafu/parallel/stale/replicas.h"

namespace kuafu {
namespace {

/// All steps of a run of a few.
PushedRun follow(Engine& engine, Communicator& world, int64_t steps) {
  engine.stale()->witness({});
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) losses.push_back(engine.step().loss);
  return pushed_run(engine, world, losses);
}

/// Rounding is measured as in certificate_step.cpp: by the same replay in f32 or the run's own half
/// precision, times the ratio of both roundoffs; where that does not explain an error (an adaptive
/// optimizer divides small gradients by their own size, and what is amplified so is not linear in
/// u), by replays that round at random.
class Judge {
 public:
  Judge(const Plan& plan, const PushReplay& told, CertificateReference& reference)
      : plan_(plan), told_(told), reference_(reference), exact_(replay_pushes(told, reference)) {
    const DType type = plan.model.dtype, coarse = type == DType::kF64 ? DType::kF32 : type;
    told_.type = scalar_type(coarse);
    rounded_.push_back(replay_pushes(told_, reference));
    share_ = unit_roundoff(type) / unit_roundoff(coarse);
  }

  /// Runs `compare`, and again with rounding at random where the proof does not hold.
  void run(Proof& proof, const std::function<void()>& compare) {
    proof.verdict = "equal";
    const Proof before = proof;
    compare();
    if (!proof.holds()) {
      proof = before;
      round_at_random();
      compare();
    }
    const int64_t sure = num_sure();
    for (int64_t t = 0; t < sure; ++t) proof.steps.push_back(t);
    proof.judge();
    if (sure >= std::min(told_.steps, kCertificateSteps)) return;
    proof.give_up(text("step ", sure + 1, ": rounding in ", to_string(plan_.model.dtype),
                       " alone moves a loss by ", rounding_of(sure),
                       " of itself: the run has diverged or is saturated"));
  }

  /// Steps before rounding alone moves a loss by kDiverged: later ones say nothing.
  int64_t num_sure() const {
    int64_t t = 0;
    while (t < told_.steps && rounding_of(t) <= kDiverged) ++t;
    return t;
  }

  /// By what rounding does to the losses of a step and those before it: it grows from step to step.
  void compare_losses(const PushedRun& run, Proof& proof) const {
    double most = 0;
    for (int64_t step = 0; step < num_sure(); ++step) {
      const auto t = static_cast<size_t>(step);
      most = std::max(most, rounding_of(step));
      for (size_t w = 0; w < exact_.losses.size(); ++w) {
        const double exact = exact_.losses[w][t];
        proof.loss.add(loss_error(run.losses[w][t], exact), loss_bound(plan_, most, exact),
                       text("loss of worker ", w, ", step ", t + 1));
      }
    }
  }

  /// Tensor by tensor: rounding of a gradient that is zero in exact arithmetic, divided by its own
  /// size, moves a bias of keys by whole steps, and nothing else.
  void compare_weights(const WholeTensors& weights, Proof& proof) const {
    for (const auto& [name, w] : exact_.weights) {
      const auto mine = weights.find(name);
      if (mine == weights.end()) {
        proof.refute(text("no server holds ", name));
        continue;
      }
      const double norm = norm_of(w), size = norm > 0 ? norm : 1;
      double most = 0;
      for (const ReplayedPushes& r : rounded_) {
        most = larger(most, norm_of(r.weights.at(name).to(at::kDouble) - w));
      }
      proof.update.add(norm_of(mine->second.to(at::kCPU, at::kDouble) - w) / size,
                       gradient_bound(plan_, most / size * share_), name);
    }
  }

 private:
  static double norm_of(const Tensor& t) { return t.norm().item<double>(); }
  /// What is no number is infinite.
  static double larger(double a, double b) {
    return std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
  }

  /// How far rounding moves the losses of a step, the largest of all workers.
  double rounding_of(int64_t step) const {
    const auto t = static_cast<size_t>(step);
    double most = 0;
    for (const ReplayedPushes& r : rounded_) {
      for (size_t w = 0; w < exact_.losses.size(); ++w) {
        most = larger(most, loss_error(r.losses[w][t], exact_.losses[w][t]));
      }
    }
    return most * share_;
  }

  void round_at_random() {
    const DType type = plan_.model.dtype;
    rounded_.clear();
    share_ = 1;
    told_.type = is_wide(type) ? at::kDouble : scalar_type(type);
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      const oracle::RandomRounding at_random(unit_roundoff(type), draw);
      rounded_.push_back(replay_pushes(told_, reference_));
    }
  }

  const Plan& plan_;
  PushReplay told_;
  CertificateReference& reference_;
  ReplayedPushes exact_;
  std::vector<ReplayedPushes> rounded_;
  double share_ = 0;
};

/// Losses of a run, and what it left on the servers where all of it is replayed; then its pushes, and
/// the validation loss with what it left. One
/// that went on from a checkpoint has these alone: nobody knows here what it began with.
void judge_run(Proof& proof, const PushReplay& told, const PushedRun& run,
               CertificateReference& reference) {
  if (told.steps == 0) {
    proof.reason = "no step was made";
    return;
  }
  bool is_whole = false;
  if (!run.is_resumed) {
    Judge judge(told.plan, told, reference);
    is_whole = told.steps == std::ssize(run.losses.at(0));
    judge.run(proof, [&] {
      judge.compare_losses(run, proof);
      if (is_whole && judge.num_sure() == told.steps) judge.compare_weights(run.values, proof);
    });
  }
  if (!run.seen.made.empty()) {
    if (run.is_resumed) proof.verdict = "equal";
    check_pushes(told.plan, told.layout, run, reference, proof, told.rules);
  } else if (run.is_resumed) {
    proof.reason = "it went on from a checkpoint, and kept none of its pushes";
  } else if (!is_whole) {
    proof.give_up(text("later steps are not replayed beyond ", kReplayedSteps,
                       ", and the run kept none of its pushes"));
  }
  if (!run.validation_loss || proof.verdict == "not_run") return;
  check_validation(told.plan, run.values, *run.validation_loss, reference, proof);
  proof.judge();
}

/// Refutes a proof whose orders break the rules. A replay would wait for what never comes.
bool is_lawful(const Plan& plan, const PushedRun& run, Proof& proof) {
  const std::string why = why_unlawful(run.orders, {.workers = plan.parallel.data.size,
                                                    .steps = std::ssize(run.losses.at(0)),
                                                    .staleness = plan.parallel.data.staleness,
                                                    .begun = run.begun,
                                                    .met = run.met});
  if (!why.empty()) proof.refute(why);
  return why.empty();
}

}  // namespace

bool is_replayed(const Plan& plan) { return plan.parallel.data.is_stale(); }

void witness_pushes(Engine& engine, int64_t memory) {
  int64_t elements = 0;
  for (const Param* p : engine.params()) elements += p->value.numel();
  engine.stale()->witness(wanted_pushes(engine.plan(), elements, memory, engine.steps_done()));
}

PushedRun pushed_run(Engine& engine, Communicator& world, const std::vector<double>& losses) {
  const BookScope unbooked(nullptr);
  const Keep keep = world.rank() == 0 ? Keep::kYes : Keep::kNo;
  const auto steps = static_cast<int64_t>(losses.size());
  PushedRun run{.begun = engine.steps_done() - steps,
                .met = engine.stale()->met(),
                .orders = engine.pushes(),
                .losses = {},
                .values = whole_parameters(engine, keep),
                .seen = engine.stale()->seen()};
  std::vector<double> mine = losses, all(losses.size() * static_cast<size_t>(world.size()));
  world.all_gather({all.data(), std::ssize(all), DType::kF64}, {mine.data(), steps, DType::kF64})
      .wait_host();
  for (auto from = all.begin(); std::ssize(run.losses) < world.size(); from += steps) {
    run.losses.emplace_back(from, from + steps);
  }
  return run;
}

void certify_replayed(const Plan& original, const Registries& registries, Communicator& world,
                      const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                      const EngineOptions& options, const PushedRun* timed, Certificate& c) {
  EngineOptions unmetered = options;
  unmetered.ledger = nullptr;
  // Native first: the twin may need more steps than the plan has.
  for (const bool is_twin : {false, true}) {
    Plan plan = original;
    if (is_twin) {
      plan.train.steps = std::max<int64_t>(plan.train.steps, kCertificateSteps);
      plan.model.dtype = DType::kF64;
    }
    const auto data = make_data(plan);
    Engine engine(plan, registries, world, *data, unmetered);
    const bool is_followed = is_twin || timed == nullptr;
    PushedRun mine;
    if (is_followed) mine = follow(engine, world, std::min(plan.train.steps, kCertificateSteps));
    if (world.rank() != 0) continue;
    const FlatBucket layout =
        whole_model(engine.params(), engine.mesh(), plan.parallel.data.servers);
    Proof& proof = is_twin ? c : c.native;
    try {
      const auto reference = make_reference(plan, registries, *data, engine.all_params());
      const PushedRun& run = is_followed ? mine : *timed;
      if (!is_lawful(plan, run, proof)) continue;
      const int64_t all = std::ssize(run.losses.at(0));
      const int64_t steps = all <= kReplayedSteps ? all : kCertificateSteps;
      const PushReplay told{plan, layout, run.orders, steps, at::kDouble, registries.updates};
      judge_run(proof, told, run, *reference);
    } catch (const std::exception& error) {
      proof.verdict = "not_run";
      proof.reason = words_of_oracle(error);
    } catch (...) {
      proof.verdict = "not_run";
      proof.reason = kNoException;
    }
  }
  c.conclude();
}

}  // namespace kuafu
