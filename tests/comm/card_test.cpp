// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of communicators on a card that is there: thread ranks that share it, and one
// NCCL rank. tests/standin runs it without one.

#include "kuafu/comm/worlds.h"
#include "kuafu/device/device.h"
#include "tests/comm/conformance_suite.h"
#include "tests/comm/values.h"

namespace kuafu::conformance {
namespace {

std::vector<Backend> card_backends() {
  const auto where_there_is_one = [](const auto& run) {
    return [run](int ranks, const std::function<void(Communicator&)>& body) {
      if (device::num_devices() == 0) GTEST_SKIP() << device::why_none();
      run(ranks, on_a_stream(body));
    };
  };
  return {{"card", {1, 2, 3, 4, 5, 8}, where_there_is_one([](int ranks, const auto& body) {
             run_on_threads(ranks, body);
           })},
          {"nccl", {1}, where_there_is_one([](int, const auto& body) { run_on_nccl(body); })}};
}

INSTANTIATE_TEST_SUITE_P(Communicator, Conformance, testing::ValuesIn(cases_of(card_backends())),
                         name_of);

}  // namespace
}  // namespace kuafu::conformance
