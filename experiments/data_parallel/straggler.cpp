// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "experiments/data_parallel/data_parallel.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/parallel/stale/replicas.h"

namespace kuafu::experiment {
namespace {

Plan make_plan(const Way& way, const StragglerOptions& options) {
  Plan plan;
  plan.model.layers = 2;
  plan.model.hidden = 64;
  plan.model.heads = 4;
  plan.model.sequence = 32;
  plan.model.dtype = DType::kF32;
  plan.parallel.data.size = options.ranks;
  plan.parallel.data.mode = way.mode;
  plan.parallel.data.servers = way.servers;
  plan.parallel.data.staleness = way.staleness;
  plan.optimizer.clip = 0;
  plan.data.kind = "synthetic";
  plan.train.batch = 2 * options.ranks;
  plan.train.steps = options.steps;
  plan.train.validation_batches = 0;
  return resolve(plan, options.ranks, builtin_registries().tensor_modes());
}

/// How many times slower a rank computes in a step.
double slowdown(const StragglerOptions& options, int rank, int64_t step) {
  const bool is_slow = options.scenario == "constant" ? rank + 1 == options.ranks
                       : options.scenario == "rotating"
                           ? step % options.ranks == options.ranks - 1 - rank
                           : false;
  return options.base * (is_slow ? options.factor : 1);
}

std::unique_ptr<Dataset> data_of(const Plan& plan) {
  return make_dataset(plan.data, plan.model, plan.train.seed, "");
}

/// One training from the start: seconds a step, the last loss, how far pushes were behind.
struct Trained {
  double seconds = 0, loss = 0;
  std::map<int64_t, int64_t> behind;  // updates that the parameters of a push lacked: how often
};

Trained train(const Plan& plan, const StragglerOptions& options, Communicator& world) {
  Trained trained;
  const Registries registries = builtin_registries();
  const auto data = data_of(plan);
  Engine engine(plan, registries, world, *data,
                {.slowdown = [&](int64_t step) { return slowdown(options, world.rank(), step); }});
  std::vector<double> losses;
  trained.seconds = timed(world, [&] {
    for (int64_t step = 0; step < plan.train.steps; ++step) losses.push_back(engine.step().loss);
    if (StaleReplica* replica = engine.stale()) replica->settle();
  });
  trained.seconds /= static_cast<double>(plan.train.steps);
  trained.loss = losses.back();
  StaleReplica* replica = engine.stale();
  if (replica == nullptr) return trained;
  trained.loss = replica->means(losses).back();
  for (const PushOrder& order : replica->pushes()) {
    for (size_t i = 0; i < order.size(); ++i) {
      ++trained.behind[static_cast<int64_t>(i) - order[i].version];
    }
  }
  return trained;
}

}  // namespace

Json measure_straggler(const StragglerOptions& options) {
  Json rows = Json::array();
  std::vector<Plan> plans;
  for (const std::string& way : options.ways) {
    plans.push_back(make_plan(parse_way(way), options));
    rows.push_back({{"way", way},
                    {"scenario", options.scenario},
                    {"ranks", options.ranks},
                    {"base", options.base},
                    {"factor", options.factor},
                    {"steps", options.steps},
                    {"seconds_per_step", Json::array()},
                    {"verdict", "not_run"}});
  }
  run_on_threads(options.ranks, [&](Communicator& world) {
    const bool is_first = world.rank() == 0;
    for (int64_t round = 0; round < options.rounds; ++round) {
      for (size_t i = 0; i < plans.size(); ++i) {
        const Trained t = train(plans[i], options, world);
        if (!is_first) continue;
        rows[i]["seconds_per_step"].push_back(t.seconds);
        rows[i]["loss"].push_back(t.loss);
        for (const auto& [updates, count] : t.behind) {
          Json& total = rows[i]["behind"][std::to_string(updates)];
          total = (total.is_null() ? 0 : total.get<int64_t>()) + count;
        }
      }
    }
    for (size_t i = 0; i < plans.size() && options.is_certified; ++i) {
      const Certificate c =
          certify(plans[i], builtin_registries(), world, data_of, {}, int64_t{4} << 30);
      if (is_first) rows[i]["verdict"] = c.verdict;
    }
  });
  return rows;
}

}  // namespace kuafu::experiment
