// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/images.h"

#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"

namespace kuafu {

ImageDataset::ImageDataset(const ModelPlan& model, uint64_t seed) : model_(model), seed_(seed) {
  const int64_t side = model.image / model.patch;
  KUAFU_REQUIRE(model.image % model.patch == 0 && model.sequence == side * side + 1, "images of ",
                model.image, " pixels in patches of ", model.patch, " and ", model.sequence,
                " tokens; allowed: a patch that divides the image, and "
                "model.sequence = (image / patch)^2 + 1");
}

int64_t ImageDataset::num_train_samples() const {
  return std::numeric_limits<int64_t>::max() / (3 * model_.image * model_.image + 1);
}

Tokens ImageDataset::draw(uint64_t seed, std::string_view site, int64_t first,
                          int64_t count) const {
  KUAFU_CHECK(first >= 0 && count >= 0 && first <= num_train_samples() - count, "samples from ",
              first, ", ", count, " of them, of ", num_train_samples());
  const CounterRandom random(seed, hash_name(site)),
      pattern(0, hash_name("dataset.images.pattern"));
  Tokens out = blank_tokens(model_, count);
  const int64_t width = model_.image, patch = model_.patch, side = width / patch;
  const int64_t size = 3 * width * width;
  for (int64_t sample = first; sample < first + count; ++sample) {
    const auto start = static_cast<uint64_t>(sample * (size + 1));
    const auto label =
        static_cast<int64_t>(random.uniform(start) * static_cast<double>(model_.classes));
    out.labels.push_back(label);
    for (int64_t p = 0; p < out.patches; ++p) {
      for (int64_t i = 0; i < out.pixels; ++i) {
        const int64_t row = p / side * patch + i / (3 * patch);
        const int64_t column = p % side * patch + i / 3 % patch;
        const auto at = static_cast<uint64_t>(3 * (row * width + column) + i % 3);
        const double mean = pattern.normal(static_cast<uint64_t>(label * size) + at);
        out.images.push_back(static_cast<float>(mean + random.normal(start + 1 + at)));
      }
    }
  }
  return out;
}

Tokens ImageDataset::train(int64_t first, int64_t count) const {
  return draw(seed_, "dataset.images.train", first, count);
}

Tokens ImageDataset::validation(int64_t first, int64_t count) const {
  return draw(0, "dataset.images.validation", first, count);
}

std::string ImageDataset::describe() const {
  return text("synthetic images of ", model_.image, " x ", model_.image, " pixels, ",
              model_.classes, " classes, seed ", seed_);
}

}  // namespace kuafu
