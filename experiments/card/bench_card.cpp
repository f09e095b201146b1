// SPDX-License-Identifier: Apache-2.0
//
// How near a card's limits the pieces come, each beside its limit in the same run: combining the
// arrays of ranks beside a plain copy, the optimizers' kernels beside it, copies of both directions
// through queues beside bare ones, an all-reduce of thread ranks beside its bytes.

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "kuafu/comm/worlds.h"
#include "kuafu/device/device.h"
#include "kuafu/device/transfer.h"
#include "kuafu/kernels/card.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

using Json = nlohmann::ordered_json;
using device::Event, device::Memory, device::PinnedMemory, device::DeviceStream;

constexpr int kSamples = 15;
constexpr double kGiga = 1e9;

/// Seconds of `work` on the stream by the card's own clock, kSamples times after two warm-ups.
std::vector<double> times_of(const DeviceStream& stream, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = -2; i < kSamples; ++i) {
    Event start, end;
    start.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    if (i >= 0) seconds.push_back(end.ms_since(start) / 1e3);
  }
  return seconds;
}

/// A row: rates of the samples in GB/s, and the median's share of `limit` GB/s.
Json row(const std::string& name, double bytes, std::vector<double> seconds, double limit) {
  std::sort(seconds.begin(), seconds.end());
  const double median = bytes / seconds[seconds.size() / 2] / kGiga;
  Json j{{"name", name},
         {"bytes", bytes},
         {"gbs_median", median},
         {"gbs_low", bytes / seconds.back() / kGiga},
         {"gbs_high", bytes / seconds.front() / kGiga}};
  if (limit > 0) j["share_of_limit"] = median / limit;
  return j;
}

double rate(const Json& r) { return r["gbs_median"].get<double>(); }

constexpr int64_t kElements = int64_t{1} << 28;  // f32: 1 GiB

double copy_rows(Json& rows, const DeviceStream& stream) {
  const int64_t bytes = 4 * kElements;
  const Memory a(bytes, 0), b(bytes, 0);
  const auto seconds = times_of(stream, [&] { device::copy(b.data(), a.data(), bytes, stream); });
  rows.push_back(
      row("copy on the card, read and written", 2.0 * static_cast<double>(bytes), seconds, 0));
  return rate(rows.back());
}

void combine_rows(Json& rows, const DeviceStream& stream, double limit) {
  for (const int ranks : {2, 4, 8}) {
    const int64_t count = int64_t{1} << 26;
    std::vector<std::unique_ptr<Memory>> all;
    std::vector<const void*> from;
    std::vector<void*> into;
    for (int r = 0; r < ranks; ++r) {
      all.push_back(std::make_unique<Memory>(4 * count, 0));
      from.push_back(all.back()->data());
      into.push_back(all.back()->data());
    }
    const auto seconds = times_of(stream, [&] {
      device::combine(DType::kF32, device::Combine::kSum, from, into, count, stream);
    });
    rows.push_back(row(text("sum of ", ranks, " f32 arrays into all"),
                       8.0 * ranks * static_cast<double>(count), seconds, limit));
  }
}

void update_rows(Json& rows, const DeviceStream& stream, double limit) {
  const Memory w(4 * kElements, 0), m(4 * kElements, 0), v(4 * kElements, 0), g(4 * kElements, 0);
  const kernels::AdamWFactors adam{.beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .epsilon = 1e-8,
                                   .rate = 1e-3,
                                   .spread = 1,
                                   .grad = 1,
                                   .coupled = 0.01,
                                   .keep = 0.999};
  namespace card = kernels::card;
  const auto check = [](int code) {
    if (code != 0) throw Error(text("CUDA error ", code));
  };
  for (const auto& [kind, bytes, name] :
       {std::tuple{card::Element::kF32, 28.0, "AdamW, f32 gradients"},
        {card::Element::kBF16, 26.0, "AdamW, bf16 gradients"}}) {
    const auto seconds = times_of(stream, [&, kind = kind] {
      check(
          card::adam(kernels::Decay::kOfWeight,
                     {card::Element::kF32, kind, w.data(), g.data(), m.data(), v.data(), kElements},
                     adam, stream.handle()));
    });
    rows.push_back(row(name, bytes * static_cast<double>(kElements), seconds, limit));
  }
  const Memory partials(2 * 8 * card::kMostLayers * card::kPartials, 0), sums(64, 0), rates(64, 0);
  const auto lamb = times_of(stream, [&] {
    const kernels::LayerRun run{.count = kElements};
    const kernels::LambFactors f{0.9, 0.999, 1e-6, 0.01, 1, 1, 1};
    const card::AdamCall call{card::Element::kF32,
                              card::Element::kF32,
                              w.data(),
                              g.data(),
                              m.data(),
                              v.data(),
                              kElements};
    check(card::lamb_norms(run, 1, call, f, static_cast<double*>(partials.data()),
                           static_cast<double*>(sums.data()), stream.handle()));
    check(card::lamb(run, call, f, static_cast<const double*>(rates.data()), stream.handle()));
  });
  rows.push_back(
      row("LAMB, both passes, f32 gradients", 40.0 * static_cast<double>(kElements), lamb, limit));
  const auto seconds = times_of(stream, [&] {
    check(card::sgd(
        kernels::Momentum::kPlain,
        {card::Element::kF32, card::Element::kF32, w.data(), g.data(), m.data(), kElements},
        {1e-3, 0.9, 0.01, 1}, stream.handle()));
  });
  rows.push_back(row("SGD, f32 gradients", 20.0 * static_cast<double>(kElements), seconds, limit));
  const Memory partial(8 * card::kPartials, 0), sum(8, 0);
  const auto squares = times_of(stream, [&] {
    check(card::sum_of_squares(card::Element::kF32, g.data(), kElements,
                               static_cast<double*>(partial.data()),
                               static_cast<double*>(sum.data()), stream.handle()));
  });
  rows.push_back(row("sum of squares, f32", 4.0 * static_cast<double>(kElements), squares, limit));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Both directions at once, pinned memory: bare asynchronous copies, then the queues.
void host_rows(Json& rows) {
  const int64_t bytes = int64_t{1} << 30;
  const Memory down(bytes, 0), up(bytes, 0);
  const PinnedMemory host_down(bytes, 0), host_up(bytes, 0);
  const DeviceStream compute, first, second;
  std::vector<double> bare, queued;
  const auto queues = device::make_copy_streams(compute);
  for (int i = -1; i < 7; ++i) {
    double start = now();
    device::copy(down.data(), host_down.data(), bytes, first);
    device::copy(host_up.data(), up.data(), bytes, second);
    first.synchronize();
    second.synchronize();
    if (i >= 0) bare.push_back(now() - start);
    start = now();
    const auto in =
        queues->copy(device::Direction::kToDevice, {down.data(), host_down.data(), bytes});
    const auto out = queues->copy(device::Direction::kToHost, {host_up.data(), up.data(), bytes});
    queues->wait(in);
    queues->wait(out);
    if (i >= 0) queued.push_back(now() - start);
  }
  rows.push_back(
      row("two bare copies, host to card and back", 2.0 * static_cast<double>(bytes), bare, 0));
  rows.push_back(
      row("the same through queues", 2.0 * static_cast<double>(bytes), queued, rate(rows.back())));
}

/// An all-reduce of thread ranks on one card, host's part and all: bytes read and written by the
/// clock of the host, from the first rank's start to the last one's end.
void all_reduce_rows(Json& rows, double limit) {
  for (const int ranks : {2, 4, 8}) {
    for (const int64_t count :
         {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 24, int64_t{1} << 26}) {
      constexpr int kCalls = 10;
      std::vector<double> seconds;
      run_on_threads(ranks, [&](Communicator& world) {
        const DeviceStream stream;
        const Memory mine(4 * count, world.rank());
        const Buffer b{.data = mine.data(),
                       .count = count,
                       .dtype = DType::kF32,
                       .place = Place::kDevice,
                       .stream = stream.handle()};
        for (int i = -1; i < kSamples; ++i) {
          stream.synchronize();
          world.barrier();
          const double start = now();
          for (int c = 0; c < kCalls; ++c) world.all_reduce(b, ReduceOp::kSum).wait();
          stream.synchronize();
          world.barrier();
          if (i >= 0 && world.rank() == 0) seconds.push_back((now() - start) / kCalls);
        }
      });
      rows.push_back(row(text("all-reduce of ", ranks, " thread ranks, ", 4 * count / 1024, " KiB"),
                         8.0 * ranks * static_cast<double>(count), seconds, limit));
    }
  }
}

int bench(const std::string& file) {
  require_recordable(file);
  if (device::num_devices() == 0) throw Unavailable("no CUDA device: " + device::why_none());
  device::use(0);
  const DeviceStream stream;
  Json rows = Json::array();
  const double limit = copy_rows(rows, stream);
  combine_rows(rows, stream, limit);
  update_rows(rows, stream, limit);
  host_rows(rows);
  all_reduce_rows(rows, limit);
  for (const Json& r : rows) {
    std::cout << r["name"].get<std::string>() << ": " << rate(r) << " GB/s ["
              << r["gbs_low"].get<double>() << ", " << r["gbs_high"].get<double>() << "]";
    if (r.contains("share_of_limit"))
      std::cout << ", " << r["share_of_limit"].get<double>() << " of the limit";
    std::cout << "\n";
  }
  for (const Json& r : rows) {
    if (r.value("share_of_limit", 0.0) <= 1) continue;
    throw Error(text(r["name"].get<std::string>(), " beats its limit, which so is none"));
  }
  if (file.empty()) return 0;
  const Json document{{"card", device::name_of(0)},
                      {"samples", kSamples},
                      {"rows", rows},
                      {"trains", false},
                      {"provenance", provenance()}};
  std::ofstream out(file);
  out << document.dump(1) << "\n";
  if (!out) throw Error("cannot write " + file);
  return 0;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  CLI::App app("Measures how near a card's limits kernels, copies and collectives come");
  std::string json;
  app.add_option("--json", json, "write the document to this file, too");
  CLI11_PARSE(app, argc, argv);
  try {
    return kuafu::bench(json);
  } catch (const std::exception& e) {
    std::cerr << "bench_card: " << e.what() << "\n";
    return 1;
  }
}
