// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

void install_cuda_allocator() { throw Unavailable("this kuafu was built without CUDA"); }

}  // namespace kuafu
