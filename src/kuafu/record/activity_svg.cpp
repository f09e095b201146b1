// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string_view>

#include "kuafu/base/errors.h"
#include "kuafu/record/activity.h"

namespace kuafu {
namespace {

constexpr double kLeft = 64, kWidth = 1080, kRight = 24;
constexpr double kLegendLine = 20, kCharacter = 6.2;

std::string escaped(const std::string& words) {
  std::string out;
  for (const char c : words) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// Coordinates with two decimals: a picture needs no more, and equal logs give equal pictures.
std::string fixed(double x) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.2f", x);
  return digits;
}

std::string svg_text(double x, double y, const std::string& words, const std::string& style = "") {
  return text("<text x=\"", fixed(x), "\" y=\"", fixed(y), "\"", style.empty() ? "" : " ", style,
              ">", escaped(words), "</text>\n");
}

std::string box(double x, double y, double width, double height, const std::string& fill,
                const std::string& title) {
  return text("<rect x=\"", fixed(x), "\" y=\"", fixed(y), "\" width=\"", fixed(width),
              "\" height=\"", fixed(height), "\" fill=\"", fill, "\"><title>", escaped(title),
              "</title></rect>\n");
}

/// Unit and step of an axis of about eight ticks.
struct Axis {
  std::string unit;
  double seconds = 1;  ///< of one unit
  double step = 1;     ///< in units
};

Axis axis_of(double length_s) {
  Axis axis{"s", 1, 1};
  if (length_s < 1e-3)
    axis = {"us", 1e-6, 1};
  else if (length_s < 1)
    axis = {"ms", 1e-3, 1};
  const double rough = length_s / axis.seconds / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    axis.step = factor * power;
    if (axis.step >= rough * (1 - 1e-9)) break;
  }
  return axis;
}

/// What ranks compute in every picture, measured or simulated, has one colour in all of them.
constexpr std::string_view kUsual[] = {"forward", "backward", "update", "load"};

/// A colour for everything else that ranks did, in the order in which it first occurs. Idle is pale.
class Palette {
 public:
  explicit Palette(const ActivityLog& log) {
    for (const Activity& a : log.activities) {
      const auto key = std::pair(a.kind, a.what);
      const auto [at, is_new] = seconds_.try_emplace(key, 0);
      at->second += a.end_s - a.start_s;
      if (is_new) order_.push_back(key);
      if (a.row == Activity::Row::kRank) total_ += a.end_s - a.start_s;  // queues work meanwhile
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    size_t next[4] = {std::size(kUsual), 0, 0, 0};
    for (const auto& key : order_) {
      const std::vector<std::string>& shades = of(key.first);
      const auto usual = std::find(std::begin(kUsual), std::end(kUsual), key.second);
      const bool is_usual = key.first == Activity::Kind::kCompute && usual != std::end(kUsual);
      const size_t place = is_usual ? static_cast<size_t>(usual - std::begin(kUsual))
                                    : next[static_cast<size_t>(key.first)]++;
      colours_[key] = shades[place % shades.size()];
    }
  }

  const std::string& colour(const Activity& a) const { return colours_.at({a.kind, a.what}); }

  std::string legend(double& y) const {
    std::string out;
    double x = kLeft;
    for (const auto& key : order_) {
      const double share = total_ > 0 ? 100 * seconds_.at(key) / total_ : 0;
      char percent[32];
      std::snprintf(percent, sizeof percent, "%.1f", share);
      const std::string words = text(key.second, ", ", percent, " % of the time");
      const double width = 26 + kCharacter * static_cast<double>(words.size());
      if (x + width > kLeft + kWidth && x > kLeft) x = kLeft, y += kLegendLine;
      out += box(x, y, 13, 13, colours_.at(key), words);
      out += svg_text(x + 18, y + 11, words);
      x += width;
    }
    y += kLegendLine;
    return out;
  }

 private:
  static const std::vector<std::string>& of(Activity::Kind kind) {
    // As many as a run has: of verbs there are ten.
    static const std::vector<std::string> compute = {"#0072b2", "#e69f00", "#56b4e9",
                                                     "#009e73", "#5d3a9b", "#a08000",
                                                     "#1b3a6b", "#8fbc3f", "#4f6d7a"};
    static const std::vector<std::string> communication = {
        "#d55e00", "#cc79a7", "#882255", "#f28e2b", "#b2182b",
        "#f4a3a0", "#7a3b10", "#9970ab", "#e7298a", "#4a0020"};
    static const std::vector<std::string> idle = {"#e4e8ee", "#cfd6df"};
    static const std::vector<std::string> copy = {"#117733", "#999933"};
    return kind == Activity::Kind::kCompute ? compute
           : kind == Activity::Kind::kIdle  ? idle
           : kind == Activity::Kind::kCopy  ? copy
                                            : communication;
  }

  std::vector<std::pair<Activity::Kind, std::string>> order_;
  std::map<std::pair<Activity::Kind, std::string>, double> seconds_;
  std::map<std::pair<Activity::Kind, std::string>, std::string> colours_;
  double total_ = 0;
};

/// Neighbours of one kind that no eye could tell apart, as one: a picture of thousands of events
/// stays small.
std::vector<Activity> thinned(const ActivityLog& log, double pixel_s) {
  std::vector<Activity> out;
  for (const Activity& a : log.activities) {
    if (!out.empty()) {
      Activity& last = out.back();
      const bool is_same =
          last.rank == a.rank && last.row == a.row && last.kind == a.kind && last.what == a.what;
      const bool is_small =
          a.end_s - a.start_s < pixel_s / 2 && last.end_s - last.start_s < pixel_s / 2;
      if (is_same && is_small && a.start_s - last.end_s < pixel_s / 10) {
        last.end_s = a.end_s;
        last.label = "";
        continue;
      }
    }
    out.push_back(a);
  }
  return out;
}

std::string grid(const Axis& axis, double length_s, double top, double bottom) {
  std::string out;
  const double scale = kWidth / length_s * axis.seconds;
  for (int i = 0; axis.step * i * axis.seconds <= length_s * (1 + 1e-9); ++i) {
    const double x = kLeft + axis.step * i * scale;
    char number[32];
    std::snprintf(number, sizeof number, "%g", axis.step * i);
    out += text("<line x1=\"", fixed(x), "\" x2=\"", fixed(x), "\" y1=\"", fixed(top), "\" y2=\"",
                fixed(bottom + 4), "\" stroke=\"#9aa5b1\" stroke-width=\"0.6\"/>\n");
    out += svg_text(x, bottom + 16, number, "text-anchor=\"middle\"");
  }
  return out + svg_text(kLeft + kWidth / 2, bottom + 32, text("time, ", axis.unit),
                        "text-anchor=\"middle\"");
}

std::string title_of(const Activity& a, const Axis& axis) {
  char times[96];
  std::snprintf(times, sizeof times, ": %.6g to %.6g ", a.start_s / axis.seconds,
                a.end_s / axis.seconds);
  return text(row_name(a.rank, a.row), ", ", a.what, a.label.empty() ? "" : " ", a.label, times,
              axis.unit);
}

}  // namespace

std::string activity_svg(const ActivityLog& log) {
  KUAFU_REQUIRE(log.length_s > 0 && !log.activities.empty(),
                "a timeline without any activity cannot be drawn");
  const auto rows = rows_of(log);
  std::map<std::pair<int, Activity::Row>, double> place;  // of rows, from the top
  for (const auto& r : rows) place.emplace(r, static_cast<double>(place.size()));
  const auto count = static_cast<double>(rows.size());
  const double row = std::clamp(520.0 / count, 7.0, 26.0);
  const Axis axis = axis_of(log.length_s);
  const Palette palette(log);
  double top = 34;
  std::string body = svg_text(kLeft, 20, log.name, "font-weight=\"bold\"") + palette.legend(top);
  top += 6;
  const double bottom = top + row * count, scale = kWidth / log.length_s;
  body += grid(axis, log.length_s, top, bottom);
  const auto every = static_cast<size_t>(std::max(1.0, std::ceil(11 / row)));
  for (size_t i = 0; i < rows.size(); i += every) {
    const auto& [rank, of] = rows[i];
    const std::string queue = queue_name(of), words = queue.empty() ? text("rank ", rank) : queue;
    body += svg_text(kLeft - 6, top + row * (static_cast<double>(i) + 0.5) + 4, words,
                     "text-anchor=\"end\"");
  }
  for (const Activity& a : thinned(log, 1 / scale)) {
    const double x = kLeft + a.start_s * scale, width = (a.end_s - a.start_s) * scale;
    const double y = top + row * place.at({a.rank, a.row});
    body += box(x, y + 1, width, row - 2, palette.colour(a), title_of(a, axis));
    const double needs = kCharacter * static_cast<double>(a.label.size()) + 4;
    if (a.label.empty() || width < needs || row < 14) continue;
    body += svg_text(x + width / 2, y + row / 2 + 4, a.label,
                     a.kind == Activity::Kind::kIdle ? "text-anchor=\"middle\""
                                                     : "text-anchor=\"middle\" fill=\"white\"");
  }
  return text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", fixed(kLeft + kWidth + kRight),
              "\" height=\"", fixed(bottom + 42),
              "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\" "
              "fill=\"#1f2933\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
              body, "</svg>\n");
}

}  // namespace kuafu
