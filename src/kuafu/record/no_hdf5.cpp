// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"
#include "kuafu/record/hdf5.h"

namespace kuafu {
namespace {

constexpr const char* kReason =
    "this build has no HDF5 (Debian: libhdf5-dev, then configure again)";

}  // namespace

bool has_hdf5() { return false; }

void write_hdf5(const std::string&, const RunRecord&) { throw Unavailable(kReason); }

}  // namespace kuafu
