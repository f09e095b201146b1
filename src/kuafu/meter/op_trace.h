// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string_view>

#include "kuafu/base/trace.h"

namespace c10 {
class OperatorHandle;
}

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

/// Whether this thread's ops are written down now.
bool are_ops_traced();

/// The event of an own op that its caller writes, who knows the types of its arguments: the watch
/// boxes them. What the op does until the event ends is its own. @pre are_ops_traced()
class OwnOpEvent {
 public:
  /// number: of the op, by next_number().
  OwnOpEvent(const c10::OperatorHandle& op, size_t number);
  ~OwnOpEvent();  ///< writes it
  OwnOpEvent(const OwnOpEvent&) = delete;
  OwnOpEvent& operator=(const OwnOpEvent&) = delete;

  static size_t next_number();

  /// Its arguments, in their order: tensors count, other values do not.
  template <class... A>
  void start(const A&... arguments) {
    (add(arguments), ...);
    start();
  }

 private:
  template <class T>
  void add(const T&) {}
  void add(const at::Tensor& t);
  void add(const std::optional<at::Tensor>& t) {
    if (t) add(*t);
  }
  void add(at::TensorList tensors) {
    for (const at::Tensor& t : tensors) add(t);
  }
  void start();

  TraceRecorder::OpEvent event_;
  bool was_inside_;
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
