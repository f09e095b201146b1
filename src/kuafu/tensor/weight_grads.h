// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// Weight gradients left for later, in the order in which backward came by them. Each holds what it
/// needs alive: the layer's input and the gradient of its output.
class WeightGrads {
 public:
  using Product = std::function<Tensor()>;

  /// `product` will give the gradient of `weight`. @pre weight is a leaf
  void add(const Tensor& weight, Product product);
  /// Computes all and adds them to their weights' .grad; empties the list.
  void compute();
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    Tensor weight;
    Product product;
  };
  std::vector<Entry> entries_;
};

/// Until the scope ends, layers of this thread that can leave their weight gradient for later add
/// it to `later` instead. Null: they compute it at once.
class WeightGradScope {
 public:
  explicit WeightGradScope(WeightGrads* later);
  ~WeightGradScope();
  WeightGradScope(const WeightGradScope&) = delete;
  WeightGradScope& operator=(const WeightGradScope&) = delete;

 private:
  WeightGrads* previous_;
};

/// The list of this thread's scope where `weight` may be left for later: a leaf that wants its
/// gradient; else null.
WeightGrads* weight_grads_for(const Tensor& weight);

}  // namespace kuafu
