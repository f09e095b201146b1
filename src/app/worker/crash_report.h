// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kuafu {

/// While it stands, a crash of this process (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) is told in one
/// line on standard error before the process dies of the same signal: the signal, what was under way
/// and the plug-ins that were given, if any. A forked child dies in silence: who started it sees how.
/// One at a time. A stack that overflows is told of on this thread alone.
class CrashReport {
 public:
  explicit CrashReport(const std::vector<std::string>& plugins);
  ~CrashReport();
  CrashReport(const CrashReport&) = delete;
  CrashReport& operator=(const CrashReport&) = delete;

 private:
  std::string plugins_;
  std::vector<char> stack_;  ///< of the handler
};

/// What a crash is told to have been in the middle of, from now on: "check products of scheme x".
/// One thread calls it.
void note_under_way(const std::string& what);

}  // namespace kuafu
