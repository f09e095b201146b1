// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "app/kuafu/options.h"
#include "kuafu/experiment/merge.h"
#include "kuafu/experiment/summary.h"
#include "kuafu/record/hdf5.h"

namespace kuafu {

int merge_command(const MergeCall& call) {
  std::vector<MergeInput> inputs;
  for (const std::string& folder : call.folders) inputs.push_back({folder, load_record(folder)});
  const Merged all = merged(inputs);
  write_merged(all, call.out);
  for (const auto& note : all.notes) std::cerr << note << "\n";
  for (const auto& [folder, record] : inputs) {
    std::cout << folder << ": " << status_counts(record.cases) << "\n";
  }
  std::cout << call.out << ": " << status_counts(all.record.cases) << "\n" << std::flush;
  for (const auto& note : refresh_hdf5(call.out, load_record(call.out))) {
    std::cerr << note << "\n";
  }
  return kDone;
}

}  // namespace kuafu
