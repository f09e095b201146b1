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

Mesh::Mesh(std::vector<Axis> axes, int rank)
    : axes_(std::move(axes)), rank_(rank), alone_(make_self()) {
  std::set<std::string> names;
  for (const Axis& axis : axes_) {
    KUAFU_REQUIRE(axis.size > 0, "mesh axis \"", axis.name, "\" has size ", axis.size,
                  "; sizes are positive");
    KUAFU_REQUIRE(names.insert(axis.name).second, "mesh axis \"", axis.name, "\" is named twice");
  }
  KUAFU_REQUIRE(rank >= 0 && rank < num_ranks(), "rank ", rank, " is not on a mesh of ",
                num_ranks(), " ranks");
}

int64_t Mesh::num_ranks() const {
  int64_t product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  return product;
}

int64_t Mesh::size(const std::string& name) const {
  for (const Axis& axis : axes_) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

int64_t Mesh::coord(const std::string& name) const {
  int64_t stride = num_ranks();
  for (const Axis& axis : axes_) {
    stride /= axis.size;
    if (axis.name == name) return rank_ / stride % axis.size;
  }
  return 0;
}

int64_t Mesh::size(const Axes& axes) const {
  int64_t product = 1;
  for (const std::string& name : axes) product *= size(name);
  return product;
}

int64_t Mesh::coord(const Axes& axes) const {
  int64_t index = 0;
  for (const std::string& name : axes) index = index * size(name) + coord(name);
  return index;
}

void Mesh::connect(Communicator& world, Ledger* ledger) {
  KUAFU_REQUIRE(world.size() == num_ranks(), "a mesh of ", num_ranks(), " ranks (", describe(),
                ") cannot be placed on a world of ", world.size());
  int64_t stride = num_ranks();
  for (const Axis& axis : axes_) {
    stride /= axis.size;
    if (axis.size == 1) continue;
    // Ranks that agree in everything but this axis share `rank - coord * stride`.
    auto group = world.split([stride, size = axis.size](int rank) {
      const int64_t coord = rank / stride % size;
      return SplitKey{static_cast<int>(rank - coord * stride), static_cast<int>(coord)};
    });
    group->meter(ledger, axis.name);
    comms_[axis.name] = std::move(group);
  }
}

Communicator& Mesh::comm(const std::string& axis) const {
  const auto found = comms_.find(axis);
  if (found != comms_.end()) return *found->second;
  KUAFU_CHECK(size(axis) == 1, "axis \"", axis, "\" is not connected");
  return *alone_;
}

std::vector<Communicator*> Mesh::comms() const {
  std::vector<Communicator*> all;
  for (const Axis& axis : axes_) {
    if (axis.size > 1) all.push_back(&comm(axis.name));
  }
  return all;
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
