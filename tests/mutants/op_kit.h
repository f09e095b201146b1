// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/mutants/mutant.h"

// Words to say what is wrong with an own op.
namespace kuafu::tests {

/// With argument `index` changed.
inline OpFault with_argument(const std::string& op, size_t index,
                             std::function<void(c10::IValue& value)> change) {
  return {.op = op,
          .wrong = [index, change = std::move(change)](torch::jit::Stack& stack,
                                                       const OpFault::Right& right) {
            change(stack.at(index));
            right(stack);
          }};
}
/// With a number added to it.
inline OpFault with_int(const std::string& op, size_t index, int64_t more) {
  return with_argument(op, index, [more](c10::IValue& v) { v = v.toInt() + more; });
}
/// With argument `index` another number.
inline OpFault with_number(const std::string& op, size_t index,
                           std::function<double(double)> change) {
  return with_argument(op, index,
                       [change = std::move(change)](c10::IValue& v) { v = change(v.toDouble()); });
}
/// With a flag turned round.
inline OpFault with_other_flag(const std::string& op, size_t index) {
  return with_argument(op, index, [](c10::IValue& v) { v = !v.toBool(); });
}

/// With result `index` changed.
inline OpFault with_result(const std::string& op, size_t index,
                           std::function<at::Tensor(const at::Tensor&)> change) {
  return {.op = op,
          .wrong = [index, change = std::move(change)](torch::jit::Stack& stack,
                                                       const OpFault::Right& right) {
            right(stack);
            const at::Tensor t = stack.at(index).toTensor();
            at::Tensor made = at::empty_like(t);  // the memory order of the right one
            made.copy_(change(t));
            stack[index] = made;
          }};
}
inline OpFault with_result_times(const std::string& op, size_t index, double factor) {
  return with_result(op, index, [factor](const at::Tensor& t) { return t * factor; });
}

/// Its arguments as tensors; undefined where they are none.
using Arguments = std::vector<at::Tensor>;
inline Arguments tensors_of(const torch::jit::Stack& stack) {
  Arguments all;
  for (const c10::IValue& v : stack) all.push_back(v.isTensor() ? v.toTensor() : at::Tensor());
  return all;
}

/// With result `index` made of arguments and right results by another formula.
inline OpFault with_formula(
    const std::string& op, size_t index,
    std::function<at::Tensor(const Arguments& args, const Arguments& results)> formula) {
  return {.op = op,
          .wrong = [index, formula = std::move(formula)](torch::jit::Stack& stack,
                                                         const OpFault::Right& right) {
            const Arguments args = tensors_of(stack);
            right(stack);
            const Arguments results = tensors_of(stack);
            const at::Tensor t = results.at(index);
            at::Tensor made = at::empty_like(t);  // the memory order of the right one
            made.copy_(formula(args, results));
            stack[index] = made;
          }};
}

/// Rotary positions, swiglu, RMS norm, no bias.
inline Overrides llama_overrides() {
  return {{"model.positions", "rotary"},
          {"model.mlp", "swiglu"},
          {"model.norm", "rms"},
          {"model.bias", "false"}};
}

// Parts of the kernels' kit.
void add_attention_kernels(Kit& kit);
void add_expert_kernels(Kit& kit);

}  // namespace kuafu::tests
