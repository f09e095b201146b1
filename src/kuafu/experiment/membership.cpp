// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/membership.h"

#include <algorithm>
#include <map>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/outcome.h"
#include "kuafu/experiment/references.h"
#include "kuafu/experiment/suite_text.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

constexpr size_t kMostKeys = 3;  ///< of a plan, told as different

/// {hash: bytes} of what its cases read.
Json corpora_json(const Suite& suite) {
  Json corpora = Json::object();
  for (const auto& [hash, bytes] : suite.corpora) corpora[hash] = bytes;
  return corpora;
}

std::string counted(size_t n, const char* what) { return text(n, " ", what, n == 1 ? "" : "s"); }

/// Keys that two plans differ in. A record holds what "auto" became: whether that is another is not
/// known.
struct Differences {
  std::vector<std::string> keys, autos;
};

void collect_differences(const ConfigValue& now, const Json& before, const std::string& prefix,
                         Differences& out) {
  for (const auto& [name, value] : now.entries) {
    const std::string key = prefix + name;
    const Json theirs = before.is_object() && before.contains(name) ? before[name] : Json(nullptr);
    if (value.kind == ConfigValue::Kind::kTable) {
      collect_differences(value, theirs, key + ".", out);
      continue;
    }
    const std::optional<Json> ours = json_value(value);
    if (plan::is_place(key) || !ours || *ours == theirs || theirs.is_null()) continue;
    (*ours == "auto" ? out.autos : out.keys)
        .push_back(text(key, " ", theirs.dump(), ", now ", ours->dump()));
  }
}

/// What a case and a line differ in: "model.hidden 64, now 32".
Differences differences_of(const Case& c, const Json& line) {
  Differences found;
  for (const auto& [key, now] : {std::pair{"world", Json(c.world)}, {"ranks", Json(c.ranks)}}) {
    const Json before = value_at(line, text("document.", key));
    if (before.is_null() || before == now) continue;
    found.keys.push_back(text(key, " ", before.dump(), ", now ", now.dump()));
  }
  collect_differences(parse_toml(c.plan_values, c.name), value_at(line, "document.plan"), "",
                      found);
  const Json schedule = value_at(line, "document.plan.parallel.pipeline.schedule");
  if (found.keys.empty() && schedule.is_string() &&
      pipeline::is_schedule_file(schedule.get<std::string>())) {
    found.keys.push_back("the rows of " + schedule.get<std::string>());
  }
  return found;
}

std::string case_differences(const Case& c, const Json& line) {
  Differences found = differences_of(c, line);
  std::vector<std::string>& keys = found.keys.empty() ? found.autos : found.keys;
  if (keys.size() > kMostKeys) {
    keys.resize(kMostKeys);
    keys.emplace_back("...");
  }
  return join(keys);
}

/// Cases that have the name of a recorded one and are another: how many, and the first.
std::string renewed_names(const std::vector<Json>& lines, const Suite& suite) {
  std::map<std::string, const Json*> by_name;
  for (const Json& line : lines) by_name[line["name"].get<std::string>()] = &line;
  size_t number = 0;
  std::string first;
  for (const Case& c : suite.cases) {
    const auto found = by_name.find(c.name);
    if (found == by_name.end() || (*found->second)["case_id"] == c.id) continue;
    if (number++ > 0) continue;
    const std::string differences = case_differences(c, *found->second);
    first = in_quotes(c.name) + (differences.empty() ? "" : " (" + differences + ")");
  }
  if (number == 0) return "";
  return text(counted(number, "case"), number == 1 ? " has" : " have",
              " a recorded name and another plan or data: ", first, number > 1 ? ", ..." : "");
}

/// Results that a user would miss, where the suite has none of them.
bool holds_other_results(const RunRecord& record, const std::set<std::string>& ids) {
  bool has_results = false;
  size_t refused = 0;
  for (const std::vector<Json>* lines : {&record.cases, &record.former}) {
    for (const Json& line : *lines) {
      if (ids.contains(line["case_id"].get<std::string>())) {
        if (line["status"] != "refused") return false;
        ++refused;  // it reads no data, and so is the same with other ones
        continue;
      }
      has_results = has_results || (line["status"] != "failed" && line["status"] != "timeout");
    }
  }
  return has_results && refused < ids.size();
}

/// What the first case and the first recorded one differ in, where no two have a name in common.
std::string first_differences(const std::vector<Json>& lines, const Suite& suite) {
  if (lines.empty() || suite.cases.empty()) return "";
  if (lines.front()["case_id"] == suite.cases.front().id) return "";
  const std::string found = case_differences(suite.cases.front(), lines.front());
  return found.empty() ? ""
                       : text("; its first case is ", lines.front()["name"].dump(), ", here ",
                              in_quotes(suite.cases.front().name), ": ", found);
}

/// Whether a recorded case is one of the suite but for the bytes of its corpus: not the suite was
/// changed. Others may be there that read none.
bool has_other_bytes(const std::vector<Json>& lines, const Suite& suite) {
  std::map<std::string, const Json*> by_name;
  for (const Json& line : lines) by_name[line["name"].get<std::string>()] = &line;
  return std::any_of(suite.cases.begin(), suite.cases.end(), [&](const Case& c) {
    const auto found = by_name.find(c.name);
    if (found == by_name.end() || (*found->second)["case_id"] == c.id) return false;
    const std::vector<std::string> keys = differences_of(c, *found->second).keys;
    return keys.size() == 1 && keys[0].starts_with("data.hash ");
  });
}

void require_compatible(const RunRecord& record, const Suite& suite, const std::string& folder,
                        const std::set<std::string>& ids) {
  const Json& header = record.header;
  const auto name = header["name"].get<std::string>();
  const bool has_none = holds_other_results(record, ids);
  if (name == suite.name && !has_none && !has_other_bytes(record.cases, suite)) return;
  const Json before = value_at(header, "corpora"), corpora = corpora_json(suite);
  const bool is_other_data = !before.is_null() && before != corpora;
  const std::string renewed = renewed_names(record.cases, suite);
  const std::string of_first = renewed.empty() ? first_differences(record.cases, suite) : "";
  throw ConfigError(text(
      folder, " holds the results of another suite: ", in_quotes(name), ", hash ",
      header["suite_hash"].get<std::string>(), "; this one is ", in_quotes(suite.name), ", hash ",
      suite.hash, name == suite.name && has_none ? ", and none of its cases is there" : "",
      renewed.empty() ? of_first : "; " + renewed,
      is_other_data ? text("; its cases read corpora (bytes by hash) ", before.dump(),
                           ", now they would read ", corpora.dump())
                    : "",
      ". Choose another folder with --out, or the suite, --set and corpora as they were"));
}

}  // namespace

Json suite_header(const Suite& suite) {
  Json header = {{"kind", "suite"},
                 {"format", kRecordFormat},
                 {"name", suite.name},
                 {"question", suite.question},
                 {"suite_hash", suite.hash},
                 {"cases", suite.cases.size()},
                 {"corpora", corpora_json(suite)},
                 {"provenance", provenance()}};
  renew_references(header, suite);
  renew_derived(header, suite.derived);
  return header;
}

Membership taken_up(const RunRecord& record, const Suite& suite, const std::string& folder) {
  std::set<std::string> ids;
  std::map<std::string, const Case*> cases;
  for (const Case& c : suite.cases) {
    ids.insert(c.id);
    cases[c.id] = &c;
  }
  require_compatible(record, suite, folder, ids);
  Membership next{record, {}, record.header["suite_hash"] != suite.hash};
  const bool was_known = has_references(record.header);
  const bool has_others = renew_references(next.record.header, suite);
  const bool is_told_anew = renew_derived(next.record.header, suite.derived);
  bool is_renamed = false;  // by a suite of the same hash, of which names are no part
  for (Json& line : next.record.cases) {
    const auto found = cases.find(line["case_id"].get<std::string>());
    if (found == cases.end()) continue;
    const Json before = line;
    name_line(line, *found->second);
    is_renamed = is_renamed || line != before;
  }
  if (!next.is_changed) {
    next.is_changed = has_others || is_told_anew || is_renamed;
    if (is_renamed) next.notes.emplace_back("recorded cases have other names or settings now");
    if (is_told_anew || (has_others && was_known)) {
      next.notes.emplace_back(
          "the suite's references, columns, claims or figures have changed: no case runs again for "
          "them");
    }
    return next;
  }
  size_t left = 0, back = 0;
  next.record.cases.clear();
  next.record.former.clear();
  for (const std::vector<Json>* lines : {&record.cases, &record.former}) {
    for (Json line : *lines) {
      const bool was_former = line["kind"] == "former";
      const bool is_member = ids.contains(line["case_id"].get<std::string>());
      left += !is_member && !was_former ? 1 : 0;
      back += is_member && was_former ? 1 : 0;
      line["kind"] = is_member ? "case" : "former";
      if (is_member) name_line(line, *cases[line["case_id"].get<std::string>()]);
      (is_member ? next.record.cases : next.record.former).push_back(std::move(line));
    }
  }
  const Json now = suite_header(suite);
  for (const char* field : {"question", "suite_hash", "cases", "corpora"}) {
    next.record.header[field] = now[field];
  }
  const size_t kept = next.record.cases.size();
  next.notes.push_back(text("the suite has changed since: ", counted(kept, "recorded case"),
                            kept == 1 ? " is" : " are", " in it",
                            back > 0 ? text(", ", back, " of them again") : "", ", ",
                            counted(suite.cases.size() - kept, "case"), " not recorded yet, ",
                            counted(left, "recorded case"), " no longer in it"));
  const std::string renewed = renewed_names(record.cases, suite);
  if (!renewed.empty()) next.notes.push_back(renewed);
  return next;
}

}  // namespace kuafu
