// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/kuafu/options.h"

namespace kuafu {

/// What a guarded worker does: a run saves where it is stopped, what reads text with a model says what it has.
enum class Guarded : uint8_t { kRun, kForward };

/// Runs the worker of `kuafu run`, `generate` or `perplexity` and waits beside it, so that a worker that ends without a word (a
/// crash, a kill, a library that aborts) is still an error with a reason and, where `call` asks for
/// one, a document of status `failed`. The worker ends with this process; signals are passed on.
/// Returns the worker's exit code, 1 where it did not get to one, 128 + signal where a signal to
/// this process ended the worker before its end.
int run_guarded(const std::vector<std::string>& words, const WorkerCall& call,
                Guarded what = Guarded::kRun);

/// The document of a run that no worker wrote one for, where `call` asks for one.
void write_failure(const WorkerCall& call, const std::string& status, const std::string& reason);

/// Runs a worker that checks, to its end; its exit code. Where a signal ended it, says so, and its
/// document, which says "unfinished" until it is whole, becomes "crashed" or "interrupted".
int run_conformance(const std::vector<std::string>& words, const std::string& json);

}  // namespace kuafu
