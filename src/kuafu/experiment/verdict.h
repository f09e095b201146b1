// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/record/json.h"

namespace kuafu {

/// What a document's certificate says: "equal", "different", "not_run"; empty where it has none.
std::string verdict_of(const Json& document);

/// The run ended well and its certificate refutes it: its numbers are of a wrong result.
bool is_different(const Json& document);

/// Why the certificate says what it says, where it says so: the reason it was not run for, or the
/// errors that are too large. Empty for `equal`.
std::string why_of_verdict(const Json& document);

}  // namespace kuafu
