// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/base/dtype.h"
#include "kuafu/mesh/layout.h"
#include "kuafu/plan/plan.h"

namespace kuafu::hf {

/// Families of Hugging Face's `transformers` whose weights are read and written.
enum class Family : uint8_t { kGpt2, kOpt, kLlama, kBert, kVit };

/// Columns of a tensor of theirs, from `first` on.
struct TheirColumns {
  std::string name;
  int64_t first = 0;
  bool operator==(const TheirColumns&) const = default;
};

/// A tensor of ours made of parts of theirs, and the other way round.
///
///     ours   | q0 | k0 | v0 | q1 | k1 | v1 |      places: blocks of each part in turn
///     q      | q0 | q1 |                          lines: the other dim
///
/// Elements are only moved. Of P parts and blocks of b, place c of ours is place (c / (b P)) b + c % b of
/// part (c / b) % P. A vector is one line.
struct Mapped {
  std::string name;                 ///< ours
  Shape shape;                      ///< ours
  std::vector<TheirColumns> parts;  ///< theirs, of one shape each
  int64_t block = 1;
  bool along_rows = false;     ///< places are our rows; else columns
  bool is_transposed = false;  ///< theirs lie place by place, line in line: (out, in) of a linear
  Shape theirs = {};           ///< of each tensor of theirs, as its file has it

  int64_t places() const;  ///< of ours
  int64_t lines() const;
  bool rows_are_places() const;  ///< of a tensor of theirs in memory; else its rows are lines
  int64_t their_rows() const;
};

/// All tensors of a model and where they come from, in order of our names.
std::vector<Mapped> mapping(Family family, const ModelPlan& model);

/// Names of theirs that are there beside the parameters, and say nothing: buffers, and a tied head.
bool is_passed_over(Family family, const ModelPlan& model, const std::string& theirs);

/// Some rows of a tensor of theirs, one after the other.
struct TheirRows {
  const char* data = nullptr;
  int64_t first = 0, count = 0;
};

/// Moves the elements of part `part` of a tensor, `bytes` each, that lie in these rows of theirs and
/// in a box of ours, to memory that holds the box.
void gather(const Mapped& tensor, size_t part, int64_t bytes, const TheirRows& theirs,
            const Slice& box, char* ours);
/// The way back, of whole tensors.
void scatter(const Mapped& tensor, size_t part, int64_t bytes, const char* ours, char* theirs);

}  // namespace kuafu::hf
