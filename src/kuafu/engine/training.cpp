// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/engine/divergence.h"
#include "kuafu/engine/measuring/measured_peak.h"
#include "kuafu/engine/proof/certificate_replay.h"
#include "kuafu/engine/saving/given_weights.h"
#include "kuafu/parallel/stale/replicas.h"

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What happens in the scope is booked nowhere.
class Unbooked {
 public:
  explicit Unbooked(Training::Meters meters)
      : ledger_(meters.ledger), was_counting_(ledger_.is_counting()), book_(meters.book) {
    ledger_.set_counting(false);
  }
  ~Unbooked() { ledger_.set_counting(was_counting_); }
  Unbooked(const Unbooked&) = delete;
  Unbooked& operator=(const Unbooked&) = delete;

 private:
  Ledger& ledger_;
  bool was_counting_;
  UnmeasuredScope book_;
};

}  // namespace

Training::Training(const Plan& plan, const Registries& registries, const RunOptions& options,
                   Communicator& world, Engine& engine, Meters meters, RankResult& result)
    : plan_(plan),
      options_(options),
      world_(world),
      engine_(engine),
      meters_(meters),
      result_(result) {
  const SaveOptions& saving = options.checkpoint;
  if (!saving.folder.empty()) saver_.emplace(engine, world, saving);
  if (saving.resumes || !saving.from.empty()) {
    result.resumed_from = saver_->resume();
    result.resume_changes = saver_->changes();
    result.validation = saver_->validation();
    if (plan.train.telemetry) result.telemetry = saver_->telemetry();
  }
  if (options.init != nullptr && !result.resumed_from) {
    begin_with(*options.init, engine, world);
    result.resumed_from = 0;
  }
  if (result.resumed_from) meters.book.restart();  // what loading took is no step's
  // What an earlier run of the folder recorded stays, also where this one records none.
  if (saver_) saver_->add_telemetry(plan.train.telemetry ? result.telemetry : saver_->telemetry());
  if (plan.train.telemetry && result.telemetry.is_empty())
    result.telemetry.layers = engine.layer_names();
  if (options.requests != nullptr) agreement_.emplace(world, *options.requests);
  if (options.is_certified) begin_proof(registries);
  if (options.measures_peak) result.peak_flops_per_s = measured_peak(plan, options.device, world);
}

void Training::begin_proof(const Registries& registries) {
  const int64_t memory = options_.certificate_memory;
  const bool is_whole = is_certified_whole(plan_, memory);
  if (!engine_.is_in_step()) {
    if (is_whole) witness_pushes(engine_, memory);  // after loading: from there on
    return;
  }
  witness_.emplace(plan_, engine_.steps_done(),
                   is_whole ? Witness::Depth::kFull : Witness::Depth::kReportsOnly);
  if (is_whole || options_.device.is_meta()) return;
  if (!LastStepCheck::is_possible(plan_, registries, memory)) return;
  last_step_.emplace(plan_, registries, options_.make_data(plan_), world_);
}

std::optional<Proof> Training::last_step() const {
  if (!last_step_ || last_step_->proof().steps.empty()) return {};
  return last_step_->proof();
}

void Training::run() {
  try {
    const LoadMeter meter;
    catch_up();
    while (engine_.steps_done() < plan_.train.steps && result_.is_whole()) step();
    engine_.settle();
    result_.load = meter.window();
    // What begins from another folder's checkpoint and has nothing left is in this one from here on.
    const bool is_moved =
        result_.resumed_from && result_.losses.empty() && saver_ && !saver_->goes_on();
    if (saver_ && (is_moved || result_.stopped != Stop::kNone)) save_last();
  } catch (const SaveFailed& e) {  // on all ranks
    if (!agreement_) throw;
    result_.unsaved = e.what();
  }
  if (!saver_) return;
  result_.saves = saver_->num_saves();
  result_.saved_bytes = saver_->saved_bytes();
}

void Training::catch_up() {
  const int64_t every = plan_.train.validate_every, steps = engine_.steps_done();
  const bool is_last = steps == plan_.train.steps && !options_.goes_on_later;
  const bool is_due = every > 0 && steps > 0 && (steps % every == 0 || is_last);
  const bool goes_on = result_.resumed_from && saver_ && saver_->goes_on();
  if (!goes_on || !is_due || result_.validation.has(steps)) return;
  asked_ = {};
  if (const std::optional<double> loss = validation_loss()) {
    result_.validation.add(steps, *loss);
    tell_made();
    if (options_.on_caught_up && world_.rank() == 0) options_.on_caught_up(steps, *loss);
  }
  result_.stopped = asked_.stop;
}

void Training::finish() {
  const int64_t steps = engine_.steps_done();
  if (plan_.train.validation_batches > 0) {
    const ValidationSeries& series = result_.validation;
    asked_ = {};
    const std::optional<double> loss = series.has(steps) ? series.losses.back() : validation_loss();
    result_.stopped = asked_.stop;
    if (!loss) return;
    result_.validation_loss = *loss;
    if (!std::isfinite(result_.validation_loss)) return diverge_at_the_end();
  }
  // Without a loss after it the last update is taken for sound.
  if (saver_) saver_->found_sound(steps);
}

void Training::diverge_at_the_end() {
  const std::string why = text("the validation loss is ", std::abs(result_.validation_loss),
                               " after step ", engine_.steps_done(), kDivergenceAdvice);
  if (options_.requests == nullptr) throw Diverged(why);
  diverge(engine_.steps_done(), why);
}

void Training::step() {
  StepDone done;
  asked_ = {};
  done.step = engine_.steps_done();
  if (!make_step(done)) return;
  const bool is_met = meets(done.step + 1);
  if (is_met && !agree_on_losses()) return;
  if (saver_ && is_met) saver_->found_sound(done.step);  // its loss is of the state before it
  tell_made();
  validate(done);
  if (done.validation_loss) tell_made();
  if (options_.on_step) show(done);
  const bool is_last = done.step + 1 == plan_.train.steps;
  if (is_met && agreement_ && !is_last && asked_.stop == Stop::kNone) ask();
  if (saver_) result_.save_seconds.push_back(0);
  if (saver_ && is_met) save();
  result_.stopped = asked_.stop;
}

bool Training::meets(int64_t steps) {
  const bool is_first = agreement_ && !result_.resumed_from && steps == 1;  // a last good state
  const bool is_due = steps == plan_.train.steps || (saver_ && (is_first || saver_->is_due(steps)));
  const bool wants = agreement_ && (agreement_->is_asked() || first_unsound_ ||
                                    (saver_ && saver_->wants_rolling()));
  return engine_.meets(wants, is_due);
}

bool Training::agree_on_losses() {
  if (engine_.is_in_step() || !agreement_) return true;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t first = first_unsound_.value_or(kNone);
  world_.all_reduce({&first, 1, DType::kI64}, ReduceOp::kMin).wait_host();
  if (first == kNone) return true;
  const int64_t left = engine_.steps_done() - first;
  const auto sound = result_.losses.size() - static_cast<size_t>(left);
  result_.losses.resize(sound);
  result_.step_seconds.resize(sound);
  if (saver_) result_.save_seconds.resize(sound);
  while (std::ssize(before_steps_) > left) before_steps_.pop_front();
  diverge(first,
          text("a worker's loss is no finite number at step ", first + 1, kDivergenceAdvice));
  return false;
}

void Training::ask() {
  const Agreement::Asked now = agreement_->ask(saver_ && saver_->wants_rolling());
  asked_.stop = now.stop;
  asked_.is_save = asked_.is_save || now.is_save;
  asked_.is_rolling = asked_.is_rolling || now.is_rolling;
}

bool Training::make_step(StepDone& done) {
  const int64_t left = plan_.train.steps - done.step;
  if (witness_) witness_->before_step(engine_);
  if (options_.recorder != nullptr && left <= 2) {
    if (!traced_) traced_.emplace(*options_.recorder);
    options_.recorder->clear();
  }
  if (agreement_) before_steps_.push_back(counts_now());
  // A worker is so far ahead at most of one that diverges, and of the step after which all meet. One
  // that is further ahead than is worth to remember counts the steps between them too.
  constexpr int64_t kRemembered = 1000;
  const int64_t ahead = std::min(plan_.parallel.data.staleness, kRemembered) + 2;
  const int64_t most = engine_.is_in_step() ? 1 : ahead;
  while (std::ssize(before_steps_) > most) before_steps_.pop_front();
  const double start = seconds_now();
  try {
    done.report = last_step_ && left == 1 ? last_step_->make_step(engine_) : engine_.step();
  } catch (const Diverged& e) {  // on all ranks: a global loss
    if (!agreement_) throw;
    if (witness_) witness_->at_divergence(engine_);
    diverge(done.step, e.what());
    return false;
  }
  if (!engine_.is_in_step() && !std::isfinite(done.report.loss)) {
    if (!agreement_) check_finite(done.report.loss, done.step);
    if (!first_unsound_) first_unsound_ = done.step;
  }
  done.seconds = seconds_now() - start - done.report.seconds_apart;
  if (left == 1) traced_.reset();
  result_.step_seconds.push_back(done.seconds);
  result_.losses.push_back(done.report.loss);
  if (plan_.has_loss_scale()) result_.loss_scales.push_back(done.report.loss_scale);
  if (const LayerFigures* f = engine_.layer_figures()) result_.telemetry.add(done.step, *f);
  if (done.report.is_skipped) result_.skipped.push_back(done.step);
  if (witness_) witness_->after_step(engine_, done.report);
  return true;
}

Training::Counts Training::counts_now() const {
  const RankBook& book = meters_.book;
  return {book.flops(), book.flops_recomputed(), book.flops_optimizer(), meters_.ledger};
}

Training::Counts Training::counts() const {
  return result_.diverged.empty() ? counts_now() : before_steps_.front();
}

void Training::tell_made() {
  if (!options_.on_made) return;
  if (engine_.is_in_step()) return options_.on_made(result_);
  for (const double mean : engine_.stale()->take_means()) {
    told_.step_seconds.push_back(result_.step_seconds[told_.losses.size()]);
    told_.losses.push_back(mean);
  }
  if (world_.rank() != 0) return;
  told_.resumed_from = result_.resumed_from;
  told_.resume_changes = result_.resume_changes;
  options_.on_made(told_);
}

void Training::diverge(int64_t step, const std::string& why) {
  result_.diverged = why;
  if (saver_) result_.last_good = saver_->leave_unsound(step);
}

void Training::validate(StepDone& done) {
  const int64_t every = plan_.train.validate_every, steps = engine_.steps_done();
  const bool is_last = steps == plan_.train.steps && !options_.goes_on_later;
  // The series that an earlier run of the folder began ends with the last step's too.
  const bool goes_on = plan_.train.validation_batches > 0 && !result_.validation.steps.empty();
  const bool is_due = (every > 0 && steps % every == 0) || (is_last && (every > 0 || goes_on));
  if (!is_due) return;
  done.validation_loss = validation_loss();
  if (!done.validation_loss) return;
  result_.validation.add(steps, *done.validation_loss);
  if (saver_ && std::isfinite(*done.validation_loss)) saver_->found_sound(steps);
}

std::optional<double> Training::validation_loss() {
  traced_.reset();  // a step's events alone
  const Unbooked unbooked(meters_);
  const ValidationWatch watch([this] {
    if (agreement_) ask();
    return asked_.stop != Stop::kNone;
  });
  try {
    return engine_.validate();
  } catch (const ValidationEnded&) {
    return {};
  }
}

void Training::save() {
  const double start = seconds_now();
  saver_->after_step(result_.validation);
  if (asked_.is_save) {
    saver_->save_now(result_.validation);
    saver_->tell(text("saved after step ", engine_.steps_done(), ", as a signal asked"));
  }
  if (asked_.is_rolling) saver_->roll(result_.validation);
  result_.save_seconds.back() = seconds_now() - start;
}

void Training::save_last() {
  if (result_.save_seconds.empty()) result_.save_seconds.push_back(0);  // before the first step
  const double start = seconds_now();
  saver_->save_now(result_.validation);
  result_.save_seconds.back() += seconds_now() - start;
}

void Training::show(StepDone& done) {
  if (flops_ == 0 && agreement_) {
    flops_ = meters_.book.flops() + meters_.book.flops_recomputed();
    if (!engine_.is_in_step()) {
      flops_ *= world_.size();  // replicas of one rank do the same
    } else if (world_.size() > 1) {
      world_.all_reduce({&flops_, 1, DType::kI64}, ReduceOp::kSum).wait_host();
    }
  }
  done.flops = flops_;
  done.peak_flops_per_s = result_.peak_flops_per_s;
  if (!result_.telemetry.is_empty()) done.telemetry = &result_.telemetry;
  if (world_.rank() == 0) options_.on_step(done);
}

}  // namespace kuafu
