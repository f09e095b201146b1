// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "kuafu/dataset/dataset.h"

namespace kuafu {

/// A sample is [first] A [between] B [between], some of it behind [mask].
inline constexpr int64_t kSpecialTokens = 3;

/// Their ids: those of a tokenizer that has [CLS], [SEP] and [MASK] (or <s>, </s> and <mask>), else
/// the last three of the vocabulary.
struct PairIds {
  int64_t first = 0, between = 0, mask = 0;
  int64_t ordinary = 0;  ///< ids below are what a random token is drawn from
  bool is_of_tokenizer = false;
};
PairIds last_ids(int64_t vocab);

/// Tokens of a sample that are predicted: 15 %, at least one; known before the forward.
int64_t masked_positions(int64_t sequence);

/// Masked tokens and next-sentence pairs over a language-model dataset.
///                                                  [Devlin et al., arXiv 1810.04805, section 3.1]
/// A is the first half of a window. B is its second half (label 0) or, in half of the samples, the
/// second half of another window (label 1). Of the masked positions 80 % become the mask, 10 % a
/// random token, 10 % stay. All by Philox(seed, sample): the same under every plan.
class PairDataset final : public Dataset {
 public:
  /// @pre tokens has windows of model.sequence - 3, and ids that leave `ids` alone.
  PairDataset(std::unique_ptr<Dataset> tokens, const ModelPlan& model, const PairIds& ids,
              uint64_t seed);

  int64_t vocab() const override { return model_.vocab; }
  int64_t num_train_samples() const override { return tokens_->num_train_samples(); }
  int64_t num_validation_samples() const override { return tokens_->num_validation_samples(); }
  Tokens train(int64_t first, int64_t count) const override;
  Tokens validation(int64_t first, int64_t count) const override;
  std::string describe() const override;

 private:
  enum class DataSplit : uint8_t { kTrain, kValidation };
  Tokens pairs(DataSplit part, int64_t first, int64_t count) const;
  void append(DataSplit part, int64_t sample, Tokens& out) const;
  void mask(int64_t sample, uint64_t seed, Tokens& out) const;

  std::unique_ptr<Dataset> tokens_;
  ModelPlan model_;
  PairIds ids_;
  uint64_t seed_;
};

}  // namespace kuafu
