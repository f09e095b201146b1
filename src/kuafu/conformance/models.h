// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

namespace kuafu::conformance {

/// Extents of a model under check, as keys of a plan.
struct ModelShape {
  int64_t layers = 1, hidden = 1, heads = 1, vocab = 1, sequence = 1, batch = 1;
};
/// "layers 2, H 48, N 4, V 61, S 12, B 8"; of a model of images the patches are the sequence.
std::string to_string(const ModelShape& shape);

/// A choice beside the model, as settings of a plan: "1d on 2".
struct Variant {
  std::string name;
  Overrides settings = {};
  Shapes shapes = Shapes::kSmall;  ///< kAll: on those beyond 64 elements too
};
/// Ranks that a variant is made for.
int64_t ranks_of(const Variant& variant);

/// One rank, replicas, every ZeRO stage, recomputation, tensor scheme, sequence mode and schedule of the
/// registries, experts, half precision, and several of these at once.
std::vector<Variant> model_variants(const Registries& registries);

/// One rank with an option of [model] that is not the default, for each that the plan takes beside `base`.
std::vector<Variant> model_options(const Registries& registries, const Overrides& base);

/// Everything about one model: its first values and first loss are the same on any ranks, and those of
/// its oracle where it brings one; trainings under every variant are certified (against the oracle, or
/// one rank of the same code) and simulated alike, those on one rank with every option of [model] too; without an oracle, gradients are held to finite
/// differences. Variants that are refused are told with the reason; a model must run on one rank.
/// Only variants of these rank counts, one rank first, up to the first that fails. Throws ConfigError
/// where there is none.
std::vector<Finding> check_model(const Registries& registries, const std::string& name,
                                 const std::vector<int64_t>& sizes, const Tell& tell = {});

/// The same under one variant, or of one rank without an oracle ("differences").
std::vector<Finding> check_model_under(const Variant& variant, const Registries& registries,
                                       const std::string& name, Shapes shapes = Shapes::kAll,
                                       const Tell& tell = {});
std::vector<Finding> check_differences(const Registries& registries, const std::string& name,
                                       Shapes shapes = Shapes::kAll, const Tell& tell = {});

/// Shapes of a kind of model: small and narrow first, then those beyond 64 elements in every dim.
std::vector<ModelShape> model_shapes(const std::string& kind, Shapes shapes);
/// Settings, and others that stand behind them.
Overrides joined(Overrides a, const Overrides& b);
/// The keys of a plan for it, f64.
Overrides settings_of(const std::string& kind, const ModelShape& shape);

}  // namespace kuafu::conformance
