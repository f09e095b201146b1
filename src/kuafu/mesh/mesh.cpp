// SPDX-License-Identifier: Apache-2.0
#include "kuafu/mesh/mesh.h"

#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

std::string to_string(const Axes& axes) {
  if (axes.empty()) return "-";
  std::string out;
  for (const std::string& name : axes) out += (out.empty() ? "" : ".") + name;
  return out;
}

namespace {

/// Ranks with one color agree in everything but `wanted`; the key is their index along it.
SplitKey place_of(int64_t rank, const std::vector<Axis>& axes, const Axes& wanted) {
  int64_t color = rank, key = 0;
  for (const std::string& name : wanted) {
    int64_t stride = 1;
    for (size_t i = axes.size(); i-- > 0; stride *= axes[i].size) {
      if (axes[i].name != name) continue;
      const int64_t coord = rank / stride % axes[i].size;
      color -= coord * stride;
      key = key * axes[i].size + coord;
    }
  }
  return {static_cast<int>(color), static_cast<int>(key)};
}

}  // namespace

Mesh::Mesh(std::vector<Axis> axes, int rank, AxisAliases aliases)
    : axes_(std::move(axes)), aliases_(std::move(aliases)), rank_(rank), alone_(make_self()) {
  std::set<std::string> names;
  for (const Axis& axis : axes_) {
    KUAFU_REQUIRE(axis.size > 0, "mesh axis \"", axis.name, "\" has size ", axis.size,
                  "; sizes are positive");
    KUAFU_REQUIRE(names.insert(axis.name).second, "mesh axis \"", axis.name, "\" is named twice");
  }
  for (const auto& [alias, members] : aliases_) {
    for (const std::string& name : members) {
      KUAFU_REQUIRE(names.count(name) > 0, "mesh alias \"", alias, "\" stands for \"", name,
                    "\", which is no axis of ", describe());
    }
    KUAFU_REQUIRE(names.count(alias) == 0, "mesh alias \"", alias, "\" is also an axis");
  }
  KUAFU_REQUIRE(rank >= 0 && rank < num_ranks(), "rank ", rank, " is not on a mesh of ",
                num_ranks(), " ranks");
}

int64_t Mesh::num_ranks() const {
  int64_t product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  return product;
}

Axes Mesh::canonical(const Axes& axes) const {
  Axes out;
  for (const std::string& name : axes) {
    const auto found = aliases_.find(name);
    if (found == aliases_.end()) {
      out.push_back(name);
    } else {
      out.insert(out.end(), found->second.begin(), found->second.end());
    }
  }
  return out;
}

int64_t Mesh::size(const Axes& axes) const {
  int64_t product = 1;
  for (const std::string& name : canonical(axes)) {
    for (const Axis& axis : axes_) product *= axis.name == name ? axis.size : 1;
  }
  return product;
}

int64_t Mesh::size(const std::string& axis) const { return size(Axes{axis}); }
int64_t Mesh::coord(const Axes& axes) const { return place_of(rank_, axes_, canonical(axes)).key; }
int64_t Mesh::coord(const std::string& axis) const { return coord(Axes{axis}); }

void Mesh::connect(Communicator& world, Ledger* ledger) {
  KUAFU_REQUIRE(world.size() == num_ranks(), "a mesh of ", num_ranks(), " ranks (", describe(),
                ") cannot be placed on a world of ", world.size());
  const auto join = [&](const std::string& name) {
    if (size(name) == 1) return;
    auto group = world.split([axes = axes_, wanted = canonical({name})](int rank) {
      return place_of(rank, axes, wanted);
    });
    group->meter(ledger, name);
    comms_[name] = std::move(group);
  };
  for (const Axis& axis : axes_) join(axis.name);
  for (const auto& [alias, members] : aliases_) join(alias);
}

Communicator& Mesh::comm(const std::string& axis) const {
  const auto found = comms_.find(axis);
  if (found != comms_.end()) return *found->second;
  KUAFU_CHECK(size(axis) == 1, "axis \"", axis, "\" is not connected");
  return *alone_;
}

std::string Mesh::describe() const {
  std::string shape, place;
  for (const Axis& axis : axes_) {
    shape += text(shape.empty() ? "" : " x ", axis.name, axis.size);
    place += text(place.empty() ? "" : ",", coord(axis.name));
  }
  if (shape.empty()) return "one rank";
  return text(shape, ", rank ", rank_, " = (", place, ")");
}

}  // namespace kuafu
