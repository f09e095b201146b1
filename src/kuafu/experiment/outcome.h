// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/experiment/child.h"
#include "kuafu/experiment/suite.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// What a worker's process left behind.
struct Remains {
  ChildResult result;
  std::string document_path;
  std::string error_path;
};

/// The case's document: the worker's own where it wrote a whole one that agrees with its exit
/// status, else one of status `failed` or `timeout` that says what happened, with the signal and
/// the last lines of standard error.
Json document_of(const Case& c, const Remains& remains);

/// Calls a line what the suite calls its case: an axis that has another value since is in every name.
void name_line(Json& line, const Case& c);

/// The line of run.jsonl for a case that ended so with this document.
Json case_line(const Case& c, const Json& document, const ChildResult& result);

}  // namespace kuafu
