// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <string>

#include "kuafu/base/errors.h"

// What plans, registries, oracles and lists call the kinds of this build. A name stands here or in a
// .def of this folder and nowhere else in src/ (tests/scripts/kind_names_test.py): the rest is
// written with these constants, which do not compile when mistyped.
namespace kuafu {

namespace optimizer_kinds {
#define KUAFU_OPTIMIZER(constant, name, ...) inline constexpr const char* constant = name;
#include "kuafu/plan/optimizers.def"
}  // namespace optimizer_kinds

namespace model_kinds {
#define KUAFU_MODEL(constant, name, ...) inline constexpr const char* constant = name;
#include "kuafu/plan/models.def"
/// In the order of lists.
inline constexpr std::array kAll = {
#define KUAFU_MODEL(constant, ...) constant,
#include "kuafu/plan/models.def"
};
}  // namespace model_kinds

namespace tensor_modes {
#define KUAFU_TENSOR_MODE(constant, name, ...) inline constexpr const char* constant = name;
#include "kuafu/plan/tensor_modes.def"
/// In the order of lists.
inline constexpr std::array kAll = {
#define KUAFU_TENSOR_MODE(constant, ...) constant,
#include "kuafu/plan/tensor_modes.def"
};
}  // namespace tensor_modes

namespace sequence_modes {
inline constexpr const char* kNone = "none";
inline constexpr const char* kRing = "ring";
inline constexpr const char* kRingZigzag = "ring-zigzag";
inline constexpr const char* kUlysses = "ulysses";
inline constexpr const char* kAllGather = "all-gather";
/// In the order of lists.
inline constexpr std::array kAll = {kNone, kRing, kRingZigzag, kUlysses, kAllGather};
}  // namespace sequence_modes

/// What the code has for a name of a table of plan/. Throws InternalError where it has nothing.
template <class Code>
const Code& code_of(const std::map<std::string, Code>& codes, const std::string& name) {
  const auto found = codes.find(name);
  KUAFU_CHECK(found != codes.end(), "\"", name, "\" stands in its table and is not registered");
  return found->second;
}

}  // namespace kuafu
