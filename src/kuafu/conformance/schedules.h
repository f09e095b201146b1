// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

namespace kuafu::conformance {

/// Everything about one pipeline schedule on the given rank counts: for every number of micro-batches
/// from 1 to 4 a rank, 65 and 130 of them, and every number of chunks up to 3 that it takes, the timetable is complete and
/// runs without a deadlock, also with its messages, and keeps no more than it declares; and trainings
/// on it are certified, in the type f64. Up to the first rank count that fails.
std::vector<Finding> check_schedule(const Registries& registries, const std::string& name,
                                    const std::vector<int64_t>& sizes, const Tell& tell = {});

}  // namespace kuafu::conformance
