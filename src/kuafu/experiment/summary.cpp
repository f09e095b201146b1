// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/summary.h"

#include <algorithm>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/rounds.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/load.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

using Align = Table::Align;

constexpr double kMiB = 1024.0 * 1024.0;

std::string number(const Json& value, int digits, double scale = 1) {
  if (value.is_number_integer() && scale == 1) return value.dump();
  return value.is_number() ? human_number(value.get<double>() * scale, digits) : "-";
}

/// Bytes sent over all axes by the rank that sends most; none where the document has no ledger.
Json most_bytes_sent(const Json& document) {
  const Json ledger = value_at(document, "ledger");
  if (!ledger.is_object()) return nullptr;
  std::vector<int64_t> sums;
  for (const auto& [axis, row] : ledger.items()) {
    const auto sent = row["bytes_sent"].get<std::vector<int64_t>>();
    sums.resize(std::max(sums.size(), sent.size()));
    for (size_t r = 0; r < sent.size(); ++r) sums[r] += sent[r];
  }
  return sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end());
}

/// As people read it: "not run".
std::string shown(const std::string& verdict) { return verdict == "not_run" ? "not run" : verdict; }

/// The first line of a reason; where that ends before what a worker printed last, with the line in which
/// it says how it ended.
std::string shortened(const std::string& reason) {
  const std::string first = reason.substr(0, reason.find('\n'));
  if (!first.ends_with(':')) return first;
  const size_t told = reason.rfind("\nkuafu: ");
  const size_t begin = told == std::string::npos ? reason.rfind('\n') : told;
  const size_t end = reason.find('\n', begin + 1);
  return text(first, " ",
              reason.substr(begin + 1, end == std::string::npos ? end : end - begin - 1));
}

/// `reason` without the path of the plan that the suite wrote for a case ("x/cases/ID/plan.toml:18: "):
/// it says nothing, and is another for each case.
std::string without_plan_path(const std::string& reason) {
  const std::string name = "/plan.toml:";
  const size_t at = reason.find(name);
  if (at == std::string::npos) return reason;
  const bool is_first = reason.find(':') > at;  // a folder's name may have blanks
  const size_t begin = is_first ? 0 : reason.rfind(' ', at) + 1;
  const size_t end = reason.find(": ", at + name.size() - 1);
  const bool is_of_case = reason.substr(begin, at - begin).find("cases/") != std::string::npos;
  if (!is_of_case || end == std::string::npos) return reason;
  return reason.substr(0, begin) + reason.substr(end + 2);
}

/// Reasons in the order in which they come, each once, with the cases that have it.
class Reasons {
 public:
  void add(const std::string& name, const std::string& why) {
    const auto known =
        std::find_if(rows_.begin(), rows_.end(), [&](const auto& row) { return row.first == why; });
    if (known == rows_.end()) {
      rows_.push_back({why, {name}});
    } else {
      known->second.push_back(name);
    }
  }

  std::string str() const {
    std::string out;
    for (const auto& [why, names] : rows_) {
      const size_t more = names.size() - 1;
      out += text("  ", names[0], more > 0 ? text(" and ", more, " more") : "", ": ", why, "\n");
    }
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> rows_;
};

/// Why a case is not simply good.
void add_reasons(const Json& line, Reasons& reasons) {
  const Json& document = line["document"];
  const auto tell = [&](const std::string& why) {
    reasons.add(line["name"].get<std::string>(), shortened(without_plan_path(why)));
  };
  const Json reason = value_at(line, "reason");
  if (reason.is_string()) tell(reason.get<std::string>());
  const std::string why = why_of_verdict(document);
  if (is_different(document) || !why.empty()) {
    tell(text("certificate ", shown(verdict_of(document)), why.empty() ? "" : ": ", why));
  }
  const Json unseen = value_at(document, "certificate.native.unseen");
  if (verdict_of(document) == "equal" && unseen.is_string())
    tell("certificate equal, blind to " + unseen.get<std::string>());
  for (const std::string& finding : findings_of_rounds(line).sentences) tell(finding);
}

std::string percent(double share) { return human_number(100 * share, 2) + " %"; }

std::string throughput(const Json& document) {
  const Json rate = value_at(document, "tokens_per_s");
  const bool is_marked = rate.is_number() && is_estimated(document);
  return text(is_marked ? kEstimatedMark : "", number(rate, 4));
}

std::string words_of_estimates(const std::vector<Json>& lines) {
  const bool has_one = std::any_of(lines.begin(), lines.end(), [](const Json& line) {
    return line["status"] == "ok" && is_estimated(line["document"]);
  });
  if (!has_one) return "";
  return text("\n", kEstimatedMark,
              " estimated by the cost model: cases of the simulated world are not timed\n");
}

constexpr const char* kFewSteps =
    "[-]: fewer than six steps after the warm-up give no interval of 95 % (more steps, or "
    "--repeats "
    "3)\n";

/// Over how many rounds the step times are, and so what their intervals hold.
std::string words_of_rounds(const std::vector<Json>& lines) {
  bool has_two = false, has_few_steps = false;
  int64_t fewest = 0, most = 0;
  for (const Json& line : lines) {
    const Json rounds = value_at(line, "timing.rounds");
    if (!rounds.is_number_integer()) continue;
    has_few_steps = has_few_steps || value_at(line, "timing.step_time_s.ci95").is_null();
    const auto n = rounds.get<int64_t>();
    has_two = has_two || n == 2;
    fewest = fewest == 0 ? n : std::min(fewest, n);
    most = std::max(most, n);
  }
  if (most == 0) return "";
  const std::string few = has_few_steps ? kFewSteps : "";
  if (most == 1) {
    return "\nstep times are of one process a case: how much the next would differ is not in their "
           "intervals (--repeats 3)\n" +
           few;
  }
  const std::string medians = text("\nstep times are medians over ",
                                   fewest == most ? "" : text(fewest, " to "), most, " rounds");
  if (most == 2) return text(medians, "; ", kNoInterval, "\n", few);
  return text(medians, ", with what processes and rounds differ by in their intervals",
              has_two ? text("; ", kNoInterval) : "", "\n", few);
}

std::string words_of_foreign_load(const std::vector<Json>& lines) {
  int64_t num_loaded = 0;
  double largest = 0;
  std::string name;
  for (const Json& line : lines) {
    const double share = largest_foreign_share(line);
    if (share <= kForeignShare) continue;
    ++num_loaded;
    if (share > largest) name = line["name"].get<std::string>();
    largest = std::max(largest, share);
  }
  if (num_loaded == 0) return "";
  return text("\n* timed under foreign load: ", num_loaded, num_loaded == 1 ? " case" : " cases",
              ", where other processes took more than ", percent(kForeignShare),
              " of the cores in a round (the most: ", percent(largest), ", ", name, ")\n");
}

}  // namespace

std::string plan_table(const std::vector<Case>& cases) {
  Table table({{"case"},
               {"world"},
               {"ranks", Align::kRight},
               {"certificate"},
               {"time-out", Align::kRight},
               {"id"}});
  for (const Case& c : cases) {
    // Nothing is trained there that could be certified.
    const bool is_certified = c.is_certified && !is_estimated_world(c.world);
    table.add({c.name, c.world, text(c.ranks), is_certified ? "yes" : "no",
               print_seconds(c.timeout_s), c.id});
  }
  return table.str();
}

std::string result_table(const std::vector<Json>& lines, const std::vector<ColumnCells>& more) {
  std::vector<Table::Column> columns = {{"case"},
                                        {"status"},
                                        {"ranks", Align::kRight},
                                        {"tokens/s", Align::kRight},
                                        {"step ms [95 %]", Align::kRight},
                                        {""},
                                        {"peak MiB", Align::kRight},
                                        {"MiB sent / rank", Align::kRight},
                                        {"loss"},
                                        {"certificate"}};
  for (const ColumnCells& column : more) columns.push_back({column.title, Align::kRight});
  Table table(columns);
  Reasons reasons;
  for (const Json& line : lines) {
    const Json document = timed_document(line);
    const Json first = value_at(document, "loss.first"), last = value_at(document, "loss.last");
    std::vector<std::string> cells = {
        line["name"].get<std::string>(),
        status_words(line["status"].get<std::string>(), line["document"]),
        number(value_at(document, "ranks"), 6),
        throughput(document),
        shown_step_time(document),
        largest_foreign_share(line) > kForeignShare ? "*" : "",
        number(value_at(document, "memory.peak_bytes.max"), 4, 1 / kMiB),
        number(most_bytes_sent(document), 4, 1 / kMiB),
        first.is_number() ? number(first, 4) + " -> " + number(last, 4) : "-",
        verdict_words(document)};
    for (const ColumnCells& column : more) {
      const auto cell = column.cells.find(line["case_id"].get<std::string>());
      cells.push_back(cell == column.cells.end() ? "-" : cell->second);
    }
    table.add(cells);
    add_reasons(line, reasons);
  }
  const std::string why = reasons.str();
  return table.str() + words_of_estimates(lines) + words_of_rounds(lines) +
         words_of_foreign_load(lines) + (why.empty() ? "" : "\nWhy:\n" + why);
}

std::string verdict_counts(const std::vector<Json>& lines) {
  int64_t equal = 0, scaled = 0, by_engine = 0, different = 0, not_run = 0, ended = 0,
          estimated = 0;
  for (const Json& line : lines) {
    if (line["status"] != "ok" && !is_different(line["document"])) {
      ++ended;
      continue;
    }
    const std::string verdict = verdict_of(line["document"]);
    if (is_estimated(line["document"])) {
      ++estimated;
      continue;
    }
    ++(verdict == "equal" ? equal : verdict == "different" ? different : not_run);
    const Json level = value_at(line["document"], "certificate.level");
    scaled += verdict == "equal" && level == "scaled" ? 1 : 0;
    by_engine += verdict == "equal" && is_by_engine(line["document"]) ? 1 : 0;
  }
  return text(equal, " equal", scaled == 0 ? "" : text(" (", scaled, " by a smaller model)"),
              by_engine == 0 ? "" : text(" (", by_engine, " to one rank, without an oracle)"), ", ",
              different, " different, ", not_run, " not run",
              estimated == 0 ? "" : text(", ", estimated, " estimated"),
              ended == 0 ? "" : text(", none of ", ended, " that did not end ok"));
}

std::string status_counts(const std::vector<Json>& lines) {
  std::map<std::string, int64_t> counts;
  for (const Json& line : lines)
    ++counts[status_words(line["status"].get<std::string>(), line["document"])];
  std::string out;
  std::vector<std::string> words = statuses();
  words.insert(words.begin() + 1, "different");
  for (const std::string& status : words) {
    if (counts[status] > 0) out += text(out.empty() ? "" : ", ", counts[status], " ", status);
  }
  return out.empty() ? "no case" : out;
}

std::vector<std::string> notes_of_builds(const RunRecord& record) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>> names;  // plug-in, build
  for (const Json& line : record.cases) {
    const Json plugins = value_at(line, "plugins");
    if (!plugins.is_object()) continue;
    for (const auto& [plugin, hash] : plugins.items()) {
      names[plugin][hash.get<std::string>()].push_back(line["name"].get<std::string>());
    }
  }
  std::vector<std::string> notes;
  for (const auto& [plugin, builds] : names) {
    if (builds.size() < 2) continue;
    std::vector<std::string> told;
    for (const auto& [hash, cases] : builds) {
      told.push_back(text(hash, ": ", cases.size(), cases.size() == 1 ? " case, " : " cases, ",
                          in_quotes(cases.front()), cases.size() > 1 ? ", ..." : ""));
    }
    notes.push_back(text("cases ran with ", builds.size(), " builds of the plug-in ", plugin,
                         ", which claims, ", "columns and figures compare as if they were one (",
                         join(told, "; "),
                         "); `kuafu suite` without --filter makes those of older builds again"));
  }
  return notes;
}

}  // namespace kuafu
