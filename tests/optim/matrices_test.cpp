// SPDX-License-Identifier: Apache-2.0
//
// Muon of matrices that ranks hold parts of, against the same on one rank.

#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>

#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "tests/optim/axes.h"
#include "tests/optim/matrices.h"

namespace kuafu {
namespace {

using tests::HeldMatrices;
using tests::hold;
using tests::kMatrixSteps;
using tests::kRounding;
using tests::matrix_pieces;
using tests::MatrixPiece;
using tests::muon_plan;
using tests::piece_of;
using tests::train_matrices;
using tests::trained_alone;

std::vector<std::vector<Axis>> matrix_meshes() {
  return {{{"data", 2}, {"row", 1}, {"col", 1}},
          {{"data", 1}, {"row", 2}, {"col", 2}},
          {{"data", 3}, {"row", 1}, {"col", 2}},
          {{"data", 2}, {"row", 2}, {"col", 2}}};
}

/// Does work on every rank of a mesh.
void on_mesh(const std::vector<Axis>& axes,
             const std::function<void(const Mesh&, const Ledger&)>& work) {
  run_on_threads(ranks_of(axes), [&](Communicator& world) {
    Ledger ledger;
    Mesh mesh(axes, world.rank());
    mesh.connect(world, &ledger);
    work(mesh, ledger);
  });
}

/// The largest difference of piece i from what it is on one rank.
double distance(const HeldMatrices& held, const HeldMatrices& whole, size_t i, const Mesh& mesh) {
  const Tensor expected =
      piece_of(held.shards[i], scatter_param(held.params[i], whole.shards[i].value, mesh), mesh);
  if (expected.numel() == 0) return 0;
  return (held.shards[i].value - expected).abs().max().item<double>();
}

TEST(Matrices, OfShardsStepAsOnOneRank) {
  const HeldMatrices whole = trained_alone();
  for (const auto& axes : matrix_meshes()) {
    on_mesh(axes, [&](const Mesh& mesh, const Ledger&) {
      HeldMatrices held = hold(mesh, at::kCPU);
      train_matrices(mesh, held);
      for (size_t i = 0; i < held.shards.size(); ++i) {
        EXPECT_LE(distance(held, whole, i, mesh), kRounding)
            << held.params[i].name << " on " << mesh.describe();
      }
    });
  }
}

/// FLOPs of the steps of a parameter's matrices, each once.
int64_t iterations_of(const MatrixPiece& p) {
  if (!p.name.starts_with("blocks.") || p.global.size() == 1) return 0;
  const size_t dim = p.layers.is_stacked ? 1 : 0;
  return (p.layers.is_stacked ? p.global[0] : 1) * p.layers.parts *
         flops::newton_schulz(p.global[dim], p.global[dim + 1] / p.layers.parts, 5);
}

// As many iterations as matrices and steps, by one of those that hold parts, evenly; and the
// simulated world knows them and the bytes.
TEST(Matrices, AreIteratedOnceAmongThoseWhoHoldPartsAndTheSameOnMeta) {
  for (const auto& axes : matrix_meshes()) {
    const auto n = static_cast<size_t>(ranks_of(axes));
    std::vector<int64_t> counted(n);
    on_mesh(axes, [&](const Mesh& mesh, const Ledger& ledger) {
      const auto rank = static_cast<size_t>(mesh.rank());
      RankBook book(mesh.rank());
      {
        const BookScope booked(&book);
        HeldMatrices held = hold(mesh, at::kCPU);
        train_matrices(mesh, held);
      }
      counted[rank] = book.flops_optimizer();
      EXPECT_EQ(book.flops(), 0);
      SimulatedWorld simulated(static_cast<int>(n));
      Ledger predicted;
      RankBook foreseen(mesh.rank());
      const auto me = simulated.communicator(mesh.rank());
      Mesh there(axes, mesh.rank());
      there.connect(*me, &predicted);
      const BookScope booked(&foreseen);
      HeldMatrices held = hold(there, at::kMeta);
      train_matrices(there, held);
      EXPECT_EQ(foreseen.flops_optimizer(), counted[rank]) << mesh.describe();
      for (const auto& [axis, row] : ledger.axes()) {
        EXPECT_EQ(predicted.axes().at(axis).bytes_sent, row.bytes_sent) << mesh.describe();
        EXPECT_EQ(row.bytes_sent, row.bytes_received) << "there and back, " << mesh.describe();
      }
    });
    const Mesh mesh(axes, 0);
    int64_t expected = 0, largest = 0;
    for (const MatrixPiece& p : matrix_pieces()) {
      Axes split = p.layout.all_axes();
      if (p.is_cut) split.emplace_back("data");
      const int64_t all = kMatrixSteps * iterations_of(p);
      expected += all * static_cast<int64_t>(n) / mesh.size(split);
      largest = std::max(largest, all);
    }
    EXPECT_EQ(std::accumulate(counted.begin(), counted.end(), int64_t{0}), expected);
    const auto [least, most] = std::minmax_element(counted.begin(), counted.end());
    EXPECT_LE(*most - *least, largest) << mesh.describe();
  }
}

// Of the elements of all matrices that an axis of n ranks splits, (n - 1) / n travel there and as
// many back, whoever owns them: by two all-to-alls a step for the matrices that the same axes split,
// along "row" where a matrix has come to the rank's column.
TEST(Matrices, TravelOnceThereAndOnceBackAlongEachAxisThatSplitsThem) {
  const std::vector<Axis> axes = {{"data", 1}, {"row", 2}, {"col", 3}};
  std::map<std::string, int64_t> elements;  // with the padding of their shards
  const HeldMatrices meta = hold(Mesh(axes, 0), at::kMeta);
  for (size_t i = 0; i < meta.params.size(); ++i) {
    const MatrixPiece p = matrix_pieces()[i];
    if (!p.name.starts_with("blocks.") || p.global.size() == 1) continue;
    // An expert is whole in the first dimension.
    for (size_t dim = p.layers.is_stacked ? 1 : 0; dim < p.global.size(); ++dim) {
      for (const std::string& axis : p.layout.dims[dim]) {
        elements[axis] += c10::multiply_integers(meta.params[i].padded);
      }
    }
  }
  std::map<std::string, std::atomic<int64_t>> sent;
  for (const auto& [axis, size] : axes) sent[axis] = 0;
  on_mesh(axes, [&](const Mesh& mesh, const Ledger& ledger) {
    HeldMatrices held = hold(mesh, at::kCPU);
    train_matrices(mesh, held);
    for (const auto& [axis, row] : ledger.axes()) {
      sent.at(axis) += row.bytes_sent;
      const int64_t calls = row.calls.at(static_cast<size_t>(Verb::kAllToAll));
      const int64_t splits = axis == "col" ? 2 : calls > 0 ? 1 : 0;  // col and row; col alone
      EXPECT_EQ(calls, 2 * kMatrixSteps * splits) << axis;
    }
  });
  for (const auto& [axis, n] : axes) {
    EXPECT_EQ(sent.at(axis), kMatrixSteps * 2 * 8 * elements[axis] * (n - 1) / n) << axis;
  }
}

// An overflow skips the update, not its messages.
TEST(Matrices, SendWithoutAnUpdateWhatAStepSends) {
  for (const auto& axes : matrix_meshes()) {
    std::map<std::string, int64_t> sent[2];
    for (const bool is_skipped : {false, true}) {
      SimulatedWorld simulated(ranks_of(axes));
      Ledger ledger;
      const auto me = simulated.communicator(0);
      Mesh mesh(axes, 0);
      mesh.connect(*me, &ledger);
      HeldMatrices held = hold(mesh, at::kMeta);
      const auto optimizer = make_optimizer(muon_plan());
      if (is_skipped) {
        optimizer->skip(held.shards, mesh);
      } else {
        optimizer->step(held.shards, muon_plan().lr, mesh);
      }
      for (const auto& [axis, row] : ledger.axes()) sent[is_skipped ? 1 : 0][axis] = row.bytes_sent;
      EXPECT_FALSE(sent[0].empty());
    }
    EXPECT_EQ(sent[0], sent[1]) << Mesh(axes, 0).describe();
  }
}

}  // namespace
}  // namespace kuafu
