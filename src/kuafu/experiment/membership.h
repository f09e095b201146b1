// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/experiment/suite.h"
#include "kuafu/record/run_log.h"

namespace kuafu {

/// The first line of a folder of this suite.
Json suite_header(const Suite& suite);

/// A folder's record as a suite sees it that has changed since.
struct Membership {
  RunRecord record;                ///< the suite's cases, and as `former` those that it has no more
  std::vector<std::string> notes;  ///< what changed
  bool is_changed = false;
};

/// Takes up the record of `folder` by a suite. Throws ConfigError, naming both hashes, where the
/// record is of a suite of another name, or holds results and none of this suite's cases.
Membership taken_up(const RunRecord& record, const Suite& suite, const std::string& folder);

}  // namespace kuafu
