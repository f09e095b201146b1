// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/hf/tensors.h"
#include "kuafu/record/json.h"

namespace kuafu::hf {

/// What a config.json says of a model.
struct Config {
  Family family = Family::kGpt2;
  ModelPlan model = {};
};

/// "gpt2", "opt", "llama", "bert", "vit": the values of model_type.
std::vector<std::string> family_names();
const char* name_of(Family family);

/// JSON of a file, an object whose keys stand once. Throws ConfigError with the file; `what` is what it
/// should be.
Json read_object(const std::string& file, const char* what);

/// Reads a config.json. Dropout is left out: it is a choice of training. Throws ConfigError with file and
/// member: no JSON, another family (the nearest is named), a member that is missing or has a wrong
/// type, and what the config asks and Kuafu has not, with what is allowed.
Config read_config(const std::string& file);

/// The family of a plan's model. Throws ConfigError with the key that no family has as it is.
Family family_of(const ModelPlan& model);

/// The config.json of a model, as `transformers` reads it; `type` is that of its weights.
Json config_json(Family family, const ModelPlan& model, DType type);

}  // namespace kuafu::hf
