// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/written_plan.h"

#include <algorithm>
#include <map>
#include <optional>

#include "kuafu/base/config.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/baselines.h"

namespace kuafu {
namespace {

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

}  // namespace

std::string written_plan(const std::string& base, const std::string& origin,
                         const Overrides& overrides) {
  Written lines;
  lines.put_table("", parse_toml(base, origin));
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

}  // namespace kuafu
