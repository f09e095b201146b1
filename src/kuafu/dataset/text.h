// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kuafu/dataset/dataset.h"
#include "kuafu/dataset/token_row.h"

namespace kuafu {

/// A row of tokens, bytes or ids, cut into training part and validation tail, each part
/// into windows of `sequence` inputs that lie side by side (the target of a window's last input is
/// the token after it). An epoch takes every training window once, in an order drawn for that epoch;
/// the order of the validation windows is the same for every seed, so that losses compare.
class TextDataset final : public Dataset {
 public:
  struct Options {
    int64_t vocab = 256;      ///< at least the row's
    int64_t sequence = 1;     ///< tokens of a window
    double validation = 0.1;  ///< share of the row held out
    uint64_t seed = 1;
    int64_t special = 0;                    ///< tokens that the model's sequence has besides
    int64_t special_ids = 0;                ///< that the model's vocabulary has besides
    std::optional<int64_t> end_token = {};  ///< Tokens::end_token
  };

  /// `corpus` says what the row is of. Throws ConfigError where a part is shorter than a window and
  /// its last target, or the vocabulary less than the row's.
  TextDataset(std::shared_ptr<const TokenRow> row, const Corpus& corpus, const Options& options);

  int64_t vocab() const override { return options_.vocab; }
  int64_t num_train_samples() const override { return num_train_; }
  int64_t num_validation_samples() const override { return num_validation_; }
  Tokens train(int64_t first, int64_t count) const override;
  Tokens validation(int64_t first, int64_t count) const override;
  std::string describe() const override;

 private:
  void append_window(int64_t start, Tokens& out) const;

  std::shared_ptr<const TokenRow> row_;
  std::string of_corpus_;
  Options options_;
  int64_t train_size_ = 0;
  int64_t num_train_ = 0;
  int64_t num_validation_ = 0;
};

}  // namespace kuafu
