// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <typeinfo>

#include "kuafu/base/reason.h"
#include "kuafu/base/units.h"
#include "kuafu/base/utf8.h"

namespace kuafu {

std::string what_of(const std::exception& cause) {
  constexpr size_t kMost = 2000;
  const std::string_view all = cause.what(), shown = utf8_prefix(all, kMost);
  if (shown.size() == all.size()) return std::string(all);
  return text(shown, "... (", all.size() - shown.size(), " more characters)");
}

std::string reason_of(const std::exception& cause) {
  const auto* oom = dynamic_cast<const OutOfMemory*>(&cause);
  if (dynamic_cast<const std::bad_alloc*>(&cause) != nullptr) {
    return text("the system gave no more memory (", cause.what(), "); `ulimit -v` shows a limit");
  }
  const auto* refused = dynamic_cast<const std::system_error*>(&cause);
  if (refused != nullptr && refused->code() == std::errc::resource_unavailable_try_again) {
    return text(cause.what(), ": the system starts no more threads; `ulimit -u` and, for their ",
                "stacks, `ulimit -v` show its limits");
  }
  if (oom == nullptr) {
    const std::string words = what_of(cause);
    const bool is_of_files = words.find(std::strerror(EMFILE)) != std::string::npos;
    return words + (is_of_files ? "; `ulimit -n` shows the limit of open files: allow more, such "
                                  "as: ulimit -n 1024"
                                : "");
  }
  if (typeid(*oom) != typeid(OutOfMemory)) return what_of(cause);  // it says more: which memory
  const std::string asked =
      text("rank ", oom->rank, " is out of memory: asked for ", print_bytes(oom->requested),
           " with ", print_bytes(oom->live), " live");
  if (oom->budget > 0) return text(asked, " of a budget of ", print_bytes(oom->budget));
  return asked + ", and the system gave no more; the plan sets no budget (memory.device)";
}

}  // namespace kuafu

namespace kuafu::detail {

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  std::string_view path(file);
  const size_t root = path.rfind("kuafu/");
  if (root != std::string_view::npos) path.remove_prefix(root);
  throw InternalError(
      text("internal error: ", message, " [", condition, " is false, ", path, ":", line, "]"));
}

}  // namespace kuafu::detail
