// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/runner.h"

// Sweeps of the fake worker: cases whose data path says how it behaves.
namespace kuafu::test {

/// A suite of one case a behaviour; `head`: more lines of [suite], `axes`: of [grid].
inline Suite fake_suite(const std::vector<std::string>& behaviours, const std::string& head = "",
                        const std::string& axes = "") {
  std::string toml = text("[suite]\nname = \"fake\"\nquestion = \"q\"\n", head,
                          "\n[grid]\nranks = [2]\ndata.path = [");
  for (const auto& behaviour : behaviours) toml += "\"" + behaviour + "\",";
  return parse_suite(text(toml, "]\n", axes), "fake.toml");
}

inline RunnerOptions fake_options(const std::string& folder) {
  RunnerOptions options;
  options.folder = folder;
  options.worker =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake-worker").string();
  options.grace_s = 0.1;
  return options;
}

}  // namespace kuafu::test
