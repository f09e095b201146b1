// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/op_trace.h"

#include <ATen/record_function.h>

#include <cstddef>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "kuafu/meter/book.h"
#include "kuafu/meter/op_kinds.h"

namespace kuafu {

/// What is known of an op by its name.
struct OpFacts {
  bool is_told = false;
  bool is_own = false;  ///< books its own work
  OpKind kind = OpKind::kUnbooked;
  int32_t name = 0;
};

/// Types and extents of an op's tensors as numbers; their text is made once.
class OpShapes {
 public:
  void begin() { key_.clear(); }
  void add(const at::Tensor& t) {
    key_.push_back(-1 - static_cast<int64_t>(t.scalar_type()));
    const at::IntArrayRef sizes = t.sizes();
    key_.insert(key_.end(), sizes.begin(), sizes.end());
  }
  int32_t id(TraceRecorder& trace) {
    const auto found = ids_.find(key_);
    if (found != ids_.end()) return found->second;
    return ids_.emplace(key_, trace.shape_of(text_of_key())).first->second;
  }

 private:
  struct Hash {
    size_t operator()(const std::vector<int64_t>& key) const {
      uint64_t h = key.size();
      for (const int64_t x : key) {
        h = (h ^ static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15U;
        h ^= h >> 32;
      }
      return h;
    }
  };
  std::string text_of_key() const;

  std::vector<int64_t> key_;
  std::unordered_map<std::vector<int64_t>, int32_t, Hash> ids_;
};

namespace {

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

}  // namespace

std::string OpShapes::text_of_key() const {
  std::string text;
  char separator = ' ';
  for (const int64_t x : key_) {
    if (x < 0) {
      if (!text.empty()) text += ", ";
      text += short_name(static_cast<at::ScalarType>(-1 - x));
      separator = ' ';
      continue;
    }
    text += separator;
    text += std::to_string(x);
    separator = 'x';
  }
  return text;
}

struct OpTraceScope::State {
  explicit State(TraceRecorder& r) : recorder(r) {}
  const OpFacts& facts_of(const char* name);

  TraceRecorder& recorder;
  std::unordered_map<const char*, OpFacts> facts;  // by the dispatcher's own name
  OpShapes shapes;
  int64_t depth = 0;  // of OneOpScopes
  at::CallbackHandle handle = 0;
  State* previous = nullptr;
};

namespace {

using State = OpTraceScope::State;

/// The watch of this thread: a thread-local callback has no closure.
thread_local State* tls_tracing = nullptr;

/// An op under way. One a thread at a time, so that it needs no memory of its own.
struct Frame : at::ObserverContext {
  TraceRecorder::OpEvent event;
  bool is_own = false;

  static void* operator new(size_t bytes);
  static void operator delete(void* frame);
};

thread_local bool is_place_taken = false;
alignas(Frame) thread_local std::byte place_of_frame[sizeof(Frame)];

void* Frame::operator new(size_t bytes) {
  if (is_place_taken) return ::operator new(bytes);
  is_place_taken = true;
  return place_of_frame;
}

void Frame::operator delete(void* frame) {
  if (frame == static_cast<void*>(place_of_frame)) {
    is_place_taken = false;
  } else {
    ::operator delete(frame);
  }
}

/// A node of the backward holds ops and is none.
bool is_frame_of_autograd(std::string_view name) {
  return name.starts_with("autograd::") || name.find("differentiable") != std::string_view::npos;
}

template <class F>
void each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const c10::IValue& t : value.toListRef()) {
      if (t.toTensor().defined()) f(t.toTensor());
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
  return book != nullptr && book->is_recomputing ? kRecompute : kNoFlags;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& fn) {
  State* s = tls_tracing;
  if (s == nullptr || s->depth > 0 || current_trace() != &s->recorder) return nullptr;
  const OpFacts& op = s->facts_of(fn.name());
  if (!op.is_told) return nullptr;
  // What an op does inside itself is its own. Faster than to switch off the callback alone.
  at::enableRecordFunction(false);
  auto frame = std::make_unique<Frame>();
  frame->is_own = op.is_own;
  frame->event.name = op.name;
  frame->event.kind = op.kind;
  s->shapes.begin();
  // The destination of a copy is its first argument, and not read.
  size_t to_skip = op.kind == OpKind::kCopy && std::string_view(fn.name()) == "aten::copy_" ? 1 : 0;
  for (const c10::IValue& value : fn.inputs()) {
    each_tensor(value, [&](const at::Tensor& t) {
      s->shapes.add(t);
      if (!op.is_own && to_skip == 0) frame->event.bytes += bytes_read(op.kind, t);
      if (to_skip > 0) --to_skip;
    });
  }
  frame->event.shape = s->shapes.id(s->recorder);
  frame->event.start_ns = s->recorder.now_ns();
  return frame;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  State* s = tls_tracing;
  if (s == nullptr || context == nullptr) return;
  at::enableRecordFunction(true);
  auto& frame = *static_cast<Frame*>(context);
  if (current_trace() != &s->recorder) return;
  if (!frame.is_own) {
    for (const c10::IValue& value : fn.outputs()) {
      each_tensor(value, [&](const at::Tensor& t) {
        frame.event.bytes += bytes_written(frame.event.kind, t);
      });
    }
  }
  frame.event.flags = flags_now();
  s->recorder.op(frame.event);
}

}  // namespace

const OpFacts& OpTraceScope::State::facts_of(const char* name) {
  const auto [at, is_new] = facts.try_emplace(name);
  if (!is_new) return at->second;
  OpFacts& op = at->second;
  op.is_told = !is_frame_of_autograd(name) && !moves_nothing(name);
  if (!op.is_told) return op;
  op.is_own = std::string_view(name).starts_with("kuafu::");
  op.kind = kind_of_op(name);
  op.name = recorder.name_of(name);
  return op;
}

OpTraceScope::OpTraceScope(TraceRecorder& recorder)
    : state_(std::make_unique<State>(recorder)), scope_(&recorder) {
  state_->previous = tls_tracing;
  if (tls_tracing != nullptr) at::disableCallback(tls_tracing->handle);
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                                  .needsInputs(true)
                                                  .needsOutputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
  tls_tracing = state_.get();
}

OpTraceScope::~OpTraceScope() {
  tls_tracing = state_->previous;
  at::removeCallback(state_->handle);
  if (tls_tracing != nullptr) at::reenableCallback(tls_tracing->handle);
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
