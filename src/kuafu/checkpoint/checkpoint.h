// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/checkpoint/folder.h"
#include "kuafu/checkpoint/index.h"
#include "kuafu/record/json.h"

namespace kuafu {

// A checkpoint is a folder `step-00000100` with one safetensors file a rank and index.json, which
// says where every piece of every tensor lies. Tensors have global names and global shapes, so that
// any other plan, with other shards and another number of ranks, can read them. A folder without a
// matching index does not count: it is written as `step-00000100.partial` and renamed at the end.

/// A piece of a global tensor that one rank holds. `data` is contiguous in the slice's extent.
struct TensorPiece {
  std::string name;
  DType dtype = DType::kF32;
  Shape global;
  Slice slice;
  const void* data = nullptr;
};

/// Saves one step. Ranks write in parallel: each makes a writer, calls write() once; when all have,
/// (a barrier) one rank calls commit().
class CheckpointWriter {
 public:
  /// `root`: the folder that holds all checkpoints.
  CheckpointWriter(std::string root, int64_t step);

  /// Creates the partial folder, empty, and removes those that earlier saves left unfinished. One
  /// rank, before the others write.
  void prepare() const;
  /// My pieces, in my file, at `pace` if given. A replica need not write: pieces may be held by one
  /// rank only.
  void write(int rank, const std::vector<TensorPiece>& pieces, Pace* pace = nullptr) const;
  /// The same with data that are asked for a piece at a time, and used until the next is.
  void write(int rank, const std::vector<TensorPiece>& pieces,
             const std::function<const void*(size_t piece)>& data) const;
  /// Checks that the files of `ranks` ranks cover every tensor exactly once, writes the index with
  /// `state` (strings of the whole run: data position, scaler, plan) and renames the folder.
  void commit(int ranks, const Metadata& state) const;

 private:
  std::string root_, folder_, partial_;
};

/// A complete checkpoint, read piece by piece.
class Checkpoint {
 public:
  /// Reads the index and checks all of it (parse_index), and that its step is the folder's. Throws
  /// ConfigError where the folder is no complete checkpoint.
  explicit Checkpoint(const std::string& folder);

  int64_t step() const { return index_.step; }
  const Metadata& state() const { return index_.state; }
  const std::map<std::string, IndexedTensor>& tensors() const { return index_.tensors; }

  /// A whole number from 0, or a number above 0, among the state. Throws ConfigError naming folder,
  /// key, what is written there and what is allowed.
  int64_t state_count(const std::string& key) const;
  double state_number(const std::string& key) const;

  /// The box `slice` of tensor `name`, contiguous, into `out`. Reads only the pieces that meet it;
  /// each must have the dtype, extent and checksum that the index lists. @pre it lies in the tensor
  void read(const std::string& name, const Slice& slice, void* out) const;

 private:
  struct Read {
    int rank = -1;
    std::string key;
    std::vector<char> bytes;
  };
  const std::string& state_text(const std::string& key) const;
  const Safetensors& open(int rank) const;
  /// All bytes of a piece. The last one read is kept: a flat shard is several boxes of one piece.
  const std::vector<char>& bytes_of(const PlacedPiece& piece, DType dtype) const;
  /// What a rank says of its pieces, in its own file.
  const Json& said_by(int rank) const;

  std::string folder_;
  CheckpointIndex index_;
  mutable std::map<int, std::unique_ptr<Safetensors>> files_;
  mutable std::map<int, Json> said_;
  mutable Read last_;
};

}  // namespace kuafu
