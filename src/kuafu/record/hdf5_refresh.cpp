// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/record/hdf5.h"

namespace kuafu {

std::string record_hash(const RunRecord& record) {
  std::string all = record.header.dump();
  for (const Json& line : record.cases) all += "\n" + line.dump();
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash_name(all)));
  return digits;
}

std::vector<std::string> refresh_hdf5(const std::string& folder, const RunRecord& record) {
  const std::string path = folder + "/" + kHdf5File;
  if (!has_hdf5()) return {text(path, " left out: this build has no HDF5")};
  std::vector<std::string> notes;
  try {
    const Hdf5State state = hdf5_state(folder, record);
    if (state == Hdf5State::kCurrent) return {};
    write_hdf5(folder, record);
    if (state == Hdf5State::kDamaged) {
      notes.push_back(text(path, " was damaged: made again from ", kRunFile));
    }
  } catch (const Error& error) {
    notes.push_back(text(path, " left out: ", error.what(), "; ", kRunFile,
                         " has everything, `kuafu report ", folder, "` tries again"));
  }
  return notes;
}

}  // namespace kuafu
