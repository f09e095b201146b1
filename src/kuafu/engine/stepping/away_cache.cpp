// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/away_cache.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

using device::Direction;

AwayCache::~AwayCache() {
  for (Away& away : all_) {
    wait(away.coming);
    wait(away.leaving);
  }
}

Tensors AwayCache::on_host(const Tensors& like) const {
  const BookScope where(host_ != nullptr ? host_ : current_book());
  const CategoryScope scope(Category::kActivation);
  Tensors out;
  for (const Tensor& t : like) out.push_back(at::empty(t.sizes(), t.options()));
  return out;
}

std::vector<TierCopies::Moving> AwayCache::copy(Direction queue, const Tensors& to,
                                                const Tensors& from) {
  std::vector<TierCopies::Moving> all;
  for (size_t i = 0; i < to.size(); ++i) {
    all.push_back(copies_.copy(queue, to[i], from[i], TierCopies::kCache));
  }
  return all;
}

void AwayCache::wait(std::vector<TierCopies::Moving>& moving) {
  for (TierCopies::Moving& one : moving) copies_.wait(one);
  moving.clear();
}

size_t AwayCache::add(const Tensors& kept) {
  const at::NoGradGuard no_grad;
  settle();
  Away away{.here = kept, .home = on_host(kept)};
  away.leaving = copy(Direction::kToHost, away.home, away.here);
  all_.push_back(std::move(away));
  left_ = all_.size() - 1;
  return *left_;
}

void AwayCache::bring(size_t number) {
  const at::NoGradGuard no_grad;
  settle();
  Away& away = all_.at(number);
  come(away);
  wait(away.coming);
  const size_t next = (number + 1) % all_.size();
  if (next != number) come(all_[next]);
}

void AwayCache::leave(size_t number, const Tensors& rows, const std::vector<int64_t>& positions) {
  const at::NoGradGuard no_grad;
  settle();
  Away& away = all_.at(number);
  drop(away);
  away.positions = positions;
  for (const Tensor& t : rows) away.rows.push_back(t.contiguous());
  away.staged = on_host(away.rows);
  away.leaving = copy(Direction::kToHost, away.staged, away.rows);
  left_ = number;
}

void AwayCache::come(Away& away) {
  if (away.is_here) return;
  const CategoryScope scope(Category::kActivation);
  for (const Tensor& t : away.here) allocate_storage(t, static_cast<int64_t>(t.nbytes()));
  away.coming = copy(Direction::kToDevice, away.here, away.home);
  away.is_here = true;
}

/// What left last is at home: whole at first, its new rows then.
void AwayCache::settle() {
  if (!left_) return;
  Away& away = all_[*left_];
  left_.reset();
  wait(away.leaving);
  if (away.is_here) drop(away);
  for (size_t i = 0; i < away.rows.size(); ++i) {
    for (int64_t b = 0; b < std::ssize(away.positions); ++b) {
      const int64_t position = away.positions[static_cast<size_t>(b)];
      away.home[i].select(0, b).narrow(1, position, 1).copy_(away.staged[i].select(0, b));
    }
  }
  away.rows.clear();
  away.staged.clear();
}

void AwayCache::drop(Away& away) {
  for (const Tensor& t : away.here) free_storage(t);
  away.is_here = false;
}

}  // namespace kuafu
