// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "tests/fuzz/targets.h"
#include "tests/fuzz/toml_walk.h"

namespace kuafu::fuzz {
namespace {

using Values = std::vector<Json>;
using Choices = std::vector<std::pair<std::string, Values>>;

/// A row of [[case]], [[skip]] or of an axis of rows.
struct Row {
  std::string name;
  Choices choices;
};

struct Axis {
  std::string key;
  Values values;          ///< of a key of [grid]
  std::vector<Row> rows;  ///< else
};

struct Sweep {
  std::vector<Axis> axes;
  std::vector<Row> extra, skips;
  Values worlds = {"threads"}, seeds;
  Settings base;  ///< every plan key as the base has it, formulas aside
};

Values values_of(const Json& value) {
  return value.is_array() ? Values(value.begin(), value.end()) : Values{value};
}

Row row_of(const Json& table, bool is_named) {
  Row row;
  for (const auto& [key, value] : leaves_of(table)) {
    if (is_named && key == "name") {
      row.name = value.get<std::string>();
    } else {
      row.choices.emplace_back(key, values_of(value));
    }
  }
  return row;
}

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string last_word(const std::string& key) { return key.substr(key.rfind('.') + 1); }

bool has(const Settings& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const auto& setting) { return setting.first == key; });
}

Settings values_of_base(const Json& base) {
  Leaves leaves = leaves_of(base);
  std::erase_if(leaves, [](const auto& leaf) {
    const std::string word = leaf.second.is_string() ? leaf.second.template get<std::string>() : "";
    return word.starts_with('$') || word.starts_with('=');
  });
  return leaves_of(toml_json(whole_toml(walked_plan(leaves))));
}

Sweep sweep_of(const Json& document) {
  Sweep sweep;
  sweep.base = values_of_base(document.value("base", Json::object()));
  const Json& head = document["suite"];
  if (head.contains("world")) sweep.worlds = {head["world"]};
  if (head.contains("worlds")) sweep.worlds = values_of(head["worlds"]);
  if (head.contains("world") && head.contains("worlds")) {  // the later one counts
    for (const auto& [key, value] : head.items()) {
      if (key == "world" || key == "worlds") sweep.worlds = values_of(value);
    }
  }
  if (head.contains("seeds")) sweep.seeds = values_of(head["seeds"]);
  for (const auto& [name, value] : document.items()) {
    const std::set<std::string> others = {"suite",  "base",  "compare", "reference",
                                          "column", "claim", "figure"};
    if (others.contains(name)) continue;
    if (name == "grid") {
      for (const auto& [key, list] : leaves_of(value)) sweep.axes.push_back({key, list, {}});
      continue;
    }
    std::vector<Row> rows;
    for (const Json& item : value) rows.push_back(row_of(item, name != "skip"));
    if (name == "case") sweep.extra = rows;
    if (name == "skip") sweep.skips = rows;
    if (name != "case" && name != "skip") sweep.axes.push_back({name, {}, rows});
  }
  return sweep;
}

/// "$key" takes the value that another key was given, else the one that the base has.
void follow(Point& point, const Settings& base) {
  const Settings before = point.given;
  for (Settings* settings : {&point.given, &point.settings}) {
    for (auto& [key, value] : *settings) {
      const std::string word = value.is_string() ? value.get<std::string>() : "";
      if (word.empty() || word[0] != '$') continue;
      const Json* other = find(before, word.substr(1));
      if (other == nullptr) other = find(base, word.substr(1));
      require(other != nullptr, word + " stands for nothing and is taken");
      value = *other;
    }
  }
}

/// All points of the axes in their order, the last one fastest.
class Expansion {
 public:
  explicit Expansion(const Sweep& sweep) : sweep_(sweep) {}

  std::vector<Point> run() {
    std::vector<const Row*> chosen;
    if (!sweep_.axes.empty()) choose(chosen);
    for (const Row& extra : sweep_.extra) points_.push_back(extra_point(extra));
    return std::move(points_);
  }

 private:
  struct NamePart {
    std::string key;
    Values values;
    bool is_row = false;
  };

  void choose(std::vector<const Row*>& chosen) {
    if (chosen.size() == sweep_.axes.size()) return cross(chosen, parts_of(chosen), {});
    const std::vector<Row>& rows = sweep_.axes[chosen.size()].rows;
    for (size_t i = 0; i < std::max<size_t>(1, rows.size()); ++i) {
      chosen.push_back(rows.empty() ? nullptr : &rows[i]);
      choose(chosen);
      chosen.pop_back();
    }
  }

  std::vector<NamePart> parts_of(const std::vector<const Row*>& chosen) const {
    std::set<std::string> of_rows;
    for (const Row* row : chosen) {
      for (const auto& [key, values] : row == nullptr ? Choices() : row->choices) {
        require(of_rows.insert(key).second, key + " is set by two rows of a case");
      }
    }
    std::vector<NamePart> parts;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const Axis& axis = sweep_.axes[i];
      if (chosen[i] == nullptr) {
        if (!of_rows.contains(axis.key)) parts.push_back({axis.key, axis.values});
        continue;
      }
      parts.push_back({axis.key, {chosen[i]->name}, true});
      for (const auto& [key, values] : chosen[i]->choices) {
        if (values.size() > 1 || key == "ranks") parts.push_back({key, values});
      }
    }
    parts.push_back({"world", sweep_.worlds});
    if (!sweep_.seeds.empty()) parts.push_back({"train.seed", sweep_.seeds});
    return parts;
  }

  void cross(const std::vector<const Row*>& chosen, const std::vector<NamePart>& parts,
             const Values& picked) {
    if (picked.size() == parts.size()) return add(chosen, parts, picked);
    for (const Json& value : parts[picked.size()].values) {
      Values more = picked;
      more.push_back(value);
      cross(chosen, parts, more);
    }
  }

  void add(const std::vector<const Row*>& chosen, const std::vector<NamePart>& parts,
           const Values& picked) {
    Point point;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string label = label_of(parts[i], picked[i]);
      if (!label.empty()) point.name += (point.name.empty() ? "" : ", ") + label;
      point.settings.emplace_back(parts[i].key, picked[i]);
      if (!parts[i].is_row) point.given.emplace_back(parts[i].key, picked[i]);
    }
    for (const Row* row : chosen) {
      for (const auto& [key, values] : row == nullptr ? Choices() : row->choices) {
        if (!has(point.given, key)) point.given.emplace_back(key, values.front());
      }
    }
    follow(point, sweep_.base);
    if (!is_skipped(point)) points_.push_back(std::move(point));
  }

  static std::string label_of(const NamePart& part, const Json& value) {
    if (part.is_row) return plain(value);
    const bool is_ranks = part.key == "ranks";
    if (part.values.size() == 1 && (!is_ranks || value == 1)) return "";
    if (is_ranks) return plain(value) + (value == 1 ? " rank" : " ranks");
    return part.key == "world" ? plain(value) : last_word(part.key) + " " + plain(value);
  }

  bool is_skipped(const Point& point) const {
    return std::any_of(sweep_.skips.begin(), sweep_.skips.end(), [&](const Row& skip) {
      return std::all_of(skip.choices.begin(), skip.choices.end(), [&](const auto& choice) {
        const Json* value = find(point.settings, choice.first);
        if (value == nullptr) value = find(point.given, choice.first);
        return value != nullptr &&
               std::find(choice.second.begin(), choice.second.end(), *value) != choice.second.end();
      });
    });
  }

  Point extra_point(const Row& extra) const {
    Point point;
    point.name = extra.name;
    std::vector<const Row*> rows;
    for (const auto& [key, values] : extra.choices) {
      require(values.size() == 1, "a [[case]] of several values");
      point.settings.emplace_back(key, values.front());
      const Row* row = nullptr;
      bool names_row = false;
      for (const Axis& axis : sweep_.axes) {
        if (axis.key != key || axis.rows.empty()) continue;
        names_row = true;
        for (const Row& one : axis.rows) {
          if (row == nullptr && one.name == plain(values.front())) row = &one;
        }
      }
      require(!names_row || row != nullptr, "a [[case]] of no row");
      if (names_row) rows.push_back(row);
      if (!names_row) point.given.emplace_back(key, values.front());
    }
    for (const Row* row : rows) {
      for (const auto& [key, values] : row->choices) {
        if (!has(point.given, key)) point.given.emplace_back(key, values.front());
      }
    }
    if (!has(point.given, "world")) {
      point.given.emplace_back("world", sweep_.worlds.front());
      point.settings.emplace_back("world", sweep_.worlds.front());
    }
    follow(point, sweep_.base);
    return point;
  }

  const Sweep& sweep_;
  std::vector<Point> points_;
};

}  // namespace

const Json* find(const Settings& settings, const std::string& key) {
  for (const auto& [name, value] : settings) {
    if (name == key) return &value;
  }
  for (const auto& [name, value] : settings) {
    if (last_word(name) == key) return &value;
  }
  return nullptr;
}

std::vector<Point> points_of(const Json& document) {
  const Sweep sweep = sweep_of(document);
  return Expansion(sweep).run();
}

}  // namespace kuafu::fuzz
