// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/base/errors.h"

namespace kuafu {

/// A limit of this process's memory under which the worker cannot even be loaded.
class TooLittleMemory : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// The kuafu-worker beside this program. Throws ConfigError where the build has none, TooLittleMemory
/// where `ulimit -v` or `-d` leaves no room for it, which is tried.
std::string worker_path();

/// Words before `-n RANKS` that start MPI ranks with the settings they need: the project's script
/// where the source tree is still there, else mpirun.
std::vector<std::string> mpi_launcher();

/// The project's Python (KUAFU_PYTHON, else the source tree's .venv) with a script of the source
/// tree. Empty, with the reason in `why_not`, where one is missing.
std::vector<std::string> python_script(const std::string& script, std::string& why_not);

/// The baselines of the source tree, which suites compare with.
std::string baselines_folder();

/// Throws Unavailable where `device` is "cuda" and this machine has no card: asked here, because a worker
/// that has asked cannot fork.
void require_card(const std::string& device);

/// Replaces this process. Throws ConfigError where that is not possible.
[[noreturn]] void become(const std::vector<std::string>& words);

/// Runs a program, waits, returns its exit status; 128 + signal where one killed it.
int run_and_wait(const std::vector<std::string>& words);

/// What a program prints, to its end; its standard error is ours. Throws ConfigError where it cannot
/// be started or fails.
std::string output_of(const std::vector<std::string>& words);

/// First line that a command prints; empty where it fails or prints nothing.
std::string first_line_of(const std::string& command);

}  // namespace kuafu
