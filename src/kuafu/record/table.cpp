// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

std::string formatted(const char* format, auto... values) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, values...);
  return buffer.data();
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  KUAFU_CHECK(cells.size() == columns_.size(), cells.size(), " cells for ", columns_.size(),
              " columns");
  rows_.push_back(std::move(cells));
}

std::string Table::str() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](auto&& cell) {
    std::string row;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string content = cell(c);
      const std::string pad(widths[c] - content.size(), ' ');
      if (c > 0) row += "  ";
      row += columns_[c].align == Align::kRight ? pad + content : content + pad;
    }
    row.erase(row.find_last_not_of(' ') + 1);
    out += row + "\n";
  };
  line([&](size_t c) { return columns_[c].title; });
  line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) line([&](size_t c) { return row[c]; });
  return out;
}

std::string human_number(double value, int digits) {
  if (value == 0) return "0";
  if (!std::isfinite(value)) return formatted("%g", value);
  const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
  if (magnitude > 11 || magnitude < -4) return formatted("%.*e", digits - 1, value);
  return formatted("%.*f", std::max(0, digits - 1 - magnitude), value);
}

}  // namespace kuafu
