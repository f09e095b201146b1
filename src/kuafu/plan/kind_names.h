// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <string>

#include "kuafu/base/errors.h"

// What plans, registries, oracles and lists call the kinds of this build. A name stands here and
// nowhere else in src/ (tests/scripts/kind_names_test.py): the rest is written with these constants,
// which do not compile when mistyped.
namespace kuafu {

namespace optimizer_kinds {
inline constexpr const char* kAdamW = "adamw";
inline constexpr const char* kSgd = "sgd";
inline constexpr const char* kAdam = "adam";
inline constexpr const char* kLars = "lars";
inline constexpr const char* kLamb = "lamb";
inline constexpr const char* kMuon = "muon";
}  // namespace optimizer_kinds

namespace model_kinds {
inline constexpr const char* kGpt = "gpt";
inline constexpr const char* kMoeGpt = "moe_gpt";
inline constexpr const char* kBert = "bert";
inline constexpr const char* kVit = "vit";
}  // namespace model_kinds

namespace tensor_modes {
inline constexpr const char* kNone = "none";
inline constexpr const char* k1d = "1d";
inline constexpr const char* k1dSp = "1d-sp";
inline constexpr const char* k2d = "2d";
inline constexpr const char* k2p5d = "2.5d";
inline constexpr const char* k3d = "3d";
/// In the order of lists.
inline constexpr std::array kAll = {kNone, k1d, k1dSp, k2d, k2p5d, k3d};
}  // namespace tensor_modes

namespace sequence_modes {
inline constexpr const char* kNone = "none";
inline constexpr const char* kRing = "ring";
inline constexpr const char* kRingZigzag = "ring-zigzag";
inline constexpr const char* kUlysses = "ulysses";
inline constexpr const char* kAllGather = "all-gather";
}  // namespace sequence_modes

/// What the code has for a name of a table of plan/. Throws InternalError where it has nothing.
template <class Code>
const Code& code_of(const std::map<std::string, Code>& codes, const std::string& name) {
  const auto found = codes.find(name);
  KUAFU_CHECK(found != codes.end(), "\"", name, "\" stands in its table and is not registered");
  return found->second;
}

}  // namespace kuafu
