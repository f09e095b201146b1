// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/worker/exit_code.h"
#include "kuafu/dataset/dataset.h"
#include "kuafu/engine/registries.h"
#include "kuafu/plan/origins.h"
#include "kuafu/plan/plan.h"

namespace CLI {
class App;
}

namespace kuafu {

/// What `kuafu run` and `kuafu explain` are told besides the plan.
struct WorkerOptions {
  std::string plan_file;
  Overrides overrides;
  std::string
      world;  ///< "threads", "mpi", "nccl", "simulated"; empty: mpi under a launcher, else threads
  std::string device;  ///< "cpu", "cuda"; empty: cuda where a card is found and the run can use it
  std::string transport;  ///< "threads", "mpi"; of the simulated world alone, empty: threads
  int64_t ranks = 0;      ///< 0: the plan's own product
  int64_t steps = 0;      ///< 0: the plan's
  bool is_certified = false;
  int64_t certify_memory = int64_t{4} << 30;  ///< bytes for the reference
  bool is_metered = true;
  std::string json_file;
  std::vector<std::string> plugins;
  bool is_names_only = false;   ///< list
  double timeout_s = 0;         ///< 0: none
  double stop_after_s = 0;      ///< 0: none
  int64_t stop_at = 0;          ///< steps, of a schedule that goes on; 0: the plan's
  std::string log_file;         ///< .jsonl or .csv; empty: none
  int64_t log_every = 0;        ///< steps between lines; 0: by time
  std::string tensorboard;      ///< folder; empty: none
  std::string trace_file;       ///< JSON lines; empty: none
  std::string oracles_file;     ///< a real trace, for a simulated one; empty: none
  std::string timeline_file;    ///< .json or .svg; empty: none
  std::string timetable_file;   ///< explain: .csv or .svg; empty: none
  std::string mpi_collectives;  ///< "own", "native"; empty: own
  std::string checkpoint;       ///< folder; empty: nothing is saved
  int64_t save_every = 0;       ///< steps; 0: after the last one only
  int64_t keep = 0;             ///< newest checkpoints that stay; 0: all
  std::string begin_from;       ///< a checkpoint; empty: none
  std::string init;             ///< weights; empty: those of the seed
  std::string weights;          ///< forwards: "host", "disk"; where they lie between their uses
  bool is_resumed = false;
  bool is_resumed_with_changes = false;
  bool is_save_async = false;
  bool is_of_suite = false;  ///< a case, which has no options of its own
  std::string vary;          ///< frontier: the key, and the largest value tried
  int64_t most = 0;
  std::vector<std::string> policies,
      budgets;               ///< frontier: a search of each pair; empty: the plan's
  bool is_measured = false;  ///< frontier
};

/// What `kuafu generate` is told besides plan, world and weights.
struct GenerateOptions {
  std::optional<std::string> prompt;     ///< none where they are in a file
  std::string file;                      ///< a prompt a line
  std::string cache = "on";              ///< or "host" or "off"
  bool is_fitted = false;                ///< as many prompts at a time as memory.device holds
  std::optional<int64_t> prompt_tokens;  ///< simulated: of each of train.batch prompts
  std::vector<std::string> stops;
  std::optional<int64_t> tokens, top_k;
  std::optional<double> temperature, top_p;
  std::optional<uint64_t> seed;
};

/// What `kuafu perplexity` is told besides plan, world and weights.
struct PerplexityOptions {
  std::string file;
  std::optional<int64_t> stride;  ///< none: model.sequence
};

/// What `kuafu embed` is told besides plan, world and weights.
struct EmbedOptions {
  std::optional<std::string> text;  ///< none where they are in a file
  std::string file;                 ///< a text a line
  std::string pooling = "mean";     ///< or "first"
  bool is_unit = false;
  std::optional<int64_t> cut;  ///< tokens of a text at most
};

/// What `kuafu matrix` is told.
struct MatrixOptions {
  Overrides filters;      ///< dimension=value
  int64_t triples = 200;  ///< combinations of three besides every pair
  uint64_t seed = 1;      ///< draws triples and share
  double share = 1;       ///< of all combinations
  int64_t jobs = 1;       ///< combinations at a time
  std::string out = "build/matrix";
  std::vector<std::string> plugins;
};

/// What `kuafu fuzz` is told.
struct FuzzOptions {
  double seconds = 60;
  int64_t plans = 0;  ///< of the seed, those in the file included; 0: as many as the time allows
  uint64_t seed = 1;
  int64_t ranks = 8;                ///< of a plan, at most
  std::vector<std::string> worlds;  ///< empty: all of this build
  int64_t jobs = 1;                 ///< plans at a time
  Overrides settings;               ///< of the one plan to run; empty: plans are drawn
  std::optional<uint64_t> only;     ///< number of the one plan of the seed to run
  std::string
      out;  ///< folder for result.json and README.md; what it holds is not run again; empty:
            ///< none
  double timeout_s = 60;  ///< of a plan
  int64_t trials = 200;   ///< runs to minimise a finding
  std::vector<std::string> plugins;
};

/// What `kuafu conformance` is told.
struct ConformanceOptions {
  /// By kind ("scheme", "model"); no names at all: those of the plug-ins, else all there is.
  std::map<std::string, std::vector<std::string>> names;
  std::vector<std::string> plugins;
  std::vector<int64_t> sizes;  ///< rank counts; empty: those of the kind
  double timeout_s = 600;      ///< of a check
  std::string json_file;
};

/// What `kuafu import` is told.
struct ImportOptions {
  std::string file;                    ///< of `hf` a folder
  std::string out;                     ///< folder of checkpoints
  std::string format = "safetensors";  ///< or "hf"
  bool is_plan_only = false;           ///< no checkpoint
  std::vector<std::string> plugins;
};

/// Trains one case and reports it. Returns an ExitCode.
int run_command(const WorkerOptions& options);

/// Its options but for those of the plan.
void add_generate_options(CLI::App& app, WorkerOptions& options, GenerateOptions& how);
/// Goes on with prompts. Returns an ExitCode.
int generate_command(const WorkerOptions& options, const GenerateOptions& how);

/// Its options but for those of the plan.
void add_perplexity_options(CLI::App& app, WorkerOptions& options, PerplexityOptions& how);
/// Says how well the model foretells a text. Returns an ExitCode.
int perplexity_command(const WorkerOptions& options, const PerplexityOptions& how);

/// Its options but for those of the plan.
void add_embed_options(CLI::App& app, WorkerOptions& options, EmbedOptions& how);
/// Makes a vector of each text. Returns an ExitCode.
int embed_command(const WorkerOptions& options, const EmbedOptions& how);

/// Prints what a plan would do: mesh, layouts, cost, traffic, memory.
int explain_command(const WorkerOptions& options);

/// Finds the largest value of a key whose simulated peak memory stays within memory.device.
int frontier_command(const WorkerOptions& options);
/// Runs small plans of every pair of choices and writes which work together. 1 where one is wrong.
int matrix_command(const MatrixOptions& options);

/// Draws random plans and runs each; minimises what it finds. 1 where a plan ends as none may.
int fuzz_command(const FuzzOptions& options);

/// Makes a plain file of weights the checkpoint of step 0 of a folder.
int import_command(const ImportOptions& options);

/// Checks choices of the registries on thread ranks; prints a table a kind and every failure. Returns
/// an ExitCode.
int conformance_command(const ConformanceOptions& options);

/// Registries with the plug-ins of the options loaded.
Registries load_registries(const WorkerOptions& options);

/// The plan of the options, parsed and resolved for its ranks. `world_ranks`: ranks a launcher
/// started, 0 = none did.
/// Rank 0 prints the plan's warnings, unless the call says otherwise.
enum class Warn : uint8_t { kYes, kNo };
Plan load_resolved(const WorkerOptions& options, const Registries& registries, int64_t world_ranks,
                   Warn warn = Warn::kYes);

/// The steps of the plan, where --stop-at ends the run before its last.
std::optional<int64_t> steps_beyond(const WorkerOptions& options);

/// Where the plan of the options gives its keys, for messages.
plan::Origins load_origins(const WorkerOptions& options);

/// Opens the data of plans; the corpus without a path is LibTorch's header tree. It is read once for
/// all that one opener opens, by whatever threads.
using DataOpener = std::function<OpenedData(const Plan&)>;
DataOpener data_opener();
/// The dataset alone.
std::function<std::unique_ptr<Dataset>(const Plan&)> dataset_opener(
    const DataOpener& open = data_opener());

}  // namespace kuafu
