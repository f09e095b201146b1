// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kuafu {

/// The gradient that backward calls of this thread start from, at their losses: a scaled loss is a
/// larger start. A loss whose backward is a formula of its own multiplies by it on the host, before
/// it rounds to half precision, instead of reading the gradient that arrives from the device. 1
/// outside a scope.
double root_gradient();

/// Sets it until the scope ends.
class RootGradientScope {
 public:
  explicit RootGradientScope(double gradient);
  ~RootGradientScope();
  RootGradientScope(const RootGradientScope&) = delete;
  RootGradientScope& operator=(const RootGradientScope&) = delete;

 private:
  double previous_;
};

}  // namespace kuafu
