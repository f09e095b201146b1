// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"
#include "kuafu/memory/optimum.h"

namespace kuafu::memory {
namespace {

[[noreturn]] void throw_no_cbc() {
  throw Unavailable(
      "this kuafu was built without CBC, which finds the least bytes of moves; install it (Debian: "
      "coinor-libcbc-dev), configure and build again");
}

}  // namespace

double least_bytes_bound(const UseTrace&, int64_t) { throw_no_cbc(); }

Optimum least_bytes(const UseTrace&, int64_t, const SearchLimits&) { throw_no_cbc(); }

bool has_optimum() { return false; }

}  // namespace kuafu::memory
