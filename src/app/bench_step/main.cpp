// SPDX-License-Identifier: Apache-2.0
//
// kuafu-bench-step: times training steps of a GPT, or of a plan, on thread ranks, by itself or
// taking turns with another program (--serve). baselines/pytorch/compare.py drives it beside
// PyTorch; train.py trains what --export writes.

#include <algorithm>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/bench_step/resident.h"
#include "app/bench_step/start_file.h"
#include "app/bench_step/stepper.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/worlds.h"
#include "kuafu/engine/registries.h"
#include "kuafu/engine/run.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

const std::vector<std::string> kModes = {"single",   "data", "zero1", "zero2", "zero3",
                                         "pipeline", "1d",   "1d-sp", "2d"};

struct Options {
  int64_t layers = 4, hidden = 256, heads = 4, sequence = 128, batch = 8;
  int64_t ranks = 1, steps = 20, warmup = 5;
  std::optional<int64_t> micro_batch;  // of --mode pipeline alone, 1 where it is not given
  std::string mode = "single";
  bool is_silent = false, is_unmetered = false, serves = false;
  std::string world = worlds::kThreads, json_file, start_file, plan_file;
};

/// What --plan says instead.
const std::vector<std::string> kPlanned = {"--layers", "--hidden", "--heads", "--sequence",
                                           "--batch",  "--mode",   "--ranks", "--micro-batch"};

void add_options(CLI::App& app, Options& o) {
  for (auto& [name, value] : {std::pair{"--layers", &o.layers}, std::pair{"--hidden", &o.hidden},
                              std::pair{"--heads", &o.heads}, std::pair{"--sequence", &o.sequence},
                              std::pair{"--ranks", &o.ranks}, std::pair{"--steps", &o.steps}}) {
    app.add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
  }
  app.add_option("--batch", o.batch, "samples a step, all ranks together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps before the timed ones")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--mode", o.mode)->check(CLI::IsMember(kModes))->capture_default_str();
  app.add_option("--micro-batch", o.micro_batch,
                 "samples of a micro-batch of --mode pipeline; 1 where it is not given")
      ->check(CLI::PositiveNumber);
  app.add_option("--world", o.world, "mpi: one of the processes that scripts/mpirun.sh started")
      ->check(CLI::IsMember({worlds::kThreads, worlds::kMpi}))
      ->capture_default_str();
  app.add_flag("--no-communication", o.is_silent,
               "the ranks compute the same shapes and never talk: the limit of any back end");
  app.add_flag("--no-meter", o.is_unmetered, "count neither bytes nor memory nor FLOPs");
  app.add_flag("--serve", o.serves,
               "wait for lines 'run K' on the input, answer each with a line of JSON; 'quit' ends");
  app.add_option("--json", o.json_file, "write the result to a file as well");
  app.add_option("--export", o.start_file,
                 "only write the plan, parameters and the samples of --steps steps, for another "
                 "program to begin with")
      ->excludes("--mode")
      ->excludes("--ranks")
      ->excludes("--micro-batch");
  CLI::Option* plan =
      app.add_option("--plan", o.plan_file, "the plan of this file, on as many ranks as it has");
  for (const std::string& name : kPlanned) plan->excludes(app.get_option(name));
}

/// The plan of --plan, or of the other options: f32, AdamW, no clipping, synthetic tokens of a
/// vocabulary of 256.
Plan plan_of(const Options& o) {
  if (!o.plan_file.empty()) {
    const Registries registries = builtin_registries();
    const TensorModes modes = registries.tensor_modes();
    return resolve(load_plan(o.plan_file, modes, {}, registries.models.names()), 0, modes);
  }
  KUAFU_REQUIRE(o.mode != "single" || o.ranks == 1, "--mode single has one rank, not ", o.ranks,
                "; choose another of ", to_string(kModes));
  KUAFU_REQUIRE(!o.micro_batch || o.mode == "pipeline", "--micro-batch ", *o.micro_batch,
                " is of --mode pipeline; --mode ", o.mode,
                " takes the batch of a rank in one go: leave it out");
  Plan plan;
  plan.model.layers = o.layers;
  plan.model.hidden = o.hidden;
  plan.model.heads = o.heads;
  plan.model.sequence = o.sequence;
  const bool is_zero = o.mode.starts_with("zero");
  if (o.mode == "data" || o.mode == "single" || is_zero) {
    plan.parallel.data.size = o.ranks;
    if (is_zero) plan.parallel.zero = o.mode.back() - '0';
  } else if (o.mode == "pipeline") {
    plan.parallel.pipeline.size = o.ranks;
    plan.train.micro_batch = o.micro_batch.value_or(1);
  } else {
    plan.parallel.tensor.mode = o.mode;
    plan.parallel.tensor.size = o.ranks;
  }
  plan.optimizer.clip = 0;
  plan.data.kind = "synthetic";
  plan.train.batch = o.batch;
  return resolve(plan, o.ranks, builtin_registries().tensor_modes());
}

/// Answers "run K" until "quit" or the end of the input.
void serve(const Stepper::RunSteps& run) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb, rest;
    int64_t count = 0;
    words >> verb;
    if (verb == "quit") return;
    KUAFU_REQUIRE(verb == "run" && (words >> count) && count >= 1 && !(words >> rest),
                  "unknown request '", line, "': send 'run K' with K >= 1, or 'quit'");
    const StepSamples s = run(count);
    const Json answer = {{"samples", s.seconds},
                         {"losses", s.losses},
                         {"tensor_bytes", s.tensor_bytes},
                         {"resident_bytes", s.resident_bytes}};
    std::cout << answer.dump() << std::endl;
  }
}

Json document(const Options& o, const Plan& plan, const StepSamples& s) {
  const StepTime time = summarise(s.seconds);
  const double tokens = static_cast<double>(plan.train.batch * plan.model.sequence);
  return {{"benchmark", "step"},
          {"settings",
           {{"mode", o.plan_file.empty() ? o.mode : "plan"},
            {"layers", plan.model.layers},
            {"hidden", plan.model.hidden},
            {"heads", plan.model.heads},
            {"sequence", plan.model.sequence},
            {"batch", plan.train.batch},
            {"ranks", num_ranks(plan)},
            {"world", o.world},
            {"communicates", !o.is_silent},
            {"metered", !o.is_unmetered}}},
          {"step_time_s",
           {{"median", time.median},
            {"ci95", time.ci95 ? Json(*time.ci95) : Json(nullptr)},
            {"samples", s.seconds}}},
          {"tokens_per_s", tokens / time.median},
          {"loss", s.losses},
          {"tensor_bytes", s.tensor_bytes},
          {"provenance", provenance()}};
}

void once(const Options& o, const Plan& plan, const Stepper::RunSteps& run) {
  if (o.warmup > 0) run(o.warmup);
  const Json result = document(o, plan, run(o.steps));
  std::cout << result.dump() << std::endl;
  if (o.json_file.empty()) return;
  replace_file(o.json_file, json_document(result));
}

/// Silent threads of a pipeline that share cores are timed in turns, which processes cannot take.
void require_core_a_rank(const Options& o, const Plan& plan) {
  if (!o.is_silent || o.world != worlds::kMpi || plan.parallel.pipeline.size == 1) return;
  const auto cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  KUAFU_REQUIRE(num_ranks(plan) <= cores, "--no-communication --world mpi of a pipeline on ",
                num_ranks(plan), " ranks: at most one on each of the ", cores,
                " cores here; more of them: --world threads");
}

int main_with(int argc, char** argv) {
  CLI::App app("Times training steps of a GPT on thread or MPI ranks");
  app.footer("Example: kuafu-bench-step --mode 1d --ranks 2 --hidden 256 --steps 20");
  Options options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  initialise_tensors();
  if (!options.start_file.empty()) {
    options.mode = "single";
    options.ranks = 1;
    write_start(plan_of(options), options.steps, options.start_file);
    return 0;
  }
  const int64_t resident = resident_bytes();
  KUAFU_REQUIRE(
      options.world == worlds::kMpi || launched_rank().value_or(LaunchedRank{}).ranks == 1,
      "an MPI launcher started this program; add --world mpi, or start it by itself");
  require_recordable(options.json_file);
  const Plan plan = plan_of(options);
  require_core_a_rank(options, plan);
  Stepper stepper(plan, {.is_silent = options.is_silent,
                         .is_metered = !options.is_unmetered,
                         .is_mpi = options.world == worlds::kMpi,
                         .resident_before = resident});
  stepper.lead([&](const Stepper::RunSteps& run) {
    if (options.serves) {
      serve(run);
    } else {
      once(options, plan, run);
    }
  });
  return 0;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  kuafu::install_allocators();  // before the first tensor
  try {
    return kuafu::main_with(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "kuafu-bench-step: " << e.what() << std::endl;
    return 1;
  }
}
