// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/base/config.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/suite.h"

namespace kuafu {

/// One key with the values it takes, and the line it stands on.
struct SweptKey {
  std::string key;
  std::vector<Json> values;
  int line = 0;
};

/// Settings under one name: a row of `[[strategy]]` or of any axis of that form.
struct Bundle {
  std::string name;
  std::vector<SweptKey> choices;
  int line = 0;
};

/// An axis of the sweep: the values of one key, or the rows of one array of tables.
struct SweepAxis {
  std::string name;             ///< "train.batch", "strategy"
  std::vector<Json> values;     ///< of a grid key
  std::vector<Bundle> bundles;  ///< of an array of tables; exactly one of the two is filled
  int line = 0;
};

/// A row of `[[compare]]`: a baseline beside the cases of the sweep.
struct ComparisonRow {
  std::string name;            ///< as its cases are called; empty = baseline and plan
  std::string baseline;        ///< a folder of baselines/
  std::string plan;            ///< one of its plans; empty = all
  std::vector<int64_t> ranks;  ///< only beside cases of so many ranks; empty = of two and more
  Settings set;                ///< keys over those of the plan
  int line = 0;
};

/// A suite as written, checked for its form only.
struct SuiteText {
  std::string origin, name, question;
  std::vector<std::string> plugins;  ///< shared objects
  std::vector<std::string> worlds = {worlds::kThreads};
  std::vector<int64_t> seeds;
  double timeout_s = 120;
  std::optional<double> budget_s;
  int64_t repeats = 1;
  bool is_certified = true;
  std::string base;                     ///< the plan as TOML, each key on its line of the suite
  std::vector<SweptKey> base_formulas;  ///< its keys whose values are computed for each case
  std::vector<SweepAxis> axes;          ///< in file order
  std::vector<Bundle> extra;            ///< `[[case]]`
  std::vector<Bundle> skips;            ///< `[[skip]]`
  std::vector<ComparisonRow> comparisons;
  std::vector<Reference> references;
  Derived derived;
};

/// What Derived::follows says of a suite: keys with one formula wherever they are set.
std::map<std::string, std::set<std::string>> following_keys(const SuiteText& suite);

/// Worlds that a case may run in.
const std::vector<std::string>& suite_worlds();

/// Reads the TOML of a suite. Throws ConfigError "origin:line: ...".
SuiteText read_suite_text(std::string_view toml, const std::string& origin);

/// A value as JSON, lists included; none for tables and times.
std::optional<Json> json_value(const ConfigValue& value);

/// The value of a dotted key; null where the table has none.
const ConfigValue* find_dotted(const ConfigValue& table, const std::string& key);

/// A single value as TOML writes it.
std::string toml_text(const Json& value);

}  // namespace kuafu
