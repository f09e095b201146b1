// SPDX-License-Identifier: Apache-2.0
// Holds bound <= optimum <= every policy on random traces, and tells the regret of each policy.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/memory/optimum.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"
#include "tests/memory/campaign.h"

namespace kuafu::memory {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  uint64_t count = 10'000, seed = 1;
  std::string out;
  double seconds = 0;
};

constexpr uint64_t kSlice = 100;      ///< samples between two writes of the results
constexpr size_t kMostFindings = 20;  ///< there is enough to mend then

/// Adds one to a count by value: "7": 1.
void add_one(Json& counts, int64_t value) {
  Json& count = counts[std::to_string(value)];
  count = count.is_null() ? 1 : count.get<int64_t>() + 1;
}

Json nothing_yet(const Options& options) {
  Json all = {{"trains", false},      {"provenance", provenance()},
              {"seed", options.seed}, {"samples", 0},
              {"seconds", 0.0},       {"exhaustive", 0},
              {"unproven", 0},        {"over_bound", Json::object()}};
  for (const Contender& contender : contenders()) {
    all["policies"][contender.label] = {{"regret", Json::object()}, {"steps", Json::object()}};
  }
  all["wrong"] = Json::array();
  all["verdict"] = "held";
  return all;
}

/// The results in `out`, or none: of another seed they are refused, of another commit begun anew.
Json begin(const Options& options) {
  const std::string file = options.out + "/result.json";
  require_recordable(file);
  if (options.out.empty() || !std::filesystem::exists(file)) return nothing_yet(options);
  const Json all = parse_json(read_file(file, "results"));
  KUAFU_REQUIRE(all.value("seed", Json()) == options.seed, file, " is of seed ",
                all.value("seed", Json()).dump(), ", not ", options.seed,
                "; choose another folder with --out");
  const bool is_ours = value_at(all, "provenance.git_commit") == std::string(git_state().commit);
  return is_ours ? all : nothing_yet(options);
}

void add(uint64_t index, const Checked& checked, Json& all) {
  all["samples"] = index + 1;
  all["exhaustive"] = all["exhaustive"].get<int64_t>() + (checked.is_exhaustive ? 1 : 0);
  all["unproven"] = all["unproven"].get<int64_t>() + checked.unproven;
  add_one(all["over_bound"], checked.over_bound);
  for (size_t i = 0; i < contenders().size(); ++i) {
    Json& row = all["policies"][contenders()[i].label];
    add_one(row["regret"], checked.results[i].regret);
    add_one(row["steps"], checked.results[i].steps);
  }
  for (const std::string& what : checked.wrong) {
    all["wrong"].push_back({{"sample", index}, {"what", what}});
    all["verdict"] = "broken";
    std::cout << "sample " << index << ": " << what << std::endl;
  }
}

/// The regret below which a part of the samples lies; those that move where nothing need move come
/// last, unknown ones are left out.
std::string quantile(const Json& counts, double part) {
  std::map<int64_t, int64_t> sorted;
  int64_t all = 0;
  for (const auto& [value, count] : counts.items()) {
    int64_t regret = std::stoll(value);
    if (regret == kUnknown) continue;
    if (regret == kFromNothing) regret = std::numeric_limits<int64_t>::max();
    sorted[regret] += count.get<int64_t>();
    all += count.get<int64_t>();
  }
  const auto wanted = static_cast<int64_t>(std::ceil(part * static_cast<double>(all)));
  int64_t seen = 0;
  for (const auto& [regret, count] : sorted) {
    seen += count;
    if (seen < wanted) continue;
    if (regret == std::numeric_limits<int64_t>::max()) return "from nothing";
    std::ostringstream out;
    out << std::fixed << std::setprecision(1) << static_cast<double>(regret) / 10 << " %";
    return out.str();
  }
  return "-";
}

int64_t count_of(const Json& counts, int64_t value) {
  return counts.value(std::to_string(value), int64_t{0});
}

void add_row(std::ostream& out, const std::string& name, const Json& counts, const Json& all,
             const std::string& steps) {
  const int64_t samples = all["samples"].get<int64_t>() - count_of(counts, kUnknown);
  out << "| " << name << " | " << quantile(counts, 0.5) << " | " << quantile(counts, 0.9) << " | "
      << quantile(counts, 1) << " | " << count_of(counts, 0) << " of " << samples << " | "
      << count_of(counts, kFromNothing) << " | " << steps << " |\n";
}

std::string table_of(const Json& all) {
  std::ostringstream out;
  out << "Regret: bytes over the optimum of as many steps, less 1, in tenths of a percent, rounded "
         "up. "
      << all["samples"] << " random traces of seed " << all["seed"] << ", " << all["exhaustive"]
      << " of them of at most 8 chunks, whose optimum equals that of all states "
      << "tried; bound <= optimum <= every policy: " << all["verdict"].get<std::string>() << ".\n\n"
      << "| policy | median | 90 % | most | none | moves where nothing need move | repeats itself "
         "after |\n|---|---|---|---|---|---|---|\n";
  for (const Contender& contender : contenders()) {
    const Json& row = all["policies"][contender.label];
    int64_t longest = 0;
    for (const auto& [steps, count] : row["steps"].items()) {
      longest = std::max<int64_t>(longest, std::stoll(steps));
    }
    std::ostringstream steps;
    steps << "1 step in " << count_of(row["steps"], 1) << ", at most " << longest;
    add_row(out, "`" + contender.label + "`", row["regret"], all, steps.str());
  }
  add_row(out, "optimum over relaxation", all["over_bound"], all, "1 step by definition");
  out << "\nOptima that 10 s of search left open: " << all["unproven"] << ".\n";
  return out.str();
}

void write(const Options& options, const Json& all) {
  if (options.out.empty()) return;
  std::filesystem::create_directories(options.out);
  replace_file(options.out + "/result.json", json_document(all));
  replace_file(options.out + "/table.md", table_of(all));
}

int run(const Options& options) {
  KUAFU_REQUIRE(has_optimum(), "this kuafu was built without CBC, which finds the optimum");
  Json all = begin(options);
  const double before = all["seconds"].get<double>();
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  for (uint64_t index = all["samples"].get<uint64_t>();
       index < options.count && all["wrong"].size() < kMostFindings &&
       (options.seconds <= 0 || elapsed() < options.seconds);
       ++index) {
    add(index, check_sample(options.seed, index), all);
    all["seconds"] = before + elapsed();
    if ((index + 1) % kSlice == 0) write(options, all);
  }
  write(options, all);
  std::cout << table_of(all) << all["samples"] << " of " << options.count << " samples, "
            << all["wrong"].size() << " wrong, " << all["seconds"] << " s" << std::endl;
  return all["wrong"].empty() ? 0 : 1;
}

}  // namespace
}  // namespace kuafu::memory

int main(int argc, char** argv) {
  kuafu::memory::Options options;
  CLI::App app(
      "Holds bound <= optimum <= every policy on random traces of uses, the optimum to every state "
      "tried where there are at most 8 chunks, and tells how far each policy is from it.\n"
      "Example: memory_policies --count 10000 --seed 1 --out build/memory_policies\n"
      "Calling again goes on where the folder's results end. Exit code 1 where something is "
      "wrong.");
  app.add_option("--count", options.count, "samples")->capture_default_str();
  app.add_option("--seed", options.seed, "of the samples")->capture_default_str();
  app.add_option("--out", options.out, "FOLDER of result.json and table.md, continued if there");
  app.add_option("--seconds", options.seconds, "begin no sample after so many seconds");
  CLI11_PARSE(app, argc, argv);
  try {
    return kuafu::memory::run(options);
  } catch (const kuafu::Error& e) {
    std::cerr << "memory_policies: " << e.what() << std::endl;
    return 2;
  }
}
