// SPDX-License-Identifier: Apache-2.0
#include "kuafu/oracle/random_rounding.h"

#include <algorithm>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"

namespace kuafu::oracle {
struct RandomRounding::State {
  /// Which results of a draw are moved to one side: errors that agree add up, those that do not cancel,
  /// and a run's may do either (kernels that approximate err to one side, sums to both).
  enum class Agreement : uint8_t { kUp, kDown, kOfOperation, kNone };
  static constexpr uint64_t kNumAgreements = 4;

  explicit State(uint64_t seed)
      : agreement(static_cast<Agreement>(seed % kNumAgreements)),
        draws(seed, hash_name("random rounding")),
        generator(at::detail::createCPUGenerator(seed)) {}
  double u_of_f64 = 0;
  Agreement agreement;
  CounterRandom draws;
  at::Generator generator;
  uint64_t num_draws = 0;
  at::CallbackHandle handle = 0;
  int64_t num_moved = 0;
};

namespace {

using Agreement = RandomRounding::State::Agreement;

thread_local RandomRounding::State* tls_rounding = nullptr;

/// How many results had been moved when an operation began: one that calls others, which move
/// theirs, is not moved again.
struct Begin : at::ObserverContext {
  int64_t num_moved = 0;
};

double unit_of(at::ScalarType type, double of_f64) {
  switch (type) {
    case at::kDouble:
      return std::max(of_f64, 0x1p-52);  // what is less than half a spacing moves nothing
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    case at::kBFloat16:
      return 0x1p-8;
    default:
      return 0;
  }
}

/// Numbers in [-1, 1), a function of the leading bits of each value and of a key: equal results of
/// an operation are rounded alike, as they are in a run, and errors of equal rows add up. (Tokens
/// that repeat in a tiny vocabulary make equal rows.) Mixed as in splitmix64 [Steele, Lea & Flood,
/// OOPSLA 2014].
at::Tensor moves_by_value(const at::Tensor& values, int64_t key) {
  constexpr int64_t kIgnored = 20;  // of 52: what differs by less comes of another order of sums
  const auto folded = [](const at::Tensor& h, int64_t shift) {  // zeros come in, not the sign
    const int64_t kept = (int64_t{1} << (64 - shift)) - 1;
    return h.bitwise_xor(at::bitwise_right_shift(h, shift).bitwise_and(kept));
  };
  const auto mix = [&](const at::Tensor& h, int64_t shift, uint64_t factor) {
    return folded(h, shift) * static_cast<int64_t>(factor);
  };
  at::Tensor h = at::bitwise_right_shift(values.view(at::kLong), kIgnored) + key;
  h = mix(mix(h, 30, 0xbf58476d1ce4e5b9), 27, 0x94d049bb133111eb);
  return folded(h, 31).to(at::kDouble) * 0x1p-63;
}

at::Tensor to_one_side(const at::Tensor& moves, Agreement agreement, int64_t key) {
  if (agreement == Agreement::kNone) return moves;
  const bool is_down =
      agreement == Agreement::kDown || (agreement == Agreement::kOfOperation && key % 2 != 0);
  return is_down ? -moves.abs() : moves.abs();
}

/// In place, under the tensors that autograd has saved.
void disturb(const at::Tensor& y, RandomRounding::State& state) {
  if (!y.defined() || !y.is_cpu() || y.numel() == 0) return;
  const double u = unit_of(y.scalar_type(), state.u_of_f64);
  if (u == 0) return;
  const at::Tensor values = y.variable_data();
  const at::Tensor exact = values.to(at::kDouble).contiguous();
  // Of half precision, whatever is widened comes of few values: equal ones were not before they
  // were rounded.
  const bool is_half = state.u_of_f64 > 0x1p-20;
  const auto key = static_cast<int64_t>(state.draws.bits(state.num_draws++));
  const at::Tensor moves = is_half ? at::empty_like(exact).uniform_(-1, 1, state.generator)
                                   : to_one_side(moves_by_value(exact, key), state.agreement, key);
  values.copy_(exact * (1 + u * moves));
  // A number that an operation converts to its tensor's type is no result of another.
  if (y.dim() > 0) ++state.num_moved;
}

/// Views and results in place have an alias in their schema; copies and constants are exact.
bool is_rounded(const at::RecordFunction& fn) {
  const auto schema = fn.operator_schema();
  if (!schema) return false;
  const std::string_view name = fn.name();
  for (const char* exact : {"clone", "empty", "zeros", "ones", "full"}) {
    if (name.find(exact) != std::string_view::npos) return false;
  }
  for (const auto& result : schema->returns()) {
    if (result.alias_info() != nullptr) return false;
  }
  return true;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction&) {
  auto begin = std::make_unique<Begin>();
  if (tls_rounding != nullptr) begin->num_moved = tls_rounding->num_moved;
  return begin;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  RandomRounding::State* state = tls_rounding;
  if (state == nullptr || !is_rounded(fn)) return;
  if (state->num_moved != static_cast<const Begin*>(context)->num_moved) return;
  const at::NoGradGuard no_grad;
  const at::DisableRecordFunctionGuard unseen;
  for (const c10::IValue& result : fn.outputs()) {
    if (result.isTensor()) disturb(result.toTensor(), *state);
    if (!result.isTensorList()) continue;
    for (const at::Tensor& t : result.toTensorVector()) disturb(t, *state);
  }
}

}  // namespace

RandomRounding::RandomRounding(double u_of_f64, uint64_t seed)
    : state_(std::make_unique<State>(seed)) {
  KUAFU_CHECK(tls_rounding == nullptr, "this thread rounds at random already");
  state_->u_of_f64 = u_of_f64;
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                                  .needsOutputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
  tls_rounding = state_.get();
}

RandomRounding::~RandomRounding() {
  tls_rounding = nullptr;
  at::removeCallback(state_->handle);
}

}  // namespace kuafu::oracle
