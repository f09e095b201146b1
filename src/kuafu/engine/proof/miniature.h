// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/mesh/axis.h"
#include "kuafu/plan/plan.h"

// The same kind of plan on a small model, for proofs that the plan's own model is too large for.
namespace kuafu {

/// How many micro-batches a pipeline of p ranks has: that decides which parts of a schedule run.
struct PipelineLoad {
  int64_t compared = 0;  ///< -1, 0, 1: fewer than p, as many, more
  bool is_one = true;
  int64_t rest = 0;  ///< of M / p, where there are more
  bool operator==(const PipelineLoad&) const = default;
};

/// What decides which code a plan runs, but for its sizes: two plans with the same features take
/// the same ways. Sizes of axes are features; widths, lengths and counts are not.
struct Features {
  std::vector<Axis> axes;           ///< of the mesh
  std::vector<std::string> blocks;  ///< kinds of blocks, in order of their first appearance
  /// Which kind follows which, "" before the first and behind the last.
  std::set<std::pair<std::string, std::string>> neighbours;
  PipelineLoad micro_batches;
  bool has_uneven_stages = false;  ///< stages hold different numbers of blocks
  bool has_ties_between_stages = false;
  bool has_uneven_sequence = false;    ///< ranks of a ring hold parts of different lengths
  bool has_uneven_chunks = false;      ///< in zig-zag order: early and late ones differ in length
  bool has_padded_parameters = false;  ///< a vocabulary that its ranks do not divide
  bool is_table_gathered = false;  ///< how its rows come to the tokens (parallel/tensor/embedding)
  bool has_several_buckets = false;  ///< of one block and one kind of gradient
  /// Every value that is no size: model options, modes, schedule, memory, optimizer, cluster.
  Plan values;
  bool operator==(const Features&) const = default;
};

/// @pre the plan is resolved. Throws Refused, as check_placement does, for a plan that cannot be
/// placed.
Features features_of(const Plan& plan, const Registries& registries);

/// The same of a plan whose data.bucket, on tiers memory.chunk_size, is halved, where several buckets
/// are wanted, until a block has more than one.
Features features_with_buckets(Plan& plan, const Registries& registries, bool wants_several);

struct Miniature {
  std::optional<Plan> plan;  ///< resolved and placed; none: see `reason`
  std::string reason;
};

/// A plan with the features of this one on a model as small as can be found: each size takes the
/// smallest value tried with which the plan resolves, is placed and keeps its features. A size that
/// no smaller value can have stays. None where the plan itself cannot be placed.
/// @pre the plan is resolved. Costs some dozens of check_placement.
Miniature miniature(const Plan& plan, const Registries& registries);

}  // namespace kuafu
