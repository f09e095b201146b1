// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/op_trace.h"

#include <ATen/record_function.h>

#include <set>
#include <string>
#include <unordered_map>

#include "kuafu/meter/book.h"

namespace kuafu {

struct OpTraceScope::State {
  enum class Role : uint8_t { kOp, kFrame, kNothing };
  std::unordered_map<const char*, Role> roles;  // by the dispatcher's own name: one string an op
  int64_t depth = 0;
  at::CallbackHandle handle = 0;
  State* previous = nullptr;
  std::string shape;  // kept for its memory
};

namespace {

using State = OpTraceScope::State;

/// The watch of this thread: a thread-local callback has no closure.
thread_local State* tls_tracing = nullptr;

struct Frame : at::ObserverContext {
  int64_t start_ns = 0;
  bool is_counted = false, is_told = false;
};

/// Views, and memory that nothing is written to.
bool does_nothing(std::string_view name) {
  static const std::set<std::string_view> names = {"aten::empty",
                                                   "aten::empty_like",
                                                   "aten::empty_strided",
                                                   "aten::new_empty",
                                                   "aten::view",
                                                   "aten::_unsafe_view",
                                                   "aten::_reshape_alias",
                                                   "aten::permute",
                                                   "aten::transpose",
                                                   "aten::t",
                                                   "aten::narrow",
                                                   "aten::slice",
                                                   "aten::select",
                                                   "aten::detach",
                                                   "aten::detach_",
                                                   "aten::unsqueeze",
                                                   "aten::squeeze",
                                                   "aten::expand",
                                                   "aten::expand_as",
                                                   "aten::as_strided",
                                                   "aten::alias",
                                                   "aten::view_as",
                                                   "aten::flatten",
                                                   "aten::unflatten",
                                                   "aten::is_same_size",
                                                   "aten::set_",
                                                   "aten::requires_grad_",
                                                   "aten::split",
                                                   "aten::chunk",
                                                   "aten::unbind",
                                                   "aten::resolve_conj",
                                                   "aten::resolve_neg",
                                                   "aten::data",
                                                   "aten::item",
                                                   "aten::is_nonzero",
                                                   "aten::_local_scalar_dense",
                                                   "aten::set_data",
                                                   "aten::_version",
                                                   "aten::output_nr",
                                                   "aten::from_blob",
                                                   "aten::lift_fresh",
                                                   "aten::_has_compatible_shallow_copy_type",
                                                   "aten::split_with_sizes"};
  return names.contains(name);
}

/// A node of the backward holds ops and is none.
bool is_frame_of_autograd(std::string_view name) {
  return name.starts_with("autograd::") || name.find("differentiable") != std::string_view::npos;
}

State::Role role_of(State& state, const char* name) {
  const auto [at, is_new] = state.roles.try_emplace(name, State::Role::kOp);
  if (is_new && is_frame_of_autograd(name)) at->second = State::Role::kFrame;
  if (is_new && does_nothing(name)) at->second = State::Role::kNothing;
  return at->second;
}

const char* short_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "f64";
    case at::kFloat:
      return "f32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "f16";
    case at::kLong:
      return "i64";
    case at::kInt:
      return "i32";
    case at::kBool:
      return "bool";
    default:
      return "other";
  }
}

void append(std::string& shape, const at::Tensor& t) {
  if (!t.defined()) return;
  if (!shape.empty()) shape += ", ";
  shape += short_name(t.scalar_type());
  char separator = ' ';
  for (const int64_t extent : t.sizes()) {
    shape += separator;
    shape += std::to_string(extent);
    separator = 'x';
  }
}

void append(std::string& shape, const c10::IValue& value) {
  if (value.isTensor()) append(shape, value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& t : value.toTensorVector()) append(shape, t);
}

uint8_t flags_now() {
  const RankBook* book = current_book();
  return book != nullptr && book->is_recomputing ? kRecompute : kNoFlags;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& fn) {
  State* s = tls_tracing;
  TraceRecorder* trace = current_trace();
  if (s == nullptr || trace == nullptr) return nullptr;
  const State::Role role = role_of(*s, fn.name());
  if (role == State::Role::kFrame) return nullptr;
  auto frame = std::make_unique<Frame>();
  frame->is_counted = true;
  frame->is_told = s->depth++ == 0 && role == State::Role::kOp;
  if (!frame->is_told) return frame;
  s->shape.clear();
  for (const c10::IValue& value : fn.inputs()) append(s->shape, value);
  frame->start_ns = trace->now_ns();
  return frame;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  State* s = tls_tracing;
  if (s == nullptr || context == nullptr) return;
  const auto* frame = static_cast<const Frame*>(context);
  --s->depth;
  TraceRecorder* trace = current_trace();
  if (frame->is_told && trace != nullptr) {
    trace->op(fn.name(), s->shape, flags_now(), frame->start_ns);
  }
}

}  // namespace

OpTraceScope::OpTraceScope(TraceRecorder& recorder)
    : state_(std::make_unique<State>()), scope_(&recorder) {
  state_->previous = tls_tracing;
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                                  .needsInputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
  tls_tracing = state_.get();
}

OpTraceScope::~OpTraceScope() {
  tls_tracing = state_->previous;
  at::removeCallback(state_->handle);
}

OneOpScope::OneOpScope(std::string_view name, const at::Tensor& result)
    : name_(name), result_(result) {
  if (tls_tracing == nullptr) return;
  ++tls_tracing->depth;
  if (TraceRecorder* trace = current_trace()) start_ns_ = trace->now_ns();
}

OneOpScope::~OneOpScope() {
  if (tls_tracing == nullptr) return;
  --tls_tracing->depth;
  TraceRecorder* trace = current_trace();
  if (trace == nullptr || tls_tracing->depth > 0) return;
  tls_tracing->shape.clear();
  append(tls_tracing->shape, result_);
  trace->op(name_, tls_tracing->shape, flags_now(), start_ns_);
  trace->work(0, static_cast<int64_t>(result_.nbytes()), kNoFlags);
}

}  // namespace kuafu
