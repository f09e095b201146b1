// SPDX-License-Identifier: Apache-2.0
//
// Slots of the optimizer on a disk: the same bits as in memory, host memory of the runs in use alone,
// faults that end a run.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include <ATen/ATen.h>

#include "kuafu/base/trace.h"
#include "kuafu/plan/plan.h"
#include "kuafu/states/state_file.h"
#include "tests/states/tier_runs.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using namespace tests;         // NOLINT: data_of, is_same, run_ranks
using namespace tests::tiers;  // NOLINT: the words of tier_runs.h
using Use = StateFile::Use;

/// Not in the folder of temporary files, which may be a tmpfs.
const char* const kFolder = "/var/tmp";

Overrides on_disk(const Overrides& more = {}) {
  return both({{"memory.policy", "host"}, {"memory.disk_path", kFolder}}, more);
}

/// Summed gradients there too.
const Overrides kGradientsToo = {{"memory.gradients", "disk"}};

void expect_bits_of_plain(const Overrides& base, const Overrides& more, const std::string& where) {
  const std::vector<Booked> plain = on_threads(plan_with(base));
  const std::vector<Booked> tiered = on_threads(plan_with(both(base, on_disk(more))));
  int64_t written = 0;
  for (size_t r = 0; r < plain.size(); ++r) {
    EXPECT_TRUE(is_same(tiered[r].trained, plain[r].trained)) << where;
    const DiskCounts& disk = tiered[r].moves.disk;
    written += disk.written;
    // The first step finds zeros, which nobody has written. Gradients come more than once.
    const bool has_gradients = std::find(more.begin(), more.end(), kGradientsToo[0]) != more.end();
    EXPECT_LE(disk.read, (has_gradients ? 4 : 1) * disk.written) << where;
  }
  // Where every step overflows nothing is ever changed.
  if (where != "f16, scaled") {
    EXPECT_GT(written, 0) << where;
  }
}

TEST(Disk, TrainsEveryKindOfPlanToTheBitsOfPlain) {
  for (const auto& [name, base] : kinds()) {
    const Overrides small = {{"memory.chunk_size", "3000"}};
    expect_bits_of_plain(base, small, name);
    expect_bits_of_plain(base, both(small, kGradientsToo), name);
  }
}

TEST(Disk, TrainsEveryRuleToTheBitsOfPlainUnderEveryStageOfZero) {
  for (const std::string& rule : builtin_optimizer_names()) {
    for (int64_t stage = 0; stage <= kLastZeroStage; ++stage) {
      if (rule == "sgd") continue;  // with momentum among kinds()
      expect_bits_of_plain(both(replicas(2, stage), {{"optimizer.kind", rule}}), {},
                           text(rule, ", ZeRO-", stage));
      if (stage % 3 != 0) continue;
      expect_bits_of_plain(both(replicas(2, stage), {{"optimizer.kind", rule}}), kGradientsToo,
                           text(rule, ", ZeRO-", stage, ", gradients too"));
    }
  }
}

TEST(DiskWhole, TrainsToTheBitsOfPlainUnderEveryRuleStageChunkAndDepth) {
  for (const std::string& rule : builtin_optimizer_names()) {
    for (const int64_t n : {1, 3}) {
      for (int64_t stage = 0; stage <= kLastZeroStage; ++stage) {
        for (const char* chunk : {"1", "3000", "26214400"}) {
          for (const char* prefetch : {"0", "3"}) {
            if (rule == "sgd") continue;
            for (const char* gradients : {"host", "disk"}) {
              expect_bits_of_plain(both(replicas(n, stage), {{"optimizer.kind", rule}}),
                                   {{"memory.chunk_size", chunk},
                                    {"memory.prefetch", prefetch},
                                    {"memory.gradients", gradients}},
                                   text(rule, ", ", n, " ranks, ZeRO-", stage, ", chunk ", chunk,
                                        ", ", prefetch, ", gradients on the ", gradients));
            }
          }
        }
      }
    }
  }
}

void expect_as_much_without_memory(const Overrides& more) {
  for (const char* rule : {"adamw", "lamb", "muon"}) {
    for (const int64_t stage : {0, 3}) {
      Plan plan = plan_with(both(both(replicas(2, stage), {{"optimizer.kind", rule}}),
                                 on_disk(both({{"memory.chunk_size", "2000"}}, more))));
      plan.train.steps = 2;
      std::vector<Booked> real = on_threads(plan);
      const std::vector<Booked> meta = simulated(plan);
      for (size_t r = 0; r < real.size(); ++r) {
        real[r].moves.wait_seconds = real[r].moves.disk.wait_seconds = 0;
        EXPECT_EQ(meta[r].moves, real[r].moves) << rule << ", ZeRO-" << stage;
        EXPECT_GT(real[r].moves.disk.read, 0);
      }
    }
  }
}

TEST(Disk, MovesAndHoldsAsMuchWithoutMemory) { expect_as_much_without_memory({}); }

TEST(Disk, OfGradientsTooMovesAndHoldsAsMuchWithoutMemory) {
  expect_as_much_without_memory(kGradientsToo);
}

// Each goes there once, and comes for the norm and for every pass of the rule. LAMB has no place for
// its direction then and reads its two slots a second time to make it again.
TEST(Disk, OfGradientsTooMovesThemOnceAStepAndPass) {
  for (const std::string& rule : builtin_optimizer_names()) {
    for (const int64_t stage : {0, 3}) {
      const Overrides base = both(both(replicas(2, stage), {{"optimizer.kind", rule}}),
                                  on_disk({{"memory.chunk_size", "2000"}}));
      const std::vector<Booked> slots = on_threads(plan_with(base));
      const std::vector<Booked> all = on_threads(plan_with(both(base, kGradientsToo)));
      const int64_t passes = rule == "lars" ? 3 : rule == "lamb" ? 3 + 2 : 2;
      for (size_t r = 0; r < all.size(); ++r) {
        const DiskCounts& few = slots[r].moves.disk;
        const DiskCounts& many = all[r].moves.disk;
        const int64_t gradients = many.bytes - few.bytes;
        EXPECT_GT(gradients, 0);
        EXPECT_EQ(many.step_written - few.step_written, gradients) << rule << ", ZeRO-" << stage;
        // Whole ones come in the order of the parameters, and a bucket of small ones for several.
        const int64_t read = many.step_read - few.step_read;
        EXPECT_GE(read, passes * gradients) << rule << ", ZeRO-" << stage;
        EXPECT_LE(read, (stage == 0 ? 1.5 : 1) * passes * gradients) << rule << ", ZeRO-" << stage;
      }
    }
  }
}

// Whatever the rule, one of its passes alone uses a slot: it comes once a step and goes back once.
TEST(Disk, MovesEverySlotOnceAStep) {
  for (const std::string& rule : builtin_optimizer_names()) {
    if (rule == "sgd") continue;  // with momentum among kinds()
    for (const int64_t stage : {0, 3}) {
      const Plan plan = plan_with(both(both(replicas(2, stage), {{"optimizer.kind", rule}}),
                                       on_disk({{"memory.chunk_size", "2000"}})));
      for (const Booked& rank : on_threads(plan)) {
        EXPECT_EQ(rank.moves.disk.step_read, rank.moves.disk.bytes) << rule << ", ZeRO-" << stage;
        EXPECT_EQ(rank.moves.disk.step_written, rank.moves.disk.bytes) << rule;
      }
    }
  }
}

// Two slots of AdamW leave the host but for a few runs, which are of one row at most here.
TEST(Disk, TakesSlotsOffTheHost) {
  const Overrides small = {{"model.layers", "8"}, {"memory.chunk_size", "1000"}};
  const auto host_peak = [&](const Overrides& more) {
    return on_threads(plan_with(both(both(small, {{"memory.policy", "host"}}), more)))[0].moves;
  };
  const MoveCounts above = host_peak({}), below = host_peak({{"memory.disk_path", kFolder}});
  EXPECT_EQ(above.disk.bytes, 0);
  EXPECT_LT(below.host_peak, above.host_peak - below.disk.bytes * 3 / 4);
  EXPECT_GT(below.disk.bytes, above.host_peak / 3);
  const MoveCounts least = host_peak(both({{"memory.disk_path", kFolder}}, kGradientsToo));
  EXPECT_LT(least.host_peak, below.host_peak - (least.disk.bytes - below.disk.bytes) * 3 / 4);
}

TEST(Disk, OfTooLittleSaysThatItIsTheDisk) {
  try {
    on_threads(plan_with(on_disk({{"memory.disk", "50000"}})));
    FAIL() << "50 kB hold all slots";
  } catch (const TierFull& e) {
    EXPECT_EQ(e.fields.tier, "disk");
    EXPECT_EQ(e.fields.budget, 50000);
    EXPECT_GT(e.fields.requested, 50000);
  }
}

TEST(Disk, ThatIsNoneIsRefusedByItsKey) {
  for (const char* folder : {"/nowhere", "/dev/shm", "/proc/self/exe"}) {
    try {
      on_threads(plan_with({{"memory.policy", "host"}, {"memory.disk_path", folder}}));
      ADD_FAILURE() << folder << " is taken for a disk";
    } catch (const ConfigError& e) {
      const std::string what = e.what();
      EXPECT_NE(what.find("memory.disk_path"), std::string::npos) << what;
      EXPECT_NE(what.find(folder), std::string::npos) << what;
    }
  }
}

/// Writes over what files without a name hold that this process has open in kFolder.
int64_t write_over_open_files() {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry, error);
    if (error || target.rfind(kFolder, 0) != 0 || target.find("(deleted)") == std::string::npos) {
      continue;
    }
    const int file = ::open(entry.path().c_str(), O_WRONLY);
    const int64_t size = ::lseek(file, 0, SEEK_END);
    const std::vector<char> noise(4096, 'x');
    for (int64_t at = 0; at < size; at += 4096) bytes += ::pwrite(file, noise.data(), 4096, at);
    ::close(file);
  }
  return bytes;
}

class DiskOf : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, DiskOf, testing::Values("host", "disk"));

TEST_P(DiskOf, WhoseBytesHaveChangedEndsTheRun) {
  const Plan plan = plan_with(on_disk({{"memory.gradients", GetParam()}}));
  run_ranks(1, [&](Communicator& world) {
    const auto data = data_of(plan);
    const Registries registries = builtin_registries();
    RankBook book = device_book(plan, 0, at::kCPU);
    const BookScope booked(&book);
    Engine engine(plan, registries, world, *data, {});
    engine.step();
    ASSERT_GT(write_over_open_files(), 0);
    try {
      engine.step();
      FAIL() << "trained on noise";
    } catch (const device::DiskError& e) {
      EXPECT_EQ(e.fields.kind, device::DiskError::Kind::kCorrupt);
    }
  });
}

TEST_P(DiskOf, CopiesAreInTheTraceAndEachIsWaitedFor) {
  const Plan plan =
      plan_with(on_disk({{"memory.chunk_size", "4 KiB"}, {"memory.gradients", GetParam()}}));
  run_ranks(1, [&](Communicator& world) {
    TraceRecorder recorder;
    Booked booked;
    {
      const TraceScope traced(&recorder);
      train_booked(plan, world, *data_of(plan), at::kCPU, booked);
    }
    int64_t read = 0, written = 0, arrived = 0;
    for (const TraceRecord& r : recorder.trace().records) {
      if (r.queue < TraceQueue::kFromDisk) continue;
      if (r.kind == TraceKind::kArrival) arrived += r.payload[1];
      if (r.kind != TraceKind::kCopy) continue;
      (r.queue == TraceQueue::kFromDisk ? read : written) += r.payload[1];
      EXPECT_LE(r.start_ns, r.end_ns);
    }
    EXPECT_EQ(arrived, read + written);
    EXPECT_EQ(written, booked.moves.disk.written);
    EXPECT_EQ(read, booked.moves.disk.read);
  });
}

TEST_P(DiskOf, ThrottledTakesItsTime) {
  const auto waited = [](const char* gbs) {
    return on_threads(plan_with(on_disk({{"memory.prefetch", "0"},
                                         {"memory.throttle", "true"},
                                         {"cluster.disk_gbs", gbs},
                                         {"memory.gradients", GetParam()}})))[0]
        .moves.disk;
  };
  const DiskCounts slow = waited("0.005");
  EXPECT_GE(slow.wait_seconds, 0.9 * static_cast<double>(slow.read + slow.written) / 0.005e9);
  EXPECT_LT(waited("10").wait_seconds, slow.wait_seconds / 2);
}

/// Random uses of random rows beside tensors that stay: the same elements always, and never more on
/// the host than the run in use, the one before it and those read ahead.
TEST(StateFiles, GiveWhatWasLeftInThemUnderRandomUses) {
  std::mt19937 random(5);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 60; ++round) {
    RankBook host(0, 0);
    std::vector<StateFile::Row> rows;
    std::vector<Tensors> expected;
    int64_t largest = 0;
    const int64_t chunk = int64_t{1} << (4 + below(10));
    for (int64_t i = 1 + below(9); i-- > 0;) {
      const at::ScalarType type = below(6) == 0 ? at::kDouble : at::kFloat;
      const Tensor like = at::empty({below(4) == 0 ? 0 : 1 + below(700)}, at::kBFloat16);
      rows.push_back({like, type, static_cast<size_t>(below(4))});
      expected.emplace_back();
      for (size_t k = 0; k < rows.back().slots; ++k) {
        expected.back().push_back(at::zeros(like.sizes(), at::TensorOptions(type)));
      }
      largest = std::max<int64_t>(
          largest, static_cast<int64_t>(rows.back().slots) *
                       (like.numel() * static_cast<int64_t>(at::elementSize(type)) + 63));
    }
    const int64_t ahead = below(4);
    StateFile file({.folder = kFolder, .chunk_bytes = chunk, .ahead = ahead}, rows, &host);
    host.restart();
    for (int step = 0; step < 3; ++step) {
      std::vector<size_t> order;
      for (int64_t n = below(20); n-- > 0;) order.push_back(random() % rows.size());
      if (below(4) > 0) file.expect(order);
      for (size_t row : order) {
        if (below(10) == 0) row = random() % rows.size();  // another one than was expected
        const Use use = below(2) == 0 ? Use::kRead : Use::kChange;
        file.use(row, use);
        for (size_t k = 0; k < rows[row].slots; ++k) {
          EXPECT_TRUE(at::equal(file.tensors(row)[k], expected[row][k])) << round;
          if (use == Use::kRead) continue;
          file.tensors(row)[k].add_(step + 1);
          expected[row][k].add_(step + 1);
        }
      }
      file.rest();
      EXPECT_EQ(host.live(), 0) << round;
    }
    EXPECT_LE(host.peak(), (2 + ahead) * std::max(chunk, largest)) << round;
  }
}

}  // namespace
}  // namespace kuafu
