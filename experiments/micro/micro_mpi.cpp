// SPDX-License-Identifier: Apache-2.0
//
// Motivation
//   Kuafu's MPI ranks use collectives of its own over MPI_Isend and MPI_Irecv, because their bytes
//   on the wire are known. They must not be slower than what the library offers.
//
// What is compared
//   own/<bytes>      all_reduce of the MPI world with Kuafu's algorithms, f32, in place.
//   library/<bytes>  MPI_Allreduce, f32, in place, on the same buffer of the same processes.
//   In every process the two take turns, own first, then library first, in many short turns: where
//   a machine drifts, medians over turns compare, single ones do not.
//
// Run by scripts/mpirun.sh -n <ranks>. Every rank makes the same number of calls; the time of a
// benchmark is that of the slowest rank.
//
// Last result
//   results/benchmarks/README.md.

#include <benchmark/benchmark.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>

#include "experiments/micro/samples.h"
#include "kuafu/base/build_info.h"
#include "kuafu/comm/worlds.h"

namespace kuafu::micro {
namespace {

constexpr int kTurns = 8;  // of each

/// Times state.max_iterations calls as one; the slowest rank counts.
template <class Once>
void time_calls(benchmark::State& state, const Once& once) {
  for (int i = 0; i < 2; ++i) once();
  const auto calls = static_cast<double>(state.max_iterations);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) once();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  double seconds = took.count();
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  for (auto _ : state) state.SetIterationTime(seconds / calls);
}

enum class Which { kOwn, kLibrary };

void all_reduce(benchmark::State& state, Communicator& world, Which which) {
  const int64_t bytes = state.range(0), count = bytes / static_cast<int64_t>(sizeof(float));
  const Floats values = make_floats(count);
  const Buffer buffer{.data = values.get(), .count = count, .dtype = DType::kF32};
  const auto once = [&] {
    if (which == Which::kOwn) {
      world.all_reduce(buffer, ReduceOp::kSum).wait();
    } else {
      MPI_Allreduce(MPI_IN_PLACE, values.get(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    }
  };
  fill(values.get(), count, world.rank());
  once();
  check_sum(values.get(), count, world.size());
  std::fill_n(values.get(), count, 0.0F);  // sums stay finite however often they are taken
  time_calls(state, once);
  state.SetBytesProcessed(state.iterations() * bytes);
}

void register_all(Communicator& world) {
  const auto add = [&world](const char* name, Which which, int64_t bytes) {
    benchmark::RegisterBenchmark(
        name, [&world, which](benchmark::State& state) { all_reduce(state, world, which); })
        ->Arg(bytes)
        ->Iterations(std::max<benchmark::IterationCount>(2, iterations(bytes) / kTurns))
        ->UseManualTime();
  };
  for (const int64_t bytes : kSizes) {
    for (int turn = 0; turn < kTurns; turn += 2) {
      add("own", Which::kOwn, bytes);
      add("library", Which::kLibrary, bytes);
      add("library", Which::kLibrary, bytes);
      add("own", Which::kOwn, bytes);
    }
  }
}

/// Ranks beyond the first report to nobody.
class Silence : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace
}  // namespace kuafu::micro

int main(int argc, char** argv) {
  // allreduce.py asks every program for the commit it was built from.
  benchmark::AddCustomContext("commit", std::string(kuafu::git_state().commit));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kuafu::run_on_mpi([](kuafu::Communicator& world) {
    kuafu::micro::register_all(world);
    if (world.rank() == 0) {
      benchmark::RunSpecifiedBenchmarks();
    } else {
      kuafu::micro::Silence silence;
      benchmark::RunSpecifiedBenchmarks(&silence);
    }
  });
  return 0;
}
