// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/state_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/trace.h"
#include "kuafu/device/disk_place.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/states/check_disk.h"
#include "kuafu/states/piece.h"

namespace kuafu {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();

thread_local int uncounted_scopes = 0;

/// Where tensors of their own would begin, so that kernels see the same addresses modulo 64.
constexpr int64_t kSlotAlignment = 64;

int64_t slot_aligned(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

int64_t size_of(at::ScalarType type) { return static_cast<int64_t>(at::elementSize(type)); }

int64_t bytes_of_slot(const StateFile::Row& row) {
  return slot_aligned(row.like.numel() * size_of(row.type));
}

int64_t bytes_of_row(const StateFile::Row& row) {
  return static_cast<int64_t>(row.slots) * bytes_of_slot(row);
}

}  // namespace

UncountedMoves::UncountedMoves() { ++uncounted_scopes; }
UncountedMoves::~UncountedMoves() { --uncounted_scopes; }

void check_disk(const std::string& folder) {
  try {
    const device::DiskPlace place(folder);
  } catch (const ConfigError& e) {
    throw ConfigError(text("memory.disk_path = ", in_quotes(folder), ": ", e.what()));
  }
}

DiskCounts& DiskCounts::operator+=(const DiskCounts& other) {
  read += other.read;
  written += other.written;
  step_read += other.step_read;
  step_written += other.step_written;
  bytes += other.bytes;
  wait_seconds += other.wait_seconds;
  return *this;
}

StateFile::StateFile(const DiskTier& disk, const std::vector<Row>& rows, RankBook* host,
                     const StatesOnDisk& what)
    : disk_(disk), host_(host), what_(what) {
  make_runs(rows);
  take_space(rows);
}

StateFile::~StateFile() = default;

/// Of the file: a run has whole ones, and a request of less than a page costs as much as one.
int64_t StateFile::file_chunk() const { return std::max<int64_t>(disk_.chunk_bytes, 4096); }

void StateFile::make_runs(const std::vector<Row>& rows) {
  slots_.resize(rows.size());
  run_of_.assign(rows.size(), kNone);
  size_t begin = 0;
  while (begin < rows.size()) {
    int64_t bytes = 0;
    size_t end = begin;
    const auto fits = [&](const Row& row) {
      return !what_.has_lone_rows && row.type == rows[begin].type &&
             bytes + bytes_of_row(row) <= disk_.chunk_bytes;
    };
    while (end < rows.size() && (end == begin || fits(rows[end]))) {
      bytes += bytes_of_row(rows[end++]);
    }
    RowRun run;
    {
      const BookScope where(host_ != nullptr ? host_ : current_book());
      const CategoryScope scope(what_.category);
      const auto options = rows[begin].like.options().dtype(rows[begin].type);
      run.flat = at::empty({bytes / size_of(rows[begin].type)}, options.requires_grad(false));
    }
    int64_t at = 0;
    for (size_t i = begin; i < end; ++i) {
      for (size_t k = 0; k < rows[i].slots; ++k) {
        slots_[i].push_back(
            run.flat.narrow(0, at, rows[i].like.numel()).view(rows[i].like.sizes()));
        at += bytes_of_slot(rows[i]) / size_of(rows[i].type);
      }
      if (bytes > 0) run_of_[i] = runs_.size();
    }
    free_storage(run.flat);  // its views stay
    has_memory_ = has_memory_ && !run.flat.is_meta();
    if (bytes > 0) runs_.push_back(std::move(run));
    begin = end;
  }
}

void StateFile::take_space(const std::vector<Row>& rows) {
  int64_t chunks = 0, bytes = 0;
  for (RowRun& run : runs_) {
    run.first_chunk = chunks;
    chunks += (bytes_of(run) + file_chunk() - 1) / file_chunk();
  }
  for (const Row& row : rows) bytes += bytes_of_row(row);
  counts_.bytes = bytes;
  if (host_ != nullptr && disk_.bytes > 0 && bytes > disk_.bytes) {
    throw TierFull({host_->rank(), "disk", bytes, 0, disk_.bytes, {}, "", 0});
  }
  if (!has_memory_ || chunks == 0) return;
  check_disk(disk_.folder);
  file_ = std::make_unique<device::DiskFile>(device::DiskOptions{.folder = disk_.folder,
                                                                 .chunk_bytes = file_chunk(),
                                                                 .num_chunks = chunks,
                                                                 .gbs = disk_.gbs,
                                                                 .link = disk_.link});
}

void StateFile::ask(RowRun& run, device::DiskRequest::Kind kind) {
  const bool is_read = kind == device::DiskRequest::Kind::kRead;
  const int64_t bytes = bytes_of(run);
  run.where = is_read ? Where::kComing : Where::kLeaving;
  if (is_counted()) {
    (is_read ? counts_.read : counts_.written) += bytes;
    (is_read ? counts_.step_read : counts_.step_written) += bytes;
  }
  TraceRecorder* trace = current_trace();
  run.event =
      trace == nullptr
          ? -1
          : trace->copy(what_.name, is_read ? TraceQueue::kFromDisk : TraceQueue::kToDisk, bytes);
  run.begun_ns = trace == nullptr ? 0 : trace->now_ns();
  if (file_ == nullptr) return;
  auto* const data = static_cast<std::byte*>(run.flat.mutable_data_ptr());
  int64_t chunk = run.first_chunk;
  for (int64_t at = 0; at < bytes; at += file_chunk(), ++chunk) {
    const auto size = static_cast<size_t>(std::min(file_chunk(), bytes - at));
    run.tickets.push_back(is_read ? file_->read(chunk, {data + at, size})
                                  : file_->write(chunk, {data + at, size}));
  }
}

void StateFile::start_coming(RowRun& run, Use use) {
  {
    const BookScope where(host_ != nullptr ? host_ : current_book());
    const CategoryScope scope(what_.category);
    allocate_storage(run.flat, run.flat.numel() * run.flat.element_size());
  }
  let_pages_leave(run.flat);
  run.is_changed = false;
  if (run.is_saved && use != Use::kOverwrite) return ask(run, device::DiskRequest::Kind::kRead);
  if (use != Use::kOverwrite) run.flat.zero_();
  run.where = Where::kHere;
}

void StateFile::wait(RowRun& run) {
  if (run.where != Where::kComing && run.where != Where::kLeaving) return;
  TraceRecorder* trace = run.event < 0 ? nullptr : current_trace();
  const int64_t traced_from = trace == nullptr ? 0 : trace->now_ns();
  const auto start = std::chrono::steady_clock::now();
  for (const device::DiskFile::Ticket ticket : run.tickets) file_->wait(ticket);
  run.tickets.clear();
  if (is_counted() && file_ != nullptr) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    counts_.wait_seconds += waited.count();
  }
  if (trace != nullptr) {
    trace->arrival(run.event, traced_from, run.begun_ns, file_ == nullptr ? 0 : trace->now_ns());
  }
  run.event = -1;
}

void StateFile::free(RowRun& run) {
  free_storage(run.flat);
  run.where = Where::kAway;
}

void StateFile::settle() {
  if (!leaving_) return;
  RowRun& run = runs_[*leaving_];
  leaving_.reset();
  wait(run);
  free(run);
}

void StateFile::start_leaving(size_t r) {
  RowRun& run = runs_[r];
  if (!run.is_changed) return free(run);
  run.is_saved = true;
  ask(run, device::DiskRequest::Kind::kWrite);
  leaving_ = r;
}

bool StateFile::is_counted() const { return is_in_step_ && uncounted_scopes == 0; }

void StateFile::begin_step() {
  is_in_step_ = true;
  counts_.step_read = counts_.step_written = 0;
}

void StateFile::expect(const std::vector<size_t>& rows) {
  settle_all();
  for (const size_t row : rows) {
    const size_t run = run_of_.at(row);
    if (run != kNone && (expected_.empty() || expected_.back() != run)) expected_.push_back(run);
  }
}

void StateFile::use(size_t row, Use use) {
  KUAFU_CHECK(use != Use::kOverwrite || what_.has_lone_rows, "row ", row,
              " is overwritten, and shares its run with others");
  const size_t r = run_of_.at(row);
  if (r == kNone) return;
  RowRun& run = runs_[r];
  if (here_ != r) {
    if (leaving_ == r) {  // it is still here
      leaving_.reset();
      wait(run);
      run.where = Where::kHere;
      run.is_changed = false;
    }
    settle();
    if (here_) start_leaving(*here_);
    here_ = r;
    std::erase(ahead_, r);
    if (run.where == Where::kAway) start_coming(run, use);
    if (!expected_.empty() && expected_.front() == r) expected_.pop_front();
    read_ahead();
    wait(run);
    run.where = Where::kHere;
  }
  run.is_changed = run.is_changed || use != Use::kRead;
}

/// The next runs of those that are expected; one on its way back comes when it is used.
void StateFile::read_ahead() {
  for (const size_t next : expected_) {
    if (std::ssize(ahead_) >= disk_.ahead) return;
    if (runs_[next].where != Where::kAway) continue;
    start_coming(runs_[next], Use::kRead);
    ahead_.push_back(next);
  }
}

void StateFile::rest() {
  settle_all();
  is_in_step_ = false;
}

void StateFile::settle_all() {
  settle();
  if (here_) start_leaving(*here_);
  here_.reset();
  settle();
  for (const size_t r : ahead_) {  // read for a use that did not come
    wait(runs_[r]);
    free(runs_[r]);
  }
  ahead_.clear();
  expected_.clear();
}

void expect_gradients(std::span<const ParamShard* const> shards) {
  if (shards.empty() || shards[0]->gradient_file == nullptr) return;
  std::vector<size_t> rows;
  for (const ParamShard* s : shards) rows.push_back(s->gradient_row);
  shards[0]->gradient_file->expect(rows);
}

void bring_gradient(const ParamShard& shard) {
  if (shard.gradient_file != nullptr) {
    shard.gradient_file->use(shard.gradient_row, StateFile::Use::kRead);
  }
}

}  // namespace kuafu
