// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/suite_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/derived_text.h"
#include "kuafu/experiment/point_formulas.h"
#include "kuafu/experiment/suite_values.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/field_path.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using Kind = ConfigValue::Kind;

/// Sections with a meaning of their own; every other array of tables is an axis of the sweep.
const std::vector<std::string> kSections = {"suite",   "base",      "grid",   "case",  "skip",
                                            "compare", "reference", "column", "claim", "figure"};

bool is_inline(const ConfigValue& value, int line) {
  if (value.kind != Kind::kTable) return value.line == line;
  return !value.entries.empty() &&
         std::all_of(value.entries.begin(), value.entries.end(),
                     [&](const auto& entry) { return is_inline(entry.second, line); });
}

std::string quoted_key(const std::string& key) {
  const bool is_bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
  return is_bare ? key : in_quotes(key);
}

/// Takes values that are formulas out of a table, as choices of one value.
void take_formulas(ConfigValue& table, const std::string& prefix, std::vector<SweptKey>& formulas) {
  for (auto& [name, value] : table.entries) {
    if (value.kind == Kind::kTable) take_formulas(value, prefix + name + ".", formulas);
    if (value.kind == Kind::kString && is_formula(Json(value.string))) {
      formulas.push_back({prefix + name, {Json(value.string)}, value.line});
    }
  }
  std::erase_if(table.entries, [](const auto& entry) {
    return entry.second.kind == Kind::kString && is_formula(Json(entry.second.string));
  });
}

/// Keys of the plan, each on the line it has in the suite, so that messages about it are right. A
/// line has one key: what is left of an inline table that goes over several lines is for the end.
void put_lines(const ConfigValue& table, const std::string& prefix, std::vector<std::string>& lines,
               std::vector<std::string>& end) {
  for (const auto& [name, value] : table.entries) {
    const std::string key = prefix + quoted_key(name);
    if (value.kind == Kind::kTable && !is_inline(value, value.line)) {
      put_lines(value, key + ".", lines, end);
      continue;
    }
    const auto line = static_cast<size_t>(std::max(value.line, 1));
    if (lines.size() < line) lines.resize(line);
    const std::string given = key + " = " + to_string(value);
    if (lines[line - 1].empty()) {
      lines[line - 1] = given;
    } else {
      end.push_back(given);
    }
  }
}

/// Reads one suite; the origin and the current line are in every message.
class Reader : private SuiteValues {
 public:
  explicit Reader(const std::string& origin) : SuiteValues(origin), derived_(origin) {
    suite_.origin = suite_.derived.origin = origin;
    suite_.derived.folder = std::filesystem::absolute(origin).parent_path().string();
  }

  SuiteText read(const ConfigValue& root) {
    if (root.find("suite") == nullptr) require_no_plan(root);
    for (const auto& [name, value] : root.entries) read_section(name, value);
    require(!suite_.name.empty(), 1, "[suite] with a name is missing");
    suite_.derived.follows = following_keys(suite_);
    return std::move(suite_);
  }

 private:
  void require_no_plan(const ConfigValue& root) const {
    for (const auto& [name, value] : root.entries) {
      const bool is_of_plan = std::any_of(plan::keys().begin(), plan::keys().end(),
                                          [&](const auto& key) { return key.section() == name; });
      require(!is_of_plan, value.line, "[", name,
              "] belongs to a plan, and a suite is wanted; run a plan with: kuafu run FILE");
    }
  }

  void read_section(const std::string& name, const ConfigValue& value) {
    if (name == "suite" || name == "base" || name == "grid") {
      require(value.kind == Kind::kTable, value.line, name, ": expected a table, [", name, "]");
      if (name == "suite") read_head(value);
      if (name == "base") read_base(value);
      if (name == "grid") read_grid(value, "");
      return;
    }
    const bool is_array =
        value.kind == Kind::kList && !value.items.empty() &&
        std::all_of(value.items.begin(), value.items.end(),
                    [](const ConfigValue& item) { return item.kind == Kind::kTable; });
    const std::string close = nearest(name, kSections);
    const bool is_misspelt = edit_distance(name, close) <= 2 &&
                             std::find(kSections.begin(), kSections.end(), name) == kSections.end();
    require(is_array && !is_misspelt, value.line, "unknown section ", in_quotes(name),
            did_you_mean(name, kSections), " Known are ", join(kSections),
            ", and arrays of tables such as [[strategy]] whose rows are named settings",
            is_array && is_misspelt ? " and whose name is no slip of these: more than two letters "
                                      "from each"
                                    : "");
    if (name == "case") {
      for (const auto& item : value.items)
        suite_.extra.push_back(bundle(item, "case", Name::kNeeded));
    } else if (name == "skip") {
      for (const auto& item : value.items)
        suite_.skips.push_back(bundle(item, "skip", Name::kNone));
    } else if (name == "compare") {
      for (const auto& item : value.items) suite_.comparisons.push_back(comparison(item));
    } else if (name == "reference") {
      for (const auto& item : value.items) suite_.references.push_back(reference(item));
    } else if (name == "column") {
      for (const auto& item : value.items) suite_.derived.columns.push_back(derived_.column(item));
    } else if (name == "claim") {
      for (const auto& item : value.items) suite_.derived.claims.push_back(derived_.claim(item));
    } else if (name == "figure") {
      for (const auto& item : value.items) suite_.derived.figures.push_back(derived_.figure(item));
    } else {
      SweepAxis axis{name, {}, {}, value.items.front().line};
      for (const auto& item : value.items) {
        axis.bundles.push_back(bundle(item, name, Name::kNeeded));
        const Bundle& row = axis.bundles.back();
        for (const Bundle& other : axis.bundles) {
          KUAFU_REQUIRE(&other == &row || other.name != row.name, suite_.origin, ":", row.line,
                        ": [[", name, "]]: the row of line ", other.line, " is named ",
                        in_quotes(row.name), " too; formulas, filters and figures tell rows by ",
                        "their names: give it another, or its keys lists of values");
        }
        for (const SweptKey& choice : axis.bundles.back().choices) {
          suite_.derived.row_keys[name].insert(choice.key);
        }
      }
      suite_.axes.push_back(std::move(axis));
    }
  }

  void read_head(const ConfigValue& table) {
    const std::vector<std::string> known = {"name",    "question",  "world",    "worlds",
                                            "seeds",   "timeout_s", "budget_s", "certify",
                                            "plugins", "repeats"};
    for (const auto& [name, value] : table.entries) {
      if (name == "name")
        suite_.name = string(value, name);
      else if (name == "question")
        suite_.question = string(value, name);
      else if (name == "world")
        suite_.worlds = {string(value, name)};
      else if (name == "worlds")
        suite_.worlds = strings(value, name);
      else if (name == "seeds")
        suite_.seeds = whole_numbers(value, "suite.seeds", 0);
      else if (name == "timeout_s")
        suite_.timeout_s = seconds(value, name);
      else if (name == "budget_s")
        suite_.budget_s = seconds(value, name);
      else if (name == "repeats")
        suite_.repeats = repeats(value);
      else if (name == "certify")
        suite_.is_certified = boolean(value, name);
      else if (name == "plugins")
        suite_.plugins = strings(value, name);
      else
        require(false, value.line, "unknown key ", in_quotes("suite." + name),
                did_you_mean(name, known), " Known are ", join(known));
    }
    require(!suite_.name.empty(), table.line, "suite.name is missing");
    constexpr size_t kLongestName = 200;  // names a folder
    require(suite_.name.size() <= kLongestName, table.line, "suite.name ",
            in_quotes(suite_.name.substr(0, 32)), "... has ", suite_.name.size(),
            " bytes; allowed: at most ", kLongestName, ": it names the folder of the results");
    const bool is_path = suite_.name.find('/') != std::string::npos || suite_.name.starts_with('.');
    require(!is_path, table.line, "suite.name ", in_quotes(suite_.name),
            " is a path; allowed: a name without \"/\" that begins with no \".\": it names the "
            "folder of the results");
    const std::vector<std::string>& worlds = suite_worlds();
    const bool is_list = table.find("worlds") != nullptr;
    const ConfigValue* given = table.find(is_list ? "worlds" : "world");
    require(!is_list || table.find("world") == nullptr, table.line,
            "suite.world and suite.worlds are both given; give one of them");
    for (const auto& world : suite_.worlds) {
      require(std::find(worlds.begin(), worlds.end(), world) != worlds.end(),
              given == nullptr ? table.line : given->line, "suite.world", is_list ? "s " : " ",
              in_quotes(world), " is none of ", join(worlds), did_you_mean(world, worlds));
    }
  }

  int64_t repeats(const ConfigValue& value) const {
    require(value.kind != Kind::kList, value.line, "suite.repeats: expected one number, given ",
            to_string(value));
    return whole_numbers(value, "suite.repeats", 1).front();
  }

  void read_base(ConfigValue table) {
    take_formulas(table, "", suite_.base_formulas);
    std::vector<std::string> lines, end;
    put_lines(table, "", lines, end);
    lines.insert(lines.end(), end.begin(), end.end());
    suite_.base = join(lines, "\n") + "\n";
  }

  void read_grid(const ConfigValue& table, const std::string& prefix) {
    for (const auto& [name, value] : table.entries) {
      const std::string key = prefix + name;
      if (value.kind == Kind::kTable) {
        read_grid(value, key + ".");
        continue;
      }
      require(value.kind == Kind::kList && !value.items.empty(), value.line, "grid.", key,
              ": expected a list of values, such as [1, 2]; given ", to_string(value));
      suite_.axes.push_back({key, scalars(value), {}, value.line});
    }
  }

  enum class Name { kNeeded, kNone };

  Bundle bundle(const ConfigValue& table, const std::string& section, Name name) const {
    Bundle bundle;
    bundle.line = table.line;
    for (const auto& [key, value] : table.entries) {
      if (key == "name" && name == Name::kNeeded)
        bundle.name = string(value, "name");
      else
        collect(value, key, bundle.choices);
    }
    require(name == Name::kNone || !bundle.name.empty(), table.line, "[[", section,
            "]]: name is missing");
    require(name == Name::kNeeded || !bundle.choices.empty(), table.line, "[[", section,
            "]]: has no settings");
    return bundle;
  }

  ComparisonRow comparison(const ConfigValue& table) const {
    ComparisonRow row;
    row.line = table.line;
    for (const auto& [key, value] : table.entries) {
      if (key == "name")
        row.name = string(value, key);
      else if (key == "baseline")
        row.baseline = string(value, key);
      else if (key == "plan")
        row.plan = string(value, key);
      else if (key == "ranks")
        row.ranks = whole_numbers(value, "compare.ranks", 1);
      else if (key == "set")
        row.set = single_settings(value, key);
      else {
        const std::vector<std::string> known = {"name", "baseline", "plan", "ranks", "set"};
        require(false, value.line, "unknown key ", in_quotes("compare." + key),
                did_you_mean(key, known), " Known are ", join(known));
      }
    }
    require(!row.baseline.empty(), table.line, "[[compare]]: baseline is missing");
    return row;
  }

  /// A value to compare with: nothing equals what is no number, or is near infinity.
  Json finite(const ConfigValue& value, const std::string& key) const {
    const Json given = scalar(value);
    require(!given.is_number_float() || std::isfinite(given.get<double>()), value.line,
            "reference.", key, ": expected a finite number, given ", to_string(value));
    return given;
  }

  /// A text and a number are never equal, and only numbers are below each other.
  void check_kinds(const Reference& r, const ConfigValue& wanted) const {
    const std::string mine = kind_at(r.metric);
    const std::string theirs = !r.other.empty()       ? kind_at(r.other)
                               : r.value.is_string()  ? "a text"
                               : r.value.is_boolean() ? "a truth value"
                                                      : "a number";
    const bool is_below = r.relation == Reference::Relation::kBelow;
    const bool is_other = !mine.empty() && !theirs.empty() && mine != theirs;
    const bool are_numbers =
        (mine.empty() || mine == "a number") && (theirs.empty() || theirs == "a number");
    require(is_below ? are_numbers : !is_other, wanted.line, "[[reference]]: ", r.metric,
            mine.empty() ? "" : " is " + mine, " and ", to_string(wanted),
            theirs.empty() ? "" : " is " + theirs,
            is_below ? "; below compares numbers" : ": they never equal each other");
    if (const auto words = words_of_field(r.metric); !words.empty()) check_word(r, wanted, words);
  }

  /// A word that a metric never is would only be found when all cases have ended.
  void check_word(const Reference& r, const ConfigValue& wanted,
                  const std::vector<std::string>& words) const {
    if (!r.other.empty()) return;
    const std::string given = plain_text(r.value);
    require(std::find(words.begin(), words.end(), given) != words.end(), wanted.line,
            "[[reference]]: ", r.metric, " is never ", in_quotes(given), did_you_mean(given, words),
            " It is ", join_or(words));
  }

  Reference reference(const ConfigValue& table) const {
    Reference r;
    r.line = table.line;
    int num_relations = 0;
    const auto check_path = [&](const ConfigValue& value, const std::string& key) {
      const std::string& path = value.string;
      const std::string problem = path.empty() ? "" : path_problem(path);
      const std::string hint =
          key == "equals" ? "; to compare with this text itself: value = " + in_quotes(path) : "";
      require(problem.empty(), value.line, "[[reference]]: ", key, ": ", problem, hint);
    };
    for (const auto& [key, value] : table.entries) {
      if (key == "metric")
        r.metric = string(value, key), check_path(value, key);
      else if (key == "source")
        r.source = string(value, key);
      else if (key == "tolerance")
        r.tolerance = tolerance(value, key);
      else if (key == "value")
        r.value = finite(value, key), ++num_relations;
      else if (key == "equals")
        r.other = string(value, key), check_path(value, key), ++num_relations;
      else if (key == "below") {
        r.relation = Reference::Relation::kBelow;
        ++num_relations;
        if (value.kind == Kind::kString)
          r.other = value.string, check_path(value, key);
        else
          r.value = finite(value, key);
      } else if (key == "where")
        r.where = single_settings(value, key), r.where_line = value.line;
      else {
        const std::vector<std::string> known = {"metric", "value",     "equals", "below",
                                                "where",  "tolerance", "source"};
        require(false, value.line, "unknown key ", in_quotes("reference." + key),
                did_you_mean(key, known), " Known are ", join(known));
      }
    }
    require(!r.metric.empty(), table.line, "[[reference]]: metric is missing");
    require(num_relations == 1, table.line,
            "[[reference]]: needs exactly one of value, equals and below, has ", num_relations);
    for (const char* relation : {"value", "equals", "below"}) {
      if (const ConfigValue* wanted = table.find(relation)) check_kinds(r, *wanted);
    }
    return r;
  }

  SuiteText suite_;
  DerivedReader derived_;
};

}  // namespace

const std::vector<std::string>& suite_worlds() {
  static const std::vector<std::string> kWorlds = world_names();
  return kWorlds;
}

SuiteText read_suite_text(std::string_view toml, const std::string& origin) {
  return Reader(origin).read(parse_toml(toml, origin));
}

std::string toml_text(const Json& value) {
  if (value.is_string()) return in_quotes(value.get<std::string>());
  if (value.is_number_float()) return toml_number(value.get<double>());
  return value.dump();
}

}  // namespace kuafu
