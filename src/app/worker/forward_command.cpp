// SPDX-License-Identifier: Apache-2.0
#include "app/worker/forward_command.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include <CLI/CLI.hpp>

#include "app/worker/document.h"
#include "app/worker/early_exit.h"
#include "app/worker/given_weights.h"
#include "app/worker/rank_worlds.h"
#include "app/worker/run_end.h"
#include "app/worker/run_options.h"
#include "app/worker/same_on_ranks.h"
#include "app/worker/stop_signals.h"
#include "kuafu/base/config.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/comm/gather.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/saving/given_weights.h"
#include "kuafu/meter/book.h"
#include "kuafu/plan/check.h"
#include "kuafu/states/check_disk.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Larger batches than there are samples for are tried up to so many more.
constexpr int64_t kMostFilled = 64;

/// As failure_of(), and what is wrong with what was given is wrong usage, wherever it shows.
int exit_code_of(const std::exception& e) {
  const bool is_usage = dynamic_cast<const ConfigError*>(&e) != nullptr &&
                        dynamic_cast<const Refused*>(&e) == nullptr;
  return is_usage ? kUsage : failure_of(e).code;
}

}  // namespace

GivenTexts given_texts(const std::optional<std::string>& one, const std::string& option,
                       const std::string& file, const std::string& what) {
  KUAFU_REQUIRE(one || !file.empty(), "there is no ", what, "; give ", option,
                " TEXT, or --file FILE with one a line");
  KUAFU_REQUIRE(!one || file.empty(), option, " and --file both give ", what,
                "s; give one of them");
  if (one) return {{*one, option}};
  std::string bytes = read_file(file, what + "s");
  // Some editors mark UTF-8 so; it is no part of the text.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
  GivenTexts all;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string line = bytes.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    all.emplace_back(line, text(file, ":", all.size() + 1));
    at = end + 1;
  }
  KUAFU_REQUIRE(!all.empty(), file, " has no ", what, "; give one a line");
  return all;
}

void add_forward_options(CLI::App& app, WorkerOptions& o) {
  app.add_option("--world", o.world)->check(CLI::IsMember(world_names()));
  app.add_option("--device", o.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--mpi-collectives", o.mpi_collectives)->check(CLI::IsMember({"own", "native"}));
  app.add_option("--checkpoint", o.checkpoint);
  app.add_option("--init", o.init);
  app.add_option("--weights", o.weights)->check(CLI::IsMember({"host", "disk"}));
  app.add_option("--json", o.json_file);
}

int64_t ForwardCommand::signal_to_stop() {
  const int number = StopSignals::received();
  return number == SIGUSR2 && signal_of_launcher() != 0 ? signal_of_launcher() : number;
}

std::string ForwardCommand::name_of_signal(int64_t number) {
  return text("SIG", ::sigabbrev_np(static_cast<int>(number)));
}

int ForwardCommand::operator()() {
  try {
    with_plugins(options_.plugins, [&] {
      prepare();
      run();
    });
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

namespace {

/// Bytes in place of the tokens that a model was trained with are no error, and no text either.
void warn_of_bytes(const Plan& p) {
  const int64_t bytes = plan::text_tokens(p.model), vocab = p.model.vocab;
  if (!p.data.tokenizer.empty() || vocab <= bytes) return;
  if (launched_rank().value_or(LaunchedRank{}).rank != 0) return;
  std::cerr << "kuafu: warning: model.vocab = " << vocab
            << " and no data.tokenizer: a token is a byte, "
            << "of " << bytes << "; set data.tokenizer where the model was trained with one"
            << std::endl;
}

}  // namespace

void ForwardCommand::prepare() {
  world_ = world_of(options_);
  KUAFU_REQUIRE(!is_simulated() || is_foretold(), "--world ", world_,
                ": it computes no numbers, so it ", makes_none_,
                "; leave it out, or use --world threads or mpi");
  KUAFU_REQUIRE(!is_simulated() || (options_.checkpoint.empty() && options_.init.empty()),
                "--world ", world_, " reads no weights; leave ",
                options_.init.empty() ? "--checkpoint" : "--init", " out");
  KUAFU_REQUIRE(options_.checkpoint.empty() || options_.init.empty(),
                "--checkpoint and --init both give weights; give one of them");
  if (!options_.json_file.empty()) require_writable("--json", options_.json_file);
  read();
  registries_ = load_registries(options_);
  initialise_tensors();
  plan_ = placed_plan(launched_ranks(world_));
  plan_of_forward(plan_);  // what has none is told before files are read
  check_weights_home();
  if (!is_simulated()) {
    text_.emplace(plan_.data, plan_.model);
    warn_of_bytes(plan_);
  }
  take_text();
  if (is_fitted()) plan_ = fitted_plan(launched_ranks(world_));
  if (device_of(options_, world_, plan_) == "cuda") compute_on(at::kCUDA);
  if (!is_simulated()) open_weights();
  head_ = document_head(plan_, world_, num_ranks(plan_));
  plan_ = plan_of_forward(plan_);
}

void ForwardCommand::check_weights_home() const {
  const MemoryPlan& memory = plan_.memory;
  KUAFU_REQUIRE(options_.weights.empty() || memory.has_tiers(), "--weights ", options_.weights,
                " says where weights lie between their uses, and the plan has no tiers of memory "
                "(memory.policy = \"plain\"); set memory.policy, or leave --weights out");
  if (!has_weights_on_disk()) return;
  KUAFU_REQUIRE(memory.has_disk(),
                "--weights disk, and the plan names no disk; set "
                "memory.disk_path to a folder of one, or leave --weights out");
  if (!is_simulated()) check_disk(memory.disk_path);
}

bool ForwardCommand::is_simulated() const { return is_estimated_world(world_); }

int64_t ForwardCommand::own_batch() const {
  const std::string toml = read_file(options_.plan_file, "plan");
  return parse_values(toml, options_.plan_file, options_.overrides).train.batch;
}

/// The plan with the fewest samples that have room for samples(), or for train.batch of them, and
/// that can be placed.
Plan ForwardCommand::placed_plan(int64_t world_ranks) const {
  const int64_t least = std::min(samples(), own_batch());
  if (const auto plan = placed_plan(world_ranks, least)) return *plan;
  const Plan plan = load_resolved(options_, registries_, world_ranks, Warn::kNo);
  plan::with_origins(load_origins(options_),
                     [&] { check_placement(plan, registries_, Advice::kNearest); });
  return plan;
}

/// That of `least` samples or the next more that can be placed.
std::optional<Plan> ForwardCommand::placed_plan(int64_t world_ranks, int64_t least) const {
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
  return std::nullopt;
}

/// The plan of the most samples that memory.device holds, samples() at most: a larger batch needs more.
/// Throws OutOfMemory where it holds not the fewest.
Plan ForwardCommand::fitted_plan(int64_t world_ranks) const {
  KUAFU_REQUIRE(
      plan_.memory.device.has_value(),
      "--fit takes the largest batch that memory.device holds, and the plan gives none; set "
      "memory.device, or leave --fit out");
  Plan best = placed_plan(world_ranks, 1).value_or(plan_);  // the layouts may take none so small
  require_fits(plan_of_forward(best));
  const auto fitting = [&](int64_t batch) {
    const auto plan = placed_plan(world_ranks, batch);
    if (!plan) return false;
    try {
      require_fits(plan_of_forward(*plan));
    } catch (const OutOfMemory&) {
      return false;
    }
    best = *plan;
    return true;
  };
  if (best.train.batch >= samples() || fitting(samples())) return best;
  int64_t holds = best.train.batch, fails = samples();
  while (fails - holds > 1) {
    const int64_t middle = holds + (fails - holds) / 2;
    if (fitting(middle)) {
      holds = std::max(middle, best.train.batch);
    } else {
      fails = middle;
    }
  }
  return best;
}

void ForwardCommand::open_weights() {
  const bool is_init = !options_.init.empty();
  const std::string& path = is_init ? options_.init : options_.checkpoint;
  if (!path.empty()) {
    weights_ =
        open_init(is_init ? "--init" : "--checkpoint", path, plan_, registries_, options_.plugins);
  }
  if (path.empty() && launched_rank().value_or(LaunchedRank{}).rank == 0) {
    std::cerr << "kuafu: warning: neither --checkpoint nor --init: the model has the first "
                 "weights of train.seed and has learnt nothing"
              << std::endl;
  }
}

void ForwardCommand::run() {
  if (is_simulated()) return foretell();
  const StopSignals listening(requests_);
  const ExitWatch watch(
      [this](const std::string& what) { return end("failed", Error(what), kFailed); });
  const auto body = [&](Communicator& world) {
    const WatchedRank watched(world.rank());
    try {
      rank_body(world);
    } catch (const std::exception& e) {
      // MPI ends here: what was given wrong is found by all ranks, other failures by their first.
      if (exit_code_of(e) == kUsage) let_rank_0_report();
      if (world_ == worlds::kMpi && exit_code_of(e) != kUsage)
        document_failure(failure_of(e).status, e);
      throw;
    }
  };
  run_on_world(world_, options_, num_ranks(plan_), body, exit_code_of);
}

void ForwardCommand::rank_body(Communicator& world) {
  if (world_ != worlds::kThreads) {
    auto mine = read_by_this_rank(plan_, options_);
    mine["text"] = given();
    check_same_on_ranks(world, mine);
  }
  if (world_ == worlds::kMpi && world.rank() == 0) tell_ranks_listen();
  RankBook book = device_book(plan_, world.rank(), compute_device());
  const BookScope booked(&book);
  const NoData none(plan_.model);
  Engine engine(plan_, registries_, world, none,
                {.device = compute_device(),
                 .trains = false,
                 .has_parameters_on_disk = has_weights_on_disk()});
  if (weights_) begin_with(*weights_, engine, world);
  forward(engine, world);
}

void ForwardCommand::take_moves(const Engine& engine, Communicator& world) {
  if (const auto loaded = engine.loaded()) take_moves("to_device_bytes", *loaded, world);
  if (has_weights_on_disk()) take_moves("from_disk_bytes", engine.moves().disk.read, world);
}

void ForwardCommand::take_moves(const char* name, int64_t mine, Communicator& world) {
  for (const std::string& bytes : gather_texts(world, std::to_string(mine))) {
    if (world.rank() == 0) moves_[name].push_back(std::stoll(bytes));
  }
}

void ForwardCommand::write(const char* member, const Json& made, const std::string& why) const {
  if (options_.json_file.empty()) return;
  Json document = head_;
  document["status"] = why.empty() ? "ok" : "interrupted";
  if (!why.empty()) document["reason"] = why;
  document[member] = made;
  if (!moves_.is_null()) document["moves"] = moves_;
  write_document(document, options_.json_file);
}

int ForwardCommand::end(const std::string& status, const std::exception& cause, int code) const {
  std::cerr << "kuafu: " << status << ": " << reason_of(cause) << std::endl;
  if (launched_rank().value_or(LaunchedRank{}).rank == 0) document_failure(status, cause);
  return code;
}

void ForwardCommand::document_failure(const std::string& status,
                                      const std::exception& cause) const {
  if (options_.json_file.empty()) return;
  Json document = head_.is_null() ? Json{{"plan", nullptr}, {"plan_hash", nullptr}} : head_;
  add_failure(document, status, cause);
  write_document(document, options_.json_file);
}

}  // namespace kuafu
