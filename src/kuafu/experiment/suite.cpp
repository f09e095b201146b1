// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/suite.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/corpora.h"
#include "kuafu/experiment/derived_check.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/references.h"
#include "kuafu/experiment/suite_text.h"
#include "kuafu/experiment/written_plan.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/choices.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

/// Keys of data whose values are paths, with what lies there.
struct DataPlace {
  const char* key;
  std::string DataPlan::*path;
  const char* what;
};
constexpr DataPlace kDataPlaces[] = {{"data.path", &DataPlan::path, "file or folder"},
                                     {"data.tokenizer", &DataPlan::tokenizer, "tokenizer"}};
constexpr const char* kScheduleKey = "parallel.pipeline.schedule";
constexpr const char* kBudgetKey = "memory.device";
constexpr const char* kTimeoutKey = "timeout_s";

std::string hex_hash(const std::string& bytes) { return hex_digits(hash_name(bytes)); }

/// What the cases of a suite may name. Modes of a plug-in are known to the worker that loads it; here
/// only how many ranks they take.
struct Names {
  Names(const SuiteText& suite, const SuiteOptions& options) : plugins(options.plugins) {
    const auto whole = [](const std::string& path) { return fs::weakly_canonical(path); };
    for (const std::string& written : suite.plugins) {
      // As data, they lie beside the suite; one that is given on the command line too is the same.
      const std::string path =
          (fs::path(suite.origin).parent_path() / written).lexically_normal().string();
      const bool is_there = std::any_of(plugins.begin(), plugins.end(), [&](const std::string& p) {
        return whole(p) == whole(path);
      });
      if (!is_there) plugins.push_back(path);
    }
    if (plugins.empty()) return;
    known.plugins = plugins;
    KUAFU_REQUIRE(options.names_of_plugins, suite.origin, ": plugins = ", join(plugins),
                  ": nobody is there to load them");
    const PluginNames added = options.names_of_plugins(plugins);
    for (const std::string& name : added.tensor) {
      known.tensor.try_emplace(name, TensorMode{name, "of a plug-in", [](int64_t size, int64_t) {
                                                  return std::vector<Axis>{{"tensor", size}};
                                                }});
    }
    for (const auto& [more, all] :
         {std::pair{&added.models, &known.models}, std::pair{&added.sequence, &known.sequence},
          std::pair{&added.schedules, &known.schedules}}) {
      for (const std::string& name : *more) {
        if (std::find(all->begin(), all->end(), name) == all->end()) all->push_back(name);
      }
    }
    add_optimizers(added.optimizers);
    add_policies(added.policies);
  }

  /// Which keys a rule reads is known to the worker alone: here it may read any.
  void add_optimizers(const std::vector<std::string>& names) {
    OptimizerKind any{.name = "", .summary = "of a plug-in"};
    for (const OptimizerKind& kind : known.optimizers) {
      any.keys.insert(any.keys.end(), kind.keys.begin(), kind.keys.end());
    }
    for (const std::string& name : names) {
      const bool is_known = std::any_of(known.optimizers.begin(), known.optimizers.end(),
                                        [&](const OptimizerKind& k) { return k.name == name; });
      any.name = name;
      if (!is_known) known.optimizers.push_back(any);
    }
  }

  void add_policies(const std::vector<std::string>& names) {
    memory::PolicyKind any{.name = "", .summary = "of a plug-in", .needs_budget = false};
    for (const memory::PolicyKind& kind : known.policies) {
      any.keys.insert(any.keys.end(), kind.keys.begin(), kind.keys.end());
    }
    for (const std::string& name : names) {
      const bool is_known = std::any_of(known.policies.begin(), known.policies.end(),
                                        [&](const auto& k) { return k.name == name; });
      any.name = name;
      if (!is_known) known.policies.push_back(any);
    }
  }

  std::vector<std::string> plugins;
  Choices known;
};

/// Keys of a point that belong to the run, not to the plan.
struct RunKeys {
  int64_t ranks = 0;
  std::string world;
  bool is_certified = true;
  double timeout_s = 0;
};

/// What to write instead of "2", where a number is wanted.
std::string without_quotes(const Json& value) {
  if (!value.is_string()) return "";
  const auto inside = parse_toml_value(value.get<std::string>());
  const bool is_other = inside && inside->kind != ConfigValue::Kind::kString &&
                        inside->kind != ConfigValue::Kind::kTable;
  return is_other ? text("; write ", to_string(*inside), ", without quotes") : "";
}

/// Turns points into cases: parses and resolves their plans, names and numbers them.
class CaseMaker {
 public:
  CaseMaker(const SuiteText& text_, const SuiteOptions& options)
      : text_(text_), options_(options), names_(text_, options), corpora_(options.default_corpus) {}

  const std::vector<std::string>& plugins() const { return names_.plugins; }
  const std::map<std::string, int64_t>& corpora() const { return corpora_.found(); }

  Case make(const Point& point) {
    RunKeys run{0, "", text_.is_certified, text_.timeout_s};
    Overrides overrides;
    for (const auto& [key, value] : point.given) {
      if (!take(key, value, point, run)) overrides.emplace_back(key, toml_text(value));
    }
    for (const auto& override : options_.overrides) overrides.push_back(override);
    if (options_.timeout_s) run.timeout_s = *options_.timeout_s;
    if (takes_budget(point)) overrides.emplace_back(kBudgetKey, text(*options_.budget));
    return finish(point, run, overrides);
  }

 private:
  /// --budget goes over that of the suite, not over that of a [[case]], which is what it is about.
  bool takes_budget(const Point& point) const {
    return options_.budget &&
           (point.is_of_sweep || find_setting(point.settings, kBudgetKey) == nullptr);
  }

  bool take(const std::string& key, const Json& value, const Point& point, RunKeys& run) const {
    const auto require = [&](bool condition, const char* expected) {
      KUAFU_REQUIRE(condition, text_.origin, ":", line_of(key, point), ": ", key, ": expected ",
                    expected, ", given ", value.dump(), without_quotes(value));
    };
    if (key == "ranks") {
      require(value.is_number_integer() && value > 0, "a number of ranks from 1");
      run.ranks = value.get<int64_t>();
    } else if (key == "world") {
      const std::vector<std::string>& known = suite_worlds();
      require(value.is_string() &&
                  std::find(known.begin(), known.end(), value.get<std::string>()) != known.end(),
              text("one of ", join_or(known)).c_str());
      run.world = value.get<std::string>();
    } else if (key == "certify") {
      require(value.is_boolean(), "true or false");
      run.is_certified = value.get<bool>();
    } else if (key == "timeout_s") {
      require(value.is_number() && value > 0, "a positive number of seconds");
      run.timeout_s = value.get<double>();
    } else {
      // A plan's keys are dotted: one without a dot is a misspelt key of a case.
      const bool is_plain = key.find('.') == std::string::npos;
      const std::vector<std::string> known = {"ranks", "world", "certify", kTimeoutKey};
      KUAFU_REQUIRE(!is_plain, text_.origin, ":", line_of(key, point), ": unknown key ", key, " = ",
                    value.dump(), did_you_mean(key, known), " Allowed: ", join(known),
                    ", and keys of plans, such as model.layers");
      return false;
    }
    return true;
  }

  /// The plan resolved for the case's ranks. One that cannot be placed stays as it was written: the
  /// worker says why, and the record keeps it.
  Case finish(const Point& point, const RunKeys& run, Overrides overrides) {
    Case c{"",        point.name,       point.settings, "", run.ranks,
           run.world, run.is_certified, run.timeout_s,  "", ""};
    for (auto& [key, value] : c.settings) {
      if (takes_budget(point) && key == kBudgetKey) value = print_bytes(*options_.budget);
      if (options_.timeout_s && key == kTimeoutKey) value = *options_.timeout_s;
    }
    const std::string base = point.is_comparison ? without_parallel(text_.base) : text_.base;
    std::string identity;  // that of a resolved plan survives keys that later versions add
    try {
      place_schedule(base, overrides);
      Plan plan = resolve(parse_plan(base, text_.origin, names_.known, overrides), run.ranks,
                          names_.known.tensor);
      if (!is_estimated_world(run.world)) place_data(plan, point, c);
      const std::string data = identify_data(plan, run.world);
      c.ranks = num_ranks(plan);
      c.plan_toml = to_toml(plan);
      c.plan_values = whole_toml(plan);
      identity = plan_hash(plan) + data;
    } catch (const Refused&) {
      c.ranks = std::max<int64_t>(1, c.ranks);
      c.plan_toml = c.plan_values = identity = written_plan(base, text_.origin, overrides);
    } catch (const ConfigError& error) {
      throw ConfigError(as_written(error.what(), point));
    }
    if (find_setting(c.settings, "ranks") == nullptr) c.settings.emplace_back("ranks", c.ranks);
    c.id = hex_hash(text(identity, "\nranks=", c.ranks, "\nworld=", c.world,
                         "\ncertify=", c.is_certified, "\nversion=", kExperimentVersion));
    return c;
  }

  int line_of(const std::string& key, const Point& point) const {
    const auto line = point.lines.find(key);
    return line == point.lines.end() ? point.line : line->second;
  }

  /// An error about a key of the suite, which was not given by --set, begins with the key's line; any
  /// other ends with the lines of the keys that it names.
  std::string as_written(const std::string& error, const Point& point) const {
    const std::string in_case = text("\n  in the case ", in_quotes(point.name));
    const bool is_of_call = std::any_of(
        options_.overrides.begin(), options_.overrides.end(),
        [&](const auto& given) { return error.starts_with(text("--set ", given.first, ":")); });
    if (is_of_call) return error;  // no line of the suite
    std::string named;
    for (const auto& [key, value] : point.given) {
      const std::string by_set = text("--set ", key, ":");
      if (error.rfind(by_set, 0) == 0 && !is_overridden(key)) {
        return text(text_.origin, ":", line_of(key, point), ": ", key,
                    error.substr(by_set.size() - 1), in_case);
      }
      if (error.find(key) == std::string::npos || !point.lines.contains(key)) continue;
      named += text(", ", key, " at ", text_.origin, ":", line_of(key, point));
    }
    return text(error, in_case,
                named.empty() ? text(", asked for at ", text_.origin, ":", point.line) : named);
  }

  /// By --set, itself or its whole group.
  bool is_overridden(const std::string& key) const {
    return std::any_of(options_.overrides.begin(), options_.overrides.end(),
                       [&](const auto& given) {
                         return given.first == key || key.starts_with(given.first + ".");
                       });
  }

  /// A timetable's path of the suite begins at its file too.
  void place_schedule(const std::string& base, Overrides& overrides) const {
    if (is_overridden(kScheduleKey)) return;
    const std::string written =
        parse_values(base, text_.origin, overrides).parallel.pipeline.schedule;
    if (!pipeline::is_schedule_file(written) || fs::path(written).is_absolute()) return;
    const fs::path placed = fs::path(text_.origin).parent_path() / written;
    overrides.emplace_back(kScheduleKey, in_quotes(placed.lexically_normal().string()));
  }

  /// Paths of the suite begin at its file. One that leads nowhere is told, before anything runs.
  void place_data(Plan& plan, const Point& point, Case& c) const {
    if (plan.data.kind != "text") return;
    for (const DataPlace& place : kDataPlaces) {
      std::string& path = plan.data.*place.path;
      if (!path.empty() && c.missing_data.empty()) c.missing_data = placed(place, path, point);
    }
  }

  /// What is wrong with a path, which becomes one from the working folder on.
  std::string placed(const DataPlace& place, std::string& path, const Point& point) const {
    const std::string written = path;
    const bool is_of_suite = !is_overridden(place.key);
    if (is_of_suite && fs::path(written).is_relative()) {
      path = (fs::path(text_.origin).parent_path() / written).lexically_normal().string();
    }
    std::error_code error;
    if (fs::exists(path, error)) return "";
    const std::string found = text("no such ", place.what, " ", in_quotes(path), "; ");
    if (!is_of_suite) {
      return text("--set ", place.key, "=", written, ": ", found,
                  "paths on the command line are relative to the working folder");
    }
    return text(
        text_.origin, point.lines.contains(place.key) ? text(":", line_of(place.key, point)) : "",
        ": ", place.key, " = ", in_quotes(written), ": ", found,
        "paths in a suite are relative to the suite's file\n  in the case ", in_quotes(point.name));
  }

  /// Which bytes the plan reads, for its id; the plan asks for them from here on. The simulated world
  /// reads none.
  std::string identify_data(Plan& plan, const std::string& world) {
    if (plan.data.kind != "text" || is_estimated_world(world)) return "";
    const std::string& found = corpora_.hash_of(plan.data);
    if (plan.data.hash.empty()) plan.data.hash = found;
    if (!plan.data.hash.empty()) return "\ndata=" + plan.data.hash;
    return plan.data.path.empty() ? "" : "\ndata.path=" + plan.data.path;
  }

  const SuiteText& text_;
  const SuiteOptions& options_;
  Names names_;
  Corpora corpora_;
};

void check_not_varied(const std::vector<Point>& points, const char* key, const char* option) {
  std::optional<Json> first;
  for (const Point& point : points) {
    if (!point.is_of_sweep) continue;
    // Rows of a named axis may give it too, all of them or some.
    const Json* value = find_setting(point.given, key);
    const Json now = value == nullptr ? Json() : *value;
    const bool is_varied =
        find_setting(point.settings, key) != nullptr || now != first.value_or(now);
    first = first.value_or(now);
    KUAFU_REQUIRE(!is_varied, option, ": the sweep varies ", key, " (case ", in_quotes(point.name),
                  "); pick cases with --filter ", key, "=VALUE, or change the suite");
  }
}

void check_overrides(const std::vector<Point>& points, const SuiteOptions& options) {
  if (options.timeout_s) check_not_varied(points, kTimeoutKey, "--timeout");
  if (options.budget) check_not_varied(points, kBudgetKey, "--budget");
  for (const auto& [key, value] : options.overrides) {
    for (const Point& point : points) {
      const bool is_varied = std::any_of(point.settings.begin(), point.settings.end(),
                                         [&](const auto& setting) { return setting.first == key; });
      KUAFU_REQUIRE(!is_varied, "--set ", key, "=", value, ": the suite varies this key (case \"",
                    point.name, "\"); pick cases with --filter ", key, "=", value,
                    ", or change the suite");
    }
  }
}

/// The value of a dotted key in a plan's TOML; empty where it has none.
std::optional<std::string> plan_value(const ConfigValue& plan, const std::string& key) {
  const ConfigValue* at = find_dotted(plan, key);
  if (at == nullptr) return std::nullopt;
  return at->kind == ConfigValue::Kind::kString ? at->string : to_string(*at);
}

}  // namespace

Suite parse_suite(std::string_view toml, const std::string& origin, const SuiteOptions& options) {
  const SuiteText written = read_suite_text(toml, origin);
  const std::vector<Point> points = expand(written, options.overrides);
  KUAFU_REQUIRE(
      !points.empty(), origin,
      written.skips.empty()
          ? ": the suite has no case; give [grid], [[strategy]] or [[case]]"
          : text(":", written.skips.front().line, ": [[skip]] leaves no case of the sweep"));
  check_overrides(points, options);
  Suite suite;
  suite.name = written.name;
  suite.question = written.question;
  suite.budget_s = written.budget_s;
  suite.repeats = options.repeats.value_or(written.repeats);
  suite.references = written.references;
  CaseMaker maker(written, options);
  std::map<std::string, std::string> name_of_id;
  std::string identity = suite.name;
  const auto add = [&](Case c) {
    const auto [it, is_new] = name_of_id.emplace(c.id, c.name);
    if (!is_new) {
      const std::string other =
          c.name == it->second ? "another of that name" : text("\"", it->second, "\"");
      suite.notes.push_back(text("\"", c.name, "\" is the same case as ", other, ": run once"));
      return;
    }
    identity += "\n" + c.id;
    suite.cases.push_back(std::move(c));
  };
  std::vector<int64_t> ranks;
  for (const Point& point : points) {
    Case c = maker.make(point);
    ranks.push_back(c.ranks);
    add(std::move(c));
  }
  for (const Point& point :
       comparison_points(written, points, ranks, options.baselines, options.overrides)) {
    add(maker.make(point));
  }
  for (Reference& r : suite.references) find_cases(r, suite.cases, origin);
  suite.derived = written.derived;
  check_derived(suite.derived, suite.cases);
  suite.hash = hex_hash(identity);
  suite.plugins = maker.plugins();
  suite.corpora = maker.corpora();
  return suite;
}

Suite load_suite(const std::string& path, const SuiteOptions& options) {
  return parse_suite(read_file(path, "suite"), path, options);
}

std::optional<std::string> case_value(const Case& c, const std::string& key) {
  if (key == "case_id") return c.id;
  if (key == "name") return c.name;
  if (const Json* value = find_setting(c.settings, key)) return plain_text(*value);
  // "parallel.data" is its size, as plans write it for short.
  return plan_value(parse_toml(c.plan_values, c.name), whole_key(key));
}

}  // namespace kuafu
