// SPDX-License-Identifier: Apache-2.0
//
// Pipelines, alone and with ZeRO, under mpirun: the certificate and the results of threads.

#include <gtest/gtest.h>

#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::kSmallPlan;
using tests::mpirun;
using tests::Ran;
using tests::run_worker;

Arguments certified(const std::vector<std::string>& settings) {
  Arguments words = {"--certify"};
  for (const std::string& s : settings) {
    words.push_back("--set");
    words.push_back(s);
  }
  return words;
}

/// Runs on threads and under MPI; both are certified and count the same.
std::pair<Ran, Ran> run_both(int ranks, const std::vector<std::string>& settings) {
  const Arguments words = certified(settings);
  const Ran threads = run_worker(kSmallPlan, words),
            mpi = run_worker(kSmallPlan, words, mpirun(ranks));
  EXPECT_EQ(threads.code, 0) << threads.output;
  EXPECT_EQ(mpi.code, 0) << mpi.output;
  for (const Ran* ran : {&threads, &mpi}) {
    EXPECT_EQ(value_at(ran->document, "certificate.verdict"), "equal");
  }
  EXPECT_EQ(value_at(mpi.document, "world"), "mpi");
  EXPECT_EQ(value_at(mpi.document, "memory.peak_bytes"),
            value_at(threads.document, "memory.peak_bytes"));
  EXPECT_EQ(value_at(mpi.document, "flops_per_step"), value_at(threads.document, "flops_per_step"));
  EXPECT_EQ(value_at(mpi.document, "ledger.pipeline.calls"),
            value_at(threads.document, "ledger.pipeline.calls"));
  return {threads, mpi};
}

// Two ranks and groups of two throughout: a + b = b + a, so the bits agree.
TEST(PipelineMpi, StagesOfTwoRanksGiveTheBitsOfThreads) {
  struct Schedule {
    const char *name, *chunks;
  };
  for (const Schedule& s : {Schedule{"interleaved", "2"}, {"zero_bubble", "1"}, {"zbv", "2"}}) {
    SCOPED_TRACE(s.name);
    const auto [threads, mpi] = run_both(
        2, {"parallel.pipeline.size=2", std::string("parallel.pipeline.schedule=") + s.name,
            std::string("parallel.pipeline.chunks=") + s.chunks, "train.micro_batch=2"});
    EXPECT_EQ(mpi.document["loss"], threads.document["loss"]);
  }
}

TEST(PipelineMpi, ReplicasUnderZeroGiveTheBitsOfThreads) {
  for (const char* zero : {"1", "2", "3"}) {
    SCOPED_TRACE(std::string("ZeRO-") + zero);
    const auto [threads, mpi] =
        run_both(4, {"parallel.pipeline.size=2", "parallel.data=2", "train.micro_batch=1",
                     std::string("parallel.zero=") + zero, "model.dropout=0.1"});
    EXPECT_EQ(mpi.document["loss"], threads.document["loss"]);
  }
}

TEST(PipelineMpi, StagesOfATensorGroupGiveTheBitsOfThreads) {
  const auto [threads, mpi] =
      run_both(4, {"parallel.pipeline.size=2", "parallel.tensor.mode=1d", "parallel.tensor.size=2",
                   "train.micro_batch=2", "memory.recompute=full"});
  EXPECT_EQ(mpi.document["loss"], threads.document["loss"]);
}

// The norm of three stages is summed along a ring: f32 losses differ by rounding, 80 eps.
TEST(PipelineMpi, ThreeStagesAgreeUpToRounding) {
  const auto [threads, mpi] = run_both(
      3, {"parallel.pipeline.size=3", "parallel.pipeline.schedule=gpipe", "train.micro_batch=2"});
  for (size_t step = 0; step < 3; ++step) {
    const double a = mpi.document["loss"][step], b = threads.document["loss"][step];
    EXPECT_NEAR(a / b, 1, 1e-5) << "step " << step;
  }
}

}  // namespace
}  // namespace kuafu
