// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/play.h"

namespace kuafu::pipeline {
namespace {

/// "F0", with the stage in front where a rank has several.
std::string label(const Action& a, bool has_chunks) {
  const std::string word = text(static_cast<char>(a.op), a.micro_batch);
  return has_chunks ? text(a.stage, word) : word;
}

std::string colour(Op op) {
  switch (op) {
    case Op::kForward:
      return "#4e79a7";
    case Op::kBackward:
      return "#f28e2b";
    case Op::kInputGrad:
      return "#76b7b2";
    default:
      return "#59a14f";
  }
}

std::string svg_text(double x, double y, const std::string& words, const std::string& style) {
  return text("<text x=\"", x, "\" y=\"", y, "\" ", style, ">", words, "</text>\n");
}

}  // namespace

std::string render_text(const Timetable& t, const OpCosts& costs, int columns) {
  const Estimate e = estimate(t, costs);
  const bool has_chunks = shape_of(t).chunks > 1;
  const double scale = std::clamp(std::floor(columns / e.length), 1.0, 4.0);
  std::string out;
  for (size_t r = 0; r < t.size(); ++r) {
    std::string row(static_cast<size_t>(std::lround(e.length * scale)), '.');
    for (const TimedAction& span : e.spans[r]) {
      if (is_message(span.action.op)) continue;
      const auto first = static_cast<size_t>(std::lround(span.start * scale));
      const auto last = static_cast<size_t>(std::lround(span.end * scale));
      std::string cell = label(span.action, has_chunks);
      if (cell.size() > last - first) cell = text(static_cast<char>(span.action.op));
      cell.resize(last - first, '-');
      row.replace(first, last - first, cell);
    }
    out += text("rank ", r, r < 10 ? " " : "", " |", row, "|\n");
  }
  return out;
}

std::string render_svg(const Timetable& t, const OpCosts& costs) {
  const Estimate e = estimate(t, costs);
  const bool has_chunks = shape_of(t).chunks > 1;
  constexpr double kLeft = 60, kTop = 40, kHeight = 26, kWidth = 1000;
  const double scale = kWidth / e.length;
  const double height = kTop + kHeight * static_cast<double>(t.size()) + 40;
  const std::string small = "font-family=\"sans-serif\" font-size=\"11\"";
  std::string out = text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", kLeft + kWidth + 20,
                         "\" height=\"", height, "\">\n<rect width=\"100%\" height=\"100%\" ",
                         "fill=\"white\"/>\n");
  double x = kLeft;
  for (const auto& [op, word] : {std::pair{Op::kForward, "forward"},
                                 {Op::kBackward, "backward"},
                                 {Op::kInputGrad, "input gradient"},
                                 {Op::kWeightGrad, "weight gradient"}}) {
    out += text("<rect x=\"", x, "\" y=\"12\" width=\"14\" height=\"14\" fill=\"", colour(op),
                "\"/>\n");
    out += svg_text(x + 19, 23, word, small);
    x += 130;
  }
  for (size_t r = 0; r < t.size(); ++r) {
    const double y = kTop + kHeight * static_cast<double>(r);
    out += svg_text(8, y + 17, text("rank ", r), small);
    for (const TimedAction& span : e.spans[r]) {
      if (is_message(span.action.op)) continue;
      const double left = kLeft + span.start * scale, width = (span.end - span.start) * scale;
      out += text("<rect x=\"", left, "\" y=\"", y + 2, "\" width=\"", width, "\" height=\"",
                  kHeight - 4, "\" fill=\"", colour(span.action.op), "\" stroke=\"white\"/>\n");
      if (width < 20) continue;
      out += svg_text(left + width / 2, y + 17, label(span.action, has_chunks),
                      small + " fill=\"white\" text-anchor=\"middle\"");
    }
  }
  const double bottom = kTop + kHeight * static_cast<double>(t.size()) + 18;
  out += svg_text(kLeft, bottom,
                  text("time, ", e.length, " units of one forward; bubble ", e.bubble()), small);
  return out + "</svg>\n";
}

}  // namespace kuafu::pipeline
