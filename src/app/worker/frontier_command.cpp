// SPDX-License-Identifier: Apache-2.0
//
// The largest value of a key whose simulated peak stays within memory.device: exact bytes of the
// rank program on meta tensors, found by bisection. Of each policy and budget that is asked for.

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <optional>

#include "app/worker/options.h"
#include "app/worker/trial.h"
#include "kuafu/base/units.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/table.h"
#include "kuafu/simulate/simulate.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Steps that --measure makes of what it found; the first ones do not count.
constexpr int64_t kMeasured = 5;

/// Told before a plan is tried with it.
void check_vary(const std::string& key) {
  const bool is_key = plan::find_key(key) != nullptr || plan::find_key(key + ".size") != nullptr;
  KUAFU_REQUIRE(is_key, "--vary ", key, ": a plan has no key ", key,
                "; nearest: ", plan::nearest_key(key), "; docs/plan.md lists all");
}

/// The least value that the key allows, from 1 on.
int64_t least_of(const std::string& vary) {
  const plan::Key* key = plan::find_key(vary);
  if (key == nullptr) key = plan::find_key(vary + ".size");
  return std::max<int64_t>(1, static_cast<int64_t>(key->range.from));
}

/// One value of the key, tried.
struct Point {
  bool is_legal = false;
  int64_t ranks = 0;
  int64_t peak = 0;       ///< bytes of the rank that needs most
  int64_t host_peak = 0;  ///< most of any rank, with tiers
  int rank = 0;
};

/// Seconds of a step.
struct StepTimes {
  std::optional<double> predicted, measured;
};

class Frontier {
 public:
  /// Empty: the policy and the budget of the plan.
  Frontier(WorkerOptions options, std::string policy, const std::string& budget,
           const Registries& registries)
      : options_(std::move(options)), registries_(registries), policy_(std::move(policy)) {
    if (!budget.empty()) options_.overrides.emplace_back("memory.device", budget);
    const Plan plan = under_policy(loaded(budget));
    KUAFU_REQUIRE(plan.memory.device.has_value(),
                  "kuafu frontier needs a budget: set "
                  "memory.device, for example --budget 16GB or --set memory.device=16GB");
    budget_ = *plan.memory.device;
    name_ = plan.memory.policy;
  }

  /// The largest value up to `most` that fits; 0 where none does.
  int64_t search(int64_t most) {
    most_ = most;
    const int64_t below = least_of(options_.vary) - 1;
    int64_t fits = below, does_not = std::min(most, std::numeric_limits<int64_t>::max() - 1) + 1;
    while (const int64_t value = legal_between(fits, does_not)) {
      (point(value).peak <= budget_ ? fits : does_not) = value;
    }
    return fits == below ? 0 : fits;
  }

  /// The smallest legal value above that was tried and does not fit; 0 where none was.
  int64_t next_after(int64_t value) const {
    for (auto it = points_.upper_bound(value); it != points_.end(); ++it) {
      if (it->second.is_legal) return it->first;
    }
    return 0;
  }

  /// Of a step with that value, on the plan's cluster and, where it is measured, on thread ranks here.
  StepTimes times(int64_t value, bool is_measured) const {
    Plan plan = plan_with(value);
    plan.train.steps = kMeasured;
    StepTimes times;
    if (can_simulate(plan)) times.predicted = simulate(plan, registries_).step_seconds;
    if (!is_measured) return times;
    std::vector<double> seconds;
    try {
      for (const RankResult& rank : run_threads(plan, registries_, {.is_certified = false})) {
        seconds.resize(rank.step_seconds.size());
        for (size_t i = 0; i < seconds.size(); ++i) {
          seconds[i] = std::max(seconds[i], rank.step_seconds[i]);
        }
      }
      times.measured = summarise(seconds).median;
    } catch (const OutOfMemory& e) {
      std::cerr << "kuafu frontier: --measure: " << options_.vary << " = " << value << ", policy "
                << name_ << ", memory.device = " << print_bytes(budget_) << ": " << e.what()
                << "; there is no measured time" << std::endl;
    }
    return times;
  }

  const std::map<int64_t, Point>& points() const { return points_; }
  int64_t budget() const { return budget_; }
  const std::string& policy() const { return name_; }

 private:
  /// A value between two, both left out, whose plan is legal: the nearest to the middle. 0: none.
  int64_t legal_between(int64_t below, int64_t above) {
    const int64_t middle = below + (above - below) / 2;
    for (int64_t step = 0; step < above - below; ++step) {
      for (const int64_t value : {middle + step, middle - step}) {
        if (value > below && value < above && point(value).is_legal) return value;
      }
    }
    return 0;
  }

  const Point& point(int64_t value) {
    const auto known = points_.find(value);
    if (known != points_.end()) return known->second;
    Point p;
    try {
      const Plan plan = plan_with(value);
      check_placement(plan, registries_);
      p = measure(plan);
    } catch (const Refused&) {  // stepped over
    } catch (const ConfigError& e) {
      throw ConfigError(text("--vary ", options_.vary, " up to --max ", most_, ": ", e.what()));
    }
    return points_.emplace(value, p).first->second;
  }

  /// A budget is told by the option that gave it.
  Plan loaded(const std::string& budget) const {
    try {
      return load_resolved(options_, registries_, 0);
    } catch (const ConfigError& e) {
      const std::string what = e.what(), origin = "--set memory.device: ";
      if (budget.empty() || !what.starts_with(origin)) throw;
      throw ConfigError(text("--budget ", budget, ": ", what.substr(origin.size())));
    }
  }

  Plan plan_with(int64_t value) const {
    WorkerOptions here = options_;
    here.overrides.emplace_back(options_.vary, text(value));
    return under_policy(load_resolved(here, registries_, 0, Warn::kNo));
  }

  /// Keys of [memory] that the policy does not read stay as the plan has them: others do.
  Plan under_policy(Plan plan) const {
    if (policy_.empty()) return plan;
    const MemoryPlan given = std::exchange(plan.memory, {});
    plan.memory.recompute = given.recompute;
    plan.memory.device = given.device;
    if (policy_ != MemoryPlan{}.policy) plan.memory = given;
    plan.memory.policy = policy_;
    try {
      plan::check_policy(plan, memory::kinds_of(registries_.policies), {});
      plan::check_memory(plan, {});
    } catch (const ConfigError& e) {
      throw ConfigError(text("--policy ", policy_, ": ", e.what()));
    }
    return plan;
  }

  /// Replicas hold alike, but for their parts under ZeRO: every rank of the first one, or of all, is
  /// simulated, to its end. For two steps at
  /// least: a first one has no optimizer state yet when its activations are at their most.
  Point measure(Plan plan) const {
    plan.train.steps = std::max<int64_t>(plan.train.steps, 2);
    const auto ranks = static_cast<int>(num_ranks(plan));
    SimulatedWorld world(ranks);
    Point p{.is_legal = true, .ranks = ranks};
    const std::vector<Axis> axes = mesh_axes(plan, registries_.tensor_modes());
    for (int r = 0; r < ranks; ++r) {
      const Mesh mesh(axes, r, mesh_aliases(plan, registries_.tensor_modes()));
      if (plan.parallel.zero == 0 && mesh.coord(Axes{"data"}) != 0) continue;
      const RankResult need = simulate_need(plan, registries_, world, r);
      p.host_peak = std::max(p.host_peak, need.moves.host_peak);
      if (need.peak_bytes > p.peak) {
        p.peak = need.peak_bytes;
        p.rank = r;
      }
    }
    return p;
  }

  WorkerOptions options_;
  const Registries& registries_;
  int64_t budget_ = 0, most_ = 0;
  std::string policy_, name_;        // asked for; that it is
  std::map<int64_t, Point> points_;  // by value
};

/// What was found of a policy in a budget.
struct Fit {
  Frontier frontier;
  int64_t best = 0;
  StepTimes times = {};
};

Json or_null(const std::optional<double>& seconds) {
  return seconds ? Json(*seconds) : Json(nullptr);
}

Json to_json(const Fit& found) {
  const Frontier& frontier = found.frontier;
  Json tried = Json::array();
  for (const auto& [value, p] : frontier.points()) {
    if (!p.is_legal) continue;
    tried.push_back({{"value", value},
                     {"ranks", p.ranks},
                     {"peak_bytes", p.peak},
                     {"host_peak_bytes", p.host_peak},
                     {"fits", p.peak <= frontier.budget()}});
  }
  const int64_t next = frontier.next_after(found.best);
  Json out = {{"policy", frontier.policy()},
              {"budget_bytes", frontier.budget()},
              {"value", found.best},
              {"next", next == 0 ? Json(nullptr) : Json(next)},
              {"predicted_step_s", or_null(found.times.predicted)},
              {"measured_step_s", or_null(found.times.measured)},
              {"tried", tried}};
  if (found.best > 0) {
    const Point& best = frontier.points().at(found.best);
    out["ranks"] = best.ranks;
    out["peak_bytes"] = best.peak;
    out["host_peak_bytes"] = best.host_peak;
  }
  return out;
}

/// One answer as it is; of several a list.
Json to_json(const std::vector<Fit>& answers, const WorkerOptions& options) {
  Json document = {{"key", options.vary}, {"max", options.most}};
  if (answers.size() == 1) {
    document.update(to_json(answers[0]));
    return document;
  }
  for (const Fit& found : answers) document["answers"].push_back(to_json(found));
  return document;
}

std::string percent_of(int64_t part, int64_t whole) {
  return text(part / std::max<int64_t>(whole / 100, 1), " %");
}

void print_points(const Fit& found, const std::string& key) {
  Table table({{key, Table::Align::kRight},
               {"peak", Table::Align::kRight},
               {"of the budget", Table::Align::kRight},
               {"on rank", Table::Align::kRight},
               {""}});
  for (const auto& [value, p] : found.frontier.points()) {
    if (!p.is_legal) continue;
    table.add({text(value), print_bytes(p.peak), percent_of(p.peak, found.frontier.budget()),
               text(p.rank), value == found.best ? "largest that fits" : ""});
  }
  std::cout << table.str();
}

void print_answers(const std::vector<Fit>& answers, const std::string& key) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"budget", kRight},
               {"policy"},
               {text("largest ", key), kRight},
               {"peak", kRight},
               {"on the host", kRight},
               {"step, predicted", kRight},
               {"step, measured", kRight}});
  const auto time = [](const std::optional<double>& s) { return s ? print_seconds(*s) : "-"; };
  for (const Fit& a : answers) {
    const Point best = a.best > 0 ? a.frontier.points().at(a.best) : Point{};
    table.add({print_bytes(a.frontier.budget()), a.frontier.policy(),
               a.best > 0 ? text(a.best) : "none", a.best > 0 ? print_bytes(best.peak) : "-",
               best.host_peak > 0 ? print_bytes(best.host_peak) : "-", time(a.times.predicted),
               time(a.times.measured)});
  }
  std::cout << table.str();
}

}  // namespace

int frontier_command(const WorkerOptions& options) {
  check_vary(options.vary);
  const Registries registries = load_registries(options);
  initialise_tensors();
  const auto or_plans = [](std::vector<std::string> given) {
    if (given.empty()) given.emplace_back();
    return given;
  };
  std::vector<Frontier> searches;
  for (const std::string& budget : or_plans(options.budgets)) {
    for (const std::string& policy : or_plans(options.policies)) {
      searches.emplace_back(options, policy, budget, registries);
    }
  }
  const bool is_timed = options.is_measured || !options.policies.empty();
  std::vector<Fit> answers;
  for (Frontier& search : searches) {
    Fit& found = answers.emplace_back(Fit{std::move(search)});
    found.best = found.frontier.search(options.most);
    if (found.best > 0 && is_timed) {
      found.times = found.frontier.times(found.best, options.is_measured);
    }
    if (searches.size() == 1) print_points(found, options.vary);
  }
  if (searches.size() > 1 || is_timed) print_answers(answers, options.vary);
  const bool is_any =
      std::any_of(answers.begin(), answers.end(), [](const Fit& found) { return found.best > 0; });
  if (!is_any) std::cout << "no legal value up to " << options.most << " fits\n";
  if (!options.json_file.empty()) {
    replace_file(options.json_file, json_document(to_json(answers, options)));
  }
  return is_any ? kOk : kOutOfMemory;
}

}  // namespace kuafu
