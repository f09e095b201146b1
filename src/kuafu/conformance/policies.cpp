// SPDX-License-Identifier: Apache-2.0
//
// Memory policies as functions of random traces, and as a training has them.

#include "kuafu/conformance/policies.h"

#include <algorithm>

#include "kuafu/comm/simulated.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/memory/optimum.h"
#include "kuafu/memory/play.h"
#include "kuafu/memory/player.h"
#include "kuafu/memory/samples.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu::conformance {
namespace {

using memory::Choice;
using memory::Knobs;
using memory::Known;
using memory::OnDevice;
using memory::Played;
using memory::Policy;
using memory::PolicyRule;
using memory::Sample;

/// Every fifth with changes at home, as the parameters of a training have them.
constexpr uint64_t kSeed = 17, kSamples = 250, kSearched = 100, kEvery = 5;
constexpr int64_t kPrefetches[] = {0, 1, 3};
/// Steps that repeat together of which the optimum is still searched for.
constexpr int64_t kMostSteps = 4;

Sample sample_of(uint64_t index) {
  return index % kEvery == 0 ? memory::sample_at_home(kSeed, index)
                             : memory::sample(kSeed, index, memory::shape_of(index));
}

/// A body on each trace under each depth of prefetch, up to the first at which something is wrong.
template <class Body>
void on_traces(const PolicyRule& rule, uint64_t samples, Notes& notes, const Body& body) {
  for (uint64_t i = 0; i < samples; ++i) {
    const Sample s = sample_of(i);
    for (const int64_t prefetch : kPrefetches) {
      std::string wrong;
      try {
        wrong = body(rule, s, Knobs{.prefetch = prefetch});
      } catch (const std::exception& e) {
        wrong = e.what();
      }
      if (wrong.empty()) continue;
      return notes.fail(text("trace ", i, ", budget ", s.budget, ", prefetch ", prefetch, ": ",
                             wrong, "\n", s.trace));
    }
  }
}

/// play() holds each move to the rules, and the policy to coming back to where it was.
std::string wrong_moves(const PolicyRule& rule, const Sample& s, const Knobs& knobs) {
  const Played played = memory::play(s.trace, s.budget, rule, knobs);
  const int64_t most = *std::max_element(played.live.begin(), played.live.end());
  if (most > s.budget) return text(most, " live bytes");
  return {};
}

/// A moment in which a policy was asked, and what it said.
struct Asked {
  int64_t moment = 0;
  OnDevice on_device = {};
  Choice choice = {};
};

/// Asked again at once, in another order, and made anew, it chooses the same.
std::string impure(const PolicyRule& rule, const Sample& s, const Knobs& knobs) {
  const Policy first = memory::policy_of(rule, s.trace, s.budget);
  std::vector<Asked> asked;
  const Policy watched = [&](const Known& known) {
    asked.push_back({known.moment, known.on_device, first(known)});
    return asked.back().choice;
  };
  memory::Player player(s.trace, s.budget, watched, knobs);
  for (int64_t t = 0; t < 2 * s.trace.num_moments(); ++t) player.next();
  const memory::UsesByChunk uses(s.trace);
  const Policy anew = memory::policy_of(rule, s.trace, s.budget);
  for (const auto& [who, policy] : {std::pair{"asked again", first}, {"made anew", anew}}) {
    for (auto a = asked.rbegin(); a != asked.rend(); ++a) {
      const Known known{s.trace, uses, a->on_device, knobs, s.budget, a->moment};
      if (policy(known) != a->choice || policy(known) != a->choice) {
        return text(
            who, " before moment ", a->moment,
            " with the same on the device, it chooses otherwise: it has a state of its own");
      }
    }
  }
  return {};
}

std::string wrong_bytes(const PolicyRule& rule, const Sample& s, const Knobs& knobs) {
  const Played played = memory::play(s.trace, s.budget, rule, knobs);
  const auto steps = static_cast<double>(played.steps);
  const int64_t bytes = played.traffic.bytes();
  // Of several steps the bound may be larger by what rounding took off the one and not the other.
  const double bound = steps * memory::least_bytes_bound(s.trace, s.budget) * (1 - 1e-12);
  if (bound > static_cast<double>(bytes)) return text(bytes, " bytes, the bound is ", bound);
  if (played.steps > kMostSteps) return {};
  const memory::Optimum least =
      memory::found_least_bytes(memory::repeated(s.trace, played.steps), s.budget);
  if (least.is_proven && least.bytes > bytes) {
    return text(bytes, " bytes in ", played.steps, " steps, the least is ", least.bytes);
  }
  if (bound > static_cast<double>(least.bytes)) {
    return text("the least is ", least.bytes, " bytes, its bound ", bound);
  }
  return {};
}

struct TrainingCase {
  int64_t ranks = 1, zero = 0;
};

/// Small, with many chunks; `more` chooses what lies where. Buckets of plans without tiers are cut as
/// chunks are, so that every sum has the same order.
Plan training_plan(const Registries& registries, const TrainingCase& c, const Overrides& more) {
  Overrides settings = {{"model.layers", "3"},
                        {"model.hidden", "16"},
                        {"model.heads", "2"},
                        {"model.vocab", "37"},
                        {"model.sequence", "6"},
                        {"model.dropout", "0.1"},
                        {"model.dtype", "f32"},
                        {"parallel.data.size", text(c.ranks)},
                        {"parallel.data.order", "fixed"},
                        {"parallel.zero", text(c.zero)},
                        {"train.batch", text(6 * c.ranks)},
                        {"train.micro_batch", "3"},
                        {"train.steps", "5"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return placed_plan(registries, settings);
}

constexpr const char* kChunk = "3000";

/// The most live bytes of a rank where everything is off the device between its uses.
int64_t least_budget(const Registries& registries, const TrainingCase& c) {
  const Plan plan = training_plan(
      registries, c,
      {{"memory.policy", "host"}, {"memory.prefetch", "0"}, {"memory.chunk_size", kChunk}});
  int64_t most = 0;
  for (const RankResult& rank : simulate(plan, registries).ranks) {
    most = std::max(most, rank.peak_bytes);
  }
  return most;
}

/// What a rank under the policy did otherwise than without tiers, than foretold, or than simulated.
std::string wrong_rank(const RankResult& mine, const RankResult& plain, const RankResult& simulated,
                       int64_t budget) {
  if (mine.losses != plain.losses) {
    return text("the losses are others than without tiers; the last is ", mine.losses.back(),
                ", without ", plain.losses.back());
  }
  const MoveCounts& moves = mine.moves;
  if (mine.peak_bytes > budget) return text(mine.peak_bytes, " live bytes");
  if (moves.to_device != moves.foretold) {
    return text(moves.to_device, " bytes to the device, foretold ", moves.foretold);
  }
  MoveCounts counted = moves;
  counted.wait_seconds = simulated.moves.wait_seconds;
  if (counted != simulated.moves || mine.peak_bytes != simulated.peak_bytes) {
    return text("simulated, it moves ", simulated.moves.to_device, " bytes with a peak of ",
                simulated.peak_bytes, ", for ", moves.to_device, " and ", mine.peak_bytes);
  }
  const memory::LeastBytes& least = mine.least;
  if (least.is_proven && moves.step_to_device < least.bytes) {
    return text(moves.step_to_device, " bytes to the device in a step, the least is ", least.bytes);
  }
  return {};
}

void check_training(const Registries& registries, const std::string& name, const TrainingCase& c,
                    Notes& notes) {
  const std::vector<RankResult> plain =
      trained(training_plan(registries, c, {{"parallel.data.bucket", kChunk}}), registries, false);
  const int64_t least = least_budget(registries, c);
  for (const int64_t budget : {least, least * 9 / 8}) {
    const Plan plan = training_plan(
        registries, c,
        {{"memory.policy", name}, {"memory.device", text(budget)}, {"memory.chunk_size", kChunk}});
    const std::vector<RankResult> ranks = trained(plan, registries, false);
    const Prediction predicted = simulate(plan, registries);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const std::string wrong = wrong_rank(ranks[r], plain[r], predicted.ranks[r], budget);
      notes.expect(wrong.empty(), "rank ", r, ", budget ", budget, ": ", wrong);
    }
  }
}

}  // namespace

std::vector<Finding> check_policy(const Registries& registries, const std::string& name,
                                  const std::vector<int64_t>& sizes, const Tell& tell) {
  const PolicyRule& rule = registries.policies.find(name);
  Findings findings(tell);
  const auto add = [&](const char* check, const std::string& where, const std::string& shape,
                       const std::function<void(Notes&)>& body) {
    return findings.run_or_refuse(
        {.kind = "policy", .name = name, .check = check, .where = where, .shape = shape},
        [&](Notes& notes) {
          if (!rule.lacks.empty()) throw Refused("this build has no " + rule.lacks);
          body(notes);
        });
  };
  const std::string shape = text(rule.searches ? kSearched : kSamples, " traces");
  const auto on_all = [&](const auto& body) {
    return [&](Notes& n) { on_traces(rule, rule.searches ? kSearched : kSamples, n, body); };
  };
  add("moves", "traces", shape, on_all(wrong_moves));
  if (findings.has_failed()) return std::move(findings).all();
  add("pure", "traces", shape, on_all(impure));
  add("bytes", "traces", text(kSearched, " traces"), [&](Notes& n) {
    if (!memory::has_optimum()) throw Refused("this build has no " + memory::lacks_of_search());
    on_traces(rule, kSearched, n, wrong_bytes);
  });
  for (const int64_t ranks : sizes) {
    for (const int64_t zero : ranks == 1 ? std::vector<int64_t>{0} : std::vector<int64_t>{0, 3}) {
      if (findings.has_failed()) return std::move(findings).all();
      add("training", text(ranks, ranks == 1 ? " rank" : " ranks"), text("ZeRO-", zero),
          [&](Notes& n) {
            check_training(registries, name, {ranks, zero}, n);
          });
    }
  }
  return std::move(findings).all();
}

}  // namespace kuafu::conformance
