// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/kuafu/new_command.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

struct Suite;

/// Exit codes of the front. `run` and `explain` return the worker's, which are the same and more.
enum FrontExit : int {
  kDone = 0,
  kBad = 1,
  kMisused = 2,
  kNoMemory = 4,
  kUnwritten = 7,
  kStopped = 130
};

/// `kuafu run`, `kuafu explain` and `kuafu frontier`.
struct WorkerCall {
  std::string plan;
  std::vector<std::string> sets;
  std::string world;
  std::string device;
  std::string transport;
  int64_t ranks = 0;
  int64_t steps = 0;
  std::optional<bool> is_certified;
  int64_t certify_memory = 0;  ///< bytes; 0: the worker's default
  bool is_metered = true;
  std::string json;
  std::vector<std::string> plugins;
  double timeout_s = 0;
  double stop_after_s = 0;
  int64_t stop_at = 0;
  std::string log;  ///< file
  int64_t log_every = 0;
  std::string tensorboard;  ///< folder
  std::string trace;        ///< file
  std::string oracles;      ///< file
  std::string timeline;     ///< file
  std::string timetable;    ///< explain: file
  std::string mpi_collectives;
  std::string checkpoint;  ///< folder
  int64_t save_every = 0;
  int64_t keep = 0;
  std::string begin_from;  ///< a checkpoint
  std::string init;        ///< weights
  std::string weights;     ///< generate, perplexity, embed: where they lie, "host" or "disk"
  bool is_resumed = false;
  bool is_resumed_with_changes = false;
  bool is_save_async = false;
  std::string vary;  ///< frontier
  int64_t most = 0;
  std::vector<std::string> policies, budgets;
  bool is_measured = false;
};

/// `kuafu generate`; numbers are as they were given, empty = the worker's default.
struct GenerateCall {
  WorkerCall worker;
  std::string prompt, file;  ///< one of them
  std::string tokens, temperature, top_k, top_p, seed, cache, prompt_tokens;
  bool is_fitted = false;
  std::vector<std::string> stops;
};

/// `kuafu perplexity`.
struct PerplexityCall {
  WorkerCall worker;
  std::string file;
  std::optional<int64_t> stride;
};

/// `kuafu embed`; numbers are as they were given, empty = the worker's default.
struct EmbedCall {
  WorkerCall worker;
  std::string text, file;  ///< one of them
  std::string pooling, cut;
  bool is_unit = false;
};

/// `kuafu conformance`.
struct ConformanceCall {
  std::vector<std::string> schemes, sequences, models, schedules, optimizers, policies;
  std::vector<std::string> plugins;
  std::string device;
  std::vector<int64_t> sizes;  ///< empty = the worker's
  double timeout_s = 0;        ///< of a check; 0 = the worker's
  std::string json;
};

/// `kuafu suite`.
struct SuiteCall {
  std::string suite;
  std::string out;  ///< empty = results/runs/<name of the suite>
  std::vector<std::string> sets;
  std::vector<std::string> filters;
  std::vector<std::string> plugins;
  std::optional<std::string> retry;  ///< statuses
  std::optional<double> timeout_s;
  std::optional<std::string> budget;  ///< bytes, with their unit
  int64_t certify_memory = 0;         ///< bytes; 0: the worker's default
  std::string device;                 ///< empty: each run's own choice
  std::optional<int64_t> repeats;
  bool is_dry_run = false;
  bool has_report = true;
  std::string worker;  ///< empty = beside this program
};

/// `kuafu export`.
struct ExportCall {
  std::string checkpoint;                  ///< folder of one, or of several
  std::string out;                         ///< file; of `hf` a folder
  std::string format = "safetensors";      ///< or "hf"
  int64_t shard_bytes = int64_t{5} << 30;  ///< of `hf`: of a file at most
};

/// `kuafu import`.
struct ImportCall {
  std::string file;                    ///< of `hf` a folder
  std::string out;                     ///< folder of checkpoints
  std::string format = "safetensors";  ///< or "hf"
  bool is_plan_only = false;
  std::vector<std::string> plugins;
};

/// `kuafu tokenize`.
struct TokenizeCall {
  std::string tokenizer;           ///< file
  std::vector<std::string> files;  ///< empty: the standard input
  bool is_decoded = false;
  bool has_special = false;
  bool is_whole = false;
  bool is_json = false;
};

/// `kuafu report`.
struct ReportCall {
  std::vector<std::string> folders;
  std::string out;  ///< folder; empty = the one folder, or none where text is asked for
  std::string csv, junit, parquet;  ///< files
  bool is_text = false;
  std::optional<int64_t>
      layers;       ///< cases whose layers the text tells; none = the script's default
  SuiteCall suite;  ///< what made the folders; its `suite` is empty = look for it by name
};

struct CompareCall {
  std::string a, b;
  bool is_exact_only = false;
  std::vector<std::string> subsets;
  std::string by = "id";
  std::string smallest_effect = "5%";
};

/// `kuafu merge`.
struct MergeCall {
  std::vector<std::string> folders;
  std::string out;
};

struct DoctorCall {
  bool tells_provenance = false;  ///< the JSON block of results, nothing else
};

struct ListCall {
  std::string kind;
  std::vector<std::string> plugins;
};

/// `kuafu matrix`; empty = the worker's default.
struct MatrixCall {
  std::vector<std::string> filters;
  std::string triples, seed, share, jobs, out, device;
  std::vector<std::string> plugins;
};

/// `kuafu fuzz`; empty = the worker's default.
struct FuzzCall {
  std::string seconds, plans, seed, ranks, jobs, only, out, timeout, device;
  std::vector<std::string> worlds, sets;
  std::vector<std::string> plugins;
};

/// What the command line asks for: exactly one of the calls, by `command`.
struct FrontCall {
  std::string command;  ///< empty: done, `exit_code` says how
  int exit_code = kDone;
  WorkerCall worker;
  GenerateCall generate;
  PerplexityCall perplexity;
  EmbedCall embed;
  ConformanceCall conformance;
  SuiteCall suite;
  ExportCall exported;
  ImportCall imported;
  TokenizeCall tokenize;
  ReportCall report;
  CompareCall compare;
  MergeCall merge;
  ListCall list;
  DoctorCall doctor;
  MatrixCall matrix;
  FuzzCall fuzz;
  NewCall created;
};

/// Reads the command line; prints help and errors. A misspelt command or option gets the nearest.
FrontCall parse_command_line(int argc, char** argv);

/// "a.b=value" to ("a.b", "value"). Throws ConfigError naming the option.
Overrides split_pairs(const std::vector<std::string>& pairs, const std::string& option);

int worker_command(const std::string& command, const WorkerCall& call);
int generate_command(const GenerateCall& call);
int perplexity_command(const PerplexityCall& call);
int embed_command(const EmbedCall& call);
int conformance_command(const ConformanceCall& call);
int suite_command(const SuiteCall& call);
int export_command(const ExportCall& call);
int import_command(const ImportCall& call);
int tokenize_command(const TokenizeCall& call);
Suite read_suite(const SuiteCall& call);
int report_command(const ReportCall& call);
int compare_command(const CompareCall& call);
int merge_command(const MergeCall& call);
int list_command(const ListCall& call);
int doctor_command(const DoctorCall& call);
int matrix_command(const MatrixCall& call);
int fuzz_command(const FuzzCall& call);

}  // namespace kuafu
