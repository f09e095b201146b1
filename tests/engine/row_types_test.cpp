// SPDX-License-Identifier: Apache-2.0
//
// Seeded errors of what models declare: an axis of a gradient's sum or of a norm's left out, added, or
// exchanged for another, of every kind of row under every kind of plan. All are refused, with the name
// of the parameter; what is right is accepted.

#include "kuafu/engine/placing/row_types.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "kuafu/engine/placing/placement.h"
#include "kuafu/plan/kind_names.h"
#include "tests/engine/seeded.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::Grid;
using tests::long_axes;
using tests::refusal;
using tests::seeded;

/// Errors of one row.
struct Seed {
  std::string what;
  std::function<void(Param&)> change;
};

/// The row in another layout throughout: its shard has the extents that the layout says.
void lay_out(Param& p, const Layout& layout, const Mesh& mesh) {
  Shape mine;
  for (size_t d = 0; d < p.global.size(); ++d) {
    p.padded[d] = padded(p.global[d], layout.dims[d], mesh);
    mine.push_back(p.padded[d] / mesh.size(layout.dims[d]));
  }
  p.layout = layout;
  p.value = at::empty(mine, p.value.options());
}

std::vector<Seed> seeds_of(const Param& p, const Context& context) {
  std::vector<Seed> out;
  const Mesh& mesh = context.mesh;
  const Axes axes = long_axes(mesh.axes());
  const auto is_summed = [&](const std::string& axis) {
    return std::count(p.grad_axes.begin(), p.grad_axes.end(), axis) > 0;
  };
  for (const std::string& axis : axes) {
    if (!is_summed(axis)) {
      out.push_back({"gradient with " + axis, [=](Param& q) { q.grad_axes.push_back(axis); }});
      continue;
    }
    out.push_back({"gradient without " + axis, [=](Param& q) { std::erase(q.grad_axes, axis); }});
    out.push_back({"gradient twice " + axis, [=](Param& q) { q.grad_axes.push_back(axis); }});
    for (const std::string& other : axes) {
      if (is_summed(other)) continue;
      out.push_back({text("gradient ", other, " for ", axis), [=](Param& q) {
                       std::replace(q.grad_axes.begin(), q.grad_axes.end(), axis, other);
                     }});
    }
  }
  for (const auto& [what, layout] : seeded(p.layout, axes)) {
    out.push_back({"norm " + what, [layout = layout](Param& q) { q.layout = layout; }});
    const auto wrong = [layout = layout, &mesh](Param& q) { lay_out(q, layout, mesh); };
    out.push_back({"shard " + what, wrong});
    out.push_back({"shard and gradient " + what, [wrong, &context](Param& q) {
                     wrong(q);
                     q.grad_axes = grad_axes(context.activation(stream_of(q.use)), q.layout);
                   }});
  }
  out.push_back({"no use", [](Param& q) { q.use = RowUse::kUnstated; }});
  out.push_back({"a use of its own", [](Param& q) { q.use = RowUse::kOwn; }});
  return out;
}

/// A plan's model, its rows' types, and how many errors were looked at.
class Seeded {
 public:
  explicit Seeded(const Plan& plan)
      : plan_(plan),
        placement_(plan_, registries_, 0, at::kMeta),
        model_(placement_.make_model()),
        types_(plan_, registries_, placement_.context()) {
    types_.check(model_);
  }

  /// Every error, or `count` that are drawn from each row's; what was accepted is a failure.
  void expect_refused(const std::string& plan, std::mt19937_64* random = nullptr, int count = 1) {
    for (const auto& block : model_.blocks) {
      for (Param* p : block->params()) {
        uses.insert(p->use);
        const std::vector<Seed> all = seeds_of(*p, placement_.context());
        if (random == nullptr) {
          for (const Seed& seed : all) expect_refused(plan, *p, seed);
          continue;
        }
        for (int i = 0; i < count; ++i) expect_refused(plan, *p, all[(*random)() % all.size()]);
      }
    }
  }

  int seeds = 0;
  std::set<RowUse> uses;

 private:
  void expect_refused(const std::string& plan, Param& p, const Seed& seed) {
    ++seeds;
    const Param right = p;
    seed.change(p);
    try {
      types_.check(model_);
      ADD_FAILURE() << plan << ": " << p.name << ", " << seed.what << " was accepted";
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(p.name), std::string::npos) << e.what();
    }
    p = right;
  }

  const Plan plan_;
  const Registries registries_ = builtin_registries();
  Placement placement_;
  Model model_;
  RowTypes types_;
};

const std::vector<Grid>& grids() {
  static const std::vector<Grid> all = {
      {tensor_modes::kNone, "1", "1"}, {tensor_modes::k1d, "2", "1"},
      {tensor_modes::k1dSp, "2", "1"}, {tensor_modes::k2d, "4", "1"},
      {tensor_modes::k2p5d, "8", "2"}, {tensor_modes::k3d, "8", "1"}};
  return all;
}

/// Two stages, of micro-batches that every grid divides.
Overrides staged_plan() {
  return {{"parallel.pipeline", "2"}, {"train.micro_batch", "4"}, {"train.batch", "16"}};
}

/// What goes with a grid; `is_quick`: each kind of row and of axis once.
std::vector<Overrides> choices(bool is_quick) {
  using namespace tests::keys;
  const Overrides bert = {{"model.kind", "bert"}, {"model.vocab", "40"}};
  const Overrides vit = {{"model.kind", "vit"},
                         {"model.vocab", "256"},
                         {"model.image", "12"},
                         {"model.sequence", "10"},
                         {"model.classes", "32"}};
  const Overrides heads = {{"model.kv_heads", "1"}};
  const Overrides staged = staged_plan();
  std::vector<Overrides> all = {both(staged, replicas("2", "1")),
                                both(both(experts("2"), replicas("2", "0")), sequence("ring", "2")),
                                both(bert, staged), vit, heads};
  if (is_quick) return all;
  all.push_back({});
  for (const auto& mode : builtin_sequence_modes()) {
    if (mode.name == sequence_modes::kNone) continue;
    const Overrides on = sequence(mode.name, "2");
    for (const Overrides& also : {Overrides{}, heads, bert, vit, staged})
      all.push_back(both(on, also));
  }
  for (const char* zero : {"0", "1", "2", "3"}) {
    all.push_back(replicas("2", zero));
    all.push_back(both(experts("2"), replicas("2", zero)));
    all.push_back(both(experts("2"), replicas("4", zero)));
  }
  all.push_back(both(both(experts("2"), replicas("2", "0")), staged));
  all.push_back(both(both(experts("2"), replicas("2", "0")), {{"model.shared_experts", "1"}}));
  all.push_back(both(heads, {{"model.mlp", "swiglu"}, {"model.norm", "rms"}}));
  return all;
}

/// Those of them that a plan may have on the grid.
void expect_all_refused(const Grid& grid, bool is_quick) {
  int plans = 0, seeds = 0;
  for (const Overrides& also : choices(is_quick)) {
    Overrides keys = also;
    if (std::string(grid.mode) != tensor_modes::kNone) {
      keys = tests::keys::both(tests::keys::tensor(grid.mode, grid.size, grid.depth), also);
    }
    std::string name = grid.mode;
    for (const auto& [key, value] : also) name += text(" ", key, "=", value);
    std::optional<Plan> plan;
    try {
      plan = tests::small_plan(keys);
      check_placement(*plan, builtin_registries());
    } catch (const Refused&) {  // heads, samples or tokens that do not divide
      continue;
    }
    Seeded seeded(*plan);
    seeded.expect_refused(name);
    ++plans;
    seeds += seeded.seeds;
  }
  EXPECT_GE(plans, 3);
  EXPECT_GE(seeds, 100 * plans);
}

class SeededRows : public testing::TestWithParam<Grid> {};

TEST_P(SeededRows, AreRefusedByName) { expect_all_refused(GetParam(), true); }
TEST_P(SeededRows, OfMorePlansAreRefusedByName) { expect_all_refused(GetParam(), false); }

INSTANTIATE_TEST_SUITE_P(All, SeededRows, testing::ValuesIn(grids()),
                         [](const auto& info) { return text("grid_", info.index); });

TEST(RowTypes, OfMixedLayersAreRefusedByName) {
  using namespace tests::keys;
  const char* layers = "parallel.layers";
  const std::map<std::string, Overrides> plans = {
      {"1d, 2d", both(tensor("1d", "4"), {{layers, R"([{ from = 1, to = 1, mode = "2d" }])"}})},
      {"2d, 1d-sp",
       both(tensor("2d", "4"), {{layers, R"([{ from = 0, to = 0, mode = "1d-sp" }])"}})},
      {"3d, 2.5d",
       both(tensor("3d", "8"), {{layers, R"([{ from = 1, to = 1, mode = "2.5d", depth = 2 }])"}})},
      {"1d, 2d on stages",
       both(both(tensor("1d", "4"), {{layers, R"([{ from = 1, to = 1, mode = "2d" }])"}}),
            staged_plan())}};
  for (const auto& [name, keys] : plans) {
    Seeded seeded(tests::small_plan(keys));
    seeded.expect_refused(name);
    EXPECT_GE(seeded.seeds, 300) << name;
  }
}

/// Of the uses that models of this build have.
TEST(RowTypes, OfEveryUseAreSeeded) {
  std::set<RowUse> uses;
  for (const Overrides& also : choices(true)) {
    std::mt19937_64 random(1);
    Seeded seeded(tests::small_plan(tests::keys::both(tests::keys::tensor("1d", "2"), also)));
    seeded.expect_refused("1d", &random);
    uses.merge(seeded.uses);
  }
  EXPECT_EQ(uses,
            (std::set<RowUse>{RowUse::kExpand, RowUse::kContract, RowUse::kTable,
                              RowUse::kOuterWidth, RowUse::kInnerWidth, RowUse::kFromOuter,
                              RowUse::kFromInner, RowUse::kOuterTokens, RowUse::kInnerTokens,
                              RowUse::kLogits, RowUse::kSharedHeads, RowUse::kSharedHeadsBias}));
}

/// GPT with one more row, as a plug-in's model may make it; without `grad_axes` those that the context
/// gives it.
Registries with_row(RowUse use, const std::optional<Axes>& grad_axes) {
  class Extra : public ModelBlock {
   public:
    Extra(const Context& ctx, RowUse use, const std::optional<Axes>& grad_axes) {
      Param p = grad_axes ? ctx.params.make("extra.row", {1}, Layout::replicated(1), *grad_axes, {})
                          : ctx.param("extra.row", {1}, Layout::replicated(1), use, {});
      p.use = use;
      add(std::move(p));
    }
    Flow forward(const Flow& in, const Side&) override { return in; }
    std::string name() const override { return "extra"; }
  };
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add("mine", "seeded", [=](const ModelPlan& plan, const Context& ctx) {
    Model model = gpt(plan, ctx);
    model.blocks.insert(model.blocks.begin() + 1, std::make_unique<Extra>(ctx, use, grad_axes));
    return model;
  });
  return registries;
}

TEST(RowTypes, OfAPlugInsRowAreThoseOfItsUse) {
  const auto told = [](RowUse use, const Axes& grad_axes) {
    Plan plan = tests::small_plan(tests::keys::tensor(tensor_modes::k2p5d, "8", "2"));
    plan.model.kind = "mine";
    return refusal(plan, with_row(use, grad_axes));
  };
  EXPECT_EQ(told(RowUse::kOuterTokens, {"dep", "row"}), "");
  EXPECT_EQ(told(RowUse::kOuterGain, {"dep", "row", "col"}), "");
  EXPECT_EQ(told(RowUse::kInnerGain, {"dep", "row", "col"}), "");
  EXPECT_EQ(told(RowUse::kOwn, {"col"}), "");  // its maker's word
  EXPECT_NE(told(RowUse::kOuterTokens, {"dep", "row", "col"}).find("a double count"),
            std::string::npos);
  EXPECT_NE(told(RowUse::kOuterGain, {"dep", "row"}).find("a missing sum"), std::string::npos);
  EXPECT_NE(told(RowUse::kUnstated, {"dep", "row"}).find("states no use"), std::string::npos);
  EXPECT_NE(told(RowUse::kExpand, {"dep"}).find("it has 1 dims"), std::string::npos);
  EXPECT_NE(told(RowUse::kOuterWidth, {"dep", "row"}).find("it lies as"), std::string::npos);
}

TEST(RowTypes, OfAGainAreThoseThatTheContextGivesIt) {
  const std::pair<const char*, const char*> modes[] = {{tensor_modes::k1d, "4"},
                                                       {tensor_modes::k1dSp, "4"},
                                                       {tensor_modes::k2d, "4"},
                                                       {tensor_modes::k3d, "8"}};
  for (const auto& [mode, size] : modes) {
    for (const RowUse use : {RowUse::kOuterGain, RowUse::kInnerGain, RowUse::kOuterTokens}) {
      Plan plan = tests::small_plan(tests::keys::tensor(mode, size));
      plan.model.kind = "mine";
      EXPECT_EQ(refusal(plan, with_row(use, std::nullopt)), "") << mode;
    }
  }
}

TEST(RowTypes, OfALossAreChecked) {
  const Registries sound = builtin_registries();
  const auto expect_refused = [&](const Overrides& keys, const std::vector<Axes>& wrong) {
    const Plan plan = tests::small_plan(keys);
    const Placement placement(plan, sound, 0, at::kMeta);
    for (const Axes& axes : wrong) {
      Model model = placement.make_model();
      model.loss_axes.axes = axes;
      EXPECT_THROW(check_row_types(plan, sound, model, placement.context()), ConfigError)
          << to_string(axes);
    }
  };
  expect_refused(tests::keys::tensor(tensor_modes::k2p5d, "8", "2"),
                 {{"row"}, {"dep", "row", "col"}, {}, {"dep", "col"}});
  // The tokens of the other stream are split over these.
  expect_refused(tests::keys::tensor(tensor_modes::k1dSp, "2"), {{"tensor"}});
  expect_refused(tests::keys::tensor(tensor_modes::k3d, "8"), {{"x", "y"}});
  expect_refused(tests::keys::replicas("2", "0"), {{"data"}});
}

TEST(RowTypes, OfEveryFamilyAndShardingAreAccepted) {
  const Registries registries = builtin_registries();
  for (const tests::Family& f : tests::families()) {
    EXPECT_EQ(refusal(tests::plan_of(f), registries), "") << f;
  }
  for (const tests::Family& f : tests::shardings()) {
    EXPECT_EQ(refusal(tests::plan_of(f, {{"train.batch", "12"}}), registries), "") << f;
  }
}

/// A model whose extents are alike, so that rows of one use look as those of another.
Overrides drawn(const std::function<std::string(const std::vector<std::string>&)>& one_of) {
  const std::string mode = one_of({"1d", "1d-sp", "2d", "2.5d", "3d"});
  const std::string ranks = mode == "3d" || mode == "2.5d" ? "8" : mode == "2d" ? "4" : "2";
  Overrides o = tests::keys::tensor(mode, ranks, mode == "2.5d" ? "2" : "1");
  const std::string kind = one_of({"gpt", "moe_gpt", "bert", "vit", "opt"});
  o.insert(o.end(), {{"data.kind", "synthetic"},
                     {"model.kind", kind},
                     {"model.hidden", one_of({"16", "32"})},
                     {"model.heads", one_of({"4", "8"})},
                     {"model.kv_heads", one_of({"auto", "1", "2"})},
                     {"model.ffn", one_of({"auto", "4", "8", "16", "32"})},
                     {"model.mlp", one_of({"gelu", "swiglu"})},
                     {"model.bias", one_of({"true", "false"})}});
  if (kind == "moe_gpt") {
    o.insert(o.end(), {{"model.experts", one_of({"4", "16", "32"})},
                       {"model.moe_every", one_of({"1", "2"})},
                       {"model.shared_experts", one_of({"0", "1"})}});
  }
  if (kind == "opt") {
    o.insert(o.end(), {{"model.embedding", one_of({"auto", "8", "16"})},
                       {"model.post_norm", one_of({"true", "false"})},
                       {"model.tied", one_of({"true", "false"})}});
  }
  if (kind == "vit") {
    o.insert(
        o.end(),
        {{"model.classes", one_of({"16", "32"})}, {"model.image", "16"}, {"model.patch", "4"}});
  } else {
    o.insert(o.end(), {{"model.vocab", one_of({"16", "32", "64"})}, {"model.sequence", "16"}});
  }
  return o;
}

/// What is right is accepted, and `seeds` errors drawn of each row are refused.
void expect_of_draws(int draws, int seeds) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  std::mt19937_64 random(7);
  const auto one_of = [&](const std::vector<std::string>& values) {
    return values[random() % values.size()];
  };
  int placed = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const Overrides keys = drawn(one_of);
    try {
      const Plan plan =
          resolve(parse_plan("", "plan", modes, keys, registries.models.names()), 0, modes);
      Seeded seeded(plan);
      ++placed;
      std::string name;
      for (const auto& [key, value] : keys) name += text(" ", key, "=", value);
      seeded.expect_refused(name, &random, seeds);
    } catch (const ConfigError& e) {  // by a rule of the plan, never by the type of a row
      EXPECT_FALSE(std::string(e.what()).starts_with("parameter ")) << e.what();
    }
  }
  EXPECT_GT(placed, draws * 5 / 6);
}

TEST(RowTypes, OfModelsWhoseExtentsCoincideAreTold) { expect_of_draws(200, 1); }
TEST(RowTypes, OfMoreModelsWhoseExtentsCoincideAreTold) { expect_of_draws(1200, 8); }

}  // namespace
}  // namespace kuafu
