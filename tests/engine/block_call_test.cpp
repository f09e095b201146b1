// SPDX-License-Identifier: Apache-2.0
//
// Models whose blocks hand on what they may not: each ends with one error that names the block, in
// training, in validation, on every stage of a pipeline and simulated.
#include <gtest/gtest.h>

#include <atomic>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/engine/proof/certificate.h"
#include "kuafu/engine/registries.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu::tests {
namespace {

using Spoil = std::function<Flow(Flow)>;

Flow as_it_is(Flow flow) { return flow; }

/// The block `inner` with another result, or given something else.
class SpoiltBlock : public ModelBlock {
 public:
  SpoiltBlock(std::unique_ptr<ModelBlock> inner, Spoil result, Spoil input)
      : inner_(std::move(inner)), result_(std::move(result)), input_(std::move(input)) {
    add_child(*inner_);
  }
  Flow forward(const Flow& in, const Side& side) override {
    return result_(inner_->forward(input_(in), side));
  }
  std::string name() const override { return inner_->name(); }
  std::vector<Param*> borrowed() override { return inner_->borrowed(); }

 private:
  std::unique_ptr<ModelBlock> inner_;
  Spoil result_, input_;
};

/// Hands on what it takes, so that nothing uses its parameters.
class PassingBlock : public ModelBlock {
 public:
  explicit PassingBlock(std::unique_ptr<ModelBlock> inner) : inner_(std::move(inner)) {
    add_child(*inner_);
  }
  Flow forward(const Flow& in, const Side&) override { return {in[0] * 2}; }
  std::string name() const override { return inner_->name(); }
  std::vector<Param*> borrowed() override { return inner_->borrowed(); }

 private:
  std::unique_ptr<ModelBlock> inner_;
};

using Wrap = std::function<std::unique_ptr<ModelBlock>(std::unique_ptr<ModelBlock>)>;

/// With a model "spoilt": a GPT whose block `index` from the end is wrapped.
Registries registries_with(size_t index, const Wrap& wrap) {
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add("spoilt", "GPT with one block that is another",
                        [=](const ModelPlan& plan, const Context& ctx) {
                          Model model = gpt(plan, ctx);
                          auto& block = model.blocks[model.blocks.size() - 1 - index];
                          block = wrap(std::move(block));
                          return model;
                        });
  return registries;
}

Plan plan_of_spoilt(const Overrides& overrides) {
  Plan plan = small_plan(overrides);
  plan.model.kind = "spoilt";
  return plan;
}

/// What two steps of it end with.
std::string message(const Plan& plan, const Registries& registries) {
  try {
    run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
      const auto data = data_of(plan);
      Engine engine(plan, registries, world, *data, {});
      for (int64_t s = 0; s < 2; ++s) engine.step();
    });
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

/// What a run of a GPT ends with whose block `index` from the end hands on result(what it makes of
/// input(what it takes)).
std::string message(size_t index, const Spoil& result, const Overrides& overrides,
                    const Spoil& input = as_it_is) {
  const Wrap spoil = [=](std::unique_ptr<ModelBlock> block) {
    return std::make_unique<SpoiltBlock>(std::move(block), result, input);
  };
  return message(plan_of_spoilt(overrides), registries_with(index, spoil));
}

const std::vector<Overrides> kPlans = {
    {{"parallel.data.size", "2"}},
    {{"memory.recompute", "full"}},
    {{"parallel.pipeline.size", "2"}, {"train.micro_batch", "2"}},
    {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}}};

TEST(BlockCall, ParametersThatNothingUsesAreCertifiedUnderEveryRule) {
  const Registries registries = registries_with(1, [](std::unique_ptr<ModelBlock> block) {
    return std::make_unique<PassingBlock>(std::move(block));
  });
  for (const std::string& kind : registries.optimizers.names()) {
    const Plan plan = plan_of_spoilt({{"parallel.data.size", "2"}, {"optimizer.kind", kind}});
    Certificate c;
    run_ranks(2, [&](Communicator& world) {
      const Certificate mine = certify(plan, registries, world, data_of, {}, int64_t{1} << 40);
      if (world.rank() == 0) c = mine;
    });
    EXPECT_EQ(c.verdict, "equal") << kind << ": " << c.describe();
  }
}

/// What a scheme makes of what it is given.
enum class Made : uint8_t { kForward, kInputGradient, kWeightGradient };

/// 1D that lacks a column of one of its results, but where types and sums are looked at before a run.
class Narrow : public TensorParallel {
 public:
  Narrow(const Mesh& mesh, Made what)
      : TensorParallel(mesh), what_(what), sound_(make_megatron_1d(mesh)) {}
  Layout activation(Stream s) const override { return sound_->activation(s); }
  Layout weight(Role r) const override { return sound_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return cut(sound_->forward(x, w, r), Made::kForward, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return cut(sound_->input_grad(dy, w, r), Made::kInputGradient, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return cut(sound_->weight_grad(x, dy, r), Made::kWeightGradient, r);
  }
  Cost cost(const LinearShape& s, Role r) const override { return sound_->cost(s, r); }

 private:
  Tensor cut(const Tensor& t, Made what, Role r) const {
    const bool is_cut =
        what == what_ && (what == Made::kWeightGradient || (is_running && r == Role::kExpand));
    return is_cut ? t.slice(-1, 1) : t;
  }

  Made what_;
  std::unique_ptr<TensorParallel> sound_;

 public:
  static inline std::atomic<bool> is_running = false;
};

Registries registries_of(Made what) {
  Registries registries = builtin_registries();
  const TensorMode mode{.name = "narrow",
                        .summary = "1d of which results lack a column",
                        .axes = [](int64_t size, int64_t) -> std::vector<Axis> {
                          return {{"tensor", size}};
                        }};
  registries.tensor.add(mode.name, mode.summary, TensorScheme{mode, [what](const Mesh& mesh) {
                                                                return std::make_unique<Narrow>(
                                                                    mesh, what);
                                                              }});
  return registries;
}

TEST(BlockCall, AProductOfAnotherShapeIsToldWithBothShapes) {
  Plan plan = small_plan({});
  plan.parallel.tensor.mode = "narrow";
  plan.parallel.tensor.size = 2;
  for (const auto& [what, words] : std::vector<std::pair<Made, std::string>>{
           {Made::kForward, "the tensor mode's product of Double ("},
           {Made::kInputGradient, "the tensor mode's product gave Double ("}}) {
    const Registries registries = registries_of(what);
    std::string told = "no error";
    try {
      run_ranks(2, [&](Communicator& world) {
        const auto data = data_of(plan);
        Engine engine(plan, registries, world, *data, {});
        Narrow::is_running = true;
        engine.step();
      });
    } catch (const std::exception& e) {
      told = e.what();
    }
    Narrow::is_running = false;
    EXPECT_NE(told.find(words), std::string::npos) << told;
    EXPECT_EQ(told.find("internal error"), std::string::npos) << told;
  }
}

TEST(BlockCall, AWeightGradientOfAnotherShapeIsToldWithBothShapes) {
  const Registries registries = registries_of(Made::kWeightGradient);
  for (const char* schedule : {"1f1b", "zero_bubble"}) {  // at once, and later
    Plan plan = small_plan({{"train.micro_batch", "2"}});
    plan.parallel.tensor.mode = "narrow";
    plan.parallel.tensor.size = 2;
    plan.parallel.pipeline.size = 2;
    plan.parallel.pipeline.schedule = schedule;
    const std::string all = message(plan, registries);
    EXPECT_NE(all.find("weight_grad gave Double ("), std::string::npos) << all;
    EXPECT_NE(all.find(" for a weight, Double ("), std::string::npos) << all;
  }
}

// The blocks before it have gradients of zero.
TEST(BlockCall, ABlockMayStopTheGradientOfWhatItTakes) {
  const Spoil stopped = [](Flow f) { return Flow{f[0].detach()}; };
  for (const Overrides& plan : kPlans) {
    EXPECT_EQ(message(1, as_it_is, plan, stopped), "no error") << plan[0].first;
  }
}

TEST(BlockCall, WhatABlockMayNotHandOnIsToldWithItsName) {
  const Spoil nothing = [](Flow) { return Flow{}; };
  const Spoil undefined = [](Flow) { return Flow{Tensor()}; };
  const Spoil narrow = [](Flow f) { return Flow{f[0].narrow(-1, 0, f[0].size(-1) - 1)}; };
  const Spoil wide = [](Flow f) { return Flow{f[0].unsqueeze(0).unsqueeze(0)}; };
  const Spoil two = [](Flow f) { return Flow{f[0], f[0]}; };
  const Spoil rows = [](Flow f) { return Flow{f[0].expand({2})}; };
  const Spoil whole = [](Flow f) { return Flow{f[0].to(at::kLong)}; };
  const Spoil detached = [](Flow f) { return Flow{f[0].detach()}; };
  for (const Overrides& plan : kPlans) {
    const auto says = [&](size_t index, const Spoil& spoil, const std::string& words) {
      const std::string all = message(index, spoil, plan);
      EXPECT_NE(all.find(words), std::string::npos) << words << "\n" << all;
      EXPECT_EQ(all.find("frame #"), std::string::npos) << all;
    };
    says(1, nothing, "block 'blocks.1' (3 of 4) hands on nothing; forward() returns what the next");
    says(1, undefined, "block 'blocks.1' (3 of 4) hands on an undefined tensor");
    says(2, narrow, "block 'blocks.1' (3 of 4): internal error: matmul of (");
    says(1, wide, "block 'head' (4 of 4): an error of LibTorch: ");
    says(1, whole, "block 'blocks.1' (3 of 4) hands on a tensor of Long, which has no gradient");
    says(1, detached, "block 'blocks.1' (3 of 4) hands on a tensor that no gradient can pass; ");
    says(0, nothing, "block 'head' (4 of 4) hands on nothing; forward() returns the loss");
    says(0, two, "block 'head' (4 of 4) is the last and hands on 2 tensors");
    says(0, rows, "hands on a tensor of 2 elements; its forward() returns the loss");
  }
}

TEST(BlockCall, WhatABlockThrowsIsToldWithItsNameAndThatOfItsPlugIn) {
  const Spoil fails = [](Flow) -> Flow { throw std::out_of_range("no such expert"); };
  const Spoil refuses = [](Flow) -> Flow { throw ConfigError("too many heads"); };
  for (const auto& [spoil, words] : std::vector<std::pair<Spoil, std::string>>{
           {fails, "block 'blocks.1' (3 of 4) threw: no such expert"},
           {refuses, "block 'blocks.1' (3 of 4): too many heads"}}) {
    const std::string all = message(1, spoil, kPlans[0]);
    EXPECT_NE(all.find(words), std::string::npos) << all;
  }
}

}  // namespace
}  // namespace kuafu::tests
