// SPDX-License-Identifier: Apache-2.0
//
// Micro-batches lost, twice, stale or in another's place; sums of them divided wrongly; timetables
// with a wrong row.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>

#include "kuafu/parallel/pipeline/schedules.h"
#include "tests/mutants/mutant.h"
#include "tests/mutants/op_kit.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Product = SchemeFault::Product;

struct Named {
  const char* schedule;
  int ranks, chunks;
  int before;  ///< of two micro-batches in the middle, the one whose gradient comes first
};

constexpr Named kSchedules[] = {{"gpipe", 3, 1, 2},
                                {"1f1b", 3, 1, 1},
                                {"interleaved", 2, 2, 1},
                                {"zero_bubble", 3, 1, 1},
                                {"zbv", 2, 2, 1}};

Overrides overrides_of(const Named& n) {
  return {{"parallel.pipeline.size", text(n.ranks)},
          {"parallel.pipeline.schedule", n.schedule},
          {"parallel.pipeline.chunks", text(n.chunks)}};
}

void add_stages(Kit& kit, const Named& n) {
  using enum StageFault::Action;
  const auto add = [&](const std::string& what, const auto& fault) {
    kit.add(text(n.schedule, ": ", what), overrides_of(n), fault);
  };
  const int last = n.ranks * n.chunks - 1;
  for (const int stage : {1, last}) {
    add(text("stage ", stage, " reuses the activations before"),
        StageFault{.action = kStaleInput, .stage = stage});
    add(text("stage ", stage, " scales an activation by 1.001"),
        StageFault{.action = kScaleInput, .stage = stage, .factor = 1.001});
    add(text("stage ", stage, " loses the gradient it sends on"),
        StageFault{.action = kScaleSent, .stage = stage, .factor = 0});
  }
  for (const int stage : {0, last - 1}) {
    add(text("stage ", stage, " reuses the gradient before"),
        StageFault{.action = kStaleGrad, .stage = stage, .micro_batch = n.before});
    add(text("stage ", stage, " loses a gradient"),
        StageFault{.action = kScaleGrad, .stage = stage, .factor = 0});
    add(text("stage ", stage, " adds a gradient twice"),
        StageFault{.action = kScaleGrad, .stage = stage, .factor = 2});
  }
  for (const int stage : {0, last}) {
    add(text("stage ", stage, " swaps two micro-batches"),
        StageFault{.action = kSwapSamples, .stage = stage});
  }
  add("a weight gradient is skipped",
      SchemeFault{.product = Product::kWeightGrad, .at = 3, .factor = 0});
  add("a weight gradient is added twice",
      SchemeFault{.product = Product::kWeightGrad, .at = 3, .factor = 2});
  add("a weight gradient is that of the micro-batch before",
      SchemeFault{.product = Product::kWeightGrad, .action = SchemeFault::Action::kStale, .at = 9});
}

/// The rate of a cosine over six steps (optimizer.schedule_steps) taken for that over five, whose
/// last step has a tenth of `whole`.
OpFault over_five(const std::string& op, size_t index, double whole) {
  return with_number(op, index, [whole](double rate) {
    const double wave = std::clamp((rate / whole - 0.1) / 0.9, 0.0, 1.0);
    const double step = 5 * std::acos(2 * wave - 1) / std::numbers::pi;
    return whole * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * std::min(1.0, step / 4))));
  });
}

/// Accumulation without a pipeline.
void add_accumulation(Kit& kit) {
  const Overrides one = {{"train.micro_batch", "2"}}, two = {{"parallel.data", "2"}};
  const auto times = [](double factor, int64_t at) {
    OpFault f = with_number("cross_entropy_backward", 4, [factor](double s) { return factor * s; });
    f.at = at;
    return f;
  };
  kit.add("gradients are divided by a micro-batch less", one, times(4.0 / 3, 0));
  kit.add("gradients are summed, not divided by the micro-batches", one, times(4, 0));
  kit.add("a micro-batch's gradient is dropped", one, times(0, 2));
  kit.add("a micro-batch's gradient is added twice", one, times(2, 3));
  kit.add("the first micro-batch's gradient is overwritten", one, times(0, 1));
  kit.add("the loss leaves a micro-batch out", one, [] {
    OpFault f = with_result("cross_entropy_stats", 2, [](const at::Tensor& t) { return t * 0; });
    f.at = 2;
    return f;
  }());
  kit.add("a weight gradient is skipped", one,
          SchemeFault{.product = Product::kWeightGrad, .at = 9, .factor = 0});
  kit.add("a weight gradient is that of the micro-batch before", one,
          SchemeFault{
              .product = Product::kWeightGrad, .action = SchemeFault::Action::kStale, .at = 11});
  const auto on_rank_1 = [](OpFault f) {
    f.rank = 1;
    return f;
  };
  kit.add("one replica drops a micro-batch", two, on_rank_1(times(0, 2)));
  kit.add("rank 1 weighs its loss by another batch", two, on_rank_1(times(8.0 / 12, 0)));
  kit.add("rank 1 of a ring weighs its loss by another batch", keys::sequence("ring", "2"),
          on_rank_1(times(8.0 / 10, 0)));
  const Overrides cosine = {
      {"optimizer.schedule", "cosine"}, {"optimizer.schedule_steps", "6"}, {"parallel.data", "2"}};
  kit.believe("rank 1 has another horizon of its rate", cosine,
              [](Plan& p) { p.optimizer.schedule_steps = 3; });
  kit.add("adamw: the rate falls over five steps instead of six", cosine,
          over_five("adamw", 4, 0.01))
      .optimizer = "adamw";
  kit.add("sgd: the rate falls over five steps instead of six", cosine, over_five("sgd", 3, 0.1))
      .optimizer = "sgd";
}

auto of(pipeline::Op op, int micro_batch) {
  return [=](const pipeline::Action& a) { return a.op == op && a.micro_batch == micro_batch; };
}

/// A timetable of 1F1B with one row changed, as a file of its own.
void add_timetables(Kit& kit) {
  using pipeline::Op;
  using pipeline::Row;
  const auto add = [&](const std::string& what, const std::function<void(Row&)>& change) {
    Mutant& m = kit.mutants.emplace_back(
        Mutant{.name = "a timetable " + what,
               .overrides = {{"parallel.pipeline.size", "2"}, {"train.batch", "8"}},
               .causes = {".csv"}});
    m.believe = [what, change, fired = m.fired](Plan plan, int rank) {
      const auto micro_batches = static_cast<int>(plan.num_micro_batches());
      pipeline::Timetable t = pipeline::one_f_one_b({2, micro_batches, 1});
      change(t[1]);
      std::string name = what;
      std::replace(name.begin(), name.end(), ' ', '_');
      const auto file = std::filesystem::temp_directory_path() /
                        text("kuafu_", name, "_", micro_batches, "_", rank, ".csv");
      std::ofstream(file) << pipeline::to_csv(t);
      plan.parallel.pipeline.schedule = file.string();
      ++*fired;
      return plan;
    };
  };
  add("without a backward", [](Row& row) { std::erase_if(row, of(Op::kBackward, 1)); });
  add("without a forward", [](Row& row) { std::erase_if(row, of(Op::kForward, 1)); });
  add("with a backward twice", [](Row& row) { row.push_back(row.back()); });
  add("with a backward before its forward", [](Row& row) { std::swap(row.front(), row.back()); });
  add("with the other rank's stage", [](Row& row) { row.front().stage = 0; });
}

}  // namespace

Kit schedule_kit() {
  Kit kit{.name = "schedule"};
  for (const Named& n : kSchedules) {
    add_stages(kit, n);
    Mutant& none = kit.harmless.emplace_back(
        Mutant{.name = text(n.schedule, ": nothing"), .overrides = overrides_of(n)});
    set_fault(none, StageFault{.stage = -1});
    set_fault(none, SchemeFault{.at = int64_t{1} << 40});
  }
  add_accumulation(kit);
  add_timetables(kit);
  return kit;
}

}  // namespace kuafu::tests
