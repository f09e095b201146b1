// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "app/worker/fuzz.h"
#include "app/worker/options.h"
#include "kuafu/base/config.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/progress.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

using namespace fuzz;
using std::chrono::steady_clock;

/// What has been found, by ending.
struct Tally {
  int64_t plans = 0;
  std::array<int64_t, kNumEndings> endings{};

  void add(Ending ending) {
    ++plans;
    ++endings[static_cast<size_t>(ending)];
  }
  int64_t findings() const {
    int64_t n = 0;
    for (int i = 0; i < kNumEndings; ++i) {
      if (is_finding(static_cast<Ending>(i))) n += endings[static_cast<size_t>(i)];
    }
    return n;
  }
  std::string describe() const {
    std::string out = text(plans, " plans:");
    for (int i = 0; i < kNumEndings; ++i) {
      const int64_t n = endings[static_cast<size_t>(i)];
      if (n > 0) out += text(" ", n, " ", to_string(static_cast<Ending>(i)), ",");
    }
    out.pop_back();
    return out;
  }
};

Json to_json(const Overrides& settings) {
  Json out = Json::object();
  for (const auto& [key, value] : settings) out[key] = value;
  return out;
}

/// A campaign: plans of one seed in the order of their numbers, from the first that the file lacks.
class Campaign {
 public:
  explicit Campaign(const FuzzOptions& options) : options_(options) {
    WorkerOptions with_plugins;
    with_plugins.plugins = options.plugins;
    registries_ = load_registries(with_plugins);
    initialise_tensors();
    world_ = {options.world, options.out + ".files", options.timeout_s};
    resume();
  }

  int operator()() {
    const auto total = options_.plans > 0 ? options_.plans : 0;
    std::ofstream out;
    if (!options_.out.empty()) {
      require_recordable(options_.out);
      add_provenance();
      out.open(options_.out, std::ios::app);
      KUAFU_REQUIRE(out.good(), "--out ", options_.out, " cannot be written");
    }
    if (world_.name == "mpi") std::filesystem::create_directories(world_.folder);
    Progress progress(std::cerr, progress_options_of_stderr(total, tally_.plans));
    const auto end = steady_clock::now() + std::chrono::duration<double>(options_.seconds);
    while (steady_clock::now() < end && (total == 0 || tally_.plans < total)) {
      progress.start(text("plan ", tally_.plans));
      const Json line = one(progress);
      if (out.is_open()) out << line.dump() << std::endl;
      progress.finish(line["ending"].get<std::string>());
    }
    if (world_.name == "mpi") std::filesystem::remove_all(world_.folder);
    std::cout << tally_.describe() << "; seed " << options_.seed << "\n";
    return tally_.findings() == 0 ? kOk : kFailed;
  }

 private:
  /// What every call wrote its lines with, in a file beside them: a list, a block a call.
  void add_provenance() const {
    const std::string path = options_.out + ".provenance.json";
    Json calls = Json::array();
    if (std::filesystem::exists(path)) calls = parse_json(read_file(path, "provenance"));
    calls.push_back({{"provenance", provenance()}});
    replace_file(path, json_document(calls));
  }
  /// Counts what the file already has of this seed and world.
  void resume() {
    std::ifstream in(options_.out);
    for (std::string line; std::getline(in, line);) {
      const Json done = Json::parse(line, nullptr, false);
      KUAFU_REQUIRE(done.is_object() && done.contains("ending") && done.contains("seed"), "--out ",
                    options_.out, ": line ", tally_.plans + 1, " is none of `kuafu fuzz`");
      KUAFU_REQUIRE(done["seed"] == options_.seed && done["world"] == options_.world, "--out ",
                    options_.out, " holds seed ", done["seed"].dump(), " and world ",
                    done["world"].dump(), "; go on with these, or name another file");
      tally_.add(ending_of(done["ending"].get<std::string>()));
    }
  }

  Json one(Progress& progress) {
    const auto index = static_cast<uint64_t>(tally_.plans);
    Draw draw(options_.seed, index);
    const Overrides settings = draw_plan(registries_, options_.ranks, draw);
    const Outcome outcome = run_apart(settings, registries_, world_);
    tally_.add(outcome.ending);
    Json line = {{"plan", index},
                 {"seed", options_.seed},
                 {"world", options_.world},
                 {"ranks", outcome.ranks},
                 {"ending", to_string(outcome.ending)},
                 {"settings", to_json(settings)}};
    if (outcome.ending != Ending::kEqual) line["why"] = outcome.why;
    if (is_finding(outcome.ending)) line["command"] = report(progress, index, settings, outcome);
    return line;
  }

  /// Prints a finding with the smallest plan that has it; returns its command.
  std::string report(Progress& progress, uint64_t index, const Overrides& settings,
                     const Outcome& outcome) {
    const Overrides least = minimise(
        settings, outcome.ending, options_.trials,
        [&](const Overrides& next) { return run_apart(next, registries_, world_).ending; });
    const std::string command = command_of(least, options_.world);
    // An exception of LibTorch carries its stack: the first line says what, --out has the rest.
    const std::string first = outcome.why.substr(0, outcome.why.find('\n'));
    progress.note(
        text("plan ", index, "  ", to_string(outcome.ending), "  ", first, "\n  ", command));
    return command;
  }

  const FuzzOptions& options_;
  Registries registries_;
  World world_;
  Tally tally_;
};

}  // namespace

int fuzz_command(const FuzzOptions& options) { return Campaign(options)(); }

}  // namespace kuafu
