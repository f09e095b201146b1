// SPDX-License-Identifier: Apache-2.0
#include "kuafu/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <random>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/comm/reduction.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/tensor/ops.h"
#include "tests/optim/axes.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

Plan dynamic_plan(double start, int64_t interval) {
  Plan plan;
  plan.train.loss_scale = TrainPlan::kDynamicScale;
  plan.train.loss_scale_start = start;
  plan.train.loss_scale_interval = interval;
  return plan;
}

// The scale is start x 2^(doublings - halvings), counted here over the whole history.
TEST(LossScaler, FollowsAnyHistoryOfOverflows) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 engine(seed);
    const auto interval = static_cast<int64_t>(1 + engine() % 5);
    const double start = std::ldexp(1.0, static_cast<int>(engine() % 30));
    const auto often = 2 + engine() % 9;
    LossScaler scaler(dynamic_plan(start, interval));
    std::vector<bool> history;
    for (int step = 0; step < 60; ++step) {
      int exponent = 0;
      int64_t run = 0, skipped = 0;
      for (const bool overflow : history) {
        run = overflow ? 0 : run + 1;
        skipped += overflow ? 1 : 0;
        if (overflow) --exponent;
        if (run == interval) {
          ++exponent;
          run = 0;
        }
      }
      const LossScale expected{std::ldexp(start, exponent), run, skipped};
      ASSERT_EQ(scaler.state(), expected) << "seed " << seed << ", step " << step;
      if (expected.scale < 0x1.0p-20) break;
      history.push_back(engine() % often == 0);
      scaler.step(history.back());
    }
  }
}

TEST(LossScaler, OfAFixedScaleCountsWhatItSkips) {
  Plan plan;
  plan.train.loss_scale = 100;
  LossScaler scaler(plan);
  EXPECT_TRUE(scaler.is_active());
  for (const bool overflow : {true, false, true}) scaler.step(overflow);
  EXPECT_EQ(scaler.state(), (LossScale{100, 0, 2}));
}

TEST(LossScaler, IsOffWithoutAKeyExceptForF16) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    Plan plan;
    plan.model.dtype = dtype;
    EXPECT_EQ(LossScaler(plan).is_active(), dtype == DType::kF16);
    EXPECT_EQ(LossScaler(plan).scale(), dtype == DType::kF16 ? 65536 : 1);
    plan.train.loss_scale = 1;
    EXPECT_FALSE(LossScaler(plan).is_active());
  }
}

TEST(LossScaler, GoesOnFromASavedState) {
  LossScaler scaler(dynamic_plan(8, 3));
  const LossScale saved{4096, 2, 7};
  scaler.restore(saved);
  EXPECT_EQ(scaler.state(), saved);
  scaler.step(false);
  EXPECT_EQ(scaler.state(), (LossScale{8192, 0, 7}));
  // A shorter interval than that of the run it goes on from is over at once.
  LossScaler shorter(dynamic_plan(8, 2));
  shorter.restore({4096, 5, 7});
  shorter.step(false);
  EXPECT_EQ(shorter.state(), (LossScale{8192, 0, 7}));
  // Another plan keeps its own scale, and the steps that were skipped.
  LossScaler off((Plan()));
  off.restore(saved);
  EXPECT_EQ(off.state(), (LossScale{1, 0, 7}));
}

TEST(LossScaler, StopsWhereNoScaleHelps) {
  LossScaler scaler(dynamic_plan(1, 100));
  for (int i = 0; i < 24; ++i) scaler.step(true);
  EXPECT_EQ(scaler.scale(), 0x1.0p-24);
  EXPECT_THROW(scaler.step(true), ConfigError);
}

std::vector<std::vector<Axis>> scaler_meshes() {
  return {{{"data", 1}},
          {{"data", 2}},
          {{"data", 3}},
          {{"pipeline", 5}},
          {{"pipeline", 2}, {"data", 3}},
          {{"data", 2}, {"row", 2}, {"col", 2}}};
}

TEST(IsOnAnyRank, HearsOfEveryRankEverywhere) {
  for (const auto& axes : scaler_meshes()) {
    const int n = ranks_of(axes);
    run_on_threads(n, [&](Communicator& world) {
      Mesh mesh(axes, world.rank());
      mesh.connect(world, nullptr);
      for (int loud = 0; loud <= n; ++loud) {  // n: nobody
        EXPECT_EQ(is_on_any_rank(world.rank() == loud, mesh, at::kCPU), loud < n)
            << mesh.describe();
      }
    });
  }
}

TEST(IsOnAnyRank, SendsFourBytesAnAxisAndTheSameOnMeta) {
  for (const auto& axes : scaler_meshes()) {
    const int n = ranks_of(axes);
    SimulatedWorld simulated(n);
    for (int r = 0; r < n; ++r) {
      Ledger ledger;
      const auto world = simulated.communicator(r);
      Mesh mesh(axes, r);
      mesh.connect(*world, &ledger);
      EXPECT_FALSE(is_on_any_rank(false, mesh, at::kMeta));
      for (const Axis& axis : axes) {
        if (axis.size == 1) continue;
        const AxisLedger row = ledger.axes().at(axis.name);
        EXPECT_EQ(row.calls[static_cast<size_t>(Verb::kAllReduce)], 1) << mesh.describe();
        EXPECT_LE(row.bytes_received, 4 * (axis.size - 1)) << mesh.describe();
      }
    }
  }
}

Tensor all_halves(at::ScalarType type) {
  const Tensor bits = at::arange(-32768, 32768, at::kLong).to(at::kShort);
  return bits.view(type);
}

// u = 0 u + (1 g + 0 w): the velocity is the gradient as the update reads it.
TEST(HalfGradients, AreReadExactlyWhateverTheirBits) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const Tensor grad = all_halves(type);
    Tensor value = at::zeros({grad.numel()}, at::kFloat), velocity = at::zeros_like(value);
    ops::sgd(value, grad, velocity, {.lr = 0, .momentum = 0, .weight_decay = 0});
    const auto* bits = static_cast<const uint16_t*>(grad.const_data_ptr());
    const float* read = velocity.const_data_ptr<float>();
    for (int64_t i = 0; i < grad.numel(); ++i) {
      const float expected = type == at::kHalf ? from_f16(bits[i]) : from_bf16(bits[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(read[i])) << bits[i];
      } else {
        EXPECT_EQ(read[i], expected) << bits[i];
      }
    }
  }
}

// A factor that would leave nothing of an f16 gradient is no loss inside the update.
TEST(HalfGradients, AreScaledInTheTypeOfTheUpdate) {
  for (const char* kind : {"adamw", "sgd"}) {
    OptimizerPlan plan;
    plan.kind = kind;
    const Tensor wanted = testing::closed_form({33}, 1, at::kFloat) * 0x1.0p-30;
    const Tensor grad = (wanted * 0x1.0p30).to(at::kHalf);
    std::vector<Tensor> results;
    for (const bool is_scaled : {true, false}) {
      Param p;
      p.name = "w";
      p.value = at::ones({33}, is_scaled ? at::kHalf : at::kFloat);
      const auto optimizer = make_optimizer(plan);
      const Tensor given = is_scaled ? grad : grad.to(at::kFloat) * 0x1.0p-30;
      std::vector<ParamShard> shards = {{p.value, given, &p, {}}};
      if (is_scaled) shards[0].grad_factor = 0x1.0p-30;
      for (int t = 0; t < 3; ++t) optimizer->step(shards, 0.1);
      const std::vector<SlotTensor> state = optimizer->state().tensors;
      results.push_back(is_scaled ? state.back().tensor : p.value);  // the master copy is the last
    }
    EXPECT_TRUE(at::equal(results[0], results[1])) << kind;
  }
}

}  // namespace
}  // namespace kuafu
