// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/root_gradient.h"

#include <utility>

namespace kuafu {
namespace {

thread_local double current_gradient = 1;

}  // namespace

double root_gradient() { return current_gradient; }

RootGradientScope::RootGradientScope(double gradient)
    : previous_(std::exchange(current_gradient, gradient)) {}
RootGradientScope::~RootGradientScope() { current_gradient = previous_; }

}  // namespace kuafu
