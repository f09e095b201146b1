// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/resident.h"

#include <fstream>
#include <sstream>
#include <string>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

int64_t status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && name == field + ":") return kib * 1024;
  }
  throw ConfigError(text("/proc/self/status has no ", field, ": Linux tells what is resident"));
}

}  // namespace

int64_t resident_bytes() { return status("VmRSS"); }

int64_t resident_peak() { return status("VmHWM"); }

void restart_resident_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  KUAFU_REQUIRE(file.good(), "cannot write /proc/self/clear_refs: Linux tells what is resident");
}

}  // namespace kuafu
