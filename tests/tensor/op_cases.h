// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

// Arguments for every own op, for tests that walk all of them.
namespace kuafu::testing {

using c10::IValue;
using torch::jit::Stack;

struct Case {
  std::string op;
  std::function<Stack(at::ScalarType)> arguments;
};

/// At least one for every op that is registered.
std::vector<Case> all_cases();

/// Tensors, and those of lists.
std::vector<at::Tensor> tensors_of(const Stack& stack);

/// The stack with every tensor replaced by f of it.
template <class F>
Stack mapped(Stack stack, F f) {
  for (IValue& v : stack) {
    if (v.isTensor()) v = f(v.toTensor());
    if (!v.isTensorList()) continue;
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : v.toTensorVector()) list.push_back(f(t));
    v = list;
  }
  return stack;
}

/// Results, and after them the arguments: some ops write those.
std::vector<at::Tensor> call(const std::string& name, const Stack& arguments);

/// f64 for f64, else f32.
inline at::ScalarType stats_type(at::ScalarType t) {
  return t == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace kuafu::testing
