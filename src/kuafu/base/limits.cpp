// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/limits.h"

#include <sys/resource.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"

namespace kuafu {

std::string limit_of_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return text("; the system gives a process at most ",
              print_bytes(static_cast<int64_t>(limit.rlim_cur)),
              " (ulimit -v), which may have been too little for its libraries");
}

}  // namespace kuafu
