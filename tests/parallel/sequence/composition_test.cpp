// SPDX-License-Identifier: Apache-2.0
//
// Sequence modes inside whole models: composed with tensor and data parallelism they train as one
// rank does, simulated they count what threads count, and small wrongs are noticed.

#include <gtest/gtest.h>

#include "kuafu/simulate/simulate.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::small_plan;

Overrides sequence(const std::string& mode, int64_t size) {
  return {{"parallel.sequence.mode", mode}, {"parallel.sequence.size", text(size)}};
}

Overrides with(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_equal(const Overrides& overrides, const std::string& what) {
  const Certificate c = certificate_of(small_plan(overrides));
  EXPECT_EQ(c.verdict, "equal") << what << ": " << c.describe() << "; native "
                                << c.native.describe();
  EXPECT_EQ(c.level, "full");
}

const std::vector<std::string> kComposedModes = {"ring", "ring-zigzag", "ulysses", "all-gather"};

struct TensorGroup {
  const char *mode, *size, *depth;
};

TEST(SequenceComposition, EqualsOneRankWithEveryTensorModeAndData) {
  for (const std::string& mode : kComposedModes) {
    for (const auto& t : {TensorGroup{"1d", "2", "1"},
                          {"1d-sp", "2", "1"},
                          {"2d", "4", "1"},
                          {"2.5d", "8", "2"},
                          {"3d", "8", "1"}}) {
      Overrides o = sequence(mode, 2);
      o.emplace_back("parallel.tensor.mode", t.mode);
      o.emplace_back("parallel.tensor.size", t.size);
      if (std::string(t.depth) != "1") o.emplace_back("parallel.tensor.depth", t.depth);
      if (std::string(t.size) == "2") o.emplace_back("parallel.data", "2");
      expect_equal(with(o, {{"model.dropout", "0.1"}}), mode + " x " + t.mode);
    }
  }
}

TEST(SequenceComposition, EqualsOneRankOnUnevenPartsWithDropoutAndRecomputation) {
  for (const std::string& mode : kComposedModes) {
    const int64_t size = mode == "ulysses" ? 4 : 3;
    for (const char* recompute : {"none", "selective", "full"}) {
      expect_equal(with(sequence(mode, size), {{"model.sequence", "13"},
                                               {"model.dropout", "0.1"},
                                               {"memory.recompute", recompute}}),
                   mode + " " + recompute);
    }
  }
}

// Ranks hold unequal numbers of tokens and every micro-batch adds its share: the loss is a mean
// over all tokens whatever the degree.
TEST(SequenceComposition, DegreeScalesNeitherLossNorGradients) {
  const auto losses = [](const Overrides& o) {
    return tests::run_plan(small_plan(
        with(o, {{"model.sequence", "11"}, {"train.batch", "6"}, {"train.micro_batch", "2"}})))[0]
        .losses;
  };
  const std::vector<double> one = losses({{"parallel.data", "1"}});
  for (const std::string& mode : kComposedModes) {
    for (const int64_t size : {2, 4}) {
      const std::vector<double> many = losses(with(sequence(mode, size), {{"parallel.data", "1"}}));
      ASSERT_EQ(many.size(), one.size());
      // Losses of later steps tell of the gradients of earlier ones.
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(many[i], one[i], 1e-9 * one[i]) << mode << " x" << size << ", step " << i;
      }
    }
  }
}

TEST(SequenceComposition, AccumulationOfUnequalTokenCountsEqualsOneRank) {
  for (const std::string& mode : kComposedModes) {
    expect_equal(with(sequence(mode, 2), {{"model.sequence", "7"},
                                          {"parallel.data", "2"},
                                          {"train.batch", "12"},
                                          {"train.micro_batch", "2"}}),
                 mode);
  }
}

TEST(SequenceComposition, HalfPrecisionIsWithinTwiceOneRank) {
  for (const std::string& mode : kComposedModes) {
    expect_equal(with(sequence(mode, 2), {{"model.dtype", "bf16"}}), mode);
  }
}

TEST(SequenceComposition, SimulatedCountsEqualThreads) {
  for (const std::string& mode : kComposedModes) {
    const int64_t size = mode == "ulysses" ? 2 : 3;
    const Plan plan = small_plan(
        with(sequence(mode, size), {{"model.sequence", mode == "ulysses" ? "14" : "12"},
                                    {"model.dtype", "f32"},
                                    {"parallel.tensor.mode", mode == "ring" ? "1d-sp" : "1d"},
                                    {"parallel.tensor.size", "2"},
                                    {"model.dropout", "0.1"}}));
    const Prediction predicted = simulate(plan, builtin_registries());
    const auto real = tests::run_plan(plan);
    for (size_t r = 0; r < real.size(); ++r) {
      SCOPED_TRACE(text(mode, ", rank ", r));
      EXPECT_EQ(predicted.ranks[r].traffic, real[r].traffic);
      EXPECT_EQ(predicted.ranks[r].flops, real[r].flops);
      EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes);
      EXPECT_EQ(predicted.ranks[r].at_peak, real[r].at_peak);
      EXPECT_GT(real[r].traffic.at("sequence").bytes_received, 0);
    }
  }
}

void expect_refused(const Overrides& o, const std::vector<std::string>& words) {
  std::string message;
  try {
    const Plan plan = small_plan(o);
    check_placement(plan, builtin_registries());
  } catch (const Refused& e) {
    message = e.what();
  }
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no " << word << " in: " << message;
  }
}

TEST(SequencePlans, ThatCannotBePlacedAreRefusedWithTheNearest) {
  expect_refused(sequence("ring", 13), {"parallel.sequence.size = 13", "model.sequence = 12",
                                        "nearest: size = 12, or sequence = 13"});
  expect_refused(sequence("ulysses", 8), {"--set parallel.sequence.size", "model.heads = 4",
                                          "more ranks than heads", "nearest: size = 4 or 2"});
  expect_refused(sequence("none", 2), {"mode \"none\"", "nearest: size = 1, or mode = \"ring\""});
  expect_refused(
      with(sequence("ulysses", 4), {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}}),
      {"ulysses", "2 heads are dealt"});
  // Uneven parts would not divide by the ranks of 1d-sp.
  expect_refused(with(sequence("ring", 2), {{"parallel.tensor.mode", "1d-sp"},
                                            {"parallel.tensor.size", "2"},
                                            {"model.sequence", "14"}}),
                 {"activations", "sequence.tensor", "12 and 16"});
}

TEST(SequencePlans, NameOfNoModeIsAnErrorWithTheNearest) {
  try {
    small_plan(sequence("rnig", 2));
    FAIL() << "a mode of that name was found";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("nearest: \"ring\""), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kuafu
