// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "app/kuafu/options.h"
#include "kuafu/experiment/compare.h"

namespace kuafu {

int compare_command(const CompareCall& call) {
  CompareOptions options;
  if (call.by == "name") options.by = CompareOptions::By::kName;
  if (call.is_exact_only) options.times = CompareOptions::Times::kLeftOut;
  const Overrides subset = split_pairs(call.subsets, "--subset");
  options.smallest_effect = parse_share(call.smallest_effect, "--smallest-effect");
  Results a = load_results(call.a), b = load_results(call.b);
  if (!subset.empty()) pick_subset(a, b, subset);
  const Comparison comparison = compare(a, b, options);
  std::cout << comparison_text(a, b, comparison);
  return comparison.num_regressions() == 0 ? kDone : kBad;
}

}  // namespace kuafu
