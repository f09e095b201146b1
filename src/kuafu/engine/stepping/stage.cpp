// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/stage.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/base/trace.h"
#include "kuafu/engine/stepping/block_call.h"
#include "kuafu/engine/stepping/slowdown.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/model/inference.h"
#include "kuafu/tensor/root_gradient.h"

namespace kuafu {
namespace {

constexpr const char* kBackward = ", backward";

/// Whether a block hands on memory that it was given.
bool share_storage(const Tensors& a, const Tensors& b) {
  for (const Tensor& x : a) {
    for (const Tensor& y : b) {
      if (x.storage().is_alias_of(y.storage())) return true;
    }
  }
  return false;
}

/// Micro-batches whose gradient is the rank's next computation after their forward on `stage`.
std::set<int> used_at_once(const pipeline::Timetable& schedule, int stage) {
  std::set<int> found;
  for (const pipeline::Row& row : schedule) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const pipeline::Action &a = row[i], &next = row[i + 1];
      if (a.op == pipeline::Op::kForward && a.stage == stage && next.stage == stage &&
          next.micro_batch == a.micro_batch) {
        found.insert(a.micro_batch);
      }
    }
  }
  return found;
}

}  // namespace

Stage::Stage(const StageTools& tools, const StageMap& map, int index)
    : tools_(tools),
      first_(map.first_block[static_cast<size_t>(index)]),
      count_(map.first_block[static_cast<size_t>(index) + 1] - first_),
      has_loss_(index + 1 == map.num_stages()),
      inputs_(map.inputs[static_cast<size_t>(index)]),
      outputs_(map.inputs[static_cast<size_t>(index) + 1]),
      at_once_(used_at_once(map.schedule, index)) {}

Tensors Stage::forward(int micro_batch, Tensors flow) {
  if (!is_training_) return infer(micro_batch, std::move(flow));
  const Side& side = tools_.micro_batches.side(micro_batch);
  InFlight& now = in_flight_[micro_batch];
  now.inputs.resize(count_);
  now.outputs.resize(count_);
  now.losses.resize(count_);
  bool is_passed_on = false;  // the block's input is one before it, too
  for (size_t b = 0; b < count_; ++b) {
    ModelBlock& block = *tools_.model.blocks[first_ + b];
    const TracePhase phase([&block] { return block.name(); });
    tools_.groups.acquire(first_ + b, BlockUse::kForward);
    for (const Tensor& t : flow) now.inputs[b].push_back(t.detach().requires_grad_());
    // A graph that is used at once would only cost to make twice: the head's, mostly.
    const bool is_head = has_loss_ && b + 1 == count_ && at_once_.count(micro_batch) > 0;
    const bool is_kept = !tools_.recomputes || is_head || block.saves_nothing();
    const at::AutoGradMode recording(is_kept);
    {
      const Slowdown slow(tools_.slowdown);
      now.outputs[b] = call_block(tools_.model, first_ + b, now.inputs[b], side);
    }
    now.losses[b] = block.take_losses();
    flow = now.outputs[b];
    keep(block, Boundary::kInput, now.inputs[b], side);
    keep(block, Boundary::kOutput, flow, side);
    if (!is_kept) {
      now.outputs[b].clear();
      now.losses[b].clear();
    }
    const bool passes_on = tools_.away != nullptr && share_storage(now.inputs[b], flow);
    if (tools_.away != nullptr && !is_kept && !is_passed_on && !passes_on) {
      tools_.away->leave(now.inputs[b]);
    }
    is_passed_on = passes_on;
    tools_.groups.release(first_ + b, BlockUse::kForward);
  }
  if (!has_loss_) return flow;
  now.loss = flow[0].detach();
  return {};
}

Tensors Stage::infer(int micro_batch, Tensors flow) {
  const Side& side = tools_.micro_batches.side(micro_batch);
  for (size_t b = 0; b < count_; ++b) {
    tools_.groups.acquire(first_ + b, BlockUse::kForward);
    const bool is_last = has_loss_ && b + 1 == count_;
    if (is_last && side.inference != nullptr && side.inference->take_last_input) {
      side.inference->take_last_input(*tools_.model.blocks[first_ + b], flow, side);
      flow = {at::zeros({}, flow[0].options())};
    } else {
      flow = call_block(tools_.model, first_ + b, flow, side);
    }
    tools_.groups.release(first_ + b, BlockUse::kForward);
  }
  tools_.micro_batches.release(micro_batch);
  if (!has_loss_) return flow;
  add_loss(flow[0]);
  return {};
}

void Stage::set_sequence(int64_t sequence) {
  for (FlowTensors* flows : {&inputs_, &outputs_}) {
    for (FlowTensor& t : *flows) t.shape.at(1) = sequence;
  }
}

Tensors Stage::backward(int micro_batch, Tensors grads) {
  grads = run_backward(micro_batch, std::move(grads), false);
  in_flight_.erase(micro_batch);
  return grads;
}

Tensors Stage::input_grad(int micro_batch, Tensors grads) {
  return run_backward(micro_batch, std::move(grads), true);
}

void Stage::weight_grad(int micro_batch) {
  InFlight& now = in_flight_.at(micro_batch);
  for (size_t b = count_; b-- > 0;) {
    const TracePhase phase([&] { return tools_.model.blocks[first_ + b]->name(); });
    {
      const Slowdown slow(tools_.slowdown);
      run_of_block(tools_.model, first_ + b, kBackward, [&] { now.weight_grads[b].compute(); });
    }
    finish_block(b, micro_batch);
  }
  in_flight_.erase(micro_batch);
}

Tensors Stage::run_backward(int micro_batch, Tensors grads, bool is_split) {
  InFlight& now = in_flight_.at(micro_batch);
  const Side& side = tools_.micro_batches.side(micro_batch);
  const RootGradientScope start(root());
  if (has_loss_) grads = {at::full_like(now.loss, root())};
  if (is_split) now.weight_grads.resize(count_);
  for (size_t b = count_; b-- > 0;) {
    const TracePhase phase([&] { return tools_.model.blocks[first_ + b]->name(); });
    tools_.groups.acquire(first_ + b, BlockUse::kBackward);
    if (tools_.away != nullptr) {
      tools_.away->wait(now.inputs[b]);
      if (b > 0) tools_.away->come(now.inputs[b - 1]);
    }
    {
      const Slowdown slow(tools_.slowdown);
      const WeightGradScope later(is_split ? &now.weight_grads[b] : nullptr);
      backward_block(b, side, now, grads);
    }
    if (!is_split) finish_block(b, micro_batch);
    tools_.groups.release(first_ + b, BlockUse::kBackward);
  }
  tools_.micro_batches.release(micro_batch);
  if (has_loss_) add_loss(std::exchange(now.loss, Tensor()));
  return grads;
}

void Stage::backward_block(size_t b, const Side& side, InFlight& now, Flow& grads) {
  ModelBlock& block = *tools_.model.blocks[first_ + b];
  Flow &in = now.inputs[b], &out = now.outputs[b];
  Tensors& losses = now.losses[b];
  keep(block, Boundary::kOutputGradient, grads, side);
  if (out.empty()) {
    const RecomputeScope scope;
    const at::AutoGradMode recording(true);
    out = call_block(tools_.model, first_ + b, in, side);
    losses = block.take_losses();
  }
  for (Tensor& loss : losses) {
    grads.push_back(at::full_like(loss, root()));
    out.push_back(std::move(loss));
  }
  losses.clear();
  run_of_block(tools_.model, first_ + b, kBackward, [&] {
    check_recorded(tools_.model, first_ + b, out);
    torch::autograd::backward(out, grads);
  });
  out.clear();
  grads.clear();
  for (const Tensor& t : in) {  // one that nothing used, or only what stops gradients, has none
    grads.push_back(t.grad().defined() ? t.grad() : at::zeros(t.sizes(), t.options()));
  }
  keep(block, Boundary::kInputGradient, grads, side);
  in.clear();
}

/// The weight gradients of one micro-batch are complete.
void Stage::finish_block(size_t b, int micro_batch) {
  tools_.groups.gradients_ready(first_ + b, micro_batch);
}

void Stage::keep(const ModelBlock& block, Boundary boundary, const Flow& flow,
                 const Side& side) const {
  if (tools_.flows != nullptr && *tools_.flows) (*tools_.flows)->add(block, boundary, flow, side);
}

void Stage::add_loss(const Tensor& loss) { loss_ = loss_.defined() ? loss_ + loss : loss; }

}  // namespace kuafu
