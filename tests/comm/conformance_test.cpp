// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance.h"

#include <gtest/gtest.h>

#include "tests/comm/backends.h"

namespace kuafu::conformance {
namespace {

struct Case {
  Backend backend;
  int ranks;
  Body body;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.body.name << " on " << c.ranks << " ranks of " << c.backend.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend& backend : in_process_backends()) {
    for (const int ranks : backend.ranks) {
      for (const Body& body : bodies()) all.push_back({backend, ranks, body});
    }
  }
  return all;
}

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, Holds) { GetParam().backend.run(GetParam().ranks, GetParam().body.run); }

INSTANTIATE_TEST_SUITE_P(Communicator, Conformance, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.backend.name + std::to_string(info.param.ranks) +
                                  info.param.body.name;
                         });

}  // namespace
}  // namespace kuafu::conformance
