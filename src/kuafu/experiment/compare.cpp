// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/compare.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/meeting.h"
#include "kuafu/experiment/rounds.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/load.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

const std::vector<std::string> kExact = {"status", "plan_hash",      "world",
                                         "ranks",  "memory",         "flops_recomputed",
                                         "ledger", "flops_per_step", "certificate.verdict"};
/// What says how much a verdict proves; older records lack some of it.
const std::vector<std::string> kProofs = {"certificate.level", "certificate.reference",
                                          "certificate.native.steps"};
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

std::string why_not_timed(const Json& a, const Json& b) {
  if (is_estimated(a) && is_estimated(b)) return "";  // prices: of any tree and machine the same
  for (const char* side : {"A", "B"}) {
    const Json dirty = value_at(*side == 'A' ? a : b, "provenance.git_dirty");
    if (dirty == true) return text(side, " was made from a dirty tree");
  }
  if (!is_same(a, b, "provenance.host") || !is_same(a, b, "provenance.cpu_model")) {
    return "A and B were made on different hosts";
  }
  const std::string before = kernels_of(value_at(a, "provenance"));
  const std::string after = kernels_of(value_at(b, "provenance"));
  if (before != after) return text("A ran kernels ", in_quotes(before), ", B ", in_quotes(after));
  if (!is_same(a, b, "device")) return "A and B computed on different devices";
  return "";
}

/// Over how many rounds the step time is; 1 in older records.
int64_t num_rounds(const Json& document) {
  const Json rounds = value_at(document, "step_time_s.rounds");
  return rounds.is_number_integer() ? rounds.get<int64_t>() : 1;
}

void judge_certificates(const Json& a, const Json& b, CaseComparison& c) {
  const std::string before = verdict_words(a), after = verdict_words(b);
  c.verdicts = before == after ? before : before + " -> " + after;
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

bool is_loaded(const Json& document) {
  const Json share = value_at(document, "load.foreign_share");
  return share.is_number() && share > kForeignShare;
}

std::string marked_step_time(const Json& document) {
  const std::string shown = shown_step_time(document);
  return shown == "-" || !is_loaded(document) ? shown : shown + " *";
}

/// What was refused or simulated has read no data and has no losses.
bool have_both_trained(const Json& a, const Json& b) {
  return value_at(a, "loss").is_array() && value_at(b, "loss").is_array();
}

CaseComparison compare_case(const Result& a, const Result& b, std::set<std::string>& notes) {
  CaseComparison c;
  c.name = a.name;
  const Json &da = a.document, &db = b.document;
  for (const auto& path : kExact)
    collect(path, value_at(da, path), value_at(db, path), c.differences);
  for (const auto& path : kProofs) {
    const Json before = value_at(da, path), after = value_at(db, path);
    if (!before.is_null() && !after.is_null()) collect(path, before, after, c.differences);
  }
  // One hash is one plan, whatever keys later versions have added to the list.
  if (!is_same(da, db, "plan_hash")) {
    collect("plan", value_at(da, "plan"), value_at(db, "plan"), c.differences);
  }
  judge_certificates(da, db, c);
  for (const auto& [name, hash] : a.plugins.items()) {
    const Json other = b.plugins.is_object() ? b.plugins.value(name, hash) : hash;
    if (other == hash) continue;
    notes.insert(text("A and B ran with two builds of the plug-in ", name, " (", hash.dump(),
                      " and ", other.dump(), "): what differs may be its code"));
  }
  const bool knows_data = data_hash(da).empty() == data_hash(db).empty();
  if (reads_other_data(da, db)) {
    collect("data.hash", data_hash(da), data_hash(db), c.differences);
    notes.insert(other_data(da, db));
  } else if (!knows_data && have_both_trained(da, db)) {
    notes.insert(text(data_hash(da).empty() ? "A" : "B", " does not say which data it read: it is ",
                      "older than their hashes; cases meet by plan, world and ranks"));
  }
  if (has_same_arithmetic(da, db)) {
    for (const auto& path : kLosses)
      collect(path, value_at(da, path), value_at(db, path), c.differences);
  } else if (have_both_trained(da, db)) {
    notes.insert(
        "losses not compared: they are equal to the bit only on the same world, processor "
        "model and LibTorch");
  }
  c.step_a = marked_step_time(da);
  c.step_b = marked_step_time(db);
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
  if (is_loaded(da) || is_loaded(db)) {
    notes.insert(text("*: timed under foreign load: others had more than ",
                      human_number(100 * kForeignShare, 3), " % of the cores"));
  }
  c.times = step_ratio(da, db);
  std::tie(c.rounds, c.most_rounds) = std::minmax({num_rounds(da), num_rounds(db)});
  return c;
}

/// What the errors of all ratios hold.
Errors errors_of(const std::vector<CaseComparison>& cases) {
  bool has_rounds = true, has_one_process = true;
  for (const CaseComparison& c : cases) {
    if (!c.times) continue;
    has_rounds = has_rounds && c.rounds > 1;
    has_one_process = has_one_process && c.most_rounds == 1;
  }
  return has_one_process ? Errors::kOfOneProcess : has_rounds ? Errors::kOfRounds : Errors::kMixed;
}

/// Gives every case that has times its verdict.
void judge_all(Comparison& comparison, const CompareOptions& options,
               std::set<std::string>& notes) {
  if (options.times == CompareOptions::Times::kLeftOut) {
    notes.insert("step times not compared: --exact was given");
    return;
  }
  std::vector<StepRatio> ratios;
  for (const CaseComparison& c : comparison.cases) {
    if (c.times) ratios.push_back(*c.times);
  }
  const Errors errors = errors_of(comparison.cases);
  const std::vector<Timing> verdicts = judge_times(ratios, options.smallest_effect, errors);
  auto verdict = verdicts.begin();
  for (CaseComparison& c : comparison.cases) {
    if (c.times) c.timing = *verdict++;
  }
  if (ratios.empty()) return;
  const auto percent = [](double share) { return human_number(100 * share, 3) + " %"; };
  std::string note = text("step times: less than ", percent(options.smallest_effect),
                          " is the same; intervals are of 95 % for all cases at once");
  const std::string scatter = percent(std::expm1(process_scatter(ratios, errors)));
  const bool is_known = ratios.size() >= kFewestRatios;
  if (errors == Errors::kOfRounds) {
    note += " and hold what the rounds of a case differ by";
    if (is_known) note += text("; beyond that the two runs differ by ", scatter);
  } else if (is_known) {
    note += text(" and hold that processes differ: by ", scatter, ", from all ratios",
                 errors == Errors::kMixed ? ", as some cases have one round on a side" : "");
  } else {
    note += text("; how much a process differs from the next is not in them, so no case is called ",
                 "slower or faster: it is known from ", kFewestRatios,
                 " cases on, or from rounds (--repeats 3)");
  }
  notes.insert(note);
  const auto is_known_error = [](const StepRatio& r) { return std::isfinite(r.error); };
  if (!std::all_of(ratios.begin(), ratios.end(), is_known_error)) {
    notes.insert(
        "[-]: fewer than six steps after the warm-up give no interval of 95 %, so such a case is "
        "inconclusive (more steps, or --repeats 3)");
  }
}

}  // namespace

int64_t Comparison::num_regressions() const {
  const auto is_worse = [](const CaseComparison& c) {
    return !c.differences.empty() || !c.refuted.empty() || c.timing == Timing::kSlower;
  };
  return std::count_if(cases.begin(), cases.end(), is_worse) +
         static_cast<int64_t>(missing.size() + refuted.size());
}

Comparison compare(const Results& a, const Results& b, const CompareOptions& options) {
  Comparison comparison;
  std::set<std::string> notes;
  const auto has_id = [](const Results& r) { return !r.cases.front().case_id.empty(); };
  if (!has_id(a) && !has_id(b)) {  // two lone documents are compared whatever they are
    comparison.cases.push_back(compare_case(a.cases.front(), b.cases.front(), notes));
    judge_all(comparison, options, notes);
    comparison.notes.assign(notes.begin(), notes.end());
    return comparison;
  }
  const Meeting meeting(a, b, options.by);
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
  judge_all(comparison, options, notes);
  comparison.notes.assign(notes.begin(), notes.end());
  return comparison;
}

}  // namespace kuafu
