// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/guard.h"
#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/worlds.h"
#include "kuafu/device/device.h"
#include "kuafu/plan/plan.h"

namespace kuafu {
namespace {

std::vector<std::string> worker_words(const std::string& command, const WorkerCall& call) {
  std::vector<std::string> words = {worker_path(), command, call.plan};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  for (const auto& pair : call.sets) add("--set", pair);
  add("--world", call.world);
  add("--device", call.device);
  add("--transport", call.transport);
  if (call.ranks > 0) add("--ranks", text(call.ranks));
  if (call.steps > 0) add("--steps", text(call.steps));
  if (call.is_certified) words.emplace_back(*call.is_certified ? "--certify" : "--no-certify");
  if (call.certify_memory > 0) add("--certify-memory", text(call.certify_memory));
  if (!call.is_metered) words.emplace_back("--no-meter");
  add("--json", call.json);
  add("--trace", call.trace);
  add("--oracles", call.oracles);
  add("--timeline", call.timeline);
  add("--timetable", call.timetable);
  for (const auto& plugin : call.plugins) add("--plugin", plugin);
  if (call.timeout_s > 0) add("--timeout", text(call.timeout_s));
  if (call.stop_after_s > 0) add("--stop-after", text(call.stop_after_s));
  if (call.stop_at > 0) add("--stop-at", text(call.stop_at));
  add("--log", call.log);
  if (call.log_every > 0) add("--log-every", text(call.log_every));
  add("--tensorboard", call.tensorboard);
  add("--mpi-collectives", call.mpi_collectives);
  add("--checkpoint", call.checkpoint);
  if (call.save_every > 0) add("--every", text(call.save_every));
  if (call.keep > 0) add("--keep", text(call.keep));
  add("--from", call.begin_from);
  add("--init", call.init);
  add("--weights", call.weights);
  if (call.is_resumed) words.emplace_back("--resume");
  if (call.is_resumed_with_changes) words.emplace_back("--resume-with-changes");
  if (call.is_save_async) words.emplace_back("--async");
  add("--vary", call.vary);
  if (call.most > 0) add("--max", text(call.most));
  for (const std::string& policy : call.policies) add("--policy", policy);
  for (const std::string& budget : call.budgets) add("--budget", budget);
  if (call.is_measured) words.emplace_back("--measure");
  return words;
}

/// Ranks of the plan's own product. What a plug-in brings is not known here, and so many processes that
/// they may be more than the machine holds are not started unasked.
int64_t own_ranks(const WorkerCall& call) {
  constexpr int64_t kMostUnasked = 64;
  int64_t ranks = 1;  // of a plan that is refused: one is enough to say why
  try {
    const TensorModes modes = builtin_tensor_modes();
    const Overrides overrides = split_pairs(call.sets, "--set");
    ranks = num_ranks(resolve(load_plan(call.plan, modes, overrides), 0, modes));
  } catch (const ConfigError&) {
    KUAFU_REQUIRE(call.plugins.empty(), "--world mpi: ", call.plan,
                  " has what only its plug-in knows, which is not loaded before its ranks start: "
                  "say how many with --ranks N, or start them yourself: mpirun -n N kuafu run ",
                  call.plan);
  }
  KUAFU_REQUIRE(ranks <= kMostUnasked, "--world mpi: more than ", kMostUnasked,
                " ranks: say how many with --ranks N, or start "
                "the ranks yourself: mpirun -n N kuafu run ",
                call.plan);
  return ranks;
}

/// The words that start the worker's ranks: by a launcher, where they are MPI's and nobody started
/// them yet.
std::vector<std::string> launched(const std::vector<std::string>& words, const WorkerCall& call) {
  if (call.world != worlds::kMpi || launched_rank()) return words;
  std::vector<std::string> launch = mpi_launcher();
  // Quiet: what ended the run is told by its rank or by the guard, once.
  launch.insert(launch.end(),
                {"--quiet", "-n", text(call.ranks > 0 ? call.ranks : own_ranks(call))});
  launch.insert(launch.end(), words.begin(), words.end());
  return launch;
}

}  // namespace

int worker_command(const std::string& command, const WorkerCall& call) {
  split_pairs(call.sets, "--set");  // a pair without "=" is told at once
  std::vector<std::string> words;
  try {
    words = worker_words(command, call);
  } catch (const TooLittleMemory& error) {  // a document of an earlier run is none of this one
    const auto place = launched_rank();
    if (command == "run" && (!place || place->rank == 0))
      write_failure(call, "out_of_memory", error.what());
    throw;
  }
  if (command == "run") return run_guarded(launched(words, call), call);
  become(words);
}

int generate_command(const GenerateCall& call) {
  split_pairs(call.worker.sets, "--set");
  std::vector<std::string> words = worker_words("generate", call.worker);
  // As one word: a prompt may begin as an option does, and a number may be below 0.
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.push_back(text(option, "=", value));
  };
  add("--prompt", call.prompt);
  add("--file", call.file);
  add("--prompt-tokens", call.prompt_tokens);
  add("--tokens", call.tokens);
  add("--temperature", call.temperature);
  add("--top-k", call.top_k);
  add("--top-p", call.top_p);
  add("--seed", call.seed);
  add("--cache", call.cache);
  if (call.is_fitted) words.emplace_back("--fit");
  for (const std::string& stop : call.stops) add("--stop", stop);
  return run_guarded(launched(words, call.worker), call.worker, Guarded::kForward);
}

int perplexity_command(const PerplexityCall& call) {
  split_pairs(call.worker.sets, "--set");
  std::vector<std::string> words = worker_words("perplexity", call.worker);
  words.push_back(text("--file=", call.file));
  if (call.stride) words.push_back(text("--stride=", *call.stride));
  return run_guarded(launched(words, call.worker), call.worker, Guarded::kForward);
}

int embed_command(const EmbedCall& call) {
  split_pairs(call.worker.sets, "--set");
  std::vector<std::string> words = worker_words("embed", call.worker);
  if (!call.text.empty()) words.push_back(text("--text=", call.text));
  if (!call.file.empty()) words.push_back(text("--file=", call.file));
  if (!call.pooling.empty()) words.push_back(text("--pooling=", call.pooling));
  if (!call.cut.empty()) words.push_back(text("--cut=", call.cut));
  if (call.is_unit) words.emplace_back("--unit");
  return run_guarded(launched(words, call.worker), call.worker, Guarded::kForward);
}

int import_command(const ImportCall& call) {
  std::vector<std::string> words = {worker_path(), "import",   call.file,  "--out",
                                    call.out,      "--format", call.format};
  if (call.is_plan_only) words.emplace_back("--plan-only");
  for (const auto& plugin : call.plugins) words.insert(words.end(), {"--plugin", plugin});
  become(words);
}

void require_card(const std::string& device) {
  if (device != "cuda" || device::num_devices() > 0) return;
  throw Unavailable(
      text("--device cuda: no CUDA device: ", device::why_none(), "; use --device cpu"));
}

int matrix_command(const MatrixCall& call) {
  split_pairs(call.filters, "--filter");
  require_card(call.device);
  std::vector<std::string> words = {worker_path(), "matrix"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  for (const auto& pair : call.filters) add("--filter", pair);
  add("--triples", call.triples);
  add("--seed", call.seed);
  add("--share", call.share);
  add("--jobs", call.jobs);
  add("--out", call.out);
  add("--device", call.device);
  for (const auto& plugin : call.plugins) add("--plugin", plugin);
  become(words);
}

int fuzz_command(const FuzzCall& call) {
  split_pairs(call.sets, "--set");
  require_card(call.device);
  std::vector<std::string> words = {worker_path(), "fuzz"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--seconds", call.seconds);
  add("--plans", call.plans);
  add("--seed", call.seed);
  add("--ranks", call.ranks);
  for (const auto& world : call.worlds) add("--world", world);
  for (const auto& pair : call.sets) add("--set", pair);
  add("--jobs", call.jobs);
  add("--only", call.only);
  add("--out", call.out);
  add("--timeout", call.timeout);
  add("--device", call.device);
  for (const auto& plugin : call.plugins) add("--plugin", plugin);
  become(words);
}

}  // namespace kuafu
