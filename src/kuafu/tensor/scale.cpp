// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/scale.h"

#include <ATen/ATen.h>

#include "kuafu/meter/book.h"

namespace kuafu {

void scale(const Tensor& x, double factor) {
  const CategoryScope scratch(Category::kScratch);
  x.mul_(factor);
}

}  // namespace kuafu
