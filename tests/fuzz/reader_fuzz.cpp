// SPDX-License-Identifier: Apache-2.0
// Gives the readers mutated inputs. tests/fuzz/README.md says what is checked.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>

#include "kuafu/base/config.h"
#include "kuafu/base/crc32.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/supervise.h"

namespace kuafu::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> targets;
  uint64_t count = 100'000, seed = 1;
  std::string out, kept;
  unsigned limit_s = 20;
  double seconds = 0;
};

constexpr uint64_t kSlice = 500;      ///< inputs between two writes of the results
constexpr size_t kMostFindings = 20;  ///< of a target; there is enough to mend then

/// The results so far, kept in `out`; those of another seed are refused. A target that was not
/// finished by a program of the same commit begins anew: its inputs are of one program.
class Results {
 public:
  explicit Results(const Options& options) : options_(options) {
    require_recordable(options.out);
    all_ = {{"trains", false}, {"seed", options.seed}, {"targets", Json::object()}};
    for (const std::string& name : target_names()) all_["targets"][name] = nullptr;
    if (!options.out.empty() && std::filesystem::exists(options.out)) {
      all_ = parse_json(read_file(options.out, "results"));
      KUAFU_REQUIRE(all_.value("seed", Json()) == options.seed, options.out, " is of seed ",
                    all_.value("seed", Json()).dump(), ", not ", options.seed,
                    "; choose another file with --out");
    }
  }

  /// Stays where it is: all names are in from the beginning.
  Json& of(const std::string& target) {
    Json& row = all_["targets"][target];
    const bool is_others =
        !row.is_null() && row["inputs"] < options_.count &&
        value_at(row, "provenance.git_commit") != std::string(git_state().commit);
    if (row.is_null() || is_others) {
      row = {{"provenance", provenance()},
             {"inputs", 0},
             {"values", 0},
             {"refused", 0},
             {"seconds", 0.0},
             {"wrong", Json::array()}};
    }
    return row;
  }

  void write() {
    if (!options_.out.empty()) replace_file(options_.out, json_document(all_));
  }

 private:
  const Options& options_;
  Json all_;
};

/// Keeps a minimised input where the tests find it; returns its name.
std::string keep(const Target& target, const std::string& bytes, const Options& options) {
  if (options.kept.empty()) return "";
  const std::string folder = options.kept + "/" + target.name;
  std::filesystem::create_directories(folder);
  const std::string name = crc32_digits(bytes);
  replace_file(folder + "/" + name, bytes);
  return target.name + "/" + name;
}

void run_target(const Target& target, const Options& options, Results& results,
                Clock::time_point end) {
  Json& row = results.of(target.name);
  auto at = row["inputs"].get<uint64_t>();
  while (at < options.count && row["wrong"].size() < kMostFindings &&
         (options.seconds <= 0 || Clock::now() < end)) {
    const auto begin = Clock::now();
    const ReaderOutcome outcome = run_range(
        target, {options.seed, at, std::min(at + kSlice, options.count)}, options.limit_s);
    at = outcome.end;
    row["inputs"] = at;
    row["values"] = row["values"].get<uint64_t>() + outcome.values;
    row["refused"] = row["refused"].get<uint64_t>() + outcome.refused;
    row["seconds"] =
        row["seconds"].get<double>() + std::chrono::duration<double>(Clock::now() - begin).count();
    if (!outcome.wrong.empty()) {
      const std::string bytes = mutated(target.valid, options.seed, at - 1);
      const std::string least = minimised(target, bytes, outcome.wrong, options.limit_s);
      row["wrong"].push_back(
          {{"input", at - 1}, {"what", outcome.wrong}, {"kept", keep(target, least, options)}});
      std::cout << target.name << ": input " << at - 1 << ": " << outcome.wrong << std::endl;
    }
    results.write();
  }
  std::cout << target.name << ": " << at << " of " << options.count << " inputs, " << row["values"]
            << " values, " << row["refused"] << " refused, " << row["wrong"].size() << " wrong, "
            << row["seconds"] << " s" << std::endl;
}

int run(const Options& options) {
  Results results(options);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(options.seconds));
  size_t wrong = 0;
  for (const std::string& name : options.targets) {
    run_target(make_target(name), options, results, end);
    wrong += results.of(name)["wrong"].size();
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kuafu::fuzz

int main(int argc, char** argv) {
  using namespace kuafu::fuzz;
  Options options;
  CLI::App app(
      "Gives readers mutated inputs: each must give the value as written, or an error with a "
      "text.\n"
      "Example: reader_fuzz --target plan --count 100000 --seed 1 --out build/fuzz.json\n"
      "Calling again goes on where FILE ends. Exit code 1 where a reader did wrong.");
  app.add_option("--target", options.targets,
                 "of " + kuafu::join(target_names()) + "; without it all");
  app.add_option("--count", options.count, "inputs a target")->capture_default_str();
  app.add_option("--seed", options.seed, "of the mutations")->capture_default_str();
  app.add_option("--out", options.out, "FILE of the results, continued where it exists");
  app.add_option("--kept", options.kept, "folder for the minimised inputs of what is wrong");
  app.add_option("--limit", options.limit_s, "seconds an input may take")->capture_default_str();
  app.add_option("--seconds", options.seconds, "begin no slice of inputs after so many seconds");
  CLI11_PARSE(app, argc, argv);
  if (options.targets.empty()) options.targets = target_names();
  try {
    return run(options);
  } catch (const kuafu::Error& e) {
    std::cerr << "reader_fuzz: " << e.what() << std::endl;
    return 2;
  }
}
