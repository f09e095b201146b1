// SPDX-License-Identifier: Apache-2.0
#include "app/worker/log_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <vector>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells = {""};
  for (const char c : line) {
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

/// A row of a table with the columns `from` in the columns `to`: empty where it has none.
std::string in_columns(const std::string& line, const std::vector<std::string>& from,
                       const std::vector<std::string>& to) {
  const std::vector<std::string> cells = cells_of(line);
  std::string moved;
  for (size_t i = 0; i < to.size(); ++i) {
    const auto at = static_cast<size_t>(std::find(from.begin(), from.end(), to[i]) - from.begin());
    if (i > 0) moved += ',';
    if (at < std::min(from.size(), cells.size())) moved += cells[at];
  }
  return moved;
}

/// A number of one line of the table, its step; below 0: it has none.
int64_t step_of(const std::string& line, bool is_table) {
  if (is_table) {
    std::istringstream in(line);
    int64_t step = -1;
    return in >> step ? step : -1;
  }
  const Json row = Json::parse(line, nullptr, false);
  const Json step = row.is_object() ? value_at(row, "step") : Json();
  return step.is_number_integer() ? step.get<int64_t>() : -1;
}

/// A line of either table with its validation loss.
std::string with_validation(const std::string& line, double loss,
                            const std::vector<std::string>& columns) {
  if (columns.empty()) {
    auto row = nlohmann::ordered_json::parse(line);
    row[kValidationColumn] = std::isfinite(loss) ? Json(loss) : Json();
    return row.dump();
  }
  std::vector<std::string> cells = cells_of(line);
  cells.resize(std::max(cells.size(), columns.size()));
  const auto at = static_cast<size_t>(std::find(columns.begin(), columns.end(), kValidationColumn) -
                                      columns.begin());
  if (at < cells.size() && std::isfinite(loss)) cells[at] = Json(loss).dump();
  std::string joined;
  for (const std::string& cell : cells) joined += (&cell == cells.data() ? "" : ",") + cell;
  return joined;
}

}  // namespace

bool is_csv(const std::string& file) { return file.ends_with(".csv"); }

std::string kept_lines(const std::string& file, int64_t last, const std::string& head) {
  std::string kept;
  if (last == 0 || !std::filesystem::exists(file)) return kept;
  std::istringstream in(read_file(file, "log"));
  std::string had;
  if (is_csv(file)) std::getline(in, had);
  const std::vector<std::string> from = cells_of(had), to = cells_of(head);
  for (std::string line; std::getline(in, line);) {
    const int64_t step = step_of(line, is_csv(file));
    if (step <= 0 || step > last) continue;
    kept += (had == head ? line : in_columns(line, from, to)) + "\n";
  }
  return kept;
}

std::string missing_steps(const std::string& rows, int64_t last, bool is_table) {
  std::string missing;
  std::istringstream in(rows);
  int64_t before = 0;
  const auto reach = [&](int64_t step) {
    const int64_t from = before + 1, to = step - 1;
    if (before > 0 && from <= to) {
      missing += missing.empty() ? "" : ", ";
      missing += from == to ? std::to_string(to) : text(from, " to ", to);
    }
    before = step;
  };
  for (std::string line; std::getline(in, line);) reach(step_of(line, is_table));
  reach(last + 1);
  return missing;
}

int64_t last_step(const std::string& rows, bool is_table) {
  int64_t last = 0;
  std::istringstream in(rows);
  for (std::string line; std::getline(in, line);) last = std::max(last, step_of(line, is_table));
  return last;
}

std::string completed(const std::string& file, int64_t last, double loss, std::string head) {
  const bool is_table = is_csv(file);
  if (!is_table) head.clear();
  if (is_table && std::filesystem::exists(file)) {
    std::istringstream in(read_file(file, "log"));
    std::getline(in, head);
  }
  std::vector<std::string> columns;
  if (is_table) columns = cells_of(head);
  std::string all = is_table ? head + "\n" : "";
  bool has_row = false;
  std::istringstream in(kept_lines(file, last, head));
  for (std::string line; std::getline(in, line);) {
    const bool is_it = step_of(line, is_table) == last;
    has_row = has_row || is_it;
    all += (is_it ? with_validation(line, loss, columns) : line) + "\n";
  }
  if (has_row) return all;
  const std::string row = is_table ? std::to_string(last) : Json({{"step", last}}).dump();
  return all + with_validation(row, loss, columns) + "\n";
}

}  // namespace kuafu
