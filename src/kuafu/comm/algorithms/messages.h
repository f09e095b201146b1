// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kuafu/comm/algorithms/program.h"

namespace kuafu::algorithms {

/// A program run over the messages of a communicator, on every transport: its ledger counts what
/// the algorithm sends, also where ranks have no wire. Transports themselves run theirs over a Wire
/// (execution.h), which costs less.
class Messages {
 public:
  struct Memory {
    Buffer out, in, scratch;  ///< scratch of at least program.scratch elements
  };
  /// Copies or adds, on the memory that the caller gave.
  using LocalWork = std::function<void(const Local&)>;

  /// Posts the first round. A round's send and receive go as one send_recv. Programs that overlap
  /// on one group have tags of their own.
  /// @pre group and memory outlive it; every member of the group runs its part.
  Messages(Communicator& group, Program program, const Memory& memory, int tag, LocalWork work);

  /// Waits for the messages of the round under way, does its local work and posts the next round;
  /// false once none is left.
  bool advance();

 private:
  bool is_done() const { return next_round_ > program_.rounds.size(); }
  void next_round();
  Buffer at(const BufferSlice& span) const;

  Communicator& group_;
  Program program_;
  Memory memory_;
  int tag_;
  LocalWork work_;
  size_t next_round_ = 0;
  std::vector<Work> under_way_;  // of the round before next_round_
};

/// LocalWork on any memory: at once on the host, in the order of the buffers' stream on a device;
/// does nothing on a simulated rank, which has none.
void work_locally(const Local& local, const Messages::Memory& memory, ReduceOp op);

}  // namespace kuafu::algorithms
