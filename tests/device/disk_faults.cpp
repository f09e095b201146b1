// SPDX-License-Identifier: Apache-2.0
#include "tests/device/disk_faults.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <list>
#include <map>
#include <vector>

namespace kuafu::device {

namespace {

using Kind = DiskRequest::Kind;
using Memory = std::unique_ptr<std::byte, void (*)(void*)>;

constexpr int64_t kChunkBytes = 5 * 4096;
constexpr int64_t kNumChunks = 4;

Memory aligned_memory(int64_t bytes) {
  return {static_cast<std::byte*>(
              std::aligned_alloc(4096, static_cast<size_t>((bytes + 8191) / 4096 * 4096))),
          &std::free};
}

class FaultyPort final : public DiskPort {
 public:
  FaultyPort(std::unique_ptr<DiskPort> port, FaultDraw& draw)
      : port_(std::move(port)), draw_(draw) {}

  void submit(const DiskRequest& r) override {
    const auto drawn = static_cast<double>(draw_.random() % 1'000'000) / 1e6;
    if (drawn >= draw_.rate) return port_->submit(r);
    const auto fault = static_cast<Fault>(draw_.random() % (kNumFaults - 1));
    const bool is_write_fault =
        fault == Fault::kFlipWritten || fault == Fault::kLost || fault == Fault::kTorn;
    if (is_write_fault != (r.kind == Kind::kWrite) &&
        (is_write_fault || fault == Fault::kFlipRead)) {
      return port_->submit(r);
    }
    ++draw_.counts[static_cast<size_t>(fault)];
    inject(fault, r);
  }

  DiskCompletion complete() override {
    if (!answers_.empty()) {
      const DiskCompletion answer = answers_.front();
      answers_.pop_front();
      return answer;
    }
    DiskCompletion done = port_->complete();
    flipped_.erase(done.id);
    if (const auto told = told_.extract(done.id); !told.empty() && done.result >= 0) {
      done.result = told.mapped();
    }
    if (const auto flip = to_flip_.extract(done.id); !flip.empty() && done.result > 0) {
      flip_bit(flip.mapped().data, done.result);
    }
    return done;
  }

 private:
  void inject(Fault fault, const DiskRequest& r) {
    switch (fault) {
      case Fault::kShort:
        return in_part(r,
                       1 + static_cast<int64_t>(draw_.random() % static_cast<uint64_t>(r.bytes)));
      case Fault::kNothing:
        return answers_.push_back({r.id, 0});
      case Fault::kInterrupted:
        return answers_.push_back({r.id, -EINTR});
      case Fault::kAgain:
        return answers_.push_back({r.id, -EAGAIN});
      case Fault::kFull:
        return answers_.push_back({r.id, -ENOSPC});
      case Fault::kFailed:
        return answers_.push_back({r.id, -EIO});
      case Fault::kGone:
        return answers_.push_back({r.id, -ENODEV});
      case Fault::kFlipWritten:
        return flip_written(r);
      case Fault::kFlipRead:
        to_flip_[r.id] = r;
        return port_->submit(r);
      case Fault::kLost:
        return answers_.push_back({r.id, r.bytes});
      default:
        return in_part(r, r.bytes / 2, r.bytes);
    }
  }

  /// Whole blocks of `bytes` are done; `told`, or `bytes`, are said to be.
  void in_part(const DiskRequest& r, int64_t bytes, int64_t told = 0) {
    if (told == 0) told = bytes;
    DiskRequest part = r;
    part.bytes = bytes / draw_.alignment * draw_.alignment;
    if (part.bytes == 0) return answers_.push_back({r.id, told});
    told_[r.id] = told;
    port_->submit(part);
  }

  void flip_written(const DiskRequest& r) {
    const auto& memory = flipped_.insert_or_assign(r.id, aligned_memory(r.bytes)).first->second;
    std::memcpy(memory.get(), r.data, static_cast<size_t>(r.bytes));
    flip_bit(memory.get(), r.bytes);
    DiskRequest other = r;
    other.data = memory.get();
    port_->submit(other);
  }

  void flip_bit(std::byte* data, int64_t bytes) {
    const uint64_t bit = draw_.random() % static_cast<uint64_t>(8 * bytes);
    data[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }

  std::unique_ptr<DiskPort> port_;
  FaultDraw& draw_;
  std::deque<DiskCompletion> answers_;
  std::map<uint64_t, int64_t> told_;
  std::map<uint64_t, DiskRequest> to_flip_;
  std::map<uint64_t, Memory> flipped_;
};

/// What a chunk must hold.
struct Known {
  int64_t asked = -1;  // bytes of the last write that was asked for
  bool is_broken = false;
  std::vector<std::byte> bytes;
};

struct Operation {
  bool is_write = false;
  int64_t chunk = 0, bytes = 0;
  Memory memory{nullptr, &std::free};
  std::byte* data = nullptr;
  DiskFile::Ticket ticket = 0;
};

/// A program against its model.
class Case {
 public:
  Case(const std::string& folder, FaultDraw& draw, DiskOutcome& outcome)
      : random_(draw.random()), draw_(draw), outcome_(outcome), known_(kNumChunks) {
    const int64_t pieces[] = {512, 4096, 8192, 1 << 20};
    const DiskOptions options{.folder = folder,
                              .chunk_bytes = kChunkBytes,
                              .num_chunks = kNumChunks,
                              .piece_bytes = pieces[random_() % 4],
                              .depth = static_cast<int>(1 + random_() % 4)};
    draw.alignment = 1;  // until it is known: nothing is submitted before
    file_ = std::make_unique<DiskFile>(options, &with_faults, &draw);
    draw.alignment = file_->alignment();
  }

  void run() {
    for (int batch = 0; batch < 6; ++batch) {
      for (uint64_t i = 1 + random_() % 3; i > 0; --i) ask(random_() % 2 == 0, some_chunk());
      settle_all();
    }
    for (int64_t chunk = 0; chunk < kNumChunks; ++chunk) ask(false, chunk);
    settle_all();
    file_.reset();  // joins the thread that counts
  }

 private:
  int64_t some_chunk() { return static_cast<int64_t>(random_() % kNumChunks); }

  /// Below B, B, n B and n B - M.
  int64_t some_size() {
    const int64_t b = std::max<int64_t>(draw_.alignment, 512), most = kChunkBytes / b;
    const int64_t n = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(most));
    const int64_t m = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(b - 1));
    const int64_t sizes[] = {m, b, n * b, n * b - m};
    return std::clamp<int64_t>(sizes[random_() % 4], 1, kChunkBytes);
  }

  void ask(bool is_write, int64_t chunk) {
    Known& known = known_[static_cast<size_t>(chunk)];
    if (!is_write && known.asked < 0) return;
    Operation& o = asked_.emplace_back();
    o.is_write = is_write;
    o.chunk = chunk;
    if (is_write) known.asked = some_size();
    o.bytes = known.asked;
    o.memory = aligned_memory(o.bytes + 64);
    o.data = o.memory.get() + (random_() % 2 == 0 ? 0 : random_() % 65);
    const auto size = static_cast<size_t>(o.bytes);
    if (is_write) {
      for (size_t i = 0; i < size; ++i) o.data[i] = static_cast<std::byte>(random_());
      o.ticket = file_->write(chunk, {o.data, size});
    } else {
      o.ticket = file_->read(chunk, {o.data, size});
    }
  }

  void settle_all() {
    for (const Operation& o : asked_) settle(o);
    asked_.clear();
  }

  void settle(const Operation& o) {
    Known& known = known_[static_cast<size_t>(o.chunk)];
    try {
      file_->wait(o.ticket);
    } catch (const DiskError& e) {
      ++outcome_.refused[static_cast<size_t>(e.fields.kind)];
      if (!is_explained(e)) found(e.what());
      if (o.is_write) known.is_broken = true;
      return;
    } catch (const std::exception& e) {
      return found(e.what());
    }
    if (o.is_write) {
      known.is_broken = false;
      known.bytes.assign(o.data, o.data + o.bytes);
      return;
    }
    const bool is_right = !known.is_broken && known.bytes.size() == static_cast<size_t>(o.bytes) &&
                          std::equal(known.bytes.begin(), known.bytes.end(), o.data);
    if (!is_right) return found(text("other bytes of chunk ", o.chunk, " in silence"));
    ++outcome_.right;
  }

  /// An error's kind is that of a fault of this case, and what can be absorbed was.
  bool is_explained(const DiskError& e) {
    const auto any = [&](std::initializer_list<Fault> faults) {
      return std::any_of(faults.begin(), faults.end(),
                         [&](Fault f) { return draw_.counts[static_cast<size_t>(f)] > 0; });
    };
    switch (e.fields.kind) {
      case DiskError::Kind::kFull:
        return any({Fault::kFull});
      case DiskError::Kind::kVanished:
        return any({Fault::kGone, Fault::kNothing});
      case DiskError::Kind::kFailed:
        return any({Fault::kFailed});
      default:
        return any({Fault::kFlipWritten, Fault::kFlipRead, Fault::kLost, Fault::kTorn});
    }
  }

  void found(const std::string& what) {
    if (outcome_.wrong.empty()) outcome_.wrong = what;
  }

  std::mt19937_64 random_;
  FaultDraw& draw_;
  DiskOutcome& outcome_;
  std::vector<Known> known_;
  std::unique_ptr<DiskFile> file_;
  std::list<Operation> asked_;
};

[[noreturn]] void write_for_ever(const std::string& folder, int told) {
  DiskFile file({.folder = folder, .chunk_bytes = kChunkBytes, .num_chunks = kNumChunks});
  const std::vector<std::byte> bytes(kChunkBytes, std::byte{1});
  for (int64_t i = 0;; ++i) {
    const DiskFile::Ticket ticket = file.write(i % kNumChunks, bytes);
    if (::write(told, "x", 1) != 1) ::_exit(1);
    file.wait(ticket);
  }
}

/// A child that writes is killed at some moment: nothing of it is left.
void kill_a_writer(std::mt19937_64& random, const std::string& folder, DiskOutcome& outcome) {
  int ends[2];
  KUAFU_CHECK(::pipe(ends) == 0, "no pipe");
  const pid_t child = ::fork();
  KUAFU_CHECK(child >= 0, "cannot fork");
  if (child == 0) {
    ::close(ends[0]);
    write_for_ever(folder, ends[1]);
  }
  ::close(ends[1]);
  char byte = 0;
  bool has_begun = true;
  for (uint64_t i = 1 + random() % 20; i > 0; --i) has_begun &= ::read(ends[0], &byte, 1) == 1;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ++outcome.faults[static_cast<size_t>(Fault::kKill)];
  if (!has_begun) outcome.wrong = "a child could not write";
  if (!std::filesystem::is_empty(folder)) outcome.wrong = "a killed process left a file";
}

}  // namespace

std::string to_string(Fault fault) {
  constexpr const char* kNames[kNumFaults] = {"short",     "nothing", "EINTR",  "EAGAIN",
                                              "ENOSPC",    "EIO",     "ENODEV", "flip_written",
                                              "flip_read", "lost",    "torn",   "kill"};
  return kNames[static_cast<size_t>(fault)];
}

std::unique_ptr<DiskPort> with_faults(std::unique_ptr<DiskPort> port, void* context) {
  auto& draw = *static_cast<FaultDraw*>(context);
  if (draw.is_plain) port = make_plain_port();
  return std::make_unique<FaultyPort>(std::move(port), draw);
}

void run_disk_case(uint64_t seed, uint64_t number, const std::string& folder,
                   DiskOutcome& outcome) {
  FaultDraw draw{.random = std::mt19937_64(seed * 1'000'003 + number)};
  if (number % 40 == 39) return kill_a_writer(draw.random, folder, outcome);
  constexpr double kRates[] = {0.02, 0.1, 0.3};
  draw.rate = kRates[draw.random() % 3];
  draw.is_plain = draw.random() % 3 == 0;
  Case(folder, draw, outcome).run();
  for (size_t i = 0; i < kNumFaults; ++i) outcome.faults[i] += draw.counts[i];
}

DiskFolder::DiskFolder() {
  const char* build = std::getenv("KUAFU_BINARY_DIR");
  path_ = std::string(build == nullptr ? "." : build) + "/disk-XXXXXX";
  KUAFU_CHECK(::mkdtemp(path_.data()) != nullptr, "no folder ", path_);
}

DiskFolder::~DiskFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

bool DiskFolder::is_empty() const { return std::filesystem::is_empty(path_); }

}  // namespace kuafu::device
