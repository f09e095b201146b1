// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/config.h"
#include "kuafu/base/plugin_hint.h"
#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/choices.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/layer_ranges.h"
#include "kuafu/plan/plan.h"
#include "kuafu/plan/values.h"

namespace kuafu {
namespace {

using plan::Key;
using Kind = ConfigValue::Kind;

/// One key that a document or the command line gives, and how messages name the place.
struct Given {
  const Key* key;
  ConfigValue value;
  std::string where;  ///< "plan.toml:7: "
};

/// All that is given, in the order written.
struct Document {
  std::vector<Given> keys;
  std::vector<LayerPlan> layers;
  plan::Origins origins;
};

std::vector<std::string> sections() {
  std::vector<std::string> out;
  for (const Key& key : plan::keys()) {
    if (std::find(out.begin(), out.end(), key.section()) == out.end()) {
      out.push_back(key.section());
    }
  }
  return out;
}

bool is_group(const std::string& path) {
  return std::any_of(plan::keys().begin(), plan::keys().end(),
                     [&](const Key& key) { return key.name.starts_with(path + "."); });
}

[[noreturn]] void unknown(const std::string& path, const ConfigValue& value,
                          const std::string& where) {
  const std::string section = path.substr(0, path.find('.'));
  const std::vector<std::string> known = sections();
  const bool in_section = std::find(known.begin(), known.end(), section) != known.end();
  KUAFU_REQUIRE(section != "suite" && section != "base", where, "[", section,
                "] belongs to a suite, and a plan is wanted; run a suite with: kuafu suite FILE");
  if (!in_section && value.kind == Kind::kTable) {
    throw ConfigError(text(where, "unknown section [", section, "]; nearest: [",
                           nearest(section, known), "]; allowed: ", join(known)));
  }
  std::vector<std::string> allowed;
  for (const Key& key : plan::keys()) {
    if (key.section() == section) allowed.push_back(key.name.substr(section.size() + 1));
  }
  if (section == "parallel") allowed.push_back("layers");
  std::string key = path;  // the first one meant, where a table is misspelt
  const auto has_entry = [](const ConfigValue& v) {
    return v.kind == Kind::kTable && !v.entries.empty();
  };
  for (const ConfigValue* v = &value; has_entry(*v); v = &v->entries.front().second) {
    key += "." + v->entries.front().first;
  }
  throw ConfigError(text(
      where, "unknown key ", path, " = ", to_string(value), "; nearest: ", plan::nearest_key(key),
      "; allowed: ",
      in_section ? text("in [", section, "] ", join(allowed)) : text("sections ", join(known))));
}

/// Reads values into `out`, in the order written.
class Reader {
 public:
  explicit Reader(Document& out) : out_(out) {}

  /// `path` is dotted; `origin` with the line of the value opens messages.
  void read(const std::string& path, const ConfigValue& value, const std::string& where) {
    const Key* key = plan::find_key(path);
    if (key != nullptr || path == "parallel.layers") {
      // Only a key in quotes, "model.layers" = 2, is new to the parser.
      KUAFU_REQUIRE(given_.insert(path).second, where, path, " = ", to_string(value),
                    " is given a second time; allowed: once");
    }
    if (key != nullptr) {
      out_.keys.push_back({key, value, where});
    } else if (path == "parallel.layers") {
      out_.layers = plan::read_layers(value, where, origin_, out_.origins);
    } else if (is_group(path)) {
      read_group(path, value, where);
    } else {
      unknown(path, value, where);
    }
  }

  void read_entries(const std::string& prefix, const ConfigValue& table,
                    const std::string& origin) {
    for (const auto& [name, value] : table.entries) {
      origin_ = origin;
      read(prefix + name, value, text(origin, ":", value.line, ": "));
    }
  }

 private:
  void read_group(const std::string& path, const ConfigValue& value, const std::string& where) {
    const bool is_section = path.find('.') == std::string::npos;
    const bool is_number = value.kind == Kind::kInteger || value.kind == Kind::kNumber;
    const Key* size = plan::find_key(path + ".size");
    const bool may_be_auto =
        size != nullptr && size->form == plan::Form::kAutoInteger && value.kind == Kind::kString;
    if (value.kind == Kind::kTable) {
      for (const auto& [name, entry] : value.entries) {
        read(path + "." + name, entry,
             origin_.empty() ? where : text(origin_, ":", entry.line, ": "));
      }
    } else if (is_section) {
      throw ConfigError(text(where, path, " = ", to_string(value), " is ", describe(value.kind),
                             "; allowed: a section [", path, "]"));
    } else if (path == "parallel.tensor") {
      throw ConfigError(text(where, path, " = ", to_string(value), " does not name a scheme; ",
                             "allowed: a table; nearest: tensor = { mode = \"1d\", size = ",
                             is_number ? to_string(value) : "2", " }"));
    } else if (is_number || may_be_auto) {
      read(path + ".size", value, where);
    } else {
      throw ConfigError(text(where, path, " = ", to_string(value), " is ", describe(value.kind),
                             "; allowed: a number of ranks, or a table such as { size = 2 }"));
    }
  }

  Document& out_;
  std::set<std::string> given_;  ///< keys read so far
  std::string origin_;           ///< of the document being read; empty for the command line
};

/// The value of an override: TOML, or a bare word as a string. A key that takes a string takes the
/// text as it stands unless it is quoted.
ConfigValue override_value(const std::string& path, const std::string& given) {
  KUAFU_REQUIRE(is_utf8(path) && is_utf8(given), "--set ", as_utf8(path), "=", as_utf8(given),
                ": not UTF-8, as every value of a plan is");
  ConfigValue bare;
  bare.kind = Kind::kString;
  bare.string = given;
  const std::optional<ConfigValue> value = parse_toml_value(given);
  if (!value) return bare;
  const Key* key = plan::find_key(path);
  const bool takes_string =
      key != nullptr && (key->form == plan::Form::kString || key->form == plan::Form::kChoice);
  const bool is_scalar = value->kind != Kind::kTable && value->kind != Kind::kList;
  return takes_string && is_scalar && value->kind != Kind::kString ? bare : *value;
}

/// Values in the order given: the document, then the command line.
Document read_all(std::string_view toml, std::string_view origin, const Overrides& overrides) {
  Document given;
  Reader(given).read_entries("", parse_toml(toml, origin), std::string(origin));
  for (const auto& [path, value] : overrides) {
    Reader(given).read(path, override_value(path, value), text("--set ", path, ": "));
  }
  return given;
}

}  // namespace

Plan parse_values(std::string_view toml, std::string_view origin, const Overrides& overrides) {
  Plan plan;
  const Document given = read_all(toml, origin, overrides);
  for (const Given& one : given.keys) plan::assign(*one.key, one.value, one.where, plan);
  plan.parallel.layers = given.layers;
  return plan;
}

plan::Origins plan::origins_of(std::string_view toml, std::string_view origin,
                               const Overrides& overrides) {
  Document given = read_all(toml, origin, overrides);
  for (const Given& one : given.keys) given.origins.note(one.key->name, one.where);
  return given.origins;
}

namespace {

/// Whatever was chosen, in the order in which one choice depends on another.
void check_choices(Plan& plan, const Choices& choices, const plan::Origins& origins) {
  plan::check_options(plan, choices, origins);
  plan::check_sequence_mode(plan, choices.sequence, origins);
  plan::complete(plan, origins);
  plan::check_schedule(plan, choices.schedules, origins);
  plan::check_plan(plan, choices.tensor, origins);
}

}  // namespace

Plan parse_plan(std::string_view toml, std::string_view origin, const Choices& choices,
                const Overrides& overrides) {
  Plan plan;
  Document given = read_all(toml, origin, overrides);
  for (const Given& one : given.keys) {
    plan::assign(*one.key, one.value, one.where, plan);
    given.origins.note(one.key->name, one.where);
  }
  plan.parallel.layers = given.layers;
  plan::fill_defaults(plan, given.origins);
  try {
    check_choices(plan, choices, given.origins);
  } catch (const NotFound& e) {
    throw ConfigError(text(e.what(), plugin_hint(choices.plugins)));
  }
  return plan;
}

Plan load_plan(const std::string& path, const Choices& choices, const Overrides& overrides) {
  return parse_plan(read_file(path, "plan"), path, choices, overrides);
}

Plan parse_plan(std::string_view toml, std::string_view origin, const TensorModes& modes,
                const Overrides& overrides, const std::vector<std::string>& models,
                const std::vector<std::string>& attentions) {
  return parse_plan(toml, origin,
                    Choices{.tensor = modes, .models = models, .sequence = attentions}, overrides);
}

Plan load_plan(const std::string& path, const TensorModes& modes, const Overrides& overrides,
               const std::vector<std::string>& models, const std::vector<std::string>& attentions) {
  return parse_plan(read_file(path, "plan"), path, modes, overrides, models, attentions);
}

}  // namespace kuafu
