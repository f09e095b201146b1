// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/plans.h"

// Small plans of every schedule.
namespace kuafu::tests {

/// A schedule and what it runs on.
struct Pipe {
  std::string schedule;
  int64_t ranks, chunks;
};
inline std::ostream& operator<<(std::ostream& out, const Pipe& s) {
  return out << s.schedule << " on " << s.ranks << " ranks x " << s.chunks;
}
/// As part of a test's name, which begins with a letter.
inline std::string name_of(const Pipe& s) {
  return text("s_", s.schedule, "_", s.ranks, "_", s.chunks);
}

inline std::vector<Pipe> pipes() {
  std::vector<Pipe> all;
  for (const int64_t ranks : {2, 3, 4}) {
    for (const char* name : {"gpipe", "1f1b", "zero_bubble"}) all.push_back({name, ranks, 1});
    all.push_back({"interleaved", ranks, 2});
    all.push_back({"zbv", ranks, 2});
  }
  all.push_back({"interleaved", 2, 3});
  all.push_back({"interleaved", 3, 1});
  return all;
}

/// A GPT with a layer more than the stages need, micro-batches of two samples.
inline Plan pipelined(const Pipe& s, int64_t micro_batches, const Overrides& more = {}) {
  Overrides o = {{"parallel.pipeline.size", text(s.ranks)},
                 {"parallel.pipeline.schedule", s.schedule},
                 {"parallel.pipeline.chunks", text(s.chunks)},
                 {"model.layers", text(std::max<int64_t>(1, s.ranks * s.chunks - 1))},
                 {"model.hidden", "16"},
                 {"model.heads", "2"},
                 {"train.batch", text(2 * micro_batches)},
                 {"train.micro_batch", "2"}};
  o.insert(o.end(), more.begin(), more.end());
  return small_plan(o);
}

inline void expect_equal(const Plan& plan, const std::string& what) {
  const Certificate c = certificate_of(plan);
  EXPECT_EQ(c.verdict, "equal") << what << ": " << c.describe() << "; native "
                                << c.native.describe();
}

}  // namespace kuafu::tests
