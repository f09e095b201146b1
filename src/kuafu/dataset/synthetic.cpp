// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// Probability that the choice is at most 0, 1, 2, 3.
constexpr std::array<double, 4> kAtMost = {0.7, 0.85, 0.95, 1.0};

}  // namespace

SyntheticDataset::SyntheticDataset(const Options& options)
    : options_(options), chain_(0, hash_name("dataset.synthetic.chain")) {
  KUAFU_REQUIRE(options_.vocab > 0, "model.vocab = ", options_.vocab, "; allowed: at least 1");
  KUAFU_REQUIRE(options_.sequence > 0, "model.sequence = ", options_.sequence,
                "; allowed: at least 1");
}

int64_t SyntheticDataset::num_train_samples() const {
  return std::numeric_limits<int64_t>::max() / (options_.sequence + 1);
}

int64_t SyntheticDataset::successor(int64_t token, int64_t choice) const {
  const double u = chain_.uniform(static_cast<uint64_t>(4 * token + choice));
  const auto id = static_cast<int64_t>(static_cast<double>(options_.vocab) * u * u);
  return std::min(id, options_.vocab - 1);
}

Tokens SyntheticDataset::walk(const CounterRandom& random, int64_t first, int64_t count) const {
  KUAFU_CHECK(first >= 0 && count >= 0 && first <= num_train_samples() - count, "samples from ",
              first, ", ", count, " of them, of ", num_train_samples());
  Tokens out{{}, {}, count, options_.sequence};
  out.end_token = options_.end_token;
  for (int64_t sample = first; sample < first + count; ++sample) {
    auto index = static_cast<uint64_t>(sample * (options_.sequence + 1));
    int64_t token =
        std::min(static_cast<int64_t>(random.uniform(index) * static_cast<double>(options_.vocab)),
                 options_.vocab - 1);
    for (int64_t i = 0; i < options_.sequence; ++i) {
      const double u = random.uniform(++index);
      const auto choice = std::upper_bound(kAtMost.begin(), kAtMost.end() - 1, u);
      out.inputs.push_back(token);
      token = successor(token, choice - kAtMost.begin());
      out.targets.push_back(token);
    }
  }
  return out;
}

Tokens SyntheticDataset::train(int64_t first, int64_t count) const {
  return walk(CounterRandom(options_.seed, hash_name("dataset.synthetic.train")), first, count);
}

Tokens SyntheticDataset::validation(int64_t first, int64_t count) const {
  return walk(CounterRandom(0, hash_name("dataset.synthetic.validation")), first, count);
}

std::string SyntheticDataset::describe() const {
  return text("synthetic: walks of a Markov chain on ", options_.vocab, " tokens, samples of ",
              options_.sequence, " tokens, seed ", options_.seed);
}

}  // namespace kuafu
