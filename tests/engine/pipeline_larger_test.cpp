// SPDX-License-Identifier: Apache-2.0
//
// Label full: every schedule with every number of micro-batches and every recomputation.

#include <gtest/gtest.h>

#include "tests/support/pipelines.h"

namespace kuafu {
namespace {

using tests::Pipe;

class EveryPipeline : public testing::TestWithParam<Pipe> {};

TEST_P(EveryPipeline, EqualsOneRank) {
  for (const int64_t micro_batches : {1, 2, 3, 5, 8}) {
    for (const char* policy : {"none", "selective", "full"}) {
      const Overrides more = {{"memory.recompute", policy}, {"model.dropout", "0.1"}};
      tests::expect_equal(tests::pipelined(GetParam(), micro_batches, more),
                          text(micro_batches, " micro-batches, recompute ", policy));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryPipeline, testing::ValuesIn(tests::pipes()),
                         [](const auto& info) { return tests::name_of(info.param); });

}  // namespace
}  // namespace kuafu
