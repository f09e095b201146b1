// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/plan/plan.h"
#include "kuafu/states/row.h"

namespace kuafu {

/// What a parameter is for. Routers and shared experts count as experts.
enum class PartKind : uint8_t {
  kEmbedding,
  kAttention,
  kMlp,
  kExperts,
  kNorms,
  kHead,
  kOther,  ///< of plug-ins whose names say none of these
};
inline constexpr int kNumPartKinds = 7;
/// "embedding", "attention", "mlp", "experts", "norms", "head", "other".
std::string_view to_string(PartKind kind);

/// The kind of a parameter, by the words of its name: a norm anywhere is a norm, then the block
/// ("embedding.", "head."), then the layer ("attn", "moe", "mlp", or the "up" and "down" of an MLP
/// of another name).
PartKind part_of(std::string_view parameter);

/// Elements by kind.
struct PartCounts {
  std::array<int64_t, kNumPartKinds> by_kind{};

  int64_t of(PartKind kind) const { return by_kind[static_cast<size_t>(kind)]; }
  int64_t total() const;
  void add(std::string_view parameter, int64_t elements);
  bool operator==(const PartCounts&) const = default;
};

/// The parameters of a plan's model.
struct ModelParts {
  PartCounts whole;    ///< without padding; what is tied counts once
  PartCounts fullest;  ///< what the rank that holds most of them keeps, copies and padding included
  int64_t rank = 0;    ///< that rank, the first of them
  std::vector<StateRow> states;  ///< as the first rank of each pipeline stage keeps them
};

/// Counts them in the engine's own table of parameters, built on meta tensors for one rank of each
/// pipeline stage: ranks of a stage keep shards of the same extents, under ZeRO-3 no more than the
/// first replica's. Needs no communication. @pre plan is resolved and can be placed
ModelParts model_parts(const Plan& plan, const Registries& registries);

}  // namespace kuafu
