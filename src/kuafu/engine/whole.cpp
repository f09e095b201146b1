// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/whole.h"

#include <functional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

/// The owner's tensor on every rank of the pipeline; undefined where it is on the owner.
Tensor from_owner(const Tensor& mine, const WholeParam& p, const Engine& engine) {
  Communicator& pipeline = engine.mesh().comm("pipeline");
  const at::TensorOptions options = p.param->value.options().device(engine.device());
  Tensor is_there = at::zeros({1}, options.dtype(at::kLong));
  is_there.fill_(mine.defined() ? 1 : 0);
  is_there = raw::broadcast(is_there, pipeline, p.owner);
  if (is_there.item<int64_t>() == 0) return {};
  return raw::broadcast(p.is_mine ? mine : at::empty(p.param->global, options), pipeline, p.owner);
}

WholeTensors gather(Engine& engine, Keep keep,
                    const std::function<Tensor(const Param&)>& shard_of) {
  const at::NoGradGuard no_grad;
  const bool is_pipelined = engine.mesh().size("pipeline") > 1;
  WholeTensors all;
  for (const WholeParam& p : engine.all_params()) {
    Tensor whole;
    if (p.is_mine) {
      const Tensor shard = shard_of(*p.param);
      if (shard.defined()) whole = gather_param(*p.param, shard, engine.mesh());
    }
    if (is_pipelined) whole = from_owner(whole, p, engine);
    if (keep == Keep::kYes && whole.defined()) all[p.param->name] = whole.clone();
  }
  return all;
}

}  // namespace

WholeTensors whole_parameters(Engine& engine, Keep keep) {
  return gather(engine, keep, [&](const Param& p) { return engine.value(p); });
}

WholeTensors whole_gradients(Engine& engine, Keep keep) {
  return gather(engine, keep, [&](const Param& p) { return engine.gradient(p); });
}

}  // namespace kuafu
