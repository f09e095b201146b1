// SPDX-License-Identifier: Apache-2.0
//
// Own ops that compute something else. A dispatch key that LibTorch keeps for tests stands before
// all kernels of kuafu:: ops, and is switched on for the thread of a rank; every other op falls
// through it.

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <optional>

#include "tests/mutants/mutant.h"

namespace kuafu::tests {

using torch::jit::Stack;

struct OpFaultScope::State {
  const std::vector<OpFault>& faults;
  int rank;
  std::shared_ptr<std::atomic<int64_t>> fired;
  std::map<std::string, int64_t> calls = {};  // by op
  State* previous = nullptr;
  std::optional<c10::impl::IncludeDispatchKeyGuard> guard = {};
};

namespace {

constexpr auto kBefore = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Of this thread: a kernel has no closure.
thread_local OpFaultScope::State* tls_faults = nullptr;

const OpFault* fault_of(const std::string& op) {
  if (tls_faults == nullptr) return nullptr;
  const int64_t call = ++tls_faults->calls[op];
  for (const OpFault& f : tls_faults->faults) {
    const bool is_here = f.rank < 0 || f.rank == tls_faults->rank;
    if (f.op == op && is_here && (f.at == 0 || f.at == call)) return &f;
  }
  return nullptr;
}

/// The same arguments, those that the op writes copied.
Stack copy_of(const Stack& args, const c10::FunctionSchema& schema) {
  Stack copy = args;
  for (size_t i = 0; i < copy.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) copy[i] = copy[i].toTensor().clone();
  }
  return copy;
}

bool is_same(const c10::IValue& a, const c10::IValue& b) {
  if (!a.isTensor()) return true;
  return at::equal(a.toTensor().nan_to_num(), b.toTensor().nan_to_num());
}

/// Makes the call rightly on copies and wrongly on the arguments, and counts where it matters.
void call_wrongly(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kBefore);
  const OpFault* fault = fault_of(op.schema().name().substr(sizeof("kuafu::") - 1));
  if (fault == nullptr) return op.callBoxed(stack);
  const Stack args = *stack;
  Stack right = copy_of(args, op.schema()), copies = right;
  op.callBoxed(right);
  fault->wrong(*stack, [&](Stack& s) { op.callBoxed(s); });
  bool is_other = false;
  for (size_t i = 0; i < right.size(); ++i) is_other |= !is_same((*stack)[i], right[i]);
  for (size_t i = 0; i < args.size(); ++i) is_other |= !is_same(args[i], copies[i]);
  *tls_faults->fired += is_other;
}

/// Once in a process, for all own ops.
void stand_before_ops() {
  static auto* fallthrough =
      new torch::Library(torch::Library::IMPL, "_", kBefore, __FILE__, __LINE__);
  static auto* own = new torch::Library(torch::Library::IMPL, "kuafu", kBefore, __FILE__, __LINE__);
  static const bool is_done = [] {
    fallthrough->fallback(torch::CppFunction::makeFallthrough());
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("kuafu::", 0) != 0) continue;
      own->impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call_wrongly>());
    }
    return true;
  }();
  (void)is_done;
}

}  // namespace

OpFaultScope::OpFaultScope(const std::vector<OpFault>& faults, int rank,
                           std::shared_ptr<std::atomic<int64_t>> fired)
    : state_(new State{faults, rank, std::move(fired)}) {
  if (faults.empty()) return;
  stand_before_ops();
  state_->previous = std::exchange(tls_faults, state_.get());
  state_->guard.emplace(kBefore);
}

OpFaultScope::~OpFaultScope() {
  if (!state_->faults.empty()) tls_faults = state_->previous;
}

void set_fault(Mutant& m, const OpFault& fault) {
  m.ops.push_back(fault);
  m.is_of_timed_run = fault.at != 0;  // calls are counted once, from the first of the timed run
}

}  // namespace kuafu::tests
