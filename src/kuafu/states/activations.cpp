// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/activations.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {
namespace {

constexpr std::string_view kWhat = "activation";

const void* key_of(const Tensor& t) { return t.unsafeGetTensorImpl(); }

/// A view of a larger buffer stays, and what another of them lies in too: its storage is not its own.
bool has_own_storage(const Tensor& t, const Tensors& all) {
  const auto is_shared = [&t](const Tensor& other) {
    return other.unsafeGetTensorImpl() != t.unsafeGetTensorImpl() &&
           other.storage().is_alias_of(t.storage());
  };
  return t.is_contiguous() && t.storage_offset() == 0 && t.storage().nbytes() == t.nbytes() &&
         std::none_of(all.begin(), all.end(), is_shared);
}

}  // namespace

void AwayActivations::leave(const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  settle();
  for (const Tensor& t : inputs) {
    if (!has_own_storage(t, inputs) || t.numel() == 0) continue;
    Away away{.here = t.detach(), .home = {}};
    {
      const BookScope where(host_ != nullptr ? host_ : current_book());
      const CategoryScope scope(Category::kActivation);
      away.home = at::empty(t.sizes(), t.options().requires_grad(false));
    }
    away.leaving = copies_.copy(device::Direction::kToHost, away.home, away.here, kWhat);
    bytes_ += static_cast<int64_t>(t.nbytes());
    leaving_.push_back(key_of(t));
    KUAFU_CHECK(away_.emplace(key_of(t), std::move(away)).second, "an activation leaves twice");
  }
}

void AwayActivations::settle() {
  for (const void* key : leaving_) {
    Away& away = away_.at(key);
    copies_.wait(away.leaving);
    free_storage(away.here);
  }
  leaving_.clear();
}

void AwayActivations::come(const Tensors& inputs) {
  settle();
  for (const Tensor& t : inputs) {
    const auto found = away_.find(key_of(t));
    if (found != away_.end() && !found->second.is_coming) start(found->second);
  }
}

void AwayActivations::start(Away& away) {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  allocate_storage(away.here, static_cast<int64_t>(away.here.nbytes()));
  away.coming = copies_.copy(device::Direction::kToDevice, away.here, away.home, kWhat);
  away.is_coming = true;
}

void AwayActivations::wait(const Tensors& inputs) {
  come(inputs);
  for (const Tensor& t : inputs) {
    const auto found = away_.find(key_of(t));
    if (found == away_.end()) continue;
    copies_.wait(found->second.coming);
    away_.erase(found);
  }
}

}  // namespace kuafu
