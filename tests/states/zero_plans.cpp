// SPDX-License-Identifier: Apache-2.0
#include "tests/states/zero_plans.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu::tests {
namespace {

Family layout(const std::string& name, const std::string& data, Overrides more = {}) {
  more.emplace_back("parallel.data", data);
  return {name, more};
}

/// x -> x scale, and a parameter that nothing uses.
class IdleBlock : public ModelBlock {
 public:
  IdleBlock(const Context& ctx, int64_t hidden)
      : scale_(add(make(ctx, "idle.scale", hidden, Init::Kind::kOnes))),
        idle_(add(make(ctx, "idle.unused", hidden, Init::Kind::kNormal))) {}
  Flow forward(const Flow& in, const Side&) override { return {in[0] * scale_.value}; }
  std::string name() const override { return "idle"; }
  const Param& idle() const { return idle_; }

 private:
  static Param make(const Context& ctx, const std::string& name, int64_t hidden, Init::Kind kind) {
    return ctx.param(name, {hidden}, Layout{{ctx.activation(Stream::kOuter).dims[2]}},
                     RowUse::kOuterWidth, {.kind = kind});
  }
  Param& scale_;
  Param& idle_;
};

}  // namespace

const std::vector<Family>& zero_families() {
  static const std::vector<Family> all = {
      layout("data_1", "1"),
      layout("data_2", "2"),
      layout("data_3", "3", {{"train.batch", "6"}}),
      layout("data_5", "5", {{"train.batch", "10"}}),
      layout("data_2_t1d_2", "2", keys::tensor("1d", "2")),
      layout("data_3_t1d_sp_2", "3",
             [] {
               Overrides o = keys::tensor("1d-sp", "2");
               o.emplace_back("train.batch", "6");
               return o;
             }()),
      layout("data_2_t2d_4", "2", keys::tensor("2d", "4")),
      layout("data_2_t2p5d_8", "2", keys::tensor("2.5d", "8", "2")),
      layout("data_2_t3d_8", "2", keys::tensor("3d", "8")),
      layout("data_2_ring_2", "2", keys::sequence("ring", "2")),
      layout("data_2_ulysses_2", "2", keys::sequence("ulysses", "2")),
      layout("data_4_expert_2", "4", keys::experts("2")),
      layout("data_2_expert_2", "2", keys::experts("2")),
      layout("data_2_t1d_with_2d_layer_4", "2",
             [] {
               Overrides o = keys::tensor("1d", "4");
               o.emplace_back("parallel.layers", R"([{ from = 1, to = 1, mode = "2d" }])");
               return o;
             }()),
  };
  return all;
}

Plan zero_plan(const Family& family, int64_t stage, Overrides more) {
  more.emplace_back("parallel.zero", text(stage));
  return plan_of(family, more);
}

Registries idle_registries() {
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add("idle_gpt", "GPT with a parameter that nothing uses",
                        [gpt](const ModelPlan& plan, const Context& ctx) {
                          Model model = gpt(plan, ctx);
                          model.blocks.insert(model.blocks.begin() + 2,
                                              std::make_unique<IdleBlock>(ctx, plan.hidden));
                          return model;
                        });
  return registries;
}

Plan with_idle(Plan plan) {
  plan.model.kind = "idle_gpt";
  return plan;
}

Trained train_replicas(const Plan& plan) {
  const Registries registries = idle_registries();
  const auto n = static_cast<size_t>(num_ranks(plan));
  std::vector<Trained> all(n);
  run_ranks(static_cast<int>(n), [&](Communicator& world) {
    const auto data = data_of(plan);
    Trained& mine = all[static_cast<size_t>(world.rank())];
    Engine engine(plan, registries, world, *data, {});
    for (int64_t step = 0; step < plan.train.steps; ++step) {
      mine.losses.push_back(engine.step().loss);
    }
    for (Param* p : engine.params()) {
      mine.parameters[p->name] = gather_param(*p, engine.value(*p), engine.mesh()).clone();
    }
  });
  for (const Trained& other : all) EXPECT_TRUE(is_same(other, all[0])) << "replicas disagree";
  return all[0];
}

}  // namespace kuafu::tests
