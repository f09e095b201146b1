// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kuafu {

/// Numbered work, done by several processes forked for it.
struct Jobs {
  int64_t jobs = 1;   ///< processes at a time
  int64_t first = 0;  ///< number of the first piece
  /// Asked before a piece is begun: false ends the work once what is under way is done.
  std::function<bool(int64_t number)> is_wanted;
  /// Does a piece, in a forked process.
  std::function<std::string(int64_t number)> work;
  /// Takes what `work` returned, in this process, in the order of the numbers, whoever was first.
  /// `is_lost`: the process ended without an answer, and `answer` says how.
  std::function<void(int64_t number, const std::string& answer, bool is_lost)> take;
};

/// Runs them. A process that dies costs its piece alone; all die with this one.
/// @pre the calling process has one thread.
void run_jobs(const Jobs& jobs);

}  // namespace kuafu
