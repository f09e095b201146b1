// SPDX-License-Identifier: Apache-2.0
//
// The largest value of a key whose simulated peak stays within memory.device: exact bytes of the
// rank program on meta tensors, found by bisection.

#include <algorithm>
#include <iostream>
#include <map>

#include "app/worker/options.h"
#include "kuafu/base/units.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/table.h"
#include "kuafu/simulate/simulate.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Told before a plan is tried with it.
void check_vary(const std::string& key) {
  const bool is_key = plan::find_key(key) != nullptr || plan::find_key(key + ".size") != nullptr;
  KUAFU_REQUIRE(is_key, "--vary ", key, ": a plan has no key ", key,
                "; nearest: ", plan::nearest_key(key), "; docs/plan.md lists all");
}

/// One value of the key, tried.
struct Point {
  bool is_legal = false;
  int64_t ranks = 0;
  int64_t peak = 0;  ///< bytes of the rank that needs most
  int rank = 0;
};

class Frontier {
 public:
  Frontier(const WorkerOptions& options, const Registries& registries)
      : options_(options), registries_(registries) {
    const Plan plan = load_resolved(options, registries, 0);
    KUAFU_REQUIRE(plan.memory.device.has_value(),
                  "kuafu frontier needs a budget: set "
                  "memory.device, for example --set memory.device=16GB");
    budget_ = *plan.memory.device;
    initialise_tensors();
  }

  /// The largest value up to `most` that fits; 0 where none does.
  int64_t search(int64_t most) {
    most_ = most;
    int64_t fits = 0, does_not = most + 1;
    while (const int64_t value = legal_between(fits, does_not)) {
      (point(value).peak <= budget_ ? fits : does_not) = value;
    }
    return fits;
  }

  /// The smallest legal value above that was tried and does not fit; 0 where none was.
  int64_t next_after(int64_t value) const {
    for (auto it = points_.upper_bound(value); it != points_.end(); ++it) {
      if (it->second.is_legal) return it->first;
    }
    return 0;
  }

  const std::map<int64_t, Point>& points() const { return points_; }
  int64_t budget() const { return budget_; }

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
    WorkerOptions here = options_;
    here.overrides.emplace_back(options_.vary, text(value));
    Point p;
    try {
      Plan plan = load_resolved(here, registries_, 0, Warn::kNo);
      check_placement(plan, registries_);
      p = measure(plan);
    } catch (const Refused&) {  // stepped over
    } catch (const ConfigError& e) {
      throw ConfigError(text("--vary ", options_.vary, " up to --max ", most_, ": ", e.what()));
    }
    return points_.emplace(value, p).first->second;
  }

  /// Replicas hold alike: every rank of the first one is simulated, to its end. For two steps at
  /// least: a first one has no optimizer state yet when its activations are at their most.
  Point measure(Plan plan) const {
    plan.train.steps = std::max<int64_t>(plan.train.steps, 2);
    const auto ranks = static_cast<int>(num_ranks(plan));
    SimulatedWorld world(ranks);
    Point p{true, ranks, 0, 0};
    const std::vector<Axis> axes = mesh_axes(plan, registries_.tensor_modes());
    for (int r = 0; r < ranks; ++r) {
      const Mesh mesh(axes, r, mesh_aliases(plan, registries_.tensor_modes()));
      if (mesh.coord(Axes{"data"}) != 0) continue;
      const int64_t peak = simulate_need(plan, registries_, world, r).peak_bytes;
      if (peak > p.peak) {
        p.peak = peak;
        p.rank = r;
      }
    }
    return p;
  }

  const WorkerOptions& options_;
  const Registries& registries_;
  int64_t budget_ = 0, most_ = 0;
  std::map<int64_t, Point> points_;  // by value
};

Json to_json(const Frontier& frontier, const WorkerOptions& options, int64_t best) {
  Json tried = Json::array();
  for (const auto& [value, p] : frontier.points()) {
    if (!p.is_legal) continue;
    tried.push_back({{"value", value},
                     {"ranks", p.ranks},
                     {"peak_bytes", p.peak},
                     {"fits", p.peak <= frontier.budget()}});
  }
  const int64_t next = frontier.next_after(best);
  Json document = {{"key", options.vary},
                   {"max", options.most},
                   {"budget_bytes", frontier.budget()},
                   {"value", best},
                   {"next", next == 0 ? Json(nullptr) : Json(next)},
                   {"tried", tried}};
  if (best > 0) {
    document["ranks"] = frontier.points().at(best).ranks;
    document["peak_bytes"] = frontier.points().at(best).peak;
  }
  return document;
}

}  // namespace

int frontier_command(const WorkerOptions& options) {
  check_vary(options.vary);
  const Registries registries = load_registries(options);
  Frontier frontier(options, registries);
  const int64_t best = frontier.search(options.most);
  Table table({{options.vary, Table::Align::kRight},
               {"peak", Table::Align::kRight},
               {"of the budget", Table::Align::kRight},
               {"on rank", Table::Align::kRight},
               {""}});
  for (const auto& [value, p] : frontier.points()) {
    if (!p.is_legal) continue;
    const int64_t percent = p.peak / std::max<int64_t>(frontier.budget() / 100, 1);
    table.add({text(value), print_bytes(p.peak), text(percent, " %"), text(p.rank),
               value == best ? "largest that fits" : ""});
  }
  std::cout << table.str();
  if (best == 0) std::cout << "no legal value up to " << options.most << " fits\n";
  if (!options.json_file.empty()) {
    replace_file(options.json_file, json_document(to_json(frontier, options, best)));
  }
  return best > 0 ? kOk : kOutOfMemory;
}

}  // namespace kuafu
