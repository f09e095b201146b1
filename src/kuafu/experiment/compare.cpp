// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/compare.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/experiment/meeting.h"
#include "kuafu/experiment/verdict.h"
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

std::string shown(const std::string& verdict) {
  return verdict.empty() ? "-" : verdict == "not_run" ? "not run" : verdict;
}

void judge_certificates(const Json& a, const Json& b, CaseComparison& c) {
  const std::string before = verdict_of(a), after = verdict_of(b);
  c.verdicts = before == after ? shown(before) : shown(before) + " -> " + shown(after);
  for (const auto& [side, document] : {std::pair{"A", &a}, std::pair{"B", &b}}) {
    const std::string why = why_of_verdict(*document);
    const std::string sentence = text("in ", side, why.empty() ? "" : ": ", why);
    if (is_different(*document)) {
      c.refuted.push_back(sentence);
    } else if (verdict_of(*document) == "not_run" && !why.empty()) {
      c.not_run.push_back(sentence);
    }
  }
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
  judge_certificates(da, db, c);
  const bool knows_data = data_hash(da).empty() == data_hash(db).empty();
  if (reads_other_data(da, db)) {
    collect("data.hash", data_hash(da), data_hash(db), c.differences);
    notes.insert(other_data(da, db));
  } else if (!knows_data) {
    notes.insert(text(data_hash(da).empty() ? "A" : "B", " does not say which data it read: it is ",
                      "older than their hashes; cases meet by plan, world and ranks"));
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

namespace {

/// "3 regressions: 1 case differs, 2 are missing in B".
std::string words_of_regressions(const Comparison& comparison) {
  int64_t differing = 0, slower = 0, refuted = static_cast<int64_t>(comparison.refuted.size());
  for (const CaseComparison& c : comparison.cases) {
    if (!c.differences.empty()) ++differing;
    if (c.timing == CaseComparison::Timing::kSlower) ++slower;
    if (!c.refuted.empty()) ++refuted;
  }
  std::string parts;
  const auto add = [&](int64_t n, const char* what) {
    if (n > 0) parts += text(parts.empty() ? "" : ", ", n, " ", what);
  };
  add(differing, "with other exact metrics");
  add(slower, "slower");
  add(refuted, "refuted by a certificate");
  add(static_cast<int64_t>(comparison.missing.size()), "missing in B");
  const int64_t all = comparison.num_regressions();
  return text(all, all == 1 ? " regression: " : " regressions: ", parts);
}

}  // namespace

int64_t Comparison::num_regressions() const {
  const auto is_worse = [](const CaseComparison& c) {
    return !c.differences.empty() || !c.refuted.empty() || c.timing == Timing::kSlower;
  };
  return std::count_if(cases.begin(), cases.end(), is_worse) +
         static_cast<int64_t>(missing.size() + refuted.size());
}

Comparison compare(const Results& a, const Results& b) {
  Comparison comparison;
  std::set<std::string> notes;
  const auto has_id = [](const Results& r) { return !r.cases.front().case_id.empty(); };
  if (!has_id(a) && !has_id(b)) {  // two lone documents are compared whatever they are
    comparison.cases.push_back(compare_case(a.cases.front(), b.cases.front(), notes));
    comparison.notes.assign(notes.begin(), notes.end());
    return comparison;
  }
  const Meeting meeting(a, b);
  std::string why;
  for (size_t i = 0; i < a.cases.size(); ++i) {
    if (const Result* theirs = meeting.partner_of(i)) {
      comparison.cases.push_back(compare_case(a.cases[i], *theirs, notes));
      continue;
    }
    const std::string reason = meeting.why_missing(a.cases[i]);
    if (why.empty()) why = reason;
    comparison.missing.push_back(a.cases[i].name + (reason.empty() ? "" : ": " + reason));
  }
  for (size_t i = 0; i < b.cases.size(); ++i) {
    const Result& theirs = b.cases[i];
    if (meeting.is_met(i)) continue;
    comparison.added.push_back(theirs.name);
    if (!is_different(theirs.document)) continue;
    comparison.refuted.push_back(text(theirs.name, ": ", why_of_verdict(theirs.document)));
  }
  KUAFU_REQUIRE(!comparison.cases.empty(), a.origin, " and ", b.origin, " have no case in common",
                why.empty() ? "" : ": ", why);
  comparison.notes.assign(notes.begin(), notes.end());
  return comparison;
}

std::string comparison_text(const Results& a, const Results& b, const Comparison& comparison) {
  Table table({{"case"},
               {"exact"},
               {"certificate"},
               {"A step ms [95 %]", Table::Align::kRight},
               {"B step ms [95 %]", Table::Align::kRight},
               {"B / A", Table::Align::kRight},
               {"time"}});
  std::string differences, refuted, not_run;
  for (const CaseComparison& c : comparison.cases) {
    table.add({c.name, c.differences.empty() ? "equal" : "DIFFERENT", c.verdicts, c.step_a,
               c.step_b, c.ratio, describe(c.timing)});
    for (const auto& side : c.refuted) refuted += "  " + c.name + ", " + side + "\n";
    for (const auto& side : c.not_run) not_run += "  " + c.name + ", " + side + "\n";
    for (const auto& difference : c.differences)
      differences += "  " + c.name + ": " + difference + "\n";
  }
  std::string out = text("A = ", a.origin, ", ", a.cases.size(), " cases\nB = ", b.origin, ", ",
                         b.cases.size(), " cases\n\n", table.str());
  if (!differences.empty()) out += "\nExact metrics that differ (A, then B):\n" + differences;
  for (const auto& only : comparison.refuted) refuted += "  only in B: " + only + "\n";
  if (!refuted.empty()) out += "\nCertificates that say `different`:\n" + refuted;
  if (!not_run.empty()) out += "\nCertificates not run:\n" + not_run;
  for (const auto& name : comparison.missing) out += "missing in B: " + name + "\n";
  for (const auto& name : comparison.added) out += "only in B: " + name + "\n";
  for (const auto& note : comparison.notes) out += "note: " + note + "\n";
  const bool is_good = comparison.num_regressions() == 0;
  return text(out, "\n", is_good ? "no regression" : words_of_regressions(comparison), "\n");
}

}  // namespace kuafu
