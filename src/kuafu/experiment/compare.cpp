// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/compare.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/run_log.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

using Timing = CaseComparison::Timing;

const std::vector<std::string> kExact = {"status", "plan_hash",      "world",
                                         "ranks",  "memory",         "flops_recomputed",
                                         "ledger", "flops_per_step", "certificate.verdict"};
const std::vector<std::string> kLosses = {"loss", "validation_loss"};

std::string shortened(const Json& value) {
  std::string dump = value.is_string() ? value.get<std::string>() : value.dump();
  return dump.size() > 60 ? dump.substr(0, 57) + "..." : dump;
}

/// Every place where two values differ, down to the leaves: objects and lists are walked.
void collect(const std::string& path, const Json& a, const Json& b, std::vector<std::string>& out) {
  if (a == b) return;
  if (a.is_object() && b.is_object()) {
    for (const auto& [name, value] : a.items()) {
      collect(path + "." + name, value, b.contains(name) ? b[name] : Json(nullptr), out);
    }
    for (const auto& [name, value] : b.items()) {
      if (!a.contains(name)) collect(path + "." + name, nullptr, value, out);
    }
    return;
  }
  if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) collect(text(path, ".", i), a[i], b[i], out);
    return;
  }
  out.push_back(text(path, ": ", shortened(a), ", then ", shortened(b)));
}

bool is_same(const Json& a, const Json& b, const char* path) {
  return value_at(a, path) == value_at(b, path);
}

/// Kernels are chosen by the processor: only on the same one are losses the same to the bit.
bool has_same_arithmetic(const Json& a, const Json& b) {
  return is_same(a, b, "world") && is_same(a, b, "provenance.cpu_model") &&
         is_same(a, b, "provenance.libraries.LibTorch");
}

std::string why_not_timed(const Json& a, const Json& b) {
  for (const char* side : {"A", "B"}) {
    const Json dirty = value_at(*side == 'A' ? a : b, "provenance.git_dirty");
    if (dirty == true) return text(side, " was made from a dirty tree");
  }
  if (!is_same(a, b, "provenance.host") || !is_same(a, b, "provenance.cpu_model")) {
    return "A and B were made on different hosts";
  }
  return "";
}

std::string shown_time(const Json& document) {
  const Json median = value_at(document, "step_time_s.median");
  const Json low = value_at(document, "step_time_s.ci95.0");
  const Json high = value_at(document, "step_time_s.ci95.1");
  if (!median.is_number() || !low.is_number() || !high.is_number()) return "-";
  const auto ms = [](const Json& v) { return human_number(v.get<double>() * 1e3, 3); };
  return text(ms(median), " [", ms(low), ", ", ms(high), "]");
}

CaseComparison compare_case(const Result& a, const Result& b, std::set<std::string>& notes) {
  CaseComparison c;
  c.name = a.name;
  const Json &da = a.document, &db = b.document;
  for (const auto& path : kExact)
    collect(path, value_at(da, path), value_at(db, path), c.differences);
  // One hash is one plan, whatever keys later versions have added to the list.
  if (!is_same(da, db, "plan_hash")) {
    collect("plan", value_at(da, "plan"), value_at(db, "plan"), c.differences);
  }
  if (has_same_arithmetic(da, db)) {
    for (const auto& path : kLosses)
      collect(path, value_at(da, path), value_at(db, path), c.differences);
  } else {
    notes.insert(
        "losses not compared: they are equal to the bit only on the same world, processor "
        "model and LibTorch");
  }
  c.step_a = shown_time(da);
  c.step_b = shown_time(db);
  c.ratio = "-";
  if (c.step_a == "-" || c.step_b == "-") return c;
  const auto at = [](const Json& document, const char* path) {
    return value_at(document, path).get<double>();
  };
  c.ratio = human_number(at(db, "step_time_s.median") / at(da, "step_time_s.median"), 3);
  const std::string reason = why_not_timed(da, db);
  if (!reason.empty()) {
    notes.insert("step times not compared: " + reason);
    return c;
  }
  const bool is_slower = at(db, "step_time_s.ci95.0") > at(da, "step_time_s.ci95.1");
  const bool is_faster = at(db, "step_time_s.ci95.1") < at(da, "step_time_s.ci95.0");
  c.timing = is_slower ? Timing::kSlower : is_faster ? Timing::kFaster : Timing::kSame;
  return c;
}

/// What makes two cases the same: the case id where both sides have one, else the plan's place.
std::string key_of(const Result& result, bool by_id) {
  if (by_id) return result.case_id;
  const Json& d = result.document;
  return text(value_at(d, "plan_hash").dump(), value_at(d, "world").dump(),
              value_at(d, "ranks").dump());
}

Result lone_document(const std::string& path) {
  Json document;
  try {
    document = parse_json(read_file(path, "document"));
  } catch (const ConfigError& e) {
    throw ConfigError(text(path, ": ", e.what()));
  }
  const auto problems = document_problems(document);
  KUAFU_REQUIRE(problems.empty(), path, ": not a document of docs/record.md: ", problems.front());
  return {std::filesystem::path(path).filename().string(), "", document};
}

const char* describe(Timing timing) {
  switch (timing) {
    case Timing::kSame:
      return "same";
    case Timing::kSlower:
      return "SLOWER";
    case Timing::kFaster:
      return "faster";
    case Timing::kNotCompared:
      return "-";
  }
  return "";
}

}  // namespace

Results load_results(const std::string& path) {
  Results results{path, {}};
  const bool is_folder = std::filesystem::is_directory(path);
  const std::string file = is_folder ? path + "/" + kRunFile : path;
  KUAFU_REQUIRE(
      std::filesystem::exists(file), file,
      ": no such file; give a results folder, a run.jsonl or a document of `kuafu run --json`");
  if (!is_folder && std::filesystem::path(path).extension() != ".jsonl") {
    results.cases.push_back(lone_document(path));
    return results;
  }
  const RunRecord record = read_run(file);
  const size_t damaged = record.damaged.size() - (record.is_cut ? 1 : 0);
  KUAFU_REQUIRE(
      damaged == 0, file, ": ", damaged, damaged == 1 ? " line is" : " lines are",
      " no JSON any more; `kuafu suite` sets such lines aside and runs their cases again");
  for (const Json& line : record.cases) {
    results.cases.push_back(
        {line["name"].get<std::string>(), line["case_id"].get<std::string>(), line["document"]});
  }
  KUAFU_REQUIRE(!results.cases.empty(), file, ": has no finished case");
  return results;
}

int64_t Comparison::num_regressions() const {
  const auto is_worse = [](const CaseComparison& c) {
    return !c.differences.empty() || c.timing == Timing::kSlower;
  };
  return std::count_if(cases.begin(), cases.end(), is_worse) + static_cast<int64_t>(missing.size());
}

Comparison compare(const Results& a, const Results& b) {
  Comparison comparison;
  std::set<std::string> notes;
  const auto has_id = [](const Results& r) { return !r.cases.front().case_id.empty(); };
  const bool by_id = has_id(a) && has_id(b);
  if (!has_id(a) && !has_id(b)) {  // two lone documents are compared whatever they are
    comparison.cases.push_back(compare_case(a.cases.front(), b.cases.front(), notes));
    comparison.notes.assign(notes.begin(), notes.end());
    return comparison;
  }
  std::set<std::string> met;
  for (const Result& ours : a.cases) {
    const std::string key = key_of(ours, by_id);
    const auto theirs = std::find_if(b.cases.begin(), b.cases.end(),
                                     [&](const Result& r) { return key_of(r, by_id) == key; });
    if (theirs == b.cases.end()) {
      comparison.missing.push_back(ours.name);
      continue;
    }
    met.insert(key);
    comparison.cases.push_back(compare_case(ours, *theirs, notes));
  }
  for (const Result& theirs : b.cases) {
    if (!met.contains(key_of(theirs, by_id))) comparison.added.push_back(theirs.name);
  }
  KUAFU_REQUIRE(!comparison.cases.empty(), a.origin, " and ", b.origin, " have no case in common");
  comparison.notes.assign(notes.begin(), notes.end());
  return comparison;
}

std::string comparison_text(const Results& a, const Results& b, const Comparison& comparison) {
  Table table({{"case"},
               {"exact"},
               {"A step ms [95 %]", Table::Align::kRight},
               {"B step ms [95 %]", Table::Align::kRight},
               {"B / A", Table::Align::kRight},
               {"time"}});
  std::string differences;
  for (const CaseComparison& c : comparison.cases) {
    table.add({c.name, c.differences.empty() ? "equal" : "DIFFERENT", c.step_a, c.step_b, c.ratio,
               describe(c.timing)});
    for (const auto& difference : c.differences)
      differences += "  " + c.name + ": " + difference + "\n";
  }
  std::string out = text("A = ", a.origin, ", ", a.cases.size(), " cases\nB = ", b.origin, ", ",
                         b.cases.size(), " cases\n\n", table.str());
  if (!differences.empty()) out += "\nExact metrics that differ (A, then B):\n" + differences;
  for (const auto& name : comparison.missing) out += "missing in B: " + name + "\n";
  for (const auto& name : comparison.added) out += "only in B: " + name + "\n";
  for (const auto& note : comparison.notes) out += "note: " + note + "\n";
  const int64_t regressions = comparison.num_regressions();
  return out + (regressions == 0 ? "\nno regression\n" : text("\n", regressions, " regressions\n"));
}

}  // namespace kuafu
