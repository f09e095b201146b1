// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"
#include "kuafu/device/disk_port.h"

namespace kuafu::device {

std::unique_ptr<DiskPort> make_uring_port(int) {
  throw Unavailable("this build has no io_uring (Debian: liburing-dev, then configure again)");
}

}  // namespace kuafu::device
