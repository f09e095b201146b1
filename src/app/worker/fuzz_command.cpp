// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <iostream>
#include <memory>

#include "app/worker/fuzz.h"
#include "app/worker/jobs.h"
#include "app/worker/options.h"
#include "kuafu/record/files.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/launch_folders.h"
#include "kuafu/record/progress.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

using namespace fuzz;
using std::chrono::steady_clock;

constexpr auto kBetweenWrites = std::chrono::seconds(2);
constexpr auto kMinimising = std::chrono::minutes(3);  ///< of a finding, at most

Registries registries_of(const FuzzOptions& options) {
  WorkerOptions with_plugins;
  with_plugins.plugins = options.plugins;
  return load_registries(with_plugins);
}

std::vector<RealWorld> worlds_of(const FuzzOptions& options) {
  std::vector<RealWorld> worlds;
  for (const std::string& name : options.worlds.empty() ? world_names() : options.worlds) {
    worlds.push_back(world_of(name));
  }
  return worlds;
}

/// Two campaigns in one folder would write over each other. Null: nothing is kept.
std::unique_ptr<FolderLock> locked(const std::string& folder) {
  if (folder.empty()) return nullptr;
  make_writable_folder(folder);
  return std::make_unique<FolderLock>(folder);
}

/// The first line: an exception of LibTorch carries its stack.
std::string first_line(const std::string& words) { return words.substr(0, words.find('\n')); }

/// Plans of one seed in the order of their numbers, from the first that the record lacks.
class Campaign {
 public:
  explicit Campaign(const FuzzOptions& options)
      : options_(options),
        registries_(registries_of(options)),
        worlds_(worlds_of(options)),
        lock_(locked(options.out)),
        trier_(registries_, {options.ranks, options.timeout_s, options.plugins}),
        record_(options.out, options.seed, options.ranks, worlds_) {
    initialise_tensors();
  }

  int operator()() {
    if (!options_.out.empty()) require_recordable(options_.out);
    const int64_t total = options_.plans;
    Progress progress(std::cerr, progress_options_of_stderr(total, record_.num_plans()));
    const auto end = steady_clock::now() + std::chrono::duration<double>(options_.seconds);
    auto written = steady_clock::now();
    const int signal =
        run_jobs({.jobs = options_.jobs,
                  .first = record_.num_plans(),
                  .is_wanted =
                      [&](int64_t number) {
                        return steady_clock::now() < end && (total == 0 || number < total);
                      },
                  .work = [this](int64_t number) { return json_line(one(number)); },
                  .take =
                      [&](int64_t number, const Answer& answer) {
                        take(number, answer, progress);
                        if (steady_clock::now() - written < kBetweenWrites) return;
                        record_.write();
                        written = steady_clock::now();
                      }});
    record_.write();
    if (signal != 0) {
      return tell_interrupted(
          signal, text("after ", record_.num_plans(), " plans",
                       options_.out.empty() ? ", which nothing keeps: no --out was given"
                                            : text("; the same call goes on behind them")));
    }
    std::cout << record_.describe() << "; seed " << options_.seed << "\n";
    return record_.num_findings() == 0 ? kOk : kFailed;
  }

 private:
  RealWorld world_of_plan(int64_t number) const {
    return draw_world(worlds_, options_.seed, static_cast<uint64_t>(number));
  }

  /// Draws and runs a plan; a finding is minimised.
  Json one(int64_t number) {
    Draw draw(options_.seed, static_cast<uint64_t>(number));
    const Overrides settings = draw_plan(registries_, options_.ranks, draw);
    const RealWorld world = world_of_plan(number);
    const PlanOutcome outcome = trier_.run(settings, world);
    return {{"ending", to_string(outcome.ending)},
            {"why", first_line(outcome.why)},
            {"cause", outcome.cause},
            {"ranks", outcome.ranks},
            {"command", is_finding(outcome.ending) ? least(settings, world, outcome) : ""}};
  }

  /// The process that had the plan ended with it: drawing and placing happen there.
  static Json lost(const std::string& how) {
    return {{"ending", to_string(PlanEnding::kCrash)},
            {"why", "before the run: " + how},
            {"cause", ""},
            {"ranks", 0},
            {"command", ""}};
  }

  /// Command of the smallest plan that ends so; on threads where it ends so there, too.
  std::string least(const Overrides& settings, RealWorld world, const PlanOutcome& outcome) {
    if (world != RealWorld::kThreads &&
        trier_.run(settings, RealWorld::kThreads).ending == outcome.ending) {
      world = RealWorld::kThreads;
    }
    // A wrong end costs MPI ranks their start.
    const int64_t trials = world == RealWorld::kThreads ? options_.trials : options_.trials / 8;
    const Overrides plan = minimise(settings, outcome.ending, trials, [&](const Overrides& next) {
      return trier_.run(next, world).ending;
    });
    int64_t ranks = outcome.ranks;
    try {
      ranks = num_ranks(placed(plan, registries_, options_.plugins));
    } catch (const std::exception&) {  // which is what was found
    }
    return command_of(plan, world, outcome.ending, ranks, options_.plugins);
  }

  void take(int64_t number, const Answer& answer, Progress& progress) {
    const Json row = answer.is_lost ? lost(answer.words) : Json::parse(answer.words);
    const RealWorld world = world_of_plan(number);
    const PlanOutcome outcome = {ending_of(row.at("ending")), row.at("why"), row.at("cause"),
                                 row.at("ranks")};
    progress.start(text("plan ", number, ", ", to_string(world)));
    Json finding;
    if (is_finding(outcome.ending)) {
      finding = {{"plan", number},
                 {"world", to_string(world)},
                 {"ending", to_string(outcome.ending)},
                 {"why", outcome.why},
                 {"command", row.at("command")}};
      progress.note(text("plan ", number, ", ", to_string(world), "  ", to_string(outcome.ending),
                         "  ", outcome.why, "\n  ", row.at("command").get<std::string>()));
    }
    record_.add(world, outcome, finding);
    progress.finish(to_string(outcome.ending), answer.seconds);
  }

  const FuzzOptions& options_;
  const Registries registries_;
  const std::vector<RealWorld> worlds_;
  const std::unique_ptr<FolderLock> lock_;  // before the record reads the folder
  Trier trier_;
  Record record_;
};

/// The plan of --set in each world, or plan --only of the seed in its own.
int one_plan(const FuzzOptions& options) {
  const Registries registries = registries_of(options);
  initialise_tensors();
  Overrides settings = options.settings;
  parse_values("", "plan",
               settings);  // a key or value that is none is wrong usage, not a plan refused
  std::vector<RealWorld> worlds = worlds_of(options);
  if (options.only) {
    Draw draw(options.seed, *options.only);
    settings = draw_plan(registries, options.ranks, draw);
    worlds = {draw_world(worlds, options.seed, *options.only)};
    std::cout << command_of(settings, worlds[0], PlanEnding::kMetered, 0, options.plugins)
              << std::endl;
  }
  Trier trier(registries, {options.ranks, options.timeout_s, options.plugins});
  bool is_found = false;
  for (const RealWorld world : worlds) {
    const PlanOutcome outcome = trier.run(settings, world);
    std::cout << to_string(world) << ": " << to_string(outcome.ending)
              << (outcome.why.empty() ? "" : ", ") << outcome.why << std::endl;
    is_found = is_found || is_finding(outcome.ending);
  }
  return is_found ? kFailed : kOk;
}

}  // namespace

int fuzz_command(const FuzzOptions& options) {
  const LaunchFolders folders;  // its MPI ranks are killed now and then
  const bool is_one = options.only || !options.settings.empty();
  return is_one ? one_plan(options) : Campaign(options)();
}

}  // namespace kuafu
