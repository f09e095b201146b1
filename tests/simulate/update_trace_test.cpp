// SPDX-License-Identifier: Apache-2.0
//
// How often an update goes over memory: once for moments and partial norms, once for the step. The
// bytes of an f32 parameter are those of the table in optim/README.md; clipping and the scale of a
// loss are a factor inside and cost none.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kuafu/comm/worlds.h"
#include "kuafu/optim/rule.h"
#include "kuafu/oracle/oracle.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

struct Passes {
  std::string measure, update;  ///< ops; no measure: empty
  int64_t bytes = 0;            ///< that an f32 parameter moves in both
};
/// Muon's are of matrices, by their own calls; a rule without a row is held by
/// `kuafu conformance --optimizer` alone.
const std::map<std::string, Passes> kPasses = {
    {"sgd", {"", "kuafu::sgd", 20}},
    {"adam", {"", "kuafu::adam", 28}},
    {"adamw", {"", "kuafu::adamw", 28}},
    {"lars", {"kuafu::lars_norms", "kuafu::lars", 28}},
    {"lamb", {"kuafu::lamb_norms", "kuafu::layer_step", 40}}};

/// Ops of the phase "update" in a rank's steps.
struct UpdateOps {
  std::map<std::string, int64_t> calls, bytes;  ///< own ops, by name
  std::set<std::string> on_elements;            ///< others that are given f32 tensors
};
UpdateOps update_ops(const Trace& trace) {
  UpdateOps ops;
  bool is_update = false;
  for (const TraceRecord& r : trace.records) {
    const std::string& name = trace.names[static_cast<size_t>(r.name)];
    if (r.kind == TraceKind::kPhaseBegin || r.kind == TraceKind::kPhaseEnd) {
      if (name == "update") is_update = r.kind == TraceKind::kPhaseBegin;
    } else if (r.kind == TraceKind::kOp && is_update) {
      const std::string& shapes = trace.shapes[static_cast<size_t>(r.payload[0])];
      if (name.starts_with("kuafu::")) {
        ++ops.calls[name];
        ops.bytes[name] += r.payload[2];
      } else if (shapes.find("f32") != std::string::npos) {
        ops.on_elements.insert(name + " " + shapes);
      }
    }
  }
  return ops;
}

tests::TracedSteps two_steps(const Plan& plan) {
  tests::TracedSteps steps;
  run_on_threads(1, [&](Communicator& world) {
    TraceRecorder recorder;
    steps = tests::traced_steps(plan, world, at::kCPU, recorder);
  });
  return steps;
}

TEST(PassesOfUpdates, AreOneToMeasureAndOneToUpdate) {
  const std::vector<Overrides> ways = {{{"optimizer.clip", "0"}},
                                       {{"optimizer.clip", "1e-3"}},
                                       {{"optimizer.clip", "1e-3"}, {"train.loss_scale", "8"}}};
  for (const auto& [kind, passes] : kPasses) {
    for (const Overrides& way : ways) {
      const Plan plan = tests::small_plan(
          tests::keys::both({{"optimizer.kind", kind}, {"model.dtype", "f32"}}, way));
      const auto model = oracle::make_model(plan.model, plan.train.seed);
      int64_t elements = 0, pieces = 0;
      for (const auto& [name, w] : oracle::initial_weights(*model, plan.train.seed)) {
        elements += 2 * w.numel();  // two steps
        pieces += 2;
      }
      const UpdateOps ops = update_ops(two_steps(plan).trace);
      const std::string where = text(kind, " ", way[0].second, way.size() > 1 ? " scaled" : "");
      std::map<std::string, int64_t> calls = {{passes.update, pieces},
                                              {"kuafu::sum_of_squares", pieces}};
      if (!passes.measure.empty()) calls[passes.measure] = pieces;
      EXPECT_EQ(ops.calls, calls) << where;
      int64_t moved = 0;
      for (const auto& [name, bytes] : ops.bytes) {
        if (name != "kuafu::sum_of_squares") moved += bytes;
      }
      EXPECT_EQ(moved, passes.bytes * elements) << where;
      EXPECT_EQ(ops.bytes.at("kuafu::sum_of_squares"), 4 * elements) << where;
      EXPECT_EQ(ops.on_elements, std::set<std::string>()) << where;
    }
  }
}

}  // namespace
}  // namespace kuafu
