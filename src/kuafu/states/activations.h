// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kuafu/meter/book.h"
#include "kuafu/states/tier_copies.h"

namespace kuafu {

/// Inputs of blocks that are on the host from their forward to their backward
/// (memory.activations = "host"): where all a block has is made again in backward, they are all that
/// stays of it.
///
///     forward   0         1          2            backward   2          1          0
///     leave               0 leaves   1 leaves     come       2, then 1  0 comes
///     on the device at most: the input of the block at work, and the one that leaves or comes
///
/// What is on the device follows from the calls alone, not from how fast copies are. Used by the
/// rank's own thread.
class AwayActivations {
 public:
  /// `host`: whose memory they have there; null: nobody's.
  AwayActivations(TierCopies& copies, RankBook* host) : copies_(copies), host_(host) {}

  /// Starts the way of these tensors to the host. Their storage is free from the next call on, until
  /// they come. @pre nobody reads or writes them before wait(); they are kept as these objects
  void leave(const Tensors& inputs);
  /// Starts their way back, where they are away.
  void come(const Tensors& inputs);
  /// Their elements are there.
  void wait(const Tensors& inputs);

  /// Bytes that went each way so far.
  int64_t bytes() const { return bytes_; }

 private:
  struct Away {
    Tensor here, home;
    TierCopies::Moving leaving = {}, coming = {};
    bool is_coming = false;
  };
  void settle();
  void start(Away& away);

  TierCopies& copies_;
  RankBook* const host_;
  std::map<const void*, Away> away_;  // by the object
  std::vector<const void*> leaving_;
  int64_t bytes_ = 0;
};

}  // namespace kuafu
