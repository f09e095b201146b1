// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/check.h"

#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/plan/keys.h"

namespace kuafu::plan {

void check_memory(const Plan& plan, const Origins& origins) {
  const MemoryPlan& memory = plan.memory;
  if (!memory.has_tiers()) return;
  const std::string policy = text("memory.policy = ", in_quotes(memory.policy));
  if (memory.disk && !memory.has_disk()) {
    throw ConfigError(text(origins.of({"memory.disk"}), "memory.disk = ", *memory.disk,
                           " without memory.disk_path, the folder whose disk it is; nearest: "
                           "disk_path = \".\""));
  }
  if (memory.has_gradients_on_disk() && !memory.has_disk()) {
    throw ConfigError(text(origins.of({"memory.gradients"}),
                           "memory.gradients = \"disk\" without memory.disk_path, the folder whose "
                           "disk it is; nearest: disk_path = \".\""));
  }
  if (memory.has_activations_away() && memory.recompute != Recompute::kFull) {
    throw Refused(text(origins.of({"memory.activations", "memory.recompute"}),
                       "memory.activations = \"host\" with memory.recompute = ",
                       in_quotes(memory.recompute == Recompute::kNone ? "none" : "selective"),
                       ": what else a block keeps for its backward stays on the device; nearest: "
                       "recompute = \"full\", or activations = \"device\""));
  }
  const DataParallelPlan& data = plan.parallel.data;
  if (data.has_servers()) {
    throw Refused(text(origins.of({"memory.policy", "parallel.data.mode"}), policy,
                       " with parallel.data.mode = ", in_quotes(data.mode),
                       ": servers keep values and slots of their own, which lie in no chunk; "
                       "nearest: policy = \"plain\", or mode = \"auto\""));
  }
  if (data.bucket != DataParallelPlan{}.bucket) {
    throw Refused(text(origins.of({"parallel.data.bucket", "memory.policy"}),
                       "parallel.data.bucket = ", data.bucket, " with ", policy,
                       ": gradients are summed by the chunks of their parameters; nearest: "
                       "memory.chunk_size = ",
                       data.bucket, " and no bucket, or policy = \"plain\""));
  }
}

void check_policy(const Plan& plan, const std::vector<memory::PolicyKind>& policies,
                  const Origins& origins) {
  const MemoryPlan& m = plan.memory;
  if (!m.has_tiers()) return;
  const std::string where = origins.of({std::string(kPolicyKey)});
  const std::string policy = text(kPolicyKey, " = ", in_quotes(m.policy));
  std::vector<std::string> names = {MemoryPlan{}.policy};
  const memory::PolicyKind* kind = nullptr;
  for (const memory::PolicyKind& one : policies) {
    if (one.name == m.policy) kind = &one;
    names.push_back(one.name);
  }
  if (kind == nullptr) {
    throw NotFound(text(where, policy, " is not allowed; allowed: ", join_or(in_quotes(names)),
                        "; nearest: ", in_quotes(nearest(m.policy, names))));
  }
  if (!kind->lacks.empty()) {
    throw Refused(text(
        where, policy, " is not available in this build, which has no ", kind->lacks,
        "; nearest: policy = \"belady\", or install it, then configure and build Kuafu again"));
  }
  if (kind->needs_budget && !m.device) {
    throw Refused(text(where, policy,
                       " without memory.device: where nothing is scarce nothing leaves; nearest: "
                       "give memory.device a size, or policy = \"host\""));
  }
}

}  // namespace kuafu::plan
