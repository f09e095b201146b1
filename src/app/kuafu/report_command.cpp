// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>

#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/hdf5.h"
#include "kuafu/record/run_log.h"

namespace kuafu {
namespace {

/// Brings results.h5 up to date, unless a runner works in the folder or it cannot be written.
void refresh(const std::string& folder, const RunRecord& record) {
  try {
    const FolderLock lock(folder);
    for (const auto& note : refresh_hdf5(folder, record)) std::cerr << note << "\n";
  } catch (const ConfigError& error) {
    std::cerr << kHdf5File << " left as it is: " << error.what() << "\n";
  }
}

}  // namespace

int report_command(const ReportCall& call) {
  KUAFU_REQUIRE(std::filesystem::is_directory(call.folder), call.folder,
                " is no folder; give the results folder of a suite");
  const std::string path = call.folder + "/" + kRunFile;
  KUAFU_REQUIRE(std::filesystem::exists(path), path,
                " is not there: the folder holds no results of `kuafu suite`");
  const RunRecord record = read_run(path);
  KUAFU_REQUIRE(!record.cases.empty(), path, " has no finished case to report");
  refresh(call.folder, record);
  std::string why_not;
  std::vector<std::string> words = python_script("scripts/report/report.py", why_not);
  KUAFU_REQUIRE(!words.empty(), "cannot draw the report: ", why_not);
  words.push_back(call.folder);
  if (!call.out.empty()) words.insert(words.end(), {"--out", call.out});
  become(words);
}

}  // namespace kuafu
