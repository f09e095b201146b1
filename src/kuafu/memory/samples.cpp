// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/samples.h"

#include <algorithm>

namespace kuafu::memory {
namespace {

/// Bytes of a chunk where all have the same.
constexpr int64_t kEqual = 12;

void use_at_random(UseTrace& trace, const SampleShape& shape, Dice& dice) {
  const int64_t often = dice.from_to(10, 40);  // of a hundred moments
  const int64_t written = shape.are_clean ? 0 : dice.from_to(0, 70);
  for (Moment& moment : trace.moments) {
    for (int64_t c = 0; c < trace.num_chunks(); ++c) {
      if (!dice.happens(often)) continue;
      Access access = Access::kRead;
      if (dice.happens(written)) access = dice.happens(25) ? Access::kOverwrite : Access::kUpdate;
      moment.uses.push_back({c, access});
    }
  }
}

/// A step of training: chunk i belongs to the i-th of so many layers, round and round; those of the
/// first round are parameters, of the second gradients, then slots.
void use_as_training(UseTrace& trace, Dice& dice) {
  const int64_t chunks = trace.num_chunks(), moments = trace.num_moments();
  const int64_t layers = std::min(dice.from_to(1, chunks), moments / 2);
  const auto add = [&](int64_t t, int64_t c, Access access) {
    std::vector<ChunkUse>& uses = trace.moments[static_cast<size_t>(t)].uses;
    if (use_of(trace.moments[static_cast<size_t>(t)], c) == nullptr) uses.push_back({c, access});
  };
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t layer = c % layers, round = c / layers, backward = 2 * layers - 1 - layer;
    const int64_t update = std::min(moments - 1, 2 * layers + layer);
    if (round == 0) add(layer, c, Access::kRead);
    if (round == 0) add(backward, c, Access::kRead);
    if (round == 1) add(backward, c, Access::kOverwrite);
    add(update, c, round == 1 ? Access::kRead : Access::kUpdate);
  }
}

}  // namespace

Sample sample(uint64_t seed, uint64_t index, const SampleShape& shape) {
  Dice dice(seed, index);
  Sample out;
  const int64_t chunks = dice.from_to(shape.least_chunks, shape.most_chunks);
  const int64_t moments = dice.from_to(shape.least_moments, shape.most_moments);
  const bool are_equal = shape.are_equal || dice.happens(25);
  for (int64_t c = 0; c < chunks; ++c) {
    out.trace.chunks.push_back({are_equal ? kEqual : dice.from_to(1, 2 * kEqual), "",
                                dice.happens(80) ? Tier::kHost : Tier::kDisk});
  }
  out.trace.moments.resize(static_cast<size_t>(moments));
  if (!shape.are_clean && dice.happens(40) && moments >= 2) {
    use_as_training(out.trace, dice);
  } else {
    use_at_random(out.trace, shape, dice);
  }
  const bool is_heap = dice.happens(50);
  const int64_t most = dice.from_to(0, 3 * chunks), unit = shape.are_equal ? kEqual : kEqual / 3;
  int64_t least = 0, full = 0;
  for (int64_t t = 0; t < moments; ++t) {
    Moment& moment = out.trace.moments[static_cast<size_t>(t)];
    const int64_t height =
        is_heap ? most * std::min(t, moments - 1 - t) * 2 / moments : dice.from_to(0, most);
    moment.in_use = unit * (height / 3);
    moment.seconds = static_cast<double>(dice.from_to(0, 8)) / 4;
    least = std::max(least, moment.in_use + used_bytes(out.trace, t));
    full = std::max(full, moment.in_use);
  }
  for (const Chunk& chunk : out.trace.chunks) full += chunk.bytes;
  // From what just fits to nearly what holds all, the scarce ones more often.
  const int64_t more = dice.from_to(0, dice.from_to(0, std::max<int64_t>(0, full - least - 1)));
  out.budget = least + (shape.are_equal ? more / kEqual * kEqual : more);
  return out;
}

SampleShape shape_of(uint64_t index) {
  if (index % 10 == 9) return {9, 20, 8, 30};
  if (index % 50 == 8) return {7, 8, 2, 10};
  if (index % 10 == 8) return {6, 6, 2, 10};
  if (index % 10 == 7) return {2, 6, 2, 12, true, true};
  return {2, 5, 2, 12};
}

Sample sample_at_home(uint64_t seed, uint64_t index) {
  Sample s = sample(seed, index, shape_of(index));
  Dice dice(seed + 1000, index);
  for (Moment& moment : s.trace.moments) {
    for (int64_t c = 0; c < s.trace.num_chunks(); ++c) {
      if (dice.happens(15) && use_of(moment, c) == nullptr) {
        moment.uses.push_back({c, Access::kAtHome});
      }
    }
  }
  return s;
}

}  // namespace kuafu::memory
