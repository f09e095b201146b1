// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kuafu/base/dtype.h"
#include "kuafu/checkpoint/pace.h"
#include "kuafu/mesh/layout.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// A tensor to be written. `data` is contiguous and not owned.
struct TensorBytes {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;

  int64_t bytes() const;
};

/// Strings that travel in a file's header.
using Metadata = std::map<std::string, std::string>;

/// Writes one safetensors file: 8 bytes of header length (little endian), a JSON header, the data.
/// Each tensor's checksum stands in the metadata under "checksum.<name>", that of the header without
/// it under "header_checksum": no byte of the file can change unseen. The file is on the disk when
/// this returns, written at `pace` if given. Throws ConfigError with path and reason (disk
/// full).
void write_safetensors(const std::string& path, const std::vector<TensorBytes>& tensors,
                       const Metadata& metadata, Pace* pace = nullptr);

/// The same a tensor at a time, in the order given: no more than one need be in memory. The header is
/// written last. A file that is not finished is removed.
class SafetensorsWriter {
 public:
  /// `tensors`: without their data.
  SafetensorsWriter(std::string path, std::vector<TensorBytes> tensors, Metadata metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The bytes of the next tensor.
  void add(const void* data);
  /// Writes the header; the file is on the disk when this returns. @pre all were added
  void finish();

 private:
  std::string path_;
  std::vector<TensorBytes> tensors_;
  Metadata metadata_;
  std::vector<std::string> sums_;
  File file_;
  bool is_finished_ = false;
};

/// What a safetensors file is, for messages. One that Kuafu did not write has no checksums: where a
/// plain file has some, they are checked.
enum class SafetensorsKind : uint8_t { kCheckpoint, kPlain };

/// A file of write_safetensors, opened for reading. The header is checked at once (its checksum;
/// each tensor's dtype, shape and bytes; that the tensors fill the file one after the other), data
/// when they are read.
class Safetensors {
 public:
  struct Entry {
    DType dtype = DType::kF32;
    Shape shape;
    int64_t begin = 0, end = 0;  ///< bytes within the data
  };

  /// Throws ConfigError naming the file: missing, a link, cut short, or with a header that is none.
  explicit Safetensors(const std::string& path,
                       SafetensorsKind kind = SafetensorsKind::kCheckpoint);

  const std::string& path() const { return path_; }
  const std::map<std::string, Entry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }

  /// All bytes of a tensor. Throws ConfigError naming file and tensor where the checksum differs.
  std::vector<char> read(const std::string& name) const;
  /// The same in parts: calls take(bytes, first) with rows of dim 0 from `first` on, in order, of about
  /// 1 MiB together, or one that is longer; a tensor without dims is one row. The checksum is compared
  /// when all were taken.
  void read_rows(const std::string& name,
                 const std::function<void(std::span<const char>, int64_t first)>& take) const;
  /// The checksum that was written with a tensor, in hex.
  const std::string& checksum_of(const std::string& name) const;

 private:
  [[noreturn]] void damaged(const std::string& why) const;
  Entry entry_of(const std::string& name, const Json& row) const;
  const Entry& entry(const std::string& name) const;
  void read_into(std::span<char> out, int64_t offset) const;
  std::vector<char> read_at(int64_t offset, int64_t bytes) const;
  void read_header(const std::vector<char>& head);
  /// The strings of the header, its own checksum checked.
  void read_metadata(Json& header);
  /// Checks that the tensors lie one after the other and fill `data_bytes`.
  void check_offsets(int64_t data_bytes) const;

  std::string path_;
  SafetensorsKind kind_;
  File file_;
  int64_t data_start_ = 0;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

/// 64 bits of a block of memory; any flipped, missing or exchanged byte changes them.
uint64_t checksum(const void* data, int64_t bytes);
/// The same of a block that comes in parts, one after the other.
class Checksum {
 public:
  explicit Checksum(int64_t bytes);  ///< of the whole block
  void add(std::span<const char> part);
  uint64_t value() const;

 private:
  uint64_t lanes_[2];
  char begun_[8] = {};  // of a word that is not whole yet
  size_t num_begun_ = 0;
  int next_ = 0;  // lane
};
/// 16 hex digits.
std::string hex(uint64_t value);

}  // namespace kuafu
