// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/launcher.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

bool is_under_mpi_launcher() { return launched_rank().has_value(); }

}  // namespace kuafu
