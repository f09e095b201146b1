// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// Which cases a claim or a figure is about: each key has one of its values, and the formula holds.
struct Picked {
  std::vector<std::pair<std::string, std::vector<Json>>> values;
  std::string formula;  ///< empty = none
};

/// A row of `[[column]]`: a number, text or truth of each case, computed when the record is read.
struct Column {
  std::string name, formula, unit;
  int line = 0;
};

/// A row of `[[claim]]`: what a source says about such cases.
struct Claim {
  std::string name, formula, source;
  Picked where;
  double tolerance = 0;  ///< share of the right side, in favour of every comparison
  int line = 0;
};

/// A row of `[[figure]]`.
struct FigureSpec {
  std::string kind;  ///< "line", "bar", "scatter", "heatmap"; empty: `script` draws
  std::string title, x, y, z, by, log;
  Picked where;
  std::string script;  ///< as the suite names it: beside its file
  int line = 0;
};

/// What a suite has computed from its finished cases. No part of a case's id nor of the suite's
/// hash: it may change between two readings of the same results.
struct Derived {
  std::string origin;  ///< the suite's file, for messages
  std::string folder;  ///< where its scripts are; empty: not known, as in a record
  std::vector<Column> columns;
  std::vector<Claim> claims;
  std::vector<FigureSpec> figures;
  /// The keys that rows of `[[strategy]]`, ... set: they may change with the row.
  std::map<std::string, std::set<std::string>> row_keys;
  /// Keys that one formula sets, with the names it reads, and what these follow from in turn.
  std::map<std::string, std::set<std::string>> follows;

  bool is_empty() const { return columns.empty() && claims.empty() && figures.empty(); }
};

/// As the first line of run.jsonl carries it, and back. Throws ConfigError where a field is absent
/// or of another type.
Json to_json(const Derived& derived);
Derived derived_of(const Json& json, const std::string& origin);

/// Puts them into the first line of a record, or takes them out; whether that changed what is computed: other
/// lines of the suite, or another name of its file, do not.
bool renew_derived(Json& header, const Derived& derived);

}  // namespace kuafu
