// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/comm/backends.h"
#include "tests/comm/conformance.h"

namespace kuafu::conformance {

struct Case {
  Backend backend;
  int ranks;
  Body body;
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.body.name << " on " << c.ranks << " ranks of " << c.backend.name;
}

inline std::vector<Case> cases_of(const std::vector<Backend>& backends) {
  std::vector<Case> all;
  for (const Backend& backend : backends) {
    for (const int ranks : backend.ranks) {
      for (const Body& body : bodies()) all.push_back({backend, ranks, body});
    }
  }
  return all;
}

inline std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.backend.name + std::to_string(info.param.ranks) + info.param.body.name;
}

/// One program says which back ends: INSTANTIATE_TEST_SUITE_P(Communicator, Conformance, ...).
class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, Holds) { GetParam().backend.run(GetParam().ranks, GetParam().body.run); }

}  // namespace kuafu::conformance
