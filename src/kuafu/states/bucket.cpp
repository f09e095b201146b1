// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/bucket.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/op_trace.h"

namespace kuafu {
namespace {

constexpr int64_t kAlignment = 64;  // bytes; that of the allocators

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

Axes scheme_axes(const Param& p, const Mesh& mesh) {
  Axes axes;
  for (const Axis& axis : mesh.axes()) {
    if (axis.size > 1 && contains(p.grad_axes, axis.name)) axes.push_back(axis.name);
  }
  return axes;
}

/// "data", or what of it does not shard the parameter itself: experts are no replicas.
Axes replica_axes(const Param& p, const Mesh& mesh) {
  const Axes own = p.layout.all_axes(), members = mesh.canonical({"data"});
  Axes rest;
  for (const std::string& axis : members) {
    if (!contains(own, axis)) rest.push_back(axis);
  }
  if (rest.size() == members.size()) rest = {"data"};
  std::erase_if(rest, [&](const std::string& axis) { return mesh.size(axis) == 1; });
  return rest;
}

/// Where the next parameter of a bucket starts.
int64_t next_offset(const FlatBucket& bucket, const Param& p, bool is_aligned) {
  if (bucket.slots.empty()) return 0;
  const FlatSlot& last = bucket.slots.back();
  const int64_t end = last.offset + last.extent;
  return is_aligned ? round_up(end, kAlignment / p.value.element_size()) : end;
}

/// Where parts end that differ by one element at most, those of `holders` among the replicas.
std::vector<int64_t> even_ends(int64_t elements, int64_t holders, int64_t replicas) {
  const int64_t base = elements / holders, more = elements % holders;
  std::vector<int64_t> ends;
  for (int64_t r = 1; r <= replicas; ++r) {
    ends.push_back(r < holders ? r * base + std::min(r, more) : elements);
  }
  return ends;
}

}  // namespace

bool contains(const Axes& axes, const std::string& name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

at::TensorOptions FlatBucket::options() const {
  return slots[0].param->value.options().requires_grad(false);
}

std::vector<FlatBucket> make_buckets(const Group& group, const Mesh& mesh, const FlatRules& rules) {
  const bool is_aligned = rules.is_sharded || rules.is_aligned;
  std::vector<FlatBucket> buckets;
  for (Param* p : group.params) {
    const FlatBucket fresh{.scheme_axes = scheme_axes(*p, mesh),
                           .replicas = replica_axes(*p, mesh)};
    const int64_t capacity = rules.bucket_bytes / p->value.element_size();
    const auto fits = [&](const FlatBucket& b) {
      const Param& first = *b.slots[0].param;
      return b.scheme_axes == fresh.scheme_axes && b.replicas == fresh.replicas &&
             first.value.scalar_type() == p->value.scalar_type() &&
             next_offset(b, *p, is_aligned) + p->value.numel() <= capacity;
    };
    auto place = std::find_if(buckets.begin(), buckets.end(), fits);
    if (place == buckets.end()) place = buckets.insert(place, fresh);
    place->slots.push_back({p, next_offset(*place, *p, is_aligned), p->value.numel()});
  }
  for (FlatBucket& b : buckets) {
    KUAFU_CHECK(b.replicas.size() <= 1, "replicas along ", to_string(b.replicas));
    const int64_t end = b.slots.back().offset + b.slots.back().extent;
    const int64_t replicas = mesh.size(b.replicas);
    if (rules.is_sharded) b.ends = even_ends(round_up(end, replicas), replicas, replicas);
    if (rules.servers > 0) b.ends = even_ends(end, rules.servers, replicas);
    if (b.ends.empty()) b.ends = {end};
    b.me = b.is_split() ? mesh.coord(b.replicas) : 0;
  }
  return buckets;
}

Tensor in_part(const Tensor& flat, const FlatPart& part) {
  return flat.narrow(0, part.begin, part.size());
}

FlatPart overlap(const FlatPart& part, const FlatSlot& slot) {
  const int64_t begin = std::max(part.begin, slot.offset);
  const int64_t end = std::min(part.end, slot.offset + slot.extent);
  return begin < end ? FlatPart{begin, end} : FlatPart{part.begin, part.begin};
}

std::vector<int64_t> bounds_in(const FlatSlot& slot, const std::vector<int64_t>& ends) {
  std::vector<int64_t> bounds = {0};
  for (const int64_t end : ends) {
    bounds.push_back(std::clamp<int64_t>(end - slot.offset, 0, slot.extent));
  }
  return bounds;
}

Tensor in_shape(const FlatSlot& slot, const Tensor& flat) {
  return flat.narrow(0, slot.offset, slot.extent).view(slot.param->value.sizes());
}

Tensor value_in(const FlatSlot& slot, const FlatPart& piece) {
  const Tensor whole = slot.param->value.detach().view({-1});
  return whole.narrow(0, piece.begin - slot.offset, piece.size());
}

void take_values(const FlatBucket& bucket, const Tensor& flat, const FlatPart& part) {
  const at::NoGradGuard no_grad;
  for (const FlatSlot& slot : bucket.slots) {
    const FlatPart piece = overlap(part, slot);
    if (piece.size() > 0) in_part(flat, piece).copy_(value_in(slot, piece));
  }
}

void give_values(const FlatBucket& bucket, const Tensor& flat, const FlatPart& part) {
  const at::NoGradGuard no_grad;
  for (const FlatSlot& slot : bucket.slots) {
    const FlatPart piece = overlap(part, slot);
    if (piece.size() > 0) value_in(slot, piece).copy_(in_part(flat, piece));
  }
}

Tensor take_gradients(const FlatBucket& bucket, std::vector<bool>& used) {
  const at::NoGradGuard no_grad;
  const Tensor flat = at::empty({bucket.elements()}, bucket.options());
  int64_t end = 0;
  const auto zero_until = [&](int64_t offset) {
    if (offset > end) flat.narrow(0, end, offset - end).zero_();
  };
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    const FlatSlot& slot = bucket.slots[i];
    Tensor& grad = slot.param->value.mutable_grad();
    if (!grad.defined()) continue;
    zero_until(slot.offset);
    in_shape(slot, flat).copy_(grad);
    grad = Tensor();
    end = slot.offset + slot.extent;
    used[i] = true;
  }
  zero_until(bucket.elements());
  return flat;
}

void check_unused(const Param& p, const Tensor& sum) {
  const OneOpScope look("look for a gradient", sum);
  if (sum.is_meta() || sum.numel() == 0) return;
  KUAFU_CHECK(!sum.any().item<bool>(), p.name, " has a gradient on another replica and none here; ",
              "replicas must use the same parameters");
}

}  // namespace kuafu
