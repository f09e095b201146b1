// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/worker/appended_file.h"
#include "app/worker/tensorboard.h"
#include "kuafu/engine/run.h"

namespace kuafu {

/// What a run says of its steps while it makes them: a line that redraws itself on a terminal and
/// plain lines elsewhere, a table of metrics that grows, scalars for TensorBoard.
class StepLog {
 public:
  struct Options {
    bool is_terminal = false;
    int width = 100;             ///< columns of the terminal
    int64_t every = 0;           ///< steps between plain lines; 0: one each 10 s
    std::string file;            ///< .jsonl or .csv; empty: none
    std::string board;           ///< folder of event files; empty: none
    int64_t first = 0, end = 0;  ///< steps of this run: first .. end - 1
    int64_t tokens = 0;          ///< of a step, all ranks
  };

  StepLog(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {}
  ~StepLog();

  /// Rows of steps from `first` on, of an earlier run in the same table, make room. Throws
  /// ConfigError where a file cannot be written: that file gets no more.
  void add(const StepDone& done);

  /// The validation after `steps` steps of an earlier run that was stopped in it: it completes their
  /// row. Before any add(); throws as that does.
  void add_validation(int64_t steps, double loss);

 private:
  using Clock = std::chrono::steady_clock;

  void open(const StepDone& done);
  /// Rows of an earlier run that this one does not make again are kept under another name: all where
  /// it starts anew, and where there are some behind its last step. Those that it makes again are told.
  void set_aside();
  void show(const StepDone& done);
  void write_row(const StepDone& done);
  void write_scalars(const StepDone& done);
  void flush_board();
  void replace_log(const std::string& lines) const;
  /// What fits into so many columns: fields are shown whole or not at all, the first always.
  std::string line_of(const StepDone& done, int width) const;
  std::vector<std::string> fields_of(const StepDone& done) const;
  void clear();

  std::ostream& out_;
  Options options_;
  std::optional<AppendedFile> table_;
  std::optional<TensorBoard> board_;
  std::optional<double> validation_loss_;  ///< the last
  Clock::time_point drawn_ = {}, told_ = Clock::now();
  Clock::time_point begun_;  ///< the end of the first step
  double seconds_ = 0;       ///< of all steps but the first, which warms up
  int64_t steps_ = 0, skipped_ = 0;
  bool is_drawn_ = false;
};

/// Throws ConfigError where `file` is neither .jsonl nor .csv, or what is there is a pipe (which
/// would have to be read for the run to go on) or no log.
void check_log_path(const std::string& file);

}  // namespace kuafu
