// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kuafu/meter/book.h"
#include "kuafu/model/key_value_cache.h"
#include "kuafu/states/tier_copies.h"

namespace kuafu {

/// Keys and values that are on the host between their uses:
///
///     attention at work                 0          1          2          0, of the next token
///     to the device, whole              1 comes    2 comes    0 comes    1 comes
///     to the host, the new rows alone   0 leave    1 leave    2 leave    0 leave
///     on the device at most: those at work, and those that come
///
/// What is on the device follows from the calls alone, not from how fast copies are. Used by the
/// rank's own thread.
class AwayCache final : public CacheHome {
 public:
  /// `host`: whose memory they have there; null: nobody's.
  AwayCache(TierCopies& copies, RankBook* host) : copies_(copies), host_(host) {}
  ~AwayCache() override;

  size_t add(const Tensors& kept) override;
  void bring(size_t number) override;
  void leave(size_t number, const Tensors& rows, const std::vector<int64_t>& positions) override;

 private:
  struct Away {
    Tensors here, home;  // keys, values; `here` has storage while they are there, or come
    std::vector<TierCopies::Moving> coming = {}, leaving = {};
    Tensors rows = {}, staged = {};  // the new ones, on the device and on the host, on their way
    std::vector<int64_t> positions = {};
    bool is_here = true;
  };
  Tensors on_host(const Tensors& like) const;
  std::vector<TierCopies::Moving> copy(device::Direction queue, const Tensors& to,
                                       const Tensors& from);
  void wait(std::vector<TierCopies::Moving>& moving);
  void come(Away& away);
  void settle();
  static void drop(Away& away);

  TierCopies& copies_;
  RankBook* const host_;
  std::vector<Away> all_;
  std::optional<size_t> left_;  // the last one that left: its copies may be under way
};

}  // namespace kuafu
