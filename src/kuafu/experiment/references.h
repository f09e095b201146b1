// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/experiment/suite.h"
#include "kuafu/record/run_log.h"

namespace kuafu {

/// One reference of a suite, held against the record.
struct ReferenceResult {
  std::string what;                 ///< "loss.last below loss.first"
  int64_t checked = 0;              ///< cases it is about that have finished
  std::vector<std::string> broken;  ///< one sentence a case
};

/// Checks every reference on the finished cases among `order`, the ids of the suite's cases. A metric
/// of `status` is about all cases, any other one about those of status `ok`.
std::vector<ReferenceResult> check_references(const std::vector<Reference>& references,
                                              const std::vector<std::string>& order,
                                              const RunRecord& record);

/// Fills in which cases the reference is about, where it names some: by settings, plan keys, name and
/// case_id, which are known before a case runs. Throws ConfigError, naming the line in `origin`, the nearest
/// and what is allowed, where no case has a key, its value, or all of them: nothing would be held to it.
void find_cases(Reference& reference, const std::vector<Case>& cases, const std::string& origin);

/// What the results say about the references, for the console.
std::string reference_text(const std::vector<ReferenceResult>& results);

/// The ids of a suite's cases, in its order.
std::vector<std::string> order_of(const Suite& suite);

/// Puts order and references of the suite into the first line of a record; whether that changed it.
bool renew_references(Json& header, const Suite& suite);

/// Whether a record knows the order and the references of its suite: older ones do not.
bool has_references(const Json& header);

/// As renew_references() wrote them. Throws ConfigError where a field is absent or of another type;
/// `origin` is for the message.
/// @pre has_references(header)
std::vector<std::string> order_in(const Json& header);
std::vector<Reference> references_in(const Json& header, const std::string& origin);

}  // namespace kuafu
