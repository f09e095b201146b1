// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string_view>

#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"

namespace kuafu {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr int kBarWidth = 24;

double seconds(Progress::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Progress::Progress(std::ostream& out, Options options)
    : out_(out),
      options_(std::move(options)),
      finished_(options_.now()),
      case_began_(finished_),
      runs_{Runs{options_.total - options_.finished - options_.repeats}, Runs{options_.repeats}} {}

Progress::~Progress() { clear(); }

void Progress::start(const std::string& name, Kind kind) {
  name_ = name;
  kind_ = kind;
  case_began_ = options_.now();
  drawn_ = {};
  tick();
}

void Progress::drop_repeats(int64_t number) {
  options_.total -= number;
  runs_[static_cast<size_t>(Kind::kRepeat)].left -= number;
}

void Progress::tick() {
  if (!options_.is_terminal || options_.now() - drawn_ < kRedraw) return;
  draw();
}

void Progress::finish(const std::string& status, std::optional<double> took_s) {
  ++done_;
  const Clock::time_point now = options_.now();
  Runs& runs = runs_in_hand();
  --runs.left;
  ++runs.done;
  runs.took_s += seconds(now - finished_);
  finished_ = now;
  if (options_.is_terminal) {
    draw();
    return;
  }
  const double left = remaining_s();
  out_ << options_.finished + done_ << (options_.total > 0 ? text("/", options_.total) : "") << "  "
       << status << "  " << print_seconds(took_s.value_or(seconds(options_.now() - case_began_)))
       << "  " << name_ << (left > 0 ? text("  (", print_seconds(left), " left)") : "")
       << std::endl;
}

void Progress::note(const std::string& line) {
  clear();
  out_ << line << std::endl;
}

double Progress::remaining_s() const {
  if (done_ == 0 || options_.total == 0) return -1;
  double left_s = 0;
  for (const Runs& runs : runs_) {
    const Runs& known = runs.done > 0 ? runs : runs_[&runs == &runs_[0] ? 1 : 0];
    left_s += static_cast<double>(runs.left) * known.took_s / static_cast<double>(known.done);
  }
  return left_s;
}

void Progress::draw() {
  drawn_ = options_.now();
  const int64_t done = options_.finished + done_;
  const double left = remaining_s();
  std::string line = text(done, " done  ", name_);
  if (options_.total > 0) {
    const auto filled = static_cast<size_t>(kBarWidth * done / options_.total);
    line = text("[", std::string(filled, '#'), std::string(kBarWidth - filled, '-'), "] ", done,
                "/", options_.total, "  ", left < 0 ? "ETA ?" : text("ETA ", print_seconds(left)),
                "  ", name_);
  }
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(options_.width - 1, 20))));
  out_ << "\r\033[K" << line << std::flush;
  is_drawn_ = true;
}

void Progress::clear() {
  if (is_drawn_) out_ << "\r\033[K" << std::flush;
  is_drawn_ = false;
}

namespace {

/// The environment variable with the columns of a terminal that a launcher stands before.
constexpr const char* kColumns = "KUAFU_TERMINAL_COLUMNS";

}  // namespace

void hand_on_terminal() {
  const Progress::Options mine = progress_options_of_stderr(0, 0);
  if (mine.is_terminal) ::setenv(kColumns, std::to_string(mine.width).c_str(), 1);
}

Progress::Options progress_options_of_stderr(int64_t total, int64_t finished) {
  Progress::Options options;
  options.total = total;
  options.finished = finished;
  options.is_terminal = ::isatty(STDERR_FILENO) == 1;
  struct winsize size {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  const char* columns = ::getenv(kColumns);
  if (!options.is_terminal && columns != nullptr && std::atoi(columns) > 0) {
    options.is_terminal = true;
    options.width = std::atoi(columns);
  }
  return options;
}

}  // namespace kuafu
