// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "app/kuafu/options.h"
#include "kuafu/experiment/compare.h"

namespace kuafu {

int compare_command(const CompareCall& call) {
  const Results a = load_results(call.a), b = load_results(call.b);
  const Comparison comparison = compare(a, b);
  std::cout << comparison_text(a, b, comparison);
  return comparison.num_regressions() == 0 ? kDone : kBad;
}

}  // namespace kuafu
