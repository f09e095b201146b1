// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <optional>

#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/check.h"

namespace kuafu::plan {
namespace {

/// Keys that mean nothing without a pipeline.
void check_alone(const PipelinePlan& p, const Origins& origins) {
  const PipelinePlan none;
  const auto refuse = [&](const std::string& key, const std::string& value) {
    throw Refused(text(origins.of({"parallel.pipeline." + key, "parallel.pipeline.size"}),
                       "parallel.pipeline.", key, " = ", value,
                       " with parallel.pipeline.size = 1: ",
                       "one rank has no pipeline; nearest: size = ", std::max<int64_t>(2, p.chunks),
                       ", or leave ", key, " out"));
  };
  if (p.schedule != none.schedule) refuse("schedule", in_quotes(p.schedule));
  if (p.chunks != none.chunks) refuse("chunks", text(p.chunks));
  if (p.blocks != none.blocks) refuse("blocks", text("a list of ", p.blocks.size()));
}

/// Blocks that a built-in model has at least: embedding, layers, head; 0 where nobody knows.
int64_t fewest_blocks(const Plan& plan) {
  const std::vector<std::string> kinds = builtin_model_names();
  const bool is_known = std::find(kinds.begin(), kinds.end(), plan.model.kind) != kinds.end();
  return is_known ? plan.model.layers + 2 : 0;
}

/// Blocks of each stage where all blocks cost the same, as pipeline::partition() deals them out: the
/// last stages have one more. That takes n^2 steps, and n may be 65536.
std::vector<std::string> even_blocks(int64_t blocks, int64_t stages) {
  std::vector<std::string> numbers;
  for (int64_t stage = 0; stage < stages; ++stage) {
    numbers.push_back(text(blocks / stages + (stage < stages - blocks % stages ? 0 : 1)));
  }
  return numbers;
}

void check_blocks(const Plan& plan, const Origins& origins) {
  const PipelinePlan& p = plan.parallel.pipeline;
  const int64_t blocks = fewest_blocks(plan), stages = p.stages();
  // Layers of several modes have re-layouts between them: then the placement counts.
  const bool is_exact = blocks > 0 && plan.parallel.layers.empty();
  if (is_exact && stages > blocks) {
    const int64_t most = blocks / p.chunks;  // one rank has no pipeline
    const std::string fewer_ranks = most > 1 ? text("size = ", most, ", or ") : "";
    throw Refused(
        text(origins.of({"parallel.pipeline.chunks", "parallel.pipeline.size", "model.layers"}),
             "parallel.pipeline = { size = ", p.size, ", chunks = ", p.chunks, " } makes ", stages,
             " stages of ", blocks, " blocks (embedding, model.layers = ", plan.model.layers,
             ", head); nearest: ", fewer_ranks, "layers = ", stages - 2));
  }
  if (p.blocks.empty()) return;
  const auto given = static_cast<int64_t>(p.blocks.size());
  const int64_t sum = std::accumulate(p.blocks.begin(), p.blocks.end(), int64_t{0});
  const std::string where = origins.of({"parallel.pipeline.blocks"});
  if (given != stages) {
    throw Refused(text(where, "parallel.pipeline.blocks has ", given, " numbers for ", stages,
                       " stages (size x chunks = ", p.size, " x ", p.chunks, "); nearest: ", stages,
                       " numbers, or leave blocks out"));
  }
  if (is_exact && sum != blocks) {
    const std::vector<std::string> near = even_blocks(blocks, stages);
    throw Refused(text(where, "parallel.pipeline.blocks adds up to ", sum, ", the model has ",
                       blocks, " blocks (embedding, model.layers = ", plan.model.layers,
                       ", head); nearest: blocks = [", join(near), "]"));
  }
}

/// Of a step, where the plan says how many replicas share the batch, and in which parts.
std::optional<int64_t> num_micro_batches(const Plan& plan) {
  const int64_t data = plan.parallel.data.size;
  if (data == 0 || batch_misfit(plan)) return {};
  const int64_t micro =
      plan.train.micro_batch == 0 ? plan.train.batch / data : plan.train.micro_batch;
  return plan.train.batch / (data * micro);
}

}  // namespace

void check_schedule(const Plan& plan, const std::vector<std::string>& schedules,
                    const Origins& origins) {
  if (plan.parallel.pipeline.size == 1) return;  // then it has no effect, which is told
  try {
    pipeline::check_schedule_name(plan.parallel.pipeline.schedule, schedules);
  } catch (const NotFound& e) {
    throw NotFound(text(origins.of({"parallel.pipeline.schedule", "parallel.pipeline.size"}),
                        "parallel.pipeline.schedule: ", e.what()));
  }
}

void check_pipeline(const Plan& plan, const Origins& origins) {
  const PipelinePlan& p = plan.parallel.pipeline;
  if (p.size == 1) return check_alone(p, origins);
  try {
    if (pipeline::builtin_schedules().contains(p.schedule)) {
      // Chunks; whatever the micro-batches, a generator's schedule runs.
      pipeline::make_timetable(p.schedule, {2, 1, static_cast<int>(p.chunks)});
    } else if (!pipeline::is_schedule_file(p.schedule)) {
      // A plug-in's: check_schedule has seen its name, what it makes is checked when it is made.
    } else if (const auto micro_batches = num_micro_batches(plan)) {
      pipeline::make_timetable(
          p.schedule,
          {static_cast<int>(p.size), static_cast<int>(*micro_batches), static_cast<int>(p.chunks)});
    } else {
      pipeline::load_timetable(p.schedule);
    }
  } catch (const Refused& e) {
    throw Refused(text(origins.of({"parallel.pipeline.chunks", "parallel.pipeline.schedule"}),
                       "parallel.pipeline: ", e.what()));
  } catch (const ConfigError& e) {
    throw ConfigError(text(origins.of({"parallel.pipeline.schedule", "parallel.pipeline.size"}),
                           "parallel.pipeline.schedule: ", e.what()));
  }
  check_blocks(plan, origins);
}

}  // namespace kuafu::plan
