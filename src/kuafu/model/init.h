// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kuafu {

/// Standard deviation of first weights (GPT-2's).
constexpr double kStd = 0.02;

}  // namespace kuafu
