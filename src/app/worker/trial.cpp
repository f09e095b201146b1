// SPDX-License-Identifier: Apache-2.0
#include "app/worker/trial.h"

#include "app/worker/options.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

RunOptions run_options_of(const Plan& plan, const TrialOptions& options) {
  static const Requests kNone;  // asked for nothing: with it a run that diverges has a certificate
  RunOptions run;
  run.requests = &kNone;
  run.is_certified = options.is_certified;
  run.make_data = dataset_opener();
  run.checkpoint = options.checkpoint;
  if (!plan.parallel.data.is_stale() || options.checkpoint.folder.empty()) return run;
  const auto workers = static_cast<int>(plan.parallel.data.size);
  for (int64_t push = 0; push < plan.train.steps * workers; ++push)
    run.push_script.push_back(static_cast<int>(push % workers));
  return run;
}

std::vector<RankResult> run_threads(const Plan& plan, const Registries& registries,
                                    const TrialOptions& options) {
  const RunOptions run = run_options_of(plan, options);
  std::vector<RankResult> results(static_cast<size_t>(num_ranks(plan)));
  run_on_threads(static_cast<int>(results.size()),
                 [&](Communicator& world) {
                   results[static_cast<size_t>(world.rank())] =
                       run_rank(plan, registries, world, run);
                 },
                 {.timeout = options.timeout});
  return results;
}

}  // namespace kuafu
