// SPDX-License-Identifier: Apache-2.0
//
// Motivation
//   Tensor-parallel ranks in one process meet in an all-reduce several times a layer. It has to be
//   as fast as memory allows, or thread ranks would tell nothing about a scheme but its overhead.
//
// What is compared
//   threads/<ranks>/<bytes>   all_reduce in place of f32 on thread ranks, each with its own buffer.
//   limit/<ranks>/<bytes>     what memory allows to threads that meet: the same number of threads,
//                             each of which reads and writes every element of its own buffer once,
//                             then waits for the others. No thread touches another one's memory.
//   traffic/<ranks>/<bytes>   the same bytes by the same threads, which meet at the end only: the
//                             bandwidth alone, STREAM-like. Up to a few MiB that of the caches.
//   The three take turns, in one order, then in the other.
//   startup/<ranks>           run_on_threads with an empty body.
//   bytes_per_second counts ranks x bytes, read and written: 2 x ranks x bytes / time.
//
// Last result
//   results/benchmarks/README.md.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
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

/// Threads that meet again and again. They never sleep: where they outnumber the cores they hand
/// them to each other.
class Meeting {
 public:
  explicit Meeting(int64_t threads)
      : threads_(threads), shares_cores_(threads > std::thread::hardware_concurrency()) {}
  void arrive_and_wait() {
    const int64_t round = round_.load();
    if (num_here_.fetch_add(1) + 1 == threads_) {
      num_here_.store(0);
      round_.store(round + 1);
    }
    while (round_.load() == round) {
      if (shares_cores_) std::this_thread::yield();
    }
  }

 private:
  const int64_t threads_;
  const bool shares_cores_;
  alignas(64) std::atomic<int64_t> num_here_{0};
  alignas(64) std::atomic<int64_t> round_{0};
};

enum class Meet { kEachTime, kAtTheEnd };

void touch_own(benchmark::State& state, Meet meet) {
  const int64_t ranks = state.range(0), bytes = state.range(1);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  const auto num_times = static_cast<int64_t>(state.max_iterations);
  using Clock = std::chrono::steady_clock;
  Meeting together(ranks);
  std::atomic<bool> is_right = true;
  Clock::time_point begin, end;
  const auto body = [&](bool leads) {
    const Floats values = make_floats(count);
    std::fill_n(values.get(), count, 0.0F);
    together.arrive_and_wait();
    if (leads) begin = Clock::now();
    for (int64_t i = 0; i < num_times; ++i) {
      touch(values.get(), count);
      if (meet == Meet::kEachTime) together.arrive_and_wait();
    }
    together.arrive_and_wait();
    if (leads) end = Clock::now();
    if (values[0] != static_cast<float>(num_times) || values[count - 1] != values[0]) {
      is_right = false;
    }
  };
  std::vector<std::thread> others;
  for (int64_t r = 1; r < ranks; ++r) others.emplace_back(body, false);
  body(true);
  for (std::thread& other : others) other.join();
  if (!is_right) throw std::runtime_error("a thread has not touched its buffer every time");
  const std::chrono::duration<double> took = end - begin;
  for (auto _ : state) state.SetIterationTime(took.count() / static_cast<double>(num_times));
  count_bytes(state, ranks, bytes);
}

void limit(benchmark::State& state) { touch_own(state, Meet::kEachTime); }
void traffic(benchmark::State& state) { touch_own(state, Meet::kAtTheEnd); }

void startup(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  for (auto _ : state) run_on_threads(ranks, [](Communicator&) {});
}

void register_all() {
  struct Subject {
    const char* name;
    void (*body)(benchmark::State&);
  };
  const Subject threads{"threads", &all_reduce}, limits{"limit", &limit},
      plain{"traffic", &traffic};
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t bytes : kSizes) {
      const auto n = static_cast<benchmark::IterationCount>(iterations(bytes));
      for (const Subject& s : {threads, limits, plain, plain, limits, threads}) {
        auto* const added =
            benchmark::RegisterBenchmark(s.name, s.body)->Args({ranks, bytes})->Iterations(n);
        if (s.body == &all_reduce) {
          added->UseRealTime();
        } else {
          added->UseManualTime();
        }
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
