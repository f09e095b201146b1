// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/xxh64.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSniffed = 8 * 1024;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

[[noreturn]] void unreadable(const std::string& path, const std::string& reason) {
  throw ConfigError(text("cannot read the corpus ", in_quotes(path), ": ", reason,
                         "; set data.path to a readable file or folder"));
}

/// Appends a file's bytes to `out`.
void append(const fs::path& path, std::vector<uint8_t>& out) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) unreadable(path.string(), std::strerror(errno));
  constexpr size_t kStep = 1 << 20;
  size_t filled = out.size();
  while (true) {
    // Small files fill their own size only: the tree of headers has thousands of them.
    out.resize(filled + (filled == out.size() ? 16 * 1024 : kStep));
    const size_t got = std::fread(out.data() + filled, 1, out.size() - filled, file.get());
    filled += got;
    if (filled < out.size()) break;
  }
  out.resize(filled);
  if (std::ferror(file.get()) != 0) unreadable(path.string(), std::strerror(errno));
}

bool is_binary(const uint8_t* bytes, size_t count) {
  return std::memchr(bytes, 0, std::min(count, kSniffed)) != nullptr;
}

/// Regular files below a folder by relative path. Links to folders are not followed, links to files
/// are.
std::vector<std::pair<std::string, fs::path>> files_below(const fs::path& folder) {
  std::vector<std::pair<std::string, fs::path>> out;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  if (error) unreadable(folder.string(), error.message());
  for (const fs::recursive_directory_iterator end; walk != end;) {
    const fs::path path = walk->path();
    std::error_code ignored;  // a dangling link is no regular file
    if (walk->is_regular_file(ignored)) {
      out.emplace_back(path.lexically_relative(folder).generic_string(), path);
    }
    walk.increment(error);
    if (error) unreadable(path.string(), error.message());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void read_tree(const fs::path& folder, Corpus& corpus) {
  for (const auto& [name, path] : files_below(folder)) {
    const size_t start = corpus.bytes.size();
    append(path, corpus.bytes);
    if (is_binary(corpus.bytes.data() + start, corpus.bytes.size() - start)) {
      corpus.bytes.resize(start);
      ++corpus.num_binary;
    } else {
      corpus.files.push_back({path.string(), static_cast<int64_t>(start)});
    }
  }
  KUAFU_REQUIRE(!corpus.files.empty(), "the folder ", in_quotes(corpus.path),
                " holds no text file (", corpus.num_binary,
                " binary files left out); set data.path to a file or folder of text");
}

/// Its files of one form, ".tokens" or ".raw"; false where there are none.
bool read_wikitext(const fs::path& folder, const char* form, Corpus& corpus) {
  const fs::path train = folder / text("wiki.train", form),
                 valid = folder / text("wiki.valid", form);
  std::error_code none;
  if (!fs::is_regular_file(train, none) || !fs::is_regular_file(valid, none)) return false;
  KUAFU_REQUIRE(!corpus.held_out, "the folder ", in_quotes(folder.string()),
                " holds WikiText as tokens and raw; set data.path to a folder with one of them");
  for (const fs::path& path : {train, valid}) {
    corpus.held_out = static_cast<int64_t>(corpus.bytes.size());
    corpus.files.push_back({path.string(), *corpus.held_out});
    append(path, corpus.bytes);
  }
  return true;
}

void read_folder(const fs::path& folder, Corpus& corpus) {
  const bool has_tokens = read_wikitext(folder, ".tokens", corpus);
  const bool is_raw = read_wikitext(folder, ".raw", corpus);
  if (!has_tokens && !is_raw) read_tree(folder, corpus);
}

}  // namespace

Corpus read_corpus(const std::string& path) {
  Corpus corpus;
  corpus.path = path;
  KUAFU_REQUIRE(!path.empty(), "data.path is empty and no default corpus was found; set data.path ",
                "to a file or folder of text, or data.kind = \"synthetic\"");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    const fs::path here = fs::current_path(error);
    throw ConfigError(text("there is no corpus at ", in_quotes(path),
                           fs::path(path).is_relative()
                               ? text(", seen from the working folder ", in_quotes(here.string()))
                               : "",
                           "; set data.path to a file or folder of text"));
  }
  if (error) unreadable(path, error.message());
  if (fs::is_directory(status)) {
    read_folder(path, corpus);
  } else if (fs::is_regular_file(status)) {
    append(path, corpus.bytes);
    corpus.files.push_back({path});
  } else {
    unreadable(path, "it is neither a regular file nor a folder");
  }
  KUAFU_REQUIRE(!corpus.bytes.empty(), "the corpus ", in_quotes(path),
                " is empty: 0 bytes; set data.path to a file or folder of text");
  corpus.bytes.shrink_to_fit();
  corpus.hash = hex_digits(xxh64(corpus.bytes));
  if (corpus.held_out)
    corpus.hash = hash_digits(text(corpus.hash, " held out from ", *corpus.held_out));
  return corpus;
}

std::string default_corpus(std::string_view folder) {
  return folder.empty() ? "" : text(folder, "/include");
}

void check_hash(const Corpus& corpus, const std::string& found, const std::string& wanted) {
  KUAFU_REQUIRE(wanted.empty() || wanted == found, "the corpus ", in_quotes(corpus.path),
                " is not the one of the plan: its ", corpus.bytes.size(), " bytes have the hash ",
                found, found == corpus.hash ? "" : " with data.tokenizer", ", data.hash = ", wanted,
                "; give the files that were meant, or data.hash = \"\"");
}

}  // namespace kuafu
