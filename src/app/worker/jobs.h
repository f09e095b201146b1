// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kuafu {

/// What a piece of work came to.
struct Answer {
  std::string words;
  bool is_lost = false;  ///< its process ended without an answer, and `words` say how
  double seconds = 0;
};

/// Numbered work, done by several processes forked for it.
struct Jobs {
  int64_t jobs = 1;   ///< processes at a time
  int64_t first = 0;  ///< number of the first piece
  /// Asked before a piece is begun: false ends the work once what is under way is done.
  std::function<bool(int64_t number)> is_wanted;
  /// Does a piece, in a forked process.
  std::function<std::string(int64_t number)> work;
  /// Takes what `work` returned, in this process, in the order of the numbers, whoever was first.
  std::function<void(int64_t number, const Answer& answer)> take;
};

/// Runs them. A process that dies costs its piece alone; all die with this one. Returns 0, or the
/// signal (SIGINT, SIGTERM, SIGHUP) that ended the work before its end: what was taken stays. Throws
/// Unwritten where `work` does: the disk is the same for all.
/// @pre the calling process has one thread.
[[nodiscard]] int run_jobs(const Jobs& jobs);

/// Says that such a signal ended `what`, and what to do; the exit code.
int tell_interrupted(int signal, const std::string& what);

}  // namespace kuafu
