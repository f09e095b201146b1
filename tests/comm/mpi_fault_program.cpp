// SPDX-License-Identifier: Apache-2.0
// An MPI rank program that goes wrong as its argument says; mpi_faults_test runs it. Prints its
// process number, works a little, prints the time, and errs.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "kuafu/comm/worlds.h"

namespace kuafu {
namespace {

void sum(Communicator& c, int64_t count) {
  std::vector<float> v(static_cast<size_t>(count));
  c.all_reduce({.data = v.data(), .count = count}, ReduceOp::kSum).wait();
}

void err(const std::string& how, Communicator& world) {
  const bool is_culprit = world.rank() == 1;
  if (how == "throw" && is_culprit) throw ConfigError("one is wrong");
  if (how == "throw_everywhere") throw ConfigError("all are wrong");
  if (how == "throw_with_work") {
    std::vector<float> v(1 << 20);
    Work work = world.all_reduce({.data = v.data(), .count = 1 << 20}, ReduceOp::kSum);
    if (is_culprit) throw ConfigError("one is wrong");
  }
  if (how == "exit" && is_culprit) std::exit(3);
  if (how == "kill" && is_culprit) raise(SIGKILL);
  if (how == "return" && is_culprit) return;
  if (how == "skip" && !is_culprit) sum(world, 10);
  if (how == "skip") world.barrier();
  if (how == "shift" && !is_culprit) sum(world, 10);  // the same call once more than the culprit
  if (how == "swap" && is_culprit) {
    float x = 0;
    world.broadcast({.data = &x, .count = 1}, 0).wait();
  }
  if (how == "count") sum(world, is_culprit ? 11 : 10);
  if (how == "large_count") sum(world, is_culprit ? 300000 : 200000);
  if (how == "two_groups") {
    const auto other = world.split([](int) { return SplitKey{}; });
    other->meter(nullptr, "tensor");
    sum(is_culprit ? *other : world, 10);
  }
  if (how == "receive" && is_culprit) {
    float x = 0;
    world.recv({.data = &x, .count = 1}, 0, 4).wait();
  }
  sum(world, 20);
}

}  // namespace
}  // namespace kuafu

int main(int, char** argv) {
  using namespace kuafu;
  const bool is_native = std::string(argv[2]) == "native";
  std::printf("pid %d\n", getpid());
  run_on_mpi(
      [&](Communicator& world) {
        world.meter(nullptr, "data");
        sum(world, 5);
        std::printf("time %lld\n",
                    static_cast<long long>(std::chrono::system_clock::now().time_since_epoch() /
                                           std::chrono::milliseconds(1)));
        std::fflush(stdout);
        err(argv[1], world);
      },
      is_native ? MpiCollectives::kNative : MpiCollectives::kOwn);
  return 0;
}
