// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "app/worker/jobs.h"
#include "app/worker/matrix.h"
#include "app/worker/options.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/record/files.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/launch_folders.h"
#include "kuafu/record/progress.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

using namespace matrix;

/// What a combination has of a dimension: the first value where it is none of its choices.
const std::string& value_of(const Dimension& dimension, size_t number, const Combination& of) {
  for (const ChosenValue& choice : of) {
    if (choice.dimension == number) return dimension.values[choice.value].name;
  }
  return dimension.values.front().name;
}

/// True where the combination has, of every dimension that a filter names, one of the values that
/// filters ask for.
bool passes(const std::vector<Dimension>& dims, const Combination& combination,
            const Overrides& filters) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const std::string& value = value_of(dims[d], d, combination);
    bool is_named = false, is_wanted = false;
    for (const auto& [name, asked] : filters) {
      is_named = is_named || name == dims[d].name;
      is_wanted = is_wanted || (name == dims[d].name && asked == value);
    }
    if (is_named && !is_wanted) return false;
  }
  return true;
}

void check_filters(const std::vector<Dimension>& dims, const Overrides& filters) {
  for (const auto& [name, value] : filters) {
    std::vector<std::string> names, values;
    for (const Dimension& dimension : dims) {
      names.push_back(dimension.name);
      if (dimension.name != name) continue;
      for (const DimensionValue& one : dimension.values) values.push_back(one.name);
    }
    KUAFU_REQUIRE(!values.empty(), "--filter ", name, "=", value, ": no dimension ",
                  in_quotes(name), "; nearest: ", in_quotes(nearest(name, names)),
                  "; allowed: ", join(in_quotes(names)));
    KUAFU_REQUIRE(std::find(values.begin(), values.end(), value) != values.end(), "--filter ", name,
                  "=", value, ": no such value; nearest: ", in_quotes(nearest(value, values)),
                  "; allowed: ", join(in_quotes(values)));
  }
}

/// A number from 0 to 1 of a combination, the same whatever else there is.
double drawn(const std::string& name, uint64_t seed) {
  const CounterRandom random(seed, hash_name(name));
  return static_cast<double>(random.bits(0) >> 11) * 0x1.0p-53;
}

/// Drops what is not in the share: what is drawn above it, but for the first drawn of those that
/// together have some value besides the default of every dimension.
void take_share(const std::vector<Dimension>& dims, std::vector<Combination>& all, double share,
                uint64_t seed) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < all.size(); ++i) order.emplace_back(drawn(name_of(dims, all[i]), seed), i);
  std::sort(order.begin(), order.end());
  std::vector<bool> is_taken(all.size()), is_met(dims.size());
  const auto is_new = [&](const ChosenValue& c) { return c.value != 0 && !is_met[c.dimension]; };
  const auto take = [&](size_t i) {
    is_taken[i] = true;
    for (const ChosenValue& c : all[i]) is_met[c.dimension] = is_met[c.dimension] || c.value != 0;
  };
  for (const auto& [number, i] : order) {
    if (number < share || std::all_of(all[i].begin(), all[i].end(), is_new)) take(i);
  }
  for (const auto& [number, i] : order) {
    if (std::any_of(all[i].begin(), all[i].end(), is_new)) take(i);
  }
  size_t at = 0;
  std::erase_if(all, [&](const Combination&) { return !is_taken[at++]; });
}

/// Empty where all combinations are tried.
std::string words_of_part(const MatrixOptions& options) {
  std::string words;
  if (options.share < 1) words += text(" --share ", options.share);
  for (const auto& [name, value] : options.filters) words += text(" --filter ", name, "=", value);
  return words;
}

}  // namespace

int matrix_command(const MatrixOptions& options) {
  require_recordable(options.out);
  const LaunchFolders folders;
  WorkerOptions with_plugins;
  with_plugins.plugins = options.plugins;
  const Registries registries = load_registries(with_plugins);
  initialise_tensors();
  const std::vector<Dimension> dims = dimensions(registries);
  check_filters(dims, options.filters);
  std::vector<Combination> wanted = combinations(dims, options.triples, options.seed);
  std::erase_if(wanted, [&](const Combination& c) { return !passes(dims, c, options.filters); });
  take_share(dims, wanted, options.share, options.seed);
  std::vector<Cell> cases;
  for (Combination& one : wanted) cases.push_back({std::move(one), {}});
  KUAFU_REQUIRE(!cases.empty(), "no combination is left; take a larger --share or fewer --filter");

  make_writable_folder(options.out);
  const FolderLock lock(options.out);
  const std::string scratch = options.out + "/.matrix";
  make_writable_folder(scratch);
  MatrixRunner runner(registries, scratch, options.plugins);
  Progress progress(std::cerr, progress_options_of_stderr(static_cast<int64_t>(cases.size()), 0));
  int64_t num_different = 0;
  int64_t num_done = 0;
  const int signal = run_jobs(
      {.jobs = options.jobs,
       .is_wanted = [&](int64_t i) { return i < static_cast<int64_t>(cases.size()); },
       .work =
           [&](int64_t i) {
             const Combination& one = cases[static_cast<size_t>(i)].combination;
             return words_of(runner.run(settings_of(dims, one), circumstances_of(dims, one)));
           },
       .take =
           [&](int64_t i, const Answer& answer) {
             Cell& one = cases[static_cast<size_t>(i)];
             const std::string name = name_of(dims, one.combination);
             progress.start(name);
             one.outcome =
                 answer.is_lost ? CellOutcome{.why = answer.words} : outcome_of(answer.words);
             if (one.outcome.status == Status::kDifferent) {
               progress.note(text("DIFFERENT  ", name, "  ", one.outcome.why));
               ++num_different;
             }
             progress.finish(to_string(one.outcome.status), answer.seconds);
             ++num_done;
           }});
  if (signal != 0) {
    return tell_interrupted(signal, text("after ", num_done, " of ", cases.size(),
                                         " combinations; the same call goes on behind them"));
  }
  replace_file(options.out + "/compatibility.json",
               to_json(dims, cases, options.seed).dump(1) + "\n");
  replace_file(options.out + "/compatibility.md",
               to_markdown(dims, cases, options.seed, words_of_part(options)));
  std::filesystem::remove_all(scratch);  // until then a call goes on where this one ended
  std::cout << cases.size() << " combinations, " << num_different << " different; " << options.out
            << "/compatibility.md\n";
  return num_different == 0 ? kOk : kFailed;
}

}  // namespace kuafu
