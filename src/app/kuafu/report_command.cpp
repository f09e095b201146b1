// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>

#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "app/kuafu/report_facts.h"
#include "kuafu/base/build_folders.h"
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

RunRecord read_folder(const std::string& folder) {
  KUAFU_REQUIRE(std::filesystem::is_directory(folder), folder,
                " is no folder; give the results folder of a suite");
  const std::string path = folder + "/" + kRunFile;
  KUAFU_REQUIRE(std::filesystem::exists(path), path,
                " is not there: the folder holds no results of `kuafu suite`");
  RunRecord record = read_run(path);
  KUAFU_REQUIRE(!record.cases.empty(), path, " has no finished case to report");
  return record;
}

/// Whether the page is asked for; where text or another file is, only with --out.
bool is_page(const ReportCall& call) {
  const bool has_other =
      call.is_text || !call.csv.empty() || !call.junit.empty() || !call.parquet.empty();
  return !call.out.empty() || !has_other;
}

/// The suite that made the record: the one asked for, or the source tree's of the same name, where
/// its cases are still the same. None where it is not known.
std::optional<Suite> suite_of(const ReportCall& call, const std::string& folder,
                              const RunRecord& record) {
  const std::string hash = record.header.value("suite_hash", "");
  if (!call.suite.suite.empty()) {
    Suite suite = read_suite(call.suite);
    KUAFU_REQUIRE(suite.hash == hash, "--suite ", call.suite.suite, " makes suite ", suite.hash,
                  ", ", folder, " holds suite ", hash,
                  ": give the file, and the --set, that the folder was made with");
    return suite;
  }
  SuiteCall found = call.suite;
  found.suite = text(build_info::kSourceDir, "/suites/", record.header.value("name", ""), ".toml");
  if (!std::filesystem::is_regular_file(found.suite)) return std::nullopt;
  try {
    Suite suite = read_suite(found);
    if (suite.hash == hash) return suite;
  } catch (const ConfigError&) {  // another suite of that name, which the record does not need
  }
  return std::nullopt;
}

}  // namespace

int report_command(const ReportCall& call) {
  KUAFU_REQUIRE(!call.layers || call.is_text, "--layers is about --text, which is not given");
  KUAFU_REQUIRE(
      !call.suite.suite.empty() || (call.suite.sets.empty() && call.suite.plugins.empty()),
      "--set and --plugin are about --suite SUITE.toml, which is not given");
  Json facts = Json::array();
  bool is_known = false;
  for (const std::string& folder : call.folders) {
    const RunRecord record = read_folder(folder);
    if (call.folders.size() == 1 && is_page(call)) refresh(folder, record);
    const auto suite = suite_of(call, folder, record);
    const bool is_asked = !call.suite.suite.empty();
    facts.push_back(report_facts(record, suite ? &*suite : nullptr, is_asked, folder));
    is_known = is_known || !facts.back().is_null();
  }
  std::string why_not;
  std::vector<std::string> words = python_script("scripts/report/report.py", why_not);
  KUAFU_REQUIRE(!words.empty(), "cannot draw the report: ", why_not);
  words.insert(words.end(), call.folders.begin(), call.folders.end());
  for (const auto& [option, value] : {std::pair{"--out", call.out},
                                      {"--csv", call.csv},
                                      {"--junit", call.junit},
                                      {"--parquet", call.parquet}}) {
    KUAFU_REQUIRE(!value.ends_with(".toml"), option, " ", value,
                  " is named as a plan or suite, which it would replace; give another name");
    if (!value.empty()) words.insert(words.end(), {option, value});
  }
  if (call.is_text) words.push_back("--text");
  if (call.layers) words.insert(words.end(), {"--layers", std::to_string(*call.layers)});
  if (is_known) words.insert(words.end(), {"--facts", handed_on(facts)});
  become(words);
}

}  // namespace kuafu
