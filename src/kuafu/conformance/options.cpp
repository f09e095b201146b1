// SPDX-License-Identifier: Apache-2.0
//
// Values beside the defaults: what is fixed in code where a plan has a key shows by none of the defaults.

#include <algorithm>
#include <array>
#include <string_view>

#include "kuafu/conformance/models.h"
#include "kuafu/conformance/optimizers.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/plan/keys.h"

namespace kuafu::conformance {
namespace {

using plan::Form;
using plan::Key;

/// Keys of [model] that shapes and variants set, and those of layers that are no option of a block.
constexpr std::array<std::string_view, 12> kOfShapes = {
    "model.kind",  "model.layers",  "model.hidden",  "model.heads", "model.vocab", "model.sequence",
    "model.dtype", "model.dropout", "model.experts", "model.image", "model.patch", "model.classes"};

bool is_placed(const Registries& registries, const Overrides& settings) {
  try {
    placed_plan(registries, settings);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// Values of a key besides that of a plan, as --set takes them.
std::vector<std::string> others(const Key& key, const Plan& given) {
  const std::string now = plan::print(key, given);
  std::vector<std::string> all;
  if (key.form == Form::kChoice) {
    for (const std::string& choice : key.choices) {
      if (in_quotes(choice) != now) all.push_back(choice);
    }
  } else if (key.form == Form::kBoolean) {
    all.emplace_back(now == "true" ? "false" : "true");
  } else if (key.form == Form::kNumber) {
    const double value = std::stod(now);
    all.push_back(text(value == 0 ? 0.05 : value / 2));
  } else if (key.form == Form::kAutoInteger) {
    all.emplace_back(key.range.from <= 1 ? "1" : text(key.range.from));
  }
  return all;
}

}  // namespace

std::vector<Variant> model_options(const Registries& registries, const Overrides& base) {
  const Plan given = placed_plan(registries, base);
  std::vector<Variant> all;
  for (const Key& key : plan::keys()) {
    const bool is_of_shape = std::ranges::count(kOfShapes, key.name) > 0;
    if (key.section() != "model" || is_of_shape) continue;
    for (const std::string& value : others(key, given)) {
      const Overrides one = {{key.name, value}};
      if (is_placed(registries, joined(base, one))) {
        all.push_back({text("one rank, ", key.name, " = ", value), one});
      }
    }
  }
  return all;
}

Overrides other_numbers(const Registries& registries, const Overrides& base) {
  const Plan given = placed_plan(registries, base);
  Overrides all;
  for (const Key& key : plan::keys()) {
    if (key.section() != "optimizer" || key.form != Form::kNumber) continue;
    for (const std::string& value : others(key, given)) {
      const Overrides more = joined(all, {{key.name, value}});
      if (is_placed(registries, joined(base, more))) all = more;
    }
  }
  return all;
}

}  // namespace kuafu::conformance
