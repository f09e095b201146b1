// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/measuring/expert_load.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/engine/engine_state.h"
#include "kuafu/parallel/expert/routing.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {

void ExpertCounts::add(const ExpertCounts& other) {
  tokens.resize(other.tokens.size());
  choices.resize(other.choices.size());
  for (size_t e = 0; e < tokens.size(); ++e) {
    tokens[e] += other.tokens[e];
    choices[e] += other.choices[e];
  }
  dropped += other.dropped;
  made += other.made;
}

std::vector<ExpertLoad> Engine::expert_loads() const {
  const State& s = *state_;
  const at::NoGradGuard no_grad;
  std::vector<ExpertLoad> loads;
  for (size_t b = 0; b < s.model.blocks.size(); ++b) {
    ModelBlock& block = *s.model.blocks[b];
    const RouterTally* tally = block.router_tally();
    if (tally == nullptr || s.options.device.is_meta() || s.steps_trained == 0) continue;
    const int owner = s.map.rank_of(b);
    const int64_t experts = s.plan.model.experts, width = 2 * experts + 2;
    Tensor sum =
        at::zeros({s.steps_trained, width}, at::TensorOptions(at::kLong).device(s.options.device));
    if (owner == s.pipeline_rank) {
      sum.copy_(tally->counts());
      raw::all_reduce(sum, s.mesh.comm("data"));
      for (const std::string& axis : tally->sample_axes()) {
        raw::all_reduce(sum, s.mesh.comm(axis));
      }
    }
    if (s.mesh.size("pipeline") > 1) sum = raw::broadcast(sum, s.mesh.comm("pipeline"), owner);
    const Tensor host = sum.cpu();
    ExpertLoad& load = loads.emplace_back();
    load.block = block.name();
    for (int64_t step = 0; step < s.steps_trained; ++step) {
      const int64_t* n = host.const_data_ptr<int64_t>() + step * width;
      load.steps.push_back({.tokens = {n, n + experts},
                            .choices = {n + experts, n + 2 * experts},
                            .dropped = n[2 * experts],
                            .made = n[2 * experts + 1]});
      load.add(load.steps.back());
    }
  }
  return loads;
}

}  // namespace kuafu
