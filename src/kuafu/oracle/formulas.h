// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/oracle/oracle.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::oracle {

/// The formula of each optimizer of this build, with what is derived of its rounding.
#define KUAFU_OPTIMIZER(constant, name, rule, formula, ...) UpdateRule formula();
#include "kuafu/plan/optimizers.def"

}  // namespace kuafu::oracle
