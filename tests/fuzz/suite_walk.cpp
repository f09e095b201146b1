// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/experiment/baselines.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/toml_walk.h"

namespace kuafu::fuzz {
namespace {

Settings settings_of(const Json& table) {
  Settings settings;
  for (const auto& [key, value] : leaves_of(table)) {
    settings.emplace_back(key, value.is_array() ? value.front() : value);
  }
  return settings;
}

/// Text, so that 1 and 1.0 are two values.
std::string text_of(const Settings& settings) {
  std::string all;
  for (const auto& [key, value] : settings) all += text(key, " = ", value.dump(), "; ");
  return all;
}

void check_head(const Suite& suite, const Json& head) {
  require(suite.name == head["name"], "the name is not the one written");
  require(suite.question == head.value("question", ""), "the question is not the one written");
  require(suite.budget_s.has_value() == head.contains("budget_s") &&
              (!suite.budget_s || head["budget_s"] == *suite.budget_s),
          "the budget is not the one written");
  require(!head.contains("plugins") && suite.plugins.empty(), "plug-ins that nobody loads");
  for (const auto& [key, value] : head.items()) {
    const std::vector<std::string> known = {"name",      "question", "world",   "worlds", "seeds",
                                            "timeout_s", "budget_s", "certify", "plugins"};
    require(std::find(known.begin(), known.end(), key) != known.end(),
            "suite takes the key " + key);
  }
}

void check_reference(const Reference& got, const Json& table) {
  Reference want;
  for (const auto& [key, value] : table.items()) {
    const bool is_other = key == "equals" || (key == "below" && value.is_string());
    if (key == "metric") want.metric = value.get<std::string>();
    if (key == "source") want.source = value.get<std::string>();
    if (key == "tolerance") want.tolerance = value.get<double>();
    if (key == "where") want.where = settings_of(value);
    if (key == "below") want.relation = Reference::Relation::kBelow;
    if (is_other) want.other = value.get<std::string>();
    if (key == "value" || (key == "below" && !is_other)) want.value = value;
  }
  require(got.metric == want.metric && got.source == want.source &&
              got.tolerance == want.tolerance && text_of(got.where) == text_of(want.where) &&
              got.relation == want.relation && got.other == want.other &&
              got.value.dump() == want.value.dump(),
          "a reference is not the one written: " + table.dump());
}

/// The cases that a claim or a figure is about.
bool is_picked(const Picked& got, const Json& table) {
  const Json where = table.value("where", Json());
  if (where.is_string()) return got.values.empty() && got.formula == where;
  if (where.is_null()) return got.values.empty() && got.formula.empty();
  const Leaves written = leaves_of(where);
  bool is_same = got.formula.empty() && got.values.size() == written.size();
  for (size_t i = 0; is_same && i < written.size(); ++i) {
    const auto& [key, value] = written[i];
    const Json values = value.is_array() ? value : Json::array({value});
    is_same = got.values[i].first == key && Json(got.values[i].second) == values;
  }
  return is_same;
}

/// Columns, claims and figures, each with the fields of its table and no other.
void check_derived(const Derived& got, const Json& document) {
  using Texts = std::vector<std::pair<const char*, const std::string*>>;
  const auto check = [](const Json& table, const Texts& texts, const std::string& of) {
    for (const auto& [key, value] : texts) {
      require(table.value(key, "") == *value, text(of, ".", key, " is not the one written"));
    }
  };
  const Json none = Json::array(), columns = document.value("column", none);
  const Json claims = document.value("claim", none), figures = document.value("figure", none);
  require(got.columns.size() == columns.size() && got.claims.size() == claims.size() &&
              got.figures.size() == figures.size(),
          "a column, claim or figure too many or too few");
  for (size_t i = 0; i < columns.size(); ++i) {
    const Column& c = got.columns[i];
    check(columns[i], {{"name", &c.name}, {"formula", &c.formula}, {"unit", &c.unit}}, "column");
  }
  for (size_t i = 0; i < claims.size(); ++i) {
    const Claim& c = got.claims[i];
    check(claims[i], {{"name", &c.name}, {"formula", &c.formula}, {"source", &c.source}}, "claim");
    require(c.tolerance == claims[i].value("within", 0.0) && is_picked(c.where, claims[i]),
            "a claim is about other cases than written, or with another tolerance");
  }
  for (size_t i = 0; i < figures.size(); ++i) {
    const FigureSpec& f = got.figures[i];
    check(figures[i],
          {{"kind", &f.kind},
           {"x", &f.x},
           {"y", &f.y},
           {"z", &f.z},
           {"by", &f.by},
           {"log", &f.log},
           {"title", &f.title},
           {"script", &f.script}},
          "figure");
    require(is_picked(f.where, figures[i]), "a figure is about other cases than written");
  }
}

bool is_formula_text(const Json& value) {
  return value.is_string() &&
         (value.get<std::string>().starts_with('=') || value.get<std::string>().starts_with('$'));
}

bool has_formula(const Json& value) {
  if (value.is_string()) return value.get<std::string>().starts_with('=');
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_formula);
}

/// The base with what its formulas give in a case, whose plan is `given`: nobody else computes them
/// here.
Plan base_plan(const Json& base, const Leaves& given) {
  Leaves leaves = leaves_of(base);
  std::erase_if(leaves, [](const auto& leaf) {  // a setting of every case that says nothing else
    return leaf.first == "ranks" && is_formula_text(leaf.second);
  });
  for (auto& [key, value] : leaves) {
    if (!is_formula_text(value)) continue;
    for (const auto& [name, computed] : given) {
      if (name == whole_key(key)) value = computed;
    }
  }
  return walked_plan(leaves);
}

/// What a point asks of the run, and the plan as it is written.
struct Wanted {
  Plan plan;
  int64_t ranks = 0;
  std::string world;
  bool is_certified = true;
  double timeout_s = 120;
};

Wanted wanted(const Point& point, const Json& document, const Leaves& plan) {
  const Json& head = document["suite"];
  Wanted want;
  if (document.contains("base")) want.plan = base_plan(document["base"], plan);
  want.is_certified = head.value("certify", true);
  want.timeout_s = head.value("timeout_s", 120.0);
  for (const auto& [key, value] : point.given) {
    if (key == "ranks") {
      want.ranks = value.get<int64_t>();
    } else if (key == "world") {
      want.world = value.get<std::string>();
    } else if (key == "certify") {
      want.is_certified = value.get<bool>();
    } else if (key == "timeout_s") {
      want.timeout_s = value.get<double>();
    } else {
      // What a text key is given as a number is taken as its text, as on the command line.
      const std::string as_text = value.is_number_float() ? toml_number(value.get<double>())
                                  : value.is_string()     ? value.get<std::string>()
                                                          : value.dump();
      try {
        put(want.plan, key, value);
      } catch (const Finding&) {
        if (value.is_string()) throw;
        put(want.plan, key, as_text);
      }
    }
  }
  return want;
}

/// What resolving fills in where the case has it: replicas, micro-batch, tokens of an image.
void fill(Plan& want, const Case& c, const Plan& got) {
  const double replica = static_cast<double>(want.parallel.pipeline.size) *
                         static_cast<double>(want.parallel.sequence.size) *
                         static_cast<double>(want.parallel.tensor.size);
  const int64_t replicas = got.parallel.data.size, micro = got.train.micro_batch;
  const bool makes_ranks = static_cast<double>(replicas) * replica == static_cast<double>(c.ranks);
  if (want.parallel.data.size == 0 && makes_ranks) want.parallel.data.size = replicas;
  const bool makes_batch = micro * replicas == want.train.batch;
  if (want.train.micro_batch == 0 && makes_batch) want.train.micro_batch = micro;
  const int64_t side = want.model.patch > 0 ? want.model.image / want.model.patch : 0;
  if (want.model.kind == "vit" && got.model.sequence == side * side + 1) {
    want.model.sequence = got.model.sequence;
  }
  if (want.data.hash.empty()) want.data.hash = got.data.hash;
}

/// Why the case is not what the point asks for; empty where it is. Equal cases are run once, under
/// the name of the first: `is_same_run` leaves out the names.
std::string mismatch(const Case& c, const Plan& got, const Point& point, Wanted want,
                     bool is_same_run) {
  if (is_same_run) {
    want.plan.data.path = got.data.path;  // their bytes count, not their places
    want.plan.data.tokenizer = got.data.tokenizer;
    want.plan.data.hash = got.data.hash;
  }
  fill(want.plan, c, got);
  const std::string plan = difference(got, want.plan);
  if (!plan.empty()) return plan;
  if (want.ranks != 0 && c.ranks != want.ranks) return text(c.ranks, " ranks for ", want.ranks);
  if (c.world != want.world) return c.world + " for " + want.world;
  if (c.is_certified != want.is_certified) return "another certify";
  if (is_same_run) return "";
  if (c.timeout_s != want.timeout_s) return text(c.timeout_s, " s for ", want.timeout_s);
  if (c.name != point.name) return c.name + " for " + point.name;
  Settings settings = point.settings;
  if (find(settings, "ranks") == nullptr) settings.emplace_back("ranks", c.ranks);
  if (text_of(c.settings) != text_of(settings)) {
    return text_of(c.settings) + " for " + text_of(settings);
  }
  return "";
}

}  // namespace

void check_suite(const Suite& suite, const std::string& bytes) {
  const Json document = toml_json(bytes);
  check_head(suite, document["suite"]);
  const Json references = document.value("reference", Json::array());
  require(suite.references.size() == references.size(), "a reference too many or too few");
  for (size_t i = 0; i < references.size(); ++i)
    check_reference(suite.references[i], references[i]);
  check_derived(suite.derived, document);
  for (const auto& [name, value] : document.items()) {
    const std::set<std::string> others = {"base", "reference", "column", "claim", "figure"};
    if (!others.contains(name) && has_formula(value)) return;  // names follow from what it gives
  }

  std::vector<Leaves> leaves;
  std::vector<Plan> plans;
  for (const Case& c : suite.cases) {
    leaves.push_back(leaves_of(toml_json(c.plan_values)));
    plans.push_back(walked_plan(leaves.back()));
  }
  size_t next = 0, merged = 0;
  for (const Point& point : points_of(document)) {
    const auto why_not = [&](size_t i, bool is_same_run) {
      return mismatch(suite.cases[i], plans[i], point, wanted(point, document, leaves[i]),
                      is_same_run);
    };
    const std::string why = next < plans.size() ? why_not(next, false) : "no case";
    if (why.empty()) {
      ++next;
      continue;
    }
    bool is_known = false;
    for (size_t i = 0; i < next && !is_known; ++i) is_known = why_not(i, true).empty();
    require(is_known, text("\"", point.name, "\" is not as written: ", why));
    ++merged;
  }
  require(next == plans.size(), "a case that nobody asks for");
  require(suite.notes.size() == merged, "cases are merged without a note");
}

}  // namespace kuafu::fuzz
