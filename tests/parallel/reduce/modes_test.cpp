// SPDX-License-Identifier: Apache-2.0
//
// Plans whose replicas agree by a named algorithm.

#include <gtest/gtest.h>

#include "kuafu/comm/cost_model.h"
#include "tests/base/messages.h"
#include "tests/parallel/reduce/closed_forms.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::Family;
using tests::Sent;
using tests::small_plan;

Overrides data(const std::string& mode, int64_t ranks, Overrides more = {}) {
  more.emplace_back("parallel.data.size", text(ranks));
  more.emplace_back("parallel.data.mode", mode);
  more.emplace_back("train.batch", text(2 * ranks));
  return more;
}

Overrides nodes(int64_t ranks, int64_t per_node, Overrides more = {}) {
  more.emplace_back("cluster.ranks_per_node", text(per_node));
  return data("hierarchical", ranks, std::move(more));
}

Overrides tensor(const std::string& mode, int64_t size) {
  return {{"parallel.tensor.mode", mode}, {"parallel.tensor.size", text(size)}};
}

Overrides experts(int64_t ranks) {
  return {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"parallel.expert.size", text(ranks)}};
}

const std::vector<Family>& modes() {
  static const std::vector<Family> all = {
      {"ring_2", data("ring", 2)},
      {"ring_3", data("ring", 3)},
      {"tree_3", data("tree", 3)},
      {"tree_5", data("tree", 5)},
      {"tree_4_t1d_2", data("tree", 4, tensor("1d", 2))},
      {"hierarchical_4_nodes_of_2", nodes(4, 2)},
      {"hierarchical_6_nodes_of_3", nodes(6, 3)},
      {"hierarchical_3_on_one_node", nodes(3, 8)},
      {"hierarchical_3_nodes_of_1", nodes(3, 1)},
      {"hierarchical_4_of_t1d_sp_2", nodes(4, 4, tensor("1d-sp", 2))},
      {"tree_4_experts_2", data("tree", 4, experts(2))},
      {"hierarchical_4_nodes_of_2_experts_2", nodes(4, 2, experts(2))},
  };
  return all;
}

class DataModes : public testing::TestWithParam<Family> {};

TEST_P(DataModes, EqualOneRank) {
  for (const char* overlap : {"true", "false"}) {
    for (const char* bucket : {"1", "3000", "26214400"}) {
      Overrides o = GetParam().overrides;
      o.emplace_back("parallel.data.overlap", overlap);
      o.emplace_back("parallel.data.bucket", bucket);
      const Certificate c = certificate_of(small_plan(o));
      EXPECT_EQ(c.verdict, "equal") << overlap << ", bucket " << bucket << ": " << c.describe()
                                    << "; native " << c.native.describe();
    }
  }
}

TEST_P(DataModes, AccumulationEqualsOneRank) {
  Overrides o = GetParam().overrides;
  const Plan plan = small_plan(o);
  o.emplace_back("train.batch", text(plan.parallel.data.size * 6));
  o.emplace_back("train.micro_batch", "2");
  EXPECT_EQ(certificate_of(small_plan(o)).verdict, "equal");
}

TEST_P(DataModes, SimulatedEqualsThreads) {
  for (const char* overlap : {"true", "false"}) {
    for (const char* dtype : {"f64", "bf16"}) {
      Overrides o = GetParam().overrides;
      o.emplace_back("parallel.data.overlap", overlap);
      o.emplace_back("parallel.data.bucket", "3000");
      o.emplace_back("model.dtype", dtype);
      tests::expect_simulated_equals_threads(small_plan(o), text(overlap, " ", dtype));
    }
  }
}

TEST_P(DataModes, OverlapDoesNotChangeABit) {
  const auto run = [](const char* overlap) {
    Overrides o = GetParam().overrides;
    o.emplace_back("model.dtype", "f32");
    o.emplace_back("parallel.data.bucket", "3000");
    o.emplace_back("parallel.data.overlap", overlap);
    return tests::train(small_plan(o));
  };
  EXPECT_TRUE(tests::is_same(run("true"), run("false")));
}

INSTANTIATE_TEST_SUITE_P(All, DataModes, testing::ValuesIn(modes()),
                         [](const auto& info) { return info.param.name; });

/// Elements of every parameter: with buckets of one byte each is a bucket.
std::vector<int64_t> parameters() {
  const Plan plan = small_plan();
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto set = tests::data_of(plan);
  Engine engine(plan, registries, *world, *set, {});
  std::vector<int64_t> elements;
  for (const Param* p : engine.params()) elements.push_back(p->value.numel());
  return elements;
}

/// A step's loss is one f64, summed as threads do.
Sent loss(int64_t n, int64_t r) { return tests::ring(1, n, r); }

Sent of(const AxisTraffic& t) { return {t.bytes_sent, t.bytes_received, t.messages}; }

TEST(DataModes, LedgersMeetTheirClosedForms) {
  const std::vector<int64_t> all = parameters();
  const int64_t steps = 3;
  for (const int64_t n : {2, 3, 4, 5, 6, 8}) {
    const Overrides each = {{"parallel.data.bucket", "1"}};
    const auto check = [&](const Plan& plan, const char* axis, const auto& form, bool has_loss) {
      const auto ranks = tests::run_plan(plan);
      for (int64_t r = 0; r < n; ++r) {
        Sent expected;
        for (int64_t step = 0; step < steps; ++step) {
          for (const int64_t elements : all) expected += form(elements, r);
          if (has_loss) expected += loss(n, r);
        }
        const Sent sent = of(ranks[static_cast<size_t>(r)].traffic.at(axis));
        EXPECT_EQ(sent.sent, expected.sent) << axis << " of " << n << ", rank " << r;
        EXPECT_EQ(sent.received, expected.received) << axis << " of " << n << ", rank " << r;
        EXPECT_EQ(sent.messages, expected.messages) << axis << " of " << n << ", rank " << r;
      }
    };
    const auto ring = [n](int64_t elements, int64_t r) { return tests::ring(elements, n, r); };
    const auto tree = [n](int64_t elements, int64_t r) { return tests::tree(elements, n, r); };
    check(small_plan(data("auto", n, each)), "data", ring, true);
    check(small_plan(data("ring", n, each)), "data", ring, true);
    check(small_plan(data("tree", n, each)), "data", tree, true);
    for (int64_t m = 2; m < n; ++m) {
      if (n % m != 0) continue;
      const Plan plan = small_plan(nodes(n, m, each));
      check(
          plan, "data.intra", [m](int64_t e, int64_t r) { return tests::intra(e, m, r); }, false);
      check(
          plan, "data.inter", [n, m](int64_t e, int64_t r) { return tests::inter(e, n, m, r); },
          false);
    }
  }
}

TEST(DataModes, AreRefusedWhereTheyCannotWork) {
  const auto refusal = [](const Overrides& o) {
    return message_of<Refused>([&] { small_plan(o); });
  };
  expect_says(refusal(nodes(6, 4)),
              {"ranks_per_node = 4", "parallel.data = 6", "nearest: ranks_per_node = 3 or 2"});
  expect_says(refusal(nodes(9, 4)), {"nearest: ranks_per_node = 3 or 1", "data = 8 or 12"});
  expect_says(refusal(data("tree", 4, {{"parallel.zero", "1"}})),
              {"parallel.zero = 1", "\"tree\"", "nearest: zero = 0"});
  expect_says(refusal(data("ring", 4, {{"parallel.data.order", "fixed"}})),
              {"parallel.data.order = \"fixed\"", "nearest: order = \"any\""});
}

TEST(DataModes, WithoutEffectAreErrors) {
  const auto error = [](const Overrides& o) {
    return message_of<ConfigError>([&] { small_plan(o); });
  };
  expect_says(error(data("ring", 2, {{"parallel.data.staleness", "1"}})),
              {"parallel.data.staleness = 1", "no effect", "\"parameter_server\""});
  expect_says(error(data("tree", 2, {{"parallel.data.servers", "2"}})),
              {"parallel.data.servers = 2", "no effect"});
  expect_says(error(data("star", 2)), {"\"star\"", "\"hierarchical\""});
}

}  // namespace
}  // namespace kuafu
