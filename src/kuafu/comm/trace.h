// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/comm/ledger.h"

namespace kuafu {

/// One step of a rank program as the simulated world saw it.
struct TraceEvent {
  enum class Kind : uint8_t {
    kCompute,  ///< local work since the previous event
    kIssue,    ///< a communication call was made
    kWait,     ///< the program waited for the call with number `sequence`
    kMark,     ///< all since the mark before was `marks()[sequence]`
  };
  Kind kind = Kind::kCompute;
  Verb verb = Verb::kBarrier;
  int32_t group = -1;       ///< index into SimulatedWorld::groups()
  int32_t peer = -1;        ///< group index: root, receiver of send and send_recv, sender of recv
  int32_t from = -1;        ///< group index: sender of send_recv
  int32_t tag = 0;          ///< of send, recv and send_recv
  int64_t sequence = 0;     ///< kIssue, kWait: number of the call on this rank
  int64_t bytes = 0;        ///< size of the verb's argument (the whole for gathers and scatters)
  int64_t flops = 0;        ///< kCompute
  int64_t bytes_moved = 0;  ///< kCompute: memory traffic of the ops by their formulas

  bool operator==(const TraceEvent&) const = default;
};

/// Whose ledger a simulated run keeps. kThreads: the convention of cost_model.h, as thread ranks,
/// native MPI collectives and NCCL book. kMpi: the messages of the algorithms that MPI ranks run
/// over send and receive, as they count them on their wire.
enum class Transport : uint8_t { kThreads, kMpi };

/// All ranks of a world that has no data. Ranks are recorded one at a time, each to its end; a
/// collective returns at once. Books ledgers as the ranks of its transport do.
/// Ranks may be recorded in any order, and again: a rank's trace grows with every use.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(int ranks, Transport transport = Transport::kThreads);
  ~SimulatedWorld();
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;

  int size() const;
  /// The world communicator of one rank; its calls append to trace(rank).
  std::unique_ptr<Communicator> communicator(int rank);
  /// Adds local work to a rank's trace (merged with an open kCompute event).
  void compute(int rank, int64_t flops, int64_t bytes_moved);
  const std::vector<TraceEvent>& trace(int rank) const;
  /// Says what a rank did since the mark before, for whoever draws the trace.
  void mark(int rank, const std::string& what);
  const std::deque<std::string>& marks() const;
  /// World ranks of every group met so far; group 0 is the world. Lists keep their address.
  const std::deque<std::vector<int>>& groups() const;
  /// What a group's calls are booked under: the axis. Empty where nothing books them.
  const std::string& label(int group) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kuafu
