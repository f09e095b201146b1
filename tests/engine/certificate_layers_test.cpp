// SPDX-License-Identifier: Apache-2.0
//
// Weights that hold several layers side by side are compared layer by layer: gradients of queries and
// keys are far smaller than those of values, and of an expert with few tokens than of its neighbours.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/certificate_reference.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/tensor/differentiable.h"
#include "tests/support/certified.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

/// What a sequence mode does to the gradient of queries, keys or values, in all types but f64.
struct WrongGradient {
  size_t of = 0;
  double factor = 1;
};

class WrongAttention : public AttentionParallel {
 public:
  WrongAttention(const AttentionSetup& setup, WrongGradient wrong)
      : wrong_(wrong), sound_(make_ring_attention(setup)) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const override {
    Tensors all = {q, k, v};
    all[wrong_.of] = spoilt(all[wrong_.of]);
    return sound_->attend(all[0], all[1], all[2], mask);
  }
  AttentionCost cost(const AttentionShape& s) const override { return sound_->cost(s); }

 private:
  Tensor spoilt(const Tensor& t) const {
    const double factor = t.scalar_type() == at::kDouble ? 1 : wrong_.factor;
    return differentiable(
        {t},
        [](const Tensors& in) -> ForwardResult {
          return {{in[0].clone()}, {}};
        },
        [factor](const Tensors&, const Tensors& g, const std::vector<bool>&) -> Tensors {
          return {g[0] * factor};
        })[0];
  }

  WrongGradient wrong_;
  std::unique_ptr<AttentionParallel> sound_;
};

enum class Reference : uint8_t { kOracle, kEngine };

/// As of a plug-in's model that brings no oracle.
Registries registries_with(Reference reference) {
  Registries registries = builtin_registries();
  if (reference == Reference::kEngine) registries.oracles = Registry<oracle::MakeModel>("oracle");
  return registries;
}

Certificate certificate_of(WrongGradient wrong, const char* type,
                           Reference reference = Reference::kOracle) {
  Registries registries = registries_with(reference);
  registries.sequence.add("wrong", "ring, a gradient wrong in all types but f64",
                          [wrong](const AttentionSetup& setup) {
                            return std::make_unique<WrongAttention>(setup, wrong);
                          });
  Plan plan = tests::small_plan(tests::keys::both({{"model.dtype", type},
                                                   {"model.hidden", "64"},
                                                   {"model.sequence", "32"},
                                                   {"train.steps", "4"},
                                                   {"optimizer.lr", "3e-3"},
                                                   {"train.validation_batches", "0"}},
                                                  tests::keys::sequence("ring", "2")));
  plan.parallel.sequence.mode = "wrong";
  return tests::certified_run(plan, registries).certificate;
}

// Of no gradient at all and of one of the wrong sign the error is as large as of bf16's factor, and twice that.
TEST(CertificateOfAWrongAttention, TellsItsQueriesAndItsKeys) {
  struct Type {
    const char* name;
    double factor;
  };
  for (const Type& type : {Type{"f32", 1.0001}, Type{"f16", 1.1}, Type{"bf16", 2}}) {
    for (size_t of : {0, 1}) {
      const Certificate c = certificate_of({of, type.factor}, type.name);
      EXPECT_TRUE(c.gradient.holds()) << c.describe();  // in f64 nothing is wrong
      EXPECT_EQ(c.native.verdict, "different") << type.name << of << c.native.describe();
      EXPECT_FALSE(c.native.blocks.holds()) << type.name << of << c.native.describe();
    }
    EXPECT_EQ(certificate_of({}, type.name).native.verdict, "equal") << type.name;
  }
}

// One rank of the engine knows no terms of its sums, and no block.
TEST(CertificateOfAWrongAttention, TellsItsQueriesAndItsKeysWithoutAnOracle) {
  struct Type {
    const char* name;
    double factor;
  };
  for (const Type& type : {Type{"f32", 1.0001}, Type{"f16", 0}, Type{"bf16", 0}}) {
    for (size_t of : {0, 1}) {
      const Certificate c = certificate_of({of, type.factor}, type.name, Reference::kEngine);
      EXPECT_EQ(c.reference, "engine");
      EXPECT_TRUE(c.gradient.holds()) << c.describe();
      EXPECT_EQ(c.native.verdict, "different") << type.name << of << c.native.describe();
    }
    const Certificate sound = certificate_of({}, type.name, Reference::kEngine);
    EXPECT_EQ(sound.native.verdict, "equal") << type.name << sound.native.describe();
  }
}

TEST(CertificateWithoutAnOracle, HoldsOfSoundPlans) {
  const Registries registries = registries_with(Reference::kEngine);
  const std::vector<Overrides> schemes = {
      tests::keys::tensor("1d", "2"),
      tests::keys::sequence("ring", "2"),
      {{"parallel.data", "2"}},
      tests::keys::both({{"parallel.data", "3"}}, {{"parallel.zero", "2"}})};
  for (const char* kind : {"gpt", "bert", "opt"}) {
    for (const char* type : {"f64", "f32", "f16", "bf16"}) {
      for (const Overrides& scheme : schemes) {
        const Plan plan = tests::small_plan(tests::keys::both({{"model.kind", kind},
                                                               {"model.dtype", type},
                                                               {"train.batch", "12"},
                                                               {"train.validation_batches", "0"}},
                                                              scheme));
        const Certificate c = tests::certified_run(plan, registries).certificate;
        EXPECT_EQ(c.verdict, "equal")
            << kind << ' ' << type << ": " << c.describe() << "; " << c.native.describe();
      }
    }
  }
}

TEST(LayersApart, AreTheColumnsOfEachPartAndTheIndicesOfAStack) {
  const oracle::Weights weights = {
      {"qkv", {.shape = {1, 12}, .fused = 3, .run = 2}},
      {"up", {.shape = {2, 1, 4}, .is_stacked = true, .fused = 2}},
      {"bias", {.shape = {6}, .fused = 3, .run = 2}},
      {"plain", {.shape = {2, 2}}},
  };
  const oracle::Tensors whole = {{"qkv", at::arange(12).reshape({1, 12})},
                                 {"up", at::arange(8).reshape({2, 1, 4})},
                                 {"bias", at::arange(6)},
                                 {"plain", at::arange(4).reshape({2, 2})},
                                 {"unknown", at::arange(3)}};
  const oracle::Tensors apart = layers_apart(whole, weights);
  const auto numbers = [&](const std::string& name) {
    const Tensor t = apart.at(name).flatten().contiguous();
    return std::vector<int64_t>(t.data_ptr<int64_t>(), t.data_ptr<int64_t>() + t.numel());
  };
  using Numbers = std::vector<int64_t>;
  EXPECT_EQ(apart.size(), 3u + 4 + 3 + 2);
  EXPECT_EQ(numbers("qkv, part 2 of 3"), (Numbers{2, 3, 8, 9}));
  EXPECT_EQ(numbers("up, layer 2 of 2, part 1 of 2"), (Numbers{4, 6}));
  EXPECT_EQ(numbers("bias, part 3 of 3"), (Numbers{4, 5}));
  EXPECT_EQ(numbers("plain"), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(numbers("unknown"), (Numbers{0, 1, 2}));
}

}  // namespace
}  // namespace kuafu
