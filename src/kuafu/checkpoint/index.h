// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/checkpoint/safetensors.h"

namespace kuafu {

// index.json of a checkpoint as values: which file holds which piece of which tensor. Pure text.

/// A piece of a tensor and where it lies.
struct PlacedPiece {
  int rank = 0;          ///< whose file
  std::string key;       ///< in that file
  std::string checksum;  ///< of its bytes, 16 hex digits
  Slice slice;
  bool operator==(const PlacedPiece&) const = default;
};

struct IndexedTensor {
  DType dtype = DType::kF32;
  Shape global;
  std::vector<PlacedPiece> pieces;
  bool operator==(const IndexedTensor&) const = default;
};

struct CheckpointIndex {
  int64_t step = 0;
  int ranks = 1;
  Metadata state;
  std::map<std::string, IndexedTensor> tensors;
  bool operator==(const CheckpointIndex&) const = default;
};

/// Name of the index in a checkpoint's folder.
inline constexpr const char* kIndexFile = "index.json";

/// "step-00000100" and "rank-00003.safetensors": the only names that a checkpoint has.
std::string step_folder(int64_t step);
std::string rank_file(int rank);

/// The text of index.json, its checksum included.
std::string to_text(const CheckpointIndex& index);

/// What index.json says, checked whole: every field's type and range, element counts without
/// overflow, pieces that lie inside their tensor and cover each element exactly once, files that
/// are those of its ranks, the checksum over all of it. Throws ConfigError "path: field: ...".
CheckpointIndex parse_index(std::string_view bytes, const std::string& path);

/// Why the pieces do not cover each element of a tensor exactly once; empty where they do.
/// @pre every slice has the tensor's dims, extents of 1 and more, and lies inside it
std::string cover_problem(const IndexedTensor& tensor);

}  // namespace kuafu
