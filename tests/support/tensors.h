// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/conformance/samples.h"

// Tensors by global index and how far they are apart, as the conformance kit has them.
namespace kuafu::tests {

using conformance::ids;
using conformance::is_same;
using conformance::kEps;
using conformance::relative_error;
using conformance::shard;
using conformance::sum_over;

}  // namespace kuafu::tests
