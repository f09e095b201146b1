// SPDX-License-Identifier: Apache-2.0
// Injects faults into the disk tier until there were enough. disk_faults.h says what is checked.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "kuafu/base/config.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"
#include "tests/device/disk_faults.h"

namespace kuafu::device {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int64_t count = 10'000;
  uint64_t seed = 1;
  std::string out, folder = ".";
};

constexpr uint64_t kSlice = 100;  ///< cases between two writes of the results

Json fresh(const Options& options, const DiskFile& file) {
  return {{"seed", options.seed},     {"trains", false},  {"provenance", provenance()},
          {"how", file.how()},        {"cases", 0},       {"injected", 0},
          {"faults", Json::object()}, {"reads_right", 0}, {"refused", Json::object()},
          {"wrong", Json::array()},   {"seconds", 0.0}};
}

/// The results so far; those of another seed or commit begin anew.
Json known(const Options& options) {
  require_recordable(options.out);
  const DiskFile file({.folder = options.folder, .chunk_bytes = 1, .num_chunks = 1});
  Json all = fresh(options, file);
  if (options.out.empty() || !std::filesystem::exists(options.out)) return all;
  const Json before = parse_json(read_file(options.out, "results"));
  const bool is_ours = before.value("seed", Json()) == options.seed &&
                       value_at(before, "provenance.git_commit") == std::string(git_state().commit);
  return is_ours ? before : all;
}

void add(Json& to, const std::string& name, int64_t count) {
  to[name] = to.value(name, int64_t{0}) + count;
}

void add(Json& all, const DiskOutcome& outcome) {
  for (size_t i = 0; i < kNumFaults; ++i) {
    add(all["faults"], to_string(static_cast<Fault>(i)), outcome.faults[i]);
    add(all, "injected", outcome.faults[i]);
  }
  for (size_t i = 0; i < outcome.refused.size(); ++i) {
    add(all["refused"], to_string(static_cast<DiskError::Kind>(i)), outcome.refused[i]);
  }
  add(all, "reads_right", outcome.right);
}

int run(const Options& options) {
  Json all = known(options);
  while (all["injected"] < options.count && all["wrong"].empty()) {
    const auto begin = Clock::now();
    const auto first = all["cases"].get<uint64_t>();
    DiskOutcome outcome;
    for (uint64_t number = first; number < first + kSlice; ++number) {
      outcome.wrong.clear();
      run_disk_case(options.seed, number, options.folder, outcome);
      if (outcome.wrong.empty()) continue;
      all["wrong"].push_back({{"case", number}, {"what", outcome.wrong}});
      std::cout << "case " << number << ": " << outcome.wrong << std::endl;
    }
    add(all, outcome);
    all["cases"] = first + kSlice;
    all["seconds"] =
        all["seconds"].get<double>() + std::chrono::duration<double>(Clock::now() - begin).count();
    if (!options.out.empty()) replace_file(options.out, json_document(all));
  }
  std::cout << all["cases"] << " cases, " << all["injected"] << " faults " << all["faults"].dump()
            << ", " << all["reads_right"] << " reads right, refused " << all["refused"].dump()
            << ", " << all["wrong"].size() << " wrong, " << all["seconds"] << " s" << std::endl;
  return all["wrong"].empty() ? 0 : 1;
}

}  // namespace
}  // namespace kuafu::device

int main(int argc, char** argv) {
  using namespace kuafu::device;
  Options options;
  CLI::App app(
      "Injects faults into the disk tier: every read must give the bytes last written, or an "
      "error.\n"
      "Example: disk_campaign --count 10000 --seed 1 --folder build --out build/disk.json\n"
      "Calling again goes on where FILE ends. Exit code 1 where a fault was silent.");
  app.add_option("--count", options.count, "faults")->capture_default_str();
  app.add_option("--seed", options.seed, "of programs and faults")->capture_default_str();
  app.add_option("--folder", options.folder, "where the disk tier lies")->capture_default_str();
  app.add_option("--out", options.out, "FILE of the results, continued where it exists");
  CLI11_PARSE(app, argc, argv);
  try {
    // Cases look whether the folder is empty.
    options.folder += "/disk_campaign";
    std::filesystem::create_directories(options.folder);
    return run(options);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 2;
  }
}
