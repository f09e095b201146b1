// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kuafu/experiment/derived.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// Part of every case's identity: raise it when the same plan would record something else.
inline constexpr int64_t kExperimentVersion = 1;

/// Dotted key and single value, in the order in which they name a case.
using Settings = std::vector<std::pair<std::string, Json>>;

/// One run of one plan.
struct Case {
  std::string id;         ///< 16 hex digits of plan, data, ranks, world, certificate and version
  std::string name;       ///< "1D tensor, 2 ranks, batch 8, sequence 32, plain"
  Settings settings;      ///< what distinguishes it inside the suite
  std::string plan_toml;  ///< the plan as the worker reads it
  int64_t ranks = 1;
  std::string world;
  bool is_certified = true;
  double timeout_s = 0;
  std::string missing_data;  ///< the sentence to say where its corpus is not there; else empty
  std::string plan_values;   ///< the plan to look values up, every key
};

/// What cases must show, checked when the sweep is complete.
struct Reference {
  std::string metric;  ///< path into the document, as value_at() reads it
  enum class Relation : uint8_t { kEquals, kBelow } relation = Relation::kEquals;
  std::string other;  ///< path of the metric to compare with; empty = `value`
  Json value;
  double tolerance = 0;            ///< relative
  Settings where;                  ///< the cases it is about; empty = all
  std::vector<std::string> cases;  ///< ids of those, where `where` is not empty
  std::string source;
  int line = 0, where_line = 0;
};

/// A sweep: cases and what they should show.
struct Suite {
  std::string name;
  std::string question;
  std::string hash;                ///< of all case ids: the identity of a results folder
  std::optional<double> budget_s;  ///< begin no case after this many seconds
  int64_t repeats = 1;             ///< rounds over the timed cases; no part of any id
  std::vector<Case> cases;
  std::vector<Reference> references;
  Derived derived;                         ///< columns, claims and figures
  std::vector<std::string> plugins;        ///< shared objects that its cases load
  std::map<std::string, int64_t> corpora;  ///< what its cases read: bytes, by hash
  std::vector<std::string> notes;          ///< duplicates merged
};

/// What plug-ins add, by name.
struct PluginNames {
  std::vector<std::string> models, tensor, sequence, schedules, optimizers, policies;
};

struct SuiteOptions {
  Overrides overrides;                  ///< `--set` of plan keys, for every case
  std::optional<double> timeout_s;      ///< over the suite's, for every case
  std::optional<int64_t> budget;        ///< of memory in bytes, over the suite's, for every case
  std::optional<int64_t> repeats;       ///< over the suite's
  std::vector<std::string> plugins;     ///< shared objects, besides those of the suite
  std::string baselines = "baselines";  ///< folder of what `[[compare]]` names
  std::string default_corpus;           ///< where data.path is empty; empty = there is none
  /// Asks the program that can load plug-ins; called where there are any.
  std::function<PluginNames(const std::vector<std::string>& plugins)> names_of_plugins;
};

/// Reads a suite (suites/README.md has the grammar) and expands it. Every plan is parsed here, so
/// that a misspelt key costs nothing; plans that cannot be placed stay, for the worker to refuse.
/// The corpus of every case that reads one is hashed here: the bytes are part of the case's id and of
/// its plan, so that a worker that finds others refuses to run. One that cannot be read is known by
/// its path, and the worker says why. A relative data.path of the suite begins at the suite's file,
/// one of `overrides` at the working folder.
/// Throws ConfigError with file and line.
Suite parse_suite(std::string_view toml, const std::string& origin,
                  const SuiteOptions& options = {});
Suite load_suite(const std::string& path, const SuiteOptions& options = {});

/// The value of a case's setting or plan key, texts without quotes; none where it has no such key.
/// A key is a setting's name, its last word, a dotted plan key, `name` or `case_id`.
std::optional<std::string> case_value(const Case& c, const std::string& key);

}  // namespace kuafu
