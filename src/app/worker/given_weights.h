// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/registries.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Weights that a run may begin with, and a plan of their model, whose other keys are defaults. Those
/// that open them hold tensors to the model: none is missing but those of NamedWeights::absent, none is too
/// many, each has its shape.
struct GivenWeights {
  Plan plan;
  NamedWeights weights;
};

/// What `kuafu export` wrote, or another file of its form. Throws ConfigError with file and tensor.
GivenWeights open_plain_file(const std::string& path, const Registries& registries,
                             const std::vector<std::string>& plugins);

/// A folder of Hugging Face's transformers.
GivenWeights open_hf_folder(const std::string& path, const Registries& registries,
                            const std::vector<std::string>& plugins);

/// What `option`, such as "--init", names: either of these, or a checkpoint. Throws ConfigError where it
/// is of another model than the plan's, with the key.
NamedWeights open_init(std::string_view option, const std::string& path, const Plan& plan,
                       const Registries& registries, const std::vector<std::string>& plugins);

/// "no head.transform.weight, head.norm.weight, ...": what a model with a head has and these have not; empty:
/// all are there.
std::string words_of_absent(const NamedWeights& weights);

/// [model] of a plan: keys that are not the defaults.
std::string model_toml(const Plan& plan);

}  // namespace kuafu
