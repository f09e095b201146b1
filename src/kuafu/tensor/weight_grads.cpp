// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/weight_grads.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

thread_local WeightGrads* current_grads = nullptr;

}  // namespace

void WeightGrads::add(const Tensor& weight, Product product) {
  KUAFU_CHECK(weight.is_leaf() && weight.requires_grad(), "a weight gradient for what is no leaf");
  entries_.push_back({weight, std::move(product)});
}

void WeightGrads::compute() {
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    Tensor product = entry.product();
    entry.product = nullptr;  // lets go of the layer's input
    Tensor& grad = entry.weight.mutable_grad();
    if (grad.defined()) {
      grad.add_(product);
    } else {
      grad = std::move(product);
    }
  }
  entries_.clear();
}

WeightGradScope::WeightGradScope(WeightGrads* later)
    : previous_(std::exchange(current_grads, later)) {}
WeightGradScope::~WeightGradScope() { current_grads = previous_; }

WeightGrads* weight_grads_for(const Tensor& weight) {
  return current_grads != nullptr && weight.is_leaf() && weight.requires_grad() ? current_grads
                                                                                : nullptr;
}

}  // namespace kuafu
