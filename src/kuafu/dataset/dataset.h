// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// Samples of a model: of a language model the target of a position is the input of the next; of
/// masked pairs the target is the token behind a mask and -1 elsewhere; images have no tokens.
struct Tokens {
  std::vector<int64_t> inputs;   ///< (samples, sequence), row-major
  std::vector<int64_t> targets;  ///< (samples, sequence), row-major; -1 counts for nothing
  int64_t samples = 0;
  int64_t sequence = 0;
  int64_t predictions = sequence;  ///< targets of a sample that count

  bool is_pair = false;                ///< segments and labels are there
  std::vector<int64_t> segments = {};  ///< (samples, sequence): 0 first part, 1 second
  std::vector<int64_t> labels = {};    ///< (samples): class of the image; 1 where a pair is random
  int64_t patches = 0;                 ///< of an image; 0 = no images
  int64_t pixels = 0;                  ///< numbers of a patch
  std::vector<float> images = {};      ///< (samples, patches, pixels)
  /// The token that ends a document, where attention stays inside documents.
  std::optional<int64_t> end_token = {};
  bool operator==(const Tokens&) const = default;
};

/// What the samples of a model hold, without their values: extents only.
Tokens blank_tokens(const ModelPlan& model, int64_t samples);

/// Where tokens come from. Samples are a pure function of (plan, seed, position): every rank opens
/// its own Dataset and asks for its slice, nothing is communicated, and a resumed run needs only
/// the step.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Token ids lie in [0, vocab): the vocabulary of the model.
  virtual int64_t vocab() const = 0;
  /// Distinct training samples, the length of an epoch.
  virtual int64_t num_train_samples() const = 0;
  /// Distinct validation samples.
  virtual int64_t num_validation_samples() const = 0;
  /// Samples [first, first + count) of the endless seeded training stream; step t of a run with
  /// global batch B consumes [t B, (t + 1) B).
  /// @pre first >= 0 and count >= 0.
  virtual Tokens train(int64_t first, int64_t count) const = 0;
  /// Samples [first, first + count) of the fixed validation windows, again from the start after the
  /// last.
  /// @pre first >= 0 and count >= 0.
  virtual Tokens validation(int64_t first, int64_t count) const = 0;
  /// One line: what it is, how many bytes, tokens and samples.
  virtual std::string describe() const = 0;
};

/// What a run reads, as records tell it.
struct DataIdentity {
  std::string kind;   ///< data.kind
  int64_t bytes = 0;  ///< of the corpus; 0 where there is none
  /// XXH64 of those bytes, of all that the ids of a tokenizer follow from, or of the parameters of
  /// what is made up.
  std::string hash;
  int64_t samples = 0;  ///< distinct training samples; 0 = endless
  int64_t tokens = 0;   ///< of the corpus, bytes or ids; 0 where there is none
  bool operator==(const DataIdentity&) const = default;
};

class SharedCorpora;

/// A dataset and what it is.
struct OpenedData {
  std::unique_ptr<Dataset> dataset;
  DataIdentity identity;
};

/// Tokens::end_token of a plan's samples: none without data.document_mask. Throws ConfigError where
/// the tokenizer of text cannot be read or lacks data.end_token.
std::optional<int64_t> end_of_documents(const DataPlan& data);

/// Opens the dataset of a plan, in the form the model reads: next tokens, masked pairs ("bert") or
/// images ("vit"). `default_path` is the corpus where data.path is empty. Of `corpora` a corpus is read
/// once for all that open it.
/// Throws ConfigError: unknown kind, missing, unreadable, empty or short corpus, one of another hash
/// than data.hash, vocabulary too small.
OpenedData open_data(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                     const std::string& default_path, SharedCorpora& corpora);
OpenedData open_data(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                     const std::string& default_path);
/// The dataset alone.
std::unique_ptr<Dataset> make_dataset(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                                      const std::string& default_path);

}  // namespace kuafu
