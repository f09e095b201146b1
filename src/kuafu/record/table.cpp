// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

constexpr size_t kNarrowest = 24;  ///< of a column whose cells go on in further lines

std::string formatted(const char* format, auto... values) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, values...);
  return buffer.data();
}

/// Words of `content` in lines of at most `width`; a longer word has a line of its own.
std::vector<std::string> lines_of(const std::string& content, size_t width) {
  std::vector<std::string> lines = {""};
  std::istringstream in(content);
  for (std::string word; in >> word;) {
    std::string& line = lines.back();
    if (line.empty())
      line = word;
    else if (line.size() + 1 + word.size() <= width)
      line += " " + word;
    else
      lines.push_back(word);
  }
  return lines;
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  KUAFU_CHECK(cells.size() == columns_.size(), cells.size(), " cells for ", columns_.size(),
              " columns");
  rows_.push_back(std::move(cells));
}

std::string Table::str(int64_t width) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t widest = columns_[c].title.size();
    for (const auto& row : rows_) widest = std::max(widest, row[c].size());
    widths.push_back(widest);
  }
  size_t before = 0;  // the last column
  for (size_t c = 0; c + 1 < widths.size(); ++c) before += widths[c] + 2;
  const size_t room = std::max<size_t>(
      kNarrowest, static_cast<size_t>(width) - std::min(static_cast<size_t>(width), before));
  const bool is_wrapped = width > 0 && before + widths.back() > static_cast<size_t>(width);
  if (is_wrapped) widths.back() = std::min(widths.back(), room);
  std::string out;
  const auto line = [&](auto&& cell) {
    std::string row;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string content = cell(c);
      const std::string pad(widths[c] - std::min(widths[c], content.size()), ' ');
      if (c > 0) row += "  ";
      row += columns_[c].align == Align::kRight ? pad + content : content + pad;
    }
    row.erase(row.find_last_not_of(' ') + 1);
    out += row + "\n";
  };
  line([&](size_t c) { return columns_[c].title; });
  line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) {
    if (!is_wrapped) {
      line([&](size_t c) { return row[c]; });
      continue;
    }
    bool is_first = true;
    for (const std::string& part : lines_of(row.back(), room)) {
      line([&](size_t c) { return c + 1 == row.size() ? part : is_first ? row[c] : ""; });
      is_first = false;
    }
  }
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
