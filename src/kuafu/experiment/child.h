// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kuafu {

/// A program to run apart from this one.
struct ChildCommand {
  std::vector<std::string> words;  ///< program and arguments; the program is a path or on PATH
  std::string output_path;         ///< its standard output
  std::string error_path;          ///< its standard error
  double timeout_s = 0;
};

struct ChildResult {
  enum class End : uint8_t {
    kExited,     ///< `code` is its exit status
    kSignalled,  ///< `code` is the signal
    kTimedOut,
    kCancelled,
    kNotStarted,  ///< `code` is the errno of starting it
    kLost,        ///< its guard was killed by somebody else
  };
  End end = End::kLost;
  int code = 0;
  double wall_s = 0;
};

/// Runs a program and waits for it, under a guard: a small process that adopts all its
/// descendants and kills every one of them when the program ends, when its time is up, when `tick`
/// returns false, and when the calling process dies, by whatever signal. So nothing it starts can
/// outlive the case, process groups and daemons of its own included.
/// `tick` is called about ten times a second; false cancels.
/// @pre the calling process has one thread.
ChildResult run_child(const ChildCommand& command, const std::function<bool()>& tick);

}  // namespace kuafu
