// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "app/kuafu/options.h"
#include "kuafu/experiment/compare.h"

namespace kuafu {

int compare_command(const CompareCall& call) {
  const Results a = load_results(call.a), b = load_results(call.b);
  Comparison comparison = compare(a, b);
  if (call.is_exact_only) {
    for (CaseComparison& c : comparison.cases) c.timing = CaseComparison::Timing::kNotCompared;
    comparison.notes.push_back("step times not compared: --exact was given");
  }
  std::cout << comparison_text(a, b, comparison);
  return comparison.num_regressions() == 0 ? kDone : kBad;
}

}  // namespace kuafu
