// SPDX-License-Identifier: Apache-2.0
#include "app/worker/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// CRC-32C, polynomial 0x1edc6f41 with its bits reversed.      [RFC 3720, appendix B.4]
uint32_t crc32c(const std::string& bytes) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? (c >> 1) ^ 0x82f63b78 : c >> 1;
      table[i] = c;
    }
    return table;
  }();
  uint32_t c = ~uint32_t{0};
  for (const char b : bytes) c = kTable[(c ^ static_cast<unsigned char>(b)) & 0xff] ^ (c >> 8);
  return ~c;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

std::string check_of(const std::string& bytes) {
  const uint32_t c = crc32c(bytes);
  return little_endian<uint32_t>(std::rotr(c, 15) + 0xa282ead8);
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}

std::string key(int field, int wire) { return varint(static_cast<uint64_t>((field << 3) | wire)); }
std::string field(int number, double x) {
  return key(number, 1) + little_endian(std::bit_cast<uint64_t>(x));
}
std::string field(int number, float x) {
  return key(number, 5) + little_endian(std::bit_cast<uint32_t>(x));
}
std::string field(int number, int64_t x) {
  return key(number, 0) + varint(static_cast<uint64_t>(x));
}
std::string field(int number, const std::string& bytes) {
  return key(number, 2) + varint(bytes.size()) + bytes;
}

constexpr const char* kBeginOfName = "events.out.tfevents.";
constexpr int64_t kSessionStarts = 1;  // SessionLog.START

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, int64_t begin) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  KUAFU_REQUIRE(!error, "--tensorboard ", folder, ": cannot make the folder: ", error.message());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string path = text(folder, "/", kBeginOfName, static_cast<int64_t>(wall_seconds()),
                                ".", host.data(), ".", ::getpid());
  file_.emplace("--tensorboard", path);
  write(field(1, wall_seconds()) + field(3, std::string("brain.Event:2")));
  write(field(1, wall_seconds()) + field(2, begin) + field(7, field(1, kSessionStarts)));
  flush();
}

bool TensorBoard::is_used(const std::string& folder) {
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    if (file.path().filename().string().starts_with(kBeginOfName)) return true;
  }
  return false;
}

void TensorBoard::add(const std::string& tag, int64_t step, double value) {
  const std::string scalar = field(1, tag) + field(2, static_cast<float>(value));
  write(field(1, wall_seconds()) + field(2, step) + field(5, field(1, scalar)));
}

void TensorBoard::flush() { file_->add(std::exchange(unwritten_, {})); }

void TensorBoard::write(const std::string& event) {
  const std::string length = little_endian<uint64_t>(event.size());
  unwritten_ += length + check_of(length) + event + check_of(event);
}

}  // namespace kuafu
