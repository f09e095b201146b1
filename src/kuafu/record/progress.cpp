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
    : out_(out), options_(std::move(options)), began_(options_.now()), case_began_(began_) {}

Progress::~Progress() { clear(); }

void Progress::start(const std::string& name) {
  name_ = name;
  case_began_ = options_.now();
  drawn_ = {};
  tick();
}

void Progress::tick() {
  if (!options_.is_terminal || options_.now() - drawn_ < kRedraw) return;
  draw();
}

void Progress::finish(const std::string& status, std::optional<double> took_s) {
  ++done_;
  if (options_.is_terminal) {
    draw();
    return;
  }
  const double left = remaining_s();
  out_ << options_.finished + done_ << "/" << options_.total << "  " << status << "  "
       << print_seconds(took_s.value_or(seconds(options_.now() - case_began_))) << "  " << name_
       << (left > 0 ? text("  (", print_seconds(left), " left)") : "") << std::endl;
}

void Progress::note(const std::string& line) {
  clear();
  out_ << line << std::endl;
}

double Progress::remaining_s() const {
  if (done_ == 0) return -1;
  const double mean = seconds(options_.now() - began_) / static_cast<double>(done_);
  return mean * static_cast<double>(options_.total - options_.finished - done_);
}

void Progress::draw() {
  drawn_ = options_.now();
  const int64_t done = options_.finished + done_;
  const int64_t total = std::max<int64_t>(options_.total, 1);
  const auto filled = static_cast<size_t>(kBarWidth * done / total);
  const double left = remaining_s();
  std::string line = text("[", std::string(filled, '#'), std::string(kBarWidth - filled, '-'), "] ",
                          done, "/", options_.total, "  ",
                          left < 0 ? "ETA ?" : text("ETA ", print_seconds(left)), "  ", name_);
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(options_.width - 1, 20))));
  out_ << "\r\033[K" << line << std::flush;
  is_drawn_ = true;
}

void Progress::clear() {
  if (is_drawn_) out_ << "\r\033[K" << std::flush;
  is_drawn_ = false;
}

Progress::Options progress_options_of_stderr(int64_t total, int64_t finished) {
  Progress::Options options;
  options.total = total;
  options.finished = finished;
  options.is_terminal = ::isatty(STDERR_FILENO) == 1;
  struct winsize size {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  return options;
}

}  // namespace kuafu
