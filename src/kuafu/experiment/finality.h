// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/experiment/child.h"
#include "kuafu/experiment/suite.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// Statuses that a user may ask to run again: all but `ok`, and `different`, which is a certificate's.
std::vector<std::string> retried_statuses();

/// "failed,timeout" as a set. Throws ConfigError naming the nearest status for an unknown one.
std::set<std::string> parse_retry(std::string_view list);

/// Whether the machine, and not the plan, decided how a case ended, or its certificate: its process
/// was killed from outside, interrupted or could not start, or the system refused it memory. Over the
/// plan's own budget is the plan's doing.
bool is_of_machine(const Case& c, const Json& document, const ChildResult& result);

/// Whether a worker could not write its document: a full disk.
bool is_unwritten(const ChildResult& result);
/// The same of a line of the record.
bool is_unwritten(const Json& line);

/// Why a case that has this line runs again; empty where the line is final. What ended by the
/// machine's doing does, what failed or ran out of time under another time-out does, what has
/// one of the `retried` statuses, and a certificate that the time-out cut short under a longer one or
/// where `timeout` is retried.
std::string why_again(const Case& c, const Json& line, const std::set<std::string>& retried);

}  // namespace kuafu
