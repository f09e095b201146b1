// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace kuafu::tokenizer {

/// One part of a tokenizer that changes a `Value` in place.
template <class Value>
class TextStep {
 public:
  virtual ~TextStep() = default;
  virtual void apply(Value& value) const = 0;
};

template <class Value>
using StepPtr = std::unique_ptr<TextStep<Value>>;

/// A step that calls `function(value)`.
template <class Value, class Function>
StepPtr<Value> step(Function function) {
  class Call final : public TextStep<Value> {
   public:
    explicit Call(Function&& f) : function_(std::move(f)) {}
    void apply(Value& value) const override { function_(value); }

   private:
    Function function_;
  };
  return std::make_unique<Call>(std::move(function));
}

/// One after the other.
template <class Value>
StepPtr<Value> in_sequence(std::vector<StepPtr<Value>> steps) {
  return step<Value>([steps = std::move(steps)](Value& value) {
    for (const StepPtr<Value>& one : steps) one->apply(value);
  });
}

}  // namespace kuafu::tokenizer
