// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/dataset/dataset.h"

namespace kuafu {

/// Tokens without substance: the rank program on meta tensors needs their number only.
class NoData : public Dataset {
 public:
  explicit NoData(const ModelPlan& model) : model_(model) {}
  int64_t vocab() const override { return model_.vocab; }
  int64_t num_train_samples() const override { return 0; }
  int64_t num_validation_samples() const override { return 0; }
  Tokens train(int64_t, int64_t count) const override { return blank_tokens(model_, count); }
  Tokens validation(int64_t, int64_t count) const override { return train(0, count); }
  std::string describe() const override { return "no data"; }

 private:
  ModelPlan model_;
};

}  // namespace kuafu
