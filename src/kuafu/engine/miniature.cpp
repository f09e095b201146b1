// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/miniature.h"

#include <algorithm>

#include "kuafu/parallel/pipeline/choose.h"

namespace kuafu {
namespace {

/// Fewer layers: two, or with ranges of layers one in each range and one between any two.
void cut_layers(Plan& plan) {
  std::vector<LayerPlan>& ranges = plan.parallel.layers;
  int64_t fewest = ranges.empty() ? 2 : 2 * static_cast<int64_t>(ranges.size()) + 1;
  fewest = std::max(fewest, plan.parallel.pipeline.stages());  // each stage keeps a block
  if (plan.model.layers <= fewest) return;
  plan.model.layers = fewest;
  std::sort(ranges.begin(), ranges.end(),
            [](const LayerPlan& a, const LayerPlan& b) { return a.from < b.from; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    ranges[i].from = ranges[i].to = 2 * static_cast<int64_t>(i) + 1;
  }
}

}  // namespace

Plan miniature(Plan plan) {
  const int64_t given_layers = plan.model.layers;
  cut_layers(plan);
  ModelPlan& m = plan.model;
  const int64_t hidden = m.heads * std::min<int64_t>(m.hidden / m.heads, 8);
  // The same ratio where it is whole, so that whatever divides the one divides the other.
  if (m.ffn != 0) m.ffn = m.ffn % m.hidden == 0 ? m.ffn / m.hidden * hidden : m.ffn;
  m.hidden = hidden;
  if (m.kind == "vit") {  // as many patches, of fewer pixels
    const int64_t patch = std::min<int64_t>(m.patch, 4);
    m.image = m.image / m.patch * patch;
    m.patch = patch;
  } else {
    m.sequence = m.sequence % 64 == 0 ? 64 : m.sequence;
  }
  m.vocab = m.vocab > 1024 ? 1024 + m.vocab % 64 : m.vocab;
  // Enough for every rank of a pipeline to be busy; a schedule from a file is made for its own.
  PipelinePlan& p = plan.parallel.pipeline;
  const bool is_fixed = pipeline::is_schedule_file(p.schedule);
  const int64_t all = plan.num_micro_batches();
  const int64_t micro_batches = is_fixed ? all : std::min(all, 2 * p.size);
  if (plan.model.layers != given_layers) p.blocks.clear();
  plan.train.micro_batch = std::min(plan.train.micro_batch, int64_t{16});
  plan.train.batch = plan.parallel.data.size * plan.train.micro_batch * micro_batches;
  return plan;
}

}  // namespace kuafu
