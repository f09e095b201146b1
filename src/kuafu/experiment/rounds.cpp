// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/rounds.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/finality.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

/// "same" or "different" to the bit; null where two runs may differ: workers of servers take
/// each other's pushes as they come, and other processors round differently.
Json losses_beside(const Json& first, const Json& document) {
  const Json before = value_at(first, "loss"), now = value_at(document, "loss");
  const bool is_ordered =
      value_at(first, "pushes").is_null() && value_at(document, "pushes").is_null();
  if (!is_ordered || before.is_null() || now.is_null()) return nullptr;
  if (!has_same_arithmetic(first, document)) return nullptr;
  return before == now ? "same" : "different";
}

Json step_time_of(const Json& document) {
  const Json median = value_at(document, "step_time_s.median");
  const Json interval = value_at(document, "step_time_s.ci95");
  if (!median.is_number()) return nullptr;
  return {{"median", median}, {"ci95", interval}};
}

Json entry_of(const RoundRun& run, const Json& first) {
  const Json& document = run.document;
  const bool is_ok = document["status"] == "ok";
  const auto measured = [&](Json value) { return is_ok ? value : Json(nullptr); };
  return {{"round", run.turn.round},
          {"position", run.turn.position},
          {"sweep", run.sweep},
          {"began", run.began},
          {"status", document["status"]},
          {"reason", value_at(document, "reason")},
          {"wall_s", run.result.wall_s},
          {"timeout_s", run.turn.of->timeout_s},
          {"is_final", !is_of_machine(*run.turn.of, document, run.result)},
          {"step_time_s", measured(step_time_of(document))},
          {"tokens_per_s", measured(value_at(document, "tokens_per_s"))},
          {"load", value_at(document, "load")},
          {"losses", measured(losses_beside(first, document))}};
}

/// The entry of round 1 of a line from before rounds: its place is not known.
Json entry_of_old(const Json& line) {
  const Json& document = line["document"];
  return {{"round", 1},
          {"position", nullptr},
          {"sweep", nullptr},
          {"began", nullptr},
          {"status", line["status"]},
          {"reason", nullptr},
          {"wall_s", line["wall_s"]},
          {"timeout_s", value_at(line, "timeout_s")},
          {"is_final", true},
          {"step_time_s", step_time_of(document)},
          {"tokens_per_s", value_at(document, "tokens_per_s")},
          {"load", value_at(document, "load")},
          {"losses", losses_beside(document, document)}};
}

int64_t number_of(const Json& entry) { return entry["round"].get<int64_t>(); }

}  // namespace

std::vector<Turn> order_of_round(const Suite& suite, int64_t round) {
  std::vector<Turn> turns;
  for (const Case& c : suite.cases) turns.push_back({&c, round, 0});
  if (round > 1) {
    const auto draw = [&](const Turn& turn) {
      return CounterRandom(hash_name(suite.hash), hash_name(turn.of->id))
          .bits(static_cast<uint64_t>(round));
    };
    std::stable_sort(turns.begin(), turns.end(),
                     [&](const Turn& a, const Turn& b) { return draw(a) < draw(b); });
  }
  for (size_t i = 0; i < turns.size(); ++i) turns[i].position = static_cast<int64_t>(i) + 1;
  return turns;
}

bool is_timed(const Case& c) { return !is_estimated_world(c.world); }

bool is_repeatable(const Case& c, const Json& line) {
  return is_timed(c) && line["status"] == "ok";
}

std::string kernels_of(const Json& provenance) {
  const Json kernels = value_at(provenance, "kernels");
  return kernels.is_string() ? kernels.get<std::string>() : "own";
}

bool is_of_here(const Json& line, const Json& provenance) {
  for (const char* field : {"git_commit", "host", "cpu_model"}) {
    if (value_at(line, text("document.provenance.", field)) != value_at(provenance, field)) {
      return false;
    }
  }
  return kernels_of(value_at(line, "document.provenance")) == kernels_of(provenance);
}

Json round_of(const Json& line, int64_t round) {
  const Json rounds = value_at(line, "rounds");
  if (!rounds.is_array()) return nullptr;
  for (const Json& entry : rounds) {
    if (number_of(entry) == round) return entry;
  }
  return nullptr;
}

void put_round(Json& line, const RoundRun& run) {
  Json rounds = value_at(line, "rounds");
  if (!rounds.is_array()) rounds = Json::array();
  if (rounds.empty() && run.turn.round > 1) rounds.push_back(entry_of_old(line));
  const Json entry = entry_of(run, line["document"]);
  auto at = rounds.begin();
  while (at != rounds.end() && number_of(*at) < run.turn.round) ++at;
  if (at != rounds.end() && number_of(*at) == run.turn.round) {
    *at = entry;
  } else {
    rounds.insert(at, entry);
  }
  line["rounds"] = rounds;
  line["timing"] = timing_of(rounds);
}

RoundFindings findings_of_rounds(const Json& line) {
  RoundFindings findings;
  const Json rounds = value_at(line, "rounds");
  if (!rounds.is_array()) return findings;
  for (const Json& entry : rounds) {
    const std::string round = text("round ", number_of(entry), ": ");
    const std::string status = entry["status"].get<std::string>();
    if (status != "ok") {
      const Json reason = value_at(entry, "reason");
      findings.sentences.push_back(text(
          round, status, reason.is_string() ? ": " + reason.get<std::string>() : std::string()));
      findings.is_bad = findings.is_bad || status == "failed";
    }
    if (value_at(entry, "losses") == "different") {
      findings.sentences.push_back(
          round +
          "other losses than in round 1: the same plan on the same machine computes the "
          "same bits, so the program or the machine is at fault");
      findings.is_bad = true;
    }
  }
  return findings;
}

}  // namespace kuafu
