// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/ratios.h"

#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

/// What two cases share that are put beside each other: all but where work goes. Empty where nobody
/// knows.
std::string work_of(const Json& line) {
  Json plan = value_at(line, "document.plan");
  if (!plan.is_object()) return "";
  plan.erase("parallel");
  if (plan.contains("train")) plan["train"].erase("micro_batch");
  return text(plan.dump(), value_at(line, "document.ranks").dump(),
              value_at(line, "document.world").dump());
}

bool is_of_baseline(const Json& line) { return line["settings"].contains("baseline"); }

/// Measured, and not refuted: what computes something else is no side of a ratio.
bool is_side(const Json& line) {
  return line["status"] == "ok" && !is_different(line["document"]) && !work_of(line).empty();
}

}  // namespace

std::string ratio_table(const std::vector<Json>& lines) {
  std::multimap<std::string, const Json*> bases;
  for (const Json& line : lines) {
    if (is_of_baseline(line) && is_side(line)) bases.emplace(work_of(line), &line);
  }
  Table table({{"case"},
               {"beside"},
               {"tokens/s of it [95 %]", Table::Align::kRight},
               {"rounds", Table::Align::kRight}});
  bool has_rows = false, has_apart = false;
  for (const Json& line : lines) {
    if (is_of_baseline(line) || !is_side(line)) continue;
    const auto [begin, end] = bases.equal_range(work_of(line));
    for (auto base = begin; base != end; ++base) {
      // Of one work, tokens/s of the case over those of the base is step time of the base over its.
      const Json ratio = paired_step_ratio(line, *base->second);
      if (ratio.is_null()) continue;
      const auto shown = [&](const char* path) {
        const Json value = value_at(ratio, path);
        return value.is_number() ? human_number(value.get<double>(), 3) : "-";
      };
      const bool is_apart = ratio["rounds"] == 0 && !is_estimated(line["document"]);
      has_apart = has_apart || is_apart;
      const std::string interval = ratio["rounds"] == 2 || ratio["ci95"].is_null()
                                       ? "[-]"
                                       : text("[", shown("ci95.0"), ", ", shown("ci95.1"), "]");
      table.add({line["name"].get<std::string>(), (*base->second)["name"].get<std::string>(),
                 is_estimated(line["document"]) ? text(kEstimatedMark, shown("median"))
                                                : text(shown("median"), " ", interval),
                 is_apart                         ? "apart"
                 : is_estimated(line["document"]) ? "-"
                                                  : ratio["rounds"].dump()});
      has_rows = true;
    }
  }
  if (!has_rows) return "";
  return "\nBeside baselines: tokens/s over the baseline's, paired within each round:\n" +
         table.str() +
         (has_apart
              ? "apart: the two were timed in no round of one call; this is the ratio of their "
                "medians, and what changed on the machine between them is in it\n"
              : "");
}

}  // namespace kuafu
