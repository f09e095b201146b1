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

size_t longest_word(const std::string& content) {
  std::istringstream in(content);
  size_t longest = 0;
  for (std::string word; in >> word;) longest = std::max(longest, word.size());
  return longest;
}

/// Takes from the widest column until all fit in `width`, or none can give. Whether any gave.
bool fit(std::vector<size_t>& widths, const std::vector<size_t>& narrowest, size_t width) {
  size_t total = 2 * (widths.size() - 1);
  for (const size_t w : widths) total += w;
  bool has_given = false;
  for (; total > width; --total) {
    size_t* widest = nullptr;
    for (size_t c = 0; c < widths.size(); ++c) {
      if (widths[c] > narrowest[c] && (widest == nullptr || widths[c] > *widest)) {
        widest = &widths[c];
      }
    }
    if (widest == nullptr) break;
    --*widest;
    has_given = true;
  }
  return has_given;
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  KUAFU_CHECK(cells.size() == columns_.size(), cells.size(), " cells for ", columns_.size(),
              " columns");
  rows_.push_back(std::move(cells));
}

std::string Table::str(int64_t width) const {
  std::vector<size_t> widths, narrowest;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t widest = columns_[c].title.size(), word = widest;
    for (const auto& row : rows_) {
      widest = std::max(widest, row[c].size());
      word = std::max(word, longest_word(row[c]));
    }
    widths.push_back(widest);
    narrowest.push_back(std::min(widest, std::max(word, kNarrowest)));
  }
  const bool is_wrapped = width > 0 && fit(widths, narrowest, static_cast<size_t>(width));
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
    std::vector<std::vector<std::string>> cells;
    size_t height = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      cells.push_back(is_wrapped ? lines_of(row[c], widths[c]) : std::vector{row[c]});
      height = std::max(height, cells[c].size());
    }
    for (size_t i = 0; i < height; ++i) {
      line([&](size_t c) { return i < cells[c].size() ? cells[c][i] : std::string(); });
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
