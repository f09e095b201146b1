// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <map>

#include "app/kuafu/options.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/merge.h"
#include "kuafu/experiment/summary.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/hdf5.h"

namespace kuafu {
namespace {

/// Tells of names that several cases have; suites of their own may well call two alike.
void tell_same_names(const std::vector<Json>& cases) {
  std::map<std::string, int64_t> times;
  for (const Json& line : cases) ++times[line["name"].get<std::string>()];
  std::vector<std::string> names;
  for (const auto& [name, count] : times) {
    if (count > 1) names.push_back(text(in_quotes(name), " (", count, ")"));
  }
  if (names.empty()) return;
  const size_t shown = std::min<size_t>(names.size(), 3);
  std::cerr << "several cases have one name: "
            << join({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown)})
            << (shown < names.size() ? text(" and ", names.size() - shown, " more names") : "")
            << "; by it alone they are not told apart (`kuafu compare --by name`)\n";
}

}  // namespace

int merge_command(const MergeCall& call) {
  std::vector<MergeInput> inputs;
  for (const std::string& folder : call.folders) inputs.push_back({folder, load_record(folder)});
  const Merged all = merged(inputs);
  write_merged(all, call.out);
  for (const auto& note : all.notes) std::cerr << note << "\n";
  tell_same_names(all.record.cases);
  for (const auto& [folder, record] : inputs) {
    std::cout << folder << ": " << status_counts(record.cases) << "\n";
  }
  std::cout << call.out << ": " << status_counts(all.record.cases) << "\n" << std::flush;
  const RunRecord written = load_record(call.out);
  for (const auto& note : refresh_hdf5(call.out, written)) std::cerr << note << "\n";
  if (!is_hdf5_current(call.out, written)) return kUnwritten;
  const auto is_refuted = [](const Json& line) { return is_different(line["document"]); };
  const auto refuted = std::count_if(written.cases.begin(), written.cases.end(), is_refuted);
  if (refuted == 0) return kDone;
  std::cerr << refuted << (refuted == 1 ? " case is" : " cases are")
            << " refuted by a certificate: `kuafu report " << call.out << " --text` says why\n";
  return kBad;
}

}  // namespace kuafu
