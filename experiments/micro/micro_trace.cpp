// SPDX-License-Identifier: Apache-2.0
//
// What a trace costs: steps of a plan without a recorder, with one, and without one again, in turns
// in one run. The third says what the ratio of equal steps is here. Each way is a training of its own, and
// all three have the same losses to the bit.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>

#include <CLI/CLI.hpp>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Of this rank: by the wall, and of its own thread on a core, which neighbours disturb less.
struct Times {
  double wall_s = 0, cpu_s = 0;
};

Times now() {
  timespec cpu{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(wall).count(),
          static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9};
}

Json spread(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    return samples[static_cast<size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {{"median", at(0.5)}, {"quartiles", {at(0.25), at(0.75)}}};
}

/// The second of two steps: the first one of a trace fills its tables. Losses of both are kept.
Times second_step(Engine& engine, TraceRecorder* recorder, std::vector<double>& losses) {
  std::optional<OpTraceScope> traced;
  if (recorder != nullptr) traced.emplace(*recorder);
  losses.push_back(engine.step().loss);
  if (recorder != nullptr) recorder->clear();
  const Times start = now();
  const StepReport report = engine.step();
  const Times end = now();
  losses.push_back(report.loss);
  return {end.wall_s - start.wall_s, end.cpu_s - start.cpu_s};
}

/// Losses of all steps of each way, which must have the same bits.
Json compared(const std::vector<double> (&losses)[3]) {
  const auto has_bits_of_first = [&](const std::vector<double>& other) {
    return other.size() == losses[0].size() &&
           std::memcmp(other.data(), losses[0].data(), other.size() * sizeof(double)) == 0;
  };
  const bool is_equal = has_bits_of_first(losses[1]) && has_bits_of_first(losses[2]);
  return {{"verdict", is_equal ? "equal" : "different"},
          {"what", "losses of every step with a recorder and without one again, bit by bit"},
          {"steps", losses[0].size()},
          {"last_loss", losses[0].back()}};
}

Json measure(const Plan& plan, int64_t rounds) {
  Json document;
  const Registries registries = builtin_registries();
  run_on_threads(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
    RankBook book(world.rank());
    const BookScope booked(&book);
    Ledger ledgers[3];
    std::optional<Engine> engines[3];
    for (size_t turn = 0; turn < 3; ++turn) {
      engines[turn].emplace(plan, registries, world, *data,
                            EngineOptions{.ledger = &ledgers[turn]});
    }
    std::vector<double> losses[3], wall[3], cpu[3], wall_ratios[3],
        cpu_ratios[3];  // [1]: with a trace
    size_t num_events = 0;
    for (int64_t round = -3; round < rounds; ++round) {
      TraceRecorder recorder;
      Times times[3];
      for (int64_t i = 0; i < 3; ++i) {  // each is first in turns
        const int64_t turn = (round + 3 + i) % 3;
        times[turn] = second_step(*engines[turn], turn == 1 ? &recorder : nullptr, losses[turn]);
      }
      num_events = recorder.trace().records.size();
      if (round < 0) continue;
      for (const int turn : {0, 1, 2}) {
        wall[turn].push_back(times[turn].wall_s);
        cpu[turn].push_back(times[turn].cpu_s);
        wall_ratios[turn].push_back(times[turn].wall_s / times[0].wall_s);
        cpu_ratios[turn].push_back(times[turn].cpu_s / times[0].cpu_s);
      }
    }
    const Json proof = compared(losses);
    KUAFU_CHECK(world.rank() == 0 || proof["verdict"] == "equal", "other losses with a recorder");
    if (world.rank() != 0) return;
    document = {{"benchmark", "trace"},
                {"settings",
                 {{"ranks", world.size()},
                  {"model", plan.model.kind},
                  {"layers", plan.model.layers},
                  {"hidden", plan.model.hidden},
                  {"batch", plan.train.batch},
                  {"rounds", rounds}}},
                {"events", num_events},
                {"wall_s", {{"without", spread(wall[0])}, {"with", spread(wall[1])}}},
                {"cpu_s", {{"without", spread(cpu[0])}, {"with", spread(cpu[1])}}},
                {"wall_ratio_in_a_round",
                 {{"with", spread(wall_ratios[1])}, {"without_again", spread(wall_ratios[2])}}},
                {"cpu_ratio_in_a_round",
                 {{"with", spread(cpu_ratios[1])}, {"without_again", spread(cpu_ratios[2])}}},
                {"compared", proof},
                {"provenance", provenance()}};
  });
  return document;
}

int run(int argc, char** argv) {
  std::string plan_file, json_file;
  int64_t rounds = 40;
  std::vector<std::string> pairs;
  CLI::App app("What a trace costs a step, in one run; data are synthetic.");
  app.footer("example: micro_trace examples/gpt.toml --rounds 120 --set model.hidden=256");
  app.add_option("plan", plan_file)->required()->check(CLI::ExistingFile);
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--set", pairs, "KEY=VALUE of the plan; may be repeated");
  app.add_option("--json", json_file, "write the result to a file as well");
  CLI11_PARSE(app, argc, argv);
  require_recordable(json_file);
  initialise_tensors();
  Overrides settings = {{"data.kind", "synthetic"}};
  for (const std::string& pair : pairs) {
    const size_t equals = std::min(pair.find('='), pair.size());
    KUAFU_REQUIRE(equals < pair.size(), "--set ", pair, ": expected KEY=VALUE");
    settings.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  const TensorModes modes = builtin_registries().tensor_modes();
  const Json document = measure(resolve(load_plan(plan_file, modes, settings), 0, modes), rounds);
  std::cout << document.dump(1) << std::endl;
  if (!json_file.empty()) replace_file(json_file, json_document(document));
  return document["compared"]["verdict"] == "equal" ? 0 : 1;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  kuafu::install_allocators();  // before the first tensor
  try {
    return kuafu::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "micro_trace: " << e.what() << std::endl;
    return 1;
  }
}
