// SPDX-License-Identifier: Apache-2.0
//
// Where replicas keep states of a model: ZeRO.      [Rajbhandari et al., arXiv 1910.02054]
//
//   Picture   one bucket of 3 replicas; g_r its gradients on replica r, w its parameters
//
//     0       g_r  | . . . . . . . . . . . |   all-reduce: every replica has sum g_r
//             w    | . . . . . . . . . . . |   and updates all of it
//     1 to 3  g_r  | . . . | . . . | . . . |   reduce-scatter: replica r has part r of sum g_r
//             w    | . . . | . . . | . . . |   replica r updates part r, then all-gather
//
//   Math      An optimizer that works element by element gives each element the same value whoever
//             updates it: replica r needs m, v and the master copy of part r only. Norms need
//             the whole gradient: ParamShard::split_axes says that pieces add up over the replicas.
//             Sums over micro-batches and over replicas commute: part r of the gradient is the sum
//             over micro-batches of part r of each one's sum over the replicas. Only the optimizer
//             writes parameters, so every gather of a step brings the same values.
//
//   Cost      n replicas, psi parameters of b bytes, padded (FlatRules), M micro-batches; AdamW,
//             s = max(b, 4): 2 s of state a parameter, and 4 of master copy where b = 2
//
//     stage  in parts          bytes a rank, b = 2    received a step and rank
//     0      -                 16 psi                 2 (n-1)/n b psi
//     1      optimizer state   4 psi + 12 psi / n     2 (n-1)/n b psi
//     2      + gradients       2 psi + 14 psi / n     (M + 1) (n-1)/n b psi
//     3      + parameters      16 psi / n             (M + G) (n-1)/n b psi, G gathers below
//
//             Stages 1 and 2 reduce-scatter gradients (1: once a step, 2: once a micro-batch, the
//             price of not keeping whole ones) and all-gather what was updated. Under 3 each use of
//             a block gathers what it reads and the use before it did not, nothing after the
//             update: G = 2 M gathers of a block, M of the last one (its forward is followed by its
//             backward), M of an embedding, since its backward reads no parameter, and M more for a
//             head that is tied to it. With M = 1 that is 1.5 of the all-reduce's bytes, less one
//             gather of the last block. Full recomputation runs its forward inside the use for
//             backward: no more gathers, but an embedding is read twice.
//             A gradient is whole until its group is reduced, and a gathered group is whole until
//             it is released, two of them at a time; both are booked as communication.
//
//   Code      A row of kStages. The store moves gradients into a flat buffer when their group is
//             complete; they are summed there, in place (whole), or into a part of its own, and the
//             buffer is freed (part). Parameters whose slots are in parts lie in flat buffers too;
//             in parts, storage is freed and filled anew under the same tensors: what autograd has
//             saved of a weight is right again once its group is acquired for backward.

#include <iterator>

#include "kuafu/base/errors.h"
#include "kuafu/plan/plan.h"
#include "kuafu/states/residency.h"

namespace kuafu {
namespace {

struct Stage {
  int64_t number;
  Residency residency;
};

constexpr Residence kWhole{Portion::kWhole, Tier::kDevice}, kPart{Portion::kPart, Tier::kDevice};

constexpr Stage kStages[] = {
    {0, {.slots = kWhole, .gradients = kWhole, .parameters = kWhole}},
    {1, {.slots = kPart, .gradients = kWhole, .parameters = kWhole}},
    {2, {.slots = kPart, .gradients = kPart, .parameters = kWhole}},
    {3, {.slots = kPart, .gradients = kPart, .parameters = kPart}},
};
static_assert(std::size(kStages) == kLastZeroStage + 1, "parallel.zero takes each row's number");

}  // namespace

std::string_view to_string(Portion portion) {
  return portion == Portion::kWhole ? "whole" : "part";
}

Residency residency_of(const Plan& plan) {
  const ParallelPlan& p = plan.parallel;
  Residency all = residency_of_stage(p.data.has_servers() ? 1 : p.zero);
  if (!plan.memory.has_tiers()) return all;
  for (Residence* r : {&all.slots, &all.gradients, &all.parameters}) r->tier = Tier::kHost;
  if (plan.memory.has_disk()) all.slots.tier = Tier::kDisk;
  if (plan.memory.has_gradients_on_disk()) all.gradients.tier = Tier::kDisk;
  return all;
}

Residency residency_of_stage(int64_t stage) {
  for (const Stage& s : kStages) {
    if (s.number == stage) return s.residency;
  }
  throw InternalError(text("ZeRO has no stage ", stage));
}

}  // namespace kuafu
