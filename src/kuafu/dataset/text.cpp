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

int64_t held_out(int64_t size, double share) {
  return static_cast<int64_t>(std::floor(static_cast<double>(size) * share));
}

/// Windows of `sequence` inputs in a part; the last target needs one token more.
int64_t windows(int64_t size, int64_t sequence) {
  return std::max<int64_t>(0, size - 1) / sequence;
}

bool is_enough(int64_t size, double share, int64_t sequence) {
  const int64_t out = held_out(size, share);
  return windows(size - out, sequence) > 0 && (share == 0 || windows(out, sequence) > 0);
}

/// The smallest row with one window in each part.
int64_t least_size(double share, int64_t sequence) {
  // Both parts grow with the row, so the condition holds from some size on.
  int64_t high = sequence + 1;
  while (!is_enough(high, share, sequence)) high *= 2;
  int64_t low = 0;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (is_enough(middle, share, sequence) ? high : low) = middle;
  }
  return high;
}

/// The longest sequence that a row holds in each part; 0 where it holds none.
int64_t longest_sequence(int64_t size, double share) {
  const int64_t out = held_out(size, share);
  const int64_t shortest = share == 0 ? size : std::min(out, size - out);
  return std::max<int64_t>(0, shortest - 1);
}

}  // namespace

TextDataset::TextDataset(std::shared_ptr<const TokenRow> row, const Corpus& corpus,
                         const Options& options)
    : row_(std::move(row)), options_(options) {
  const int64_t size = row_->size();
  const int64_t sequence = options_.sequence;
  const double share = options_.validation;
  const int64_t special = options_.special;  // errors speak of the model's keys
  KUAFU_REQUIRE(options_.vocab >= row_->vocab(),
                "model.vocab = ", options_.vocab + options_.special_ids,
                " is too small for data.kind = \"text\" of ", row_->vocab(), " ", row_->unit(),
                "s; allowed: at least ", row_->vocab() + options_.special_ids);
  KUAFU_REQUIRE(sequence > 0, "model.sequence = ", sequence + special, "; allowed: at least ",
                1 + special);
  KUAFU_REQUIRE(share >= 0 && share < 1, "data.validation = ", share,
                "; allowed: from 0 to below 1");
  if (corpus.held_out) {
    KUAFU_REQUIRE(share == DataPlan{}.validation, "data.validation = ", share,
                  " has no effect with ", in_quotes(corpus.path),
                  ", a folder of WikiText, which has a validation part of its own; leave it out");
    train_size_ = row_->begin_of_validation(corpus);
    const int64_t shortest = std::min(train_size_, size - train_size_);
    KUAFU_REQUIRE(
        windows(shortest, sequence) > 0, "the corpus ", in_quotes(corpus.path),
        " is too short: the parts for training and validation have ", train_size_, " and ",
        size - train_size_, " ", row_->unit(), "s, model.sequence = ", sequence + special,
        " needs ", sequence + 1, " of each; give longer ones",
        shortest > 1 ? text(" or set model.sequence to at most ", shortest - 1 + special) : "");
  } else if (!is_enough(size, share, sequence)) {
    const int64_t longest = longest_sequence(size, share);
    throw ConfigError(text(
        "the corpus ", in_quotes(corpus.path), " is too short: it has ", size, " ", row_->unit(),
        "s, model.sequence = ", sequence + special, " with data.validation = ", share, " needs ",
        least_size(share, sequence), "; give a longer corpus",
        longest > 0 ? text(" or set model.sequence to at most ", longest + special) : ""));
  }
  if (!corpus.held_out) train_size_ = size - held_out(size, share);
  num_train_ = windows(train_size_, sequence);
  num_validation_ = windows(size - train_size_, sequence);
  const auto files = static_cast<int64_t>(corpus.files.size());
  const auto bytes = static_cast<int64_t>(corpus.bytes.size());
  of_corpus_ = text("text ", in_quotes(corpus.path), ": ", files,
                    files == 1 ? " file, " : " files, ", print_bytes(bytes),
                    corpus.num_binary > 0 ? text(" (", corpus.num_binary, " binary file",
                                                 corpus.num_binary == 1 ? "" : "s", " left out)")
                                          : "",
                    size == bytes ? "" : text(", ", size, " ", row_->unit(), "s"),
                    corpus.held_out ? ", WikiText with a validation part of its own" : "");
}

void TextDataset::append_window(int64_t start, Tokens& out) const {
  row_->append(start, options_.sequence, out.inputs);
  row_->append(start + 1, options_.sequence, out.targets);
}

Tokens TextDataset::train(int64_t first, int64_t count) const {
  KUAFU_CHECK(first >= 0 && count >= 0, "training samples from ", first, ", ", count, " of them");
  Tokens out{{}, {}, count, options_.sequence};
  out.end_token = options_.end_token;
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
  out.end_token = options_.end_token;
  if (count == 0) return out;
  const Permutation order(num_validation_, 0, hash_name("dataset.validation"));
  for (int64_t i = first; i < first + count; ++i) {
    append_window(train_size_ + order(i % num_validation_) * options_.sequence, out);
  }
  return out;
}

std::string TextDataset::describe() const {
  return text(of_corpus_, ", ", num_train_, " training and ", num_validation_,
              " validation samples of ", options_.sequence, " tokens");
}

}  // namespace kuafu
