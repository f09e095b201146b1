// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/engine/whole.h"
#include "kuafu/mesh/layout.h"

namespace kuafu {

/// A box of a whole tensor on one rank.
struct Box {
  std::string name;  ///< "" + parameter, or "m" + "\n" + parameter
  Shape global;
  Slice place;
  Tensor data;
  bool is_witness = false;  ///< compared with others of its name and place, never sent
};

/// 64 bits of a tensor's: equal where all bits are, but for chance.
uint64_t hash_of_tensor(const Tensor& t, uint64_t hash = 0);

enum class Copies : uint8_t { kAnyIsGood, kAreCompared };

struct GatheredBoxes {
  WholeTensors tensors;  ///< by the names of boxes, on rank 0; empty on others
  /// What ranks that hold the same elements do not agree about, or which elements nobody holds;
  /// empty: nothing. The same on every rank.
  std::string disagreement;
};
/// Sends every box from the first rank that holds it to rank 0. Collective over `world`.
GatheredBoxes gather_boxes(std::vector<Box> mine, Copies copies, Communicator& world,
                           at::Device device);

}  // namespace kuafu
