// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"

namespace kuafu {
namespace {

Slice whole(const Shape& extent) { return {Shape(extent.size(), 0), extent}; }

/// "optimizer.slot.NAME" of a tensor NAME that is saved too.
bool is_state(const Checkpoint& from, const std::string& name, const std::string& optimizer) {
  const std::string first = optimizer + ".";
  if (!name.starts_with(first)) return false;
  const size_t dot = name.find('.', first.size());
  return dot != std::string::npos && from.tensors().contains(name.substr(dot + 1));
}

/// The first of `count` numbers whose exponent has all its bits, which says infinite or no number;
/// -1: there is none. Looked for in blocks: a loop that may end anywhere is not vectorised.
template <class Bits>
int64_t first_not_finite(std::span<const char> bytes, Bits exponent) {
  constexpr int64_t kBlock = 4096;
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(Bits));
  const auto is_one = [&](int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    return static_cast<Bits>((bits & exponent) == exponent);
  };
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(count, first + kBlock);
    Bits any = 0;
    for (int64_t i = first; i < end; ++i) any |= is_one(i);
    if (any == 0) continue;
    while (is_one(first) == 0) ++first;
    return first;
  }
  return -1;
}

int64_t first_not_finite(std::span<const char> bytes, DType type) {
  switch (type) {
    case DType::kF64:
      return first_not_finite<uint64_t>(bytes, 0x7FF0'0000'0000'0000);
    case DType::kF32:
      return first_not_finite<uint32_t>(bytes, 0x7F80'0000);
    case DType::kBF16:
      return first_not_finite<uint16_t>(bytes, 0x7F80);
    case DType::kF16:
      return first_not_finite<uint16_t>(bytes, 0x7C00);
    default:
      return -1;  // integers
  }
}

/// "[2, 0]" of element `at` in the order of memory.
std::string index_of(int64_t at, const Shape& shape) {
  std::string index;
  for (size_t dim = shape.size(); dim-- > 0; at /= shape[dim]) {
    index = text(at % shape[dim], index.empty() ? "" : ", ", index);
  }
  return "[" + index + "]";
}

}  // namespace

std::vector<std::string> weight_names(const Checkpoint& from, const std::string& optimizer) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : from.tensors()) {
    if (!is_state(from, name, optimizer)) names.push_back(name);
  }
  return names;
}

int64_t export_weights(const Checkpoint& from, const std::vector<std::string>& names,
                       const Metadata& metadata, const std::string& file) {
  std::vector<TensorBytes> tensors;
  for (const std::string& name : names) {
    const IndexedTensor& t = from.tensors().at(name);
    tensors.push_back({name, t.dtype, t.global, nullptr});
  }
  const std::string partial = file + ".partial";
  SafetensorsWriter writer(partial, tensors, metadata);
  int64_t written = 0;
  for (const TensorBytes& t : tensors) {
    std::vector<char> bytes(static_cast<size_t>(t.bytes()));
    from.read(t.name, whole(t.shape), bytes.data());
    writer.add(bytes.data());
    written += t.bytes();
  }
  writer.finish();
  if (std::rename(partial.c_str(), file.c_str()) != 0) {
    const ConfigError error(system_error("write", file));
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw error;
  }
  return written;
}

void require_finite(const Safetensors& from, const std::string& name, std::span<const char> bytes,
                    int64_t first_row) {
  const Safetensors::Entry& entry = from.entries().at(name);
  const int64_t at = first_not_finite(bytes, entry.dtype);
  if (at < 0) return;
  const int64_t before = first_row == 0 ? 0 : first_row * (volume(entry.shape) / entry.shape[0]);
  throw ConfigError(text(from.path(), ": tensor ", name, " is infinite or no number at ",
                         index_of(before + at, entry.shape),
                         "; a run could only diverge from there"));
}

void import_weights(const NamedWeights& from, const Metadata& state, const std::string& root) {
  std::vector<TensorPiece> pieces;
  for (const TensorBytes& t : from.tensors) {
    pieces.push_back({t.name, t.dtype, t.shape, whole(t.shape), nullptr});
  }
  const CheckpointWriter writer(root, 0);
  writer.prepare();
  // One is written while the next one is read. Memory that is new is slower than the disk: it is kept.
  int64_t largest = 0;
  for (const TensorBytes& t : from.tensors) largest = std::max(largest, t.bytes());
  std::array<std::vector<char>, 2> bytes;
  for (auto& b : bytes) b.resize(static_cast<size_t>(largest));
  const auto reading = [&](size_t i) {
    return std::async(std::launch::async, from.read, pieces.at(i).name, pieces.at(i).slice,
                      bytes[i % 2].data());
  };
  std::future<void> next;
  writer.write(0, pieces, [&](size_t i) {
    (next.valid() ? std::move(next) : reading(i)).get();
    if (i + 1 < pieces.size()) next = reading(i + 1);
    return bytes[i % 2].data();
  });
  writer.commit(1, state);
}

}  // namespace kuafu
