// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/parallel/pipeline/timetable.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"
#include "kuafu/tensor/param.h"

namespace kuafu {

/// What a step did to each layer of the model. NaN: the step updated nothing of it.
struct LayerFigures {
  std::vector<double> gradient_norm;  ///< summed over the batch, neither clipped nor scaled
  std::vector<double> weight_norm;    ///< before the update; half precision: of the master copy
  std::vector<double> update_ratio;   ///< norm of the change over weight_norm; NaN where that is 0
  std::vector<double> trust_ratio;    ///< as the rule used it; empty where it has none
  /// Estimates of a sample's gradient: the trace of its covariance, and the square of its mean's
  /// norm. Below 0 by chance; empty where a step has one part alone.
  std::vector<double> gradient_variance, gradient_square;
};

/// Of every step, the same on every rank.
struct TelemetrySeries {
  std::vector<std::string> layers;  ///< "blocks.0.mlp.up.weight"
  std::vector<int64_t> steps;       ///< from 0, rising
  /// By step, then by layer.
  std::vector<std::vector<double>> gradient_norm, weight_norm, update_ratio, trust_ratio,
      gradient_variance, gradient_square;

  bool is_empty() const { return steps.empty(); }
  void add(int64_t step, const LayerFigures& figures);
};

/// The series of it by name.
struct TelemetryRows {
  const char* name;
  std::vector<std::vector<double>> TelemetrySeries::*rows;
  std::vector<double> LayerFigures::*figures;
  bool is_optional;  ///< not there in every run: no rows, or those of some steps NaN
};
const std::array<TelemetryRows, 6>& telemetry_rows();

/// Whether a step sees gradients of parts of its batch: of replicas, or of micro-batches. Not where
/// the schedule leaves gradients of weights for later: those of two micro-batches come mixed.
bool has_noise(const Plan& plan, const pipeline::Timetable& schedule);

/// The simple noise scale of entry i's gradient in samples: tr Sigma over the square of the mean, both
/// summed over all layers; NaN where a layer has none, so that plans are of the same layers, or where
/// one of the sums is not above 0. @pre has estimates
///                                                        [McCandlish et al., arXiv 1812.06162]
double noise_scale(const TelemetrySeries& series, size_t i);

/// A parameter's layers by name: "blocks.0.attention.qkv.weight[0]" of several.
std::vector<std::string> layer_names(const Param& p);

/// From the table of a LayerWatch.
LayerFigures figures_of(const Tensor& table, bool has_ratios, bool has_noise);

/// {"layers", "steps", each series, "noise_scale"}; NaN where there is no number.
Json to_json(const TelemetrySeries& series);
/// The same as one line for a checkpoint's state, and back, of the steps before `end`. Throws ConfigError with
/// `where` for what is no series.
std::string to_text(const TelemetrySeries& series);
TelemetrySeries telemetry_from(const std::string& line, const std::vector<std::string>& layers,
                               int64_t end, const std::string& where);

}  // namespace kuafu
