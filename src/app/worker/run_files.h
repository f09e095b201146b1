// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "app/worker/options.h"
#include "kuafu/base/trace.h"
#include "kuafu/record/file_claim.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// What a run writes besides checkpoints: its document, trace and timeline. A file that cannot be
/// written (a full disk) costs nothing else: it is told of, once, and is_incomplete(). Threads may
/// share it.
class RunFiles {
 public:
  explicit RunFiles(const WorkerOptions& options) : options_(options) {}

  bool is_traced() const { return !options_.trace_file.empty() || !options_.timeline_file.empty(); }
  /// Nobody else on this machine writes the table of --log while this process lives (FileClaim).
  void claim_log();
  /// The document of an earlier run goes: whatever ends this one, it is none of its results.
  void drop_older_document();
  void write_document(const Json& document);
  /// What a rank has written; without fields where none has.
  Json document() const;
  /// Events of the last step, a text a rank (trace_lines).
  void write_events(const Plan& plan, const std::string& world,
                    const std::vector<std::string>& lines_by_rank);
  /// The same, simulated; `oracles`: see check_trace().
  void write_simulated_events(const Plan& plan, const Registries& registries,
                              const std::vector<Trace>& oracles);
  /// Calls `write`, which may throw ConfigError with path and reason.
  void attempt(const std::function<void()>& write);

  /// A file was not written as it was asked for.
  bool is_incomplete() const { return is_incomplete_; }

 private:
  const WorkerOptions& options_;
  FileClaim claim_;  ///< of the log
  std::mutex mutex_;
  std::set<std::string> told_;
  std::atomic<bool> is_incomplete_ = false;
};

}  // namespace kuafu
