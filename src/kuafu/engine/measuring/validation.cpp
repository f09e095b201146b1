// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/measuring/validation.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

thread_local const std::function<bool()>* watching = nullptr;

}  // namespace

void ValidationSeries::add(int64_t step, double loss) {
  steps.push_back(step);
  losses.push_back(loss);
}

std::optional<size_t> ValidationSeries::best() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (std::isfinite(losses[i]) && (!best || losses[i] < losses[*best])) best = i;
  }
  return best;
}

bool ValidationSeries::is_best(int64_t step) const {
  return has(step) && best() == steps.size() - 1;
}

std::string to_text(const ValidationSeries& series) {
  return json_line({{"steps", series.steps}, {"losses", series.losses}});  // NaN is null there
}

ValidationSeries validation_from(const std::string& line, int64_t last, const std::string& where) {
  const Json given = Json::parse(line, nullptr, false);
  const auto list = [&](const char* key) {
    return given.is_object() && given.contains(key) ? given.at(key) : Json();
  };
  const Json steps = list("steps"), losses = list("losses");
  const auto require = [&](bool holds) {
    KUAFU_REQUIRE(holds, where, ": expected rising steps up to ", last, " and a loss each, found ",
                  given.is_discarded() ? json_excerpt(Json(line)) : json_excerpt(given),
                  "; use an earlier checkpoint");
  };
  require(steps.is_array() && losses.is_array() && steps.size() == losses.size());
  ValidationSeries series;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t before = series.steps.empty() ? 0 : series.steps.back();
    const auto step = whole_number(steps[i]);
    require(step && *step > before && *step <= last &&
            (losses[i].is_number() || losses[i].is_null()));
    series.add(*step, losses[i].is_null() ? std::numeric_limits<double>::quiet_NaN()
                                          : losses[i].get<double>());
  }
  return series;
}

ValidationWatch::ValidationWatch(std::function<bool()> ends) : ends_(std::move(ends)) {
  watching = &ends_;
}

ValidationWatch::~ValidationWatch() { watching = nullptr; }

void ValidationWatch::ask() {
  if (watching != nullptr && (*watching)()) throw ValidationEnded();
}

bool has_same_validation(const Plan& a, const Plan& b) {
  const bool has_same_bytes =
      a.data.hash.empty() || b.data.hash.empty() || a.data.hash == b.data.hash;
  return has_same_bytes && a.data.kind == b.data.kind && a.data.validation == b.data.validation &&
         a.data.document_mask == b.data.document_mask &&
         a.model.capacity_factor == b.model.capacity_factor && a.train.batch == b.train.batch &&
         a.train.seed == b.train.seed && a.train.validation_batches == b.train.validation_batches;
}

}  // namespace kuafu
