// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/suite.h"

#include <algorithm>
#include <map>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/dataset/corpus.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/suite_text.h"

namespace kuafu {
namespace {

std::string hex_hash(const std::string& bytes) { return hex_digits(hash_name(bytes)); }

/// What the cases of a suite may name. Modes of a plug-in are known to the worker that loads it; here
/// only how many ranks they take.
struct Names {
  Names(const SuiteText& suite, const SuiteOptions& options)
      : plugins(options.plugins), tensor(builtin_tensor_modes()) {
    plugins.insert(plugins.end(), suite.plugins.begin(), suite.plugins.end());
    if (plugins.empty()) return;
    KUAFU_REQUIRE(options.names_of_plugins, suite.origin, ": plugins = ", join(plugins),
                  ": nobody is there to load them");
    const PluginNames added = options.names_of_plugins(plugins);
    for (const std::string& name : added.tensor) {
      tensor.try_emplace(name, TensorMode{name, "of a plug-in", [](int64_t size, int64_t) {
                                            return std::vector<Axis>{{"tensor", size}};
                                          }});
    }
    for (const auto& [more, known] :
         {std::pair{&added.models, &models}, std::pair{&added.sequence, &sequence}}) {
      for (const std::string& name : *more) {
        if (std::find(known->begin(), known->end(), name) == known->end()) known->push_back(name);
      }
    }
  }

  std::vector<std::string> plugins;
  TensorModes tensor;
  std::vector<std::string> models = builtin_model_names(), sequence = builtin_sequence_names();
};

/// What corpora hold, each read once.
class Corpora {
 public:
  explicit Corpora(std::string default_corpus) : default_corpus_(std::move(default_corpus)) {}

  /// Hash of the bytes of data.path; empty where they cannot be read: the worker says why.
  const std::string& hash_of(const std::string& path) {
    const auto [known, is_new] = hashes_.try_emplace(path);
    if (!is_new) return known->second;
    try {
      const Corpus corpus = read_corpus(path.empty() ? default_corpus_ : path);
      known->second = corpus.hash;
      found_[corpus.hash] = static_cast<int64_t>(corpus.bytes.size());
    } catch (const ConfigError&) {
    }
    return known->second;
  }

  const std::map<std::string, int64_t>& found() const { return found_; }

 private:
  std::string default_corpus_;
  std::map<std::string, std::string> hashes_;  ///< by path
  std::map<std::string, int64_t> found_;       ///< bytes by hash
};

/// Keys of a point that belong to the run, not to the plan.
struct RunKeys {
  int64_t ranks = 0;
  std::string world;
  bool is_certified = true;
  double timeout_s = 0;
};

/// Keys of a plan as they are written, the last value of each. "parallel.data = 2" stays as short as
/// it was where no other key of the group is there.
class Written {
 public:
  void put(const std::string& key, const std::string& value) {
    const std::string whole = whole_key(key);
    lines_[whole] = {value, whole != key};
  }
  void put_table(const std::string& prefix, const ConfigValue& table) {
    for (const auto& [name, value] : table.entries) {
      if (value.kind == ConfigValue::Kind::kTable) {
        put_table(prefix + name + ".", value);
      } else {
        put(prefix + name, to_string(value));
      }
    }
  }
  std::string toml() const {
    std::string toml;
    for (const auto& [key, line] : lines_) {
      const std::string group = key.substr(0, key.rfind('.'));
      const auto num_keys = std::count_if(lines_.begin(), lines_.end(), [&](const auto& other) {
        return other.first.rfind(group + ".", 0) == 0;
      });
      toml += (line.is_short && num_keys == 1 ? group : key) + " = " + line.value + "\n";
    }
    return toml;
  }

 private:
  struct Line {
    std::string value;
    bool is_short = false;
  };
  std::map<std::string, Line> lines_;
};

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
    return finish(point, run, overrides);
  }

 private:
  bool take(const std::string& key, const Json& value, const Point& point, RunKeys& run) const {
    const auto require = [&](bool condition, const char* expected) {
      KUAFU_REQUIRE(condition, text_.origin, ":", point.line, ": ", key, ": expected ", expected,
                    ", given ", value.dump());
    };
    if (key == "ranks") {
      require(value.is_number_integer() && value > 0, "a number of ranks from 1");
      run.ranks = value.get<int64_t>();
    } else if (key == "world") {
      require(value.is_string(), "the name of a world");
      run.world = value.get<std::string>();
    } else if (key == "certify") {
      require(value.is_boolean(), "true or false");
      run.is_certified = value.get<bool>();
    } else if (key == "timeout_s") {
      require(value.is_number() && value > 0, "a positive number of seconds");
      run.timeout_s = value.get<double>();
    } else {
      return false;
    }
    return true;
  }

  /// The plan resolved for the case's ranks. One that cannot be placed stays as it was written: the
  /// worker says why, and the record keeps it.
  Case finish(const Point& point, const RunKeys& run, const Overrides& overrides) {
    Case c{"",        point.name, point.settings,   "",
           run.ranks, run.world,  run.is_certified, run.timeout_s};
    const std::string base = point.is_comparison ? without_parallel(text_.base) : text_.base;
    std::string identity;  // that of a resolved plan survives keys that later versions add
    try {
      Plan plan = resolve(
          parse_plan(base, text_.origin, names_.tensor, overrides, names_.models, names_.sequence),
          run.ranks, names_.tensor);
      const std::string data = identify_data(plan, run.world);
      c.ranks = num_ranks(plan);
      c.plan_toml = to_toml(plan);
      identity = plan_hash(plan) + data;
    } catch (const Refused&) {
      c.ranks = std::max<int64_t>(1, c.ranks);
      c.plan_toml = identity = written_plan(base, overrides);
    } catch (const ConfigError& error) {
      throw ConfigError(text(as_written(error.what(), point), "\n  in the case \"", point.name,
                             "\", asked for at ", text_.origin, ":", point.line));
    }
    if (find_setting(c.settings, "ranks") == nullptr) c.settings.emplace_back("ranks", c.ranks);
    c.id = hex_hash(text(identity, "\nranks=", c.ranks, "\nworld=", c.world,
                         "\ncertify=", c.is_certified, "\nversion=", kExperimentVersion));
    return c;
  }

  /// A key of the suite was not given by --set.
  std::string as_written(const std::string& error, const Point& point) const {
    const std::string_view by_set = "--set ";
    const bool is_of_suite = std::any_of(
        point.given.begin(), point.given.end(),
        [&](const auto& given) { return error.rfind(text(by_set, given.first, ":"), 0) == 0; });
    return is_of_suite ? text(text_.origin, ": ", error.substr(by_set.size())) : error;
  }

  /// Which bytes the plan reads, for its id; the plan asks for them from here on. The simulated world
  /// reads none.
  std::string identify_data(Plan& plan, const std::string& world) {
    if (plan.data.kind != "text" || world == "simulated") return "";
    const std::string& found = corpora_.hash_of(plan.data.path);
    if (plan.data.hash.empty()) plan.data.hash = found;
    if (!plan.data.hash.empty()) return "\ndata=" + plan.data.hash;
    return plan.data.path.empty() ? "" : "\ndata.path=" + plan.data.path;
  }

  /// The base plan with the overrides in their places, one dotted key a line.
  std::string written_plan(const std::string& base, const Overrides& overrides) const {
    Written lines;
    lines.put_table("", parse_toml(base, text_.origin));
    for (const auto& [key, given] : overrides) {
      const std::optional<ConfigValue> value = parse_toml_value(given);
      if (value && value->kind == ConfigValue::Kind::kTable) {
        lines.put_table(key + ".", *value);
      } else {
        lines.put(key, value ? given : in_quotes(given));
      }
    }
    return lines.toml();
  }

  const SuiteText& text_;
  const SuiteOptions& options_;
  Names names_;
  Corpora corpora_;
};

void check_overrides(const std::vector<Point>& points, const SuiteOptions& options) {
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
  const ConfigValue* at = &plan;
  for (size_t begin = 0; at != nullptr && begin <= key.size();) {
    const size_t dot = std::min(key.find('.', begin), key.size());
    at = at->find(key.substr(begin, dot - begin));
    begin = dot + 1;
  }
  if (at == nullptr) return std::nullopt;
  return at->kind == ConfigValue::Kind::kString ? at->string : to_string(*at);
}

}  // namespace

Suite parse_suite(std::string_view toml, const std::string& origin, const SuiteOptions& options) {
  const SuiteText written = read_suite_text(toml, origin);
  const std::vector<Point> points = expand(written);
  KUAFU_REQUIRE(!points.empty(), origin,
                ": the suite has no case; give [grid], [[strategy]] or [[case]]");
  check_overrides(points, options);
  Suite suite;
  suite.name = written.name;
  suite.question = written.question;
  suite.budget_s = written.budget_s;
  suite.references = written.references;
  CaseMaker maker(written, options);
  std::map<std::string, std::string> name_of_id;
  std::string identity = suite.name;
  const auto add = [&](Case c) {
    const auto [it, is_new] = name_of_id.emplace(c.id, c.name);
    if (!is_new) {
      suite.notes.push_back(
          text("\"", c.name, "\" is the same case as \"", it->second, "\": run once"));
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
  for (const Point& point : comparison_points(written, points, ranks, options.baselines)) {
    add(maker.make(point));
  }
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
  return plan_value(parse_toml(c.plan_toml, c.name), key);
}

std::vector<Case> filtered(const std::vector<Case>& cases, const Overrides& filters) {
  std::vector<Case> kept = cases;
  for (const auto& [key, wanted] : filters) {
    std::vector<std::string> values;
    std::vector<Case> next;
    for (const Case& c : kept) {
      const auto value = case_value(c, key);
      if (!value) continue;
      if (*value == wanted) next.push_back(c);
      if (std::find(values.begin(), values.end(), *value) == values.end()) values.push_back(*value);
    }
    std::vector<std::string> keys;
    for (const Case& c : cases) {
      for (const auto& [name, v] : c.settings) {
        if (std::find(keys.begin(), keys.end(), name) == keys.end()) keys.push_back(name);
      }
    }
    KUAFU_REQUIRE(kept.empty() || !values.empty(), "--filter ", key, "=", wanted,
                  ": no case has the key ", in_quotes(key), "; did you mean ",
                  in_quotes(nearest(key, keys)), "? The suite varies ", join(keys));
    KUAFU_REQUIRE(!next.empty(), "--filter ", key, "=", wanted, ": no case is left; ", key, " is ",
                  join_or(values), " in the suite");
    kept = std::move(next);
  }
  return kept;
}

}  // namespace kuafu
