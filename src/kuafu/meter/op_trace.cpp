// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/op_trace.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/zero_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kuafu/meter/book.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/meter/op_shapes.h"

namespace kuafu {

/// What is known of an op before it is called.
struct OpFacts {
  bool is_own = false;        ///< books its own work
  bool writes_first = false;  ///< its first argument is a destination, and not read
  OpKind kind = OpKind::kUnbooked;
  int32_t name = 0;
  size_t num_arguments = 0, num_results = 0;
};

/// Ops go to the watch before anything else of the dispatcher while the thread's set has this key.
/// It is one of those that LibTorch leaves to programs and gives no kernels.
constexpr c10::DispatchKey kWatch = c10::DispatchKey::DeferredInit;

struct OpTraceScope::State {
  explicit State(TraceRecorder& r) : recorder(r) {}
  const OpFacts& facts_of(const c10::OperatorHandle& handle);
  /// The same of an op that has a number: without a search.
  const OpFacts& facts_of(const c10::OperatorHandle& handle, size_t number);

  TraceRecorder& recorder;
  std::unordered_map<const c10::OperatorName*, OpFacts> facts;  // by the dispatcher's own name
  std::vector<const OpFacts*> numbered;                         // of them, by next_number()
  OpShapes shapes;
  int64_t depth = 0;  // of OneOpScopes
  State* previous = nullptr;
  c10::impl::IncludeDispatchKeyGuard watched{kWatch};
};

namespace {

using State = OpTraceScope::State;

/// The watch of this thread: a kernel has no closure.
thread_local State* tls_tracing = nullptr;

template <class F>
void each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isList()) {  // of tensors or, as indices are, of optional ones
    for (const c10::IValue& t : value.toListRef()) {
      if (!t.isNone() && !t.isTensor()) return;
      if (t.isTensor() && t.toTensor().defined()) f(t.toTensor());
    }
  }
}

/// Bytes that an op of this kind reads, of a tensor argument of an op that books nothing itself.
int64_t bytes_read(OpKind kind, const at::Tensor& t) {
  if (kind == OpKind::kUnbooked || kind == OpKind::kFill) return 0;
  const bool is_index = at::isIntegralType(t.scalar_type(), true);
  return kind != OpKind::kGather || is_index ? static_cast<int64_t>(t.nbytes()) : 0;
}

int64_t bytes_written(OpKind kind, const at::Tensor& t) {
  if (kind == OpKind::kUnbooked) return 0;
  return (kind == OpKind::kGather ? 2 : 1) * static_cast<int64_t>(t.nbytes());
}

uint8_t flags_now() {
  const RankBook* book = current_book();
  return book == nullptr ? uint8_t{kNoFlags} : book->trace_flags();
}

/// Calls f(tensor) for each tensor among the last `count` values.
template <class F>
void each_tensor_of_last(const torch::jit::Stack& stack, size_t count, const F& f) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) each_tensor(stack[i], f);
}

/// The event of an op, from its tensors.
class OpWatch {
 public:
  OpWatch(State& state, const OpFacts& op)
      : state_(state),
        op_(op),
        event_{.name = op.name, .kind = op.kind},
        is_read_(!op.is_own && !op.writes_first) {
    state_.shapes.begin();
  }
  void argument(const at::Tensor& t) {
    if (!t.defined()) return;
    state_.shapes.add(t);
    if (is_read_) event_.bytes += bytes_read(op_.kind, t);
    is_read_ = !op_.is_own;
  }
  template <class T>
  void argument(const T&) {}  // no tensor
  void start() {
    event_.shape = state_.shapes.id(state_.recorder);
    event_.start_ns = state_.recorder.now_ns();
  }
  void result(const at::Tensor& t) {
    if (!op_.is_own) event_.bytes += bytes_written(op_.kind, t);
  }
  void write() {
    event_.flags = flags_now();
    state_.recorder.op(event_);
  }

 private:
  State& state_;
  const OpFacts& op_;
  TraceRecorder::OpEvent event_;
  bool is_read_;
};

/// Of a call of a watched thread: the keys behind the watch. What an op does inside itself is its own.
c10::DispatchKeySet behind(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWatch);
}

/// An op of a watched thread, which may be any: its arguments come in boxes.
void on_op(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inside(kWatch);
  if (!are_ops_traced()) return handle.redispatchBoxed(behind(keys), stack);
  State& s = *tls_tracing;
  const OpFacts& op = s.facts_of(handle);
  OpWatch watch(s, op);
  each_tensor_of_last(*stack, op.num_arguments, [&](const at::Tensor& t) { watch.argument(t); });
  watch.start();
  handle.redispatchBoxed(behind(keys), stack);
  each_tensor_of_last(*stack, op.num_results, [&](const at::Tensor& t) { watch.result(t); });
  watch.write();
}

/// The same of one op whose types are known, in a third of the time.
template <class Op, class Schema = typename Op::schema>
struct OnOp;
template <class Op, class R, class... A>
struct OnOp<Op, R(A...)> {
  static R call(c10::DispatchKeySet keys, A... arguments) {
    static const c10::OperatorHandle handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const size_t number = OwnOpEvent::next_number();
    const c10::impl::ExcludeDispatchKeyGuard inside(kWatch);
    if (!are_ops_traced()) return Op::redispatch(behind(keys), std::forward<A>(arguments)...);
    State& s = *tls_tracing;
    OpWatch watch(s, s.facts_of(handle, number));
    (watch.argument(arguments), ...);
    watch.start();
    R result = Op::redispatch(behind(keys), std::forward<A>(arguments)...);
    watch.result(result);
    watch.write();
    return result;
  }
};

using Registrations = std::vector<c10::RegistrationHandleRAII>;

template <class Op>
void watch_by_types(Registrations& kept) {
  kept.push_back(c10::Dispatcher::singleton().registerImpl(
      {Op::name, Op::overload_name}, kWatch,
      c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN((&OnOp<Op>::call))), {}, nullptr,
      "kuafu: the watch on an op"));
}

/// Leads every op to the watch but those that move nothing.
void register_watch() {
  auto& dispatcher = c10::Dispatcher::singleton();
  // Never destroyed: a thread may be watched as long as the process lives.
  static auto* kept = new Registrations;
  kept->push_back(dispatcher.registerFallback(
      kWatch, c10::KernelFunction::makeFromBoxedFunction<&on_op>(), "kuafu: the watch on ops"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!moves_nothing(name.name)) continue;
    kept->push_back(dispatcher.registerImpl(name, kWatch, c10::KernelFunction::makeFallthrough(),
                                            {}, nullptr, "kuafu: moves nothing"));
  }
  // What a step calls most: the boxes were a third of what a trace cost.
  watch_by_types<at::_ops::add_Tensor>(*kept);
  watch_by_types<at::_ops::add__Tensor>(*kept);
  watch_by_types<at::_ops::mul_Tensor>(*kept);
  watch_by_types<at::_ops::mul__Tensor>(*kept);
  watch_by_types<at::_ops::copy_>(*kept);
  watch_by_types<at::_ops::clone>(*kept);
  watch_by_types<at::_ops::zero_>(*kept);
}

}  // namespace

void install_op_watch() {
  static std::once_flag once;
  std::call_once(once, register_watch);
}

const OpFacts& OpTraceScope::State::facts_of(const c10::OperatorHandle& handle) {
  const auto [at, is_new] = facts.try_emplace(&handle.operator_name());
  if (!is_new) return at->second;
  const std::string& name = handle.operator_name().name;
  return at->second = {.is_own = name.starts_with("kuafu::"),
                       .writes_first = name == "aten::copy_",
                       .kind = kind_of_op(name),
                       .name = recorder.name_of(name),
                       .num_arguments = handle.schema().arguments().size(),
                       .num_results = handle.schema().returns().size()};
}

OpTraceScope::OpTraceScope(TraceRecorder& recorder) : scope_(&recorder) {
  install_op_watch();
  state_ = std::make_unique<State>(recorder);
  state_->previous = tls_tracing;
  tls_tracing = state_.get();
}

OpTraceScope::~OpTraceScope() { tls_tracing = state_->previous; }

bool are_ops_traced() {
  const State* s = tls_tracing;
  return s != nullptr && s->depth == 0 && current_trace() == &s->recorder;
}

const OpFacts& OpTraceScope::State::facts_of(const c10::OperatorHandle& handle, size_t number) {
  if (numbered.size() <= number) numbered.resize(number + 1, nullptr);
  if (numbered[number] == nullptr) numbered[number] = &facts_of(handle);
  return *numbered[number];
}

OwnOpEvent::OwnOpEvent(const c10::OperatorHandle& op, size_t number)
    : was_inside_(c10::impl::tls_is_dispatch_key_excluded(kWatch)) {
  c10::impl::tls_set_dispatch_key_excluded(kWatch, true);
  State& s = *tls_tracing;
  const OpFacts& facts = s.facts_of(op, number);
  event_ = {.name = facts.name, .kind = facts.kind};
  s.shapes.begin();
}

size_t OwnOpEvent::next_number() {
  static std::atomic<size_t> next{0};
  return next++;
}

void OwnOpEvent::add(const at::Tensor& t) {
  if (t.defined()) tls_tracing->shapes.add(t);
}

void OwnOpEvent::start() {
  State& s = *tls_tracing;
  event_.shape = s.shapes.id(s.recorder);
  event_.start_ns = s.recorder.now_ns();
}

OwnOpEvent::~OwnOpEvent() {
  c10::impl::tls_set_dispatch_key_excluded(kWatch, was_inside_);
  event_.flags = flags_now();
  tls_tracing->recorder.op(event_);
}

OneOpScope::OneOpScope(std::string_view name, const at::Tensor& result)
    : name_(name), result_(result) {
  if (tls_tracing == nullptr) return;
  ++tls_tracing->depth;
  start_ns_ = tls_tracing->recorder.now_ns();
}

OneOpScope::~OneOpScope() {
  State* s = tls_tracing;
  if (s == nullptr || --s->depth > 0 || current_trace() != &s->recorder) return;
  s->shapes.begin();
  s->shapes.add(result_);
  s->recorder.op({.name = s->recorder.name_of(name_),
                  .shape = s->shapes.id(s->recorder),
                  .kind = kind_of_op(name_),
                  .flags = flags_now(),
                  .bytes = static_cast<int64_t>(result_.nbytes()),
                  .start_ns = start_ns_});
}

}  // namespace kuafu
