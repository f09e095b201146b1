// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/baselines.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/point_formulas.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMicroBatch = "train.micro_batch";
constexpr const char* kAllowed = "parallel.* and train.micro_batch";

bool is_parallel(const std::string& key) {
  return key == "parallel" || key.rfind("parallel.", 0) == 0;
}

void put(Settings& settings, const std::string& key, const Json& value) {
  const auto at = std::find_if(settings.begin(), settings.end(),
                               [&](const auto& setting) { return setting.first == key; });
  if (at == settings.end())
    settings.emplace_back(key, value);
  else
    at->second = value;
}

bool has(const Settings& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const auto& setting) { return setting.first == key; });
}

/// Plans of a folder, by name.
std::vector<fs::path> plan_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Leaves of a plan, the lists included; lists of tables are no leaf that a suite could carry.
void put_leaves(const ConfigValue& table, const std::string& prefix, const std::string& path,
                Settings& keys) {
  for (const auto& [name, value] : table.entries) {
    const std::string key = prefix + name;
    if (value.kind == ConfigValue::Kind::kTable) {
      put_leaves(value, key + ".", path, keys);
      continue;
    }
    KUAFU_REQUIRE(is_placement_key(key), path, ":", value.line, ": ", key,
                  ": a baseline says where work goes, the suite what it is; allowed: ", kAllowed);
    const auto json = json_value(value);
    KUAFU_REQUIRE(json, path, ":", value.line, ": ", key, ": expected a value or a list, given ",
                  to_string(value));
    put(keys, whole_key(key), *json);
  }
}

BaselinePlan read_plan(const fs::path& path) {
  BaselinePlan plan{path.stem().string(), path.string(), {}};
  const std::string toml = read_file(plan.path, "plan of a baseline");
  parse_values(toml, plan.path);  // names and types of its keys
  put_leaves(parse_toml(toml, plan.path), "", plan.path, plan.keys);
  return plan;
}

/// A `[[compare]]` with its plans read.
struct Compared {
  const ComparisonRow& written;
  Baseline baseline;
};

class Comparer {
 public:
  Comparer(const SuiteText& suite, const std::string& folder, const Overrides& overrides)
      : suite_(suite), formulas_(suite, overrides) {
    for (const ComparisonRow& row : suite.comparisons) rows_.push_back(read(row, folder));
    for (const SweepAxis& axis : suite.axes) {
      for (const Bundle& bundle : axis.bundles) {
        for (const SweptKey& choice : bundle.choices) {
          if (is_parallel(choice.key)) placement_axes_.insert(axis.name);
        }
      }
    }
  }

  std::vector<Point> run(const std::vector<Point>& points, const std::vector<int64_t>& ranks) {
    for (const Compared& row : rows_) {
      for (const BaselinePlan& plan : row.baseline.plans) {
        size_t made = 0;
        for (size_t i = 0; i < points.size(); ++i) {
          if (!points[i].is_of_sweep || !wants(row.written, ranks[i])) continue;
          add(make(row, plan, points[i], ranks[i]));
          ++made;
        }
        KUAFU_REQUIRE(made > 0, suite_.origin, ":", row.written.line, ": [[compare]] ",
                      in_quotes(row.written.baseline),
                      ": the sweep has no case to compare with on ",
                      row.written.ranks.empty() ? "two ranks or more" : "these ranks");
      }
    }
    return std::move(out_);
  }

 private:
  Compared read(const ComparisonRow& row, const std::string& folder) const {
    const auto fail = [&](const std::string& what) {
      throw ConfigError(text(suite_.origin, ":", row.line, ": [[compare]]: ", what));
    };
    const std::vector<std::string> names = baseline_names(folder);
    if (std::find(names.begin(), names.end(), row.baseline) == names.end()) {
      fail(text("no baseline is named ", in_quotes(row.baseline), did_you_mean(row.baseline, names),
                " There are ", join(in_quotes(names))));
    }
    for (const auto& [key, value] : row.set) {
      if (!is_placement_key(key)) {
        fail(text("set of ", key, " would compare different work; allowed: ", kAllowed));
      }
    }
    Compared read{row, load_baseline(folder, row.baseline)};
    auto& plans = read.baseline.plans;
    if (row.plan.empty()) return read;
    std::vector<std::string> known;
    for (const BaselinePlan& plan : plans) known.push_back(plan.name);
    std::erase_if(plans, [&](const BaselinePlan& plan) { return plan.name != row.plan; });
    if (plans.empty()) {
      fail(text("baseline ", in_quotes(row.baseline), " has no plan ", in_quotes(row.plan),
                did_you_mean(row.plan, known), " It has ", join(in_quotes(known))));
    }
    return read;
  }

  static bool wants(const ComparisonRow& row, int64_t ranks) {
    if (row.ranks.empty()) return ranks > 1;
    return std::find(row.ranks.begin(), row.ranks.end(), ranks) != row.ranks.end();
  }

  static std::string name_of(const Compared& row, const BaselinePlan& plan) {
    if (!row.written.name.empty()) {
      return row.baseline.plans.size() == 1 ? row.written.name : row.written.name + " " + plan.name;
    }
    return row.written.baseline + " " + plan.name;
  }

  /// The work of `point` under the plan's keys. Its name and settings lose what said where the
  /// suite put that work.
  Point make(const Compared& row, const BaselinePlan& plan, const Point& point,
             int64_t ranks) const {
    Point made;
    made.is_comparison = true;
    made.line = row.written.line;
    const auto set = [&](const std::string& key, const Json& value, const std::string& label) {
      made.settings.emplace_back(key, value);
      made.labels.push_back(label);
      if (!label.empty()) made.name += (made.name.empty() ? "" : ", ") + label;
    };
    const std::string name = name_of(row, plan);
    set("strategy", name, name);
    set("baseline", row.written.baseline, "");
    set("ranks", ranks, text(ranks, ranks == 1 ? " rank" : " ranks"));
    for (size_t i = 0; i < point.settings.size(); ++i) {
      const auto& [key, value] = point.settings[i];
      if (key == "ranks" || is_parallel(key) || placement_axes_.contains(key)) continue;
      set(key, value, point.labels[i]);
    }
    for (const auto& [key, value] : plan.keys) {
      if (key == kMicroBatch && is_micro_batch_given(point)) continue;
      put(made.given, key, value);
    }
    for (const auto& [key, value] : point.given) {
      if (is_parallel(key)) continue;
      put(made.given, key, key == "ranks" ? Json(ranks) : value);
      // What a dropped row said about the work itself stays, and is told.
      if (key != "ranks" && key != "world" && is_of_dropped_row(point, key)) {
        set(key, value, last_word(key) + " " + plain_text(value));
      }
    }
    put(made.given, "ranks", ranks);
    for (const auto& [key, value] : row.written.set) put(made.given, whole_key(key), value);
    formulas_.follow(made);
    return made;
  }

  bool is_micro_batch_given(const Point& point) const {
    if (has(point.given, kMicroBatch)) return true;
    const ConfigValue base = parse_toml(suite_.base, suite_.origin);
    const ConfigValue* train = base.find("train");
    return train != nullptr && train->find("micro_batch") != nullptr;
  }

  /// Whether a key of the point came from a row of an axis that places work.
  bool is_of_dropped_row(const Point& point, const std::string& key) const {
    if (has(point.settings, key)) return false;
    for (const SweepAxis& axis : suite_.axes) {
      if (!placement_axes_.contains(axis.name)) continue;
      const Json* row = find_setting(point.settings, axis.name);
      for (const Bundle& bundle : axis.bundles) {
        if (row == nullptr || *row != bundle.name) continue;
        for (const SweptKey& choice : bundle.choices) {
          if (choice.key == key) return true;
        }
      }
    }
    return false;
  }

  /// Points that differed only in placement have become one.
  void add(Point point) {
    std::set<std::string> keys;
    for (const auto& [key, value] : point.given) keys.insert(key + "=" + value.dump());
    const std::vector<std::string> words(keys.begin(), keys.end());
    if (known_.insert(point.name + "\n" + join(words, "\n")).second) {
      out_.push_back(std::move(point));
    }
  }

  const SuiteText& suite_;
  PointFormulas formulas_;
  std::vector<Compared> rows_;
  std::set<std::string> placement_axes_;  ///< axes whose rows set parallel keys
  std::set<std::string> known_;
  std::vector<Point> out_;
};

}  // namespace

std::string whole_key(const std::string& key) {
  for (const char* group : {"data", "pipeline", "sequence", "expert"}) {
    if (key == text("parallel.", group)) return key + ".size";
  }
  return key;
}

std::vector<std::string> baseline_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory() && !plan_files(entry.path()).empty()) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Baseline load_baseline(const std::string& folder, const std::string& name) {
  Baseline baseline{name, {}};
  for (const fs::path& path : plan_files(fs::path(folder) / name)) {
    baseline.plans.push_back(read_plan(path));
  }
  KUAFU_REQUIRE(!baseline.plans.empty(), folder, "/", name, ": no plan (*.toml) of a baseline");
  return baseline;
}

bool is_placement_key(const std::string& key) { return is_parallel(key) || key == kMicroBatch; }

std::vector<Point> comparison_points(const SuiteText& suite, const std::vector<Point>& points,
                                     const std::vector<int64_t>& ranks, const std::string& folder,
                                     const Overrides& overrides) {
  KUAFU_CHECK(points.size() == ranks.size(), points.size(), " points, ranks of ", ranks.size());
  if (suite.comparisons.empty()) return {};
  return Comparer(suite, folder, overrides).run(points, ranks);
}

std::string without_parallel(const std::string& base) {
  std::string out;
  for (size_t begin = 0; begin < base.size();) {
    const size_t end = std::min(base.find('\n', begin), base.size());
    const std::string line = base.substr(begin, end - begin);
    out += (is_parallel(line.substr(0, line.find(' '))) ? "" : line) + "\n";
    begin = end + 1;
  }
  return out;
}

}  // namespace kuafu
