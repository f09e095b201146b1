// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/writers.h"

#include <algorithm>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

struct Holder {
  size_t rank, claim;
};

struct Wanted {
  std::string key;
  int64_t bytes = 0;
  std::vector<Holder> holders;
};

}  // namespace

std::string to_text(const std::vector<HeldPiece>& pieces) {
  Json list = Json::array();
  for (const HeldPiece& c : pieces) list.push_back({c.key, c.bytes});
  return list.dump();
}

std::vector<HeldPiece> held_pieces_from(const std::string& words) {
  std::vector<HeldPiece> pieces;
  for (const Json& c : Json::parse(words)) {
    pieces.push_back({c.at(0).get<std::string>(), c.at(1).get<int64_t>()});
  }
  return pieces;
}

std::vector<std::vector<bool>> assign_writers(const std::vector<std::vector<HeldPiece>>& by_rank) {
  std::map<std::string, Wanted> pieces;
  std::vector<std::vector<bool>> writes;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    writes.emplace_back(by_rank[rank].size(), false);
    for (size_t i = 0; i < by_rank[rank].size(); ++i) {
      const HeldPiece& held = by_rank[rank][i];
      Wanted& piece = pieces[held.key];
      KUAFU_CHECK(piece.holders.empty() || piece.bytes == held.bytes, "rank ", rank, " holds ",
                  held.bytes, " bytes of ", held.key, ", rank ", piece.holders[0].rank, " ",
                  piece.bytes);
      piece.key = held.key;
      piece.bytes = held.bytes;
      piece.holders.push_back({rank, i});
    }
  }
  std::vector<const Wanted*> order;
  for (const auto& [key, piece] : pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(),
                   [](const Wanted* a, const Wanted* b) { return a->bytes > b->bytes; });
  std::vector<int64_t> load(by_rank.size());
  for (const Wanted* piece : order) {
    const auto writer =
        std::min_element(piece->holders.begin(), piece->holders.end(),
                         [&](Holder a, Holder b) { return load[a.rank] < load[b.rank]; });
    load[writer->rank] += piece->bytes;
    writes[writer->rank][writer->claim] = true;
  }
  return writes;
}

}  // namespace kuafu
