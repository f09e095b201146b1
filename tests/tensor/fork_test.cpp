// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 8;

/// 0 where every rank, a thread of this process, could set its number of threads at the same time.
int ranks_start() {
  std::barrier<> together(kRanks);
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> ranks;
    for (int r = 0; r < kRanks; ++r)
      ranks.emplace_back([&] {
        together.arrive_and_wait();
        try {
          at::set_num_threads(1);
        } catch (const std::exception&) {
          ++failed;
        }
      });
  }
  return failed;
}

// LibTorch gives a forked child a new pool of threads at its first use, and takes the old one away
// before. Ranks that all start with that use once found none: one run in some hundreds.
TEST(Fork, LetsTheRanksOfAChildStartTogether) {
  for (int child = 0; child < 100; ++child) {
    const pid_t id = ::fork();
    ASSERT_GE(id, 0);
    if (id == 0) ::_exit(ranks_start());
    int status = 0;
    ASSERT_EQ(::waitpid(id, &status, 0), id);
    ASSERT_TRUE(WIFEXITED(status)) << "child " << child << " ended by signal " << WTERMSIG(status);
    ASSERT_EQ(WEXITSTATUS(status), 0) << "ranks without a pool in child " << child;
  }
}

}  // namespace
