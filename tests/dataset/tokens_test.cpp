// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <thread>

#include "kuafu/base/errors.h"
#include "kuafu/dataset/dataset.h"
#include "kuafu/dataset/shared_corpora.h"
#include "kuafu/dataset/token_files.h"
#include "tests/base/messages.h"
#include "tests/dataset/folder.h"
#include "tests/tokenizer/tiny.h"

namespace kuafu {
namespace {

using Ids = std::vector<int64_t>;

/// Words "a" to "e" are ids 1 to 5, "<end>" is 6, every other word 0.
Json letters() {
  Json file = test::file_of(test::word_level({"a", "b", "c", "d", "e", "<end>"}),
                            {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}}});
  return file;
}

Ids all_of(const TokenRow& row) {
  Ids out;
  row.append(0, row.size(), out);
  return out;
}

/// A corpus, a tokenizer and a folder for ids, with what was told.
class TokenRows : public testing::Test {
 protected:
  std::shared_ptr<const TokenRow> made(const std::string& end_token = "", int64_t shard = 1 << 20,
                                       int64_t text_bytes = 1 << 20) {
    return tokenized(read_corpus(corpus_), read_tokenizer(tokenizer_, end_token),
                     {.folder = cache_.path(),
                      .shard_bytes = shard,
                      .text_bytes = text_bytes,
                      .tell = [&](const std::string& what) { told_ += what + "\n"; }});
  }
  std::vector<std::string> shards() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache_.path())) {
      if (entry.path().extension() == ".bin") out.push_back(entry.path().string());
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  DataPlan data() const {
    DataPlan plan;
    plan.path = corpus_;
    plan.tokenizer = tokenizer_;
    plan.validation = 0;
    return plan;
  }

  Folder folder_, cache_;
  std::string tokenizer_ = folder_.write("tokenizer.json", letters().dump());
  std::string corpus_ =
      folder_.write("corpus/1", "a b\nc d\n").substr(0, folder_.path().size() + 7);
  std::string second_ = folder_.write("corpus/2", "e f a\n");
  std::string told_;
};

TEST_F(TokenRows, OfPairsTakeTheTokenizersOwnSpecialTokens) {
  std::string words;
  for (int i = 0; i < 100; ++i) words += i % 3 == 0 ? "a b " : "c d e ";
  folder_.write("corpus/1", words);
  ModelPlan bert;
  bert.kind = "bert";
  bert.sequence = 7;
  const auto opened = [&](int64_t vocab) {
    bert.vocab = vocab;
    return make_dataset(data(), bert, 1, "");
  };
  const auto refusal = [&](int64_t vocab) {
    return message_of<ConfigError>([&] { opened(vocab); });
  };
  expect_says(refusal(9), {"model.vocab = 9 is too small", "allowed: at least 10"});
  EXPECT_EQ(opened(12)->train(0, 1).inputs.front(), 9) << "the first of the last three";

  // "[MASK]" is 3, "[CLS]" 5, "[SEP]" 8.
  folder_.write(
      "tokenizer.json",
      test::file_of(test::word_level({"a", "b", "[MASK]", "c", "[CLS]", "d", "e", "[SEP]"}),
                    {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}}})
          .dump());
  expect_says(refusal(8), {"model.vocab = 8 is too small", "allowed: at least 9"});
  for (const int64_t vocab : {9, 12}) {
    const auto dataset = opened(vocab);
    expect_says(dataset->describe(), {"special ones the tokenizer's"});
    const Tokens t = dataset->train(0, dataset->num_train_samples());
    for (int64_t i = 0; i < t.samples; ++i) {
      const int64_t* ids = t.inputs.data() + 7 * i;
      EXPECT_EQ((Ids{ids[0], ids[3], ids[6]}), (Ids{5, 8, 8}));
    }
    EXPECT_LT(std::ranges::max(t.inputs), 9);
    EXPECT_NEAR(static_cast<double>(std::ranges::count(t.inputs, 3)),
                0.8 * static_cast<double>(t.samples), 0.15 * static_cast<double>(t.samples));
  }
}

TEST_F(TokenRows, OfWikiTextBeginTheirValidationPartWithAFileOfIds) {
  folder_.write("wiki/wiki.train.tokens", "a b\nc d\ne\n");
  folder_.write("wiki/wiki.valid.tokens", "e f a\n");
  corpus_ = folder_.path() + "/wiki";
  for (const int64_t shard : {1, 5, 1 << 20}) {
    for (int again = 0; again < 2; ++again) {
      const auto row = made("<end>", shard, 4);
      EXPECT_EQ(all_of(*row), (Ids{1, 2, 3, 4, 5, 6, 5, 0, 1, 6}));
      EXPECT_EQ(row->begin_of_validation(read_corpus(corpus_)), 6);
    }
    std::filesystem::remove_all(cache_.path());
    std::filesystem::create_directories(cache_.path());
  }
  EXPECT_EQ(told_, "");
}

TEST_F(TokenRows, AreThoseOfEachFileWithATokenBehindIt) {
  EXPECT_EQ(all_of(*made()), (Ids{1, 2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(all_of(*made("<end>")), (Ids{1, 2, 3, 4, 6, 5, 0, 1, 6}));
  EXPECT_EQ(made()->vocab(), 7);
  EXPECT_EQ(told_, "");
}

TEST_F(TokenRows, AreReadAtAnyPlaceOfManyShards) {
  const auto row = made("<end>", 1, 1);  // a line a text, a text a shard
  EXPECT_EQ(shards().size(), 3u);
  const Ids all = all_of(*row);
  EXPECT_EQ(all, (Ids{1, 2, 3, 4, 6, 5, 0, 1, 6}));
  for (int64_t start = 0; start <= row->size(); ++start) {
    for (int64_t count = 0; start + count <= row->size(); ++count) {
      Ids part;
      row->append(start, count, part);
      EXPECT_EQ(part, Ids(all.begin() + start, all.begin() + start + count));
    }
  }
}

TEST_F(TokenRows, AreMadeOnceAndGoOnBehindWhatIsThere) {
  made("", 1, 1);
  const std::vector<std::string> files = shards();
  ASSERT_EQ(files.size(), 3u);
  const auto written = [&](size_t i) { return std::filesystem::last_write_time(files[i]); };
  const auto first = written(0), second = written(1);
  made("", 1, 1);
  EXPECT_EQ(written(1), second);
  std::filesystem::remove(files[1]);
  EXPECT_EQ(all_of(*made("", 1, 1)), (Ids{1, 2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(written(0), first);
  EXPECT_GT(written(1), second);
  EXPECT_EQ(told_, "");
}

TEST_F(TokenRows, ThatWereChangedOnTheDiskAreMadeAgain) {
  made("", 1, 1);
  const std::string file = shards()[1];
  const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
  std::string whole(static_cast<size_t>(size), '\0');
  std::ifstream(file, std::ios::binary).read(whole.data(), size);
  for (const int64_t at : {int64_t{0}, int64_t{20}, int64_t{90}, int64_t{4096}, size - 1, size}) {
    std::string changed = whole;
    if (at == size) {
      changed.resize(4000);
    } else {
      changed[static_cast<size_t>(at)] ^= 1;
    }
    std::ofstream(file, std::ios::binary) << changed;
    told_.clear();
    EXPECT_EQ(all_of(*made("", 1, 1)), (Ids{1, 2, 3, 4, 5, 0, 1})) << at;
    EXPECT_NE(told_.find(file + " is made again: "), std::string::npos) << at << told_;
  }
}

TEST_F(TokenRows, OfOneFolderAreMadeByOneOfThoseThatAsk) {
  std::vector<std::thread> threads;
  std::vector<Ids> found(4);
  for (Ids& ids : found) {
    threads.emplace_back([&] {
      ids = all_of(*tokenized(read_corpus(corpus_), read_tokenizer(tokenizer_, ""),
                              {.folder = cache_.path(), .shard_bytes = 1, .text_bytes = 1}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, (Ids{1, 2, 3, 4, 5, 0, 1}));
}

TEST_F(TokenRows, StayInMemoryWhereNoFileCanBeWritten) {
  const std::string file = folder_.write("no_folder", "");
  const auto row = tokenized(read_corpus(corpus_), read_tokenizer(tokenizer_, ""),
                             {.folder = file, .tell = [&](const auto& what) { told_ = what; }});
  EXPECT_EQ(all_of(*row), (Ids{1, 2, 3, 4, 5, 0, 1}));
  EXPECT_NE(told_.find("KUAFU_CACHE"), std::string::npos) << told_;
}

TEST_F(TokenRows, AreKnownByCorpusFilesTokenizerAndEnd) {
  std::set<std::string> hashes;
  const auto is_new = [&](const std::string& end = "") {
    return hashes.insert(hash_of_tokens(read_corpus(corpus_), read_tokenizer(tokenizer_, end)))
        .second;
  };
  EXPECT_TRUE(is_new());
  EXPECT_FALSE(is_new());
  EXPECT_TRUE(is_new("<end>"));
  folder_.write("corpus/1", "a b\nc ");
  folder_.write("corpus/2", "d\ne f a\n");  // the same bytes, in other files
  EXPECT_TRUE(is_new());
  folder_.write("corpus/2", "d\ne e a\n");
  EXPECT_TRUE(is_new());
  folder_.write("tokenizer.json", letters().dump(1));
  EXPECT_TRUE(is_new());
}

TEST_F(TokenRows, AreWhatAPlanTrainsOn) {
  SharedCorpora corpora({.folder = cache_.path()});
  ModelPlan model;
  model.sequence = 3;
  const OpenedData opened = open_data(data(), model, 1, "", corpora);
  EXPECT_EQ(opened.identity.tokens, 7);
  EXPECT_EQ(opened.identity.bytes, 14);
  EXPECT_EQ(opened.identity.samples, 2);
  EXPECT_EQ(opened.identity.hash, data_hash(read_corpus(corpus_), data()));
  const Tokens tokens = opened.dataset->train(0, 2);
  std::set<Ids> windows;
  for (int64_t i = 0; i < 2; ++i) {
    windows.insert(Ids(tokens.inputs.begin() + 3 * i, tokens.inputs.begin() + 3 * i + 3));
  }
  EXPECT_EQ(windows, (std::set<Ids>{{1, 2, 3}, {4, 5, 0}}));
  EXPECT_NE(opened.dataset->describe().find("7 tokens"), std::string::npos);
}

TEST_F(TokenRows, ThatCannotBeMadeAreRefusedWithTheCause) {
  SharedCorpora corpora({.folder = cache_.path()});
  const auto refused = [&](DataPlan plan, const ModelPlan& model = {}) {
    return message_of<ConfigError>([&] { open_data(plan, model, 1, "", corpora); });
  };
  DataPlan plan = data();
  plan.end_token = "</s>";
  expect_says(refused(plan), {"data.end_token = \"</s>\" is no token of", tokenizer_});
  plan = data();
  plan.hash = std::string(16, '0');
  expect_says(refused(plan),
              {data_hash(read_corpus(corpus_), data()), "data.tokenizer", plan.hash});
  plan = data();
  plan.tokenizer = "/nowhere";
  expect_says(refused(plan), {"tokenizer of data.tokenizer", "/nowhere"});
  ModelPlan small;
  small.vocab = 6;
  expect_says(refused(data(), small), {"model.vocab = 6", "at least 7"});
  folder_.write("corpus/2", "\xff");
  SharedCorpora anew({.folder = cache_.path()});
  expect_says(message_of<ConfigError>([&] { open_data(data(), {}, 1, "", anew); }),
              {"corpus/2", "UTF-8"});
}

}  // namespace
}  // namespace kuafu
