// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/slots.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {
namespace {

Tensor new_slot(const Tensor& value) {
  const CategoryScope scope(Category::kOptimizer);
  return at::zeros(value.sizes(), value.options().dtype(update_type(value)).requires_grad(false));
}

Tensor new_master(const Tensor& value) {
  if (update_type(value) == value.scalar_type()) return {};
  const Tensor master = new_slot(value);
  master.copy_(value.detach());
  return master;
}

}  // namespace

at::ScalarType update_type(const Tensor& value) {
  const at::ScalarType own = value.scalar_type();
  return own == at::kBFloat16 || own == at::kHalf ? at::kFloat : own;
}

void RuleSlots::declare(std::span<const ParamShard> pieces, const Names& names) {
  const at::NoGradGuard no_grad;
  const BookScope where(book_ != nullptr ? book_ : current_book());
  rows_.clear();
  file_.reset();
  std::vector<StateFile::Row> away;
  for (const ParamShard& piece : pieces) {
    Row& row = rows_.emplace_back();
    row.param = piece.param;
    row.names = names(*piece.param);
    row.master = new_master(piece.value);
    if (disk_) {
      away.push_back({piece.value, update_type(piece.value), row.names.size()});
      continue;
    }
    for (size_t k = 0; k < row.names.size(); ++k) row.slots.push_back(new_slot(piece.value));
  }
  if (!disk_) return;
  file_ = std::make_unique<StateFile>(*disk_, away, book_);
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i].slots = file_->tensors(i);
}

std::vector<RuleSlots::Row*> RuleSlots::rows_of(std::span<const ParamShard> pieces) {
  std::vector<Row*> found;
  size_t at = 0;
  for (const ParamShard& s : pieces) {
    KUAFU_CHECK(s.param != nullptr && s.value.defined() && s.grad.defined(), "a shard of ",
                s.param == nullptr ? "nothing" : s.param->name, " lacks its value or gradient");
    while (at < rows_.size() && rows_[at].param != s.param) ++at;
    KUAFU_CHECK(at < rows_.size(), "a step over ", s.param->name,
                ", of which there is no state, or not in this order");
    found.push_back(&rows_[at++]);
  }
  return found;
}

std::vector<SlotTensor> RuleSlots::tensors() const {
  std::vector<SlotTensor> all;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    for (size_t k = 0; k < row.slots.size(); ++k) {
      all.push_back({row.param->name, row.names[k], row.slots[k], i});
    }
    if (row.master.defined()) all.push_back({row.param->name, "master", row.master, i});
  }
  return all;
}

}  // namespace kuafu
