// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kuafu {

/// While it stands, a rank that ends this process with exit() or _exit() is told of: `report` gets
/// "rank 1 called exit(3) in the middle of the run" on the rank's own thread, and the process ends
/// with the ExitCode that it gives, whatever code was asked for. One at a time.
class ExitWatch {
 public:
  explicit ExitWatch(std::function<int(const std::string& what)> report);
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

 private:
  std::function<int(const std::string& what)> report_;
};

/// While it stands, exit(), _exit() or quick_exit() of its own thread, or of any, ends the process
/// with ExitCode kFailed and says on standard error that the work was not done, and which plug-ins
/// were given: one may end the process while it is loaded, with any code. An ExitWatch that stands
/// too knows better.
class UnfinishedWork {
 public:
  enum class Threads { kOwn, kAll };
  UnfinishedWork(const std::vector<std::string>& plugins, Threads threads);
  ~UnfinishedWork();
  UnfinishedWork(const UnfinishedWork&) = delete;
  UnfinishedWork& operator=(const UnfinishedWork&) = delete;
};

/// Ends the process with this code and no destructor of it or of a plug-in, which might end it with
/// another.
[[noreturn]] void end_process(int code);

/// The calling thread works as this rank of the world.
class WatchedRank {
 public:
  explicit WatchedRank(int rank);
  ~WatchedRank();
  WatchedRank(const WatchedRank&) = delete;
  WatchedRank& operator=(const WatchedRank&) = delete;
};

/// The calling thread works for rank 0 to its end: it checks what that made.
void work_for_rank_0();

}  // namespace kuafu
