// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/derived_text.h"

#include <algorithm>
#include <filesystem>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/formula.h"

namespace kuafu {
namespace {

using Kind = ConfigValue::Kind;

const std::vector<std::string> kKinds = {"line", "bar", "scatter", "heatmap"};
const std::vector<std::string> kLogs = {"x", "y", "xy"};

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

void DerivedReader::unknown(const ConfigValue& value, const std::string& section,
                            const std::string& key, const std::vector<std::string>& known) const {
  throw ConfigError(text(origin_, ":", value.line, ": unknown key ", in_quotes(section + "." + key),
                         did_you_mean(key, known), " Known are ", join(known)));
}

std::string DerivedReader::formula(const ConfigValue& value, const std::string& key) const {
  const std::string written = string(value, key);
  try {
    parse_formula(written);
  } catch (const ConfigError& error) {
    require(false, value.line, key, ": ", error.what());
  }
  return written;
}

Picked DerivedReader::picked(const ConfigValue& value) const {
  Picked where;
  if (value.kind == Kind::kString) {
    where.formula = formula(value, "where");
    return where;
  }
  require(value.kind == Kind::kTable, value.line,
          "where: expected a table { key = value } or a formula, given ", to_string(value));
  std::vector<SweptKey> choices;
  for (const auto& [key, inner] : value.entries) collect(inner, key, choices);
  for (SweptKey& choice : choices) where.values.emplace_back(choice.key, std::move(choice.values));
  return where;
}

Column DerivedReader::column(const ConfigValue& table) const {
  Column out;
  out.line = table.line;
  for (const auto& [key, value] : table.entries) {
    if (key == "name")
      out.name = string(value, key);
    else if (key == "formula")
      out.formula = formula(value, key);
    else if (key == "unit")
      out.unit = string(value, key);
    else
      unknown(value, "column", key, {"name", "formula", "unit"});
  }
  require(!out.name.empty(), table.line, "[[column]]: name is missing");
  require(out.name.find('`') == std::string::npos, table.line,
          "[[column]]: no ` in a name: formulas write names between them");
  require(!out.formula.empty(), table.line, "[[column]] ", in_quotes(out.name),
          ": formula is missing");
  return out;
}

Claim DerivedReader::claim(const ConfigValue& table) const {
  Claim out;
  out.line = table.line;
  for (const auto& [key, value] : table.entries) {
    if (key == "name")
      out.name = string(value, key);
    else if (key == "formula")
      out.formula = formula(value, key);
    else if (key == "source")
      out.source = string(value, key);
    else if (key == "where")
      out.where = picked(value);
    else if (key == "within")
      out.tolerance = tolerance(value, key);
    else
      unknown(value, "claim", key, {"name", "formula", "source", "where", "within"});
  }
  require(!out.name.empty(), table.line, "[[claim]]: name is missing");
  const auto needs = [&](const std::string& value, const char* key) {
    require(!value.empty(), table.line, "[[claim]] ", in_quotes(out.name), ": ", key,
            " is missing");
  };
  needs(out.formula, "formula");
  needs(out.source, "source, where the claim comes from,");
  return out;
}

FigureSpec DerivedReader::figure(const ConfigValue& table) const {
  FigureSpec out;
  out.line = table.line;
  const std::vector<std::pair<std::string, std::string*>> texts = {
      {"kind", &out.kind}, {"x", &out.x},     {"y", &out.y},         {"z", &out.z},
      {"by", &out.by},     {"log", &out.log}, {"title", &out.title}, {"script", &out.script}};
  for (const auto& [key, value] : table.entries) {
    const auto known = std::find_if(texts.begin(), texts.end(),
                                    [&, name = key](const auto& t) { return t.first == name; });
    if (known != texts.end()) {
      *known->second = string(value, key);
    } else if (key == "where") {
      out.where = picked(value);
    } else {
      std::vector<std::string> names = {"where"};
      for (const auto& [name, to] : texts) names.push_back(name);
      unknown(value, "figure", key, names);
    }
  }
  if (out.script.empty())
    check_figure(out, table);
  else
    check_script(out, table);
  return out;
}

void DerivedReader::check_figure(const FigureSpec& figure, const ConfigValue& table) const {
  const auto one_of = [&](const char* key, const std::string& given,
                          const std::vector<std::string>& allowed) {
    const ConfigValue* value = table.find(key);
    require(is_one_of(given, allowed), value == nullptr ? table.line : value->line, "figure.", key,
            " ", in_quotes(given), " is none of ", join(in_quotes(allowed)),
            did_you_mean(given, allowed));
  };
  require(!figure.kind.empty(), table.line, "[[figure]]: kind (", join(kKinds),
          ") or script is missing");
  one_of("kind", figure.kind, kKinds);
  if (!figure.log.empty()) one_of("log", figure.log, kLogs);
  require(!figure.x.empty() && !figure.y.empty(), table.line,
          "[[figure]]: ", figure.x.empty() ? "x" : "y",
          " is missing: a metric, a setting or a [[column]]");
  const bool is_map = figure.kind == "heatmap";
  require(is_map == !figure.z.empty(), table.line, "[[figure]]: ",
          is_map ? "a heatmap wants z, whose value is the colour"
                 : "z is the colour of a heatmap; a " + figure.kind + " has none");
  require(!is_map || figure.log.empty(), table.line, "[[figure]]: a heatmap has no log axis");
}

void DerivedReader::check_script(const FigureSpec& figure, const ConfigValue& table) const {
  namespace fs = std::filesystem;
  const ConfigValue* value = table.find("script");
  for (const std::string* key : {&figure.kind, &figure.x, &figure.y, &figure.z, &figure.by,
                                 &figure.log, &figure.where.formula}) {
    require(key->empty() && figure.where.values.empty(), table.line,
            "[[figure]]: a script draws by itself; beside it only title is allowed");
  }
  const fs::path path = fs::path(origin_).parent_path() / figure.script;
  std::error_code error;
  require(fs::path(figure.script).extension() == ".py", value->line, "figure.script ",
          in_quotes(figure.script), ": expected a Python file, *.py");
  require(fs::is_regular_file(path, error), value->line, "figure.script ", in_quotes(figure.script),
          ": no such file ", in_quotes(path.lexically_normal().string()),
          "; paths in a suite are relative to the suite's file");
}

}  // namespace kuafu
