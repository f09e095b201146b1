// SPDX-License-Identifier: Apache-2.0
#include "app/worker/explain_pipeline.h"

#include <algorithm>
#include <iostream>

#include "kuafu/base/units.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/record/files.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

constexpr double kMostColumns = 200;
constexpr size_t kMostRows = 32;

/// Forward FLOPs of each stage.
std::vector<double> stage_flops(const StageMap& map, const std::vector<BlockProfile>& blocks) {
  std::vector<double> flops;
  for (size_t s = 0; s + 1 < map.first_block.size(); ++s) {
    double sum = 0;
    for (size_t b = map.first_block[s]; b < map.first_block[s + 1]; ++b) sum += blocks[b].flops;
    flops.push_back(sum);
  }
  return flops;
}

std::string flow_text(const FlowTensors& flow) {
  std::string words;
  for (const FlowTensor& t : flow) words += (words.empty() ? "" : ", ") + to_string(t.shape);
  return words.empty() ? "-" : words;
}

/// Stages as heavy as their FLOPs, a backward twice a forward, messages free.
double weighted_bubble(const StageMap& map, std::vector<double> flops) {
  const double most = *std::max_element(flops.begin(), flops.end());
  for (double& f : flops) f = std::max(f / most, 1e-6);
  return pipeline::estimate(map.schedule, {.stage_weight = std::move(flops)}).bubble();
}

}  // namespace

void print_pipeline(const Plan& plan, const Registries& registries) {
  const PipelinePlan& p = plan.parallel.pipeline;
  if (p.stages() == 1) return;
  const Model model = Placement(plan, registries, 0, at::kMeta).make_model();
  const StageMap map = map_stages(plan, registries, model.blocks.size(), 0);
  const std::vector<BlockProfile> blocks = profile_blocks(plan, registries, 0);
  const std::vector<double> flops = stage_flops(map, blocks);
  const pipeline::Estimate even = pipeline::estimate(map.schedule, {});
  std::cout << "\nPipeline  " << p.schedule << ": " << p.size << " ranks with " << p.chunks
            << (p.chunks == 1 ? " stage" : " stages") << " each, " << plan.num_micro_batches()
            << " micro-batches; bubble " << human_number(even.bubble(), 3)
            << " of the work with equal stages, " << human_number(weighted_bubble(map, flops), 3)
            << " with these\n";
  Table table({{"stage", Table::Align::kRight},
               {"rank", Table::Align::kRight},
               {"blocks"},
               {"forward FLOPs", Table::Align::kRight},
               {"takes"}});
  for (size_t s = 0; s < flops.size(); ++s) {
    const std::string first = model.blocks[map.first_block[s]]->name();
    const std::string last = model.blocks[map.first_block[s + 1] - 1]->name();
    table.add({text(s), text(map.rank_of_stage[s]),
               first == last ? first : text(first, " to ", last), print_count(flops[s]),
               flow_text(map.inputs[s])});
  }
  std::cout << table.str();
  if (even.length > kMostColumns || map.schedule.size() > kMostRows) {
    std::cout << "  (" << map.schedule.size() << " rows of " << even.length
              << " units are too many to draw)\n";
    return;
  }
  std::cout << pipeline::render_text(map.schedule, {});
}

Json pipeline_json(const Plan& plan, const Registries& registries) {
  const PipelinePlan& p = plan.parallel.pipeline;
  if (p.stages() == 1) return nullptr;
  const Model model = Placement(plan, registries, 0, at::kMeta).make_model();
  const StageMap map = map_stages(plan, registries, model.blocks.size(), 0);
  const std::vector<double> flops = stage_flops(map, profile_blocks(plan, registries, 0));
  Json stages = Json::array();
  for (size_t s = 0; s < flops.size(); ++s) {
    Json takes = Json::array();
    for (const FlowTensor& t : map.inputs[s]) takes.push_back(t.shape);
    stages.push_back({{"rank", map.rank_of_stage[s]},
                      {"first_block", model.blocks[map.first_block[s]]->name()},
                      {"last_block", model.blocks[map.first_block[s + 1] - 1]->name()},
                      {"forward_flops", flops[s]},
                      {"takes", takes}});
  }
  return {{"schedule", p.schedule},
          {"ranks", p.size},
          {"chunks", p.chunks},
          {"micro_batches", plan.num_micro_batches()},
          {"bubble_of_equal_stages", pipeline::estimate(map.schedule, {}).bubble()},
          {"bubble", weighted_bubble(map, flops)},
          {"stages", stages},
          {"timetable", pipeline::to_csv(map.schedule)}};
}

void write_timetable(const Plan& plan, const Registries& registries, const std::string& file) {
  const bool is_csv = file.ends_with(".csv");
  KUAFU_REQUIRE(is_csv || file.ends_with(".svg"), "--timetable ", file,
                ": the name must end in .csv (rows to edit and run) or .svg (picture)");
  KUAFU_REQUIRE(plan.parallel.pipeline.stages() > 1, "--timetable ", file,
                ": the plan has one stage and no timetable; set parallel.pipeline.size");
  const Model model = Placement(plan, registries, 0, at::kMeta).make_model();
  const StageMap map = map_stages(plan, registries, model.blocks.size(), 0);
  replace_file(file,
               is_csv ? pipeline::to_csv(map.schedule) : pipeline::render_svg(map.schedule, {}));
}

}  // namespace kuafu
