// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kuafu {

/// Something a rank could save: a piece of a tensor, by a key that replicas share.
struct HeldPiece {
  std::string key;
  int64_t bytes = 0;
};

/// Who of those that hold a piece writes it: each piece goes to one of its holders, the largest
/// first, always to the one with the fewest bytes so far. Returns for each rank which of its pieces
/// it writes. The same answer on every rank.
///
///   rank 0 holds a:6 b:3, rank 1 a:6 b:3 c:2        rank 0 writes a, rank 1 b and c
std::vector<std::vector<bool>> assign_writers(const std::vector<std::vector<HeldPiece>>& by_rank);

/// Pieces of a rank as text and back: what travels between ranks.
std::string to_text(const std::vector<HeldPiece>& pieces);
std::vector<HeldPiece> held_pieces_from(const std::string& words);

}  // namespace kuafu
