// SPDX-License-Identifier: Apache-2.0
//
// kuafu-worker under mpirun: the same results, and no rank left behind.

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using std::chrono::seconds;
using tests::Arguments;
using tests::kSmallPlan;
using tests::mpirun;
using tests::Ran;
using tests::run_worker;

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Threads add in rank order, own MPI algorithms along a ring or tree: for two ranks a + b = b + a
// and the bits agree; for more, f32 losses differ by rounding: 1e-5 is 80 eps after 3 steps.
TEST(WorkerMpi, LossesEqualThoseOfThreads) {
  for (const int ranks : {2, 4}) {
    Arguments more = {"--set", "parallel.tensor.mode=1d", "--set", "parallel.tensor.size=2",
                      "--certify"};
    if (ranks == 4) more.insert(more.end(), {"--set", "parallel.data=2"});
    const Ran threads = run_worker(kSmallPlan, more);
    const Ran mpi = run_worker(kSmallPlan, more, mpirun(ranks));
    ASSERT_EQ(threads.code, 0) << threads.output;
    ASSERT_EQ(mpi.code, 0) << mpi.output;
    for (const std::string& problem : document_problems(mpi.document)) ADD_FAILURE() << problem;
    EXPECT_TRUE(unknown_fields(mpi.document).empty());
    EXPECT_EQ(mpi.document["world"], "mpi");
    // The processes of all ranks are its own: not what one of them is to another.
    EXPECT_EQ(value_at(mpi.document, "load.threads"), ranks);
    EXPECT_EQ(value_at(mpi.document, "load.cores"), value_at(threads.document, "load.cores"));
    EXPECT_EQ(mpi.document["ranks"], ranks);
    EXPECT_EQ(mpi.document["certificate"]["verdict"], "equal");
    EXPECT_EQ(mpi.document["plan_hash"], threads.document["plan_hash"]);
    // Groups of two throughout: the same bits.
    EXPECT_EQ(mpi.document["loss"], threads.document["loss"]);
    EXPECT_EQ(mpi.document["memory"]["peak_bytes"], threads.document["memory"]["peak_bytes"]);
    EXPECT_EQ(mpi.document["flops_per_step"], threads.document["flops_per_step"]);
    EXPECT_EQ(mpi.document["ledger"]["tensor"]["counting"], "wire");
  }
}

/// What rank 1 alone does before it begins, of ranks that were given different things.
struct Difference {
  const char* of_rank_1;
  const char* told;
};

Ran run_differing(const Difference& d) {
  const tests::Folder folder;
  const std::string script = folder.write(
      "rank",
      text("#!/bin/sh\n[ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && ", d.of_rank_1, "\nexec \"$@\"\n"));
  folder.write("c.txt", std::string(4000, 'a'));
  ::mkdir(folder.path("other").c_str(), 0700);
  folder.write("other/c.txt", std::string(4000, 'b'));
  folder.write("other/same.txt", std::string(4000, 'a'));
  Arguments launcher = mpirun(2);
  launcher.insert(launcher.end(), {"--wdir", folder.path("."), "/bin/sh", script});
  return run_worker(kSmallPlan,
                    tests::set({"parallel.data=2", "model.vocab=256", "data.kind=text",
                                "data.path=c.txt", "train.validation_batches=0"}),
                    launcher);
}

void expect_told(const Difference& d) {
  const Ran ran = run_differing(d);
  EXPECT_EQ(ran.code, 2) << ran.output;
  EXPECT_EQ(ran.document["status"], "failed");
  EXPECT_FALSE(ran.document.contains("loss")) << ran.document;
  EXPECT_EQ(count(ran.output, "ranks were given different things: "), 1) << ran.output;
  EXPECT_EQ(count(ran.output, d.told), 1) << d.told << " in " << ran.output;
}

TEST(WorkerMpi, RanksOfDifferentDataAreToldBeforeAStep) {
  expect_told({"cd other", "plan.data.hash is "});
}

TEST(WorkerMpi, RanksWhoseCorpusLiesElsewhereTrain) {
  const Ran ran = run_differing({"set -- \"$@\" --set data.path=other/same.txt", ""});
  EXPECT_EQ(ran.code, 0) << ran.output;
}

TEST(WorkerMpi, RanksOfDifferentOptionsAreTold) {
  expect_told({"set -- \"$@\" --mpi-collectives native",
               "--mpi-collectives is \"own\" on rank 0 and \"native\" on rank 1"});
  expect_told({"set -- \"$@\" --checkpoint saved",
               "--checkpoint is not there on rank 0 and \"saved\" on rank 1"});
  expect_told(
      {"set -- \"$@\" --log a.csv", "--log is not there on rank 0 and \"a.csv\" on rank 1"});
  expect_told({"set -- \"$@\" --trace a.jsonl", "--trace is not there on rank 0"});
  expect_told({"set -- \"$@\" --stop-after 100", "--stop-after is not there on rank 0 and 100"});
  expect_told({"set -- \"$@\" --timeout 100", "--timeout is not there on rank 0 and 100"});
}

TEST(WorkerMpi, RanksOfDifferentPlansOrProgramsAreTold) {
  expect_told(
      {"set -- \"$@\" --set train.seed=9", "plan.train.seed is 1 on rank 0 and 9 on rank 1"});
  expect_told({"set -- \"$@\" --steps 4", "plan.train.steps is 3 on rank 0 and 4 on rank 1"});
  expect_told({"set -- \"$@\" --certify", "certify is false on rank 0 and true on rank 1"});
  expect_told({"export KUAFU_KERNELS=aten", "kernels is \"own\" on rank 0"});
  const Ran same = run_differing({"true", ""});
  EXPECT_EQ(same.code, 0) << same.output;
}

TEST(WorkerMpi, FourRanksOfAGroupAgreeWithThreadsUpToRounding) {
  for (const char* collectives : {"own", "native"}) {
    const Arguments common = {"--set", "parallel.tensor.mode=2d", "--set", "parallel.tensor.size=4",
                              "--certify"};
    Arguments more = common;
    more.insert(more.end(), {"--mpi-collectives", collectives});
    const Ran threads = run_worker(kSmallPlan, common);
    const Ran mpi = run_worker(kSmallPlan, more, mpirun(4));
    ASSERT_EQ(mpi.code, 0) << mpi.output;
    EXPECT_EQ(mpi.document["certificate"]["verdict"], "equal") << collectives;
    for (size_t step = 0; step < 3; ++step) {
      const double a = mpi.document["loss"][step], b = threads.document["loss"][step];
      EXPECT_NEAR(a / b, 1, 1e-5) << collectives << ", step " << step;
    }
  }
}

// Layers with a tensor mode of their own: the mesh and those of the schemes are split from one world.
TEST(WorkerMpi, LayersOfOtherModesAreThoseOfThreads) {
  const std::vector<std::pair<const char*, const char*>> modes = {
      {"1d", "2d"}, {"1d-sp", "2.5d"}, {"2d", "1d-sp"}};
  for (const auto& [base, layer] : modes) {
    const Arguments more = {
        "--set",    std::string("parallel.tensor.mode=") + base,
        "--set",    "parallel.tensor.size=4",
        "--set",    std::string("parallel.layers=[{from=1,to=1,mode=\"") + layer + "\"}]",
        "--certify"};
    const Ran threads = run_worker(kSmallPlan, more);
    const Ran mpi = run_worker(kSmallPlan, more, mpirun(4));
    ASSERT_EQ(threads.code, 0) << threads.output;
    ASSERT_EQ(mpi.code, 0) << base << ", " << layer << ": " << mpi.output;
    EXPECT_EQ(mpi.document["certificate"]["verdict"], "equal") << base << ", " << layer;
    EXPECT_EQ(mpi.document["memory"]["peak_bytes"], threads.document["memory"]["peak_bytes"]);
    for (size_t step = 0; step < 3; ++step) {
      const double a = mpi.document["loss"][step], b = threads.document["loss"][step];
      EXPECT_NEAR(a / b, 1, 1e-5) << base << ", " << layer << ", step " << step;
    }
  }
}

// A named algorithm puts the same bytes on the wire of every transport.
TEST(WorkerMpi, NamedSumsAndServersCountWhatThreadsDo) {
  for (const char* mode : {"tree", "hierarchical", "parameter_server"}) {
    const Arguments more = {
        "--set",         "parallel.data=3", "--set",
        "train.batch=6", "--set",           "cluster.ranks_per_node=3",
        "--certify",     "--set",           std::string("parallel.data.mode=") + mode};
    const Ran threads = run_worker(kSmallPlan, more);
    const Ran mpi = run_worker(kSmallPlan, more, mpirun(3));
    ASSERT_EQ(mpi.code, 0) << mode << ": " << mpi.output;
    EXPECT_EQ(mpi.document["certificate"]["verdict"], "equal") << mode;
    const char* axis = std::string(mode) == "hierarchical" ? "data.intra" : "data";
    for (const char* verb : {"send", "recv", "send_recv"}) {
      EXPECT_EQ(mpi.document["ledger"][axis]["calls"].value(verb, Json::array()),
                threads.document["ledger"][axis]["calls"].value(verb, Json::array()))
          << mode << ", " << verb;
    }
    if (std::string(mode) == "hierarchical") {
      EXPECT_EQ(mpi.document["ledger"][axis]["bytes_received"],
                threads.document["ledger"][axis]["bytes_received"]);
    }
    EXPECT_EQ(mpi.document["memory"]["peak_bytes"], threads.document["memory"]["peak_bytes"]);
  }
}

TEST(WorkerMpi, SimulatedForMpiCountsWhatMpiRanksDo) {
  Arguments more = {"--set", "parallel.data=2",       "--set", "parallel.tensor.mode=1d",
                    "--set", "parallel.tensor.size=2"};
  const Ran mpi = run_worker(kSmallPlan, more, mpirun(4));
  more.insert(more.end(), {"--world", "simulated", "--transport", "mpi"});
  const Ran simulated = run_worker(kSmallPlan, more);
  ASSERT_EQ(mpi.code, 0) << mpi.output;
  ASSERT_EQ(simulated.code, 0) << simulated.output;
  for (const std::string& problem : document_problems(simulated.document)) ADD_FAILURE() << problem;
  EXPECT_TRUE(unknown_fields(simulated.document).empty());
  EXPECT_EQ(simulated.document["transport"], "mpi");
  EXPECT_EQ(simulated.document["ledger"], mpi.document["ledger"]);
  EXPECT_EQ(simulated.document["ledger"]["data"]["counting"], "wire");
}

TEST(WorkerMpi, StaleWorkersAreCertifiedByTheirRecordedOrder) {
  const Ran ran =
      run_worker(kSmallPlan,
                 {"--set", "parallel.data=3", "--set", "train.batch=6", "--set", "optimizer.clip=0",
                  "--set", "parallel.data.mode=parameter_server", "--set",
                  "parallel.data.servers=2", "--set", "parallel.data.staleness=2", "--certify"},
                 mpirun(3));
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
  EXPECT_TRUE(unknown_fields(ran.document).empty());
  EXPECT_EQ(ran.document["certificate"]["verdict"], "equal");
  ASSERT_EQ(ran.document["pushes"].size(), 2u);
  EXPECT_EQ(ran.document["pushes"]["0"]["worker"].size(), 9u);  // 3 workers, 3 steps
}

TEST(WorkerMpi, RanksThatThePlanDoesNotMakeAreRefused) {
  const Ran ran = run_worker(kSmallPlan, {"--set", "parallel.data=2"}, mpirun(3));
  EXPECT_EQ(ran.code, 3) << ran.output;
  EXPECT_EQ(count(ran.output, "3 ranks were given"), 1) << ran.output;
  EXPECT_EQ(ran.document["status"], "refused");
}

TEST(WorkerMpi, BadInputIsOneErrorOfAllRanks) {
  struct Bad {
    Arguments arguments;
    int code;
    const char* says;
  };
  for (const Bad& bad :
       {Bad{{"--set", "model.layers=0"}, 2, "model.layers"},
        Bad{{"--set", "model.layers"}, 2, "expected key=value"},
        Bad{{"--stepps", "3"}, 2, "--stepps"},
        Bad{{"--set", "parallel.tensor.mode=2d", "--set", "parallel.tensor.size=3"}, 3, "q x q"}}) {
    const Ran ran = tests::run_program("bin/kuafu", kSmallPlan, bad.arguments, mpirun(3), {});
    EXPECT_EQ(ran.code, bad.code) << ran.output;
    EXPECT_EQ(count(ran.output, "kuafu: "), 1) << ran.output;
    EXPECT_NE(ran.output.find(bad.says), std::string::npos) << ran.output;
    EXPECT_LT(ran.seconds, 10);
  }
}

/// A long run under mpirun, every process of it marked by a variable.
struct LongRun {
  explicit LongRun(const Arguments& more = {}) : mark(std::to_string(::getpid())) {
    Arguments command = mpirun(2);
    for (const std::string& word :
         {tests::built("bin/kuafu-worker"), std::string("run"),
          folder.write("plan.toml", kSmallPlan), std::string("--json"), folder.path("d.json"),
          std::string("--set"), std::string("parallel.data=2"), std::string("--set"),
          std::string("train.steps=1000000000")}) {
      command.push_back(word);
    }
    command.insert(command.end(), more.begin(), more.end());
    child = std::make_unique<tests::Child>(
        command, std::map<std::string, std::string>{{"KUAFU_TEST_MARK", mark}});
  }
  /// Processes of the run that are ranks, not launchers.
  std::vector<int> ranks() const {
    std::vector<int> found;
    const std::vector<int> all = tests::processes_with("KUAFU_TEST_MARK", mark);
    for (const int pid : tests::processes_with("OMPI_COMM_WORLD_SIZE", "2")) {
      if (std::find(all.begin(), all.end(), pid) != all.end()) found.push_back(pid);
    }
    return found;
  }

  tests::Folder folder;
  std::string mark;
  std::unique_ptr<tests::Child> child;
};

TEST(WorkerMpi, KilledRankEndsTheRunAndLeavesNobody) {
  LongRun run;
  ASSERT_TRUE(tests::eventually([&] { return run.ranks().size() == 2; }, seconds(30)));
  ::usleep(1'500'000);  // into the steps; where the kill strikes does not matter
  ::kill(run.ranks()[1], SIGKILL);
  const tests::Ended ended = run.child->wait(seconds(5));
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.code, -9) << "mpirun was still there after 5 s: " << ended.output;
  EXPECT_TRUE(tests::eventually(
      [&] { return tests::processes_with("KUAFU_TEST_MARK", run.mark).empty(); }, seconds(5)));
}

TEST(WorkerMpi, OverBudgetEndsWithItsOwnCode) {
  const Ran ran = run_worker(
      kSmallPlan, {"--set", "parallel.data=2", "--set", "memory.device=100000"}, mpirun(2));
  EXPECT_EQ(ran.code, 4) << ran.output;
  EXPECT_EQ(ran.document["status"], "out_of_memory");
  EXPECT_EQ(ran.document["out_of_memory"]["budget_bytes"], 100000);
  const int told = count(ran.output, " is out of memory: asked for ");
  EXPECT_GE(told, 1) << ran.output;
  EXPECT_EQ(count(ran.output, " of a budget of 97.7 KiB"), told) << ran.output;
  EXPECT_EQ(count(ran.output, ": rank "), told) << "named once a rank: " << ran.output;
}

TEST(WorkerMpi, ADivergedRunEndsOnAllRanksWithWhatItMeasured) {
  const Ran ran = run_worker(kSmallPlan,
                             {"--set", "parallel.data=2", "--set", "optimizer.kind=sgd", "--set",
                              "optimizer.lr=1e6", "--set", "optimizer.clip=0", "--set",
                              "optimizer.weight_decay=1e6", "--set", "train.steps=50"},
                             mpirun(2));
  EXPECT_NE(ran.code, 0);
  EXPECT_NE(ran.output.find("at step "), std::string::npos) << ran.output;
  EXPECT_EQ(ran.document["status"], "diverged");
  EXPECT_GT(ran.document["loss"].size(), 0u);
  EXPECT_LT(ran.seconds, 20);
}

}  // namespace
}  // namespace kuafu
