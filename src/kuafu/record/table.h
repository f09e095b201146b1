// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kuafu {

/// Columns of text for the console, each as wide as its widest cell.
class Table {
 public:
  enum class Align : uint8_t { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// @pre as many cells as columns.
  void add(std::vector<std::string> cells);

  /// Title line, rule, rows; every line ends with a newline. Where a row would be wider than `width`
  /// bytes, the widest columns give way and their cells go on in further lines; 0: they do not.
  std::string str(int64_t width = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// `digits` significant digits without an exponent where it stays readable.
std::string human_number(double value, int digits);

}  // namespace kuafu
