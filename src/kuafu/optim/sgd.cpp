// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with heavy-ball momentum.   [Sutskever et al., ICML 2013, section 2]
//
//   u = momentum u + (g + wd w)        w = w - lr u
//
// State: 1 x parameters in their type; half precision: 2 x parameters in f32 (u, master copy).

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/optim/state.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

class Sgd : public Optimizer {
 public:
  explicit Sgd(const OptimizerPlan& plan) : plan_(plan) {}

  void step(std::span<ParamShard> shards, double lr) override {
    const at::NoGradGuard no_grad;
    if (states_.empty()) make_states(shards);
    check_shards(shards, states_.size());
    ++num_steps_;
    for (size_t i = 0; i < shards.size(); ++i) {
      State& state = states_[i];
      Tensor& value = state.master.defined() ? state.master : shards[i].value;
      ops::sgd(value, shards[i].grad, state.velocity,
               {lr, plan_.momentum, plan_.weight_decay, shards[i].grad_factor});
      if (state.master.defined()) shards[i].value.copy_(state.master);
    }
  }

  OptimizerState state() override {
    OptimizerState all{.num_steps = num_steps_, .tensors = {}};
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& s = states_[i];
      all.tensors.push_back({s.name + ".velocity", s.velocity, i});
      if (s.master.defined()) all.tensors.push_back({s.name + ".master", s.master, i});
    }
    return all;
  }

  void begin(std::span<const ParamShard> shards, int64_t num_steps) override {
    states_.clear();
    make_states(shards);
    num_steps_ = num_steps;
  }

  void restore(std::span<const ParamShard> shards, const OptimizerState& from) override {
    KUAFU_CHECK(states_.empty(), "restored after ", num_steps_, " steps");
    if (from.num_steps == 0) return;
    begin(shards, from.num_steps);
    copy_state(from.tensors, state().tensors);
  }

 private:
  struct State {
    std::string name;
    Tensor velocity, master;  // like the shard
  };

  void make_states(std::span<const ParamShard> shards) {
    for (const ParamShard& s : shards) {
      states_.push_back({s.param->name, new_state(s.value), new_master(s.value)});
    }
  }

  OptimizerPlan plan_;
  std::vector<State> states_;
  int64_t num_steps_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerPlan& plan) {
  KUAFU_REQUIRE(plan.momentum >= 0 && plan.momentum < 1, "optimizer.momentum = ", plan.momentum,
                "; allowed are 0 <= momentum < 1");
  return std::make_unique<Sgd>(plan);
}

}  // namespace kuafu
