// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/comm/ledger.h"

namespace kuafu {

/// Whose ledger a simulated run keeps. kThreads: the convention of cost_model.h, as thread ranks,
/// native MPI collectives and NCCL book. kMpi: the messages of the algorithms that MPI ranks run
/// over send and receive, as they count them on their wire.
enum class Transport : uint8_t { kThreads, kMpi };

struct SimulatedSplits;

/// All ranks of a world that has no data. Ranks run one at a time, each to its end, in any order,
/// and again; a collective returns at once. Books ledgers as the ranks of its transport do. What a
/// rank does goes to its thread's recorder (base/trace.h), where groups have their number here.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(int ranks, Transport transport = Transport::kThreads);
  ~SimulatedWorld();
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;

  int size() const;
  /// The world communicator of one rank.
  std::unique_ptr<Communicator> communicator(int rank);
  /// World ranks of every group met so far; group 0 is the world. Lists keep their address.
  const std::deque<std::vector<int>>& groups() const;

 private:
  std::unique_ptr<SimulatedSplits> splits_;
};

}  // namespace kuafu
