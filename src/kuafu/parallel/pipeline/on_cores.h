// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/parallel/pipeline/timetable.h"

namespace kuafu::pipeline {

/// What every action of a row took by itself on a core of its own, in the order of the row; one
/// number more than the row has is work behind its last action: an update.
using RowSeconds = std::vector<double>;

/// How long a timetable takes where its ranks share `cores` and hand over for nothing: every rank
/// works down its row, waits for what it needs, and the ranks that can work share the cores evenly.
/// With a core a rank this is the played length, bubble included; with fewer, a rank's bubble is
/// filled by its neighbours, and at the least the work divided by the cores remains.
/// @pre validate(t), without messages; cores >= 1. Throws ConfigError for rows of another length.
double length_on_cores(const Timetable& t, const std::vector<RowSeconds>& seconds, int cores);

}  // namespace kuafu::pipeline
