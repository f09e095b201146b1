// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/book.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "kuafu/base/trace.h"
#include "kuafu/base/units.h"
#include "kuafu/device/arena.h"
#include "kuafu/meter/flops.h"

namespace kuafu {
namespace {

constexpr std::array<std::string_view, kNumCategories> kNames = {
    "parameter", "gradient", "optimizer", "activation", "communication", "temporary", "scratch"};

thread_local RankBook* tls_book = nullptr;
thread_local Category tls_category = Category::kTemporary;

size_t index(Category c) { return static_cast<size_t>(c); }

std::string words_of(const TierFull::Fields& f) {
  std::string all =
      text("rank ", f.rank, " is out of ", f.tier, " memory: asked for ", print_bytes(f.requested),
           " with ", print_bytes(f.live), " live of a budget of ", print_bytes(f.budget));
  const char* before = ": ";
  for (int c = 0; c < kNumCategories; ++c) {
    const int64_t bytes = f.by_category[static_cast<size_t>(c)];
    if (bytes == 0) continue;
    all += text(before, to_string(static_cast<Category>(c)), " ", print_bytes(bytes));
    before = ", ";
  }
  if (!f.beside.empty()) all += text("; on the ", f.beside, " ", print_bytes(f.live_beside));
  return all;
}

}  // namespace

TierFull::TierFull(Fields fields_)
    : OutOfMemory(fields_.rank, fields_.requested, fields_.live, fields_.budget),
      fields(std::move(fields_)),
      words_(words_of(fields)) {}

std::string_view to_string(Category c) { return kNames[index(c)]; }

struct MemoryAccount::State {
  mutable std::mutex mutex;
  int rank;
  int64_t budget;
  BytesByCategory live{}, peak{}, at_peak{};
  int64_t total = 0, peak_total = 0, most = 0;  // most: since take_most()
  std::string tier;                             // empty: memory has none
  bool is_traced = true;
  std::unique_ptr<device::Arena> arena;
  std::weak_ptr<MemoryAccount> beside;

  // All of these run under the mutex.
  void add(int64_t bytes, Category c) {
    if (c != Category::kScratch) {
      if (budget > 0 && total + bytes > budget) throw_full(bytes);
      total += bytes;
      most = std::max(most, total);
    }
    live[index(c)] += bytes;
    peak[index(c)] = std::max(peak[index(c)], live[index(c)]);
    if (total > peak_total) {
      peak_total = total;
      note_composition();
    }
  }
  void remove(int64_t bytes, Category c) {
    live[index(c)] -= bytes;
    if (c != Category::kScratch) total -= bytes;
  }
  void note_composition() {
    at_peak = live;
    at_peak[index(Category::kScratch)] = 0;
  }
  [[noreturn]] void throw_full(int64_t bytes) const {
    if (tier.empty()) throw OutOfMemory(rank, bytes, total, budget);
    TierFull::Fields f{rank, tier, bytes, total, budget, live, {}, 0};
    f.by_category[index(Category::kScratch)] = 0;
    if (const auto other = beside.lock()) {
      const State& there = *other->state_;
      const std::unique_lock lock(there.mutex, std::try_to_lock);  // never two in two orders
      if (lock) {
        f.beside = there.tier;
        f.live_beside = there.total;
      }
    }
    throw TierFull(std::move(f));
  }
};

MemoryAccount::MemoryAccount(int rank, int64_t budget) : state_(std::make_unique<State>()) {
  state_->rank = rank;
  state_->budget = budget;
}
MemoryAccount::~MemoryAccount() = default;

void MemoryAccount::allocated(int64_t bytes, Category c) {
  const std::lock_guard lock(state_->mutex);
  state_->add(bytes, c);
}

void MemoryAccount::freed(int64_t bytes, Category c) {
  const std::lock_guard lock(state_->mutex);
  state_->remove(bytes, c);
}

void MemoryAccount::recategorised(int64_t bytes, Category from, Category to) {
  if (from == to) return;
  const std::lock_guard lock(state_->mutex);
  state_->remove(bytes, from);
  try {
    state_->add(bytes, to);
  } catch (...) {
    state_->add(bytes, from);  // it was live as `from` before, so this cannot fail
    throw;
  }
}

RankBook::RankBook(int rank, int64_t budget)
    : account_(std::make_shared<MemoryAccount>(rank, budget)) {
  KUAFU_REQUIRE(budget >= 0, "memory budget of ", budget, " bytes; 0 means unlimited");
}

RankBook::RankBook(int rank, const TierBook& tier) : RankBook(rank, tier.budget) {
  MemoryAccount::State& s = *account_->state_;
  s.tier = tier.tier;
  s.is_traced = tier.is_traced;
  if (tier.arena == 0) return;
  s.arena = std::make_unique<device::Arena>(device::ArenaOptions{
      .rank = rank, .tier = tier.tier, .budget = tier.arena, .poison = device::poison_choice()});
}

device::Arena* MemoryAccount::arena() const { return state_->arena.get(); }
bool MemoryAccount::is_traced() const { return state_->is_traced; }

int64_t RankBook::take_most() {
  MemoryAccount::State& s = *account_->state_;
  const std::lock_guard lock(s.mutex);
  return std::exchange(s.most, s.total);
}

void RankBook::put_beside(const RankBook& other) {
  MemoryAccount::State& s = *account_->state_;
  const std::lock_guard lock(s.mutex);
  s.beside = other.account_;
}

void RankBook::allocated(int64_t bytes, Category c) { account_->allocated(bytes, c); }
void RankBook::freed(int64_t bytes, Category c) { account_->freed(bytes, c); }
void RankBook::recategorised(int64_t bytes, Category from, Category to) {
  account_->recategorised(bytes, from, to);
}

uint8_t RankBook::trace_flags() const {
  return static_cast<uint8_t>((is_recomputing ? kRecompute : kNoFlags) |
                              (is_on_host ? kOnHost : kNoFlags));
}

void RankBook::work(int64_t flops, int64_t bytes, FlopsOf of) {
  if (TraceRecorder* trace = current_trace()) {
    trace->work(flops, bytes, trace_flags());
  }
  if (!is_counting) return;
  if (of == FlopsOf::kOptimizer) {
    add_to_count(flops_optimizer_, flops, flops::kOptimizer);
  } else {
    add_to_count(is_recomputing ? flops_recomputed_ : flops_, flops, flops::kWhat);
  }
  add_to_count(bytes_moved_, bytes, "moved bytes");
}

int RankBook::rank() const { return account_->state_->rank; }

int64_t RankBook::live() const {
  const std::lock_guard lock(account_->state_->mutex);
  return account_->state_->total;
}

BytesByCategory RankBook::live_by_category() const {
  const std::lock_guard lock(account_->state_->mutex);
  return account_->state_->live;
}

int64_t RankBook::peak() const {
  const std::lock_guard lock(account_->state_->mutex);
  return account_->state_->peak_total;
}

BytesByCategory RankBook::at_peak() const {
  const std::lock_guard lock(account_->state_->mutex);
  return account_->state_->at_peak;
}

BytesByCategory RankBook::peak_by_category() const {
  const std::lock_guard lock(account_->state_->mutex);
  return account_->state_->peak;
}

void RankBook::restart() {
  flops_ = flops_recomputed_ = flops_optimizer_ = bytes_moved_ = 0;
  MemoryAccount::State& s = *account_->state_;
  const std::lock_guard lock(s.mutex);
  s.peak = s.live;
  s.peak_total = s.total;
  s.note_composition();
}

UnmeasuredScope::UnmeasuredScope(RankBook& book)
    : book_(book),
      was_counting_(std::exchange(book.is_counting, false)),
      peak_(book.peak()),
      at_peak_(book.at_peak()),
      peak_by_category_(book.peak_by_category()) {}

UnmeasuredScope::~UnmeasuredScope() {
  book_.is_counting = was_counting_;
  MemoryAccount::State& s = *book_.account_->state_;
  const std::lock_guard lock(s.mutex);
  for (size_t c = 0; c < s.peak.size(); ++c) s.peak[c] = std::max(peak_by_category_[c], s.live[c]);
  s.peak_total = peak_;
  s.at_peak = at_peak_;
  if (s.total <= peak_) return;
  s.peak_total = s.total;
  s.note_composition();
}

RankBook* current_book() { return tls_book; }

BookScope::BookScope(RankBook* book) : previous_(tls_book) { tls_book = book; }
BookScope::~BookScope() { tls_book = previous_; }

Category current_category() { return tls_category; }

CategoryScope::CategoryScope(Category c) : previous_(tls_category) { tls_category = c; }
CategoryScope::~CategoryScope() { tls_category = previous_; }

RecomputeScope::RecomputeScope() : book_(tls_book) {
  if (book_ == nullptr) return;
  previous_ = book_->is_recomputing;
  book_->is_recomputing = true;
}

RecomputeScope::~RecomputeScope() {
  if (book_ != nullptr) book_->is_recomputing = previous_;
}

OnHostScope::OnHostScope(bool is_there) : book_(is_there ? tls_book : nullptr) {
  if (book_ != nullptr) book_->is_on_host = true;
}

OnHostScope::~OnHostScope() {
  if (book_ != nullptr) book_->is_on_host = false;
}

}  // namespace kuafu
