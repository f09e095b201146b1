// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/token_files.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/record/files.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHead = 4096;  // a page, so that ids are mapped from its end on
constexpr int64_t kFormat = 1;
/// A process that makes the files of a large corpus is waited for.
constexpr auto kPatience = std::chrono::hours(24);
constexpr const char* kKind = "kuafu tokens";
static_assert(std::endian::native == std::endian::little, "files hold ids as they lie in memory");

int64_t width_of(int64_t vocab) { return vocab <= 1 << 16 ? 2 : 4; }

std::string path_of(const std::string& folder, size_t shard) {
  char name[32];
  std::snprintf(name, sizeof(name), "tokens-%05zu.bin", shard);
  return folder + "/" + name;
}

template <class Id>
std::string narrowed(const std::vector<int32_t>& ids) {
  std::string bytes(ids.size() * sizeof(Id), '\0');
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<Id>(ids[i]);
    std::memcpy(bytes.data() + i * sizeof(Id), &id, sizeof(Id));
  }
  return bytes;
}

/// Of a head without its own checksum.
std::string sum_of(Json head) {
  head.erase("head_checksum");
  return hash_digits(json_line(head));
}

std::string file_of(const TokenFiles::Source& source, const TokenShard& shard) {
  const int64_t width = width_of(source.vocab);
  const std::string ids =
      width == 2 ? narrowed<uint16_t>(shard.ids) : narrowed<uint32_t>(shard.ids);
  Json head = {{"kind", kKind},
               {"format", kFormat},
               {"name", source.name},
               {"about", source.about.substr(0, kHead / 2)},
               {"begin", shard.begin},
               {"end", shard.end},
               {"tokens", shard.ids.size()},
               {"bytes_per_token", width},
               {"checksum", hash_digits(ids)}};
  head["head_checksum"] = sum_of(head);
  std::string file = json_line(head);
  KUAFU_CHECK(file.size() < kHead, "a head of ", file.size(), " bytes");
  file.resize(kHead - 1, ' ');
  return file + "\n" + ids;
}

}  // namespace

/// Part of the row: mapped from a file, or in memory where no file could be written.
struct TokenFiles::Part {
  Part(std::string bytes, int64_t id_bytes) : own(std::move(bytes)), width(id_bytes) {
    ids = own.data();
    count = static_cast<int64_t>(own.size()) / width;
  }
  Part(void* address, size_t bytes, int64_t id_bytes)
      : mapped(address), mapped_bytes(bytes), width(id_bytes) {
    ids = static_cast<const char*>(address) + kHead;
    count = static_cast<int64_t>(bytes - kHead) / width;
  }
  ~Part() {
    if (mapped != nullptr) ::munmap(mapped, mapped_bytes);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  int64_t at(int64_t i) const { return width == 2 ? read<uint16_t>(i) : read<uint32_t>(i); }

  std::string own;
  void* mapped = nullptr;
  size_t mapped_bytes = 0;
  const char* ids = nullptr;
  int64_t width = 0, count = 0;
  int64_t first = 0;  ///< place in the row
  int64_t end = 0;    ///< byte of the corpus behind it

 private:
  template <class Id>
  int64_t read(int64_t i) const {
    Id id;
    std::memcpy(&id, ids + static_cast<size_t>(i) * sizeof(Id), sizeof(Id));
    return static_cast<int64_t>(id);
  }
};

namespace {

/// A whole number from 0 on of a head; throws ConfigError where it is none.
int64_t count_of(const Json& head, const char* name) {
  const std::optional<int64_t> value =
      head.contains(name) ? whole_number(head[name]) : std::nullopt;
  KUAFU_REQUIRE(value && *value >= 0, "its head has no ", name);
  return *value;
}

void require_text(const Json& head, const char* name, const std::string& wanted) {
  const bool is_there = head.contains(name) && head[name].is_string();
  KUAFU_REQUIRE(is_there && head[name] == wanted, "its head has ", name, " ",
                is_there ? json_excerpt(head[name]) : "none", ", not ", in_quotes(wanted));
}

}  // namespace

/// Maps a shard that begins at byte `begin` of the corpus; throws ConfigError that says what is wrong.
class TokenFiles::Mapped {
 public:
  Mapped(const std::string& path, const Source& source, int64_t begin) {
    const File file = open_own(path, "token file");
    struct stat about {};
    KUAFU_REQUIRE(::fstat(file.descriptor(), &about) == 0, system_error("look at", path));
    const auto bytes = static_cast<size_t>(about.st_size);
    KUAFU_REQUIRE(bytes >= kHead, "it has ", bytes, " bytes, less than its head of ", kHead);
    void* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    KUAFU_REQUIRE(address != MAP_FAILED, system_error("map", path));
    const int64_t width = width_of(source.vocab);
    part_ = std::make_unique<Part>(address, bytes, width);
    const std::string_view whole(static_cast<const char*>(address), bytes);
    const Json head = parse_json(whole.substr(0, kHead));
    KUAFU_REQUIRE(head.is_object(), "its head is no object");
    require_text(head, "kind", kKind);
    require_text(head, "name", source.name);
    require_text(head, "head_checksum", sum_of(head));
    require_text(head, "checksum", hash_digits(whole.substr(kHead)));
    KUAFU_REQUIRE(count_of(head, "format") == kFormat, "its format is not ", kFormat);
    KUAFU_REQUIRE(count_of(head, "begin") == begin, "it does not begin at byte ", begin,
                  " of the corpus");
    KUAFU_REQUIRE(count_of(head, "bytes_per_token") == width, "its ids are not of ", width,
                  " bytes");
    const auto of_ids = static_cast<int64_t>(bytes - kHead);
    KUAFU_REQUIRE(of_ids % width == 0 && count_of(head, "tokens") == of_ids / width,
                  "its size is not that of its ids");
    part_->end = count_of(head, "end");
    KUAFU_REQUIRE(part_->end > begin && part_->end <= source.bytes, "it ends at byte ", part_->end,
                  " of a corpus of ", source.bytes);
    for (int64_t i = 0; i < part_->count; ++i) {
      KUAFU_REQUIRE(part_->at(i) < source.vocab, "it has id ", part_->at(i), " of a vocabulary of ",
                    source.vocab);
    }
  }

  std::unique_ptr<Part> take() { return std::move(part_); }

 private:
  std::unique_ptr<Part> part_;
};

TokenFiles::TokenFiles(const std::string& folder, Source source, const Make& make,
                       const std::function<void(const std::string&)>& tell)
    : source_(std::move(source)) {
  const std::string own = folder + "/" + source_.name;
  bool is_kept = !folder.empty();
  int64_t made = 0;  // bytes of the corpus whose ids are there
  const auto goes_without = [&](const std::string& why) {
    is_kept = false;
    tell(text("ids of the corpus stay in memory and are made again by the next run: ", why,
              "; set KUAFU_CACHE to a folder that can be written"));
  };
  std::optional<FolderLock> lock;
  if (!is_kept) {
    goes_without("no folder for caches is known");
  } else {
    try {
      make_writable_folder(own, "KUAFU_CACHE");
      lock.emplace(own, kPatience, "KUAFU_CACHE");
    } catch (const ConfigError& e) {
      goes_without(e.what());
    }
  }
  while (made < source_.bytes) {
    const std::string path = path_of(own, parts_.size());
    std::error_code error;
    if (is_kept && fs::exists(path, error)) {
      try {
        add(Mapped(path, source_, made).take());
        made = parts_.back()->end;
        continue;
      } catch (const ConfigError& e) {
        tell(text("the token file ", path, " is made again: ", e.what()));
      }
    }
    const TokenShard shard = make(made);
    KUAFU_CHECK(shard.begin == made && shard.end > made, "shard from ", shard.begin, " to ",
                shard.end, " behind ", made);
    std::string bytes = file_of(source_, shard);
    if (is_kept) {
      try {
        replace_file(path, bytes);
        add(Mapped(path, source_, made).take());
        made = parts_.back()->end;
        continue;
      } catch (const ConfigError& e) {
        goes_without(e.what());
      }
    }
    add(std::make_unique<Part>(bytes.substr(kHead), width_of(source_.vocab)));
    made = parts_.back()->end = shard.end;
  }
}

TokenFiles::~TokenFiles() = default;

void TokenFiles::add(std::unique_ptr<Part> part) {
  part->first = size_;
  size_ += part->count;
  parts_.push_back(std::move(part));
}

int64_t TokenFiles::begin_of_validation(const Corpus& corpus) const {
  int64_t before = 0;
  for (const auto& part : parts_) {
    if (part->end <= *corpus.held_out) before += part->count;
  }
  return before;
}

void TokenFiles::append(int64_t start, int64_t count, std::vector<int64_t>& out) const {
  KUAFU_CHECK(start >= 0 && count >= 0 && start + count <= size_, "ids ", start, " to ",
              start + count, " of ", size_);
  if (count == 0) return;
  auto part = std::upper_bound(parts_.begin(), parts_.end(), start,
                               [](int64_t at, const auto& p) { return at < p->first; });
  for (--part; count > 0; ++part) {
    const int64_t from = start - (*part)->first, most = std::min(count, (*part)->count - from);
    for (int64_t i = 0; i < most; ++i) out.push_back((*part)->at(from + i));
    start += most;
    count -= most;
  }
}

std::string cache_folder() {
  const auto of = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string own = of("KUAFU_CACHE"); !own.empty()) return own;
  if (const std::string caches = of("XDG_CACHE_HOME"); !caches.empty()) return caches + "/kuafu";
  const std::string home = of("HOME");
  return home.empty() ? "" : home + "/.cache/kuafu";
}

}  // namespace kuafu
