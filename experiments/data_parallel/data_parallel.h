// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/record/json.h"

// What experiments/data_parallel/run.py asks of this program.
namespace kuafu::experiment {

/// A way for replicas to agree.
struct Way {
  std::string mode = "auto";
  int64_t servers = 1;    ///< of "parameter_server"
  int64_t staleness = 0;  ///< of "parameter_server"
};

/// "ring", "parameter_server:2" (servers), "parameter_server:1:4" (staleness).
Way parse_way(const std::string& text);

struct SumsOptions {
  std::string world = "threads";  ///< "threads" | "simulated"
  int ranks = 2;
  int64_t ranks_per_node = 8;
  std::vector<std::string> ways;
  std::vector<int64_t> bytes;  ///< of f32 gradients
  int64_t rounds = 10;         ///< timed, after a tenth of them; ways take turns
};

/// Bytes, messages and seconds of replicas that agree on one parameter.
Json measure_sums(const SumsOptions& options);

struct StragglerOptions {
  int ranks = 4;
  std::vector<std::string> ways;
  std::string scenario = "constant";  ///< "none" | "constant" | "rotating": who is slow
  double base = 10;                   ///< every rank sleeps so that it is this many times slower
  double factor = 3;                  ///< the straggler is so many times slower than that
  int64_t steps = 24, rounds = 5;
  bool is_certified = true;
};

/// Seconds a step of training with a slow replica, the ways in turns.
Json measure_straggler(const StragglerOptions& options);

/// Seconds from the moment all ranks begin to the moment the last one ends.
template <class Body>
double timed(Communicator& world, const Body& body) {
  using Clock = std::chrono::steady_clock;
  world.barrier();
  const auto start = Clock::now();
  body();
  world.barrier();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace kuafu::experiment
