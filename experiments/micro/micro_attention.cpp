// SPDX-License-Identifier: Apache-2.0
//
// Motivation: a sequence mode that shards keys and values must not cost time against gathering
//   them, and must hold less.
// Compared: ring, ring-zigzag and ulysses with all-gather attention, thread ranks, causal, f32,
//   batch 1, 4 heads of 64, forward and backward. The modes take turns (there and back); every
//   result is checked against all-gather's first.
// Last result: results/benchmarks/attention.json.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>

#include <CLI/CLI.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/kernels/kernels.h"
#include "kuafu/mesh/parts.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

constexpr int64_t kHeads = 4, kHeadDim = 64;
const std::vector<std::string> kModes = {"all-gather", "ring", "ring-zigzag", "ulysses"};

struct Sample {
  std::vector<double> seconds;
  int64_t peak = 0;     ///< bytes of the fullest rank
  double checksum = 0;  ///< of the result and all gradients, by position
};

/// Rows of a virtual (S, N D) tensor of standard normals, by position: (1, N, L, D).
Tensor rows(uint64_t site, const std::vector<int64_t>& positions) {
  const auto tokens = static_cast<int64_t>(positions.size()), width = kHeads * kHeadDim;
  const Tensor t = at::empty({1, tokens, kHeads, kHeadDim}, at::kDouble);
  for (int64_t i = 0; i < tokens; ++i) {
    const auto first = static_cast<uint64_t>(positions[static_cast<size_t>(i)] * width);
    kernels::normals(1, site, first, width, t.data_ptr<double>() + i * width);
  }
  return t.to(at::kFloat).transpose(1, 2);
}

/// One rank with one mode.
class Rank {
 public:
  Rank(const Mesh& mesh, const std::string& mode, int64_t sequence) {
    Registry<MakeAttention> modes("sequence mode");
    register_sequence_modes(modes);
    attention_ = modes.find(mode)({mesh, sequence, Recompute::kNone});
    const Part p = nth_part(sequence, mesh.size("sequence"), mesh.coord("sequence"));
    const std::vector<int64_t> order = attention_->order();
    std::vector<int64_t> positions;
    for (int64_t i = p.offset; i < p.offset + p.extent; ++i) {
      positions.push_back(order.empty() ? i : order[static_cast<size_t>(i)]);
    }
    for (uint64_t site = 0; site < 3; ++site) inputs_.push_back(rows(site, positions));
    weights_ = rows(3, positions);
  }

  /// Forward and backward; my part of the checksum.
  Tensors run() const {
    Tensors leaves;
    for (const Tensor& t : inputs_) leaves.push_back(t.detach().requires_grad_(true));
    const Tensor out = attention_->attend(leaves[0], leaves[1], leaves[2], Mask::kCausal);
    torch::autograd::backward({out}, {weights_});
    return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  }
  double checksum() const {
    double sum = 0;
    for (const Tensor& t : run()) sum += (t * weights_).sum(at::kDouble).item<double>();
    return sum;
  }

 private:
  std::unique_ptr<AttentionParallel> attention_;
  Tensors inputs_;
  Tensor weights_;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A number of every rank, reduced.
double reduced(Communicator& world, double mine, ReduceOp op) {
  world.all_reduce({&mine, 1, DType::kF64}, op).wait_host();
  return mine;
}

using Samples = std::map<std::string, Sample>;

/// Checks every mode, then times them in turn. The same on all ranks; rank 0 has the samples.
void measure(Communicator& world, int64_t sequence, int rounds, Samples& samples) {
  Mesh mesh({{"sequence", world.size()}}, world.rank());
  mesh.connect(world, nullptr);
  std::map<std::string, Rank> ranks;
  for (const std::string& mode : kModes) {
    const Rank& rank = ranks.try_emplace(mode, mesh, mode, sequence).first->second;
    const double sum = reduced(world, rank.checksum(), ReduceOp::kSum);
    RankBook book(world.rank());
    {
      const BookScope booked(&book);
      rank.run();
    }
    const double peak = reduced(world, static_cast<double>(book.peak()), ReduceOp::kMax);
    if (world.rank() == 0) samples[mode] = {{}, static_cast<int64_t>(peak), sum};
  }
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::string> turn = kModes;
    if (round % 2 == 1) std::reverse(turn.begin(), turn.end());
    for (const std::string& mode : turn) {
      world.barrier();
      const double start = seconds_now();
      ranks.at(mode).run();
      world.barrier();
      if (world.rank() == 0) samples[mode].seconds.push_back(seconds_now() - start);
    }
  }
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/// Sums of millions of f32 products in another order.
void check(const Samples& samples) {
  const double expected = samples.at("all-gather").checksum;
  for (const auto& [mode, sample] : samples) {
    const double error = std::abs(sample.checksum / expected - 1);
    KUAFU_REQUIRE(error < 1e-3, mode, " differs from all-gather by ", error, " of the checksum");
  }
}

int run(int argc, char** argv) {
  CLI::App app("Attention over a sharded sequence against all-gather attention");
  std::vector<int> ranks = {2, 4};
  std::vector<int64_t> tokens = {4096, 16384};
  int rounds = 6;
  std::string file;
  app.add_option("--ranks", ranks)->delimiter(',');
  app.add_option("--tokens", tokens)->delimiter(',');
  app.add_option("--rounds", rounds, "each mode once a round, there and back");
  app.add_option("--json", file);
  CLI11_PARSE(app, argc, argv);
  require_recordable(file);
  const Json before = provenance();
  Json rows = Json::array();
  for (const int64_t sequence : tokens) {
    for (const int n : ranks) {
      Samples samples;
      run_on_threads(n, [&](Communicator& world) { measure(world, sequence, rounds, samples); });
      check(samples);
      const double reference = median(samples.at("all-gather").seconds);
      for (const std::string& mode : kModes) {
        const Sample& s = samples.at(mode);
        const double time = median(s.seconds);
        std::cout << n << " ranks, " << sequence << " tokens, " << mode << ": " << time << " s, "
                  << reference / time << " x all-gather, peak " << s.peak << " bytes\n";
        rows.push_back({{"ranks", n},
                        {"tokens", sequence},
                        {"mode", mode},
                        {"median_s", time},
                        {"speedup", reference / time},
                        {"peak_bytes", s.peak},
                        {"checksum", s.checksum},
                        {"seconds", s.seconds}});
      }
    }
  }
  if (file.empty()) return 0;
  replace_file(file, json_document({{"benchmark", "attention"},
                                    {"trains", false},
                                    {"provenance", before},
                                    {"heads", kHeads},
                                    {"head_dim", kHeadDim},
                                    {"dtype", "f32"},
                                    {"mask", "causal"},
                                    {"rounds", rounds},
                                    {"rows", rows}}));
  return 0;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  kuafu::initialise_tensors();
  try {
    return kuafu::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "micro_attention: " << e.what() << "\n";
    return 1;
  }
}
