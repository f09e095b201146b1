// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/experiment/suite.h"
#include "kuafu/record/run_log.h"

namespace kuafu {

/// What the report's script does not compute from a record: the order of the suite's cases, what its
/// references, columns, claims and figures are worth, and notes. They are the suite's where `is_asked` (its file
/// was given), else the record's own, else the suite's. Null where there is nothing. `folder` is for
/// messages.
Json report_facts(const RunRecord& record, const Suite* suite, bool is_asked,
                  const std::string& folder);

/// A file in memory that a program started from here inherits; its path.
std::string handed_on(const Json& facts);

}  // namespace kuafu
