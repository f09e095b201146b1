// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/pipeline/timed_stage.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"

namespace kuafu::micro {
namespace {

// A sleep on a quiet machine ends some tens of microseconds late.
constexpr double kSpin = 80e-6;

/// What an activation of a stage, or a gradient of its input, is full of: exact in f32.
float activation(int stage, int micro_batch) {
  return static_cast<float>(1000 * micro_batch + stage);
}
float gradient(int stage, int micro_batch) { return -activation(stage, micro_batch); }

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wait_until(double end_s) {
  const double left = end_s - seconds_now();
  if (left > kSpin) std::this_thread::sleep_for(std::chrono::duration<double>(left - kSpin));
  while (seconds_now() < end_s) std::this_thread::yield();
}

TimedStage::TimedStage(const Place& place, const TimedWork& work, int64_t message)
    : place_(place), work_(work) {
  const FlowTensors flow = {{{message}, at::kFloat}};
  if (place.stage > 0) inputs_ = flow;
  if (place.stage + 1 < place.num_stages) outputs_ = flow;
}

Tensors TimedStage::forward(int micro_batch, Tensors inputs) {
  const double end = seconds_now() + work_.forward_s;
  check(inputs, inputs_, activation(place_.stage - 1, micro_batch));
  Tensors out = made(outputs_, activation(place_.stage, micro_batch));
  wait_until(end);
  return out;
}

Tensors TimedStage::backward(int micro_batch, Tensors grads) {
  return grads_for(micro_batch, grads, work_.input_grad_s + work_.weight_grad_s);
}

Tensors TimedStage::input_grad(int micro_batch, Tensors grads) {
  return grads_for(micro_batch, grads, work_.input_grad_s);
}

void TimedStage::weight_grad(int) { wait_until(seconds_now() + work_.weight_grad_s); }

Tensors TimedStage::grads_for(int micro_batch, const Tensors& grads, double seconds) {
  const double end = seconds_now() + seconds;
  check(grads, outputs_, gradient(place_.stage + 1, micro_batch));
  Tensors out = made(inputs_, gradient(place_.stage, micro_batch));
  wait_until(end);
  return out;
}

/// All elements where there is time for it, else the first and the last.
void TimedStage::check(const Tensors& tensors, const FlowTensors& expected, float value) const {
  KUAFU_CHECK(tensors.size() == expected.size(), "stage ", place_.stage, " got ", tensors.size(),
              " tensors, expected ", expected.size());
  for (const Tensor& t : tensors) {
    const float* first = t.const_data_ptr<float>();
    const float* last = first + t.numel() - 1;
    const bool is_right =
        work_.is_nothing() ? *first == value && *last == value
                           : std::all_of(first, last + 1, [value](float x) { return x == value; });
    KUAFU_CHECK(is_right, "stage ", place_.stage, " got ", *first, " to ", *last, ", expected ",
                value);
  }
}

Tensors TimedStage::made(const FlowTensors& flow, float value) const {
  Tensors out;
  for (const FlowTensor& t : flow) out.push_back(at::full(t.shape, value, t.type));
  return out;
}

}  // namespace kuafu::micro
