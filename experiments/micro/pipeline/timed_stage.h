// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/stepping/executor.h"

namespace kuafu::micro {

/// Seconds that the actions of one stage take; nothing: the stage only hands tensors on.
struct TimedWork {
  double forward_s = 0, input_grad_s = 0, weight_grad_s = 0;
  bool is_nothing() const { return forward_s + input_grad_s + weight_grad_s == 0; }
};

/// Waits until so many seconds of the steady clock: sleeps, and spins through the last of them,
/// which a sleep would miss. Other threads may use the core meanwhile.
void wait_until(double end_s);

/// Seconds of the steady clock, the one of recorded timelines.
double seconds_now();

/// A stage whose work is a wait of a given length: as many ranks as one likes keep the time of a
/// schedule on as few cores as there are. The tensors that travel are real ones, of `message` f32
/// elements, and are checked: every element tells the micro-batch and the stage it comes from.
class TimedStage : public StageWork {
 public:
  struct Place {
    int stage = 0, num_stages = 1;
  };
  TimedStage(const Place& place, const TimedWork& work, int64_t message);

  Tensors forward(int micro_batch, Tensors inputs) override;
  Tensors backward(int micro_batch, Tensors grads) override;
  Tensors input_grad(int micro_batch, Tensors grads) override;
  void weight_grad(int micro_batch) override;
  const FlowTensors& inputs() const override { return inputs_; }
  const FlowTensors& outputs() const override { return outputs_; }

 private:
  Tensors grads_for(int micro_batch, const Tensors& grads, double seconds);
  void check(const Tensors& tensors, const FlowTensors& expected, float value) const;
  Tensors made(const FlowTensors& flow, float value) const;

  Place place_;
  TimedWork work_;
  FlowTensors inputs_, outputs_;
};

}  // namespace kuafu::micro
