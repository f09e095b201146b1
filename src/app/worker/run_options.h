// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/worker/options.h"
#include "app/worker/step_log.h"
#include "kuafu/base/trace.h"
#include "kuafu/engine/saving/save.h"

namespace kuafu {

// Options of `kuafu run`, checked before anything is computed or said between ranks. Each throws
// ConfigError naming the option.

/// A file that the run will write.
void require_writable(const char* option, const std::string& file);

/// `--transport`, `--mpi-collectives`.
void check_world(const WorkerOptions& options, const std::string& world);

/// "cpu" or "cuda" of the variable KUAFU_DEVICE; empty: it says nothing. Throws ConfigError for others.
std::string device_by_environment();

/// Throws Unavailable where `device` is "cuda" and there is no card.
void require_card(const std::string& device);

/// What ranks compute on, "cpu" or "cuda": `--device`, else KUAFU_DEVICE, else a card where one is found
/// that can run this build, and nothing was asked for that it cannot do.
std::string device_of(const WorkerOptions& options, const std::string& world, const Plan& plan);

/// `--certify`. A suite may ask it of all its cases, of which those of other worlds are certified.
void check_certify(const WorkerOptions& options, const std::string& world);

/// What `--init` names, opened; none without it.
std::optional<NamedWeights> init_of(const WorkerOptions& options, const std::string& world,
                                    const Plan& plan, const Registries& registries);

/// What `--checkpoint` and its companions ask.
SaveOptions save_options_of(const WorkerOptions& options, const std::string& world,
                            const Plan& plan);

void check_timeline(const WorkerOptions& options, const Plan& plan);

/// The values of a real run's trace, for `--oracles`; empty without.
std::vector<Trace> check_trace(const WorkerOptions& options, const std::string& world,
                               const Plan& plan);

/// A log that is there belongs to another run, unless that one goes on.
void check_log_is_new(const WorkerOptions& options);

/// `--log`, `--log-every`, `--tensorboard`, `--stop-after`.
void check_watching(const WorkerOptions& options, const std::string& world);

/// Whether somebody watches the steps: a terminal, lines that were asked for, a log.
bool shows_progress(const WorkerOptions& options);

/// Of a run whose first step, from 0, is `first`; for standard error as it is.
StepLog::Options log_options_of(const WorkerOptions& options, const Plan& plan, int64_t first);

}  // namespace kuafu
