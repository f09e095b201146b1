// SPDX-License-Identifier: Apache-2.0
//
// Peaks of models so small that a number of four bytes decides them, real and simulated.

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/optim/rule.h"
#include "kuafu/simulate/simulate.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

void expect_equal_peaks(Overrides overrides) {
  overrides.emplace_back("train.validation_batches", "0");
  const Plan plan = tests::small_plan(overrides);
  const std::vector<RankResult> real = tests::run_plan(plan);
  const Prediction predicted = simulate(plan, builtin_registries());
  for (size_t r = 0; r < real.size(); ++r) {
    EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes) << "rank " << r;
  }
}

// The loss is scaled while its terms are the largest tensors of a rank.
TEST(SimulatedPeak, IsThatOfTheLossOfATinyVit) {
  expect_equal_peaks({{"model.kind", "vit"},
                      {"model.dtype", "f32"},
                      {"model.hidden", "2"},
                      {"model.heads", "1"},
                      {"model.vocab", "256"},
                      {"model.sequence", "5"},
                      {"model.image", "8"},
                      {"parallel.pipeline.size", "4"},
                      {"parallel.sequence.mode", "ring"},
                      {"parallel.sequence.size", "3"}});
}

TEST(SimulatedPeak, IsThatOfTheLossOfATinyMixture) {
  expect_equal_peaks({{"model.kind", "moe_gpt"},
                      {"model.dtype", "bf16"},
                      {"model.layers", "4"},
                      {"model.moe_every", "4"},
                      {"model.hidden", "4"},
                      {"model.experts", "2"},
                      {"model.vocab", "5"},
                      {"parallel.tensor.mode", "1d"},
                      {"parallel.tensor.size", "4"}});
}

// A simulated run knows no overflow and updates in every step: where its peak is the same, slots and
// master copies are there without a step.
TEST(SimulatedPeak, IsThatOfARunWhoseEveryStepOverflows) {
  for (const std::string& kind : builtin_optimizers().names()) {
    for (const char* zero : {"0", "1", "2", "3"}) {
      const testing::ScopedTrace trace(__FILE__, __LINE__, text(kind, ", ZeRO ", zero));
      for (const char* telemetry : {"false", "true"}) {
        // With wide matrices a step's copies of them are what the peak is made of.
        for (const char* hidden : {"16", "96"}) {
          const Overrides overrides = {{"model.dtype", "f16"},
                                       {"model.hidden", hidden},
                                       {"train.loss_scale", "1000000000000000"},
                                       {"train.validation_batches", "0"},
                                       {"train.telemetry", telemetry},
                                       {"optimizer.kind", kind},
                                       {"parallel.data.size", "2"},
                                       {"parallel.zero", zero}};
          const Plan plan = tests::small_plan(overrides);
          const std::vector<RankResult> real = tests::run_plan(plan);
          const Prediction predicted = simulate(plan, builtin_registries());
          for (size_t r = 0; r < real.size(); ++r) {
            EXPECT_EQ(static_cast<int64_t>(real[r].skipped.size()), plan.train.steps);
            EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes)
                << "rank " << r << ", telemetry " << telemetry << ", width " << hidden;
          }
        }
      }
    }
  }
}

// Where matrices outweigh activations the peak lies in their steps.
TEST(SimulatedPeak, OfMuonIsThatOfARunWhoseEveryStepOverflows) {
  for (const Overrides& parallel :
       {Overrides{}, Overrides{{"parallel.data.size", "2"}, {"parallel.zero", "2"}},
        Overrides{{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}},
        Overrides{{"parallel.pipeline.size", "2"}, {"train.micro_batch", "1"}}}) {
    for (const char* nesterov : {"false", "true"}) {
      for (const char* scale : {"1", "1000000000000000"}) {
        Overrides overrides = {{"model.dtype", "f16"},     {"train.loss_scale", scale},
                               {"model.hidden", "96"},     {"model.sequence", "2"},
                               {"train.batch", "2"},       {"train.validation_batches", "0"},
                               {"optimizer.kind", "muon"}, {"optimizer.nesterov", nesterov}};
        overrides.insert(overrides.end(), parallel.begin(), parallel.end());
        const Plan plan = tests::small_plan(overrides);
        const std::vector<RankResult> real = tests::run_plan(plan);
        const Prediction predicted = simulate(plan, builtin_registries());
        for (size_t r = 0; r < real.size(); ++r) {
          const int64_t skipped = *scale == '1' && scale[1] == 0 ? 0 : plan.train.steps;
          EXPECT_EQ(static_cast<int64_t>(real[r].skipped.size()), skipped);
          EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes) << text(
              parallel.size(), " keys, nesterov ", nesterov, ", scale ", scale, ", rank ", r);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kuafu
