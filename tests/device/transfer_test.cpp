// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/transfer.h"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "kuafu/device/token_bucket.h"

namespace kuafu::device {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

/// Goes on by itself: work takes time, and sleepers wake up late, both drawn by a seed.
class FakeClock final : public Clock {
 public:
  int64_t now_ns() override {
    const std::lock_guard lock(mutex_);
    return now_ += static_cast<int64_t>(random_() % 100'000);
  }
  void sleep_until(int64_t ns) override {
    const std::lock_guard lock(mutex_);
    sleepers_.insert(std::this_thread::get_id());
    now_ = std::max(now_, ns) + static_cast<int64_t>(random_() % 1'000'000);
  }
  std::set<std::thread::id> sleepers() {
    const std::lock_guard lock(mutex_);
    return sleepers_;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_{7};
  int64_t now_ = 1;
  std::set<std::thread::id> sleepers_;
};

/// Lets the first copy of a queue begin when it is told to; the `failing`th fails.
class Gate final : public CopyWatch {
 public:
  void open() { open_.set_value(); }
  void waits(const Ticket&, const Ticket&) override {}
  void begins(const Ticket& ticket) override {
    if (ticket.number == 1) opened_.wait();
    if (ticket.number == failing) throw ConfigError(to_string(ticket) + " fails");
  }
  void ends(const Ticket&) override {}
  int64_t failing = -1;

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

std::vector<uint8_t> some_bytes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

TEST(CopyThreads, CopyAndCountBytes) {
  const auto queues = make_copy_threads({});
  int64_t sum = 0;
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, kMebibyte - 1, kMebibyte, kMebibyte + 1, 3 * kMebibyte}) {
    const std::vector<uint8_t> from = some_bytes(bytes, 1);
    std::vector<uint8_t> there(from.size()), back(from.size());
    const Ticket first = queues->copy(Direction::kToDevice, {there.data(), from.data(), bytes});
    const Ticket second =
        queues->copy(Direction::kToHost, {back.data(), there.data(), bytes, {first}});
    queues->wait(second);
    EXPECT_TRUE(queues->is_done(first));
    EXPECT_EQ(back, from);
    sum += bytes;
  }
  for (const Direction d : {Direction::kToDevice, Direction::kToHost}) {
    EXPECT_EQ(queues->stats(d).bytes, sum);
    EXPECT_EQ(queues->stats(d).copies, 6);
  }
}

TEST(TokenBucket, NeverLetsMoreThroughThanItsRateAndLosesNoTimeToLateSleepers) {
  std::mt19937_64 random(1);
  for (const double gbs : {0.001, 0.5, 3.3}) {
    TokenBucket link(gbs);
    int64_t now = 1'000'000, bytes = 0;
    link.begin(now);
    const int64_t start = now;
    for (int i = 0; i < 5000; ++i) {
      const auto piece = static_cast<int64_t>(1 + random() % kMebibyte);
      bytes += piece;
      now = std::max(now, link.take(piece, now));
      ASSERT_GE(static_cast<double>(now - start + 1) * gbs, static_cast<double>(bytes));
      now += static_cast<int64_t>(random() % 20'000);  // wakes up late, by up to 20 us
    }
    const double lost = static_cast<double>(now - start) - static_cast<double>(bytes) / gbs;
    EXPECT_LE(lost, 20'001) << gbs;
  }
}

TEST(TokenBucket, SavesNothingWhileIdle) {
  TokenBucket link(1.0);  // a byte a nanosecond
  link.begin(1000);
  EXPECT_EQ(link.take(500, 1000), 1500);
  link.begin(1'000'000);
  EXPECT_EQ(link.take(500, 1'000'000), 1'000'500);
  EXPECT_EQ(link.take(500, 1'000'100), 1'001'000);
}

TEST(TokenBucket, WithoutARateNothingWaits) {
  TokenBucket link({});
  link.begin(5);
  EXPECT_LE(link.take(int64_t{1} << 40, 6), 6);
}

TEST(CopyThreads, KeepTheirRateAndSleepOnTheirOwnThreads) {
  FakeClock clock;
  Gate gate;
  const auto queues = make_copy_threads(
      {.to_device_gbs = 2.0, .to_host_gbs = 0.5, .clock = &clock, .watch = &gate});
  const std::vector<uint8_t> from(4 * kMebibyte);
  std::vector<uint8_t> to(4 * kMebibyte);
  int64_t bytes = 0;
  Ticket last;
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t part = kMebibyte / 2 + i * kMebibyte / 8;
    last = queues->copy(Direction::kToDevice, {to.data(), from.data(), part});
    bytes += part;
  }
  gate.open();
  queues->wait(last);
  const QueueStats stats = queues->stats(Direction::kToDevice);
  EXPECT_EQ(stats.bytes, bytes);
  const double gbs = static_cast<double>(bytes) / static_cast<double>(stats.busy_ns);
  EXPECT_GT(gbs, 0.95 * 2);
  EXPECT_LT(gbs, 1.05 * 2);
  EXPECT_EQ(clock.sleepers().size(), 1u);
  EXPECT_FALSE(clock.sleepers().contains(std::this_thread::get_id()));
  EXPECT_EQ(queues->stats(Direction::kToHost), QueueStats{});
}

TEST(CopyThreads, FailuresReachWaitersAndWhatComesAfter) {
  Gate gate;
  gate.failing = 2;
  gate.open();
  const auto queues = make_copy_threads({.watch = &gate});
  int from = 5, to = 0, other = 0;
  const Ticket fine = queues->copy(Direction::kToDevice, {&to, &from, sizeof from});
  const Ticket failed = queues->copy(Direction::kToDevice, {&to, &from, sizeof from});
  const Ticket after = queues->copy(Direction::kToHost, {&other, &to, sizeof from, {failed}});
  const Ticket next = queues->copy(Direction::kToDevice, {&to, &from, sizeof from});
  queues->wait(fine);
  EXPECT_THROW(queues->wait(failed), ConfigError);
  EXPECT_THROW(queues->wait(failed), ConfigError);  // each time
  EXPECT_THROW(queues->wait(after), ConfigError);
  queues->wait(next);
  EXPECT_EQ(other, 0);
  EXPECT_EQ(queues->stats(Direction::kToDevice).copies, 2);
}

TEST(CopyThreads, EndWithoutWhatHasNotBegun) {
  Gate gate;
  int from = 5, to = 0, other = 0;
  std::thread opener;  // joined when the queues are gone, begun or not
  {
    const auto queues = make_copy_threads({.watch = &gate});
    queues->copy(Direction::kToDevice, {&to, &from, sizeof from});
    const Ticket second = queues->copy(Direction::kToDevice, {&other, &from, sizeof from});
    const Ticket third = queues->copy(Direction::kToHost, {&other, &from, sizeof from, {second}});
    EXPECT_FALSE(queues->is_done(third));
    opener = std::thread([&gate] { gate.open(); });
  }
  opener.join();
  EXPECT_TRUE(to == 0 || to == 5);
}

TEST(CopyThreads, KnowTheirTickets) {
  const auto queues = make_copy_threads({});
  queues->wait({});
  EXPECT_THROW(queues->wait({Direction::kToHost, 1}), InternalError);
  int a = 0, b = 0;
  EXPECT_THROW(queues->copy(Direction::kToHost, {&a, &b, 4, {{Direction::kToDevice, 3}}}),
               InternalError);
  EXPECT_THROW(make_copy_threads({.to_host_gbs = 0.0}), ConfigError);
}

TEST(CopyStreams, CopyOrderAndCountOnADevice) {
  if (num_devices() == 0) {
    EXPECT_THROW(make_copy_streams(*std::make_unique<DeviceStream>()), Unavailable);
    return;
  }
  constexpr int64_t kBytes = 8 * kMebibyte;
  const DeviceStream compute;
  const Memory there(kBytes, 0);
  const PinnedMemory from(kBytes, 0), back(kBytes, 0);
  const std::vector<uint8_t> bytes = some_bytes(kBytes, 2);
  std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(from.data()));
  const auto queues = make_copy_streams(compute);
  const Ticket in = queues->copy(Direction::kToDevice, {there.data(), from.data(), kBytes});
  queues->hold(in);
  const Ticket out = queues->copy(Direction::kToHost, {back.data(), there.data(), kBytes, {in}});
  queues->wait(out);
  EXPECT_TRUE(queues->is_done(in));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), static_cast<uint8_t*>(back.data())));
  EXPECT_EQ(queues->stats(Direction::kToHost).bytes, kBytes);
  EXPECT_GT(queues->stats(Direction::kToDevice).busy_ns, 0);
}

}  // namespace
}  // namespace kuafu::device
