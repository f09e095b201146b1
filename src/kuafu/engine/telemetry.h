// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/record/json.h"
#include "kuafu/tensor/param.h"

namespace kuafu {

/// What a step did to each layer of the model. NaN: the step updated nothing of it.
struct LayerFigures {
  std::vector<double> gradient_norm;  ///< summed over the batch, neither clipped nor scaled
  std::vector<double> weight_norm;    ///< before the update; half precision: of the master copy
  std::vector<double> update_ratio;   ///< norm of the change over weight_norm; NaN where that is 0
  std::vector<double> trust_ratio;    ///< as the rule used it; empty where it has none
};

/// Of every step, the same on every rank.
struct TelemetrySeries {
  std::vector<std::string> layers;  ///< "blocks.0.mlp.up.weight"
  std::vector<int64_t> steps;       ///< from 0, rising
  /// By step, then by layer.
  std::vector<std::vector<double>> gradient_norm, weight_norm, update_ratio, trust_ratio;

  bool is_empty() const { return steps.empty(); }
  void add(int64_t step, const LayerFigures& figures);
};

/// The series of it by name.
struct TelemetryRows {
  const char* name;
  std::vector<std::vector<double>> TelemetrySeries::*rows;
};
const std::array<TelemetryRows, 4>& telemetry_rows();

/// A parameter's layers by name: "blocks.0.attention.qkv.weight[0]" of several.
std::vector<std::string> layer_names(const Param& p);

/// From the table of a LayerWatch, (layers, 4) f64: squares, and ratios.
LayerFigures figures_of(const Tensor& table, bool has_ratios);

/// {"layers", "steps", each series}; NaN where there is no number.
Json to_json(const TelemetrySeries& series);
/// The same as one line for a checkpoint's state, and back, of the steps before `end`. Throws ConfigError with
/// `where` for what is no series.
std::string to_text(const TelemetrySeries& series);
TelemetrySeries telemetry_from(const std::string& line, int64_t end, const std::string& where);

}  // namespace kuafu
