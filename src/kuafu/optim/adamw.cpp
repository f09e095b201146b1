// SPDX-License-Identifier: Apache-2.0
//
// AdamW: decoupled weight decay.   [Loshchilov and Hutter, arXiv 1711.05101, algorithm 2]
//
//   m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//   w = w - lr wd w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// Every parameter decays, biases and norms too. Element by element, so a shard needs nobody else.
// State: 2 x parameters in their type; half precision: 3 x parameters in f32 (m, v, master copy).

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/optim/state.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerPlan& plan) : plan_(plan) {}

  void step(std::span<ParamShard> shards, double lr) override {
    const at::NoGradGuard no_grad;
    if (states_.empty()) make_states(shards);
    check_shards(shards, states_.size());
    ops::AdamWArgs args{lr, plan_.beta1, plan_.beta2, plan_.epsilon, plan_.weight_decay, ++t_};
    for (size_t i = 0; i < shards.size(); ++i) {
      State& state = states_[i];
      Tensor& value = state.master.defined() ? state.master : shards[i].value;
      args.grad_factor = shards[i].grad_factor;
      ops::adamw(value, shards[i].grad, state.m, state.v, args);
      if (state.master.defined()) shards[i].value.copy_(state.master);
    }
  }

  OptimizerState state() override {
    OptimizerState all{.num_steps = t_, .tensors = {}};
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& s = states_[i];
      all.tensors.push_back({s.name + ".m", s.m, i});
      all.tensors.push_back({s.name + ".v", s.v, i});
      if (s.master.defined()) all.tensors.push_back({s.name + ".master", s.master, i});
    }
    return all;
  }

  void begin(std::span<const ParamShard> shards, int64_t num_steps) override {
    states_.clear();
    make_states(shards);
    t_ = num_steps;
  }

  void restore(std::span<const ParamShard> shards, const OptimizerState& from) override {
    KUAFU_CHECK(states_.empty(), "restored after ", t_, " steps");
    if (from.num_steps == 0) return;
    begin(shards, from.num_steps);
    copy_state(from.tensors, state().tensors);
  }

 private:
  struct State {
    std::string name;
    Tensor m, v, master;  // like the shard
  };

  void make_states(std::span<const ParamShard> shards) {
    for (const ParamShard& s : shards) {
      states_.push_back(
          {s.param->name, new_state(s.value), new_state(s.value), new_master(s.value)});
    }
  }

  OptimizerPlan plan_;
  std::vector<State> states_;
  int64_t t_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerPlan& plan) {
  KUAFU_REQUIRE(plan.beta1 >= 0 && plan.beta1 < 1 && plan.beta2 >= 0 && plan.beta2 < 1,
                "optimizer.beta1 = ", plan.beta1, ", beta2 = ", plan.beta2,
                "; allowed are 0 <= beta < 1");
  return std::make_unique<AdamW>(plan);
}

}  // namespace kuafu
