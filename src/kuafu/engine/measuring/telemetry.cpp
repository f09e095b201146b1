// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/measuring/telemetry.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/optim/layer_watch.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

/// Reads what to_text() wrote.
class SeriesReader {
 public:
  SeriesReader(const std::string& line, const std::string& where)
      : given_(parsed(line)), where_(where) {}

  TelemetrySeries read(int64_t end) const {
    TelemetrySeries series;
    for (const Json& name : list("layers")) {
      require(name.is_string(), "names of layers", name);
      series.layers.push_back(name.get<std::string>());
    }
    const Json steps = list("steps");
    int64_t before = -1;
    for (const Json& given : steps) {
      const auto step = whole_number(given);
      require(step && *step > before, "rising steps", given);
      before = *step;
      if (*step < end) series.steps.push_back(*step);
    }
    for (const TelemetryRows& s : telemetry_rows()) {
      const bool is_later = s.is_optional && given_.is_object() && !given_.contains(s.name);
      const Json rows = is_later ? Json::array() : list(s.name);
      const bool is_absent = rows.empty() && s.is_optional;
      require(is_absent || rows.size() == steps.size(), "a row of each step", rows);
      for (size_t i = 0; i < std::min(series.steps.size(), rows.size()); ++i) {
        (series.*s.rows).push_back(row_of(rows[i], series.layers.size()));
      }
    }
    return series;
  }

 private:
  /// What is no JSON is told as the text it is.
  static Json parsed(const std::string& line) {
    const Json given = Json::parse(line, nullptr, false);
    return given.is_discarded() ? Json(line) : given;
  }
  void require(bool holds, const char* expected, const Json& found) const {
    KUAFU_REQUIRE(holds, where_, ": expected ", expected, ", found ", json_excerpt(found),
                  "; use an earlier checkpoint");
  }
  Json list(const char* key) const {
    const bool is_there = given_.is_object() && given_.contains(key) && given_.at(key).is_array();
    require(is_there, "norms of layers as lists", given_);
    return given_.at(key);
  }
  std::vector<double> row_of(const Json& row, size_t layers) const {
    require(row.is_array() && row.size() == layers, "a number of each layer", row);
    std::vector<double> out;
    for (const Json& x : row) {
      require(x.is_number() || x.is_null(), "a number or null", x);
      out.push_back(x.is_null() ? kNoNumber : x.get<double>());
    }
    return out;
  }

  const Json given_;
  const std::string& where_;
};

}  // namespace

const std::array<TelemetryRows, 6>& telemetry_rows() {
  using S = TelemetrySeries;
  using F = LayerFigures;
  static constexpr std::array<TelemetryRows, 6> kAll = {
      TelemetryRows{"gradient_norm", &S::gradient_norm, &F::gradient_norm, false},
      TelemetryRows{"weight_norm", &S::weight_norm, &F::weight_norm, false},
      TelemetryRows{"update_ratio", &S::update_ratio, &F::update_ratio, false},
      TelemetryRows{"trust_ratio", &S::trust_ratio, &F::trust_ratio, true},
      TelemetryRows{"gradient_variance", &S::gradient_variance, &F::gradient_variance, true},
      TelemetryRows{"gradient_square", &S::gradient_square, &F::gradient_square, true}};
  return kAll;
}

void TelemetrySeries::add(int64_t step, const LayerFigures& figures) {
  const std::vector<double> none(figures.gradient_norm.size(), kNoNumber);
  for (const TelemetryRows& s : telemetry_rows()) {
    std::vector<std::vector<double>>& rows = this->*s.rows;
    const std::vector<double>& row = figures.*s.figures;
    if (row.empty() && rows.empty()) continue;
    rows.resize(steps.size(), none);  // it may go on from a run of other replicas, which had none
    rows.push_back(row.empty() ? none : row);
  }
  steps.push_back(step);
}

bool has_noise(const Plan& plan, const pipeline::Timetable& schedule) {
  const auto is_late = [](const pipeline::Action& a) { return a.op == pipeline::Op::kWeightGrad; };
  const bool is_mixed = std::any_of(
      schedule.begin(), schedule.end(),
      [&](const pipeline::Row& row) { return std::any_of(row.begin(), row.end(), is_late); });
  return !is_mixed && (plan.parallel.data.size > 1 || plan.num_micro_batches() > 1);
}

double noise_scale(const TelemetrySeries& series, size_t i) {
  double variance = 0, square = 0;
  for (size_t l = 0; l < series.layers.size(); ++l) {
    const double v = series.gradient_variance[i][l], s = series.gradient_square[i][l];
    if (std::isnan(v) || std::isnan(s)) return kNoNumber;
    variance += v;
    square += s;
  }
  return variance > 0 && square > 0 ? variance / square : kNoNumber;
}

std::vector<std::string> layer_names(const Param& p) {
  const int64_t layers = num_layers(p);
  if (layers == 1) return {p.name};
  std::vector<std::string> names;
  for (int64_t i = 0; i < layers; ++i) names.push_back(text(p.name, "[", i, "]"));
  return names;
}

LayerFigures figures_of(const Tensor& table, bool has_ratios, bool has_noise) {
  const Tensor host = table.cpu().contiguous();
  const double* x = host.const_data_ptr<double>();
  LayerFigures out;
  for (int64_t i = 0; i < host.size(0); ++i, x += LayerWatch::kNumColumns) {
    const double weight = std::sqrt(x[LayerWatch::kWeight]);
    const double update = std::sqrt(x[LayerWatch::kUpdate]);
    out.gradient_norm.push_back(std::sqrt(x[LayerWatch::kGradient]));
    out.weight_norm.push_back(weight);
    out.update_ratio.push_back(weight > 0 ? update / weight : kNoNumber);
    if (has_ratios) out.trust_ratio.push_back(x[LayerWatch::kRatio]);
    if (!has_noise) continue;
    out.gradient_variance.push_back(x[LayerWatch::kVariance]);
    out.gradient_square.push_back(x[LayerWatch::kSquare]);
  }
  return out;
}

Json to_json(const TelemetrySeries& series) {
  Json j = {{"layers", series.layers}, {"steps", series.steps}};
  for (const TelemetryRows& s : telemetry_rows()) j[s.name] = series.*s.rows;
  Json& scales = j["noise_scale"] = Json::array();
  for (size_t i = 0; i < series.gradient_variance.size(); ++i) {
    scales.push_back(noise_scale(series, i));
  }
  return j;
}

std::string to_text(const TelemetrySeries& series) { return json_line(to_json(series)); }

TelemetrySeries telemetry_from(const std::string& line, const std::vector<std::string>& layers,
                               int64_t end, const std::string& where) {
  TelemetrySeries series = SeriesReader(line, where).read(end);
  KUAFU_REQUIRE(series.layers == layers, where, ": expected norms of the model's ", layers.size(),
                " layers, found ", series.layers.size(),
                series.layers.size() == layers.size() ? " of other names" : "",
                "; use an earlier checkpoint");
  return series;
}

}  // namespace kuafu
