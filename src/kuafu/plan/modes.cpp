// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/plan/plan.h"

namespace kuafu {
namespace {

/// The side q of a grid of `ranks` ranks, rounded down.
int64_t side_of(int64_t ranks) {
  auto q = static_cast<int64_t>(std::sqrt(static_cast<double>(ranks)));
  while (q * q > ranks) --q;
  while ((q + 1) * (q + 1) <= ranks) ++q;
  return q;
}

bool is_square(int64_t ranks) { return ranks > 0 && side_of(ranks) * side_of(ranks) == ranks; }

/// Squares around `ranks`, times `depth`: "4 or 9".
std::string nearest_grids(int64_t size, int64_t depth) {
  const int64_t q = std::max<int64_t>(1, side_of(std::max<int64_t>(1, size / depth)));
  const int64_t below = q * q * depth, above = (q + 1) * (q + 1) * depth;
  return below >= size ? text(below) : text(below, " or ", above);
}

/// The depths that do arrange `size`, at most two, nearest first: "1 or 4".
std::string nearest_depths(int64_t size, int64_t depth) {
  std::vector<int64_t> legal;
  for (int64_t q = 1; q * q <= size; ++q) {
    if (size % (q * q) == 0) legal.push_back(size / (q * q));
  }
  std::stable_sort(legal.begin(), legal.end(), [depth](int64_t a, int64_t b) {
    return std::llabs(a - depth) < std::llabs(b - depth);
  });
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min<size_t>(2, legal.size()); ++i) words.push_back(text(legal[i]));
  return join_or(words);
}

void refuse_depth(std::string_view mode, int64_t depth) {
  if (depth == 1) return;
  throw Refused(text("mode ", in_quotes(mode), " has depth 1, given depth = ", depth,
                     "; nearest: depth = 1, or mode = \"2.5d\" with this depth"));
}

// The axes of modes, by the name of the mode.

std::vector<Axis> no_axes(std::string_view mode, int64_t size, int64_t depth) {
  refuse_depth(mode, depth);
  if (size != 1) {
    throw Refused(text("mode \"none\" keeps every layer whole on one rank, given size = ", size,
                       "; nearest: size = 1, or mode = \"1d\" with this size"));
  }
  return {};
}

std::vector<Axis> line_axes(std::string_view mode, int64_t size, int64_t depth) {
  refuse_depth(mode, depth);
  return {{"tensor", size}};
}

std::vector<Axis> grid_axes(std::string_view mode, int64_t size, int64_t depth) {
  KUAFU_REQUIRE(size > 0 && depth > 0, "mode ", in_quotes(mode),
                " needs a positive size and depth, ", "given size = ", size, ", depth = ", depth);
  if (size % depth != 0 || !is_square(size / depth)) {
    const bool is_flat = mode == tensor_modes::k2d;
    throw Refused(text("mode ", in_quotes(mode), " arranges ",
                       is_flat ? "q x q ranks" : "q x q x depth ranks", ", given size = ", size,
                       is_flat ? "" : text(" with depth = ", depth),
                       "; nearest: size = ", nearest_grids(size, depth),
                       is_flat ? "" : text(", or depth = ", nearest_depths(size, depth))));
  }
  const int64_t side = side_of(size / depth);
  return {{"dep", depth}, {"row", side}, {"col", side}};
}

std::vector<Axis> square_axes(std::string_view mode, int64_t size, int64_t depth) {
  refuse_depth(mode, depth);
  return grid_axes(mode, size, depth);
}

std::vector<Axis> cube_axes(std::string_view mode, int64_t size, int64_t depth) {
  refuse_depth(mode, depth);
  KUAFU_REQUIRE(size > 0, "mode \"3d\" needs a positive size, given size = ", size);
  int64_t q = 1;
  while ((q + 1) * (q + 1) <= size / (q + 1)) ++q;
  if (q * q * q != size) {
    throw Refused(text("mode \"3d\" arranges q x q x q ranks, given size = ", size,
                       "; nearest: size = ", q * q * q, " or ",
                       plan::saturating_product({q + 1, q + 1, q + 1})));
  }
  return {{"x", q}, {"y", q}, {"z", q}};
}

}  // namespace

TensorModes builtin_tensor_modes() {
  TensorModes modes;
  const auto add = [&modes](const char* name, auto axes, const char* summary) {
    modes[name] = {name, summary,
                   [=](int64_t size, int64_t depth) { return axes(name, size, depth); }};
  };
#define KUAFU_TENSOR_MODE(constant, name, axes, scheme, summary) \
  add(tensor_modes::constant, axes, summary);
#include "kuafu/plan/tensor_modes.def"
  return modes;
}

const std::vector<SequenceMode>& builtin_sequence_modes() {
  static const std::vector<SequenceMode> modes = {
      {sequence_modes::kNone, "every sequence whole on one rank"},
      {sequence_modes::kRing, "keys and values travel around a ring (online softmax)"},
      {sequence_modes::kRingZigzag,
       "ring with early and late tokens paired: a causal mask loads ranks alike"},
      {sequence_modes::kUlysses, "heads instead of tokens during attention, by all-to-all"},
      {sequence_modes::kAllGather, "all keys and values on every rank: the simple reference"}};
  return modes;
}

std::vector<std::string> builtin_sequence_names() {
  std::vector<std::string> names;
  for (const SequenceMode& mode : builtin_sequence_modes()) names.push_back(mode.name);
  return names;
}

}  // namespace kuafu
