// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/pairs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/dataset/permutation.h"

namespace kuafu {
namespace {

/// Random pairs come from windows at most this far along the stream.
constexpr int64_t kFarthest = int64_t{1} << 20;

}  // namespace

int64_t masked_positions(int64_t sequence) {
  return std::max<int64_t>(1, std::llround(0.15 * static_cast<double>(sequence)));
}

PairIds last_ids(int64_t vocab) {
  return {.first = vocab - 3, .between = vocab - 2, .mask = vocab - 1, .ordinary = vocab - 3};
}

PairDataset::PairDataset(std::unique_ptr<Dataset> tokens, const ModelPlan& model,
                         const PairIds& ids, uint64_t seed)
    : tokens_(std::move(tokens)), model_(model), ids_(ids), seed_(seed) {
  KUAFU_REQUIRE(model_.sequence >= kSpecialTokens + 2, "model.sequence = ", model_.sequence,
                " leaves no pair beside three special tokens; allowed: at least 5");
}

void PairDataset::append(DataSplit part, int64_t sample, Tokens& out) const {
  const uint64_t seed = part == DataSplit::kTrain ? seed_ : 0;
  const CounterRandom random(seed, hash_name("dataset.pairs"));
  const auto window = [&](int64_t at) {
    return part == DataSplit::kTrain ? tokens_->train(at, 1).inputs
                                     : tokens_->validation(at, 1).inputs;
  };
  const auto draw = static_cast<uint64_t>(2 * sample);
  const bool is_random = random.uniform(draw) < 0.5;
  const int64_t windows = std::min(
      kFarthest, part == DataSplit::kTrain ? num_train_samples() : num_validation_samples());
  const auto away =
      static_cast<int64_t>(random.uniform(draw + 1) * static_cast<double>(windows - 1));
  const std::vector<int64_t> own = window(sample);
  const std::vector<int64_t> second = is_random ? window(sample + 1 + away) : own;

  const auto length = static_cast<int64_t>(own.size()), half = length / 2;
  out.inputs.push_back(ids_.first);
  out.inputs.insert(out.inputs.end(), own.begin(), own.begin() + half);
  out.inputs.push_back(ids_.between);
  out.inputs.insert(out.inputs.end(), second.begin() + half, second.end());
  out.inputs.push_back(ids_.between);
  for (int64_t i = 0; i < model_.sequence; ++i) out.segments.push_back(i < half + 2 ? 0 : 1);
  out.labels.push_back(is_random ? 1 : 0);
  mask(sample, seed, out);
}

/// Hides tokens of the sample appended last.
void PairDataset::mask(int64_t sample, uint64_t seed, Tokens& out) const {
  const int64_t s = model_.sequence, half = (s - kSpecialTokens) / 2;
  out.targets.resize(out.inputs.size(), -1);
  const auto begin = static_cast<int64_t>(out.inputs.size()) - s;
  const CounterRandom random(seed, hash_name("dataset.masks"));
  const Permutation order(s - kSpecialTokens, seed,
                          hash_name("dataset.masked") + static_cast<uint64_t>(sample));
  for (int64_t i = 0; i < out.predictions; ++i) {
    const int64_t token = order(i);  // among the tokens that are not special
    const auto at = static_cast<size_t>(begin + token + (token < half ? 1 : 2));
    const auto draw = static_cast<uint64_t>(2 * (sample * s + i));
    const double u = random.uniform(draw);
    out.targets[at] = out.inputs[at];
    if (u < 0.8) {
      out.inputs[at] = ids_.mask;
    } else if (u < 0.9) {
      const auto ids = static_cast<double>(ids_.ordinary);
      out.inputs[at] = static_cast<int64_t>(random.uniform(draw + 1) * ids);
    }
  }
}

Tokens PairDataset::pairs(DataSplit part, int64_t first, int64_t count) const {
  KUAFU_CHECK(first >= 0 && count >= 0, "samples from ", first, ", ", count, " of them");
  Tokens out = blank_tokens(model_, count);
  for (int64_t i = first; i < first + count; ++i) append(part, i, out);
  return out;
}

Tokens PairDataset::train(int64_t first, int64_t count) const {
  return pairs(DataSplit::kTrain, first, count);
}

Tokens PairDataset::validation(int64_t first, int64_t count) const {
  return pairs(DataSplit::kValidation, first, count);
}

std::string PairDataset::describe() const {
  return text("masked pairs, ", masked_positions(model_.sequence), " of ", model_.sequence,
              " tokens hidden, ", ids_.is_of_tokenizer ? "special ones the tokenizer's, " : "",
              "of ", tokens_->describe());
}

}  // namespace kuafu
