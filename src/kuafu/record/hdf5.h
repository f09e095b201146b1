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

enum class Hdf5State : uint8_t { kMissing, kDamaged, kOutdated, kCurrent };

/// The bytes of an HDF5 file with one line behind its end, where HDF5 never looks:
/// "kuafu results.h5 record 0123456789abcdef checksum 1a2b3c4d\n", the hash of the record and the
/// CRC-32 of all bytes before the last word. No bit of the file can change unseen.
std::string with_trailer(std::string image, const RunRecord& record);

/// Compares `folder`/results.h5 with `record` by that line alone: a damaged file never reaches
/// HDF5, which is not made for one.
Hdf5State hdf5_state(const std::string& folder, const RunRecord& record);

/// Brings `folder`/results.h5 up to date and returns what to tell the user, one line each. Never
/// throws for the file's sake: run.jsonl has everything, and the next call tries again.
std::vector<std::string> refresh_hdf5(const std::string& folder, const RunRecord& record);

/// Whether `folder`/results.h5 is of this record, or this build makes none.
bool is_hdf5_current(const std::string& folder, const RunRecord& record);

/// Hash of all lines of a record: says whether an HDF5 file was made from it.
std::string record_hash(const RunRecord& record);

}  // namespace kuafu
