// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/base/trace.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// The events of a rank in its order, one JSON object a line, every name written out: docs/trace.md.
std::string trace_lines(const Trace& trace, int rank);

/// Writes a head of one line, with how many events there are of each rank, then the lines of all ranks,
/// through a temporary name. Throws ConfigError where the file cannot be written.
void write_trace(const Json& head, const std::vector<std::string>& lines_by_rank,
                 const std::string& file);

}  // namespace kuafu
