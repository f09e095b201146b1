// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/experiment/derived.h"
#include "kuafu/experiment/suite.h"

namespace kuafu {

/// Holds the names in columns, claims and figures against what the cases of a suite can have:
/// columns (those above, for a column), settings, plan keys and fields of a document. Throws
/// ConfigError with the line, the nearest name, and for a value that no case has the nearest one.
void check_derived(const Derived& derived, const std::vector<Case>& cases);

/// Of a metric, a column or a setting: "s", "B", "" where it has none.
std::string unit_of(const Derived& derived, const std::string& name);

}  // namespace kuafu
