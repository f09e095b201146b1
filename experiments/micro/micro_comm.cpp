// SPDX-License-Identifier: Apache-2.0
//
// Motivation
//   Tensor-parallel ranks in one process meet in an all-reduce several times a layer. It has to be
//   as fast as memory allows, or thread ranks would tell nothing about a scheme but its overhead.
//
// What is compared
//   threads/<ranks>/<bytes>   all_reduce in place of f32 on thread ranks, each with its own buffer.
//   <way>/<ranks>/<bytes>     the traffic of the same all-reduce, each element of every buffer read
//                             and written once, by threads that wait for nobody (traffic.h). The
//                             limit of a size is the fastest of the ways at that size; an
//                             all-reduce that is faster still shows that it is none, and
//                             allreduce.py ends with an error.
//   They take turns, in one order, then in the other.
//   startup/<ranks>           run_on_threads with an empty body.
//   bytes_per_second counts ranks x bytes, read and written: 2 x ranks x bytes / time.
//
// Last result
//   results/benchmarks/README.md.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "experiments/micro/samples.h"
#include "experiments/micro/traffic.h"
#include "kuafu/base/build_info.h"
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

/// The elements that thread `number` of `threads` moves of every buffer, whole lines.
int64_t cut(int64_t count, size_t number, size_t threads) {
  constexpr int64_t kLine = 16;
  const auto part = static_cast<int64_t>(number), parts = static_cast<int64_t>(threads);
  return part == parts ? count : count * part / parts / kLine * kLine;
}

/// Elements of a tile: a multiple of a line, and every thread has some.
int64_t tile_of(int64_t count, size_t threads) { return std::min(kTile, cut(count, 1, threads)); }

size_t num_threads(Threads who, int64_t ranks) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  if (who == Threads::kOne) return 1;
  return static_cast<size_t>(who == Threads::kRanks ? ranks : std::clamp(cores, int64_t{1}, ranks));
}

/// Adding 1 is exact; sums begin at 0 and stay there, so that they are what they were.
void check_traffic(const TrafficWay& way, std::span<float* const> buffers, int64_t count,
                   int64_t times) {
  const float expected = way.sums ? 0.0F : static_cast<float>(times);
  for (const float* values : buffers) {
    for (const int64_t i : {int64_t{0}, count / 2, count - 1}) {
      if (values[i] != expected) {
        throw std::runtime_error(std::string(way.name) + " has not moved element " +
                                 std::to_string(i) + " every time");
      }
    }
  }
}

void traffic(benchmark::State& state, const TrafficWay& way) {
  const int64_t ranks = state.range(0), bytes = state.range(1);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  const auto times = static_cast<int64_t>(state.max_iterations);
  const size_t threads = num_threads(way.threads, ranks);
  std::vector<Floats> owners;
  std::vector<float*> buffers;
  for (int64_t r = 0; r < ranks; ++r) {
    buffers.push_back(owners.emplace_back(make_floats(count)).get());
    std::fill_n(buffers.back(), count, 0.0F);
  }
  std::barrier together(static_cast<std::ptrdiff_t>(threads));
  std::vector<double> seconds(threads);
  std::vector<std::atomic<int64_t>> queues(
      static_cast<size_t>(times + 1));  // the next tile of each time
  const auto body = [&](size_t number) {
    const std::span<float* const> all(buffers);
    const Share share = way.threads == Threads::kRanks ? Share{all.subspan(number, 1), 0, count}
                                                       : Share{all, cut(count, number, threads),
                                                               cut(count, number + 1, threads)};
    const auto once = [&](int64_t time) {
      if (way.threads == Threads::kQueue) {
        std::atomic<int64_t>& next = queues[static_cast<size_t>(time)];
        const int64_t tile = tile_of(count, threads);
        for (int64_t at = tile * next++; at < count; at = tile * next++) {
          way.run({all, at, std::min(at + tile, count)});
        }
        return together.arrive_and_wait();  // or a tile would be taken twice at once
      }
      if (way.threads != Threads::kTiles) return way.run(share);
      const int64_t tile = tile_of(count, threads), stride = static_cast<int64_t>(threads) * tile;
      for (int64_t at = static_cast<int64_t>(number) * tile; at < count; at += stride) {
        way.run({all, at, std::min(at + tile, count)});
      }
    };
    once(0);  // the caches hold what they would hold
    together.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < times; ++i) {
      once(i + 1);
      benchmark::ClobberMemory();
    }
    seconds[number] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<std::thread> others;
  for (size_t number = 1; number < threads; ++number) others.emplace_back(body, number);
  body(0);
  for (std::thread& other : others) other.join();
  check_traffic(way, buffers, count, times + 1);
  const double took = *std::max_element(seconds.begin(), seconds.end());
  for (auto _ : state) state.SetIterationTime(took / static_cast<double>(times));
  count_bytes(state, ranks, bytes);
}

void startup(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  for (auto _ : state) run_on_threads(ranks, [](Communicator&) {});
}

void register_all() {
  std::vector<std::pair<std::string, const TrafficWay*>> subjects = {{"threads", nullptr}};
  for (const TrafficWay& way : kTrafficWays) subjects.emplace_back(way.name, &way);
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t bytes : kSizes) {
      const auto n = static_cast<benchmark::IterationCount>(iterations(bytes));
      for (int turn = 0; turn < 2; ++turn) {
        for (const auto& [name, way] : subjects) {
          if (way == nullptr) {
            benchmark::RegisterBenchmark(name.c_str(), all_reduce)
                ->Args({ranks, bytes})
                ->Iterations(n)
                ->UseRealTime();
          } else {
            benchmark::RegisterBenchmark(
                name.c_str(), [way = way](benchmark::State& state) { traffic(state, *way); })
                ->Args({ranks, bytes})
                ->Iterations(n)
                ->UseManualTime();
          }
        }
        std::reverse(subjects.begin(), subjects.end());
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
  // allreduce.py asks every program for the commit it was built from.
  benchmark::AddCustomContext("commit", std::string(kuafu::git_state().commit));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kuafu::micro::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
