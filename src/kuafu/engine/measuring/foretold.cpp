// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/measuring/foretold.h"

#include <c10/util/Exception.h>

#include "kuafu/base/trace.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/engine.h"

namespace kuafu {

memory::UseTrace foretold_uses(const Plan& given, const Registries& registries, int rank) {
  Plan plan = given;
  plan.memory.policy = "host";
  plan.memory.prefetch = 0;
  RankBook book = device_book(plan, rank, at::kMeta);
  const BookScope booked(&book);
  const TraceScope untraced(nullptr);
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  const auto me = world.communicator(rank);
  const NoData data(plan.model);
  try {
    Engine engine(plan, registries, *me, data, {.device = at::kMeta, .is_foretold = false});
    engine.step();
    return engine.uses();
  } catch (const c10::Error&) {  // of a plug-in: meta tensors have shapes and no numbers
    return {};
  }
}

}  // namespace kuafu
