// SPDX-License-Identifier: Apache-2.0
//
// Steps that an exception ends in the middle, with sums under way: the ranks end with that exception
// and nothing is touched that is gone.
#include <gtest/gtest.h>

#include <atomic>

#include "kuafu/base/errors.h"
#include "tests/base/messages.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

/// What a step of four replicas ends with when each rank throws at its `at`-th block.
std::string abandoned(const Overrides& overrides, int at) {
  RunOptions options;
  std::vector<std::atomic<int>> calls(4);
  options.slowdown = [&](int rank, int64_t) -> double {
    if (++calls[static_cast<size_t>(rank)] == at) throw ConfigError("abandoned");
    return 1;
  };
  return message_of<ConfigError>([&] { run_plan(small_plan(overrides), options); });
}

TEST(AbandonedStep, EndsWithItsCauseWhateverIsUnderWay) {
  for (const char* mode : {"auto", "ring", "tree", "hierarchical"}) {
    for (int at = 5; at <= 9; ++at) {
      const std::string message = abandoned({{"parallel.data.size", "4"},
                                             {"parallel.data.mode", mode},
                                             {"parallel.data.bucket", "1024"},
                                             {"cluster.ranks_per_node", "2"}},
                                            at);
      EXPECT_NE(message.find("abandoned"), std::string::npos) << mode << " " << at;
    }
  }
  for (const char* zero : {"1", "2", "3"}) {
    for (int at = 5; at <= 9; ++at) {
      const std::string message = abandoned(
          {{"parallel.data.size", "4"}, {"parallel.zero", zero}, {"parallel.data.bucket", "1024"}},
          at);
      EXPECT_NE(message.find("abandoned"), std::string::npos) << zero << " " << at;
    }
  }
}

}  // namespace
}  // namespace kuafu::tests
