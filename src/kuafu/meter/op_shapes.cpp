// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/op_shapes.h"

namespace kuafu {
namespace {

const char* short_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "f64";
    case at::kFloat:
      return "f32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "f16";
    case at::kLong:
      return "i64";
    case at::kInt:
      return "i32";
    case at::kBool:
      return "bool";
    default:
      return "other";
  }
}

}  // namespace

std::string OpShapes::text_of_key() const {
  std::string text;
  char separator = ' ';
  for (const int64_t x : key_) {
    if (x < 0) {
      if (!text.empty()) text += ", ";
      text += short_name(static_cast<at::ScalarType>(-1 - x));
      separator = ' ';
      continue;
    }
    text += separator;
    text += std::to_string(x);
    separator = 'x';
  }
  return text;
}

void OpShapes::grow() {
  std::vector<Slot> old(std::max<size_t>(64, 2 * slots_.size()));
  old.swap(slots_);
  for (const Slot& s : old) {
    if (s.size < 0) continue;
    size_t at = s.hash & (slots_.size() - 1);
    while (slots_[at].size >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = s;
  }
}

}  // namespace kuafu
