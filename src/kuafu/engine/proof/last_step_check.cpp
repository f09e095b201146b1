// SPDX-License-Identifier: Apache-2.0
//
// Bounds are those of a step that is looked at block by block (certificate_blocks.cpp) and of an
// update (certificate_update.cpp): what is compared here is less at a time, not otherwise.

#include "kuafu/engine/proof/last_step_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/trace.h"
#include "kuafu/engine/proof/certificate_blocks.h"
#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/meter/book.h"
#include "kuafu/states/state_file.h"

namespace kuafu {
namespace {

constexpr int64_t kAtOnce = int64_t{1} << 21;  ///< elements whose update is made again at once

/// In the scope nothing is booked, traced or counted; its time goes to a sum.
class Apart {
 public:
  explicit Apart(double& seconds) : seconds_(seconds) {}
  ~Apart() {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
    seconds_ += took.count();
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const BookScope unbooked_{nullptr};
  const TraceScope untraced_{nullptr};
  const UncountedMoves uncounted_;
  const at::NoGradGuard no_grad_;
};

/// An optimizer tells nobody any more behind the scope.
class Observing {
 public:
  Observing(Optimizer& optimizer, UpdateObserver* observer) : optimizer_(optimizer) {
    optimizer_.observe(observer);
  }
  ~Observing() { optimizer_.observe(nullptr); }
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  Optimizer& optimizer_;
};

int64_t num_elements(const oracle::Weight& weight) {
  return std::accumulate(weight.shape.begin(), weight.shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::vector<LastStepCheck::BlockGroup> LastStepCheck::parts_of(const oracle::Model& model) {
  std::vector<BlockGroup> parts;
  for (size_t b = 0; b < model.blocks().size(); ++b) {
    BlockGroup mine{{b}, model.params_of(b)};
    std::vector<BlockGroup> others;
    for (BlockGroup& part : parts) {
      const bool is_shared =
          std::any_of(part.weights.begin(), part.weights.end(), [&](const std::string& name) {
            return std::find(mine.weights.begin(), mine.weights.end(), name) != mine.weights.end();
          });
      if (!is_shared) {
        others.push_back(std::move(part));
        continue;
      }
      mine.blocks.insert(mine.blocks.begin(), part.blocks.begin(), part.blocks.end());
      for (const std::string& name : part.weights) {
        const bool is_there =
            std::find(mine.weights.begin(), mine.weights.end(), name) != mine.weights.end();
        if (!is_there) mine.weights.push_back(name);
      }
    }
    others.push_back(std::move(mine));
    parts = std::move(others);
  }
  return parts;
}

bool LastStepCheck::is_possible(const Plan& plan, const Registries& registries,
                                int64_t memory_limit) {
  const ModelPlan& m = plan.model;
  const oracle::Rounding& rule = registries.updates.find(plan.optimizer.kind).rounding;
  const bool is_elementwise =
      rule.is_derived() && rule.ratio == oracle::Rounding::Ratio::kNone && !rule.of_matrices;
  const bool is_wide_type = m.dtype == DType::kF32 || m.dtype == DType::kF64;
  if (num_ranks(plan) > 1 || !is_elementwise || !is_wide_type || m.has_mixtures() ||
      !registries.oracles.contains(m.kind)) {
    return false;
  }
  const auto model = registries.oracles.find(m.kind)(m, plan.train.seed);
  if (model == nullptr) return false;
  const std::map<std::string, oracle::Weight> weights = model->weights();
  int64_t most = 0;
  for (const BlockGroup& part : parts_of(*model)) {
    int64_t elements = 0;
    for (const std::string& name : part.weights) elements += num_elements(weights.at(name));
    most = std::max(most, elements);
  }
  // Weights, the run's gradients, the reference's and its terms, twice (in the run's type too), a
  // difference, leaves; and what a block keeps.
  const int64_t tokens = plan.train.batch * m.sequence;
  const int64_t kept =
      tokens * std::max(12 * m.hidden + 2 * m.ffn_width() + 4 * m.heads * m.sequence, 3 * m.vocab);
  return 8 * (8 * most + kept) <= memory_limit;
}

LastStepCheck::LastStepCheck(const Plan& plan, const Registries& registries,
                             std::unique_ptr<Dataset> data, Communicator& world)
    : plan_(plan),
      registries_(registries),
      data_(std::move(data)),
      world_(world),
      model_(registries.oracles.find(plan.model.kind)(plan.model, plan.train.seed)),
      reference_(make_reference(plan, registries, *data_)),
      blocks_(model_->blocks()) {
  proof_.verdict = "equal";
}

StepReport LastStepCheck::make_step(Engine& engine) {
  step_ = engine.steps_done();
  scale_ = engine.loss_scaler().state();
  const OptimizerState state = engine.optimizer().state();
  num_updates_ = state.num_steps;
  slot_names_.clear();
  for (const SlotTensor& t : state.tensors) slot_names_[t.shard].push_back(t.slot);
  engine.keep_flows();
  const Observing observing(engine.optimizer(), this);
  StepReport report =
      engine.step([&](std::span<const ParamShard> ready) { check_gradients(engine, ready); });
  finish(engine, report);
  report.seconds_apart += seconds_;
  return report;
}

Evidence LastStepCheck::evidence() const {
  Evidence e;
  e.step = step_;
  e.scale_before = e.scale_after = scale_;
  e.report.loss_scale = scale_.scale;
  e.report.grad_norm = std::sqrt(squares_);
  e.is_by_blocks = true;
  return e;
}

void LastStepCheck::check_gradients(Engine& engine, std::span<const ParamShard> ready) {
  std::map<std::string, const ParamShard*> shards;
  std::vector<const ParamShard*> order;
  names_.clear();
  for (const ParamShard& s : ready) {
    names_.push_back(s.param->name);
    shards[s.param->name] = &s;
  }
  const std::vector<BlockGroup> parts = parts_of(*model_);
  for (const BlockGroup& part : parts) {
    for (const std::string& name : part.weights) {
      const auto found = shards.find(name);
      if (found != shards.end()) order.push_back(found->second);
    }
  }
  expect_gradients(order);  // what is still on its way to a disk is the step's own
  const Apart apart(seconds_);
  const oracle::BlockFlows flows = whole_flows(engine, world_);
  for (const BlockGroup& part : parts) check_part(part, shards, flows);
  for (const auto& [name, shard] : shards) {
    if (reference_->weights().contains(name)) continue;
    proof_.refute(at_step(evidence(), name + " has a gradient, and the reference does not use it"));
  }
}

void LastStepCheck::check_part(const BlockGroup& part,
                               const std::map<std::string, const ParamShard*>& shards,
                               const oracle::BlockFlows& flows) {
  Evidence e = evidence();
  oracle::Tensors weights;
  const oracle::Weights all = reference_->weights();
  for (const std::string& name : part.weights) {
    const auto found = shards.find(name);
    if (found == shards.end()) {
      return proof_.refute(at_step(e, name + ": no gradient came to its update"));
    }
    const ParamShard& s = *found->second;
    bring_gradient(s);
    const auto& shape = all.at(name).shape;
    e.gradients[name] = s.grad.to(at::kDouble).reshape(shape).div_(scale_.scale);
    weights[name] = s.value.to(at::kDouble).reshape(shape);
    squares_ += e.gradients[name].square().sum().item<double>();
    elements_ += s.grad.numel();
  }
  for (const size_t b : part.blocks) {
    const auto found = flows.find(blocks_[b]);
    if (found != flows.end()) e.flows[blocks_[b]] = found->second;
  }
  if (part.blocks.back() + 1 == blocks_.size()) measure_loss(e, weights);
  check_blocks(plan_, e, weights, *reference_, proof_, part.blocks);
}

/// Of the last block's own input.
void LastStepCheck::measure_loss(const Evidence& e, const oracle::Tensors& weights) {
  const std::vector<size_t> last = {blocks_.size() - 1};
  const auto in = [&](DType type) {
    return reference_
        ->blocks(step_, in_type(weights, scalar_type(type)), e.flows, {}, scale_.scale, last)
        .sums.loss;
  };
  loss_ = in(DType::kF64);
  const double share = unit_roundoff(plan_.model.dtype) / unit_roundoff(DType::kF32);
  loss_rounding_ = loss_error(in(DType::kF32), loss_) * share;
}

void LastStepCheck::before_update(size_t /*shard*/, const RulePiece& piece) {
  const Apart apart(seconds_);
  before_ = {piece.value.reshape({-1}).clone(), piece.grad.reshape({-1}).clone(), {}};
  for (const Tensor& slot : piece.slots) before_.slots.push_back(slot.reshape({-1}).clone());
}

void LastStepCheck::after_update(size_t shard, const RulePiece& piece) {
  const Apart apart(seconds_);
  const int64_t all = piece.value.numel();
  for (int64_t first = 0; first < all; first += kAtOnce) {
    check_elements(names_.at(shard), piece, first, std::min(kAtOnce, all - first));
  }
  updated_ += all;
  before_ = {};
}

void LastStepCheck::check_elements(const std::string& name, const RulePiece& piece, int64_t first,
                                   int64_t count) {
  const auto part_of = [&](const Tensor& t) { return t.reshape({-1}).narrow(0, first, count); };
  Evidence e = evidence();
  e.gradients[name] = part_of(before_.gradient).to(at::kDouble).div_(scale_.scale);
  e.before.values[name] = part_of(before_.value);
  e.after.values[name] = part_of(piece.value);
  e.before.num_steps = num_updates_;
  e.after.num_steps = num_updates_ + 1;
  const auto found = std::find(names_.begin(), names_.end(), name);
  const auto& slots = slot_names_[static_cast<size_t>(found - names_.begin())];
  if (slots.size() != piece.slots.size()) {
    return proof_.refute(at_step(e, text(name, " has ", piece.slots.size(),
                                         " slots in its update, ", slots.size(), " in its state")));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    e.before.slots[slots[i]][name] = part_of(before_.slots[i]);
    e.after.slots[slots[i]][name] = part_of(piece.slots[i]);
  }
  check_update(plan_, reference_->weights(), e, proof_, registries_.updates);
}

void LastStepCheck::finish(Engine& engine, const StepReport& report) {
  const Apart apart(seconds_);
  const Evidence e = evidence();
  if (report.is_skipped) {
    return proof_.give_up(at_step(e, "skipped: a gradient overflowed, and nothing was updated"));
  }
  const double far = loss_error(report.loss, loss_);
  proof_.loss.add(far, loss_bound(plan_, loss_rounding_, loss_), at_step(e, "loss"));
  // Of tensors it is known by blocks; the norm is one number, far nearer than its bound.
  const double norm = e.report.grad_norm, terms = std::sqrt(static_cast<double>(elements_));
  const double off = report.grad_norm == norm ? 0 : std::abs(report.grad_norm / norm - 1);
  if (!(off <= kFactor * unit_roundoff(DType::kF64) * terms)) {
    proof_.refute(at_step(e, text("the gradient norm is ", report.grad_norm,
                                  ", that of what was "
                                  "gathered ",
                                  norm)));
  }
  if (updated_ != elements_) {
    proof_.refute(
        at_step(e, text(updated_, " elements were updated, ", elements_, " have a gradient")));
  }
  if (engine.optimizer().state().num_steps != num_updates_ + 1) {
    proof_.refute(at_step(e, "the optimizer counts no update for it"));
  }
  proof_.steps = {step_};
  proof_.judge();
}

}  // namespace kuafu
