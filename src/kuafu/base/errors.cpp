// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"

#include <string_view>

namespace kuafu::detail {

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  std::string_view path(file);
  const size_t root = path.rfind("kuafu/");
  if (root != std::string_view::npos) path.remove_prefix(root);
  throw InternalError(
      text("internal error: ", message, " [", condition, " is false, ", path, ":", line, "]"));
}

}  // namespace kuafu::detail
