// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/experiment/claims.h"
#include "kuafu/experiment/suite.h"

namespace kuafu {

/// Table of cases before they run: name, world, ranks, certificate, time-out, id.
std::string plan_table(const std::vector<Case>& cases);

/// Table of finished cases: status, ranks, tokens/s, step time with its interval, peak memory, bytes
/// sent, loss first and last, certificate; then over how many rounds times are, which were taken
/// under foreign load, the reasons of cases and rounds that are not `ok`, and of certificates that are
/// not `equal`. `more`: the suite's own columns, at the end.
std::string result_table(const std::vector<Json>& lines, const std::vector<ColumnCells>& more = {});

/// "30 equal, 1 different, 3 not run": what the certificates of the cases that ended well say. A
/// case without one counts as not run.
std::string verdict_counts(const std::vector<Json>& lines);

/// "34 ok, 1 refused, 1 out_of_memory"
std::string status_counts(const std::vector<Json>& lines);

/// A sentence for each plug-in of which the cases of a record ran with several builds: claims, columns and
/// figures compare them as if it were one.
std::vector<std::string> notes_of_builds(const RunRecord& record);

}  // namespace kuafu
