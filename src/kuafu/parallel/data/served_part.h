// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kuafu/parallel/data/flat.h"

// Which elements a server holds. Internal to parallel servers and to what replays them.
namespace kuafu {

/// Elements [begin, end) of a bucket.
struct ServedPart {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Every parameter once, end to end. @pre one type and one kind of replicas
FlatBucket whole_model(const std::vector<Param*>& params, const Mesh& mesh);

/// Buckets are dealt out evenly: parts differ by one element at most.
inline ServedPart served_part(const FlatBucket& bucket, int64_t server, int64_t servers) {
  const int64_t n = bucket.elements(), base = n / servers, more = n % servers;
  const int64_t begin = server * base + std::min(server, more);
  return {begin, begin + base + (server < more ? 1 : 0)};
}

/// What of a parameter lies in `part`; empty where nothing does.
inline ServedPart overlap(const ServedPart& part, const FlatSlot& slot) {
  const int64_t begin = std::max(part.begin, slot.offset);
  return {begin, std::max(begin, std::min(part.end, slot.offset + slot.extent))};
}

/// A part of a bucket's flat buffer; shares its storage.
Tensor in_part(const Tensor& flat, const ServedPart& part);

/// The elements of a parameter that lie in `piece`, which it overlaps; shares its storage.
Tensor value_in(const FlatSlot& slot, const ServedPart& piece);

/// Copies the values of the parameters that lie in `part` into the bucket's flat buffer.
void take_values(const FlatBucket& bucket, const Tensor& flat, const ServedPart& part);
/// Copies them back.
void give_values(const FlatBucket& bucket, const Tensor& flat, const ServedPart& part);

}  // namespace kuafu
