// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kuafu {
namespace {

struct Outcome {
  int status = 0;
  std::string output;
};

/// Two ranks of micro_mpi on 1 KiB, each with arguments of its own; ended after 60 s.
Outcome run(const std::string& of_rank_0, const std::string& of_rank_1) {
  const std::string program = std::string(std::getenv("KUAFU_BINARY_DIR")) +
                              "/bin/micro_mpi --benchmark_color=false --benchmark_filter=/1024/ ";
  const std::string command = "timeout 60 " + std::string(std::getenv("KUAFU_SOURCE_DIR")) +
                              "/scripts/mpirun.sh -n 1 " + program + of_rank_0 + " : -n 1 " +
                              program + of_rank_1 + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return outcome;
  }
  char buffer[4096];
  for (size_t n = fread(buffer, 1, sizeof buffer, pipe); n > 0;
       n = fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.status = pclose(pipe);
  return outcome;
}

/// Lines that start with `name` and end with `calls`, the number of calls that were timed.
int num_lines(const std::string& output, const std::string& name, const std::string& calls) {
  int n = 0;
  size_t begin = 0;
  for (size_t end = output.find('\n'); end != std::string::npos; end = output.find('\n', begin)) {
    const std::string line = output.substr(begin, end - begin);
    if (line.starts_with(name) && line.find(" " + calls + " ") != std::string::npos) ++n;
    begin = end + 1;
  }
  return n;
}

// Left to itself, the first rank would make some 50 calls and the second some 100000, and one of
// them would wait for ever.
TEST(MicroMpi, EndsWhereRanksWouldGuessUnequalIterationCounts) {
  const Outcome outcome = run("--benchmark_min_time=0.0005", "--benchmark_min_time=2");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_GE(num_lines(outcome.output, "own/1024/", "2500"), 2) << outcome.output;
  EXPECT_GE(num_lines(outcome.output, "library/1024/", "2500"), 2) << outcome.output;
}

}  // namespace
}  // namespace kuafu
