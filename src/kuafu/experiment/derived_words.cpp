// SPDX-License-Identifier: Apache-2.0
//
// Columns, claims and figures as text for the console and as JSON for the report.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/claims.h"
#include "kuafu/experiment/derived_check.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

constexpr size_t kMostSentences = 5;  ///< told of a claim on the console

std::string titled(const std::string& name, const std::string& unit) {
  return unit.empty() ? name : text(name, " [", unit, "]");
}

/// Whether numbers of the unit are told with it: sizes and times.
bool has_own_words(const std::string& unit) { return unit == "B" || unit == "s"; }

std::string words_of(const Picked& where) {
  std::vector<std::string> words;
  for (const auto& [key, allowed] : where.values) {
    std::vector<std::string> values;
    for (const Json& value : allowed) values.push_back(plain_text(value));
    words.push_back(text(key, " = ", join_or(values)));
  }
  if (!where.formula.empty()) words.push_back(where.formula);
  return join(words, " and ");
}

std::string what(const Claim& claim) {
  const std::string where = words_of(claim.where);
  return text(
      claim.formula,
      claim.tolerance > 0 ? text(" within ", human_number(100 * claim.tolerance, 3), " %") : "",
      where.empty() ? "" : " where " + where);
}

bool has_ended_ok(const Row& row) { return row.line != nullptr && (*row.line)["status"] == "ok"; }

/// What was measured, as far as its interval ends.
bool has_reach(const Value& value) {
  return value.is_number() && !value.is_point() && std::isfinite(value.low) &&
         std::isfinite(value.high);
}

Json columns_json(const Rows& rows) {
  Json out = Json::array();
  const auto& columns = rows.derived().columns;
  for (size_t c = 0; c < columns.size(); ++c) {
    Json values = Json::object(), intervals = Json::object(), estimated = Json::array();
    for (size_t i = 0; i < rows.all().size(); ++i) {
      if (!has_ended_ok(rows.all()[i])) continue;
      rows.take_ground();
      const Value value = rows.column(c, i);
      const Rows::Ground ground = rows.take_ground();
      if (ground.is_estimated) estimated.push_back(rows.all()[i].id);
      if (!value.is_absent()) values[rows.all()[i].id] = value.json();
      if (has_reach(value) && !ground.is_of_two_rounds)
        intervals[rows.all()[i].id] = {value.low, value.high};
    }
    out.push_back({{"name", columns[c].name},
                   {"formula", columns[c].formula},
                   {"unit", columns[c].unit},
                   {"values", values},
                   {"ci95", intervals},
                   {"estimated", estimated}});
  }
  return out;
}

Json axis_json(const Derived& derived, const std::string& name) {
  return {{"name", name}, {"unit", unit_of(derived, name)}};
}

/// What tells the series apart: strategies, where nothing is said and there are some.
std::string by_of(const Derived& derived, const FigureSpec& figure) {
  if (!figure.by.empty() || figure.kind == "heatmap") return figure.by;
  return derived.row_keys.contains("strategy") ? "strategy" : "";
}

/// A reason that several cases have is one.
std::string without_name(std::string words, const std::string& name) {
  for (const std::string& said : {" of " + in_quotes(name), " in " + in_quotes(name),
                                  "like " + in_quotes(name) + " ", in_quotes(name) + " "}) {
    const size_t at = words.find(said);
    if (at != std::string::npos) words.erase(at, said.size());
  }
  return words;
}

/// What the points of a figure are: one a case that has what the axes show, and why others have none.
struct Points {
  Json points = Json::array();
  std::map<std::string, int64_t> left_out;  ///< cases by the reason
};

Points points_of(const Rows& rows, const FigureSpec& figure) {
  Points out;
  int64_t num_open = 0;
  for (const size_t i : rows.picked(figure.where, num_open)) {
    const Row& row = rows.all()[i];
    if (!has_ended_ok(row)) {
      ++out.left_out[row.line == nullptr ? "has not ended"
                                         : "ended as " + (*row.line)["status"].get<std::string>()];
      continue;
    }
    const auto value = [&](const std::string& name) {
      return name.empty() ? Value::absent("") : rows.value(i, name, Rows::Reading::kAsRecorded);
    };
    const Value x = value(figure.x), y = value(figure.y), z = value(figure.z),
                by = value(by_of(rows.derived(), figure));
    const bool is_flat = figure.z.empty();
    if (x.is_absent() || y.is_absent() || (z.is_absent() && !is_flat)) {
      const Value& missing = x.is_absent() ? x : y.is_absent() ? y : z;
      ++out.left_out[without_name(missing.words, row.name)];
      continue;
    }
    Json point = {{"id", row.id}, {"x", x.json()}, {"y", y.json()}};
    if (!is_flat) point["z"] = z.json();
    if (!by.is_absent()) point["by"] = plain_text(by.json());
    if (has_reach(y)) point["reach"] = {y.low, y.high};
    out.points.push_back(std::move(point));
  }
  if (num_open > 0) out.left_out["has not ended"] += num_open;
  return out;
}

Json figure_json(const Rows& rows, const FigureSpec& figure) {
  const Derived& derived = rows.derived();
  Json out = {{"at", text(derived.origin, ":", figure.line)}, {"title", figure.title}};
  if (!figure.script.empty()) {
    const auto path = std::filesystem::path(derived.folder) / figure.script;
    out["script"] = figure.script;
    // A record alone, which may come from anywhere, makes no program run.
    if (!derived.folder.empty()) {
      out["path"] = std::filesystem::absolute(path).lexically_normal().string();
    }
    return out;
  }
  out["kind"] = figure.kind;
  out["log"] = figure.log;
  out["by"] = by_of(derived, figure);
  out["where"] = words_of(figure.where);
  for (const auto& [axis, name] : {std::pair{"x", &figure.x}, {"y", &figure.y}, {"z", &figure.z}}) {
    if (!name->empty()) out[axis] = axis_json(derived, *name);
  }
  const Points found = points_of(rows, figure);
  out["points"] = found.points;
  out["left_out"] = found.left_out;
  out["follows"] = derived.follows;
  return out;
}

void add_sentences(std::string& out, const std::vector<std::string>& sentences) {
  for (size_t i = 0; i < std::min(sentences.size(), kMostSentences); ++i) {
    out += "              " + sentences[i] + "\n";
  }
  if (sentences.size() > kMostSentences) {
    out += text("              ... and ", sentences.size() - kMostSentences, " more\n");
  }
}

}  // namespace

Json derived_json(const Rows& rows) {
  Json claims = Json::array(), figures = Json::array();
  for (const ClaimResult& r : check_claims(rows)) {
    claims.push_back({{"name", r.claim->name},
                      {"what", what(*r.claim)},
                      {"source", r.claim->source},
                      {"verdict", describe(r.verdict)},
                      {"checked", r.checked},
                      {"held", r.held},
                      {"failing", r.failing},
                      {"open", r.open},
                      {"is_estimated", r.is_estimated},
                      {"note", r.note}});
  }
  for (const FigureSpec& f : rows.derived().figures) figures.push_back(figure_json(rows, f));
  return {{"columns", columns_json(rows)}, {"claims", claims}, {"figures", figures}};
}

std::vector<ColumnCells> column_cells(const Rows& rows) {
  std::vector<ColumnCells> out;
  const auto& columns = rows.derived().columns;
  for (size_t c = 0; c < columns.size(); ++c) {
    const bool is_told_with = has_own_words(columns[c].unit);
    ColumnCells shown{is_told_with ? columns[c].name : titled(columns[c].name, columns[c].unit),
                      {}};
    for (size_t i = 0; i < rows.all().size(); ++i) {
      rows.take_ground();
      Value value = rows.column(c, i);
      const bool is_marked = rows.take_ground().is_estimated && !value.is_absent();
      value.low = value.high = value.number;  // the report has intervals
      if (!has_ended_ok(rows.all()[i])) continue;
      shown.cells[rows.all()[i].id] =
          text(is_marked ? kEstimatedMark : "", value.shown(is_told_with ? columns[c].unit : ""));
    }
    out.push_back(std::move(shown));
  }
  return out;
}

std::vector<std::string> empty_columns(const Rows& rows) {
  std::vector<std::string> notes;
  const auto& columns = rows.derived().columns;
  for (size_t c = 0; c < columns.size(); ++c) {
    std::string why;
    bool has_value = false;
    for (size_t i = 0; i < rows.all().size() && !has_value; ++i) {
      if (!has_ended_ok(rows.all()[i])) continue;
      const Value value = rows.column(c, i);
      has_value = !value.is_absent();
      if (why.empty()) why = value.words;
    }
    if (!has_value && !why.empty()) {
      notes.push_back(text("column ", in_quotes(columns[c].name), " has no value: ", why));
    }
  }
  return notes;
}

namespace {

/// "3 of 6", and where cases fail how many are not decided.
std::string counts(const ClaimResult& r) {
  const int64_t fail = static_cast<int64_t>(r.failing.size()), open = r.checked - r.held - fail;
  const std::string held = text(r.held, " of ", r.checked);
  if (fail == 0 || r.checked == 1) return held;
  return text(held, " hold, ", fail, " fail", open > 0 ? text(", ", open, " undecided") : "");
}

}  // namespace

std::string claim_text(const std::vector<ClaimResult>& results) {
  std::string out;
  for (const ClaimResult& r : results) {
    const bool is_failing = r.verdict == ClaimResult::Verdict::kFails;
    std::string verdict =
        text(r.is_estimated ? kEstimatedMark : "", is_failing ? "FAILS" : describe(r.verdict));
    verdict.resize(11, ' ');
    out += text("  ", verdict, " ", r.claim->name, ": ", counts(r), ": ", what(*r.claim), " (",
                r.claim->source, ")\n");
    add_sentences(out, r.failing);
    if (!is_failing) add_sentences(out, r.open);
    if (!r.note.empty()) add_sentences(out, {r.note});
  }
  return out;
}

std::string derived_text(const Derived& derived) {
  std::string out;
  for (const Column& c : derived.columns) {
    out += text("column  ", titled(c.name, c.unit), " = ", c.formula, "\n");
  }
  for (const Claim& c : derived.claims) {
    out += text("claim   ", c.name, ": ", what(c), " (", c.source, ")\n");
  }
  for (const FigureSpec& f : derived.figures) {
    const std::string drawn = f.script.empty()
                                  ? text(f.kind, " of ", f.z.empty() ? "" : f.z + " at ", f.y,
                                         " over ", f.x, f.by.empty() ? "" : " by " + f.by)
                                  : f.script;
    out += text("figure  ", f.title.empty() ? "" : f.title + ": ", drawn, "\n");
  }
  return out;
}

}  // namespace kuafu
