// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/dataset/dataset.h"

namespace kuafu {

/// Square images of 3 channels: the fixed random pattern of the sample's class plus as much noise,
/// both standard normal. Patches are in row-major order, pixels of a patch (row, column, channel).
/// Patterns depend on nothing but the class, training samples on the seed, validation on neither.
class ImageDataset final : public Dataset {
 public:
  /// @pre model.patch divides model.image and model.sequence is patches + 1.
  ImageDataset(const ModelPlan& model, uint64_t seed);

  int64_t vocab() const override { return model_.classes; }
  /// As many as 63 bits can number: there are no epochs.
  int64_t num_train_samples() const override;
  int64_t num_validation_samples() const override { return num_train_samples(); }
  Tokens train(int64_t first, int64_t count) const override;
  Tokens validation(int64_t first, int64_t count) const override;
  std::string describe() const override;

 private:
  Tokens draw(uint64_t seed, std::string_view site, int64_t first, int64_t count) const;

  ModelPlan model_;
  uint64_t seed_;
};

}  // namespace kuafu
