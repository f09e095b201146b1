// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/references.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/filter.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

using Relation = Reference::Relation;

/// Whether two values agree within the relative tolerance; texts and exact numbers to the letter.
bool is_close(const Json& a, const Json& b, double tolerance) {
  if (!a.is_number() || !b.is_number() || tolerance == 0) return a == b;
  const double x = a.get<double>(), y = b.get<double>();
  return std::abs(x - y) <= tolerance * std::abs(y);
}

std::string describe(const Reference& r) {
  const std::string relation = r.relation == Relation::kEquals ? " equals " : " below ";
  std::string what = r.metric + relation + (r.other.empty() ? plain_text(r.value) : r.other);
  if (r.tolerance > 0) what += text(" within ", human_number(100 * r.tolerance, 3), " %");
  if (!r.where.empty()) {
    std::string where;
    for (const auto& [key, value] : r.where) {
      where += (where.empty() ? "" : ", ") + key + " = " + plain_text(value);
    }
    what += " where " + where;
  }
  return r.source.empty() ? what : what + " (" + r.source + ")";
}

/// As a reader sees it: "different" where the certificate refutes the case.
std::string status_of(const Json& document) {
  return status_words(document["status"].get<std::string>(), document);
}

/// Every case that ended well, and of certificates what they refute too.
bool is_about(const Reference& r, const std::string& id, const Json& document) {
  const bool is_of_certificate = r.metric.starts_with("certificate.");
  const std::string status =
      is_of_certificate ? document["status"].get<std::string>() : status_of(document);
  if (r.metric != "status" && status != "ok") return false;
  return r.where.empty() || std::find(r.cases.begin(), r.cases.end(), id) != r.cases.end();
}

/// What is below it is below `value` within a relative tolerance.
double above(double value, double tolerance) { return value + tolerance * std::abs(value); }

/// Empty, or how the case breaks the reference.
std::string broken_by(const Reference& r, const Json& document) {
  const Json found =
      r.metric == "status" ? Json(status_of(document)) : value_at(document, r.metric);
  const Json wanted = r.other.empty() ? r.value : value_at(document, r.other);
  const bool holds = r.relation == Relation::kEquals
                         ? !found.is_null() && is_close(found, wanted, r.tolerance)
                         : found.is_number() && wanted.is_number() &&
                               found.get<double>() < above(wanted.get<double>(), r.tolerance);
  if (holds) return "";
  return text(r.metric, " is ", found.dump(), ", expected ",
              r.relation == Relation::kEquals ? "" : "below ", wanted.dump());
}

/// As in the suite's file, and the cases that `where` means: a plan that cannot be placed is not in
/// its document.
Json to_json(const Reference& r) {
  Json out = {{"metric", r.metric}};
  const Json wanted = r.other.empty() ? r.value : Json(r.other);
  if (r.relation == Relation::kBelow)
    out["below"] = wanted;  // a number, or a metric
  else
    out[r.other.empty() ? "value" : "equals"] = wanted;
  if (r.tolerance > 0) out["tolerance"] = r.tolerance;
  if (!r.source.empty()) out["source"] = r.source;
  if (r.where.empty()) return out;
  for (const auto& [key, value] : r.where) out["where"][key] = value;
  out["cases"] = r.cases;
  return out;
}

Reference reference_of(const Json& json) {
  Reference r;
  r.metric = json.at("metric").get<std::string>();
  const bool is_below = json.contains("below");
  r.relation = is_below ? Relation::kBelow : Relation::kEquals;
  const Json wanted = is_below ? json["below"] : json.value("equals", Json());
  if (wanted.is_string())
    r.other = wanted.get<std::string>();
  else
    r.value = is_below ? wanted : json.at("value");
  r.tolerance = json.value("tolerance", 0.0);
  r.source = json.value("source", "");
  const Json where = json.value("where", Json::object());
  for (const auto& [key, value] : where.items()) r.where.emplace_back(key, value);
  if (!r.where.empty()) r.cases = json.at("cases").get<std::vector<std::string>>();
  return r;
}

/// What is wrong with a key of `where` that no case has.
std::string problem_of_key(const std::string& key, const std::vector<Case>& cases) {
  if (path_problem(key).empty()) {
    return text(in_quotes(key),
                " is known only when a case has ended; here stand settings, plan keys, "
                "name and case_id. A metric other than `status` is about cases of status ok, and "
                "[[claim]] picks by any field");
  }
  std::vector<std::string> known = {"name", "case_id"};
  for (const std::string& name : setting_names(cases)) {
    if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
  }
  const std::string settings = join(known);
  for (const KeyDoc& doc : plan_keys()) known.push_back(doc.key);
  return text("no case has a key ", in_quotes(key), did_you_mean(key, known), " Known are ",
              settings, " and plan keys");
}

/// Empty, or why no case has this setting of `where`.
std::string problem_of(const std::string& key, const Json& value, const std::vector<Case>& cases) {
  const std::vector<std::string> names = setting_names(cases);
  if (const std::string why = why_ambiguous(key, names); !why.empty()) return why;
  std::vector<std::string> there;
  for (const Case& c : cases) {
    const auto own = case_value(c, named_in_full(key, names));
    if (!own) continue;
    if (*own == plain_text(value)) return "";
    if (std::find(there.begin(), there.end(), *own) == there.end()) there.push_back(*own);
  }
  if (there.empty()) return problem_of_key(key, cases);
  return text("no case has ", key, " = ", in_quotes(plain_text(value)),
              did_you_mean(plain_text(value), there), " ", key, " is ", join_or(in_quotes(there)));
}

}  // namespace

void find_cases(Reference& reference, const std::vector<Case>& cases, const std::string& origin) {
  if (reference.where.empty()) return;
  const std::string place = text(origin, ":", reference.where_line, ": [[reference]]: where: ");
  for (const auto& [key, value] : reference.where) {
    const std::string problem = problem_of(key, value, cases);
    KUAFU_REQUIRE(problem.empty(), place, problem);
  }
  const std::vector<std::string> names = setting_names(cases);
  for (const Case& c : cases) {
    const bool is_about =
        std::all_of(reference.where.begin(), reference.where.end(), [&](const auto& setting) {
          const auto value = case_value(c, named_in_full(setting.first, names));
          return value && *value == plain_text(setting.second);
        });
    if (is_about) reference.cases.push_back(c.id);
  }
  KUAFU_REQUIRE(!reference.cases.empty(), place, "no case has all of these values at once");
}

std::vector<ReferenceResult> check_references(const std::vector<Reference>& references,
                                              const std::vector<std::string>& order,
                                              const RunRecord& record) {
  std::map<std::string, const Json*> lines;
  for (const Json& line : record.cases) lines[line["case_id"].get<std::string>()] = &line;
  std::vector<ReferenceResult> results;
  for (const Reference& reference : references) results.push_back({describe(reference), 0, {}});
  for (const std::string& id : order) {
    const auto line = lines.find(id);
    if (line == lines.end()) continue;
    const Json document = timed_document(*line->second);
    for (size_t i = 0; i < references.size(); ++i) {
      if (!is_about(references[i], id, document)) continue;
      ++results[i].checked;
      const std::string broken = broken_by(references[i], document);
      if (broken.empty()) continue;
      results[i].broken.push_back((*line->second)["name"].get<std::string>() + ": " + broken);
    }
  }
  return results;
}

std::string reference_text(const std::vector<ReferenceResult>& results) {
  std::string out;
  for (const ReferenceResult& result : results) {
    const char* verdict = !result.broken.empty() ? "BROKEN "
                          : result.checked > 0   ? "holds  "
                                                 : "no case";
    out += text("  ", verdict, "  ", result.what, ": ",
                result.checked - static_cast<int64_t>(result.broken.size()), " of ", result.checked,
                result.checked == 1 ? " case\n" : " cases\n");
    for (const auto& sentence : result.broken) out += "           " + sentence + "\n";
  }
  return out;
}

std::vector<std::string> order_of(const Suite& suite) {
  std::vector<std::string> order;
  for (const Case& c : suite.cases) order.push_back(c.id);
  return order;
}

bool renew_references(Json& header, const Suite& suite) {
  Json references = Json::array();
  for (const Reference& r : suite.references) references.push_back(to_json(r));
  Json now = header;
  now["order"] = order_of(suite);
  now["references"] = std::move(references);
  const bool is_changed = now != header;
  header = std::move(now);
  return is_changed;
}

bool has_references(const Json& header) {
  return value_at(header, "order").is_array() && value_at(header, "references").is_array();
}

std::vector<std::string> order_in(const Json& header) {
  return header["order"].get<std::vector<std::string>>();
}

std::vector<Reference> references_in(const Json& header, const std::string& origin) {
  std::vector<Reference> out;
  try {
    for (const Json& r : header["references"]) out.push_back(reference_of(r));
  } catch (const Json::exception& error) {
    throw ConfigError(text(origin, ": its references: ", words_of(error),
                           "; give --suite SUITE.toml, whose own are taken"));
  }
  return out;
}

}  // namespace kuafu
