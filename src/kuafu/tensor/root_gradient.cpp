// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/root_gradient.h"

#include <utility>

namespace kuafu {
namespace {

thread_local double current = 1;

}  // namespace

double root_gradient() { return current; }

RootGradientScope::RootGradientScope(double gradient)
    : previous_(std::exchange(current, gradient)) {}
RootGradientScope::~RootGradientScope() { current = previous_; }

}  // namespace kuafu
