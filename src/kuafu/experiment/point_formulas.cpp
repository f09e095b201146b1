// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/point_formulas.h"

#include <algorithm>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/formula.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

bool is_key(const std::string& key, const std::string& name) {
  return key == name || whole_key(key) == whole_key(name);
}

bool is_size(const plan::Key* key) {
  return key != nullptr &&
         (key->form == plan::Form::kBytes || key->form == plan::Form::kOptionalBytes);
}

bool wants_whole(const std::string& key) {
  if (key == "ranks") return true;
  const plan::Key* known = plan::find_key(whole_key(key));
  return is_size(known) || (known != nullptr && (known->form == plan::Form::kInteger ||
                                                 known->form == plan::Form::kAutoInteger));
}

/// "1 MiB" of a key that holds a size is a number of bytes.
Value value_of(const std::string& name, const Json& json) {
  if (json.is_string() && is_size(plan::find_key(whole_key(name)))) {
    try {
      return Value::whole(parse_bytes(json.get<std::string>()));
    } catch (const ConfigError&) {  // "unlimited", or what the plan's reader will refuse
    }
  }
  return Value::of(json, name);
}

}  // namespace

bool is_formula(const Json& value) {
  if (!value.is_string()) return false;
  const auto& word = value.get_ref<const std::string&>();
  return word.starts_with('$') || word.starts_with('=');
}

/// The keys of one point as names, each computed when it is first asked for.
class PointScope : public FormulaScope {
 public:
  PointScope(const PointFormulas& all, Point& point)
      : all_(all), point_(point), is_done_(point.given.size(), false) {}

  void run() {
    for (size_t i = 0; i < point_.given.size(); ++i) settle(i);
  }

  Value value(const std::string& name) const override {
    const Json found = look_up(name);
    if (found.is_number_float() && wants_whole(name)) {
      const auto other = find(name);
      const std::string& whose = other ? key(*other) : name;
      const auto line = point_.lines.find(whose);
      throw ConfigError(text(all_.suite_.origin, ":",
                             line == point_.lines.end() ? point_.line : line->second, ": ", whose,
                             " = ", found.dump(), ": expected a whole number; ", key(open_.back()),
                             " follows from it\n  in the case ", in_quotes(point_.name)));
    }
    return value_of(name, found);
  }

 private:
  const std::string& key(size_t i) const { return point_.given[i].first; }

  [[noreturn]] void fail(size_t i, const std::string& what) const {
    const auto line = point_.lines.find(key(i));
    throw ConfigError(text(all_.suite_.origin, ":",
                           line == point_.lines.end() ? point_.line : line->second, ": ", key(i),
                           " = ", in_quotes(written_.at(i)), ": ", what, "\n  in the case ",
                           in_quotes(point_.name)));
  }

  /// Another key of the point; its own only by its whole name, which is a circle.
  std::optional<size_t> find(const std::string& name) const {
    for (size_t i = 0; i < point_.given.size(); ++i) {
      if (is_key(key(i), name)) return i;
    }
    for (size_t i = 0; i < point_.given.size(); ++i) {
      const bool is_own = !open_.empty() && open_.back() == i;
      if (!is_own && last_word(key(i)) == name) return i;
    }
    return std::nullopt;
  }

  Json look_up(const std::string& name) const {
    for (const auto& [key, given] : all_.overrides_) {
      if (!is_key(key, name)) continue;
      const auto value = parse_toml_value(given);
      return value ? json_value(*value).value_or(Json(given)) : Json(given);
    }
    if (const auto other = find(name)) {
      settle(*other);
      return point_.given[*other].second;
    }
    if (auto value = all_.base_value(whole_key(name), point_.is_comparison)) return *value;
    if (name == "ranks") fail(open_.back(), "the case has no key ranks; give it ranks");
    std::vector<std::string> names = {"ranks"};
    for (const auto& [key, value] : point_.given) {
      if (key != "ranks") names.push_back(key);
    }
    const std::string own = join(names);
    for (const KeyDoc& doc : plan_keys()) names.push_back(doc.key);
    fail(open_.back(), text("the case has no key ", name, did_you_mean_name(name, names),
                            " It gives ", own, "; every other plan key has the base's value"));
  }

  void settle(size_t i) const {
    if (is_done_[i] || !is_formula(point_.given[i].second)) return;
    written_.emplace(i, point_.given[i].second.get<std::string>());
    if (const auto at = std::find(open_.begin(), open_.end(), i); at != open_.end()) {
      std::string circle;
      for (auto step = at; step != open_.end(); ++step) circle += key(*step) + " -> ";
      fail(i, text("goes in a circle: ", circle, key(i)));
    }
    open_.push_back(i);
    const std::string& word = written_.at(i);
    const Json value = word[0] == '$' ? look_up(word.substr(1)) : computed(i, word.substr(1));
    open_.pop_back();
    point_.given[i].second = value;
    is_done_[i] = true;
  }

  Json computed(size_t i, const std::string& word) const {
    std::optional<Formula> formula;
    try {
      formula.emplace(word);
    } catch (const ConfigError& error) {
      fail(i, error.what());
    }
    formula->visit([&](const FormulaNode& node, bool) {
      if (is_aggregate(node) || (node.kind == FormulaNode::Kind::kCall && node.word == "at")) {
        fail(i,
             text(node.word, "() looks at finished cases; a setting is computed before any runs"));
      }
    });
    const Value value = formula->evaluate(*this);
    const auto with = [&] {
      const std::string values = formula->values_shown(*this);
      return values.empty() ? "" : ", with " + values;
    };
    if (value.is_absent()) fail(i, value.words + with());
    const Json json = value.json();
    if (wants_whole(key(i)) && value.is_number() && !json.is_number_integer()) {
      fail(i, text("is ", value.shown(), with(), ", and ", key(i),
                   " is a whole number; use ceil(), floor() or round(), or other values"));
    }
    return json;
  }

  const PointFormulas& all_;
  Point& point_;
  // What is computed is kept in the point; asking for a name may compute it.
  mutable std::vector<bool> is_done_;
  mutable std::vector<size_t> open_;
  mutable std::map<size_t, std::string> written_;
};

PointFormulas::PointFormulas(const SuiteText& suite, Overrides overrides)
    : suite_(suite), overrides_(std::move(overrides)) {}

std::optional<Json> PointFormulas::base_value(const std::string& key, bool is_comparison) const {
  if (plan::find_key(key) == nullptr) return std::nullopt;
  auto& base = base_[is_comparison ? 1 : 0];
  if (!base) {
    const std::string toml = is_comparison ? without_parallel(suite_.base) : suite_.base;
    base = parse_toml(whole_toml(parse_values(toml, suite_.origin, overrides_)), suite_.origin);
  }
  const ConfigValue* at = find_dotted(*base, key);
  return at == nullptr ? std::nullopt : json_value(*at);
}

void PointFormulas::follow(Point& point) const {
  for (const SweptKey& choice : suite_.base_formulas) {
    const auto is_same = [&](const auto& given) { return is_key(given.first, choice.key); };
    const bool is_replaced = std::any_of(point.given.begin(), point.given.end(), is_same) ||
                             std::any_of(overrides_.begin(), overrides_.end(), is_same) ||
                             (point.is_comparison && choice.key.starts_with("parallel."));
    if (is_replaced) continue;
    point.given.emplace_back(choice.key, choice.values.front());
    point.lines[choice.key] = choice.line;
  }
  PointScope(*this, point).run();
  for (auto& [key, value] : point.settings) {
    for (const auto& [name, computed] : point.given) {
      if (name == key && is_formula(value)) value = computed;
    }
  }
}

}  // namespace kuafu
