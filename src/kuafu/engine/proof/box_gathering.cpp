// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/box_gathering.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "kuafu/checkpoint/boxes.h"
#include "kuafu/comm/gather.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

/// Mixes 8 bytes at a time; a multiplication spreads each over the upper bits, the shift brings
/// them down again.
uint64_t hash_of_bytes(const void* data, size_t size, uint64_t hash) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const auto* bytes = static_cast<const char*>(data);
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min<size_t>(8, size - at));
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 32;
  }
  return (hash ^ size) * kOdd;
}

/// What a rank says of a box of its.
struct Claim {
  std::string name;
  Shape global;
  Slice place;
  DType type;
  uint64_t hash;
  bool is_witness;
  std::string key() const {
    return text(name, to_string(place.offset), to_string(place.extent), is_witness ? " whole" : "");
  }
};

std::string to_text(const std::vector<Box>& boxes) {
  Json list = Json::array();
  for (const Box& b : boxes) {
    list.push_back({b.name, b.global, b.place.offset, b.place.extent,
                    static_cast<int>(dtype_of(b.data)), hash_of_tensor(b.data), b.is_witness});
  }
  return list.dump();
}

std::vector<Claim> claims_from(const std::string& words) {
  std::vector<Claim> claims;
  for (const Json& c : Json::parse(words)) {
    claims.push_back({c.at(0).get<std::string>(),
                      c.at(1).get<Shape>(),
                      {c.at(2).get<Shape>(), c.at(3).get<Shape>()},
                      static_cast<DType>(c.at(4).get<int>()),
                      c.at(5).get<uint64_t>(),
                      c.at(6).get<bool>()});
  }
  return claims;
}

/// Of the two lines that a box of a state is named by: a slot of a parameter, or none.
std::string words_of(std::string name) {
  if (name.starts_with('\n')) return name.substr(1);
  std::replace(name.begin(), name.end(), '\n', ' ');
  return name;
}

/// Sends every box from the first rank that holds it to rank 0.
class Gathering {
 public:
  Gathering(std::vector<Box> mine, Communicator& world, at::Device device)
      : mine_(std::move(mine)), world_(world), device_(device) {
    for (const std::string& words : gather_texts(world_, to_text(mine_))) {
      claims_.push_back(claims_from(words));
    }
  }

  /// Which boxes each rank sends, and whether all that hold one agree.
  void choose(Copies copies) {
    std::map<std::string, const Claim*> first;
    std::map<std::string, int64_t> elements;  // of distinct boxes, by name
    std::map<std::string, const Claim*> any;
    for (const auto& claims : claims_) {
      auto& sends = sends_.emplace_back();
      for (size_t i = 0; i < claims.size(); ++i) {
        const Claim& claim = claims[i];
        const auto [found, is_new] = first.try_emplace(claim.key(), &claim);
        if (!is_new && copies == Copies::kAreCompared && found->second->hash != claim.hash) {
          disagree(words_of(claim.name), " differs between ranks that hold the same elements");
        }
        if (!is_new || claim.is_witness) continue;
        const Claim& one = *any.try_emplace(claim.name, &claim).first->second;
        if (one.global != claim.global || one.type != claim.type) {
          disagree(words_of(claim.name), " has another shape or type on another rank");
          continue;
        }
        elements[claim.name] += volume(claim.place.extent);
        sends.push_back(i);
      }
    }
    for (const auto& [name, count] : elements) {
      if (count != volume(any.at(name)->global))
        disagree(words_of(name), " is not whole over all ranks");
    }
  }

  WholeTensors run() {
    const auto me = static_cast<size_t>(world_.rank());
    if (me != 0) {
      const Tensor packed = pack(sends_[me]);
      if (packed.numel() > 0) world_.send(view(packed), 0, kTag).wait_host();
      return {};
    }
    WholeTensors all;
    for (size_t r = 0; r < sends_.size(); ++r) {
      const Tensor packed = r == 0 ? pack(sends_[0]) : receive(r);
      unpack(packed, r, all);
    }
    return all;
  }

  const std::string& disagreement() const { return disagreement_; }

 private:
  static constexpr int kTag = 0;

  template <class... Words>
  void disagree(const Words&... words) {
    if (disagreement_.empty()) disagreement_ = text(words...);
  }

  int64_t bytes_of(size_t rank) const {
    int64_t bytes = 0;
    for (const size_t i : sends_[rank]) {
      const Claim& c = claims_[rank][i];
      bytes += volume(c.place.extent) * size_of(c.type);
    }
    return bytes;
  }

  Tensor pack(const std::vector<size_t>& sent) const {
    Tensors parts;
    for (const size_t i : sent) parts.push_back(mine_[i].data.view(-1).view(at::kByte));
    return parts.empty() ? at::empty({0}, at::kByte) : at::cat(parts);
  }

  Tensor receive(size_t rank) const {
    const Tensor packed = at::empty({bytes_of(rank)}, at::TensorOptions(at::kByte).device(device_));
    if (packed.numel() > 0) world_.recv(view(packed), static_cast<int>(rank), kTag).wait_host();
    return packed;
  }

  void unpack(const Tensor& packed, size_t rank, WholeTensors& all) const {
    const Tensor host = packed.cpu();
    int64_t at = 0;
    for (const size_t i : sends_[rank]) {
      const Claim& c = claims_[rank][i];
      const auto options = at::TensorOptions(scalar_type(c.type));
      Tensor& whole = all[c.name];
      if (!whole.defined()) whole = at::zeros(c.global, options);
      const int64_t bytes = volume(c.place.extent) * size_of(c.type);
      const Tensor box = at::empty(c.place.extent, options);
      std::memcpy(box.mutable_data_ptr(), static_cast<const char*>(host.const_data_ptr()) + at,
                  static_cast<size_t>(bytes));
      at += bytes;
      Tensor place = whole;
      for (size_t d = 0; d < c.place.extent.size(); ++d) {
        place = place.narrow(static_cast<int64_t>(d), c.place.offset[d], c.place.extent[d]);
      }
      place.copy_(box);
    }
  }

  std::vector<Box> mine_;
  Communicator& world_;
  at::Device device_;
  std::vector<std::vector<Claim>> claims_;  // by rank
  std::vector<std::vector<size_t>> sends_;  // by rank: of its claims
  std::string disagreement_;
};

}  // namespace

uint64_t hash_of_tensor(const Tensor& t, uint64_t hash) {
  const Tensor host = t.cpu().contiguous();
  return hash_of_bytes(host.const_data_ptr(), host.nbytes(), hash);
}

GatheredBoxes gather_boxes(std::vector<Box> mine, Copies copies, Communicator& world,
                           at::Device device) {
  Gathering gathering(std::move(mine), world, device);
  gathering.choose(copies);
  GatheredBoxes out;
  out.tensors = gathering.run();
  out.disagreement = gathering.disagreement();
  return out;
}

}  // namespace kuafu
