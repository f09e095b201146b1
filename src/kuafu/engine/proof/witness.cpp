// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/witness.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/philox.h"
#include "kuafu/engine/proof/certificate.h"
#include "kuafu/engine/proof/whole_state.h"
#include "kuafu/meter/book.h"

namespace kuafu {
Snapshot snapshot_of(Engine& engine) {
  const BookScope unbooked(nullptr);
  const at::NoGradGuard no_grad;
  Snapshot s;
  s.step = engine.steps_done();
  s.optimizer = engine.optimizer().state();
  for (const ParamShard& shard : engine.shards()) s.values.push_back(shard.value.clone());
  for (SlotTensor& t : s.optimizer.tensors) {
    engine.optimizer().bring(t.shard, RuleSlots::Use::kRead);
    t.tensor = t.tensor.clone();
  }
  engine.optimizer().rest();
  s.scale = engine.loss_scaler().state();
  return s;
}

void go_back_to(const Snapshot& snapshot, Engine& engine) {
  const at::NoGradGuard no_grad;
  const std::vector<ParamShard> shards = engine.shards();
  for (size_t i = 0; i < shards.size(); ++i) shards[i].value.copy_(snapshot.values.at(i));
  engine.optimizer().restore(shards, snapshot.optimizer);
  engine.loss_scaler().restore(snapshot.scale);
  engine.go_on_from(snapshot.step);
}

Witness::Witness(const Plan& plan, int64_t first, Depth depth) : first_(first) {
  const int64_t end = plan.train.steps;
  if (depth == Depth::kReportsOnly || first >= end) return;
  wanted_.push_back(first);
  const int64_t later = first + kCertificateSteps;  // what the first copy leads to ends here
  if (later >= end) return;
  if (later < end - 1) {
    const CounterRandom random(plan.train.seed, 0x77697473);
    wanted_.push_back(
        later + static_cast<int64_t>(random.bits(0) % static_cast<uint64_t>(end - 1 - later)));
  }
  wanted_.push_back(end - 1);
}

void Witness::before_step(Engine& engine) {
  if (std::find(wanted_.begin(), wanted_.end(), engine.steps_done()) == wanted_.end()) return;
  snapshots_.push_back(snapshot_of(engine));
}

void Witness::at_divergence(Engine& engine) {
  const int64_t step = engine.steps_done();
  const bool is_made_again = step < first_ + kCertificateSteps;
  if (wanted_.empty() || is_made_again || snapshots_.back().step == step) return;
  snapshots_.push_back(snapshot_of(engine));
}

void Witness::after_step(Engine& engine, const StepReport& report) {
  const BookScope unbooked(nullptr);
  reports_.push_back(report);
  if (snapshots_.empty()) return;
  const int64_t step = engine.steps_done() - 1;
  const bool is_first = step < first_ + kCertificateSteps;
  if (is_first || snapshots_.back().step == step) hashes_[step] = hash_of(engine);
}

std::optional<uint64_t> Witness::hash_after(int64_t step) const {
  const auto found = hashes_.find(step);
  return found == hashes_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace kuafu
