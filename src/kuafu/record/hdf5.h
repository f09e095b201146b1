// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/record/run_log.h"

namespace kuafu {

/// Name of the HDF5 file inside a results folder.
inline constexpr const char* kHdf5File = "results.h5";

/// Whether this build has HDF5.
bool has_hdf5();

/// Writes `record` as `folder`/results.h5 (docs/record.md has the layout): made in memory, written
/// to a temporary name, fsynced, renamed, so that a reader never sees a part and nothing needs a
/// lock. Throws ConfigError with the reason; Unavailable without HDF5.
void write_hdf5(const std::string& folder, const RunRecord& record);

enum class Hdf5State : uint8_t { kMissing, kDamaged, kStale, kCurrent };

/// Compares `folder`/results.h5 with `record`. Throws Unavailable without HDF5.
Hdf5State hdf5_state(const std::string& folder, const RunRecord& record);

/// Brings `folder`/results.h5 up to date and returns what to tell the user, one line each. Never
/// throws for the file's sake: run.jsonl has everything, and the next call tries again.
std::vector<std::string> refresh_hdf5(const std::string& folder, const RunRecord& record);

/// Hash of all lines of a record: says whether an HDF5 file was made from it.
std::string record_hash(const RunRecord& record);

}  // namespace kuafu
