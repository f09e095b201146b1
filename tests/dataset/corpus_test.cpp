// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/corpus.h"

#include <sys/stat.h>

#include "kuafu/base/errors.h"
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
  EXPECT_EQ(corpus.num_files, 1);
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
  EXPECT_EQ(read_corpus(folder.path()).num_files, 4);
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
