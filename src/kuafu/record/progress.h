// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

namespace kuafu {

/// Progress of a sweep: a bar that redraws itself on a terminal, one plain line a case elsewhere.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    int64_t total = 0;     ///< cases of the sweep
    int64_t finished = 0;  ///< of these, done before: they do not enter the estimate
    bool is_terminal = false;
    int width = 100;  ///< columns of the terminal
    std::function<Clock::time_point()> now = Clock::now;
  };

  Progress(std::ostream& out, Options options);
  ~Progress();

  /// A case begins.
  void start(const std::string& name);
  /// Redraws the bar, at most 10 times a second. Call it as often as you like.
  void tick();
  /// The case in hand ended as `status`. `took_s`: where another process had it, and not since
  /// start().
  void finish(const std::string& status, std::optional<double> took_s = {});
  /// Prints a line that stays, above the bar.
  void note(const std::string& line);

  /// Seconds until the end by the mean of the cases finished so far; negative while unknown.
  double remaining_s() const;

 private:
  void draw();
  void clear();

  std::ostream& out_;
  Options options_;
  Clock::time_point began_, case_began_, drawn_;
  int64_t done_ = 0;  ///< finished by this sweep
  std::string name_;
  bool is_drawn_ = false;
};

/// Options for standard error: whether it is a terminal, and how wide.
Progress::Options progress_options_of_stderr(int64_t total, int64_t finished);

}  // namespace kuafu
