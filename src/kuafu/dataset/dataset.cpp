// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/dataset.h"

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/dataset/corpus.h"
#include "kuafu/dataset/images.h"
#include "kuafu/dataset/pairs.h"
#include "kuafu/dataset/shared_corpora.h"
#include "kuafu/dataset/synthetic.h"
#include "kuafu/dataset/text.h"

namespace kuafu {

namespace {

/// A generator is known by its name and its parameters; raise the number when it draws otherwise.
template <class... Parameters>
std::string hash_of_generator(const Parameters&... parameters) {
  return hash_digits(text("generator 1", parameters...));
}

/// Those of a model's pairs.
PairIds pair_ids(const DataPlan& data, const ModelPlan& model) {
  if (data.kind == "text" && !data.tokenizer.empty()) {
    if (const auto own = pair_ids_of(read_tokenizer(data.tokenizer, data.end_token))) return *own;
  }
  return last_ids(model.vocab);
}

/// Tokens of a model whose sequence has `special` tokens besides, and its vocabulary `special_ids`.
OpenedData open_tokens(const DataPlan& data, const ModelPlan& model, int64_t special,
                       int64_t special_ids, uint64_t seed, const std::string& default_path,
                       SharedCorpora& corpora) {
  const int64_t vocab = model.vocab - special_ids, sequence = model.sequence - special;
  if (data.kind == "synthetic") {
    return {std::make_unique<SyntheticDataset>(
                SyntheticDataset::Options{vocab, sequence, seed, end_of_documents(data)}),
            {data.kind, 0, hash_of_generator(" tokens ", vocab, " ", sequence, " ", seed), 0}};
  }
  KUAFU_REQUIRE(data.kind == "text", "data.kind = ", in_quotes(data.kind),
                " is not allowed; allowed: \"text\" or \"synthetic\"; nearest: ",
                in_quotes(nearest(data.kind, {"text", "synthetic"})));
  // Before the corpus is read: it may be large.
  KUAFU_REQUIRE(vocab >= 256 || !data.tokenizer.empty(), "model.vocab = ", model.vocab,
                " is too small for data.kind = \"text\", one token a byte; allowed: at least ",
                256 + special_ids, "; nearest: vocab = ", 256 + special_ids,
                ", or data.kind = \"synthetic\"");
  const auto corpus = corpora.read(data.path.empty() ? default_path : data.path);
  DataIdentity identity{data.kind, static_cast<int64_t>(corpus->bytes.size()), corpus->hash};
  std::shared_ptr<const TokenRow> row;
  if (data.tokenizer.empty()) {
    check_hash(*corpus, identity.hash, data.hash);
    row = std::make_shared<ByteRow>(corpus);
  } else {
    const TokenizerFile tokenizer = read_tokenizer(data.tokenizer, data.end_token);
    identity.hash = hash_of_tokens(*corpus, tokenizer);
    check_hash(*corpus, identity.hash, data.hash);
    row = corpora.tokens(*corpus, tokenizer);
  }
  auto dataset = std::make_unique<TextDataset>(
      row, *corpus,
      TextDataset::Options{vocab, sequence, data.validation, seed, special, special_ids,
                           end_of_documents(data)});
  identity.tokens = row->size();
  identity.samples = dataset->num_train_samples();
  return {std::move(dataset), std::move(identity)};
}

}  // namespace

std::optional<int64_t> end_of_documents(const DataPlan& data) {
  if (!data.document_mask) return {};
  if (data.kind == "synthetic") return 0;
  return end_token_of(read_tokenizer(data.tokenizer, data.end_token));
}

Tokens blank_tokens(const ModelPlan& model, int64_t samples) {
  Tokens out{{}, {}, samples, model.sequence};
  if (model.input() == ModelInput::kMaskedPairs) {
    out.is_pair = true;
    out.predictions = masked_positions(model.sequence);
  } else if (model.input() == ModelInput::kImages) {
    out.patches = model.sequence - 1;
    out.pixels = 3 * model.patch * model.patch;
    out.predictions = 1;
  }
  return out;
}

OpenedData open_data(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                     const std::string& default_path, SharedCorpora& corpora) {
  if (model.input() == ModelInput::kImages) {
    KUAFU_REQUIRE(data.kind == "synthetic", "data.kind = ", in_quotes(data.kind),
                  " has no images for model.kind = \"vit\"; nearest: data.kind = \"synthetic\"");
    return {std::make_unique<ImageDataset>(model, seed),
            {data.kind, 0,
             hash_of_generator(" images ", model.image, " ", model.patch, " ", model.classes, " ",
                               seed),
             0}};
  }
  if (model.input() == ModelInput::kMaskedPairs) {
    const PairIds ids = pair_ids(data, model);
    OpenedData opened =
        open_tokens(data, model, kSpecialTokens, ids.is_of_tokenizer ? 0 : kSpecialTokens, seed,
                    default_path, corpora);
    opened.dataset = std::make_unique<PairDataset>(std::move(opened.dataset), model, ids, seed);
    return opened;
  }
  return open_tokens(data, model, 0, 0, seed, default_path, corpora);
}

OpenedData open_data(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                     const std::string& default_path) {
  SharedCorpora own;
  return open_data(data, model, seed, default_path, own);
}

std::unique_ptr<Dataset> make_dataset(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                                      const std::string& default_path) {
  return open_data(data, model, seed, default_path).dataset;
}

}  // namespace kuafu
