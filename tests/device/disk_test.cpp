// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/disk.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "tests/device/disk_faults.h"

namespace kuafu::device {
namespace {

using Bytes = std::vector<std::byte>;

Bytes some_bytes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(static_cast<size_t>(count));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

std::unique_ptr<DiskPort> as_plain(std::unique_ptr<DiskPort>, void*) { return make_plain_port(); }

/// Every size around multiples of the alignment, all under way at once, then written over.
void write_and_read_all(DiskFile& file, int64_t chunk_bytes) {
  const int64_t b = std::max<int64_t>(file.alignment(), 512);
  std::vector<int64_t> sizes = {0,     1,         b - 1,           b,          b + 1,
                                3 * b, 3 * b - 7, chunk_bytes - 1, chunk_bytes};
  for (uint64_t round = 1; round <= 2; ++round) {
    std::vector<Bytes> written, got;
    std::vector<DiskFile::Ticket> tickets;
    for (size_t i = 0; i < sizes.size(); ++i) {
      written.push_back(some_bytes(sizes[i], round * 100 + i));
      got.emplace_back(written.back().size());
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      tickets.push_back(file.write(static_cast<int64_t>(i), written[i]));
      tickets.push_back(file.read(static_cast<int64_t>(i), got[i]));
    }
    for (const DiskFile::Ticket t : tickets) file.wait(t);
    EXPECT_EQ(got, written) << file.how();
    std::rotate(sizes.begin(), sizes.begin() + 4, sizes.end());
  }
}

TEST(DiskFile, GivesBackWhatWasWritten) {
  const DiskFolder folder;
  const DiskOptions options{
      .folder = folder.path(), .chunk_bytes = 3'000'000, .num_chunks = 9, .piece_bytes = 200'000};
  DiskFile best(options), plain(options, &as_plain, nullptr);
  write_and_read_all(best, options.chunk_bytes);
  write_and_read_all(plain, options.chunk_bytes);
  EXPECT_EQ(best.stats().read, best.stats().written);
  EXPECT_GT(best.stats().busy_ns, 0);
  EXPECT_TRUE(folder.is_empty());  // the file has no name
  EXPECT_TRUE(best.how().find("O_DIRECT, alignment") != std::string::npos ||
              best.how().find("slower") != std::string::npos)
      << best.how();
  std::printf("%s\n", best.how().c_str());
}

TEST(DiskFile, RefusesFoldersOfNoUse) {
  EXPECT_THROW(DiskFile({.folder = "no/such/folder", .chunk_bytes = 1, .num_chunks = 1}),
               ConfigError);
  struct statfs system;
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  try {
    DiskFile({.folder = "/dev/shm", .chunk_bytes = 1, .num_chunks = 1});
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("tmpfs"), std::string::npos) << e.what();
  }
}

TEST(DiskFile, TellsADiskThatIsTooSmallAtOnce) {
  const DiskFolder folder;
  try {
    DiskFile({.folder = folder.path(), .chunk_bytes = int64_t{1} << 40, .num_chunks = 1 << 20});
    FAIL() << "no error";
  } catch (const DiskError& e) {
    EXPECT_EQ(e.fields.kind, DiskError::Kind::kFull) << e.what();
    EXPECT_EQ(e.fields.path, folder.path());
  }
}

TEST(DiskFile, RefusesReadsOfWhatWasNotWritten) {
  const DiskFolder folder;
  DiskFile file({.folder = folder.path(), .chunk_bytes = 100, .num_chunks = 2});
  Bytes bytes(10);
  EXPECT_THROW(file.wait(file.read(0, bytes)), InternalError);
  file.wait(file.write(0, Bytes(11)));
  EXPECT_THROW(file.wait(file.read(0, bytes)), InternalError);
  EXPECT_THROW(file.read(2, bytes), InternalError);
  EXPECT_THROW(file.write(0, Bytes(101)), InternalError);
  EXPECT_THROW(file.wait(99), InternalError);
}

/// Answers every request of a kind in its own way.
struct Answer {
  DiskRequest::Kind kind;
  int64_t result;
};
class AnsweringPort final : public DiskPort {
 public:
  AnsweringPort(std::unique_ptr<DiskPort> port, const Answer& answer)
      : port_(std::move(port)), answer_(answer) {}
  void submit(const DiskRequest& r) override {
    is_answered_ = r.kind == answer_.kind && answer_.result <= 0;
    last_ = r;
    if (!is_answered_) port_->submit(r);
  }
  DiskCompletion complete() override {
    if (is_answered_) return {last_.id, answer_.result};
    const DiskCompletion done = port_->complete();
    if (last_.kind == answer_.kind) last_.data[answer_.result] ^= std::byte{4};
    return done;
  }

 private:
  std::unique_ptr<DiskPort> port_;
  const Answer& answer_;
  DiskRequest last_;
  bool is_answered_ = false;
};
std::unique_ptr<DiskPort> answering(std::unique_ptr<DiskPort> port, void* answer) {
  return std::make_unique<AnsweringPort>(std::move(port), *static_cast<Answer*>(answer));
}

DiskError error_of(DiskFile& file, DiskFile::Ticket ticket) {
  try {
    file.wait(ticket);
  } catch (const DiskError& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return DiskError({});
}

TEST(DiskFile, NamesAChunkThatIsCorrupt) {
  const DiskFolder folder;
  Answer flip{DiskRequest::Kind::kRead, 5};  // byte 5 of what is read is another
  DiskFile file({.folder = folder.path(), .chunk_bytes = 5000, .num_chunks = 3, .depth = 1},
                &answering, &flip);
  Bytes bytes = some_bytes(5000, 1);
  file.wait(file.write(2, bytes));
  const DiskError e = error_of(file, file.read(2, bytes));
  EXPECT_EQ(e.fields.kind, DiskError::Kind::kCorrupt);
  EXPECT_EQ(e.fields.chunk, 2);
  EXPECT_EQ(e.fields.offset,
            2 * ((5000 + file.alignment() - 1) / file.alignment()) * file.alignment());
}

TEST(DiskFile, AFailedWriteIsToldOfReadsUntilTheChunkIsWrittenAgain) {
  const DiskFolder folder;
  Answer full{DiskRequest::Kind::kWrite, -ENOSPC};
  DiskFile file({.folder = folder.path(), .chunk_bytes = 5000, .num_chunks = 1, .depth = 1},
                &answering, &full);
  Bytes bytes = some_bytes(5000, 1), got(5000);
  EXPECT_EQ(error_of(file, file.write(0, bytes)).fields.kind, DiskError::Kind::kFull);
  EXPECT_EQ(error_of(file, file.read(0, got)).fields.system, std::strerror(ENOSPC));
  full = {DiskRequest::Kind::kWrite, -EIO};
  EXPECT_EQ(error_of(file, file.write(0, bytes)).fields.kind, DiskError::Kind::kFailed);
  full = {DiskRequest::Kind::kRead, 0};
  file.wait(file.write(0, bytes));
  EXPECT_EQ(error_of(file, file.read(0, got)).fields.kind, DiskError::Kind::kVanished);
  full = {DiskRequest::Kind::kRead, -EINTR};
  EXPECT_EQ(error_of(file, file.read(0, got)).fields.kind, DiskError::Kind::kFailed);  // for ever
  EXPECT_GT(file.stats().continued, 10);
}

/// Goes on by itself where it is slept on, too late by up to a millisecond.
class FakeClock final : public Clock {
 public:
  int64_t now_ns() override { return now_ += 1000; }
  void sleep_until(int64_t ns) override {
    now_ = std::max(now_, ns) + static_cast<int64_t>(random_() % 1'000'000);
  }

 private:
  std::mt19937_64 random_{1};
  int64_t now_ = 1;
};

TEST(DiskFile, KeepsItsRate) {
  const DiskFolder folder;
  FakeClock clock;
  constexpr int64_t kBytes = 4 << 20;
  DiskFile file({.folder = folder.path(),
                 .chunk_bytes = kBytes,
                 .num_chunks = 1,
                 .piece_bytes = 1 << 14,
                 .gbs = 0.1,
                 .clock = &clock});
  Bytes bytes = some_bytes(kBytes, 1);
  file.wait(file.write(0, bytes));
  EXPECT_NEAR(static_cast<double>(file.stats().busy_ns), kBytes / 0.1, 0.05 * kBytes / 0.1);
  EXPECT_GE(static_cast<double>(file.stats().busy_ns), kBytes / 0.1 - 2);
}

TEST(DiskFaults, NoneIsSilent) {
  const DiskFolder folder;
  DiskOutcome outcome;
  for (uint64_t number = 0; number < 160; ++number) {
    run_disk_case(1, number, folder.path(), outcome);
    ASSERT_EQ(outcome.wrong, "") << "case " << number;
  }
  for (size_t i = 0; i < kNumFaults; ++i) {
    EXPECT_GT(outcome.faults[i], 0) << to_string(static_cast<Fault>(i));
  }
  for (const int64_t refused : outcome.refused) EXPECT_GT(refused, 0);
  EXPECT_GT(outcome.right, 500);
}

}  // namespace
}  // namespace kuafu::device
