// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/tokenized.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/dataset/token_files.h"
#include "kuafu/tokenizer/tokenizer.h"

namespace kuafu {
namespace {

/// Raise it when the same corpus and tokenizer give other ids.
constexpr const char* kMadeBy = "tokens 1";
constexpr auto kTellEvery = std::chrono::seconds(5);

int32_t id_of_end(const Tokenizer& tokenizer, const TokenizerFile& file) {
  const auto id = tokenizer.id_of(file.end_token);
  KUAFU_REQUIRE(id, "data.end_token = ", in_quotes(file.end_token), " is no token of ", file.path);
  return *id;
}

/// Texts of a corpus one after the other, as ids.
class Maker {
 public:
  Maker(const Corpus& corpus, const TokenizerFile& file, const Tokenizing& how)
      : corpus_(corpus), how_(how), tokenizer_(Tokenizer::parse(file.bytes, file.path)) {
    if (!file.end_token.empty()) end_ = id_of_end(tokenizer_, file);
  }

  int64_t vocab() const { return tokenizer_.vocab_size(); }

  TokenShard shard(int64_t begin) {
    TokenShard out{begin, begin};
    do append_text(out);
    while (out.end < size() && out.end - begin < how_.shard_bytes && out.end != corpus_.held_out);
    return out;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(corpus_.bytes.size()); }

  /// The last file that begins at `at` or before, of those of no bytes the one that has some.
  size_t file_at(int64_t at) const {
    const auto behind =
        std::upper_bound(corpus_.files.begin(), corpus_.files.end(), at,
                         [](int64_t byte, const CorpusFile& f) { return byte < f.begin; });
    return static_cast<size_t>(behind - corpus_.files.begin()) - 1;
  }

  void append_text(TokenShard& out) {
    const size_t file = file_at(out.end);
    const int64_t file_end =
        file + 1 < corpus_.files.size() ? corpus_.files[file + 1].begin : size();
    int64_t end = file_end;
    if (end - out.end > how_.text_bytes) {
      const auto cut = std::find(corpus_.bytes.begin() + out.end + how_.text_bytes,
                                 corpus_.bytes.begin() + file_end, '\n');
      end = std::min(file_end, cut - corpus_.bytes.begin() + 1);
    }
    const std::string_view text(reinterpret_cast<const char*>(corpus_.bytes.data()) + out.end,
                                static_cast<size_t>(end - out.end));
    std::vector<int32_t> ids;
    try {
      ids = tokenizer_.encode(text);
    } catch (const ConfigError& e) {
      throw ConfigError(
          kuafu::text(corpus_.files[file].path, ": ",
                      out.end > corpus_.files[file].begin
                          ? kuafu::text("from byte ", out.end - corpus_.files[file].begin, " on: ")
                          : "",
                      e.what(),
                      "; data.tokenizer takes text alone: give a corpus without this file, or "
                      "data.tokenizer = \"\""));
    }
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.end = end;
    if (end_ && end == file_end) out.ids.push_back(*end_);
    tell_progress(end);
  }

  void tell_progress(int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ < kTellEvery) return;
    told_ = now;
    how_.tell(text("tokenized ", print_bytes(done), " of ", print_bytes(size()), " of ",
                   in_quotes(corpus_.path)));
  }

  const Corpus& corpus_;
  const Tokenizing& how_;
  Tokenizer tokenizer_;
  std::optional<int32_t> end_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
};

}  // namespace

TokenizerFile read_tokenizer(const std::string& path, const std::string& end_token) {
  return {path, read_file(path, "tokenizer of data.tokenizer"), end_token};
}

std::optional<PairIds> pair_ids_of(const TokenizerFile& file) {
  const Tokenizer tokenizer = Tokenizer::parse(file.bytes, file.path);
  constexpr const char* kNames[][3] = {{"[CLS]", "[SEP]", "[MASK]"}, {"<s>", "</s>", "<mask>"}};
  for (const auto& names : kNames) {
    const auto first = tokenizer.id_of(names[0]), between = tokenizer.id_of(names[1]),
               mask = tokenizer.id_of(names[2]);
    if (!first || !between || !mask) continue;
    return PairIds{*first, *between, *mask, tokenizer.vocab_size(), true};
  }
  return std::nullopt;
}

int64_t end_token_of(const TokenizerFile& tokenizer) {
  return id_of_end(Tokenizer::parse(tokenizer.bytes, tokenizer.path), tokenizer);
}

std::string hash_of_tokens(const Corpus& corpus, const TokenizerFile& tokenizer) {
  std::string all = text(kMadeBy, " ", corpus.hash, " ", hash_digits(tokenizer.bytes), " ",
                         in_quotes(tokenizer.end_token));
  for (const CorpusFile& file : corpus.files) all += text(" ", file.begin);
  return hash_digits(all);
}

std::string data_hash(const Corpus& corpus, const DataPlan& data) {
  if (data.tokenizer.empty()) return corpus.hash;
  return hash_of_tokens(corpus, read_tokenizer(data.tokenizer, data.end_token));
}

std::shared_ptr<const TokenRow> tokenized(const Corpus& corpus, const TokenizerFile& tokenizer,
                                          const Tokenizing& how) {
  Maker maker(corpus, tokenizer, how);
  const TokenFiles::Source source{hash_of_tokens(corpus, tokenizer),
                                  static_cast<int64_t>(corpus.bytes.size()), maker.vocab(),
                                  text(corpus.path, " by ", tokenizer.path)};
  return std::make_shared<const TokenFiles>(
      how.folder, source, [&](int64_t begin) { return maker.shard(begin); }, how.tell);
}

}  // namespace kuafu
