// SPDX-License-Identifier: Apache-2.0
#include "app/worker/step_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <ostream>
#include <sstream>
#include <utility>
#include <vector>

#include "app/worker/log_table.h"
#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kTell{10};

constexpr const char *kTelemetry = "telemetry/", *kBoardValidation = "validation/loss";

/// Columns of the table, in order. Steps are counted from 1, as everywhere that people read.
using Row = std::vector<std::pair<std::string, Json>>;
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

/// "telemetry/weight_norm/head.weight" and so on, of the last step.
void add_telemetry(const TelemetrySeries& series, Row& row) {
  for (const TelemetryRows& s : telemetry_rows()) {
    if ((series.*s.rows).empty()) continue;
    const std::vector<double>& last = (series.*s.rows).back();
    for (size_t i = 0; i < last.size(); ++i) {
      row.emplace_back(text(kTelemetry, s.name, "/", series.layers[i]), number(last[i]));
    }
  }
  if (series.gradient_variance.empty()) return;
  row.emplace_back(text(kTelemetry, "noise_scale"),
                   number(noise_scale(series, series.steps.size() - 1)));
}

Row row_of(const StepDone& d, int64_t tokens) {
  const double flop_per_s = static_cast<double>(d.flops) / d.seconds;
  Row row = {
      {"step", d.step + 1},
      {"loss", number(d.report.loss)},
      {"grad_norm", number(d.report.grad_norm)},
      {"lr", number(d.report.lr)},
      {"loss_scale", number(d.report.loss_scale)},
      {"skipped", d.report.is_skipped},
      {"step_time_s", number(d.seconds)},
      {"tokens_per_s", number(static_cast<double>(tokens) / d.seconds)},
      {"flop_per_s", d.flops > 0 ? number(flop_per_s) : Json()},
      {"share_of_peak", d.peak_flops_per_s > 0 ? number(flop_per_s / d.peak_flops_per_s) : Json()},
      {kValidationColumn, d.validation_loss ? number(*d.validation_loss) : Json()}};
  if (d.telemetry != nullptr) add_telemetry(*d.telemetry, row);
  return row;
}

std::string header(const Row& row = row_of({}, 0)) {
  std::string line;
  for (const auto& [name, value] : row) line += (line.empty() ? "" : ",") + name;
  return line;
}

nlohmann::ordered_json object_of(const Row& row) {
  nlohmann::ordered_json object;
  for (const auto& [name, value] : row) object[name] = value;
  return object;
}

std::string table_line(const Row& row) {
  std::string line;
  for (const auto& [name, value] : row) {
    line += (line.empty() ? "" : ",") + (value.is_null() ? "" : value.dump());
  }
  return line;
}

}  // namespace

void check_log_path(const std::string& file) {
  KUAFU_REQUIRE(is_csv(file) || file.ends_with(".jsonl"), "--log ", file,
                ": the ending says how it is written: .jsonl or .csv");
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status there = fs::status(file, error);
  KUAFU_REQUIRE(!fs::is_fifo(there) && !fs::is_socket(there), "--log ", file,
                " is a pipe, which would hold the run up until it is read; give another name");
  if (!fs::is_regular_file(there)) return;
  std::ifstream in(file);
  std::string first;
  if (!std::getline(in, first)) return;
  const std::string begin = is_csv(file) ? header() : "{\"step\":";  // a kill may have cut it
  KUAFU_REQUIRE(first.starts_with(begin) || begin.starts_with(first), "--log ", file,
                " is there and is no log, which would begin with ", begin, "; give another name");
}

StepLog::~StepLog() { clear(); }

void StepLog::add(const StepDone& done) {
  show(done);
  if (steps_++ == 0) open(done);
  if (table_) write_row(done);
  if (board_) write_scalars(done);
}

void StepLog::open(const StepDone& done) {
  const std::string& file = options_.file;
  if (!options_.board.empty() && !board_) board_.emplace(options_.board, options_.first + 1);
  if (file.empty()) return;
  set_aside();
  const std::string head = is_csv(file) ? header(row_of(done, options_.tokens)) : "";
  const std::string kept = kept_lines(file, options_.first, head);
  const std::string missing = missing_steps(kept, options_.first, is_csv(file));
  if (!missing.empty()) {
    clear();
    out_ << "kuafu: --log " << file << " has no rows of steps " << missing
         << ": they were made without it" << std::endl;
  }
  replace_log((head.empty() ? "" : head + "\n") + kept);
  table_.emplace("--log", file);
}

void StepLog::set_aside() {
  const std::string& file = options_.file;
  if (!std::filesystem::is_regular_file(file)) return;
  const std::string rows = kept_lines(file, std::numeric_limits<int64_t>::max(), header());
  const int64_t last = last_step(rows, is_csv(file));
  if (last <= options_.first) return;
  if (options_.first > 0 && last <= options_.end) {
    clear();
    out_ << "kuafu: --log " << file << ": its rows of steps " << options_.first + 1 << " to "
         << last << " go, this run makes these steps again" << std::endl;
    return;
  }
  std::string aside = file + ".before";
  for (int i = 2; std::filesystem::exists(aside); ++i) aside = text(file, ".before-", i);
  std::error_code error;
  std::filesystem::copy_file(file, aside, error);
  KUAFU_REQUIRE(!error, "--log ", file, ": cannot be copied to ", aside, ": ", error.message());
  clear();
  out_ << "kuafu: --log " << file << " had " << std::count(rows.begin(), rows.end(), '\n')
       << " rows, ";
  if (options_.first == 0) {
    out_ << "and this run starts anew";
  } else {
    out_ << "the last of step " << last << ", and this run goes on behind step " << options_.first
         << " and ends with " << options_.end;
  }
  out_ << ": they are in " << aside << std::endl;
}

void StepLog::replace_log(const std::string& lines) const {
  try {
    replace_file(options_.file, lines);
  } catch (const ConfigError& e) {
    throw ConfigError(text("--log: ", e.what()));
  }
}

void StepLog::add_validation(int64_t steps, double loss) {
  validation_loss_ = loss;
  if (!options_.file.empty()) replace_log(completed(options_.file, steps, loss, header()));
  if (options_.board.empty() || !std::isfinite(loss)) return;
  board_.emplace(options_.board, options_.first + 1);
  board_->add(kBoardValidation, steps, loss);
  flush_board();
}

void StepLog::show(const StepDone& done) {
  if (steps_ > 0) {
    seconds_ += done.seconds;
  } else {
    begun_ = Clock::now();
  }
  if (done.report.is_skipped) ++skipped_;
  if (done.validation_loss) validation_loss_ = done.validation_loss;
  const auto now = Clock::now();
  const bool is_last = done.step + 1 == options_.end;
  if (options_.is_terminal && (now - drawn_ >= kRedraw || is_last)) {
    drawn_ = now;
    std::string line = line_of(done, options_.width - 1);
    line.resize(std::min(line.size(), static_cast<size_t>(std::max(options_.width - 1, 20))));
    out_ << "\r\033[K" << line << std::flush;
    is_drawn_ = true;
  }
  const bool is_due = options_.every > 0 ? (done.step + 1) % options_.every == 0
                                         : !options_.is_terminal && now - told_ >= kTell;
  if (!is_due) return;
  clear();
  told_ = now;
  out_ << line_of(done, std::numeric_limits<int>::max()) << std::endl;
}

std::string StepLog::line_of(const StepDone& done, int width) const {
  std::string line;
  for (const std::string& field : fields_of(done)) {  // the first stand before the last
    if (!line.empty() && std::cmp_greater(line.size() + field.size(), width)) break;
    line += field;
  }
  return line;
}

std::vector<std::string> StepLog::fields_of(const StepDone& done) const {
  const double mean = steps_ > 0 ? seconds_ / static_cast<double>(steps_) : done.seconds;
  const auto rate = [&](double amount) { return human_number(amount / mean, 3); };
  std::vector<std::string> fields = {text("step ", done.step + 1, "/", options_.end, "  loss ",
                                          human_number(done.report.loss, 5))};
  if (validation_loss_) fields.push_back(text("  validation ", human_number(*validation_loss_, 5)));
  if (skipped_ > 0) fields.push_back(text("  ", skipped_, " skipped"));
  if (const int64_t left = options_.end - done.step - 1; left > 0) {
    // With what lies between the steps: validation, saves, checks.
    const std::chrono::duration<double> past = Clock::now() - begun_;
    const double whole = steps_ > 0 ? past.count() / static_cast<double>(steps_) : mean;
    fields.push_back(text("  ", print_seconds(whole * static_cast<double>(left)), " left"));
  }
  fields.push_back(text("  ", rate(static_cast<double>(options_.tokens)), " tokens/s"));
  if (done.flops == 0) return fields;
  const auto flops = static_cast<double>(done.flops);
  fields.push_back(text("  ", rate(flops * 1e-12), " TFLOP/s"));
  if (done.peak_flops_per_s == 0) return fields;
  fields.push_back(text(" (", rate(100 * flops / done.peak_flops_per_s), " % of peak)"));
  return fields;
}

void StepLog::write_row(const StepDone& done) {
  const Row row = row_of(done, options_.tokens);
  const std::string line = is_csv(options_.file) ? table_line(row) : object_of(row).dump();
  try {
    table_->add(line + "\n");
  } catch (const ConfigError&) {
    table_.reset();
    throw;
  }
}

void StepLog::write_scalars(const StepDone& done) {
  for (const auto& [name, value] : row_of(done, options_.tokens)) {
    if (!value.is_number_float()) continue;
    const std::string tag = name == kValidationColumn      ? kBoardValidation
                            : name.starts_with(kTelemetry) ? name
                                                           : "train/" + name;
    board_->add(tag, done.step + 1, value.get<double>());
  }
  flush_board();
}

void StepLog::flush_board() {
  try {
    board_->flush();
  } catch (const ConfigError&) {
    board_.reset();
    throw;
  }
}

void StepLog::clear() {
  if (is_drawn_) out_ << "\r\033[K" << std::flush;
  is_drawn_ = false;
}

}  // namespace kuafu
