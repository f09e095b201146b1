// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/base/config.h"
#include "kuafu/plan/check.h"

// [[parallel.layers]]: layers with a tensor mode of their own.
namespace kuafu::plan {

/// Reads the list. `where` opens messages, `origin` is the file of the entries' own lines, empty
/// for the command line. Notes "parallel.layers.0.mode" and so on in `origins`. Throws ConfigError
/// for an unknown or missing key and a wrong type.
std::vector<LayerPlan> read_layers(const ConfigValue& value, const std::string& where,
                                   const std::string& origin, Origins& origins);

/// Checks the ranges against the model and each other, and that their modes share the tensor ranks.
/// Throws ConfigError for ranges, Refused for modes that cannot arrange the ranks.
void check_layers(const Plan& plan, const TensorModes& modes, const Origins& origins);

/// The list as TOML; empty where there is none.
std::string print_layers(const std::vector<LayerPlan>& layers);

}  // namespace kuafu::plan
