// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/expand.h"

#include <algorithm>
#include <map>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/point_formulas.h"

namespace kuafu {
namespace {

constexpr const char* kSeedKey = "train.seed";
constexpr const char* kWorldKey = "world";
constexpr int64_t kMostPoints = 100'000;  ///< of a sweep, skipped ones too: weeks of cases

/// A part of the names of cases, and the values that it runs through.
struct NamePart {
  std::string key;
  std::vector<Json> values;
  int line = 0;
  const Bundle* bundle = nullptr;  ///< the row a part of one value stands for
};

std::string label(const NamePart& part, const Json& value) {
  if (part.bundle != nullptr) return part.bundle->name;
  if (part.key == "ranks") return plain_text(value) + (value == 1 ? " rank" : " ranks");
  if (part.key == "world") return plain_text(value);
  return last_word(part.key) + " " + plain_text(value);
}

/// One choice needs no word in the name, unless it is a number of ranks above 1.
bool is_named(const NamePart& part) {
  return part.bundle != nullptr || part.values.size() > 1 ||
         (part.key == "ranks" && part.values.front() != 1);
}

bool has(const Settings& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const auto& setting) { return setting.first == key; });
}

class Expander {
 public:
  Expander(const SuiteText& suite, const Overrides& overrides)
      : suite_(suite), formulas_(suite, overrides) {}

  std::vector<Point> run() {
    check_suite_axes();
    std::vector<const Bundle*> chosen;
    choose(0, chosen);
    for (const Bundle& extra : suite_.extra) points_.push_back(extra_point(extra));
    check_skips();
    return std::move(points_);
  }

 private:
  template <class... Args>
  void require(bool condition, int line, const Args&... message) const {
    KUAFU_REQUIRE(condition, suite_.origin, ":", line, ": ", message...);
  }

  /// Worlds and seeds multiply a sweep: where there is none they would do nothing.
  void check_suite_axes() const {
    if (!suite_.axes.empty()) return;
    const bool has_worlds = suite_.worlds.size() > 1;
    KUAFU_REQUIRE(!has_worlds && suite_.seeds.empty(), suite_.origin, ": ",
                  has_worlds ? "worlds" : "seeds",
                  " of the suite multiply a sweep, and there is none; give [grid] or [[strategy]]",
                  suite_.extra.empty() ? "" : ", or say in each [[case]] which ",
                  suite_.extra.empty() ? ""
                  : has_worlds         ? "world it has"
                                       : "train.seed it has");
  }

  /// One row of every array of tables; null at the grid's keys.
  void choose(size_t axis, std::vector<const Bundle*>& chosen) {
    if (axis == suite_.axes.size()) {
      if (!suite_.axes.empty()) cross(parts(chosen), chosen);
      return;
    }
    if (suite_.axes[axis].bundles.empty()) {
      chosen.push_back(nullptr);
      choose(axis + 1, chosen);
      chosen.pop_back();
    }
    for (const Bundle& bundle : suite_.axes[axis].bundles) {
      chosen.push_back(&bundle);
      choose(axis + 1, chosen);
      chosen.pop_back();
    }
  }

  std::vector<NamePart> parts(const std::vector<const Bundle*>& chosen) const {
    std::set<std::string> taken;
    for (const Bundle* bundle : chosen) {
      if (bundle == nullptr) continue;
      for (const SweptKey& choice : bundle->choices) {
        require(taken.insert(choice.key).second, choice.line, choice.key,
                " is set by two rows that meet in one case");
      }
    }
    std::vector<NamePart> parts;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const SweepAxis& axis = suite_.axes[i];
      if (chosen[i] == nullptr) {
        if (!taken.contains(axis.name)) parts.push_back({axis.name, axis.values, axis.line});
        continue;
      }
      parts.push_back({axis.name, {Json(chosen[i]->name)}, chosen[i]->line, chosen[i]});
      for (const SweptKey& choice : chosen[i]->choices) {
        if (choice.values.size() > 1 || choice.key == "ranks") {
          parts.push_back({choice.key, choice.values, choice.line});
        }
      }
    }
    add_suite_parts(parts);
    return parts;
  }

  void add_suite_parts(std::vector<NamePart>& parts) const {
    const bool has_world = std::any_of(parts.begin(), parts.end(), [](const NamePart& part) {
      const auto names = [](const auto& choices) {
        return std::any_of(choices.begin(), choices.end(),
                           [](const SweptKey& c) { return c.key == kWorldKey; });
      };
      return part.key == kWorldKey || (part.bundle != nullptr && names(part.bundle->choices));
    });
    if (!has_world) {
      parts.push_back({kWorldKey, {}});
      for (const auto& world : suite_.worlds) parts.back().values.emplace_back(world);
    }
    if (suite_.seeds.empty()) return;
    parts.push_back({kSeedKey, {}});
    for (const int64_t seed : suite_.seeds) parts.back().values.emplace_back(seed);
  }

  void cross(const std::vector<NamePart>& parts, const std::vector<const Bundle*>& chosen) {
    std::vector<size_t> at(parts.size(), 0);
    while (true) {
      require(++num_points_ <= kMostPoints, suite_.axes.front().line, "the sweep has more than ",
              kMostPoints, " points; give fewer values");
      Point point = make_point(parts, at, chosen);
      if (!is_skipped(point)) points_.push_back(std::move(point));
      size_t i = parts.size();
      while (i > 0 && ++at[i - 1] == parts[i - 1].values.size()) at[--i] = 0;
      if (i == 0) return;
    }
  }

  Point make_point(const std::vector<NamePart>& parts, const std::vector<size_t>& at,
                   const std::vector<const Bundle*>& chosen) const {
    Point point;
    point.is_of_sweep = true;
    point.line = suite_.axes.front().line;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Json& value = parts[i].values[at[i]];
      point.settings.emplace_back(parts[i].key, value);
      if (parts[i].bundle != nullptr) continue;
      point.given.emplace_back(parts[i].key, value);
      if (parts[i].line > 0) point.lines[parts[i].key] = parts[i].line;
    }
    for (const Bundle* bundle : chosen) {
      if (bundle == nullptr) continue;
      point.line = bundle->line;
      for (const SweptKey& choice : bundle->choices) {
        if (!has(point.given, choice.key)) {
          point.given.emplace_back(choice.key, choice.values.front());
          point.lines[choice.key] = choice.line;
        }
      }
    }
    put_name(point, parts);  // for messages
    formulas_.follow(point);
    put_name(point, parts);
    return point;
  }

  static void put_name(Point& point, const std::vector<NamePart>& parts) {
    point.name.clear();
    point.labels.clear();
    for (size_t i = 0; i < parts.size(); ++i) {
      point.labels.push_back(is_named(parts[i]) ? label(parts[i], point.settings[i].second) : "");
      if (point.labels.back().empty()) continue;
      point.name += (point.name.empty() ? "" : ", ") + point.labels.back();
    }
    if (point.name.empty()) point.name = "the only case";  // nothing is varied
  }

  bool is_skipped(const Point& point) {
    bool is_any = false;
    std::vector<std::string> keys;
    if (!suite_.skips.empty()) keys = keys_of(point);
    for (size_t s = 0; s < suite_.skips.size(); ++s) {
      const auto& choices = suite_.skips[s].choices;
      for (const SweptKey& choice : choices) {
        const std::string why = why_ambiguous(choice.key, keys);
        require(why.empty(), choice.line, "[[skip]]: ", why);
      }
      const auto is_met = [&](const SweptKey& choice) {
        const Json* value = find_setting(point.settings, choice.key);
        if (value == nullptr) value = find_setting(point.given, choice.key);
        if (value != nullptr) met_[choice.key].insert(*value);
        return value != nullptr &&
               std::find(choice.values.begin(), choice.values.end(), *value) != choice.values.end();
      };
      const bool is_hit =
          std::count_if(choices.begin(), choices.end(), is_met) == std::ssize(choices);
      if (is_hit) used_skips_.insert(s);
      is_any = is_any || is_hit;
    }
    return is_any;
  }

  static std::vector<std::string> keys_of(const Point& point) {
    std::set<std::string> keys;
    for (const Settings* all : {&point.settings, &point.given}) {
      for (const auto& [key, value] : *all) keys.insert(key);
    }
    return {keys.begin(), keys.end()};
  }

  /// A skip that skips nothing is a misspelt key or value, and so is a value that no case has.
  void check_skips() const {
    for (size_t s = 0; s < suite_.skips.size(); ++s) {
      for (const SweptKey& choice : suite_.skips[s].choices) check_skipped_values(choice);
      require(used_skips_.contains(s), suite_.skips[s].line,
              "[[skip]]: no case of the sweep has all of these settings at once");
    }
  }

  void check_skipped_values(const SweptKey& choice) const {
    const auto met = met_.find(choice.key);
    std::vector<std::string> keys;
    for (const Point& point : points_) {
      for (const auto& [key, value] : point.given) keys.push_back(key);
    }
    require(met != met_.end(), choice.line, "[[skip]]: no case of the sweep has the key ",
            in_quotes(choice.key), did_you_mean(choice.key, keys),
            " Allowed is what the sweep or one of its rows sets");
    for (const Json& value : choice.values) {
      if (met->second.contains(value)) continue;
      std::vector<std::string> words;
      for (const Json& known : met->second) words.push_back(known.dump());
      require(false, choice.line, "[[skip]]: no case of the sweep has ", choice.key, " = ",
              value.dump(), "; nearest: ", nearest(value.dump(), words), ". It is ",
              join_or(words));
    }
  }

  const Bundle& row(const SweepAxis& axis, const SweptKey& choice) const {
    std::vector<std::string> names;
    const std::string wanted = plain_text(choice.values.front());
    for (const Bundle& bundle : axis.bundles) {
      if (bundle.name == wanted) return bundle;
      names.push_back(bundle.name);
    }
    throw ConfigError(text(suite_.origin, ":", choice.line, ": no [[", axis.name, "]] is named ",
                           in_quotes(wanted), did_you_mean(wanted, names), " There are ",
                           join(in_quotes(names))));
  }

  Point extra_point(const Bundle& extra) const {
    Point point;
    point.name = extra.name;
    point.line = extra.line;
    std::vector<const Bundle*> rows;
    for (const SweptKey& choice : extra.choices) {
      require(choice.values.size() == 1, choice.line, "[[case]]: ", choice.key,
              " has several values; a case is one");
      point.settings.emplace_back(choice.key, choice.values.front());
      point.lines[choice.key] = choice.line;
      const auto axis = std::find_if(suite_.axes.begin(), suite_.axes.end(), [&](const auto& a) {
        return a.name == choice.key && !a.bundles.empty();
      });
      if (axis == suite_.axes.end())
        point.given.emplace_back(choice.key, choice.values.front());
      else
        rows.push_back(&row(*axis, choice));
    }
    for (const Bundle* bundle : rows) {
      for (const SweptKey& choice : bundle->choices) {
        if (has(point.given, choice.key)) continue;
        require(choice.values.size() == 1, extra.line, "[[case]]: say which ", choice.key, ": ",
                in_quotes(bundle->name), " has several");
        point.given.emplace_back(choice.key, choice.values.front());
        point.lines[choice.key] = choice.line;
      }
    }
    for (const auto& [key, value] : Settings{{"world", suite_.worlds.front()}}) {
      if (has(point.given, key)) continue;
      point.given.emplace_back(key, value);
      point.settings.emplace_back(key, value);
    }
    formulas_.follow(point);
    return point;
  }

  const SuiteText& suite_;
  PointFormulas formulas_;
  std::vector<Point> points_;
  int64_t num_points_ = 0;
  std::set<size_t> used_skips_;
  std::map<std::string, std::set<Json>> met_;  ///< values of the keys that skips name, by key
};

}  // namespace

std::vector<Point> expand(const SuiteText& suite, const Overrides& overrides) {
  std::vector<Point> points = Expander(suite, overrides).run();
  std::map<std::string, const Point*> by_name;
  for (const Point& point : points) {
    const auto [known, is_new] = by_name.emplace(point.name, &point);
    // Of two that are the same in all the later one is left out.
    KUAFU_REQUIRE(
        is_new || known->second->given == point.given, suite.origin, ":", point.line, ": the case ",
        in_quotes(point.name), " has the name of another, asked for at ", suite.origin, ":",
        known->second->line,
        "; tables, references and `compare --by name` tell cases by their names: give it ",
        "another, such as ", in_quotes(point.name + " 2"));
  }
  return points;
}

const Json* find_setting(const Settings& settings, const std::string& key) {
  for (const auto& [name, value] : settings) {
    if (name == key) return &value;
  }
  for (const auto& [name, value] : settings) {
    if (last_word(name) == key) return &value;
  }
  return nullptr;
}

std::string last_word(const std::string& key) {
  const size_t dot = key.rfind('.');
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

std::string named_in_full(const std::string& name, const std::vector<std::string>& keys) {
  if (std::find(keys.begin(), keys.end(), name) != keys.end()) return name;
  const auto known = std::find_if(keys.begin(), keys.end(),
                                  [&](const std::string& key) { return last_word(key) == name; });
  return known == keys.end() ? name : *known;
}

std::string why_ambiguous(const std::string& name, const std::vector<std::string>& keys) {
  if (std::find(keys.begin(), keys.end(), name) != keys.end()) return "";
  std::vector<std::string> meant;
  for (const std::string& key : keys) {
    if (last_word(key) == name) meant.push_back(key);
  }
  if (meant.size() < 2) return "";
  return text(in_quotes(name), " may be ", join_or(meant), "; name it in full");
}

std::string plain_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace kuafu
