// SPDX-License-Identifier: Apache-2.0
//
// Models whose blocks hand on what they may not: each ends with one error that names the block, in
// training, in validation, on every stage of a pipeline and simulated.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/engine/registries.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu::tests {
namespace {

using Spoil = std::function<Flow(Flow)>;

/// The block `inner` with another result.
class SpoiltBlock : public ModelBlock {
 public:
  SpoiltBlock(std::unique_ptr<ModelBlock> inner, Spoil spoil)
      : inner_(std::move(inner)), spoil_(std::move(spoil)) {
    add_child(*inner_);
  }
  Flow forward(const Flow& in, const Side& side) override {
    return spoil_(inner_->forward(in, side));
  }
  std::string name() const override { return inner_->name(); }
  std::vector<Param*> borrowed() override { return inner_->borrowed(); }

 private:
  std::unique_ptr<ModelBlock> inner_;
  Spoil spoil_;
};

/// What a run of a GPT ends with whose block `index` from the end hands on spoil(its result).
std::string message(size_t index, const Spoil& spoil, const Overrides& overrides) {
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add("spoilt", "GPT with one block that is wrong",
                        [&](const ModelPlan& plan, const Context& ctx) {
                          Model model = gpt(plan, ctx);
                          auto& block = model.blocks[model.blocks.size() - 1 - index];
                          block = std::make_unique<SpoiltBlock>(std::move(block), spoil);
                          return model;
                        });
  Plan plan = small_plan(overrides);
  plan.model.kind = "spoilt";
  try {
    run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
      const auto data = data_of(plan);
      Engine(plan, registries, world, *data, {}).step();
    });
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
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
  const std::vector<Overrides> plans = {
      {{"parallel.data.size", "2"}},
      {{"memory.recompute", "full"}},
      {{"parallel.pipeline.size", "2"}, {"train.micro_batch", "2"}},
      {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}}};
  for (const Overrides& plan : plans) {
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
    says(1, detached,
         "block 'blocks.1' (3 of 4), backward: an error of LibTorch: element 0 of ten");
    says(0, nothing, "block 'head' (4 of 4) hands on nothing; forward() returns the loss");
    says(0, two, "block 'head' (4 of 4) is the last and hands on 2 tensors");
    says(0, rows, "hands on a tensor of 2 elements; its forward() returns the loss");
  }
}

}  // namespace
}  // namespace kuafu::tests
