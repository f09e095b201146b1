// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/mutants/op_kit.h"
#include "tests/support/plans.h"

// Words to say what is wrong with an update.
namespace kuafu::tests {

/// Everything that a rate and a decay have.
inline const Overrides kPlan = {{"parallel.data", "2"},
                                {"optimizer.weight_decay", "0.1"},
                                {"optimizer.warmup", "2"},
                                {"optimizer.schedule", "cosine"},
                                {"optimizer.schedule_steps", "6"}};

/// Where the arguments of an op are.
struct Indices {
  size_t value = 0, state = 2, lr = 0, decay = 0;
};
inline constexpr Indices kAdamW{.lr = 4, .decay = 8}, kSgd{.lr = 3, .decay = 5};

inline OpFault instead(const std::string& op,
                       std::function<void(torch::jit::Stack&, const OpFault::Right&)> wrong) {
  return {.op = op, .wrong = std::move(wrong)};
}
inline OpFault on_rank_1(OpFault f) {
  f.rank = 1;
  return f;
}
inline OpFault in_call(OpFault f, int64_t at) {
  f.at = at;
  return f;
}

/// A tensor of the arguments put back to what it was.
inline OpFault forgets(const std::string& op, size_t index) {
  return instead(op, [index](torch::jit::Stack& s, const OpFault::Right& right) {
    const at::Tensor t = s[index].toTensor(), before = t.clone();
    right(s);
    t.copy_(before);
  });
}

inline OpFault skips(const std::string& op) {
  return instead(op, [](torch::jit::Stack& s, const OpFault::Right&) { s.clear(); });
}

inline OpFault twice(const std::string& op) {
  return instead(op, [](torch::jit::Stack& s, const OpFault::Right& right) {
    torch::jit::Stack again = s;
    right(s);
    right(again);
  });
}

/// The gradient an op is given, changed.
inline OpFault with_gradient(
    const std::string& op, std::function<at::Tensor(const at::Tensor& g, const at::Tensor& w)> f) {
  return instead(op, [f](torch::jit::Stack& s, const OpFault::Right& right) {
    s[1] = f(s[1].toTensor(), s[0].toTensor()).contiguous();
    right(s);
  });
}

/// What others call Adam.
struct Habits {
  bool is_epsilon_inside = false, is_decay_coupled = false, is_maximal = false, is_nesterov = false;
};
/// Adam or AdamW by hand, with a place for each of its habits.
OpFault adam_by(const std::string& op, Habits habits);

/// Of rules whose steps are of layers or of whole matrices: LARS, LAMB, Muon.
void add_layer_rules(Kit& kit);
/// What is known to go wrong with Adam, Nesterov's momentum and Muon, in bf16 too.
void add_known_mistakes(Kit& kit);

}  // namespace kuafu::tests
