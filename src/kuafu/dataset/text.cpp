// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/dataset/permutation.h"

namespace kuafu {
namespace {

int64_t held_out(int64_t bytes, double share) {
  return static_cast<int64_t>(std::floor(static_cast<double>(bytes) * share));
}

/// Windows of `sequence` inputs in a part; the last target needs one byte more.
int64_t windows(int64_t bytes, int64_t sequence) {
  return std::max<int64_t>(0, bytes - 1) / sequence;
}

bool is_enough(int64_t bytes, double share, int64_t sequence) {
  const int64_t out = held_out(bytes, share);
  return windows(bytes - out, sequence) > 0 && (share == 0 || windows(out, sequence) > 0);
}

/// The smallest corpus with one window in each part.
int64_t least_bytes(double share, int64_t sequence) {
  // Both parts grow with the corpus, so the condition holds from some size on.
  int64_t high = sequence + 1;
  while (!is_enough(high, share, sequence)) high *= 2;
  int64_t low = 0;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (is_enough(middle, share, sequence) ? high : low) = middle;
  }
  return high;
}

/// The longest sequence that a corpus holds in each part; 0 where it holds none.
int64_t longest_sequence(int64_t bytes, double share) {
  const int64_t out = held_out(bytes, share);
  const int64_t shortest = share == 0 ? bytes : std::min(out, bytes - out);
  return std::max<int64_t>(0, shortest - 1);
}

}  // namespace

TextDataset::TextDataset(std::shared_ptr<const Corpus> corpus, const Options& options)
    : corpus_(std::move(corpus)), options_(options) {
  const auto bytes = static_cast<int64_t>(corpus_->bytes.size());
  const int64_t sequence = options_.sequence;
  const double share = options_.validation;
  const int64_t special = options_.special;  // errors speak of the model's keys
  KUAFU_REQUIRE(options_.vocab >= 256, "model.vocab = ", options_.vocab + special,
                " is too small for data.kind = \"text\", one token a byte; allowed: at least ",
                256 + special);
  KUAFU_REQUIRE(sequence > 0, "model.sequence = ", sequence + special, "; allowed: at least ",
                1 + special);
  KUAFU_REQUIRE(share >= 0 && share < 1, "data.validation = ", share,
                "; allowed: from 0 to below 1");
  if (!is_enough(bytes, share, sequence)) {
    const int64_t longest = longest_sequence(bytes, share);
    throw ConfigError(
        text("the corpus ", in_quotes(corpus_->path), " is too short: it has ", bytes,
             " bytes, model.sequence = ", sequence + special, " with data.validation = ", share,
             " needs ", least_bytes(share, sequence), "; give a longer corpus",
             longest > 0 ? text(" or set model.sequence to at most ", longest + special) : ""));
  }
  train_bytes_ = bytes - held_out(bytes, share);
  num_train_ = windows(train_bytes_, sequence);
  num_validation_ = windows(bytes - train_bytes_, sequence);
}

void TextDataset::append_window(int64_t start, Tokens& out) const {
  const uint8_t* bytes = corpus_->bytes.data() + start;
  out.inputs.insert(out.inputs.end(), bytes, bytes + options_.sequence);
  out.targets.insert(out.targets.end(), bytes + 1, bytes + 1 + options_.sequence);
}

Tokens TextDataset::train(int64_t first, int64_t count) const {
  KUAFU_CHECK(first >= 0 && count >= 0, "training samples from ", first, ", ", count, " of them");
  Tokens out{{}, {}, count, options_.sequence};
  out.inputs.reserve(static_cast<size_t>(count * options_.sequence));
  out.targets.reserve(static_cast<size_t>(count * options_.sequence));
  for (int64_t i = first; i < first + count; ++i) {
    const auto epoch = static_cast<uint64_t>(i / num_train_);
    const Permutation order(num_train_, options_.seed, hash_name("dataset.train") + epoch);
    append_window(order(i % num_train_) * options_.sequence, out);
  }
  return out;
}

Tokens TextDataset::validation(int64_t first, int64_t count) const {
  KUAFU_CHECK(first >= 0 && count >= 0, "validation samples from ", first, ", ", count, " of them");
  KUAFU_REQUIRE(count == 0 || num_validation_ > 0,
                "data.validation = 0 holds nothing out; set train.validation_batches = 0, or "
                "data.validation above 0");
  Tokens out{{}, {}, count, options_.sequence};
  if (count == 0) return out;
  const Permutation order(num_validation_, 0, hash_name("dataset.validation"));
  for (int64_t i = first; i < first + count; ++i) {
    append_window(train_bytes_ + order(i % num_validation_) * options_.sequence, out);
  }
  return out;
}

std::string TextDataset::describe() const {
  const auto bytes = static_cast<int64_t>(corpus_->bytes.size());
  return text("text ", in_quotes(corpus_->path), ": ", corpus_->num_files,
              corpus_->num_files == 1 ? " file, " : " files, ", print_bytes(bytes),
              corpus_->num_binary > 0 ? text(" (", corpus_->num_binary, " binary file",
                                             corpus_->num_binary == 1 ? "" : "s", " left out)")
                                      : "",
              ", ", num_train_, " training and ", num_validation_, " validation samples of ",
              options_.sequence, " tokens");
}

}  // namespace kuafu
