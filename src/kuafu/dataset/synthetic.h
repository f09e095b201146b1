// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kuafu/base/philox.h"
#include "kuafu/dataset/dataset.h"

namespace kuafu {

/// Walks of a fixed random Markov chain: a language of any vocabulary that a model can learn.
///
/// Each token has four successors, taken with probability 0.7, 0.15, 0.1 and 0.05, drawn with a
/// bias towards small ids. The best possible loss is the chain's entropy, at most 0.91 nats,
/// against ln(vocab) for an untrained model. The chain depends on the vocabulary alone, the
/// training walks on the seed, the validation walks on neither.
class SyntheticDataset final : public Dataset {
 public:
  struct Options {
    int64_t vocab = 256;
    int64_t sequence = 1;
    uint64_t seed = 1;
    std::optional<int64_t> end_token = {};  ///< Tokens::end_token
  };

  explicit SyntheticDataset(const Options& options);

  int64_t vocab() const override { return options_.vocab; }
  /// As many as 63 bits can number: there are no epochs.
  int64_t num_train_samples() const override;
  int64_t num_validation_samples() const override { return num_train_samples(); }
  Tokens train(int64_t first, int64_t count) const override;
  Tokens validation(int64_t first, int64_t count) const override;
  std::string describe() const override;

  /// Successor `choice` (0 to 3) of a token.
  int64_t successor(int64_t token, int64_t choice) const;

 private:
  Tokens walk(const CounterRandom& random, int64_t first, int64_t count) const;

  Options options_;
  CounterRandom chain_;
};

}  // namespace kuafu
