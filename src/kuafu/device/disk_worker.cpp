// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/disk_worker.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "kuafu/base/xxh64.h"

namespace kuafu::device {

namespace {

constexpr int kMostTries = 100;  ///< of a request, in a row, without a byte of progress

uint64_t sum_of(const std::byte* data, int64_t bytes) {
  return xxh64({reinterpret_cast<const uint8_t*>(data), static_cast<size_t>(bytes)});
}

DiskError::Kind kind_of(int64_t code) {
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) return DiskError::Kind::kFull;
  const bool is_gone = code == ENODEV || code == ENXIO || code == ESTALE || code == ENOTCONN;
  return is_gone ? DiskError::Kind::kVanished : DiskError::Kind::kFailed;
}

std::exception_ptr ended() {
  return std::make_exception_ptr(InternalError("the disk tier ended before it was through"));
}

}  // namespace

DiskFile::Worker::Worker(const DiskOptions& options, std::unique_ptr<DiskPlace> place,
                         std::unique_ptr<DiskPort> port, std::string how)
    : options_(options),
      place_(std::move(place)),
      how_(std::move(how)),
      slot_bytes_(up_to(options.chunk_bytes, place_->alignment())),
      piece_bytes_(up_to(options.piece_bytes, place_->alignment())),
      clock_(options.clock == nullptr ? own_clock_ : *options.clock),
      port_(std::move(port)),
      link_(options.link ? options.link : std::make_shared<SharedLink>(options.gbs)),
      chunks_(static_cast<size_t>(options.num_chunks)),
      pieces_(static_cast<size_t>(options.depth)) {
  thread_ = std::thread([this] { run(); });
}

DiskFile::Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

DiskFile::Ticket DiskFile::Worker::ask(Task task) {
  KUAFU_CHECK(task.chunk >= 0 && task.chunk < options_.num_chunks, "chunk ", task.chunk, " of ",
              options_.num_chunks);
  KUAFU_CHECK(task.bytes <= options_.chunk_bytes, task.bytes, " bytes for a chunk of ",
              options_.chunk_bytes);
  const std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  task.ticket = ++issued_;
  unfinished_.insert(task.ticket);
  waiting_.push_back(task);
  changed_.notify_all();
  return task.ticket;
}

void DiskFile::Worker::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  KUAFU_CHECK(ticket > 0 && ticket <= issued_, "disk ticket ", ticket, " was never given out");
  changed_.wait(lock, [&] { return !unfinished_.contains(ticket); });
  const auto failure = failures_.find(ticket);
  if (failure != failures_.end()) std::rethrow_exception(failure->second);
}

bool DiskFile::Worker::is_done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return !unfinished_.contains(ticket);
}

DiskStats DiskFile::Worker::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void DiskFile::Worker::run() {
  try {
    loop();
  } catch (...) {
    port_.reset();  // cancels what it can: after this there is no word of what was under way
    const std::lock_guard lock(mutex_);
    broken_ = std::current_exception();
    for (const Ticket t : std::exchange(unfinished_, {})) failures_[t] = broken_;
    changed_.notify_all();
  }
}

void DiskFile::Worker::loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_ending_ || !waiting_.empty() || !running_.empty(); });
      if (is_ending_) {
        waiting_.clear();
        for (Running& r : running_) r.failure = ended();
        if (in_flight_ == 0) return;
      }
      start_tasks();
    }
    submit_pieces();
    if (in_flight_ > 0) settle(port_->complete());
    publish();
  }
}

/// In order, and none while another of the same chunk runs. Called with the lock held.
void DiskFile::Worker::start_tasks() {
  const bool was_idle = running_.empty();
  const auto is_in_use = [&](int64_t chunk) {
    return std::any_of(running_.begin(), running_.end(),
                       [=](const Running& r) { return r.task.chunk == chunk; });
  };
  while (!waiting_.empty() && running_.size() < pieces_.size() &&
         !is_in_use(waiting_.front().chunk)) {
    Running& r = running_.emplace_back();
    r.task = waiting_.front();
    r.failure = refusal(r.task);
    r.sums.resize(static_cast<size_t>(up_to(r.task.bytes, piece_bytes_) / piece_bytes_));
    waiting_.pop_front();
  }
  if (was_idle && !running_.empty()) {
    busy_since_ns_ = clock_.now_ns();
    link_->begin(busy_since_ns_);
  }
}

std::exception_ptr DiskFile::Worker::refusal(const Task& task) const {
  const DiskChunk& chunk = chunks_[static_cast<size_t>(task.chunk)];
  if (task.kind == Kind::kWrite) return nullptr;
  if (chunk.broken) return std::make_exception_ptr(DiskError(*chunk.broken));
  if (chunk.bytes == task.bytes) return nullptr;
  const std::string there = chunk.bytes < 0 ? "nothing" : text(chunk.bytes, " bytes");
  return std::make_exception_ptr(
      InternalError(text("a read of ", task.bytes, " bytes of chunk ", task.chunk, ", to which ",
                         there, " was written")));
}

void DiskFile::Worker::submit_pieces() {
  for (Running& r : running_) {
    while (!r.failure && r.next < r.task.bytes && in_flight_ < options_.depth) {
      const auto free = std::find_if(pieces_.begin(), pieces_.end(),
                                     [](const DiskPiece& p) { return p.of == nullptr; });
      begin_piece(r, static_cast<uint64_t>(free - pieces_.begin()));
    }
  }
}

void DiskFile::Worker::begin_piece(Running& running, uint64_t id) {
  DiskPiece& p = pieces_[id];
  const int64_t align = alignment();
  p.of = &running;
  p.begin = running.next;
  p.bytes = std::min(piece_bytes_, running.task.bytes - p.begin);
  p.padded = up_to(p.bytes, align);
  p.done = p.tries = 0;
  running.next += p.bytes;
  std::byte* data = running.task.data + p.begin;
  const bool fits =
      p.padded == p.bytes && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(align) == 0;
  if (!fits && !p.bounce) {
    p.bounce.reset(static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>(piece_bytes_))));
    if (!p.bounce) throw std::bad_alloc();
  }
  p.memory = fits ? data : p.bounce.get();
  if (running.task.kind == Kind::kWrite) {
    running.sums[static_cast<size_t>(p.begin / piece_bytes_)] = sum_of(data, p.bytes);
    if (!fits) {
      std::memcpy(p.memory, data, static_cast<size_t>(p.bytes));
      std::memset(p.memory + p.bytes, 0, static_cast<size_t>(p.padded - p.bytes));
    }
  }
  ++running.in_flight;
  ++in_flight_;
  submit(id);
  const int64_t now = clock_.now_ns(), passed = link_->take(p.bytes, now);
  if (options_.gbs && passed > now) clock_.sleep_until(passed);
}

void DiskFile::Worker::submit(uint64_t id) {
  const DiskPiece& p = pieces_[id];
  port_->submit({.kind = p.of->task.kind,
                 .file = place_->file(),
                 .data = p.memory + p.done,
                 .bytes = p.padded - p.done,
                 .offset = offset_of(p.of->task.chunk) + p.begin + p.done,
                 .id = id});
}

void DiskFile::Worker::settle(const DiskCompletion& completion) {
  KUAFU_CHECK(completion.id < pieces_.size() && pieces_[completion.id].of != nullptr,
              "a completion of request ", completion.id, ", which was not made");
  DiskPiece& p = pieces_[completion.id];
  const int64_t wanted = p.padded - p.done, got = completion.result;
  if (got == wanted) return end_piece(completion.id);
  const bool is_interrupted = got == -EINTR || got == -EAGAIN;
  if (got < 0 && !is_interrupted) {
    fail(p, kind_of(-got), std::strerror(static_cast<int>(-got)));
  } else if (got > wanted) {
    fail(p, DiskError::Kind::kFailed, text(got, " bytes are told, of ", wanted));
  } else if (got == 0 && p.of->task.kind == Kind::kRead) {
    fail(p, DiskError::Kind::kVanished, "the file ends there");
  } else {
    // In part, or not at all: O_DIRECT goes on where it is aligned.
    const int64_t progress = std::max<int64_t>(got, 0) / alignment() * alignment();
    p.done += progress;
    p.tries = progress > 0 ? 0 : p.tries + 1;
    ++own_stats_.continued;
    if (p.tries < kMostTries) return submit(completion.id);
    fail(p, DiskError::Kind::kFailed, text("nothing came of ", kMostTries, " tries in a row"));
  }
}

void DiskFile::Worker::end_piece(uint64_t id) {
  DiskPiece& p = pieces_[id];
  Running& r = *p.of;
  if (r.task.kind == Kind::kRead) {
    const uint64_t right = chunks_[static_cast<size_t>(r.task.chunk)]
                               .sums[static_cast<size_t>(p.begin / piece_bytes_)];
    std::byte* data = r.task.data + p.begin;
    if (p.memory != data) std::memcpy(data, p.memory, static_cast<size_t>(p.bytes));
    if (sum_of(data, p.bytes) != right) {
      return fail(p, DiskError::Kind::kCorrupt,
                  text("these ", p.bytes, " bytes are not those that were written"));
    }
  }
  (r.task.kind == Kind::kRead ? own_stats_.read : own_stats_.written) += p.bytes;
  --r.in_flight;
  --in_flight_;
  p.of = nullptr;
}

/// The task's first failure is the one that is told; its other pieces end before that.
void DiskFile::Worker::fail(DiskPiece& p, DiskError::Kind kind, const std::string& system) {
  Running& r = *p.of;
  const bool is_read = r.task.kind == Kind::kRead;
  DiskError::Fields fields{.kind = kind,
                           .path = options_.folder,
                           .doing = text(is_read ? "read" : "write", " chunk ", r.task.chunk),
                           .chunk = r.task.chunk,
                           .offset = offset_of(r.task.chunk) + p.begin,
                           .system = system};
  if (!r.failure) {
    if (!is_read) chunks_[static_cast<size_t>(r.task.chunk)].broken = fields;
    r.failure = std::make_exception_ptr(DiskError(std::move(fields)));
  }
  --r.in_flight;
  --in_flight_;
  p.of = nullptr;
}

void DiskFile::Worker::publish() {
  if (running_.empty()) return;
  const int64_t now = clock_.now_ns();
  own_stats_.busy_ns += now - std::exchange(busy_since_ns_, now);
  const std::lock_guard lock(mutex_);
  stats_ = own_stats_;
  for (auto r = running_.begin(); r != running_.end();) {
    if (r->is_through()) publish(*r);
    r = r->is_through() ? running_.erase(r) : std::next(r);
  }
  changed_.notify_all();
}

/// Called with the lock held.
void DiskFile::Worker::publish(const Running& r) {
  if (r.failure) {
    failures_[r.task.ticket] = r.failure;
  } else if (r.task.kind == Kind::kWrite) {
    chunks_[static_cast<size_t>(r.task.chunk)] = {r.task.bytes, r.sums, std::nullopt};
  }
  unfinished_.erase(r.task.ticket);
}

}  // namespace kuafu::device
