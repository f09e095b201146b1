// SPDX-License-Identifier: Apache-2.0
//
// Label full: every kind of parallelism within every schedule under every stage of ZeRO.

#include <gtest/gtest.h>

#include "tests/engine/composed.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::Composed;
using tests::Pipe;

class EveryComposition : public testing::TestWithParam<Composed> {};

TEST_P(EveryComposition, EqualsOneRank) {
  const char* const policies[] = {"none", "selective", "full"};
  size_t turn = 0;
  for (const Pipe& pipe : tests::two_rank_pipes()) {
    for (int64_t zero = 0; zero <= (GetParam().replicas > 1 ? 3 : 0); ++zero) {
      const char* policy = policies[turn++ % 3];
      const Overrides more = {{"model.dropout", "0.1"},
                              {"memory.recompute", policy},
                              {"parallel.zero", text(zero)},
                              {"parallel.data.bucket", turn % 2 == 0 ? "3000" : "25 MB"}};
      const std::string what = text(pipe, ", ZeRO-", zero, ", ", policy);
      tests::expect_equal(tests::composed_plan(GetParam(), pipe, 3, more), what);
      tests::expect_simulated_equals_threads(tests::composed_plan(GetParam(), pipe, 3, more), what);
    }
  }
}

std::vector<Composed> all_and_larger() {
  std::vector<Composed> all = tests::composed();
  const Overrides grid = {{"parallel.tensor.mode", "2.5d"},
                          {"parallel.tensor.size", "8"},
                          {"parallel.tensor.depth", "2"}};
  all.push_back({"data_2_t2p5d_8", grid, 2, 4});
  all.push_back(
      {"data_2_t3d_8", {{"parallel.tensor.mode", "3d"}, {"parallel.tensor.size", "8"}}, 2, 4});
  all.push_back({"data_5", {}, 5});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Full, EveryComposition, testing::ValuesIn(all_and_larger()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
