// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kuafu/experiment/suite.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"

// What a TOML file says, read from the parser's own tables and without any code of the readers: the
// key table, ConfigValue and the expansion of suites are what is held to it.
namespace kuafu::fuzz {

/// The document, tables in the order written; dates and times are null. Throws Finding where it is
/// no TOML.
Json toml_json(const std::string& bytes);

/// Leaves of a table by dotted key.
using Leaves = std::vector<std::pair<std::string, Json>>;
Leaves leaves_of(const Json& table, const std::string& prefix = {});

/// The key itself, or of a short one, "parallel.data", what it stands for: "parallel.data.size".
std::string whole_key(const std::string& key);

/// Sets the member that a dotted key names. Throws Finding where there is no such key, or where it
/// does not take the value.
void put(Plan& plan, const std::string& key, const Json& value);

/// The defaults with every key of the document set; one that is set twice is a Finding.
Plan walked_plan(const Json& document);
Plan walked_plan(const Leaves& leaves);

/// The first line in which two plans differ, as both have it; empty where they are equal.
std::string difference(const Plan& got, const Plan& want);

/// A case as a suite asks for it, before its plan is made.
struct Point {
  std::string name;
  Settings settings, given;
};

/// The points of the sweep in their order, the last axis fastest, without the skipped ones; then
/// every [[case]].
std::vector<Point> points_of(const Json& suite);

/// A setting by its whole key, else by its last word; null where there is none.
const Json* find(const Settings& settings, const std::string& key);

/// Throws Finding where a suite is not what the bytes say: head, cases (name, settings, plan, ranks,
/// world, certificate, time), references, columns, claims and figures, by an expansion of the sweep of
/// its own. What formulas of the base give is taken as the cases have it; where one stands in the
/// sweep cases are not looked at.
void check_suite(const Suite& suite, const std::string& bytes);

}  // namespace kuafu::fuzz
