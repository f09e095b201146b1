// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/flops.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace kuafu {

struct FlopWatcher::State {
  std::map<std::string, int64_t> flops, calls;
  at::CallbackHandle handle = 0;
};

namespace {

/// The watcher of this thread: a thread-local callback has no closure.
thread_local FlopWatcher::State* tls_state = nullptr;

int64_t extent(const c10::IValue& tensor, int64_t dim) { return tensor.toTensor().size(dim); }

int64_t attention_flops(const c10::IValue& q, const c10::IValue& k, bool is_causal) {
  return flops::attention(
      {extent(q, 0), extent(q, 1), extent(q, 2), extent(k, 2), extent(q, 3), is_causal});
}

/// FLOPs of one call from its operands; 0 for ops that are not leaves of matrix work.
int64_t count(const std::string& name, c10::ArrayRef<const c10::IValue> in) {
  if (name == "aten::mm")
    return flops::matmul(extent(in[0], 0), extent(in[0], 1), extent(in[1], 1));
  if (name == "aten::addmm" || name == "aten::addmm_") {
    return flops::matmul(extent(in[1], 0), extent(in[1], 1), extent(in[2], 1));
  }
  if (name == "aten::bmm") {
    return extent(in[0], 0) * flops::matmul(extent(in[0], 1), extent(in[0], 2), extent(in[1], 2));
  }
  if (name == "aten::baddbmm" || name == "aten::baddbmm_") {
    return extent(in[1], 0) * flops::matmul(extent(in[1], 1), extent(in[1], 2), extent(in[2], 2));
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    return attention_flops(in[0], in[1], in[4].toBool());
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    return 2 * attention_flops(in[1], in[2], in[7].toBool());
  }
  return 0;
}

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& fn) {
  if (tls_state == nullptr) return nullptr;
  const std::string name = fn.name();
  ++tls_state->calls[name];
  if (const int64_t n = count(name, fn.inputs()); n > 0) tls_state->flops[name] += n;
  return nullptr;
}

}  // namespace

FlopWatcher::FlopWatcher() : state_(std::make_unique<State>()) {
  state_->handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(on_call).needsInputs(true).scopes(
          {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  tls_state = state_.get();
}

FlopWatcher::~FlopWatcher() {
  tls_state = nullptr;
  at::removeCallback(state_->handle);
}

int64_t FlopWatcher::total() const {
  int64_t sum = 0;
  for (const auto& [name, n] : state_->flops) sum += n;
  return sum;
}

const std::map<std::string, int64_t>& FlopWatcher::by_op() const { return state_->flops; }
const std::map<std::string, int64_t>& FlopWatcher::calls() const { return state_->calls; }

}  // namespace kuafu
