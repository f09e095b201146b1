// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <future>
#include <optional>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMostHeaderBytes = 100 << 20;  // the format's own limit
const std::string kChecksumOf = "checksum.", kHeaderChecksum = "header_checksum";
const char* const kMetadata = "__metadata__";

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName kNames[] = {{DType::kF64, "F64"}, {DType::kF32, "F32"}, {DType::kBF16, "BF16"},
                                {DType::kF16, "F16"}, {DType::kI64, "I64"}, {DType::kI32, "I32"},
                                {DType::kU8, "U8"}};

const char* name_of(DType dtype) {
  for (const DTypeName& row : kNames) {
    if (row.dtype == dtype) return row.name;
  }
  KUAFU_CHECK(false, "a dtype without a name");
  return "";
}

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(n, extent, &n)) return -1;
  }
  return n;
}

std::string sum_of_header(const Json& header) {
  const std::string content = json_line(header);
  return hex(checksum(content.data(), static_cast<int64_t>(content.size())));
}

/// Dims of a shape, or the two offsets; none where the value is no list of whole numbers from 0.
std::optional<Shape> numbers_of(const Json& list) {
  if (!list.is_array()) return {};
  Shape numbers;
  for (const Json& value : list) {
    const std::optional<int64_t> number = whole_number(value);
    if (!number || *number < 0) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

std::string hex(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

int64_t TensorBytes::bytes() const { return num_elements(shape) * size_of(dtype); }

namespace {

constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;

uint64_t mixed(uint64_t lane, uint64_t word) {
  lane = (lane ^ word) * kPrime;
  return lane ^ lane >> 29;
}

uint64_t word_at(const char* p) {
  uint64_t word = 0;
  std::memcpy(&word, p, sizeof word);
  return word;
}

}  // namespace

/// Two multiply-xor lanes over 8-byte words; the length goes in, so that missing zeros show.
Checksum::Checksum(int64_t bytes)
    : lanes_{kPrime ^ static_cast<uint64_t>(bytes), 0x632BE59BD9B4E019} {}

void Checksum::add(std::span<const char> part) {
  const auto add_word = [this](uint64_t word) {
    lanes_[next_] = mixed(lanes_[next_], word);
    next_ ^= 1;
  };
  if (num_begun_ > 0) {
    const size_t more = std::min(part.size(), sizeof begun_ - num_begun_);
    std::memcpy(begun_ + num_begun_, part.data(), more);
    num_begun_ += more;
    part = part.subspan(more);
    if (num_begun_ < sizeof begun_) return;
    add_word(word_at(begun_));
    num_begun_ = 0;
  }
  if (part.size() >= 8 && next_ == 1) {
    add_word(word_at(part.data()));
    part = part.subspan(8);
  }
  uint64_t even = lanes_[0], odd = lanes_[1];  // in registers: half the time
  for (; part.size() >= 16; part = part.subspan(16)) {
    even = mixed(even, word_at(part.data()));
    odd = mixed(odd, word_at(part.data() + 8));
  }
  lanes_[0] = even;
  lanes_[1] = odd;
  if (part.size() >= 8) {
    add_word(word_at(part.data()));
    part = part.subspan(8);
  }
  if (!part.empty()) std::memcpy(begun_, part.data(), part.size());
  num_begun_ = part.size();
}

uint64_t Checksum::value() const {
  char last[8] = {};
  std::memcpy(last, begun_, num_begun_);
  return mixed(lanes_[1], mixed(lanes_[0], word_at(last)));
}

uint64_t checksum(const void* data, int64_t bytes) {
  Checksum sum(bytes);
  sum.add({static_cast<const char*>(data), static_cast<size_t>(bytes)});
  return sum.value();
}

namespace {

/// Length, header and the spaces behind it: all before the data. Checksums have one width, so a
/// header of other sums is as long.
std::string header_of(const std::vector<TensorBytes>& tensors, const std::vector<std::string>& sums,
                      const Metadata& metadata) {
  Json strings = Json::object(), entries = Json::object();
  for (const auto& [key, value] : metadata) strings[key] = value;
  int64_t end = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorBytes& t = tensors[i];
    KUAFU_CHECK(!entries.contains(t.name), "tensor ", t.name, " is written twice");
    strings[kChecksumOf + t.name] = sums[i];
    entries[t.name] = {
        {"dtype", name_of(t.dtype)}, {"shape", t.shape}, {"data_offsets", {end, end + t.bytes()}}};
    end += t.bytes();
  }
  Json header = {{kMetadata, strings}};
  header.update(entries);
  KUAFU_CHECK(!strings.contains(kHeaderChecksum), "metadata has the reserved ", kHeaderChecksum);
  header[kMetadata][kHeaderChecksum] = sum_of_header(header);
  std::string head = json_line(header);
  head.resize((head.size() + 7) / 8 * 8, ' ');  // data start on a multiple of 8
  const auto length = static_cast<uint64_t>(head.size());
  std::string prefix(kLengthBytes, '\0');
  for (int i = 0; i < kLengthBytes; ++i) prefix[static_cast<size_t>(i)] = char(length >> (8 * i));
  return prefix + head;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<TensorBytes>& tensors,
                       const Metadata& metadata, Pace* pace) {
  const auto rest = [&] {
    if (pace != nullptr) pace->rest();
  };
  rest();
  std::vector<std::string> sums;
  for (const TensorBytes& t : tensors) {
    sums.push_back(hex(checksum(t.data, t.bytes())));
    rest();
  }
  const std::string head = header_of(tensors, sums, metadata);

  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.is_open()) throw_unwritten(path);
  try {
    write_all(file, head, path);
    for (const TensorBytes& t : tensors) {
      std::string_view left{static_cast<const char*>(t.data), static_cast<size_t>(t.bytes())};
      for (; !left.empty(); left.remove_prefix(std::min(left.size(), Pace::kPartBytes))) {
        write_all(file, left.substr(0, Pace::kPartBytes), path);
        if (pace == nullptr) continue;
        // To the disk by parts as well; what fails here fails below.
        ::sync_file_range(file.descriptor(), 0, 0, SYNC_FILE_RANGE_WRITE);
        rest();
      }
    }
    if (::fsync(file.descriptor()) != 0) throw_unwritten(path);
  } catch (const Error&) {
    ::unlink(path.c_str());  // a full disk gets its space back
    throw;
  }
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorBytes> tensors,
                                     Metadata metadata)
    : path_(std::move(path)),
      tensors_(std::move(tensors)),
      metadata_(std::move(metadata)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (!file_.is_open()) throw_unwritten(path_);
  const std::vector<std::string> none(tensors_.size(), hex(0));
  try {
    write_all(file_, header_of(tensors_, none, metadata_), path_);
  } catch (const Error&) {
    ::unlink(path_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!is_finished_) ::unlink(path_.c_str());
}

void SafetensorsWriter::add(const void* data) {
  KUAFU_CHECK(sums_.size() < tensors_.size(), path_, ": more tensors than were named");
  const int64_t bytes = tensors_[sums_.size()].bytes();
  auto sum = std::async(std::launch::async, [=] { return checksum(data, bytes); });
  write_all(file_, {static_cast<const char*>(data), static_cast<size_t>(bytes)}, path_);
  // To the disk meanwhile: fsync() has less to wait for. What fails here fails there.
  ::sync_file_range(file_.descriptor(), 0, 0, SYNC_FILE_RANGE_WRITE);
  sums_.push_back(hex(sum.get()));
}

void SafetensorsWriter::finish() {
  KUAFU_CHECK(sums_.size() == tensors_.size(), path_, ": ", sums_.size(), " of ", tensors_.size(),
              " tensors were added");
  if (::lseek(file_.descriptor(), 0, SEEK_SET) != 0) throw_unwritten(path_);
  write_all(file_, header_of(tensors_, sums_, metadata_), path_);
  if (::fsync(file_.descriptor()) != 0) throw_unwritten(path_);
  is_finished_ = true;
}

void Safetensors::damaged(const std::string& why) const {
  const bool is_plain = kind_ == SafetensorsKind::kPlain;
  throw ConfigError(text(is_plain ? "weights file " : "checkpoint file ", path_, " is damaged: ",
                         why, is_plain ? "; export it again" : "; use an earlier checkpoint"));
}

/// One tensor's row of the header.
Safetensors::Entry Safetensors::entry_of(const std::string& name, const Json& row) const {
  const Json dtype = row.is_object() ? row.value("dtype", Json()) : Json();
  const auto known = std::find_if(std::begin(kNames), std::end(kNames),
                                  [&](const DTypeName& one) { return dtype == one.name; });
  if (known == std::end(kNames)) {
    damaged(text("tensor ", name, " has dtype ", json_excerpt(dtype)));
  }
  const auto shape = numbers_of(row.value("shape", Json()));
  const auto offsets = numbers_of(row.value("data_offsets", Json()));
  const int64_t n = shape ? num_elements(*shape) : -1;
  int64_t bytes = 0;
  const bool is_right = n >= 0 && !__builtin_mul_overflow(n, size_of(known->dtype), &bytes) &&
                        offsets && offsets->size() == 2 && (*offsets)[1] >= (*offsets)[0] &&
                        (*offsets)[1] - (*offsets)[0] == bytes;
  if (!is_right) {
    damaged(text("tensor ", name, " has dtype ", known->name, ", shape ",
                 json_excerpt(row.value("shape", Json())), " and offsets ",
                 json_excerpt(row.value("data_offsets", Json()))));
  }
  return {known->dtype, *shape, (*offsets)[0], (*offsets)[1]};
}

void Safetensors::read_into(std::span<char> out, int64_t offset) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(file_.descriptor(), out.data(), out.size(), offset);
    if (n < 0) throw ConfigError(system_error("read", path_));
    if (n == 0) damaged(text("it ends after ", offset, " bytes"));
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

std::vector<char> Safetensors::read_at(int64_t offset, int64_t bytes) const {
  std::vector<char> out(static_cast<size_t>(bytes));
  read_into(out, offset);
  return out;
}

Safetensors::Safetensors(const std::string& path, SafetensorsKind kind)
    : path_(path),
      kind_(kind),
      file_(open_own(path, kind == SafetensorsKind::kPlain ? "weights file" : "checkpoint file")) {
  struct stat status = {};
  if (::fstat(file_.descriptor(), &status) != 0) throw ConfigError(system_error("read", path));
  const int64_t size = status.st_size;
  if (size < kLengthBytes) damaged(text("it has ", size, " bytes"));
  const std::vector<char> prefix = read_at(0, kLengthBytes);
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(prefix[i])) << (8 * i);
  }
  const bool is_another_format =
      kind_ == SafetensorsKind::kPlain && size > kLengthBytes && read_at(kLengthBytes, 1)[0] != '{';
  KUAFU_REQUIRE(!is_another_format, "weights file ", path_, " is no safetensors file: it begins ",
                "with ", in_quotes(as_utf8({prefix.data(), prefix.size()})),
                "; one begins with the length of its header (8 bytes) and then the header, {...}");
  if (length > static_cast<uint64_t>(std::min(size - kLengthBytes, kMostHeaderBytes))) {
    damaged(text("its header claims ", length, " bytes, the file has ", size));
  }
  data_start_ = kLengthBytes + static_cast<int64_t>(length);
  read_header(read_at(kLengthBytes, static_cast<int64_t>(length)));
  check_offsets(size - data_start_);
}

void Safetensors::read_header(const std::vector<char>& head) {
  Json header;
  try {
    header = parse_json({head.data(), head.size()});
  } catch (const ConfigError& e) {
    damaged(text("its header is no JSON (", e.what(), ")"));
  }
  const std::string repeated = repeated_key({head.data(), head.size()});
  if (!repeated.empty()) damaged(text("its header has ", in_quotes(repeated), " twice"));
  read_metadata(header);
  for (const auto& [name, row] : header.items()) {
    if (name == kMetadata) continue;
    entries_[name] = entry_of(name, row);
    if (kind_ == SafetensorsKind::kCheckpoint && !metadata_.contains(kChecksumOf + name)) {
      damaged(text("tensor ", name, " has no checksum"));
    }
  }
}

void Safetensors::read_metadata(Json& header) {
  const bool is_plain = kind_ == SafetensorsKind::kPlain;
  if (!header.is_object()) damaged("its header is no JSON object");
  if (is_plain && !header.contains(kMetadata)) return;
  const Json strings = header.value(kMetadata, Json());
  const Json sum = strings.is_object() ? strings.value(kHeaderChecksum, Json()) : Json();
  if (!sum.is_string() && !(is_plain && sum.is_null() && strings.is_object())) {
    damaged(text("its header has no ", kHeaderChecksum));
  }
  header[kMetadata].erase(kHeaderChecksum);
  if (sum.is_string() && sum != sum_of_header(header)) {
    damaged("its header does not match its checksum");
  }
  for (const auto& [key, value] : header[kMetadata].items()) {
    if (!value.is_string()) damaged(text("metadata ", key, " is ", json_excerpt(value)));
    metadata_[key] = value.get<std::string>();
  }
}

void Safetensors::check_offsets(int64_t data_bytes) const {
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const auto& [name, e] : entries_) parts.emplace_back(e.begin, e.end);
  std::sort(parts.begin(), parts.end());
  int64_t end = 0;
  for (const auto& [first, last] : parts) {
    if (first != end) {
      damaged(text("after byte ", end, " of the data the next tensor begins at ", first));
    }
    end = last;
  }
  if (end != data_bytes) {
    damaged(text("its tensors take ", end, " bytes, the file holds ", data_bytes));
  }
}

const Safetensors::Entry& Safetensors::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  KUAFU_REQUIRE(found != entries_.end(),
                kind_ == SafetensorsKind::kPlain ? "weights file " : "checkpoint file ", path_,
                " has no tensor ", name);
  return found->second;
}

std::vector<char> Safetensors::read(const std::string& name) const {
  const Entry& e = entry(name);
  std::vector<char> bytes = read_at(data_start_ + e.begin, e.end - e.begin);
  const auto sum = metadata_.find(kChecksumOf + name);
  if (sum != metadata_.end() && sum->second != hex(checksum(bytes.data(), e.end - e.begin))) {
    damaged(text("the bytes of ", name, " do not match their checksum"));
  }
  return bytes;
}

void Safetensors::read_rows(
    const std::string& name,
    const std::function<void(std::span<const char>, int64_t first)>& take) const {
  constexpr int64_t kPartBytes = 1 << 20;  // stays in the cache until it is taken
  const Entry& e = entry(name);
  const int64_t rows = e.shape.empty() ? 1 : e.shape[0], bytes = e.end - e.begin;
  if (bytes == 0) return;
  const int64_t row_bytes = bytes / rows, most = std::max<int64_t>(1, kPartBytes / row_bytes);
  const auto sum = metadata_.find(kChecksumOf + name);
  Checksum found(bytes);
  std::vector<char> buffer(static_cast<size_t>(std::min(most, rows) * row_bytes));
  for (int64_t first = 0; first < rows; first += most) {
    const std::span<char> part(buffer.data(),
                               static_cast<size_t>(std::min(most, rows - first) * row_bytes));
    read_into(part, data_start_ + e.begin + first * row_bytes);
    if (sum != metadata_.end()) found.add(part);
    take(part, first);
  }
  if (sum != metadata_.end() && sum->second != hex(found.value())) {
    damaged(text("the bytes of ", name, " do not match their checksum"));
  }
}

const std::string& Safetensors::checksum_of(const std::string& name) const {
  return metadata_.at(kChecksumOf + name);  // of every entry there is one
}

}  // namespace kuafu
