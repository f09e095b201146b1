// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "app/worker/fuzz.h"
#include "kuafu/base/config.h"

namespace kuafu::fuzz {
namespace {

/// Half of a number written as TOML; none where it is none, or too small to halve.
std::optional<std::string> halved(const std::string& value) {
  const std::optional<ConfigValue> number = parse_toml_value(value);
  if (!number || number->kind != ConfigValue::Kind::kInteger || number->integer < 2) return {};
  return text(number->integer / 2);
}

}  // namespace

Overrides minimise(Overrides settings, PlanEnding wanted, int64_t trials,
                   const std::function<PlanEnding(const Overrides&)>& try_plan) {
  const auto take = [&](const Overrides& next) {
    if (trials-- <= 0 || try_plan(next) != wanted) return false;
    settings = next;
    return true;
  };
  for (bool is_smaller = true; is_smaller && trials > 0;) {
    is_smaller = false;
    for (size_t i = settings.size(); i-- > 0;) {
      Overrides next = settings;
      next.erase(next.begin() + static_cast<long>(i));
      is_smaller = take(next) || is_smaller;
    }
    for (size_t i = 0; i < settings.size(); ++i) {
      while (const auto half = halved(settings[i].second)) {
        Overrides next = settings;
        next[i].second = *half;
        if (!take(next)) break;
        is_smaller = true;
      }
    }
  }
  return settings;
}

}  // namespace kuafu::fuzz
