// SPDX-License-Identifier: Apache-2.0
#include "kuafu/conformance/trial_runs.h"

#include <mutex>

#include <ATen/ATen.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/engine/whole.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/simulate/compare.h"

namespace kuafu::conformance {
namespace {

constexpr std::chrono::seconds kPatience{60};

}  // namespace

std::unique_ptr<Dataset> made_up_data(const Plan& plan) {
  return make_dataset(plan.data, plan.model, plan.train.seed, "");
}

Plan placed_plan(const Registries& registries, const Overrides& settings) {
  try {
    const Plan plan =
        resolve(parse_plan("data.kind = \"synthetic\"\ntrain.validation_batches = 0\n",
                           "conformance", registries.choices(), settings),
                0, registries.tensor_modes());
    check_placement(plan, registries);
    return plan;
  } catch (const Refused&) {
    throw;
  } catch (const ConfigError& error) {
    throw Refused(error.what());
  }
}

std::vector<RankResult> trained(const Plan& plan, const Registries& registries, bool is_certified,
                                std::set<std::string>* unbooked) {
  RunOptions options;
  std::mutex mutex;  // of `unbooked`
  options.is_certified = is_certified;
  options.certificate_memory = kCertificateBytes;
  options.make_data = made_up_data;
  std::vector<RankResult> results(static_cast<size_t>(num_ranks(plan)));
  run_on_threads(static_cast<int>(results.size()),
                 [&](Communicator& world) {
                   TraceRecorder recorder;  // of the last step
                   RunOptions mine = options;
                   if (unbooked != nullptr) mine.recorder = &recorder;
                   results[static_cast<size_t>(world.rank())] =
                       run_rank(plan, registries, world, mine);
                   if (unbooked == nullptr) return;
                   const std::lock_guard lock(mutex);
                   for (const std::string& op : unbooked_ops(recorder.trace())) {
                     unbooked->insert(op);
                   }
                 },
                 {.timeout = kPatience});
  return results;
}

void expect_booked(const std::set<std::string>& unbooked, Notes& notes) {
  for (const std::string& op : unbooked) {
    notes.fail(op +
               " of a step is booked by nothing; make it of ops that are "
               "(kuafu/meter/op_kinds.cpp)");
  }
}

void expect_certified(const Plan& plan, const Registries& registries, Notes& notes) {
  std::set<std::string> unbooked;
  const std::vector<RankResult> results = trained(plan, registries, true, &unbooked);
  expect_booked(unbooked, notes);
  const Certificate& c = results[0].certificate;
  // Without an oracle one rank would be compared with itself: check_differences() looks at it.
  const bool has_reference = results.size() > 1 || registries.oracles.contains(plan.model.kind);
  notes.expect(!has_reference || (c.verdict == "equal" && c.level == "full"),
               "certificate of level ", c.level, ": ", c.describe(), "; native ",
               c.native.describe());
  const std::string other = difference(plan, registries, results, Transport::kThreads);
  notes.expect(other.empty(), other,
               ". Where only peak bytes differ: a tensor that two layers read needs fan_out() or a "
               "norm's residual(), for LibTorch adds its gradients in place on a CPU alone");
}

Start start_of(const Plan& plan, const Registries& registries) {
  Start start;
  const auto data = made_up_data(plan);
  run_on_threads(static_cast<int>(num_ranks(plan)),
                 [&](Communicator& world) {
                   Engine engine(plan, registries, world, *data, {});
                   const bool is_first = world.rank() == 0;
                   WholeTensors values =
                       whole_parameters(engine, is_first ? Keep::kYes : Keep::kNo);
                   const double loss = engine.step().loss;
                   if (!is_first) return;
                   for (auto& [name, t] : values) t = t.clone();
                   start = {std::move(values), loss};
                 },
                 {.timeout = kPatience});
  return start;
}

}  // namespace kuafu::conformance
