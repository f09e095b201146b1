// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "kuafu/base/config.h"
#include "kuafu/base/crc32.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/record/hdf5.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

constexpr std::string_view kTrailer = "kuafu results.h5 record ", kChecksum = " checksum ";
constexpr size_t kHashDigits = 16, kDigits = 8;
constexpr size_t kTrailerBytes = kTrailer.size() + kHashDigits + kChecksum.size() + kDigits + 1;

}  // namespace

std::string record_hash(const RunRecord& record) {
  std::string all = json_line(record.header);
  for (const Json& line : record.cases) all += "\n" + json_line(line);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash_name(all)));
  return digits;
}

std::string with_trailer(std::string image, const RunRecord& record) {
  image += text(kTrailer, record_hash(record), kChecksum);
  return image + crc32_digits(image) + "\n";
}

Hdf5State hdf5_state(const std::string& folder, const RunRecord& record) {
  const std::string path = folder + "/" + kHdf5File;
  if (!std::filesystem::exists(path)) return Hdf5State::kMissing;
  const std::string bytes = read_file(path, "results");
  if (bytes.size() < kTrailerBytes) return Hdf5State::kDamaged;
  const std::string_view end = std::string_view(bytes).substr(bytes.size() - kTrailerBytes);
  const std::string_view summed = std::string_view(bytes).substr(0, bytes.size() - kDigits - 1);
  const bool is_whole = end.starts_with(kTrailer) &&
                        end.substr(end.size() - kDigits - 1) == crc32_digits(summed) + "\n";
  if (!is_whole) return Hdf5State::kDamaged;
  return end.substr(kTrailer.size(), kHashDigits) == record_hash(record) ? Hdf5State::kCurrent
                                                                         : Hdf5State::kOutdated;
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
      notes.push_back(text(
          path, " was damaged, or written before it had a checksum: made again from ", kRunFile));
    }
  } catch (const Error& error) {
    notes.push_back(text(path, " left out: ", error.what(), "; ", kRunFile,
                         " has everything, `kuafu report ", folder, "` tries again"));
  }
  return notes;
}

bool is_hdf5_current(const std::string& folder, const RunRecord& record) {
  try {
    return !has_hdf5() || hdf5_state(folder, record) == Hdf5State::kCurrent;
  } catch (const ConfigError&) {
    return false;  // refresh_hdf5() has told why
  }
}

}  // namespace kuafu
