// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/step/op_watch.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <array>
#include <set>

#include "experiments/micro/step/watched_world.h"

namespace kuafu {

struct OpWatch::State {
  Of of = Of::kTimes;
  std::array<double, 5> cpu_s = {};
  std::map<std::string, double> by_op;
  std::map<Product, int64_t> products;
  int64_t calls = 0, depth = 0;
  double began = 0;
  at::CallbackHandle handle = 0;
};

namespace {

/// The watch of this thread: a thread-local callback has no closure.
thread_local OpWatch::State* tls_state = nullptr;

/// An op under way; only the outermost has times.
struct Frame : at::ObserverContext {
  bool is_outermost = false;
};

Product product_of(c10::ArrayRef<const c10::IValue> in, size_t first) {
  const at::Tensor &a = in[first].toTensor(), &b = in[first + 1].toTensor();
  return {.m = a.size(0), .k = a.size(1), .n = b.size(1)};
}

void count_product(OpWatch::State& s, const std::string& op, c10::ArrayRef<const c10::IValue> in) {
  if (op == "kuafu::matmul" || op == "kuafu::matmul_bias") ++s.products[product_of(in, 0)];
  if (op == "kuafu::matmul_add") ++s.products[product_of(in, 1)];
}

/// A node of the backward holds ops and is none: what it does besides is the program's own.
bool is_frame_of_autograd(std::string_view name) {
  return name.starts_with("autograd::") || name.find("differentiable") != std::string_view::npos;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& fn) {
  OpWatch::State* s = tls_state;
  if (s == nullptr || is_frame_of_autograd(fn.name())) return nullptr;
  auto frame = std::make_unique<Frame>();
  frame->is_outermost = s->depth++ == 0;
  if (frame->is_outermost) {
    if (s->of == OpWatch::Of::kProducts) count_product(*s, fn.name(), fn.inputs());
    s->began = thread_cpu_now();
  }
  return frame;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  OpWatch::State* s = tls_state;
  if (s == nullptr || context == nullptr) return;
  --s->depth;
  if (!static_cast<Frame*>(context)->is_outermost) return;
  const double spent = thread_cpu_now() - s->began;
  const std::string op = fn.name();
  s->cpu_s[static_cast<size_t>(kind_of(op))] += spent;
  s->by_op[op] += spent;
  ++s->calls;
}

}  // namespace

Kind kind_of(const std::string& op) {
  static const std::set<std::string> copies = {
      "aten::copy_",       "aten::clone", "aten::contiguous",
      "aten::cat",         "aten::stack", "aten::fill_",
      "aten::zero_",       "aten::zeros", "aten::zeros_like",
      "aten::ones_like",   "aten::ones",  "aten::full",
      "aten::_to_copy",    "aten::to",    "aten::constant_pad_nd",
      "aten::repeat",      "aten::roll",  "aten::reshape",
      "aten::resolve_conj"};
  static const std::set<std::string> nothing = {
      "aten::empty",          "aten::empty_like", "aten::empty_strided", "aten::view",
      "aten::_unsafe_view",   "aten::permute",    "aten::transpose",     "aten::t",
      "aten::narrow",         "aten::slice",      "aten::select",        "aten::detach",
      "aten::detach_",        "aten::unsqueeze",  "aten::squeeze",       "aten::expand",
      "aten::as_strided",     "aten::alias",      "aten::view_as",       "aten::item",
      "aten::requires_grad_", "aten::flatten",    "aten::is_same_size",  "aten::set_"};
  if (op.starts_with("kuafu::matmul") || op == "aten::mm" || op == "aten::addmm_" ||
      op == "aten::bmm" || op == "aten::matmul" || op == "aten::addmm") {
    return Kind::kMatmul;
  }
  if (op.starts_with("kuafu::attention")) return Kind::kAttention;
  if (copies.contains(op)) return Kind::kCopy;
  if (nothing.contains(op)) return Kind::kNothing;
  return Kind::kModel;
}

const char* to_string(Kind kind) {
  static constexpr std::array<const char*, 5> names = {"matmul", "attention", "copies", "model",
                                                       "nothing"};
  return names[static_cast<size_t>(kind)];
}

OpWatch::OpWatch(Of of) : state_(std::make_unique<State>()) {
  state_->of = of;
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                                  .needsInputs(of == Of::kProducts)
                                                  .scopes({at::RecordScope::FUNCTION}));
  tls_state = state_.get();
}

OpWatch::~OpWatch() {
  tls_state = nullptr;
  at::removeCallback(state_->handle);
}

double OpWatch::cpu_s(Kind kind) const { return state_->cpu_s[static_cast<size_t>(kind)]; }
const std::map<std::string, double>& OpWatch::cpu_s_by_op() const { return state_->by_op; }
int64_t OpWatch::num_calls() const { return state_->calls; }
const std::map<Product, int64_t>& OpWatch::products() const { return state_->products; }

}  // namespace kuafu
