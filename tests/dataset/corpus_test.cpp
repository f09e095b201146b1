// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/corpus.h"
#include "kuafu/dataset/shared_corpora.h"

#include <sys/stat.h>

#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/dataset/dataset.h"
#include "tests/base/messages.h"
#include "tests/dataset/folder.h"

namespace kuafu {
namespace {

std::string text_of(const Corpus& corpus) { return {corpus.bytes.begin(), corpus.bytes.end()}; }

TEST(Corpus, ReadsAFileByteByByte) {
  const Folder folder;
  const std::string bytes("a\0\xff\n", 4);
  const Corpus corpus = read_corpus(folder.write("one", bytes));
  EXPECT_EQ(text_of(corpus), bytes);
  EXPECT_EQ(corpus.files.size(), 1u);
}

TEST(Corpus, ReadsFilesLargerThanItsSteps) {
  const Folder folder;
  for (const size_t size : {size_t{16384}, size_t{16385}, size_t{3 << 20}}) {
    std::string bytes(size, 'x');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>('a' + i * i % 23);
    EXPECT_EQ(text_of(read_corpus(folder.write("large", bytes))), bytes);
  }
}

TEST(Corpus, ReadsATreeInTheOrderOfItsPaths) {
  const Folder folder;
  folder.write("b.txt", "3");
  folder.write("a/z.h", "1");
  folder.write("a/sub/y.h", "0");
  folder.write("a.txt", "2");
  // '.' sorts before '/', so a.txt comes before what lies in a/.
  EXPECT_EQ(text_of(read_corpus(folder.path())), "2013");
  EXPECT_EQ(read_corpus(folder.path()).files.size(), 4u);
}

TEST(Corpus, LeavesOutBinaryFilesOfATree) {
  const Folder folder;
  folder.write("code.h", "int x;");
  folder.write("image.png", std::string("PNG\0\0", 5));
  const Corpus corpus = read_corpus(folder.path());
  EXPECT_EQ(text_of(corpus), "int x;");
  EXPECT_EQ(corpus.num_binary, 1);
}

TEST(Corpus, FollowsLinksToFilesAndPassesOverDanglingOnesAndPipes) {
  const Folder folder;
  const std::string file = folder.write("file", "once ");
  std::filesystem::create_symlink(file, folder.path() + "/link");
  std::filesystem::create_symlink(folder.path() + "/gone", folder.path() + "/dangling");
  std::filesystem::create_directory_symlink(folder.path(), folder.path() + "/loop");
  ASSERT_EQ(mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(text_of(read_corpus(folder.path())), "once once ");
}

TEST(Corpus, IsKnownByItsBytesWhereverTheyLie) {
  const Folder one, two;
  one.write("a", "first ");
  one.write("b", "second");
  const std::string same = two.write("same", "first second");
  const std::string hash = read_corpus(one.path()).hash;
  EXPECT_EQ(hash, hex_digits(xxh64(read_corpus(one.path()).bytes)));
  EXPECT_EQ(read_corpus(same).hash, hash);
  const Corpus changed = read_corpus(two.write("same", "first_second"));
  EXPECT_NE(changed.hash, hash);
  EXPECT_NO_THROW(check_hash(changed, changed.hash, ""));
  EXPECT_NO_THROW(check_hash(changed, changed.hash, changed.hash));
  expect_says(message_of<ConfigError>([&] { check_hash(changed, changed.hash, hash); }),
              {changed.hash, "data.hash = " + hash, "12 bytes", same});
}

TEST(Corpus, OfAWikiTextFolderIsItsTrainingAndItsValidationText) {
  for (const std::string form : {".tokens", ".raw"}) {
    const Folder folder;
    folder.write("wiki.test" + form, "never read");
    folder.write("wiki.valid" + form, "tail");
    folder.write("wiki.train" + form, "the training text ");
    folder.write("README", "of no part");
    const Corpus corpus = read_corpus(folder.path());
    EXPECT_EQ(text_of(corpus), "the training text tail");
    EXPECT_EQ(corpus.held_out, 18);
    EXPECT_EQ(corpus.files.size(), 2U);
    const Folder plain;
    const Corpus whole = read_corpus(plain.write("text", "the training text tail"));
    EXPECT_EQ(whole.held_out, std::nullopt);
    EXPECT_NE(whole.hash, corpus.hash);
  }
}

TEST(Corpus, OfHalfAWikiTextFolderIsAllOfIt) {
  const Folder folder;
  folder.write("wiki.train.raw", "training");
  folder.write("wiki.test.raw", "test ");
  const Corpus corpus = read_corpus(folder.path());
  EXPECT_EQ(corpus.held_out, std::nullopt);
  EXPECT_EQ(text_of(corpus), "test training");
  folder.write("wiki.valid.raw", "valid");
  folder.write("wiki.train.tokens", "training");
  folder.write("wiki.valid.tokens", "valid");
  expect_says(message_of<ConfigError>([&] { read_corpus(folder.path()); }),
              {"WikiText as tokens and raw", "data.path"});
}

TEST(SharedCorpora, ReadAPathOnceAndAFailedOneAnew) {
  const Folder folder;
  const std::string path = folder.write("one", "first"), missing = folder.path() + "/two";
  SharedCorpora corpora;
  const auto before = corpora.read(path);
  folder.write("one", "other");
  EXPECT_EQ(corpora.read(path), before);
  EXPECT_EQ(text_of(*before), "first");
  expect_says(message_of<ConfigError>([&] { corpora.read(missing); }), {missing});
  folder.write("two", "second");
  EXPECT_EQ(text_of(*corpora.read(missing)), "second");
}

TEST(OpenData, TellsWhatARunReads) {
  const Folder folder;
  DataPlan data;
  data.path = folder.write("corpus", std::string(1000, 'x'));
  ModelPlan model;
  model.sequence = 10;
  const DataIdentity found = open_data(data, model, 1, "").identity;
  EXPECT_EQ(found,
            (DataIdentity{"text", 1000, read_corpus(data.path).hash, 89, 1000}));  // 900 - 1 / 10
  data.hash = std::string(16, '0');
  expect_says(message_of<ConfigError>([&] { open_data(data, model, 1, ""); }),
              {found.hash, data.hash});
}

TEST(OpenData, KnowsWhatIsMadeUpByItsParameters) {
  const DataPlan data{.kind = "synthetic",
                      .path = "",
                      .hash = "",
                      .validation = 0.1,
                      .tokenizer = "",
                      .end_token = ""};
  std::set<std::string> hashes;
  const auto add = [&](const ModelPlan& model, uint64_t seed) {
    const DataIdentity found = open_data(data, model, seed, "").identity;
    EXPECT_EQ(found.bytes, 0);
    EXPECT_EQ(found, open_data(data, model, seed, "").identity);
    return hashes.insert(found.hash).second;
  };
  ModelPlan model;
  EXPECT_TRUE(add(model, 1));
  EXPECT_TRUE(add(model, 2));
  model.vocab = 300;
  EXPECT_TRUE(add(model, 1));
  model.layers = 7;
  EXPECT_FALSE(add(model, 1));  // no sample depends on it
  model.kind = "vit";
  model.sequence = 65;
  EXPECT_TRUE(add(model, 1));
}

TEST(Corpus, SaysWhatIsMissing) {
  expect_says(message_of<ConfigError>([] { read_corpus("/nowhere/corpus"); }),
              {"no corpus at \"/nowhere/corpus\"", "data.path"});
  expect_says(message_of<ConfigError>([] { read_corpus(""); }),
              {"data.path is empty", "\"synthetic\""});
}

TEST(Corpus, RefusesWhatIsNeitherFileNorFolder) {
  expect_says(message_of<ConfigError>([] { read_corpus("/dev/zero"); }),
              {"\"/dev/zero\"", "neither a regular file nor a folder"});
  const Folder folder;
  const std::string file = folder.write("file", "x");
  expect_says(message_of<ConfigError>([&] { read_corpus(file + "/below"); }), {file + "/below"});
}

TEST(Corpus, RefusesEmptyFilesAndFolders) {
  const Folder folder;
  expect_says(message_of<ConfigError>([&] { read_corpus(folder.path()); }),
              {folder.path(), "no text file", "0 binary"});
  const std::string file = folder.write("empty", "");
  expect_says(message_of<ConfigError>([&] { read_corpus(file); }), {file, "is empty: 0 bytes"});
  expect_says(message_of<ConfigError>([&] { read_corpus(folder.path()); }), {"is empty: 0 bytes"});
  std::filesystem::remove(file);
  folder.write("only.bin", std::string(10, '\0'));
  expect_says(message_of<ConfigError>([&] { read_corpus(folder.path()); }),
              {"no text file", "1 binary"});
}

// Root may read everything, so the file that cannot be read is one of the kernel's: it opens, and
// reading it fails.
TEST(Corpus, SaysWhyAFileCannotBeRead) {
  expect_says(message_of<ConfigError>([] { read_corpus("/proc/self/mem"); }),
              {"cannot read the corpus \"/proc/self/mem\"", "Input/output error"});
}

}  // namespace
}  // namespace kuafu
