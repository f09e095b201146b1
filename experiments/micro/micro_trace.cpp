// SPDX-License-Identifier: Apache-2.0
//
// What a trace costs: steps of a plan with its recorder and without, in turns in one run.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/record/json.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json spread(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    return samples[static_cast<size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {{"median", at(0.5)}, {"quartiles", {at(0.25), at(0.75)}}};
}

/// Seconds of the second of two steps: the first one of a trace fills its tables.
double second_step(Engine& engine, TraceRecorder* recorder) {
  std::optional<OpTraceScope> traced;
  if (recorder != nullptr) traced.emplace(*recorder);
  engine.step();
  if (recorder != nullptr) recorder->clear();
  const double start = seconds_now();
  engine.step();
  return seconds_now() - start;
}

void measure(const Plan& plan, int64_t rounds) {
  const Registries registries = builtin_registries();
  run_on_threads(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
    RankBook book(world.rank());
    const BookScope booked(&book);
    Ledger ledger;
    Engine engine(plan, registries, world, *data, {.ledger = &ledger});
    std::vector<double> without, with, ratios;
    size_t num_events = 0;
    for (int64_t round = -3; round < rounds; ++round) {
      TraceRecorder recorder;
      double times[2] = {0, 0};
      for (const int64_t turn : {round & 1, (round & 1) ^ 1}) {  // each is first in turns
        times[turn] = second_step(engine, turn == 1 ? &recorder : nullptr);
      }
      num_events = recorder.trace().records.size();
      if (round < 0) continue;
      without.push_back(times[0]);
      with.push_back(times[1]);
      ratios.push_back(times[1] / times[0]);
    }
    if (world.rank() != 0) return;
    const Json off = spread(without), on = spread(with);
    const Json document = {
        {"benchmark", "trace"},
        {"settings",
         {{"ranks", world.size()},
          {"model", plan.model.kind},
          {"layers", plan.model.layers},
          {"hidden", plan.model.hidden},
          {"batch", plan.train.batch},
          {"rounds", rounds}}},
        {"events", num_events},
        {"step_s", {{"without", off}, {"with", on}}},
        {"ratio_of_medians", on["median"].get<double>() / off["median"].get<double>()},
        {"ratio_in_a_round", spread(ratios)},
        {"provenance", provenance()}};
    std::cout << document.dump(1) << std::endl;
  });
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  using namespace kuafu;
  install_allocators();  // before the first tensor
  try {
    KUAFU_REQUIRE(argc >= 3 && std::atoll(argv[2]) > 0,
                  "usage: micro_trace PLAN.toml ROUNDS [KEY=VALUE]...; data are synthetic");
    initialise_tensors();
    Overrides settings = {{"data.kind", "synthetic"}};
    for (int i = 3; i < argc; ++i) {
      const std::string pair = argv[i];
      const size_t equals = std::min(pair.find('='), pair.size());
      KUAFU_REQUIRE(equals < pair.size(), pair, ": expected KEY=VALUE");
      settings.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    }
    const TensorModes modes = builtin_registries().tensor_modes();
    measure(resolve(load_plan(argv[1], modes, settings), 0, modes), std::atoll(argv[2]));
  } catch (const std::exception& e) {
    std::cerr << "micro_trace: " << e.what() << std::endl;
    return 1;
  }
  return 0;
}
