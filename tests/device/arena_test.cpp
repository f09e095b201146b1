// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

namespace kuafu::device {
namespace {

constexpr int64_t kMiB = 1 << 20;

void fill(void* data, int value, int64_t bytes) {
  std::memset(data, value, static_cast<size_t>(bytes));
}

/// Rss of the mapping that `address` lies in, as /proc/self/smaps has it.
int64_t resident_by_smaps(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  bool is_ours = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_ours = begin <= at && at < end;
    int64_t kib = 0;
    if (is_ours && std::sscanf(line.c_str(), "Rss: %ld kB", &kib) == 1) return kib * 1024;
  }
  return -1;
}

TEST(Arena, TakesTheSmallestBlockThatFitsOfEqualOnesTheLowest) {
  Arena arena({.budget = 100 * 64});
  std::vector<void*> blocks;
  for (const int64_t units : {4, 1, 2, 1, 3, 1, 2, 1}) {
    blocks.push_back(arena.allocate(units * 64));
  }
  for (const int i : {0, 2, 4, 6}) arena.free(blocks[static_cast<size_t>(i)]);
  EXPECT_EQ(arena.allocate(100), blocks[2]);  // two units: the lower of two
  EXPECT_EQ(arena.allocate(3 * 64), blocks[4]);
  EXPECT_EQ(arena.allocate(1), blocks[6]);
}

TEST(Arena, RefusesWhatWouldPassTheBudgetAndSaysWhatIsFree) {
  Arena arena({.rank = 3, .tier = "device", .budget = 1024});
  void* first = arena.allocate(300);
  void* second = arena.allocate(300);
  arena.allocate(300);
  arena.free(first);
  try {
    arena.allocate(400);
    FAIL() << "no error";
  } catch (const ArenaFull& e) {
    EXPECT_EQ(e.rank, 3);
    EXPECT_EQ(e.tier, "device");
    EXPECT_EQ(e.requested, 400);
    EXPECT_EQ(e.live, 600);
    EXPECT_EQ(e.budget, 1024);
    EXPECT_EQ(e.stats.largest_free, 320);
    EXPECT_STREQ(e.what(),
                 "rank 3 is out of device memory: asked for 400 bytes with 600 live, budget 1024; "
                 "the largest free block has 320 bytes");
  }
  arena.free(second);
  EXPECT_EQ(arena.allocate(640), first);  // two neighbours are one block
  EXPECT_THROW(arena.allocate(int64_t{1} << 62), OutOfMemory);
}

TEST(Arena, SaysThatFreeBytesLieInPieces) {
  Arena arena({.budget = 4 * 64});
  void* blocks[4];
  for (void*& b : blocks) b = arena.allocate(64);
  arena.free(blocks[0]);
  arena.free(blocks[2]);
  try {
    arena.allocate(128);
    FAIL() << "no error";
  } catch (const ArenaFull& e) {
    EXPECT_NE(std::string(e.what()).find("64 bytes of 128 that are free in 2 pieces"),
              std::string::npos)
        << e.what();
    EXPECT_EQ(e.stats.fragmentation(), 0.5);
  }
}

TEST(Arena, TellsFreeingTwiceAndFreeingNothing) {
  Arena arena({.budget = 4096});
  void* block = arena.allocate(64);
  arena.free(block);
  EXPECT_THROW(arena.free(block), InternalError);
  int elsewhere = 0;
  EXPECT_THROW(arena.free(&elsewhere), InternalError);
  arena.free(arena.allocate(0));
  EXPECT_THROW(arena.allocate(-1), ConfigError);
  EXPECT_THROW(Arena({.budget = 0}), ConfigError);
}

// More than a process of 64 bits can have.
TEST(Arena, WithoutAddressSpaceNamesTheKeyThatAsksForLess) {
  try {
    const Arena arena({.tier = "device", .budget = int64_t{1} << 60});
    FAIL() << "a budget of 1 EiB was taken";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("memory.device"), std::string::npos) << e.what();
  }
}

/// Random allocations and frees beside a list of intervals.
void compare_with_intervals(uint64_t seed) {
  constexpr int64_t kBudget = 1 << 16;
  std::mt19937_64 random(seed);
  BestFit fit(kBudget, 64);
  std::map<int64_t, int64_t> live;  // offset, bytes asked for
  int64_t sum = 0, peak = 0;
  const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  for (int step = 0; step < 2000; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const auto bytes = static_cast<int64_t>(1 + random() % (random() % 8 == 0 ? 16384 : 1024));
      // Gaps between intervals, and the one that best fit takes.
      int64_t best = -1, smallest = kBudget + 1, at = 0;
      const auto gap = [&](int64_t end) {
        if (end - at >= rounded(bytes) && end - at < smallest) best = at, smallest = end - at;
      };
      for (const auto& [offset, asked] : live) {
        gap(offset);
        at = offset + rounded(asked);
      }
      gap(kBudget);
      const std::optional<int64_t> got = fit.take(bytes);
      ASSERT_EQ(got.value_or(-1), best) << "seed " << seed << " step " << step;
      if (!got) continue;
      ASSERT_EQ(*got % 64, 0);
      live[*got] = bytes;
      sum += bytes;
      peak = std::max(peak, sum);
    } else {
      const auto victim = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
      sum -= victim->second;
      fit.give(victim->first);
      live.erase(victim);
    }
    ASSERT_EQ(fit.stats().live, sum);
    ASSERT_EQ(fit.stats().num_live, static_cast<int64_t>(live.size()));
  }
  EXPECT_EQ(fit.stats().peak_live, peak);
  for (const auto& [offset, bytes] : live) fit.give(offset);
  EXPECT_EQ(fit.free_blocks(), (std::vector<ByteRange>{{0, kBudget}}));
  EXPECT_EQ(fit.stats().held, 0);
}

TEST(BestFit, EqualsAListOfIntervals) {
  for (uint64_t seed = 1; seed <= 40; ++seed) compare_with_intervals(seed);
}

TEST(Arena, BlocksKeepTheirBytesWhileOthersComeAndGo) {
  Arena arena({.budget = 4 * kMiB, .poison = Poison::kOn});
  std::mt19937_64 random(5);
  std::map<uint8_t*, std::pair<int64_t, uint8_t>> live;
  for (int step = 0; step < 3000; ++step) {
    const auto bytes = static_cast<int64_t>(1 + random() % 50'000);
    if (live.size() < 60) {
      auto* block = static_cast<uint8_t*>(arena.allocate(bytes));
      live[block] = {bytes, static_cast<uint8_t>(random())};
      fill(block, live[block].second, bytes);
    } else {
      const auto victim = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
      const auto [size, value] = victim->second;
      ASSERT_TRUE(std::all_of(victim->first, victim->first + size,
                              [v = value](uint8_t byte) { return byte == v; }));
      arena.free(victim->first);
      live.erase(victim);
    }
  }
  arena.check_poison();
}

/// What is resident is the ledger of what was touched, to 1 %.
void expect_resident(const Arena& arena, const void* inside, int64_t expected) {
  const auto within = static_cast<double>(expected) / 100;
  EXPECT_NEAR(static_cast<double>(arena.resident_bytes()), static_cast<double>(expected), within);
  EXPECT_EQ(arena.resident_bytes(), resident_by_smaps(inside));
}

TEST(Arena, ResidentBytesAreTheLedger) {
  Arena arena({.budget = 256 * kMiB});
  std::mt19937_64 random(3);
  std::vector<void*> blocks;
  std::vector<int64_t> sizes;
  void* first = arena.allocate(1);
  for (int i = 0; i < 60; ++i) {
    sizes.push_back(static_cast<int64_t>(kMiB + random() % (2 * kMiB)));
    blocks.push_back(arena.allocate(sizes.back()));
    EXPECT_LE(arena.resident_bytes(), arena.stats().live + 4096);  // untouched: not there
    fill(blocks.back(), 1, sizes.back());
  }
  expect_resident(arena, first, arena.stats().live);
  for (size_t i = 0; i < blocks.size(); i += 2) arena.free(blocks[i], Pages::kReleased);
  expect_resident(arena, first, arena.stats().live);
  const int64_t before = arena.resident_bytes();
  for (size_t i = 1; i < blocks.size(); i += 4) arena.free(blocks[i]);
  EXPECT_EQ(arena.resident_bytes(), before);
  arena.release_pages();
  expect_resident(arena, first, arena.stats().live);
  for (size_t i = 3; i < blocks.size(); i += 4) arena.free(blocks[i], Pages::kReleased);
  EXPECT_LE(arena.resident_bytes(), ::sysconf(_SC_PAGESIZE));
}

TEST(Arena, PagesThatTwoFreedBlocksSharedLeaveWithTheSecond) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  Arena arena({.budget = 4 * page});
  void* first = arena.allocate(page + page / 2);
  void* second = arena.allocate(page + page / 2);
  void* third = arena.allocate(page);
  fill(first, 1, 4 * page);
  arena.free(first, Pages::kReleased);
  EXPECT_EQ(arena.resident_bytes(), 3 * page);
  arena.free(second, Pages::kReleased);
  EXPECT_EQ(arena.resident_bytes(), page);
  EXPECT_EQ(static_cast<uint8_t*>(third)[page - 1], 1);
  EXPECT_EQ(static_cast<uint8_t*>(third)[0], 1);
}

TEST(Arena, PoisonIsNoNumberInAnyFloatType) {
  Arena arena({.budget = 4096, .poison = Poison::kOn});
  void* block = arena.allocate(64);
  fill(block, 0, 64);
  arena.free(block);
  double f64 = 0;
  float f32 = 0;
  uint16_t half = 0;
  std::memcpy(&f64, block, 8);
  std::memcpy(&f32, block, 4);
  std::memcpy(&half, block, 2);
  EXPECT_TRUE(std::isnan(f64));
  EXPECT_TRUE(std::isnan(f32));
  const auto is_nan = [half](uint16_t exponent, uint16_t fraction) {
    return (half & exponent) == exponent && (half & fraction) != 0;
  };
  EXPECT_TRUE(is_nan(0x7F80, 0x007F));  // bf16
  EXPECT_TRUE(is_nan(0x7C00, 0x03FF));  // f16
}

TEST(Arena, NamesTheBlockThatWasWrittenToAfterItWasFreed) {
  Arena arena({.budget = 1 << 16, .poison = Poison::kOn});
  arena.allocate(100);
  auto* block = static_cast<uint8_t*>(arena.allocate(1000));
  arena.free(block);
  arena.check_poison();
  block[7] = 0;
  try {
    arena.check_poison();
    FAIL() << "no error";
  } catch (const UseAfterFree& e) {
    EXPECT_NE(std::string(e.what()).find("1000 bytes at offset 128 "), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("byte 6 or 7 "), std::string::npos) << e.what();
  }
}

TEST(Arena, FindsAWriteAfterFreeWhenTheBytesAreGivenOutAgain) {
  Arena arena({.budget = 1 << 16, .poison = Poison::kOn});
  auto* block = static_cast<uint8_t*>(arena.allocate(1024));
  arena.free(block);
  EXPECT_EQ(arena.allocate(512), block);  // the rest of the grave is still watched
  block[1000] ^= 1;
  EXPECT_THROW(arena.allocate(512), UseAfterFree);
  EXPECT_EQ(arena.stats().live, 512);
}

TEST(Arena, ServesManyThreads) {
  Arena arena({.budget = 64 * kMiB});
  const auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<void*> mine;
    for (int i = 0; i < 500; ++i) {
      const auto bytes = static_cast<int64_t>(1 + random() % 20'000);
      mine.push_back(arena.allocate(bytes));
      fill(mine.back(), static_cast<int>(seed), bytes);
      if (random() % 2 == 0) {
        arena.free(mine.back(), random() % 2 == 0 ? Pages::kReleased : Pages::kKept);
        mine.pop_back();
      }
    }
    for (void* block : mine) arena.free(block);
  };
  std::vector<std::jthread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  threads.clear();
  EXPECT_EQ(arena.stats().live, 0);
  EXPECT_EQ(arena.stats().num_free, 1);
}

}  // namespace
}  // namespace kuafu::device
