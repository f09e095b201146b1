// SPDX-License-Identifier: Apache-2.0
//
// The paper's table as bytes booked and bytes received.  [Rajbhandari et al., arXiv 1910.02054]

#include <gtest/gtest.h>

#include "kuafu/comm/simulated.h"
#include "tests/states/zero_plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::kStages;
using tests::small_plan;

/// What a rank holds when all gradients of its second step are summed.
struct ModelStates {
  int64_t parameter = 0, gradient = 0, optimizer = 0;
  int64_t all() const { return parameter + gradient + optimizer; }
  bool operator==(const ModelStates&) const = default;
};
std::ostream& operator<<(std::ostream& out, const ModelStates& s) {
  return out << s.parameter << " + " << s.gradient << " + " << s.optimizer;
}

struct Measured {
  ModelStates live, peak;
  int64_t elements = 0;                       ///< of all parameters
  int64_t head = 0, embedding = 0;            ///< of the last and the first block's own
  std::map<std::string, AxisLedger> traffic;  ///< of the second step
};

ModelStates states_of(const BytesByCategory& bytes) {
  return {bytes[static_cast<size_t>(Category::kParameter)],
          bytes[static_cast<size_t>(Category::kGradient)],
          bytes[static_cast<size_t>(Category::kOptimizer)]};
}

Measured measure(const Plan& plan, Communicator& world, const Dataset& data, at::Device device) {
  Measured m;
  RankBook book(world.rank());
  const BookScope booked(&book);
  Ledger ledger;
  const Registries registries = builtin_registries();
  Engine engine(plan, registries, world, data, {.device = device, .ledger = &ledger});
  engine.step();
  ledger.clear();
  book.restart();
  engine.forward_backward();
  m.live = states_of(book.live_by_category());
  engine.update();
  m.peak = states_of(book.peak_by_category());
  m.traffic = ledger.axes();
  for (const Param* p : engine.params()) {
    m.elements += p->value.numel();
    if (p->name.rfind("head.", 0) == 0) m.head += p->value.numel();
    if (p->name.rfind("embedding.", 0) == 0) m.embedding += p->value.numel();
  }
  return m;
}

std::vector<Measured> on_threads(const Plan& plan) {
  std::vector<Measured> all(static_cast<size_t>(num_ranks(plan)));
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    all[static_cast<size_t>(world.rank())] = measure(plan, world, *tests::data_of(plan), at::kCPU);
  });
  return all;
}

Measured simulated(const Plan& plan, int rank) {
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  const auto me = world.communicator(rank);
  return measure(plan, *me, *tests::data_of(plan), at::kMeta);
}

/// Every extent is a multiple of 32, so that no bucket of 2 or 4 replicas is padded.
Plan unpadded_plan(int64_t stage, int64_t replicas, const Overrides& more = {}) {
  Overrides all = {{"parallel.data", text(replicas)},
                   {"parallel.zero", text(stage)},
                   {"train.batch", text(2 * replicas)},
                   {"train.micro_batch", "2"},
                   {"model.vocab", "64"},
                   {"model.dtype", "bf16"}};
  all.insert(all.end(), more.begin(), more.end());
  return small_plan(all);
}

/// The paper's columns, figure 1, K = 12: f32 master copy, momentum and variance.
ModelStates states_in_theory(int64_t stage, int64_t psi, int64_t n) {
  return {2 * psi / (stage >= 3 ? n : 1), 2 * psi / (stage >= 2 ? n : 1),
          12 * psi / (stage >= 1 ? n : 1)};
}

TEST(ZeroMemory, IsThatOfThePaperToTheByteOnThreadsAndSimulated) {
  for (const int64_t n : {1, 2, 4}) {
    for (int64_t stage = 0; stage <= kStages; ++stage) {
      const Plan plan = unpadded_plan(stage, n);
      const auto threads = on_threads(plan);
      for (size_t r = 0; r < threads.size(); ++r) {
        const std::string where = text("ZeRO-", stage, ", rank ", r, " of ", n);
        EXPECT_EQ(threads[r].live, states_in_theory(stage, threads[r].elements, n)) << where;
        const Measured meta = simulated(plan, static_cast<int>(r));
        EXPECT_EQ(meta.live, threads[r].live) << where;
        EXPECT_EQ(meta.peak, threads[r].peak) << where;
        // Whole gradients of a block are booked as communication where they are freed.
        if (stage >= 2) {
          EXPECT_EQ(threads[r].peak, threads[r].live) << where;
        }
      }
    }
  }
}

// Padding: less than 64 bytes a parameter and one element a replica and bucket.
TEST(ZeroMemory, IsPaddedByLittleWhereNothingDivides) {
  for (const int64_t n : {3, 5}) {
    for (int64_t stage = 1; stage <= kStages; ++stage) {
      const Plan plan = small_plan({{"parallel.data", text(n)},
                                    {"parallel.zero", text(stage)},
                                    {"train.batch", text(n)},
                                    {"model.hidden", "28"},
                                    {"model.vocab", "37"},
                                    {"model.dtype", "bf16"}});
      int64_t optimizer = 0;
      const auto threads = on_threads(plan);
      for (size_t r = 0; r < threads.size(); ++r) {
        const Measured meta = simulated(plan, static_cast<int>(r));
        EXPECT_EQ(meta.live, threads[r].live) << "ZeRO-" << stage << ", rank " << r;
        EXPECT_EQ(meta.peak, threads[r].peak) << "ZeRO-" << stage << ", rank " << r;
        optimizer += threads[r].live.optimizer;
      }
      EXPECT_EQ(optimizer, 12 * threads[0].elements) << "padding has no state";
    }
  }
}

/// Bytes received over "data" by verb, without the loss and norm that every plan exchanges.
struct Received {
  int64_t reduce_scatter = 0, all_gather = 0, all_reduce = 0;
};

Received received(const Measured& m) {
  const AxisLedger& data = m.traffic.at("data");
  const auto bytes = [&](Verb v) { return data.received[static_cast<size_t>(v)]; };
  return {bytes(Verb::kReduceScatter), bytes(Verb::kAllGather), bytes(Verb::kAllReduce)};
}

TEST(ZeroTraffic, OfOneMicroBatchIsThatOfTheAllReduce) {
  for (const int64_t n : {2, 4}) {
    const Measured plain = on_threads(unpadded_plan(0, n))[0];
    const int64_t share = (n - 1) * 2 * plain.elements / n;  // (n-1)/n b psi
    EXPECT_GE(received(plain).all_reduce, 2 * share);
    const int64_t scalars = received(plain).all_reduce - 2 * share;
    EXPECT_LT(scalars, 100);
    for (int64_t stage = 1; stage <= 2; ++stage) {
      for (const Measured& m : on_threads(unpadded_plan(stage, n))) {
        EXPECT_EQ(received(m).reduce_scatter, share) << "ZeRO-" << stage;
        EXPECT_EQ(received(m).all_gather, share) << "ZeRO-" << stage;
        EXPECT_LT(received(m).all_reduce, 200) << "loss and norm";
      }
    }
  }
}

TEST(ZeroTraffic, OfAccumulationIsAReduceScatterMoreAMicroBatchFromStageTwo) {
  constexpr int64_t n = 2, kMicroBatches = 5;
  const Overrides more = {{"train.batch", text(2 * n * kMicroBatches)}};
  for (int64_t stage = 1; stage <= 2; ++stage) {
    const Measured m = on_threads(unpadded_plan(stage, n, more))[0];
    const int64_t share = (n - 1) * 2 * m.elements / n;
    EXPECT_EQ(received(m).reduce_scatter, share * (stage == 1 ? 1 : kMicroBatches));
    EXPECT_EQ(received(m).all_gather, share);
  }
}

// Gathered for the forward and for the backward, 1.5 of the all-reduce's bytes in all; the last
// block once for both. The embedding's second gather is that of the head, which is tied to it: no
// backward of an embedding reads a parameter, unless it recomputes the forward.
TEST(ZeroTraffic, OfStageThreeIsOnePointFiveOfTheAllReduce) {
  for (const int64_t n : {2, 4}) {
    for (const int64_t micro_batches : {1, 3}) {
      for (const char* overlap : {"true", "false"}) {
        const Overrides more = {{"train.batch", text(2 * n * micro_batches)},
                                {"parallel.data.overlap", overlap}};
        for (const Measured& m : on_threads(unpadded_plan(3, n, more))) {
          const int64_t share = (n - 1) * 2 * m.elements / n;
          const int64_t saved = (n - 1) * 2 * m.head / n;
          EXPECT_EQ(received(m).reduce_scatter, micro_batches * share);
          // Nothing is kept from one use to another that does not follow at once; without overlap
          // nothing is gathered ahead, and the same is gathered in all.
          EXPECT_EQ(received(m).all_gather, micro_batches * (2 * share - saved));
          EXPECT_EQ(
              2 * (received(m).reduce_scatter + received(m).all_gather + micro_batches * saved),
              3 * micro_batches * (2 * share));
        }
      }
    }
  }
}

TEST(ZeroTraffic, OfStageThreeHasNoThirdGatherUnderFullRecomputation) {
  constexpr int64_t n = 2;
  const Measured kept = on_threads(unpadded_plan(3, n))[0];
  const Measured again = on_threads(unpadded_plan(3, n, {{"memory.recompute", "full"}}))[0];
  EXPECT_EQ(received(again).reduce_scatter, received(kept).reduce_scatter);
  // The embedding's own forward runs once more.
  EXPECT_EQ(received(again).all_gather - received(kept).all_gather,
            (n - 1) * 2 * (kept.embedding) / n);
}

// Figure 1 and table 1 of the paper: 7.5 billion parameters on 64 ranks, in GB of 10^9 bytes.
TEST(ZeroMemory, OfSevenAndAHalfBillionOnSixtyFourRanksIsThePapersTable) {
  const std::vector<double> gigabytes = {120, 31.4, 16.6, 1.9};
  for (int64_t stage = 0; stage <= kStages; ++stage) {
    const Plan plan = small_plan({{"model.layers", "36"},
                                  {"model.hidden", "4096"},
                                  {"model.heads", "32"},
                                  {"model.vocab", "57344"},
                                  {"model.sequence", "2048"},
                                  {"model.dtype", "bf16"},
                                  {"parallel.data", "64"},
                                  {"parallel.zero", text(stage)},
                                  {"train.batch", "64"}});
    const Measured m = simulated(plan, 17);
    EXPECT_NEAR(static_cast<double>(m.elements), 7.5e9, 0.01e9);
    EXPECT_EQ(m.live, states_in_theory(stage, m.elements, 64));
    const double decimals = stage == 0 ? 0.5 : 0.05;
    EXPECT_NEAR(static_cast<double>(m.live.all()) / 1e9, gigabytes[static_cast<size_t>(stage)],
                decimals);
  }
}

}  // namespace
}  // namespace kuafu
