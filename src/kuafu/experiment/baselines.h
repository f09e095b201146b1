// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/suite_text.h"

namespace kuafu {

/// One plan of a baseline: where work goes, whatever the work is.
struct BaselinePlan {
  std::string name;  ///< its file without ".toml"
  std::string path;
  Settings keys;  ///< of `parallel`, and perhaps train.micro_batch
};

/// A folder of plans that follow one system or paper.
struct Baseline {
  std::string name;
  std::vector<BaselinePlan> plans;  ///< by name
};

/// Names of the baselines in `folder`: its folders that hold plans.
std::vector<std::string> baseline_names(const std::string& folder);

/// Reads a baseline of `folder`. Throws ConfigError: no plan there, no TOML, an unknown key, or a
/// key of the work itself (model, batch, optimizer), which is the suite's to say.
Baseline load_baseline(const std::string& folder, const std::string& name);

/// "parallel.data" is short for "parallel.data.size": one spelling, so that keys meet.
std::string whole_key(const std::string& key);

/// Whether a key says where work goes, so that a comparison may set it.
bool is_placement_key(const std::string& key);

/// Comparison rows as points: for each `[[compare]]`, each of its plans and each point of the sweep
/// on two ranks and more, the same work on the same ranks under the keys of that plan. Points that
/// differ only in their own parallel keys share a row. `ranks[i]` are those of `points[i]`.
/// Throws ConfigError with the line of the suite: unknown baseline or plan (naming the nearest), a
/// key that is no placement, ranks that no point has.
std::vector<Point> comparison_points(const SuiteText& suite, const std::vector<Point>& points,
                                     const std::vector<int64_t>& ranks, const std::string& folder,
                                     const Overrides& overrides = {});

/// The suite's base plan without its parallel keys, every other key on its line.
std::string without_parallel(const std::string& base);

}  // namespace kuafu
