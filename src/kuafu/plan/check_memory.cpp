// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/check.h"

#include "kuafu/base/suggest.h"

namespace kuafu::plan {

void check_memory(const Plan& plan, const Origins& origins) {
  const MemoryPlan& memory = plan.memory;
  if (!memory.has_tiers()) return;
  const std::string policy = text("memory.policy = ", in_quotes(memory.policy));
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
  if (!memory.device && memory.policy != "host") {
    throw Refused(text(origins.of({"memory.policy"}), policy,
                       " without memory.device: where nothing is scarce nothing leaves; nearest: "
                       "give memory.device a size, or policy = \"host\""));
  }
}

}  // namespace kuafu::plan
