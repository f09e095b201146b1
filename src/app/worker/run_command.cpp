// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>

#include <ATen/Parallel.h>

#include "app/worker/crash_report.h"
#include "app/worker/document.h"
#include "app/worker/early_exit.h"
#include "app/worker/made_steps.h"
#include "app/worker/options.h"
#include "app/worker/plugin_place.h"
#include "app/worker/rank_worlds.h"
#include "app/worker/run_end.h"
#include "app/worker/run_files.h"
#include "app/worker/run_options.h"
#include "app/worker/same_on_ranks.h"
#include "app/worker/step_log.h"
#include "app/worker/stop_signals.h"
#include "app/worker/watchdog.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/comm/gather.h"
#include "kuafu/device/device.h"
#include "kuafu/engine/proof/check_queue.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/kept_results.h"
#include "kuafu/record/load.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/run_summary.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/trace_file.h"
#include "kuafu/simulate/model_parts.h"
#include "kuafu/simulate/simulate.h"
#include "kuafu/states/check_disk.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Tells every ten seconds how many ranks are simulated, and how long the others take at that rate.
std::function<void(int)> progress_of_simulation(const Plan& plan) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  return [began, told = began, ranks = num_ranks(plan)](int done) mutable {
    const auto now = Clock::now();
    if (now - told < std::chrono::seconds(10)) return;
    told = now;
    const double s = std::chrono::duration<double>(now - began).count();
    std::cerr << "kuafu: " << done << " of " << ranks << " ranks simulated, "
              << print_seconds(s / done * static_cast<double>(ranks - done)) << " left"
              << std::endl;
  };
}

class Run {
 public:
  explicit Run(const WorkerOptions& options) : options_(options), files_(options) {}

  int operator()() {
    const auto on_stop_after = [this] {
      if (launched_rank().value_or(LaunchedRank{}).rank == 0) end_certifying();
    };
    const Clocks clocks(options_, requests_, on_stop_after, [this] {
      const ConfigError why(too_long());
      const int code = is_prepared_ ? end("timeout", why, kTimeout)
                                    : end_with(no_head(options_.world), "timeout", why, kTimeout);
      std::cout.flush();
      _exit(code);
    });
    try {
      placed([this] { prepare(); });
      is_prepared_ = true;
    } catch (const Refused& e) {
      let_rank_0_report();
      return end("refused", e, kRefused);
    } catch (const std::exception& e) {
      let_rank_0_report();
      const RunEnd failure = failure_of(e);
      const bool is_usage =
          failure.code != kOutOfMemory && dynamic_cast<const Unwritten*>(&e) == nullptr;
      return is_usage ? end("failed", e, kUsage) : end(failure.status, e, failure.code);
    }
    try {
      placed([this] { world_ == worlds::kSimulated ? run_simulated() : run_real(); });
    } catch (const std::exception& e) {
      const RunEnd failure = failure_of(e);
      return end(failure.status, e, failure.code);
    }
    return is_different_ ? kFailed : unless_unwritten(code_);
  }

 private:
  /// What goes wrong with a plug-in is told with its file, and the key that chose it.
  void placed(const std::function<void()>& body) {
    with_plugins(options_.plugins, [&] {
      with_plugin_place(
          plan_, [this] { return origins_; }, body);
    });
  }

  /// Everything that can be wrong before a world exists.
  void prepare() {
    world_ = world_of(options_);
    check_certify(options_, world_);
    registries_ = load_registries(options_);
    const int64_t world_ranks = launched_ranks(world_);
    plan_ = load_resolved(options_, registries_, world_ranks);
    origins_ = load_origins(options_);
    WorkerOptions unstopped = options_;  // --stop-at is no part of the plan and of its hash
    unstopped.stop_at = 0;
    head_ = document_head(load_resolved(unstopped, registries_, world_ranks, Warn::kNo), world_,
                          num_ranks(plan_));
    if (world_ == worlds::kSimulated)
      head_["transport"] = is_for_mpi() ? worlds::kMpi : worlds::kThreads;
    head_["data"] = nullptr;
    initialise_tensors();
    if (device_of(options_, world_, plan_) == "cuda") compute_on(at::kCUDA);
    if (compute_device().is_cuda()) head_["device"] = device::name_of(0);
    if (world_ != worlds::kSimulated) {
      head_["load"] = load_before(num_ranks(plan_), at::get_num_threads());
    }
    plan::with_origins(origins_, [this] {
      check_placement(plan_, registries_, Advice::kNearest);
      if (world_ == worlds::kSimulated) return;
      identify_data();
      if (plan_.memory.has_disk()) check_disk(plan_.memory.disk_path);
    });
    head_["parameters"] = parameters_json(model_parts(plan_, registries_));
    init_ = init_of(options_, world_, plan_, registries_);
    checkpoint_ = save_options_of(options_, world_, plan_);
    check_timeline(options_, plan_);
    oracles_ = check_trace(options_, world_, plan_);
    check_watching(options_, world_);
    if (launched_rank().value_or(LaunchedRank{}).rank != 0) return;
    files_.claim_log();
    if (!options_.log_file.empty()) check_log_is_new(options_);  // of whoever had it until now
    files_.drop_older_document();
  }

  /// Reads the data once before the ranks do; from here on the plan asks for these bytes.
  void identify_data() {
    const DataIdentity found = open_data_(plan_).identity;
    head_["data"] = data_json(plan_, found);
    if (plan_.data.kind != "text") return;
    plan_.data.hash = found.hash;
    head_["plan"]["data"]["hash"] = found.hash;
  }

  void run_real() {
    RunOptions run;
    run.checkpoint = checkpoint_;
    if (init_) run.init = &*init_;
    run.goes_on_later = steps_beyond(options_).has_value();
    run.is_certified = options_.is_certified;
    run.certificate_memory = options_.certify_memory;
    run.is_metered = options_.is_metered;
    run.measures_peak = shows_progress(options_);
    run.make_data = dataset_opener(open_data_);
    run.requests = &requests_;
    listening_.emplace(requests_);
    set_start_of_checks(&work_for_rank_0);
    run.device = compute_device();  // of cards the current one: each rank has its own by then
    const ExitWatch watch(
        [this](const std::string& what) { return end("failed", Error(what), kFailed); });
    const auto body = [&](Communicator& world) {
      const WatchedRank watched(world.rank());
      try {
        placed([&] { rank_body(world, run); });
      } catch (const std::exception& e) {
        // MPI ends here: the first rank to fail tells, the launcher ends the rest.
        if (dynamic_cast<const RanksDiffer*>(&e) != nullptr) let_rank_0_report();
        if (world_ == worlds::kMpi) write_failure(world.rank(), e);
        throw;
      }
    };
    run_on_world(world_, options_, num_ranks(plan_), body,
                 [this](const std::exception& e) { return unless_unwritten(failure_of(e).code); });
    listening_.reset();
  }

  void rank_body(Communicator& world, RunOptions run) {
    if (world_ != worlds::kThreads) {
      check_same_on_ranks(world, read_by_this_rank(plan_, options_));
    }
    if (world_ == worlds::kMpi && world.rank() == 0)
      tell_ranks_listen();  // its world took all of them
    TraceRecorder recorder;
    if (files_.is_traced()) run.recorder = &recorder;
    std::vector<RankResult> all;  // on rank 0
    run.on_measured = [&](const RankResult& mine) {
      if (files_.is_traced() && mine.is_whole()) {
        const auto lines = gather_texts(world, trace_lines(recorder.trace(), world.rank()));
        if (world.rank() == 0) files_.write_events(plan_, world_, lines);
      }
      all = gather_results(world, mine);
      if (!run.is_certified || !mine.is_whole()) return;
      keep(world, all);
      if (is_first_of_process(world)) note(world, "the certificate");
    };
    run.on_refuted = [&](const Certificate& so_far) { keep_refuted(all, so_far); };
    if (is_first_of_process(world)) {
      note(world, "the first step or what is before it");
      run.on_made = [this, &world](const RankResult& so_far) {
        made_.take(so_far);
        const int64_t done =
            so_far.resumed_from.value_or(0) + static_cast<int64_t>(so_far.losses.size());
        note(world, done < plan_.train.steps ? text("step ", done + 1, " of ", plan_.train.steps)
                                             : "what is after the last step");
      };
    }
    std::optional<StepLog> log;  // of rank 0
    const auto log_from = [&](int64_t first) -> StepLog& {
      if (!log) log.emplace(std::cerr, log_options_of(options_, plan_, first));
      return *log;
    };
    run.on_step = [&](const StepDone& done) {
      files_.attempt([&] { log_from(done.step).add(done); });
    };
    run.on_caught_up = [&](int64_t steps, double loss) {
      files_.attempt([&] { log_from(steps).add_validation(steps, loss); });
    };
    const RankResult mine = run_rank(plan_, registries_, world, run);
    if (mine.certificate.verdict == "different") is_different_ = true;
    const RunEnd ended = end_of(mine, plan_, options_);
    code_ = ended.code;
    log.reset();
    if (world.rank() == 0) tell(ended, mine, all);
    if (world_ != worlds::kMpi) return;
    // Only rank 0 writes, and every process ends with its code.
    const std::string incomplete = files_.is_incomplete() ? "incomplete" : "";
    if (!gather_texts(world, incomplete)[0].empty()) code_ = kUnwritten;
  }

  bool is_first_of_process(const Communicator& world) const {
    return world_ != worlds::kThreads || world.rank() == 0;
  }

  /// What a crash is told to have been in the middle of. @pre is_first_of_process()
  void note(const Communicator& world, const std::string& what) const {
    note_under_way(world_ == worlds::kThreads ? what : text("rank ", world.rank(), ", ", what));
  }

  /// What came out, on rank 0.
  void tell(const RunEnd& ended, const RankResult& mine, std::vector<RankResult>& all) {
    all[0].certificate = mine.certificate;
    Json document = document_of(all);
    if (ended.code != kOk) {
      document["status"] = ended.status;
      document["reason"] = ended.reason;
      std::cerr << "kuafu: " << ended.status << ": " << ended.reason << std::endl;
      tell_end_is_told();
    }
    const std::lock_guard lock(kept_mutex_);
    kept_ = nullptr;  // from here on a failure is one of the run
    KeptResults::forget();
    finish(document, ended.code == kOk ? words_of_stop(options_) : "");
  }

  Json document_of(const std::vector<RankResult>& all) const {
    Json document = head_;
    add_results(document, plan_, all);
    return document;
  }

  /// Writes what was measured, and keeps it on every rank: whatever ends a rank while it certifies
  /// costs no results.
  void keep(Communicator& world, std::vector<RankResult> all) {
    Json document;
    if (world.rank() == 0) {
      all[0].certificate.reason = kCutShort;
      document = document_of(all);
      files_.write_document(document);
      KeptResults::keep(document);
    }
    const std::string words = gather_texts(world, json_line(document))[0];
    {
      const std::lock_guard lock(kept_mutex_);
      if (kept_.is_null()) kept_ = Json::parse(words);
      listening_.reset();  // no step is left to end after: a signal ends the process
      if (StopSignals::received() != 0) ::raise(StopSignals::received());  // it came after the last
    }
    if (world.rank() == 0 && requests_.stopped() == Stop::kStopAfter) end_certifying();
  }

  /// On rank 0, once something is found different.
  void keep_refuted(std::vector<RankResult>& all, const Certificate& so_far) {
    all[0].certificate = so_far;
    const std::lock_guard lock(kept_mutex_);
    kept_ = document_of(all);
    is_different_ = true;
    KeptResults::keep(kept_);
    files_.write_document(kept_);
  }

  /// What was measured, and why it was not certified; of what was found different that it is. @pre
  /// kept_mutex_ is held
  Json cut_short(const std::string& why) {
    Json document = kept_;
    // Rank 0 may be another process, and whoever waits for it another one too.
    for (const Json& of_rank_0 : {KeptResults::held(), files_.document()}) {
      if (value_at(of_rank_0, "certificate.verdict") != "different") continue;
      document = of_rank_0;
      is_different_ = true;
    }
    if (!is_different_) document["certificate"]["reason"] = text(kCutShort, ": ", why);
    return document;
  }

  /// True where ranks of a launcher are certified and somebody waits for the end of this one, who then
  /// tells what was measured: the launcher ends with a code of its own.
  bool hand_over(const std::string& why) {
    const std::lock_guard lock(kept_mutex_);
    if (kept_.is_null() || world_ != worlds::kMpi) return false;
    const Json document = cut_short(why);
    if (!KeptResults::keep(document)) return false;
    std::cerr << "kuafu: " << kCutShort << ": " << why << std::endl;
    files_.write_document(document);
    return true;
  }

  /// Where the time of --stop-after is over: ends the process that tells, with what was measured, if
  /// its run is being certified.
  void end_certifying() {
    const std::lock_guard once(ending_mutex_);
    const std::string over = words_of_stop_after(options_);
    if (!hand_over(over) && !end_uncertified(over)) return;
    std::cout.flush();
    end_process(is_different_ ? kFailed : kOk);
  }

  /// True where the run was done before: its document says why it could not be certified.
  bool end_uncertified(const std::string& why) {
    const std::lock_guard lock(kept_mutex_);
    if (kept_.is_null()) return false;
    const Json document = cut_short(why);
    std::cerr << "kuafu: " << kCutShort << ": " << why << std::endl;
    KeptResults::forget();
    finish(document);
    return true;
  }

  std::string too_long() const {
    return text("the case took longer than ", options_.timeout_s, " s");
  }

  bool is_for_mpi() const { return options_.transport == worlds::kMpi; }

  void run_simulated() {
    if (options_.is_certified) {
      std::cerr << "kuafu: --certify: the simulated world computes no numbers, so nothing is "
                   "certified; use another --world\n";
    }
    Json document = head_;
    const Transport transport = is_for_mpi() ? Transport::kMpi : Transport::kThreads;
    Prediction prediction = simulate(plan_, registries_, transport, progress_of_simulation(plan_));
    if (const auto tiers = tier_options(plan_, registries_.policies)) {
      for (RankResult& rank : prediction.ranks) {
        rank.least = memory::least_for_record(rank.uses, tiers->budget());
      }
    }
    add_prediction(document, plan_, prediction);
    files_.write_simulated_events(plan_, registries_, oracles_);
    finish(document);
  }

  void finish(const Json& document, const std::string& stopped = "") {
    print_summary(document, stopped);
    std::cout.flush();
    files_.write_document(document);
    if (is_different_) {
      const Json why = value_at(document, "certificate.reason");
      std::cerr << "kuafu: different: the certificate refutes this run: "
                << (why.is_string() ? why.get<std::string>() : "its numbers are of a wrong result")
                << std::endl;
    }
  }

  void write_failure(int rank, const std::exception& e) {
    const bool names_rank = dynamic_cast<const OutOfMemory*>(&e) != nullptr;
    const std::string why = names_rank ? reason_of(e) : text("rank ", rank, ": ", reason_of(e));
    if (end_uncertified(why)) return;
    Json document = head_;
    made_.add_to(document, plan_);
    add_failure(document, failure_of(e).status, e);
    document["reason"] = why;
    files_.write_document(document);
  }

  int end(const std::string& status, const std::exception& cause, int code) {
    if (end_uncertified(reason_of(cause))) return is_different_ ? kFailed : kOk;
    return end_with(head_.is_null() ? no_head(world_) : head_, status, cause, code);
  }

  /// Of a run whose plan is not known.
  Json no_head(const std::string& world) const {
    return {{"plan", nullptr},
            {"plan_hash", nullptr},
            {"world", world.empty() ? Json() : Json(world)},
            {"ranks", options_.ranks > 0 ? Json(options_.ranks) : Json()}};
  }

  int end_with(Json document, const std::string& status, const std::exception& cause, int code) {
    const std::string ended = code == kUsage ? "" : status + ": ";  // wrong usage began nothing
    std::cerr << "kuafu: " << ended << reason_of(cause) << std::endl;
    made_.add_to(document, plan_);
    add_failure(document, status, cause);
    // All ranks run out of time at once; under staleness rank 0 alone knows the losses.
    const bool is_first = launched_rank().value_or(LaunchedRank{}).rank == 0;
    if (is_first) tell_end_is_told();
    if (is_first || document.contains("loss") || !files_.document().contains("loss"))
      files_.write_document(document);
    return unless_unwritten(code);
  }

  /// The code of an end: whatever it is, a file that is not whole was told of, and nobody is to write
  /// it in this run's place.
  int unless_unwritten(int code) const { return files_.is_incomplete() ? kUnwritten : code; }

  const WorkerOptions& options_;
  RunFiles files_;
  std::string world_;
  plan::Origins origins_;
  Registries registries_;
  Plan plan_;
  DataOpener open_data_ = data_opener();
  SaveOptions checkpoint_;
  std::optional<NamedWeights> init_;
  Json head_;
  std::vector<Trace> oracles_;  ///< a real run's, a rank each; empty: none
  mutable std::mutex kept_mutex_;
  Json kept_;  ///< what was measured, while it is certified; null before and after
  std::mutex ending_mutex_;
  std::atomic<bool> is_different_ = false;  ///< says the certificate, on every rank
  std::atomic<bool> is_prepared_ = false;   ///< from then on other threads may read all of it
  Requests requests_;
  std::optional<StopSignals> listening_;  ///< while steps are made
  MadeSteps made_;
  std::atomic<int> code_ = kOk;  ///< of a run that was made, whole or in part; on every rank
};

}  // namespace

int run_command(const WorkerOptions& options) {
  tell_rank_began();
  KUAFU_REQUIRE(options.json_file != "-",
                "--json -: standard output has the summary of a run; name ",
                "a file, such as run.json");
  if (!options.json_file.empty()) require_writable("--json", options.json_file);
  // A reader that is gone (`| head`) takes neither the record nor the verdict with it.
  ::signal(SIGPIPE, SIG_IGN);
  return Run(options)();
}

}  // namespace kuafu
