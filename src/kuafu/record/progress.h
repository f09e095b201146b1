// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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
    int64_t total = 0;     ///< runs of the sweep
    int64_t finished = 0;  ///< of these, done before: they do not enter the estimate
    int64_t repeats = 0;   ///< of those left, runs of Kind::kRepeat
    bool is_terminal = false;
    int width = 100;  ///< columns of the terminal
    std::function<Clock::time_point()> now = Clock::now;
  };

  /// A first run of a case, which may be certified, or one that only times it again: they take
  /// different times.
  enum class Kind : uint8_t { kFirst, kRepeat };

  Progress(std::ostream& out, Options options);
  ~Progress();

  /// A case begins.
  void start(const std::string& name, Kind kind = Kind::kFirst);
  /// So many repeats that were counted will not come.
  void drop_repeats(int64_t number);
  /// Redraws the bar, at most 10 times a second. Call it as often as you like.
  void tick();
  /// The case in hand ended as `status`. `took_s`: where another process had it, and not since
  /// start().
  void finish(const std::string& status, std::optional<double> took_s = {});
  /// Prints a line that stays, above the bar.
  void note(const std::string& line);

  /// Seconds until the end by the mean of the runs finished so far, of each kind; one that has none
  /// is taken for the other. Negative while unknown.
  double remaining_s() const;

 private:
  void draw();
  void clear();

  std::ostream& out_;
  Options options_;
  /// Runs of one kind.
  struct Runs {
    int64_t left = 0, done = 0;
    double took_s = 0;  ///< of those done, by the clock: several may have run at a time
  };
  Runs& runs_in_hand() { return runs_[static_cast<size_t>(kind_)]; }

  Clock::time_point finished_, case_began_, drawn_;  ///< `finished_`: the last run, or the start
  std::array<Runs, 2> runs_;                         ///< by Kind
  Kind kind_ = Kind::kFirst;
  int64_t done_ = 0;  ///< finished by this sweep
  std::string name_;
  bool is_drawn_ = false;
};

/// Options for standard error: whether it is a terminal, and how wide.
Progress::Options progress_options_of_stderr(int64_t total, int64_t finished);

/// Tells programs started from here on that standard error, a pipe of a launcher to them, ends on this
/// process's terminal; does nothing where it does not.
void hand_on_terminal();

}  // namespace kuafu
