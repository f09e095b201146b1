// SPDX-License-Identifier: Apache-2.0
//
// `kuafu generate`: everything that can be wrong is told before a world exists, and leaves no file.

#include <chrono>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "app/worker/document.h"
#include "app/worker/generated_text.h"
#include "app/worker/given_weights.h"
#include "app/worker/options.h"
#include "app/worker/run_end.h"
#include "app/worker/run_options.h"
#include "app/worker/same_on_ranks.h"
#include "kuafu/base/config.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/utf8.h"
#include "kuafu/base/worlds.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/saving/given_weights.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Larger batches than the prompts need are tried up to so many more.
constexpr int64_t kMostFilled = 64;

/// Prompts as they are given, each with its place for messages.
std::vector<std::pair<std::string, std::string>> given_prompts(const GenerateOptions& how) {
  KUAFU_REQUIRE(how.prompts.size() + (how.file.empty() ? 0 : 1) == 1,
                how.prompts.empty() && how.file.empty()
                    ? "there is no prompt; give --prompt TEXT, or --file FILE with one a line"
                    : "several prompts are given by --prompt and --file; give one --prompt, or "
                      "--file FILE with one a line");
  if (how.file.empty()) return {{how.prompts[0], "--prompt"}};
  const std::string bytes = read_file(how.file, "prompts");
  std::vector<std::pair<std::string, std::string>> all;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string line = bytes.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    all.emplace_back(line, text(how.file, ":", all.size() + 1));
    at = end + 1;
  }
  KUAFU_REQUIRE(!all.empty(), how.file, " has no prompt; give one a line");
  return all;
}

Sampling sampling_of(const GenerateOptions& how) {
  const Sampling sampling{.temperature = how.temperature.value_or(0),
                          .top_k = how.top_k.value_or(0),
                          .top_p = how.top_p.value_or(1),
                          .seed = how.seed.value_or(0)};
  check_sampling(sampling);
  KUAFU_REQUIRE(!how.top_k || *how.top_k >= 1, "--top-k ", *how.top_k,
                ": allowed: a whole number from 1 on");
  KUAFU_REQUIRE(!how.tokens || *how.tokens >= 1, "--tokens ", *how.tokens,
                ": allowed: a whole number from 1 on");
  const char* idle = how.top_k ? "--top-k" : how.top_p ? "--top-p" : how.seed ? "--seed" : nullptr;
  KUAFU_REQUIRE(idle == nullptr || sampling.temperature > 0, idle,
                " has no effect without --temperature: the most likely token is always taken; add "
                "--temperature 1, or leave it out");
  for (const std::string& stop : how.stops) {
    KUAFU_REQUIRE(!stop.empty() && is_utf8(stop), "--stop ", in_quotes(as_utf8(stop)),
                  " is no text in UTF-8");
  }
  return sampling;
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
    return kOk;
  }

 private:
  void prepare() {
    const auto place = launched_rank();
    world_ = !options_.world.empty() ? options_.world : place ? worlds::kMpi : worlds::kThreads;
    check_world(options_, world_);
    KUAFU_REQUIRE(!is_estimated_world(world_), "--world ", world_,
                  ": it computes no numbers, so it generates no tokens; leave it out, or use "
                  "--world threads or mpi");
    KUAFU_REQUIRE(options_.checkpoint.empty() || options_.init.empty(),
                  "--checkpoint and --init both give weights; give one of them");
    sampling_ = sampling_of(how_);
    const auto given = given_prompts(how_);
    registries_ = load_registries(options_);
    initialise_tensors();
    const bool is_launched = world_ == worlds::kMpi || world_ == worlds::kNccl;
    plan_ = placed_plan(std::ssize(given), is_launched && place ? place->ranks : 0);
    const Plan generating = plan_of_generation(plan_);
    text_.emplace(plan_.data, plan_.model);
    for (const auto& [words, where] : given) add_prompt(words, where);
    if (device_of(options_, world_, plan_) == "cuda") compute_on(at::kCUDA);
    open_weights();
    head_ = document_head(plan_, world_, num_ranks(plan_));
    plan_ = generating;
    if (!options_.json_file.empty()) require_writable("--json", options_.json_file);
  }

  void add_prompt(const std::string& words, const std::string& where) {
    try {
      prompts_.push_back({words, text_->encode(words)});
    } catch (const ConfigError& e) {
      throw ConfigError(text(where, ": ", e.what()));
    }
  }

  /// The plan with the fewest samples that have room for the prompts, at most its own, and that can be
  /// placed.
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
    const std::string& path = options_.init.empty() ? options_.checkpoint : options_.init;
    if (!path.empty()) weights_ = open_init(path, plan_, registries_, options_.plugins);
    if (path.empty() && launched_rank().value_or(LaunchedRank{}).rank == 0) {
      std::cerr << "kuafu: warning: neither --checkpoint nor --init: the model has the first "
                   "weights of train.seed and has learnt nothing"
                << std::endl;
    }
  }

  void run() {
    const auto body = [&](Communicator& world) { rank_body(world); };
    if (world_ == worlds::kThreads) {
      run_on_threads(static_cast<int>(num_ranks(plan_)), body);
    } else if (world_ == worlds::kMpi) {
      tell_rank_joins();
      run_on_mpi(
          body,
          options_.mpi_collectives == "native" ? MpiCollectives::kNative : MpiCollectives::kOwn,
          [](const std::exception& e) { return failure_of(e).code; });
    } else {
      run_on_nccl(body);
    }
  }

  Generation generation() const {
    Generation what{
        .tokens = how_.tokens.value_or(0), .choices = text_->size(), .sampling = sampling_};
    for (const Prompt& prompt : prompts_) what.prompts.push_back(prompt.tokens);
    return what;
  }

  void rank_body(Communicator& world) {
    Generation what = generation();
    if (world_ != worlds::kThreads) {
      auto mine = read_by_this_rank(plan_, options_);
      mine["prompts"] = hash_name(Json(what.prompts).dump());
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
      text.emplace(std::cout, *text_, prompts_, how_.stops);
      what.on_token = [&](size_t p, int64_t token) { return text->on_token(p, token); };
      what.on_end = [&](size_t p, const Continuation& done) { text->on_end(p, done); };
    }
    const auto began = std::chrono::steady_clock::now();
    const std::vector<Continuation> made = generate(engine, world, what);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (text) tell(*text, made, took.count());
  }

  void tell(const GeneratedText& text, const std::vector<Continuation>& made, double seconds) {
    int64_t tokens = 0;
    std::map<std::string, int64_t> endings;
    for (const Continuation& c : made) {
      tokens += std::ssize(c.tokens);
      ++endings[std::string(name_of(c.ending))];
    }
    const double rate = static_cast<double>(tokens) / seconds;
    std::vector<std::string> ended;
    for (const auto& [name, count] : endings) {
      ended.push_back(made.size() == 1 ? name : kuafu::text(name, " (", count, ")"));
    }
    std::cerr << "kuafu: " << tokens << " tokens in " << print_seconds(seconds) << ", " << rate
              << " tokens/s, the first after " << print_seconds(made[0].first_s) << "; ended by "
              << join(ended) << std::endl;
    if (options_.json_file.empty()) return;
    Json document = head_;
    document["status"] = "ok";
    document["generation"] = {{"batch", plan_.train.batch},
                              {"tokens", tokens},
                              {"seconds", seconds},
                              {"tokens_per_s", rate},
                              {"first_token_s", made[0].first_s},
                              {"temperature", sampling_.temperature},
                              {"top_k", how_.top_k ? Json(*how_.top_k) : Json()},
                              {"top_p", sampling_.top_p},
                              {"seed", sampling_.seed},
                              {"prompts", text.document(made)}};
    write_document(document, options_.json_file);
  }

  int end(const std::string& status, const std::exception& cause, int code) const {
    std::cerr << "kuafu: " << status << ": " << reason_of(cause) << std::endl;
    if (options_.json_file.empty() || launched_rank().value_or(LaunchedRank{}).rank != 0)
      return code;
    Json document = head_.is_null() ? Json{{"plan", nullptr}, {"plan_hash", nullptr}} : head_;
    add_failure(document, status, cause);
    write_document(document, options_.json_file);
    return code;
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
};

}  // namespace

void add_generate_options(CLI::App& app, WorkerOptions& o, GenerateOptions& how) {
  app.add_option("--world", o.world)->check(CLI::IsMember(world_names()));
  app.add_option("--device", o.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--mpi-collectives", o.mpi_collectives)->check(CLI::IsMember({"own", "native"}));
  app.add_option("--checkpoint", o.checkpoint);
  app.add_option("--init", o.init);
  app.add_option("--json", o.json_file);
  app.add_option("--prompt", how.prompts)->allow_extra_args(false);
  app.add_option("--file", how.file);
  app.add_option("--tokens", how.tokens);
  app.add_option("--temperature", how.temperature);
  app.add_option("--top-k", how.top_k);
  app.add_option("--top-p", how.top_p);
  app.add_option("--seed", how.seed);
  app.add_option("--stop", how.stops)->allow_extra_args(false);
}

int generate_command(const WorkerOptions& options, const GenerateOptions& how) {
  tell_rank_began();
  KUAFU_REQUIRE(options.json_file != "-",
                "--json -: standard output has the text; name a file, such as made.json");
  return GenerateRun(options, how)();
}

}  // namespace kuafu
