// SPDX-License-Identifier: Apache-2.0
//
// Motivation
//   Tensor-parallel ranks in one process meet in an all-reduce several times a layer. It has to be
//   as fast as memory allows, or thread ranks would tell nothing about a scheme but its overhead.
//
// What is compared
//   threads/<ranks>/<bytes>   all_reduce in place of f32 on thread ranks, each with its own buffer.
//   limit/<ranks>/<bytes>     the least traffic an all-reduce needs: every element of every rank is
//                             read once and written once, in place, with nothing shared or waited
//                             for but the end. As many threads as can run at the same time.
//   startup/<ranks>           run_on_threads with an empty body.
//   bytes_per_second counts ranks x bytes, read and written: 2 x ranks x bytes / time.
//
// Last result
//   None from a quiet machine yet.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <thread>
#include <utility>
#include <vector>

#include "experiments/micro/samples.h"
#include "kuafu/comm/worlds.h"

namespace kuafu::micro {
namespace {

void count_bytes(benchmark::State& state, int64_t ranks, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * 2 * ranks * bytes);
}

void all_reduce(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t bytes = state.range(1), count = bytes / static_cast<int64_t>(sizeof(float));
  run_on_threads(ranks, [&](Communicator& world) {
    const Floats values = make_floats(count);
    const Buffer buffer{.data = values.get(), .count = count, .dtype = DType::kF32};
    fill(values.get(), count, world.rank());
    world.all_reduce(buffer, ReduceOp::kSum).wait();
    check_sum(values.get(), count, ranks);
    std::fill_n(values.get(), count, 0.0F);  // sums stay finite however often they are taken
    const auto once = [&] { world.all_reduce(buffer, ReduceOp::kSum).wait(); };
    for (int i = 0; i < 2; ++i) once();
    if (world.rank() == 0) {
      for (auto _ : state) once();
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) once();
    }
  });
  count_bytes(state, ranks, bytes);
}

/// One thread's share of the traffic: reads and writes each element once.
[[gnu::optimize("O3"), gnu::target_clones("avx2", "default")]] void touch(float* values,
                                                                          int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] += 1.0F;
  benchmark::ClobberMemory();
}

void limit(benchmark::State& state) {
  const int64_t ranks = state.range(0), bytes = state.range(1);
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t workers = std::clamp<int64_t>(cores, 1, ranks);
  const int64_t share = ranks * bytes / workers / static_cast<int64_t>(sizeof(float));
  std::barrier together(workers);
  const auto body = [&](bool leads) {
    const Floats values = make_floats(share);
    std::fill_n(values.get(), share, 0.0F);
    const auto once = [&] {
      touch(values.get(), share);
      together.arrive_and_wait();
    };
    for (int i = 0; i < 2; ++i) once();
    if (leads) {
      for (auto _ : state) once();
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) once();
    }
  };
  std::vector<std::thread> others;
  for (int64_t w = 1; w < workers; ++w) others.emplace_back(body, false);
  body(true);
  for (std::thread& other : others) other.join();
  count_bytes(state, ranks, bytes);
}

void startup(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  for (auto _ : state) run_on_threads(ranks, [](Communicator&) {});
}

void register_all() {
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t bytes : kSizes) {
      const auto n = static_cast<benchmark::IterationCount>(iterations(bytes));
      for (const auto& [name, body] :
           {std::pair{"threads", &all_reduce}, std::pair{"limit", &limit}}) {
        benchmark::RegisterBenchmark(name, body)
            ->Args({ranks, bytes})
            ->Iterations(n)
            ->UseRealTime();
      }
    }
  }
  for (const int64_t ranks : {2, 4, 8}) {
    benchmark::RegisterBenchmark("startup", startup)->Arg(ranks)->UseRealTime();
  }
}

}  // namespace
}  // namespace kuafu::micro

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kuafu::micro::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
