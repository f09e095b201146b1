// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kuafu {

/// Exit codes of the worker and of `kuafu run`, by status. A run that ended well and whose
/// certificate says `different` has kFailed too.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kRefused = 3,
  kOutOfMemory = 4,
  kTimeout = 5,
  kDiverged = 6,
  kUnwritten = 7,  ///< it ended otherwise well, and a file that it was to write is not whole
  kInterrupted = 130
};

}  // namespace kuafu
