// SPDX-License-Identifier: Apache-2.0
//
// Servers in step with their workers compute what one rank does.

#include <gtest/gtest.h>

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

Overrides served(int64_t ranks, int64_t servers, Overrides more = {}) {
  more.emplace_back("parallel.data.size", text(ranks));
  more.emplace_back("parallel.data.mode", "parameter_server");
  more.emplace_back("parallel.data.servers", text(servers));
  more.emplace_back("train.batch", text(2 * ranks));
  return more;
}

const std::vector<Family>& served_plans() {
  static const std::vector<Family> all = {
      {"alone", served(1, 1)},
      {"two_of_one", served(2, 1)},
      {"three_of_two", served(3, 2)},
      {"three_of_three", served(3, 3)},
      {"five_of_three", served(5, 3)},
      {"two_of_two_t1d_sp_2",
       served(2, 2, {{"parallel.tensor.mode", "1d-sp"}, {"parallel.tensor.size", "2"}})},
      {"three_of_one_ring_2",
       served(3, 1, {{"parallel.sequence.mode", "ring"}, {"parallel.sequence.size", "2"}})},
  };
  return all;
}

Plan plan_with(const Family& family, const Overrides& more) {
  Overrides o = family.overrides;
  o.insert(o.end(), more.begin(), more.end());
  return small_plan(o);
}

class Servers : public testing::TestWithParam<Family> {};

TEST_P(Servers, EqualOneRank) {
  for (const char* overlap : {"true", "false"}) {
    for (const char* bucket : {"1", "3000", "26214400"}) {
      const Certificate c = certificate_of(plan_with(
          GetParam(), {{"parallel.data.overlap", overlap}, {"parallel.data.bucket", bucket}}));
      EXPECT_EQ(c.verdict, "equal") << overlap << ", bucket " << bucket << ": " << c.describe()
                                    << "; native " << c.native.describe();
    }
  }
}

TEST_P(Servers, SgdAndAccumulationEqualOneRank) {
  const Plan plan = plan_with(GetParam(), {});
  const std::string batch = text(plan.parallel.data.size * 6);
  EXPECT_EQ(certificate_of(plan_with(GetParam(), {{"optimizer.kind", "sgd"},
                                                  {"train.batch", batch},
                                                  {"train.micro_batch", "2"}}))
                .verdict,
            "equal");
}

TEST_P(Servers, SimulatedEqualsThreads) {
  for (const char* overlap : {"true", "false"}) {
    for (const char* dtype : {"f64", "bf16"}) {
      tests::expect_simulated_equals_threads(
          plan_with(GetParam(), {{"parallel.data.overlap", overlap},
                                 {"parallel.data.bucket", "3000"},
                                 {"model.dtype", dtype}}),
          text(overlap, " ", dtype));
    }
  }
}

// Each element is summed in rank order, wherever it is served. The update is one whose products are
// exact, so that it rounds the same with and without fused multiply-adds.
TEST_P(Servers, BitsDependNeitherOnServersNorBucketsNorOverlap) {
  const auto run = [](int64_t servers, const char* bucket, const char* overlap) {
    return tests::train(plan_with(GetParam(), {{"model.dtype", "f32"},
                                               {"optimizer.kind", "sgd"},
                                               {"optimizer.lr", "0.125"},
                                               {"optimizer.momentum", "0.5"},
                                               {"optimizer.weight_decay", "0"},
                                               {"optimizer.clip", "0"},
                                               {"parallel.data.servers", text(servers)},
                                               {"parallel.data.bucket", bucket},
                                               {"parallel.data.overlap", overlap}}));
  };
  const auto expected = run(1, "1", "false");
  for (int64_t servers = 1; servers <= plan_with(GetParam(), {}).parallel.data.size; ++servers) {
    EXPECT_TRUE(tests::is_same(run(servers, "3000", "true"), expected)) << servers;
    EXPECT_TRUE(tests::is_same(run(servers, "26214400", "false"), expected)) << servers;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Servers, testing::ValuesIn(served_plans()),
                         [](const auto& info) { return info.param.name; });

/// A step of one bucket: every worker pushes to and pulls from every server but itself.
Sent bucket_form(int64_t elements, int64_t n, int64_t servers, int64_t r) {
  const auto p = [&](int64_t s) { return tests::part(elements, s, servers); };
  const int64_t mine = r < servers ? p(r) : 0;
  Sent s{8 * ((elements - mine) + (n - 1) * mine), 0, 0};
  s.received = s.sent;
  for (int64_t other = 0; other < servers; ++other) {
    s.messages += other != r && p(other) > 0 ? 1 : 0;  // pushed
  }
  if (mine > 0) s.messages += n - 1;  // pulled from me
  return s;
}

TEST(Servers, LedgersMeetTheirClosedForms) {
  std::vector<int64_t> elements;
  {
    const Plan plan = small_plan();
    const Registries registries = builtin_registries();
    const auto world = make_self();
    const auto set = tests::data_of(plan);
    Engine engine(plan, registries, *world, *set, {});
    for (const Param* p : engine.params()) elements.push_back(p->value.numel());
  }
  for (const auto& [n, servers] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 4}, {5, 3}, {6, 5}, {8, 2}}) {
    const auto ranks =
        tests::run_plan(small_plan(served(n, servers, {{"parallel.data.bucket", "1"}})));
    for (int64_t r = 0; r < n; ++r) {
      Sent expected;
      for (int step = 0; step < 3; ++step) {
        for (const int64_t e : elements) expected += bucket_form(e, n, servers, r);
        expected += tests::ring(1, n, r);  // the loss
        expected += tests::ring(1, n, r);  // the norm: pieces lie on the servers
      }
      const AxisTraffic& t = ranks[static_cast<size_t>(r)].traffic.at("data");
      EXPECT_EQ(t.bytes_sent, expected.sent) << n << " of " << servers << ", rank " << r;
      EXPECT_EQ(t.bytes_received, expected.received) << n << " of " << servers << ", rank " << r;
      EXPECT_EQ(t.messages, expected.messages) << n << " of " << servers << ", rank " << r;
    }
  }
}

TEST(Servers, AloneHoldTheOptimizersState) {
  const auto state_of = [](const RankResult& r) {
    return r.peak_by_category[static_cast<size_t>(Category::kOptimizer)];
  };
  const int64_t whole = state_of(tests::run_plan(small_plan())[0]);
  const auto one = tests::run_plan(small_plan(served(3, 1)));
  EXPECT_EQ(state_of(one[0]), whole);
  EXPECT_EQ(state_of(one[1]), 0);
  EXPECT_EQ(state_of(one[2]), 0);
  const auto all = tests::run_plan(small_plan(served(3, 3)));
  const int64_t piece = 64 * 2 * 40;  // an allocation of each of two moments at each cut
  for (const RankResult& r : all) EXPECT_NEAR(state_of(r), whole / 3, piece);
}

TEST(Servers, AreRefusedWhereTheyCannotServe) {
  const auto refusal = [](const Overrides& o) {
    return message_of<Refused>([&] { small_plan(o); });
  };
  expect_says(refusal(served(2, 3)), {"parallel.data.servers = 3", "parallel.data = 2",
                                      "nearest: servers = 2, or data = 3"});
  expect_says(refusal(served(2, 1, {{"parallel.zero", "2"}})),
              {"parallel.zero = 2", "already shard", "nearest: zero = 0"});
  expect_says(refusal(served(2, 1, {{"model.kind", "moe_gpt"}, {"parallel.expert.size", "2"}})),
              {"parallel.expert.size = 2", "no replicas", "nearest: expert.size = 1"});
}

TEST(Servers, NameTheLineOfWhatIsRefused) {
  const auto refusal = [](const char* toml) {
    return message_of<Refused>([&] {
      resolve(parse_plan(toml, "p.toml", builtin_tensor_modes()), 0, builtin_tensor_modes());
    });
  };
  expect_says(refusal("[parallel.data]\nsize = 2\nmode = \"parameter_server\"\nservers = 3\n"),
              {"p.toml:4: ", "servers = 3"});
  expect_says(refusal("[parallel]\ndata = { size = 6, mode = \"hierarchical\" }\n[cluster]\n"
                      "ranks_per_node = 4\n"),
              {"p.toml:2: ", "ranks_per_node = 4"});
}

}  // namespace
}  // namespace kuafu
