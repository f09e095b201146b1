// SPDX-License-Identifier: Apache-2.0
#include "app/worker/options.h"

#include <iostream>

#include "kuafu/base/config.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/torch_folder.h"
#include "kuafu/dataset/shared_corpora.h"
#include "kuafu/dataset/token_files.h"
#include "kuafu/engine/plugin.h"
#include "kuafu/plan/warnings.h"

namespace kuafu {

Registries load_registries(const WorkerOptions& options) {
  Registries registries = builtin_registries();
  for (const std::string& plugin : options.plugins) load_plugin(plugin, registries);
  return registries;
}

namespace {

Overrides all_overrides(const WorkerOptions& options) {
  Overrides overrides = options.overrides;
  if (options.steps > 0) overrides.emplace_back("train.steps", text(options.steps));
  return overrides;
}

/// The schedule goes on to where it went; so does a run that is resumed.
void stop_earlier(Plan& plan, int64_t stop_at) {
  if (stop_at == 0) return;
  KUAFU_REQUIRE(stop_at <= plan.train.steps, "--stop-at ", stop_at, ": the plan ends after step ",
                plan.train.steps, " (train.steps); name one of its steps, or raise --steps");
  plan.optimizer.schedule_steps = plan.schedule_steps();
  plan.train.steps = stop_at;
}

}  // namespace

std::optional<int64_t> steps_beyond(const WorkerOptions& options) {
  if (options.stop_at == 0) return std::nullopt;
  const std::string toml = read_file(options.plan_file, "plan");
  const int64_t steps = parse_values(toml, options.plan_file, all_overrides(options)).train.steps;
  return options.stop_at < steps ? std::optional(steps) : std::nullopt;
}

plan::Origins load_origins(const WorkerOptions& options) {
  return plan::origins_of(read_file(options.plan_file, "plan"), options.plan_file,
                          all_overrides(options));
}

Plan load_resolved(const WorkerOptions& options, const Registries& registries, int64_t world_ranks,
                   Warn warn) {
  const TensorModes modes = registries.tensor_modes();
  Choices choices = registries.choices();
  choices.plugins = options.plugins;
  Plan plan = load_plan(options.plan_file, choices, all_overrides(options));
  KUAFU_REQUIRE(world_ranks == 0 || options.ranks == 0 || options.ranks == world_ranks, "--ranks ",
                options.ranks, " was given, but ",
                launched_rank() ? text("the launcher started ", world_ranks)
                                : std::string("no launcher started others, which makes 1"),
                world_ranks == 1 ? " rank" : " ranks", "; leave --ranks out or start as many");
  stop_earlier(plan, options.stop_at);
  plan::with_origins(load_origins(options), [&] {
    plan = world_ranks > 0 ? resolve(plan, world_ranks, modes)
                           : resolve(plan, options.ranks, modes, "--ranks");
  });
  const bool is_told = launched_rank().value_or(LaunchedRank{}).rank == 0 && warn == Warn::kYes;
  if (!is_told) return plan;
  for (const std::string& warning : plan::warnings(plan, load_origins(options))) {
    std::cerr << "kuafu: warning: " << warning << std::endl;
  }
  return plan;
}

DataOpener data_opener() {
  const Tokenizing tokenizing{.folder = cache_folder(), .tell = [](const std::string& what) {
                                std::cerr << "kuafu: " << what << std::endl;
                              }};
  return [corpora = std::make_shared<SharedCorpora>(tokenizing)](const Plan& plan) {
    return open_data(plan.data, plan.model, plan.train.seed, default_corpus(torch_folder()),
                     *corpora);
  };
}

std::function<std::unique_ptr<Dataset>(const Plan&)> dataset_opener(const DataOpener& open) {
  return [open](const Plan& plan) { return open(plan).dataset; };
}

}  // namespace kuafu
