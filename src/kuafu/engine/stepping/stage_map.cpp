// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/stage_map.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/suggest.h"
#include "kuafu/base/trace.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/stepping/block_call.h"
#include "kuafu/engine/stepping/micro_batches.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/choose.h"

namespace kuafu {
namespace {

std::string list_of(const std::vector<int>& numbers) {
  std::vector<std::string> words;
  for (const int n : numbers) words.push_back(text(n));
  return "[" + join(words) + "]";
}

/// Blocks of each stage.
std::vector<int> share_blocks(const PipelinePlan& plan, const std::vector<double>& costs) {
  const auto stages = static_cast<int>(plan.stages());
  const auto num_blocks = static_cast<int64_t>(costs.size());
  if (plan.stages() > num_blocks) {
    throw Refused(text(
        "parallel.pipeline of ", plan.size, " ranks with ", plan.chunks,
        " stages each: ", num_blocks, " blocks (embedding and head counted) cannot ", "fill ",
        plan.stages(), " stages; nearest: size = ", std::max<int64_t>(1, num_blocks / plan.chunks),
        " with chunks = ", plan.chunks, ", or ", plan.stages() - num_blocks, " more model.layers"));
  }
  const std::vector<int> balanced = pipeline::partition(costs, stages);
  if (plan.blocks.empty()) return balanced;
  const std::vector<int> given(plan.blocks.begin(), plan.blocks.end());
  const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
  if (static_cast<int>(given.size()) != stages || sum != num_blocks) {
    throw Refused(
        text("parallel.pipeline.blocks = ", list_of(given), " gives ", given.size(), " stages ",
             sum, " blocks; there are ", stages, " stages and ", num_blocks,
             " blocks (embedding and head counted); nearest: blocks = ", list_of(balanced)));
  }
  return given;
}

}  // namespace

std::vector<BlockProfile> profile_blocks(const Plan& plan, const Registries& registries, int rank) {
  RankBook book(rank);
  const BookScope booked(&book);
  const TraceScope not_traced(nullptr);  // a look ahead, no part of the program
  const at::NoGradGuard no_grad;
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  const auto me = world.communicator(rank);
  Placement placement(plan, registries, rank, at::kMeta);
  placement.connect(*me, nullptr);
  const Model model = placement.make_model();
  Side side = make_side(plan, blank_tokens(plan.model, plan.train.micro_batch), placement.order(),
                        at::kMeta);
  side.is_training = false;
  std::vector<BlockProfile> profiles;
  Flow flow;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const int64_t before = book.flops();
    flow = call_block(model, b, flow, side);
    BlockProfile profile{.flops = static_cast<double>(book.flops() - before), .outputs = {}};
    for (const Tensor& t : flow) profile.outputs.push_back({shape_of(t), t.scalar_type()});
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

int StageMap::stage_of(size_t block) const {
  const auto next = std::upper_bound(first_block.begin(), first_block.end(), block);
  return static_cast<int>(next - first_block.begin()) - 1;
}

StageMap map_stages(const Plan& plan, const Registries& registries, size_t num_blocks, int rank) {
  const PipelinePlan& p = plan.parallel.pipeline;
  StageMap map;
  const pipeline::PipeShape shape{static_cast<int>(p.size),
                                  static_cast<int>(plan.num_micro_batches()),
                                  static_cast<int>(p.chunks)};
  map.schedule = pipeline::make_timetable(p.schedule, shape, registries.schedules);
  map.rank_of_stage = pipeline::ranks_of_stages(map.schedule, shape.stages());
  map.inputs.resize(static_cast<size_t>(shape.stages()) + 1);
  map.first_block = {0};
  if (shape.stages() == 1) {
    map.first_block.push_back(num_blocks);
    return map;
  }
  // Shares must be the same everywhere, so they are those of rank 0; shapes are my own.
  std::vector<double> costs;
  const std::vector<BlockProfile> first = profile_blocks(plan, registries, 0);
  for (const BlockProfile& block : first) costs.push_back(block.flops);
  for (const int count : share_blocks(p, costs)) {
    map.first_block.push_back(map.first_block.back() + static_cast<size_t>(count));
  }
  const std::vector<BlockProfile> mine = rank == 0 ? first : profile_blocks(plan, registries, rank);
  for (size_t s = 1; s + 1 < map.first_block.size(); ++s) {
    map.inputs[s] = mine[map.first_block[s] - 1].outputs;
  }
  return map;
}

}  // namespace kuafu
