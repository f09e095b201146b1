// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>

#include "kuafu/base/trace.h"

namespace kuafu {

/// Puts a watch before the kernels of LibTorch's ops, once in a process: nothing to threads without
/// an OpTraceScope. Called before ranks run, since the dispatcher's tables change.
void install_op_watch();

/// Makes `recorder` this thread's recorder and writes every op of LibTorch's dispatcher into it
/// until the scope ends: the outermost ones that move data (op_kinds.h), with their name, kind, bytes
/// and the shapes of their tensors.
class OpTraceScope {
 public:
  explicit OpTraceScope(TraceRecorder& recorder);
  ~OpTraceScope();
  OpTraceScope(const OpTraceScope&) = delete;
  OpTraceScope& operator=(const OpTraceScope&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
  TraceScope scope_;
};

/// What happens inside is one op of that name on `result`, whatever the device: data that a
/// simulated rank does not have is loaded here. Does nothing where ops are not traced.
class OneOpScope {
 public:
  OneOpScope(std::string_view name, const at::Tensor& result);
  ~OneOpScope();
  OneOpScope(const OneOpScope&) = delete;
  OneOpScope& operator=(const OneOpScope&) = delete;

 private:
  std::string_view name_;
  const at::Tensor& result_;
  int64_t start_ns_ = 0;
};

}  // namespace kuafu
