// SPDX-License-Identifier: Apache-2.0
#include "app/worker/run_options.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <system_error>

#include "app/worker/given_weights.h"
#include "kuafu/base/config.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/checkpoint/folder.h"
#include "kuafu/device/device.h"
#include "kuafu/engine/requests.h"
#include "kuafu/engine/saving/saved_run.h"
#include "kuafu/record/activity.h"
#include "kuafu/record/files.h"
#include "kuafu/record/progress.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/trace_reader.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

void require_writable(const char* option, const std::string& file) {
  KUAFU_REQUIRE(!file.ends_with(".toml"), option, " ", file,
                " is named as a plan or suite, which it would replace; give another name");
  const size_t slash = file.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : file.substr(0, slash + 1);
  const bool is_writable = ::access(file.c_str(), F_OK) == 0
                               ? ::access(file.c_str(), W_OK) == 0
                               : ::access(folder.c_str(), W_OK | X_OK) == 0;
  KUAFU_REQUIRE(is_writable, option, ": cannot write ", file, ": ", std::strerror(errno));
  std::error_code error;
  KUAFU_REQUIRE(!std::filesystem::is_directory(file, error), option, ": cannot write ", file,
                ": it is a folder; give the name of a file");
  if (std::filesystem::exists(file, error)) return;
  // Some folders, such as /proc, only say that they can be written to.
  const std::string probe =
      std::filesystem::path(file).replace_filename(text(".kuafu-", ::getpid(), ".probe")).string();
  const File made(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  KUAFU_REQUIRE(made.is_open(), option, ": cannot write ", file, ": ", std::strerror(errno));
  ::unlink(probe.c_str());
}

void check_world(const WorkerOptions& options, const std::string& world) {
  KUAFU_REQUIRE(options.transport.empty() || world == worlds::kSimulated, "--transport ",
                options.transport, ": ranks of the world ", world, " count on their own; ",
                "leave it out, or use --world simulated");
  KUAFU_REQUIRE(options.mpi_collectives.empty() || world == worlds::kMpi, "--mpi-collectives ",
                options.mpi_collectives, ": ranks of the world ", world,
                " have collectives of their own; leave it out, or use --world mpi");
}

std::string device_by_environment() {
  const char* const given = std::getenv("KUAFU_DEVICE");
  const std::string device = given == nullptr ? "" : given;
  KUAFU_REQUIRE(device.empty() || device == "cpu" || device == "cuda", "KUAFU_DEVICE=", device,
                ": cpu and cuda are devices; leave it out where a run may choose");
  return device;
}

void require_card(const std::string& device) {
  if (device == "cuda" && device::num_devices() == 0) {
    throw Unavailable(
        text("--device cuda: no CUDA device: ", device::why_none(), "; use --device cpu"));
  }
}

std::string device_of(const WorkerOptions& options, const std::string& world, const Plan& plan) {
  const bool may_have_card = world == worlds::kThreads || world == worlds::kNccl;
  const bool needs_card = world == worlds::kNccl;
  const bool has_tiers = plan.memory.has_tiers();
  const bool is_crowded =
      world == worlds::kThreads && num_ranks(plan) > static_cast<int64_t>(device::kMostArrays);
  std::string asked = options.device;
  if (asked.empty() && may_have_card && !needs_card) asked = device_by_environment();
  KUAFU_REQUIRE(asked != "cuda" || may_have_card, "--device cuda: ranks of the world ", world,
                " compute on cpu; use --world threads or nccl, or --device cpu");
  KUAFU_REQUIRE(asked != "cpu" || !needs_card,
                "--device cpu: ranks of the world nccl have a card each; leave it out, or use "
                "--world threads or mpi");
  KUAFU_REQUIRE(
      asked != "cuda" || !has_tiers, "--device cuda: memory.policy = \"", plan.memory.policy,
      "\" moves chunks on cpu alone; nearest: memory.policy = \"plain\", or --device cpu");
  KUAFU_REQUIRE(asked != "cuda" || !is_crowded, "--device cuda: ", num_ranks(plan),
                " ranks share no card; nearest: ", device::kMostArrays, " ranks, or --device cpu");
  if (needs_card && device::num_devices() == 0) {
    throw Unavailable(
        text("NCCL needs a GPU: ", device::why_none(), "; choose --world threads or mpi"));
  }
  require_card(asked);
  if (!asked.empty()) return asked;
  if (needs_card) return "cuda";
  const bool is_asked_for_less = has_tiers || is_crowded || !options.timeline_file.empty();
  if (!may_have_card || is_asked_for_less || device::num_devices() == 0) return "cpu";
  const std::string why_not = device::why_unusable();
  if (why_not.empty()) return "cuda";
  std::cerr << "kuafu: warning: computing on cpu: " << why_not << std::endl;
  return "cpu";
}

void check_certify(const WorkerOptions& options, const std::string& world) {
  std::vector<std::string> certified = world_names();
  std::erase_if(certified, is_estimated_world);
  KUAFU_REQUIRE(!options.is_certified || options.is_of_suite || !is_estimated_world(world),
                "--certify: the world ", world, " computes no numbers, so it trains nothing that ",
                "could be certified; leave it out, or use --world ", join_or(certified));
}

void check_timeline(const WorkerOptions& options, const Plan& plan) {
  const std::string& file = options.timeline_file;
  if (file.empty()) return;
  check_activity_path(file);
  KUAFU_REQUIRE(
      !compute_device().is_cuda(), "--timeline: a GPU works on after the call that started it, ",
      "so clocks of the host tell nothing; use --device cpu, or --world mpi or simulated");
  KUAFU_REQUIRE(plan.train.steps > 0, "--timeline shows the last step, and train.steps = 0");
  require_writable("--timeline", file);
}

namespace {

/// The values that a run read off its data are those of its own plan.
void check_plan_of_oracles(const std::string& file, const Plan& plan) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  const Json theirs = value_at(Json::parse(line, nullptr, false), "plan_hash");
  const std::string mine = plan_hash(plan);
  KUAFU_REQUIRE(theirs == mine, "--oracles ", file, ":1: it is of the plan ",
                theirs.is_string() ? theirs.get<std::string>() : "of no name", ", and this is ",
                mine, ": give the trace of a run with the same plan, --set, --ranks and --steps");
}

}  // namespace

std::vector<Trace> check_trace(const WorkerOptions& options, const std::string& world,
                               const Plan& plan) {
  std::vector<Trace> oracles;
  const std::string& file = options.trace_file;
  if (!options.oracles_file.empty()) {
    KUAFU_REQUIRE(world == worlds::kSimulated && !file.empty(),
                  "--oracles gives a simulated trace the ",
                  "values that a real run read: use it with --world simulated and --trace");
    oracles = read_trace(options.oracles_file);
    KUAFU_REQUIRE(static_cast<int64_t>(oracles.size()) == num_ranks(plan), options.oracles_file,
                  ":1: \"ranks\": ", oracles.size(), "; the plan has ", num_ranks(plan));
    check_plan_of_oracles(options.oracles_file, plan);
  }
  if (file.empty()) return oracles;
  KUAFU_REQUIRE(world != worlds::kNccl,
                "--trace: a GPU works on after the call that started it, and ",
                "its streams are not traced; use --world threads, mpi or simulated");
  KUAFU_REQUIRE(plan.train.steps > 0, "--trace shows the last step, and train.steps = 0");
  require_writable("--trace", file);
  return oracles;
}

namespace {

/// Told of a run that goes on from a checkpoint of other kernels, or of another build of a plug-in.
void tell_other_program(const SaveOptions& save) {
  std::optional<std::string> begun = save.resumes ? newest_checkpoint(save.folder) : std::nullopt;
  if (!begun && !save.from.empty()) begun = named_checkpoint(save.from);
  if (!begun || launched_rank().value_or(LaunchedRank{}).rank != 0) return;
  std::optional<Checkpoint> from;
  try {
    from.emplace(*begun);
  } catch (const ConfigError&) {
    return;  // damaged: told of when it is loaded
  }
  const auto saved = [&from](const char* note) {
    const auto found = from->state().find(note);
    return found == from->state().end() ? Json() : Json::parse(found->second, nullptr, false);
  };
  const Json plugins = saved(saved_run::kPlugins);
  if (plugins.is_object() && save.notes.contains(saved_run::kPlugins)) {
    const auto was_there = [&plugins](const Json& hash) {  // a file may have got another name
      return std::any_of(plugins.begin(), plugins.end(),
                         [&hash](const Json& one) { return one == hash; });
    };
    const Json now = Json::parse(save.notes.at(saved_run::kPlugins));
    for (const auto& [name, hash] : now.items()) {
      if (was_there(hash)) continue;
      save.on_notice(text(*begun, " was saved ",
                          plugins.contains(name) ? "with another build of " : "without ", name,
                          ": it goes on by what that does now"));
    }
  }
  const Json theirs = value_at(saved(saved_run::kProgram), "kernels");
  const std::string mine(to_string(kernel_choice()));
  if (!theirs.is_string() || theirs == mine) return;
  save.on_notice(text(*begun, " was saved by kernels ", theirs.dump(), ", and this run has ",
                      in_quotes(mine),
                      " (KUAFU_KERNELS): it goes on to the same values but for "
                      "rounding, not to the same bits"));
}

/// A folder, or a name that may become one. Reads only: rank 0 makes it.
void check_checkpoint_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder, error).lexically_normal();
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  KUAFU_REQUIRE(std::filesystem::is_directory(there, error), "--checkpoint ", folder, ": ",
                there.string(), " is no folder; allowed: a folder, or a name that nothing has yet");
}

}  // namespace

std::optional<NamedWeights> init_of(const WorkerOptions& options, const std::string& world,
                                    const Plan& plan, const Registries& registries) {
  if (options.init.empty()) return {};
  KUAFU_REQUIRE(options.begin_from.empty(), "--init ", options.init, " and --from ",
                options.begin_from, ": a run begins from one of them; leave one out");
  KUAFU_REQUIRE(world != worlds::kSimulated,
                "--init: the simulated world computes no numbers, so weights have no effect; leave "
                "it out, or use --world threads");
  NamedWeights weights = open_init("--init", options.init, plan, registries, options.plugins);
  if (!weights.absent.empty() && launched_rank().value_or(LaunchedRank{}).rank == 0) {
    std::cerr << "kuafu: warning: " << words_of_absent(weights)
              << ": they begin with the first values of train.seed" << std::endl;
  }
  return weights;
}

SaveOptions save_options_of(const WorkerOptions& options, const std::string& world,
                            const Plan& plan) {
  SaveOptions save;
  save.folder = options.checkpoint;
  save.every = options.save_every;
  save.keep = options.keep;
  save.from = options.begin_from;
  save.resumes = options.is_resumed || options.is_resumed_with_changes;
  if (options.is_resumed_with_changes) save.changes = ResumeChanges::kMeant;
  save.is_async = options.is_save_async;
  if (save.folder.empty()) {
    const char* asked = options.is_resumed_with_changes ? "--resume-with-changes"
                        : save.resumes                  ? "--resume"
                        : !save.from.empty()            ? "--from"
                        : save.is_async                 ? "--async"
                        : save.every > 0                ? "--every"
                        : save.keep > 0                 ? "--keep"
                                                        : nullptr;
    KUAFU_REQUIRE(asked == nullptr, asked,
                  " needs the folder of the checkpoints: ", "--checkpoint DIR");
    return save;
  }
  KUAFU_REQUIRE(world != worlds::kSimulated,
                "--checkpoint: the simulated world computes no numbers, ",
                "so there is nothing to save; leave it out, or use --world threads");
  check_can_be_saved(plan, save);
  check_checkpoint_folder(save.folder);
  save.notes = {{saved_run::kProgram, provenance().dump()}};
  if (!options.plugins.empty())
    save.notes[saved_run::kPlugins] = plugin_hashes(options.plugins).dump();
  save.on_notice = [](const std::string& notice) {
    const char* over_progress = ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";
    std::cerr << over_progress << "kuafu: " << notice << std::endl;
  };
  check_save_options(save, plan);
  tell_other_program(save);
  return save;
}

void check_log_is_new(const WorkerOptions& options) {
  std::error_code error;
  const bool has_rows = std::filesystem::is_regular_file(options.log_file, error) &&
                        std::filesystem::file_size(options.log_file, error) > 0;
  KUAFU_REQUIRE(!has_rows || options.is_resumed || options.is_resumed_with_changes, "--log ",
                options.log_file, ": there is one already, which this run would replace; give ",
                "another name, or go on behind its rows with --checkpoint DIR --resume");
}

void check_watching(const WorkerOptions& options, const std::string& world) {
  const char* asked = !options.log_file.empty()      ? "--log"
                      : options.log_every > 0        ? "--log-every"
                      : !options.tensorboard.empty() ? "--tensorboard"
                      : options.stop_after_s > 0     ? "--stop-after"
                                                     : nullptr;
  if (asked == nullptr) return;
  KUAFU_REQUIRE(world != worlds::kSimulated, asked,
                ": the simulated world makes no steps to be watched ",
                "or stopped; leave it out, or use --world threads");
  if (!options.log_file.empty()) {
    check_log_path(options.log_file);
    require_writable("--log", options.log_file);
    check_log_is_new(options);
  }
  if (options.tensorboard.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.tensorboard, error);
  KUAFU_REQUIRE(!error && ::access(options.tensorboard.c_str(), W_OK | X_OK) == 0, "--tensorboard ",
                options.tensorboard, ": not a folder that can be written",
                error ? text(": ", error.message()) : "");
  const bool goes_on = options.is_resumed || options.is_resumed_with_changes;
  KUAFU_REQUIRE(goes_on || !TensorBoard::is_used(options.tensorboard), "--tensorboard ",
                options.tensorboard,
                ": a run has written there; name another folder, or go on with that run: --resume");
}

bool shows_progress(const WorkerOptions& options) {
  return options.log_every > 0 || !options.log_file.empty() || !options.tensorboard.empty() ||
         progress_options_of_stderr(0, 0).is_terminal;
}

StepLog::Options log_options_of(const WorkerOptions& options, const Plan& plan, int64_t first) {
  const Progress::Options terminal = progress_options_of_stderr(0, 0);
  return {.is_terminal = terminal.is_terminal,
          .width = terminal.width,
          .every = options.log_every,
          .file = options.log_file,
          .board = options.tensorboard,
          .first = first,
          .end = plan.train.steps,
          .tokens = plan.train.batch * plan.model.sequence};
}

}  // namespace kuafu
