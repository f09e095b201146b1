// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/gather.h"

namespace kuafu {

std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  const auto n = static_cast<size_t>(world.size());
  std::vector<int64_t> lengths(n);
  int64_t length = static_cast<int64_t>(mine.size());
  world.all_gather({lengths.data(), world.size(), DType::kI64}, {&length, 1, DType::kI64})
      .wait_host();
  int64_t longest = 0;
  for (const int64_t l : lengths) longest = std::max(longest, l);
  std::string padded = mine;
  padded.resize(static_cast<size_t>(longest));
  std::string all(n * static_cast<size_t>(longest), '\0');
  world
      .all_gather({all.data(), static_cast<int64_t>(all.size()), DType::kU8},
                  {padded.data(), longest, DType::kU8})
      .wait_host();
  std::vector<std::string> texts;
  for (size_t r = 0; r < n; ++r) {
    texts.push_back(all.substr(r * static_cast<size_t>(longest), static_cast<size_t>(lengths[r])));
  }
  return texts;
}

}  // namespace kuafu
