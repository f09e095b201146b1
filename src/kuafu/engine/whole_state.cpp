// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/whole_state.h"

#include <cstring>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/checkpoint/boxes.h"
#include "kuafu/comm/gather.h"
#include "kuafu/engine/held_elements.h"
#include "kuafu/parallel/expert/routing.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

/// A box of a whole tensor on one rank.
struct Box {
  std::string name;  ///< "" + parameter, or "m" + "\n" + parameter
  Shape global;
  Slice place;
  Tensor data;
  bool is_witness = false;  ///< compared with others of its name and place, never sent
};

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

uint64_t hash_of_tensor(const Tensor& t, uint64_t hash = 0) {
  const Tensor host = t.cpu().contiguous();
  return hash_of_bytes(host.const_data_ptr(), host.nbytes(), hash);
}

void add_boxes(std::vector<Box>& all, const std::string& name, const ParamShard& shard,
               const Tensor& tensor, const Mesh& mesh, bool is_witness = false) {
  const HeldElements held = held_by(shard, mesh);
  for (size_t b = 0; b < held.boxes.size(); ++b) {
    if (is_empty(held.inside[b])) continue;
    all.push_back({name, shard.param->global, held.inside[b], box_of(tensor, held, b).contiguous(),
                   is_witness});
  }
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

enum class Copies : uint8_t { kAnyIsGood, kAreCompared };

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
          disagree(claim.name, " differs between ranks that hold the same elements");
        }
        if (!is_new || claim.is_witness) continue;
        const Claim& one = *any.try_emplace(claim.name, &claim).first->second;
        if (one.global != claim.global || one.type != claim.type) {
          disagree(claim.name, " has another shape or type on another rank");
          continue;
        }
        elements[claim.name] += volume(claim.place.extent);
        sends.push_back(i);
      }
    }
    for (const auto& [name, count] : elements) {
      if (count != volume(any.at(name)->global)) disagree(name, " is not whole over all ranks");
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

WholeState whole_state(Engine& engine, Communicator& world) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = engine.mesh();
  const std::string& kind = engine.plan().optimizer.kind;
  const std::vector<ParamShard> shards = engine.shards();
  const OptimizerState state = engine.optimizer().state();
  std::vector<Box> mine;
  std::set<const void*> held;
  for (const ParamShard& s : shards) {
    add_boxes(mine, "\n" + s.param->name, s, s.value, mesh);
    held.insert(s.value.const_data_ptr());
  }
  const std::vector<SavedTensor> saved = saved_tensors(shards, state, kind);
  for (size_t i = 0; i < saved.size(); ++i) {
    const ParamShard& shard = shards[saved[i].shard];
    const bool is_value = i < shards.size();
    if (is_value && saved[i].tensor.is_same(shard.value)) continue;
    // "adamw.m.blocks.0..." has the slot between the first two dots.
    const size_t dot = kind.size() + 1;
    const std::string slot =
        is_value ? "master" : saved[i].name.substr(dot, saved[i].name.find('.', dot) - dot);
    add_boxes(mine, slot + "\n" + shard.param->name, shard, saved[i].tensor, mesh);
  }
  for (const Param* p : engine.params()) {  // what forward reads, where it is not what is updated
    const bool is_there = p->value.storage().nbytes() > 0;
    const bool is_piece =
        engine.plan().parallel.zero == 0 && held.contains(p->value.const_data_ptr());
    if (!is_there || is_piece) continue;
    add_boxes(mine, "\n" + p->name, {.value = p->value, .grad = {}, .param = p, .split_axes = {}},
              p->value, mesh, true);
  }
  Gathering gathering(std::move(mine), world, engine.device());
  gathering.choose(Copies::kAreCompared);
  WholeState whole;
  whole.num_steps = state.num_steps;
  for (auto& [name, tensor] : gathering.run()) {
    const size_t cut = name.find('\n');
    const std::string slot = name.substr(0, cut), param = name.substr(cut + 1);
    (slot.empty() ? whole.values : whole.slots[slot])[param] = std::move(tensor);
  }
  whole.disagreement = gathering.disagreement();
  return whole;
}

WholeTensors whole_gradients(std::span<const ParamShard> ready, double factor, Engine& engine,
                             Communicator& world) {
  const at::NoGradGuard no_grad;
  std::vector<Box> mine;
  for (const ParamShard& s : ready) add_boxes(mine, s.param->name, s, s.grad, engine.mesh());
  Gathering gathering(std::move(mine), world, engine.device());
  gathering.choose(Copies::kAnyIsGood);
  WholeTensors whole = gathering.run();
  for (auto& [name, gradient] : whole) gradient = gradient.to(at::kDouble).mul_(factor);
  return whole;
}

WholeRoutes whole_routes(Engine& engine, Communicator& world) {
  const at::NoGradGuard no_grad;
  std::vector<Box> mine;
  for (const RouterTally* router : engine.routers()) {
    for (const RoutedSamples& r : router->routes()) {
      const auto add = [&](const std::string& name, const Tensor& t) {
        Shape global = shape_of(t), offset(global.size(), 0);
        const Shape extent = global;
        global[0] = engine.plan().train.batch;
        offset[0] = r.first;
        if (t.numel() > 0) mine.push_back({name, global, {offset, extent}, t.contiguous()});
      };
      add(router->name(), r.slots);
      add(router->name() + ".choices", r.choices);
    }
  }
  Gathering gathering(std::move(mine), world, engine.device());
  gathering.choose(Copies::kAreCompared);
  WholeRoutes whole{.tensors = gathering.run(), .disagreement = gathering.disagreement()};
  return whole;
}

uint64_t hash_of(Engine& engine) {
  uint64_t hash = 0;
  for (const ParamShard& s : engine.shards()) hash = hash_of_tensor(s.value, hash);
  for (const NamedTensor& t : engine.optimizer().state().tensors) {
    hash = hash_of_tensor(t.tensor, hash);
  }
  return hash;
}

}  // namespace kuafu
