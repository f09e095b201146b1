// SPDX-License-Identifier: Apache-2.0
//
// kuafu-worker: the program that loads LibTorch and runs one case. `kuafu` starts it.

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "app/worker/crash_report.h"
#include "app/worker/early_exit.h"
#include "app/worker/fuzz.h"
#include "app/worker/mpi_ranks.h"
#include "app/worker/options.h"
#include "app/worker/run_end.h"
#include "app/worker/run_options.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/worlds.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/record/files.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda"}));
}

void add_plan_options(CLI::App& app, WorkerOptions& o, std::vector<std::string>& sets) {
  app.add_option("plan", o.plan_file, "plan file (TOML)")->required();
  app.add_option("--set", sets, "a.b=value, overrides a key of the plan");
  app.add_option("--ranks", o.ranks)->check(CLI::PositiveNumber);
  app.add_option("--steps", o.steps)->check(CLI::PositiveNumber);
  app.add_option("--plugin", o.plugins);
}

void add_run_options(CLI::App& app, WorkerOptions& o) {
  app.add_option("--world", o.world)->check(CLI::IsMember(world_names()));
  app.add_option("--transport", o.transport)
      ->check(CLI::IsMember({worlds::kThreads, worlds::kMpi}));
  add_device_option(app, o.device);
  app.add_flag("--certify,!--no-certify", o.is_certified);
  app.add_option("--certify-memory", o.certify_memory)->check(CLI::PositiveNumber);
  app.add_flag("!--no-meter", o.is_metered);
  app.add_option("--json", o.json_file);
  app.add_option("--trace", o.trace_file);
  app.add_option("--oracles", o.oracles_file);
  app.add_option("--timeline", o.timeline_file);
  app.add_option("--timeout", o.timeout_s)->check(CLI::PositiveNumber);
  app.add_option("--stop-after", o.stop_after_s)->check(CLI::PositiveNumber);
  app.add_option("--stop-at", o.stop_at)->check(CLI::PositiveNumber);
  app.add_option("--log", o.log_file);
  app.add_option("--log-every", o.log_every)->check(CLI::PositiveNumber);
  app.add_option("--tensorboard", o.tensorboard);
  app.add_option("--checkpoint", o.checkpoint);
  app.add_option("--every", o.save_every)->check(CLI::PositiveNumber);
  app.add_option("--keep", o.keep)->check(CLI::PositiveNumber);
  app.add_flag("--resume", o.is_resumed);
  app.add_option("--from", o.begin_from);
  app.add_option("--init", o.init);
  app.add_flag("--resume-with-changes", o.is_resumed_with_changes);
  app.add_flag("--async", o.is_save_async);
  app.add_flag("--of-suite", o.is_of_suite);
  app.add_option("--mpi-collectives", o.mpi_collectives)->check(CLI::IsMember({"own", "native"}));
}

Overrides split(const std::vector<std::string>& pairs, const std::string& option,
                const std::string& example) {
  Overrides out;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    KUAFU_REQUIRE(equals != std::string::npos && equals > 0, option, " ", pair,
                  ": expected key=value, for example ", option, " ", example);
    out.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return out;
}

void add_matrix_options(CLI::App& app, MatrixOptions& o, std::vector<std::string>& filters) {
  app.add_option("--filter", filters);
  app.add_option("--triples", o.triples)->check(CLI::NonNegativeNumber);
  app.add_option("--seed", o.seed);
  app.add_option("--share", o.share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--jobs", o.jobs)->check(CLI::Range(1, 1024));
  app.add_option("--out", o.out);
  app.add_option("--plugin", o.plugins);
}

/// "model gpt": one line a name, for programs.
void print_names(const Registries& registries) {
  const auto print = [](const char* kind, const std::vector<std::string>& names) {
    for (const std::string& name : names) std::cout << kind << " " << name << "\n";
  };
  print("tensor", registries.tensor.names());
  print("sequence", registries.sequence.names());
  print("model", registries.models.names());
  print("schedule", registries.schedules.names());
  print("optimizer", registries.optimizers.names());
  print("policy", registries.policies.names());
}

void add_fuzz_options(CLI::App& app, FuzzOptions& o, std::vector<std::string>& sets) {
  app.add_option("--seconds", o.seconds)->check(CLI::PositiveNumber);
  app.add_option("--plans", o.plans)->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed);
  app.add_option("--ranks", o.ranks)->check(CLI::PositiveNumber);
  app.add_option("--world", o.worlds)->check(CLI::IsMember(fuzz::world_names()));
  app.add_option("--jobs", o.jobs)->check(CLI::Range(1, 1024));
  app.add_option("--only", o.only)->excludes(app.add_option("--set", sets));
  app.add_option("--out", o.out);
  app.add_option("--timeout", o.timeout_s)->check(CLI::PositiveNumber);
  app.add_option("--trials", o.trials)->check(CLI::NonNegativeNumber);
  app.add_option("--plugin", o.plugins);
}

void add_ranks_options(CLI::App& app, RanksOptions& o) {
  app.add_option("door", o.door)->required();
  app.add_option("--mpi-collectives", o.mpi_collectives)->check(CLI::IsMember({"own", "native"}));
  app.add_option("--plugin", o.plugins);
}

void add_import_options(CLI::App& app, ImportOptions& o) {
  app.add_option("file", o.file)->required();
  app.add_option("--out", o.out)->required();
  app.add_option("--format", o.format);
  app.add_flag("--plan-only", o.is_plan_only);
  app.add_option("--plugin", o.plugins);
}

int list_command(const WorkerOptions& options) {
  const Registries registries = load_registries(options);
  if (options.is_names_only) {
    print_names(registries);
    return kOk;
  }
  std::cout << "tensor modes\n"
            << registries.tensor.describe() << "sequence modes\n"
            << registries.sequence.describe() << "models\n"
            << registries.models.describe() << "pipeline schedules\n"
            << registries.schedules.describe() << "optimizers\n"
            << registries.optimizers.describe() << "memory policies\n"
            << registries.policies.describe();
  return kOk;
}

void add_conformance_options(CLI::App& app, ConformanceOptions& o) {
  app.add_option("scheme", o.names["scheme"]);
  for (const char* kind : {"sequence", "model", "schedule", "optimizer", "policy"}) {
    app.add_option(text("--", kind), o.names[kind])->allow_extra_args(false);
  }
  app.add_option("--plugin", o.plugins)->allow_extra_args(false);
  app.add_option("--sizes", o.sizes)->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--timeout", o.timeout_s)->check(CLI::PositiveNumber);
  app.add_option("--json", o.json_file);
}

int main_with(int argc, char** argv) {
  CLI::App app("Runs one Kuafu case; started by kuafu");
  app.require_subcommand(1);
  WorkerOptions options;
  MatrixOptions matrix_options;
  std::vector<std::string> sets, filters;
  CLI::App* run = app.add_subcommand("run", "trains one case");
  CLI::App* generated = app.add_subcommand("generate", "goes on with prompts");
  GenerateOptions generate_options;
  add_plan_options(*generated, options, sets);
  add_generate_options(*generated, options, generate_options);
  CLI::App* perplexity = app.add_subcommand("perplexity", "foretells a text");
  PerplexityOptions perplexity_options;
  add_plan_options(*perplexity, options, sets);
  add_perplexity_options(*perplexity, options, perplexity_options);
  CLI::App* embedded = app.add_subcommand("embed", "makes vectors of texts");
  EmbedOptions embed_options;
  add_plan_options(*embedded, options, sets);
  add_embed_options(*embedded, options, embed_options);
  CLI::App* explain = app.add_subcommand("explain", "prints what a plan would do");
  CLI::App* frontier = app.add_subcommand("frontier", "finds the largest value that fits");
  CLI::App* conformance = app.add_subcommand("conformance", "checks choices of the registries");
  ConformanceOptions checked;
  add_conformance_options(*conformance, checked);
  std::string device;  // of the commands whose ranks are this program's; a run has its own
  CLI::App* list = app.add_subcommand("list", "prints the registries");
  CLI::App* matrix = app.add_subcommand("matrix", "tries which choices work together");
  add_matrix_options(*matrix, matrix_options, filters);
  FuzzOptions fuzz_options;
  CLI::App* fuzz = app.add_subcommand("fuzz", "runs random plans");
  add_fuzz_options(*fuzz, fuzz_options, sets);
  RanksOptions ranks_options;
  CLI::App* ranks = app.add_subcommand("ranks", "an MPI rank of fuzz and matrix");
  add_ranks_options(*ranks, ranks_options);
  ImportOptions import_options;
  CLI::App* import = app.add_subcommand("import", "makes weights a checkpoint");
  add_import_options(*import, import_options);
  for (CLI::App* command : {conformance, matrix, fuzz}) add_device_option(*command, device);
  add_plan_options(*run, options, sets);
  add_run_options(*run, options);
  add_plan_options(*explain, options, sets);
  explain->add_option("--timetable", options.timetable_file);
  explain->add_option("--json", options.json_file);
  add_plan_options(*frontier, options, sets);
  frontier->add_option("--json", options.json_file);
  frontier->add_option("--vary", options.vary)->required();
  frontier->add_option("--max", options.most)->required()->check(CLI::PositiveNumber);
  frontier->add_option("--policy", options.policies);
  frontier->add_option("--budget", options.budgets);
  frontier->add_flag("--measure", options.is_measured);
  list->add_option("--plugin", options.plugins);
  list->add_flag("--names", options.is_names_only);
  try {
    app.parse(argc, argv);
    if (device.empty() && (*conformance || *matrix || *fuzz)) device = device_by_environment();
    if (device == "cuda") compute_on(at::kCUDA);
    options.overrides = split(sets, "--set", "train.steps=5");
    matrix_options.filters = split(filters, "--filter", "scheme=2d");
    fuzz_options.settings = options.overrides;
    std::vector<std::string> plugins = options.plugins;
    for (const auto* more : {&checked.plugins, &import_options.plugins, &fuzz_options.plugins,
                             &ranks_options.plugins, &matrix_options.plugins}) {
      plugins.insert(plugins.end(), more->begin(), more->end());
    }
    // Runs and ranks are watched by somebody, and have threads of MPI that end the process.
    const bool is_forward = *generated || *perplexity || *embedded;
    const bool is_alone = !plugins.empty() && !*run && !*ranks && !is_forward;
    using Threads = UnfinishedWork::Threads;
    std::optional<UnfinishedWork> unfinished;
    unfinished.emplace(plugins, is_alone ? Threads::kAll : Threads::kOwn);
    std::optional<CrashReport> crashes;
    if (is_alone || *run) crashes.emplace(plugins);
    const int code = with_plugins(plugins, [&] {
      if (*fuzz) return fuzz_command(fuzz_options);
      if (*ranks) return ranks_command(ranks_options);
      if (*matrix) return matrix_command(matrix_options);
      if (*run) return run_command(options);
      if (*generated) return generate_command(options, generate_options);
      if (*perplexity) return perplexity_command(options, perplexity_options);
      if (*embedded) return embed_command(options, embed_options);
      if (*conformance) return conformance_command(checked);
      if (*import) return import_command(import_options);
      if (*explain) return explain_command(options);
      if (*frontier) return frontier_command(options);
      return list_command(options);
    });
    if (!is_alone || code == kOk) return code;
    std::cout.flush();
    unfinished.reset();
    end_process(code);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  } catch (const Refused& e) {
    std::cerr << "kuafu: refused: " << what_of(e) << "\n";
    return kRefused;
  } catch (const Unwritten& e) {
    std::cerr << "kuafu: " << e.what() << "\n";
    return kUnwritten;
  } catch (const ConfigError& e) {
    let_rank_0_report();
    std::cerr << "kuafu: " << reason_of(e) << "\n";
    return kUsage;
  } catch (const std::exception& e) {
    let_rank_0_report();
    std::cerr << "kuafu: " << reason_of(e) << "\n";
    return failure_of(e).code;
  }
}

/// An exception that nobody may catch, such as one that leaves the start of a thread. Without memory
/// for it the program has an end of its own; others abort.
[[noreturn]] void end_uncaught() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::exception& e) {
    const RunEnd end = failure_of(e);
    std::cerr << "kuafu: " << end.status << ": " << reason_of(e) << std::endl;
    if (end.code == kOutOfMemory) {
      while (true) ::syscall(SYS_exit_group, end.code);  // no handler of exit() is to run
    }
  } catch (...) {
  }
  std::abort();
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  std::set_terminate(kuafu::end_uncaught);
  ::signal(SIGUSR1, SIG_IGN);   // asks to save: nothing to die of before there is what to save
  ::signal(SIGXFSZ, SIG_IGN);   // a file-size limit is an error of write(), not the end
  kuafu::install_allocators();  // before the first tensor
  const int code = kuafu::main_with(argc, argv);
  std::cout.flush();
  if (std::cout || code != kuafu::kOk) return code;
  std::cerr << "kuafu: cannot write all of the standard output" << std::endl;
  return kuafu::kUnwritten;
}
