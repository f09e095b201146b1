// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/base/trace.h"

namespace kuafu {

/// The trace of one rank from its lines (trace_lines()): the same events, tables in another order.
/// `source` is what messages call them. Throws ConfigError "FILE:17: "bytes": ..." that names line
/// and field of what is no event, and of a rank other than `rank`. `first_line` counts from 1.
Trace read_trace_lines(std::string_view lines, int rank, const std::string& source,
                       int64_t first_line = 1);

/// The traces of all ranks in a file of write_trace(). Throws ConfigError with line and field.
std::vector<Trace> read_trace(const std::string& file);

}  // namespace kuafu
