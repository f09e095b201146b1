// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/comm/mpi_channel.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

class MpiGroup;

/// Something under way that the world moves on whenever a rank waits.
class MpiTask {
 public:
  virtual ~MpiTask() = default;
  /// Does what can be done without waiting; true once everything is done.
  virtual bool advance() = 0;
  /// "all_reduce(f32 x 8, sum), call 5 of group 'data'"
  virtual std::string describe() const = 0;
  /// The group the task belongs to; null for none.
  virtual MpiGroup* group() const = 0;
  bool is_done = false;
};

/// All communication of one MPI process: what is under way, and who waits for whom.
///
/// A wait in which nothing moves tells rank 0 what it waits for. When every rank waits so or has
/// returned, and that lasts, rank 0 ends the run with the table: a skipped call cannot hang, in
/// whatever groups the ranks then wait.
class MpiWorld {
 public:
  explicit MpiWorld(MpiCollectives collectives);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  MpiChannel& channel() { return *channel_; }
  MpiCollectives collectives() const { return collectives_; }
  const MpiNative& native() const { return native_; }
  algorithms::ScratchPool& pool() { return pool_; }

  /// Takes a task over and moves the earlier ones on.
  void start(const std::shared_ptr<MpiTask>& task);
  /// Returns once the task is done. Throws RankLost or CollectiveMismatch where it cannot be.
  void wait(MpiTask& task);
  /// Moves everything on once; true once the task is done. Throws CollectiveMismatch as wait does.
  bool test(MpiTask& task);
  /// Groups whose neighbours are still to be heard at the end.
  void watch(std::shared_ptr<MpiGroup> group) { groups_.push_back(std::move(group)); }
  /// The body returned: waits until all ranks have, still looking for calls that do not match.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : int32_t { kBusy, kWaiting, kReturned };
  /// What rank 0 knows of a rank; also the note that tells it: plain bytes.
  struct Status {
    State state = State::kBusy;
    int32_t rank = 0;
    std::array<char, 240> what{};
  };
  struct Patience {  // of one wait
    Clock::time_point start = Clock::now();
    int64_t num_turns = 0;
    int64_t num_through = -1;  // messages that were through at `start`
    bool is_told = false;
  };

  void advance();
  int64_t num_through() const;
  void look_after(Patience& patience, const MpiTask& task);
  void tell(State state, const std::string& what);
  void hear();
  void judge();
  std::string table() const;
  [[noreturn]] void grumble(const WrongLength& error, MpiTask& task);

  MpiCollectives collectives_;
  std::unique_ptr<MpiChannel> channel_;  // of all ranks; carries the notes of this class only
  MpiNative native_;
  algorithms::ScratchPool pool_;
  std::vector<std::shared_ptr<MpiTask>> tasks_;
  std::vector<std::shared_ptr<MpiGroup>> groups_;
  std::vector<Status> statuses_;   // rank 0: by rank
  Clock::time_point last_change_;  // rank 0: of any status
};

}  // namespace kuafu
