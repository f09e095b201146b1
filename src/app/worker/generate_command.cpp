// SPDX-License-Identifier: Apache-2.0
//
// `kuafu generate`: everything that can be wrong is told before a world exists, and leaves no file.

#include <signal.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <optional>

#include "app/worker/document.h"
#include "app/worker/early_exit.h"
#include "app/worker/generate_options.h"
#include "app/worker/generated_text.h"
#include "app/worker/given_weights.h"
#include "app/worker/options.h"
#include "app/worker/rank_worlds.h"
#include "app/worker/run_end.h"
#include "app/worker/run_options.h"
#include "app/worker/same_on_ranks.h"
#include "app/worker/stop_signals.h"
#include "kuafu/base/config.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/saving/given_weights.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Larger batches than the prompts need are tried up to so many more.
constexpr int64_t kMostFilled = 64;

/// As failure_of(), and what is wrong with what was given is wrong usage, wherever it shows.
int code_of(const std::exception& e) {
  const bool is_usage = dynamic_cast<const ConfigError*>(&e) != nullptr &&
                        dynamic_cast<const Refused*>(&e) == nullptr;
  return is_usage ? kUsage : failure_of(e).code;
}

/// The signal that asked to stop; 0: none has.
int signal_to_stop() {
  const int number = StopSignals::received();
  return number == SIGUSR2 && signal_of_launcher() != 0 ? signal_of_launcher() : number;
}

class GenerateRun {
 public:
  GenerateRun(const WorkerOptions& options, const GenerateOptions& how)
      : options_(options), how_(how) {}

  int operator()() {
    try {
      prepare();
      run();
    } catch (const Refused& e) {
      let_rank_0_report();
      return end("refused", e, kRefused);
    } catch (const ConfigError& e) {
      let_rank_0_report();
      throw;  // wrong usage, which leaves no document
    } catch (const std::exception& e) {
      const RunEnd failure = failure_of(e);
      return end(failure.status, e, failure.code);
    }
    return stopped_ == 0 ? int{kOk} : 128 + stopped_;
  }

 private:
  void prepare() {
    world_ = world_of(options_);
    KUAFU_REQUIRE(!is_estimated_world(world_), "--world ", world_,
                  ": it computes no numbers, so it generates no tokens; leave it out, or use "
                  "--world threads or mpi");
    KUAFU_REQUIRE(options_.checkpoint.empty() || options_.init.empty(),
                  "--checkpoint and --init both give weights; give one of them");
    if (!options_.json_file.empty()) require_writable("--json", options_.json_file);
    sampling_ = sampling_of(how_);
    const auto given = given_prompts(how_);
    registries_ = load_registries(options_);
    initialise_tensors();
    plan_ = placed_plan(std::ssize(given), launched_ranks(world_));
    const Plan generating = plan_of_generation(plan_);
    text_.emplace(plan_.data, plan_.model);
    for (const auto& [words, where] : given) add_prompt(words, where);
    if (device_of(options_, world_, plan_) == "cuda") compute_on(at::kCUDA);
    open_weights();
    head_ = document_head(plan_, world_, num_ranks(plan_));
    plan_ = generating;
  }

  void add_prompt(const std::string& words, const std::string& where) {
    try {
      prompts_.push_back({words, text_->encode(words)});
    } catch (const ConfigError& e) {
      throw ConfigError(text(where, ": ", e.what()));
    }
  }

  /// The plan with the fewest samples that have room for the prompts, or for train.batch of them, and
  /// that can be placed.
  Plan placed_plan(int64_t prompts, int64_t world_ranks) const {
    const std::string toml = read_file(options_.plan_file, "plan");
    const int64_t own = parse_values(toml, options_.plan_file, options_.overrides).train.batch;
    const int64_t least = std::min(prompts, own);
    for (int64_t batch = least; batch <= least + kMostFilled; ++batch) {
      WorkerOptions tried = options_;
      tried.overrides.emplace_back("train.batch", text(batch));
      try {
        const Plan plan = load_resolved(tried, registries_, world_ranks, Warn::kNo);
        check_placement(plan, registries_);
        return plan;
      } catch (const ConfigError&) {
      }
    }
    const Plan plan = load_resolved(options_, registries_, world_ranks, Warn::kNo);
    plan::with_origins(load_origins(options_),
                       [&] { check_placement(plan, registries_, Advice::kNearest); });
    return plan;
  }

  void open_weights() {
    const bool is_init = !options_.init.empty();
    const std::string& path = is_init ? options_.init : options_.checkpoint;
    if (!path.empty()) {
      weights_ = open_init(is_init ? "--init" : "--checkpoint", path, plan_, registries_,
                           options_.plugins);
    }
    if (path.empty() && launched_rank().value_or(LaunchedRank{}).rank == 0) {
      std::cerr << "kuafu: warning: neither --checkpoint nor --init: the model has the first "
                   "weights of train.seed and has learnt nothing"
                << std::endl;
    }
  }

  void run() {
    const StopSignals listening(requests_);
    const ExitWatch watch(
        [this](const std::string& what) { return end("failed", Error(what), kFailed); });
    const auto body = [&](Communicator& world) {
      const WatchedRank watched(world.rank());
      try {
        rank_body(world);
      } catch (const std::exception& e) {
        // MPI ends here: what was given wrong is found by all ranks, other failures by their first.
        if (code_of(e) == kUsage) let_rank_0_report();
        if (world_ == worlds::kMpi && code_of(e) != kUsage)
          document_failure(failure_of(e).status, e);
        throw;
      }
    };
    run_on_world(world_, options_, num_ranks(plan_), body, code_of);
  }

  Generation generation() const {
    Generation what{.tokens = how_.tokens.value_or(0),
                    .choices = text_->size(),
                    .sampling = sampling_,
                    .cache = how_.cache == "off" ? Cache::kOff : Cache::kWherePossible};
    for (const Prompt& prompt : prompts_) what.prompts.push_back(prompt.tokens);
    return what;
  }

  void rank_body(Communicator& world) {
    Generation what = generation();
    if (world_ != worlds::kThreads) {
      auto mine = read_by_this_rank(plan_, options_);
      mine["prompts"] = hash_name(Json(what.prompts).dump());
      mine["--tokens"] = what.tokens;
      mine["--cache"] = how_.cache;
      check_same_on_ranks(world, mine);
    }
    if (world_ == worlds::kMpi && world.rank() == 0) tell_ranks_listen();
    RankBook book = device_book(plan_, world.rank(), compute_device());
    const BookScope booked(&book);
    const NoData none(plan_.model);
    Engine engine(plan_, registries_, world, none, {.device = compute_device()});
    if (weights_) begin_with(*weights_, engine, world);
    std::optional<GeneratedText> text;
    if (world.rank() == 0) {
      tell_cache(engine.why_no_cache());
      text.emplace(std::cout, *text_, prompts_, how_.stops);
      what.on_token = [&](size_t p, int64_t token) { return text->on_token(p, token); };
      what.on_end = [&](size_t p, const Continuation& done) { text->on_end(p, done); };
      what.why_stop = [] { return std::cout ? signal_to_stop() : SIGPIPE; };
    }
    const auto began = std::chrono::steady_clock::now();
    const Generated made = generate(engine, world, what);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    stopped_ = static_cast<int>(made.stopped);
    if (!text) return;
    if (made.stopped != 0) text->stop();
    tell(*text, made, took.count());
  }

  void tell_cache(const std::string& why_none) {
    cache_ = how_.cache == "off" ? "off" : why_none.empty() ? "on" : why_none;
    if (cache_ == "on" || cache_ == "off") return;
    std::cerr << "kuafu: no cache of keys and values: " << why_none
              << "; each token is a forward of the whole sequence" << std::endl;
  }

  void tell(const GeneratedText& text, const Generated& made, double seconds) const {
    const bool is_stopped = made.stopped != 0;
    const std::string why = is_stopped ? words_of_stop(made) : "";
    const double rate = static_cast<double>(made.num_tokens()) / seconds;
    if (!is_stopped) {
      tell_rate(made, seconds, rate);
    } else {
      if (made.stopped != SIGPIPE) std::cerr << "kuafu: " << why << std::endl;
      tell_end_is_told();
    }
    if (options_.json_file.empty()) return;
    Json document = head_;
    document["status"] = is_stopped ? "interrupted" : "ok";
    if (is_stopped) document["reason"] = why;
    document["generation"] = {{"batch", plan_.train.batch},
                              {"cache", cache_},
                              {"cache_bytes", made.cache_bytes},
                              {"tokens", made.num_tokens()},
                              {"seconds", seconds},
                              {"tokens_per_s", rate},
                              {"first_token_s", made.all[0].first_s},
                              {"temperature", sampling_.temperature},
                              {"top_k", how_.top_k ? Json(*how_.top_k) : Json()},
                              {"top_p", sampling_.top_p},
                              {"seed", sampling_.seed},
                              {"prompts", text.document(made.all)}};
    write_document(document, options_.json_file);
  }

  static std::string words_of_stop(const Generated& made) {
    const int64_t tokens = made.num_tokens();
    const std::string who =
        made.stopped == SIGPIPE
            ? "nobody reads the text any more"
            : text("stopped by SIG", ::sigabbrev_np(static_cast<int>(made.stopped)));
    return text(who, "; ", tokens, tokens == 1 ? " token was made" : " tokens were made");
  }

  static void tell_rate(const Generated& made, double seconds, double rate) {
    std::map<std::string, int64_t> endings;
    for (const Continuation& c : made.all) ++endings[std::string(name_of(c.ending))];
    std::vector<std::string> ended;
    for (const auto& [name, count] : endings) {
      ended.push_back(made.all.size() == 1 ? name : text(name, " (", count, ")"));
    }
    std::cerr << "kuafu: " << made.num_tokens() << " tokens in " << print_seconds(seconds) << ", "
              << rate << " tokens/s, the first after " << print_seconds(made.all[0].first_s)
              << "; ended by " << join(ended) << std::endl;
  }

  int end(const std::string& status, const std::exception& cause, int code) const {
    std::cerr << "kuafu: " << status << ": " << reason_of(cause) << std::endl;
    if (launched_rank().value_or(LaunchedRank{}).rank == 0) document_failure(status, cause);
    return code;
  }

  void document_failure(const std::string& status, const std::exception& cause) const {
    if (options_.json_file.empty()) return;
    Json document = head_.is_null() ? Json{{"plan", nullptr}, {"plan_hash", nullptr}} : head_;
    add_failure(document, status, cause);
    write_document(document, options_.json_file);
  }

  const WorkerOptions& options_;
  const GenerateOptions& how_;
  std::string world_;
  Sampling sampling_;
  Registries registries_;
  Plan plan_;
  std::optional<TokenText> text_;
  std::vector<Prompt> prompts_;
  std::optional<NamedWeights> weights_;
  Json head_;
  std::string cache_;  ///< "on", "off", or why there is none
  Requests requests_;
  std::atomic<int> stopped_ = 0;  ///< the signal that ended it; 0: none did
};

}  // namespace

int generate_command(const WorkerOptions& options, const GenerateOptions& how) {
  tell_rank_began();
  KUAFU_REQUIRE(options.json_file != "-",
                "--json -: standard output has the text; name a file, such as made.json");
  return GenerateRun(options, how)();
}

}  // namespace kuafu
