// SPDX-License-Identifier: Apache-2.0
//
// Seeded errors of what schemes and models declare: an axis of a gradient's sum or of a norm's left
// out, added, or exchanged for another. All are refused where the plan is placed, with the name of a
// parameter and the axis, before anything is sent.

#include "kuafu/engine/row_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "kuafu/engine/placement.h"
#include "kuafu/parallel/tensor/axis_types.h"
#include "kuafu/plan/kind_names.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

/// Layouts by what declares them.
struct Declared {
  Layout outer, inner, expand, contract;
};

/// A scheme whose code is another's, with layouts of its own.
class Misdeclared : public TensorParallel {
 public:
  Misdeclared(const Mesh& mesh, std::unique_ptr<TensorParallel> code, Declared declared)
      : TensorParallel(mesh), code_(std::move(code)), declared_(std::move(declared)) {}
  Layout activation(Stream s) const override {
    return s == Stream::kOuter ? declared_.outer : declared_.inner;
  }
  Layout weight(Role r) const override {
    return r == Role::kExpand ? declared_.expand : declared_.contract;
  }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return code_->forward(x, w, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return code_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return code_->weight_grad(x, dy, r);
  }
  Cost cost(const LinearShape& local, Role r) const override { return code_->cost(local, r); }

 private:
  std::unique_ptr<TensorParallel> code_;
  Declared declared_;
};

/// Every layout with one error of `axes` (longer than 1), and what it is.
std::vector<std::pair<std::string, Layout>> seeded(const Layout& layout, const Axes& axes) {
  std::vector<std::pair<std::string, Layout>> out;
  const Axes there = layout.all_axes();
  const auto has = [&](const std::string& axis) {
    return std::count(there.begin(), there.end(), axis) > 0;
  };
  for (const std::string& axis : axes) {
    if (has(axis)) {
      Layout less = layout;
      for (Axes& dim : less.dims) std::erase(dim, axis);
      out.emplace_back("without " + axis, less);
      continue;
    }
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      Layout more = layout;
      more.dims[d].push_back(axis);
      out.emplace_back(text("with ", axis, " in dim ", d), more);
    }
  }
  for (size_t a = 0; a < axes.size(); ++a) {
    for (size_t b = a + 1; b < axes.size(); ++b) {
      Layout other = layout;
      for (Axes& dim : other.dims) {
        for (std::string& axis : dim)
          axis = axis == axes[a] ? axes[b] : axis == axes[b] ? axes[a] : axis;
      }
      if (other != layout) out.emplace_back(text(axes[a], " for ", axes[b]), other);
    }
  }
  return out;
}

/// The same seed in another layout; the layout where it has none such.
Layout seed_of(const Layout& layout, const Axes& axes, const std::string& what) {
  for (const auto& [name, wrong] : seeded(layout, axes)) {
    if (name == what) return wrong;
  }
  return layout;
}

std::string words_of(const Layout& layout) {
  return to_string(layout, layout.dims.size() == 3 ? "BSH" : "KM");
}

/// Without the order of axes along a dim.
std::vector<Layout> sorted(const Declared& d) {
  std::vector<Layout> all = {d.outer, d.inner, d.expand, d.contract};
  for (Layout& layout : all) {
    for (Axes& dim : layout.dims) std::sort(dim.begin(), dim.end());
  }
  return all;
}

/// The mesh axes of a plan that are longer than 1.
Axes long_axes(const std::vector<Axis>& axes) {
  Axes out;
  for (const Axis& axis : axes) {
    if (axis.size > 1) out.push_back(axis.name);
  }
  return out;
}

/// What the placement says; empty where it accepts the plan.
std::string refusal(const Plan& plan, const Registries& registries) {
  try {
    check_placement(plan, registries);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

struct Grid {
  const char* mode;
  const char* size;
  const char* depth;
};
const std::vector<Grid>& grids() {
  static const std::vector<Grid> all = {{tensor_modes::k1d, "2", "1"},
                                        {tensor_modes::k1dSp, "2", "1"},
                                        {tensor_modes::k2d, "4", "1"},
                                        {tensor_modes::k2p5d, "8", "2"},
                                        {tensor_modes::k3d, "8", "1"}};
  return all;
}

/// Sequence modes, experts and ZeRO stages with a grid.
std::vector<Plan> plans_on(const Grid& grid) {
  using namespace tests::keys;
  const Overrides on = tensor(grid.mode, grid.size, grid.depth);
  std::vector<Plan> plans = {tests::small_plan(on)};
  for (const auto& mode : builtin_sequence_modes()) {
    if (mode.name == sequence_modes::kNone) continue;
    try {
      plans.push_back(tests::small_plan(both(on, sequence(mode.name, "2"))));
    } catch (const Refused&) {  // heads or tokens that do not divide
    }
  }
  for (const char* zero : {"0", "1", "2", "3"}) {
    plans.push_back(tests::small_plan(both(on, replicas("2", zero))));
    plans.push_back(tests::small_plan(both(both(on, experts("2")), replicas("2", zero))));
  }
  plans.push_back(tests::small_plan(both(on, {{"model.kv_heads", "1"}})));
  std::erase_if(plans, [](const Plan& p) { return !refusal(p, builtin_registries()).empty(); });
  return plans;
}

class SeededSchemes : public testing::TestWithParam<Grid> {};

TEST_P(SeededSchemes, AreRefused) {
  const Plan plan =
      tests::small_plan(tests::keys::tensor(GetParam().mode, GetParam().size, GetParam().depth));
  const Registries sound = builtin_registries();
  const TensorScheme& scheme = sound.tensor.find(GetParam().mode);
  const std::vector<Axis> axes =
      scheme.mode.axes(plan.parallel.tensor.size, plan.parallel.tensor.depth);
  const Mesh mesh(axes, 0);
  const auto code = scheme.make(mesh);
  const Declared right = {code->activation(Stream::kOuter), code->activation(Stream::kInner),
                          code->weight(Role::kExpand), code->weight(Role::kContract)};
  ASSERT_EQ(refusal(plan, sound), "");
  using Member = Layout Declared::*;
  const std::vector<std::vector<Member>> wrong_ones = {{&Declared::outer},
                                                       {&Declared::inner},
                                                       {&Declared::expand},
                                                       {&Declared::contract},
                                                       {&Declared::outer, &Declared::inner},
                                                       {&Declared::expand, &Declared::contract}};
  int64_t seeds = 0;
  for (const std::vector<Member>& members : wrong_ones) {
    for (const auto& [what, first] : seeded(right.*members[0], long_axes(axes))) {
      Declared wrong = right;
      for (const Member m : members) wrong.*m = seed_of(right.*m, long_axes(axes), what);
      // Which of two axes of the tokens is the minor one decides nothing where both streams say so.
      if (members.size() == 2 && sorted(wrong) == sorted(right)) continue;
      const auto make = [&](const Mesh& on) -> std::unique_ptr<TensorParallel> {
        return std::make_unique<Misdeclared>(on, scheme.make(on), wrong);
      };
      Registries registries = sound;
      registries.tensor = Registry<TensorScheme>("tensor mode");
      registries.tensor.add(GetParam().mode, "seeded", {scheme.mode, make});
      const std::string of = text(GetParam().mode, ", ", words_of(right.*members[0]), " ", what,
                                  members.size() == 2 ? ", and the other" : "");
      try {
        check_axis_types({scheme.mode, make}, axes);
        ADD_FAILURE() << of << " was accepted";
      } catch (const WrongAxes&) {
      }
      const std::string told = refusal(plan, registries);
      EXPECT_NE(told.find("parameter \"blocks.0."), std::string::npos) << of << ": " << told;
      ++seeds;
    }
  }
  EXPECT_GE(seeds, 6);
}

INSTANTIATE_TEST_SUITE_P(All, SeededSchemes, testing::ValuesIn(grids()),
                         [](const auto& info) { return text("grid_", info.index); });

/// Errors of one row.
struct Seed {
  std::string what;
  std::function<void(Param&)> change;
};

std::vector<Seed> seeds_of(const Param& p, const Axes& axes) {
  std::vector<Seed> out;
  for (const std::string& axis : axes) {
    const bool is_summed = std::count(p.grad_axes.begin(), p.grad_axes.end(), axis) > 0;
    out.push_back({text("gradient ", is_summed ? "without " : "with ", axis), [=](Param& q) {
                     if (is_summed) {
                       std::erase(q.grad_axes, axis);
                     } else {
                       q.grad_axes.push_back(axis);
                     }
                   }});
  }
  for (const auto& [what, layout] : seeded(p.layout, axes)) {
    out.push_back({"norm " + what, [layout = layout](Param& q) { q.layout = layout; }});
  }
  return out;
}

class SeededRows : public testing::TestWithParam<Grid> {};

TEST_P(SeededRows, AreRefusedByName) {
  for (const Plan& plan : plans_on(GetParam())) {
    const Registries sound = builtin_registries();
    const Placement placement(plan, sound, 0, at::kMeta);
    const Axes axes = long_axes(placement.context().mesh.axes());
    const Model model = placement.make_model();
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      const auto params = model.blocks[b]->params();
      for (size_t i = 0; i < params.size(); ++i) {
        for (const Seed& seed : seeds_of(*params[i], axes)) {
          Param& p = *params[i];
          const Axes grad_axes = p.grad_axes;
          const Layout layout = p.layout;
          seed.change(p);
          try {
            check_row_types(plan, sound, model, placement.context());
            ADD_FAILURE() << GetParam().mode << ", sequence " << plan.parallel.sequence.mode << ": "
                          << p.name << " " << seed.what << " was accepted";
          } catch (const ConfigError& e) {
            EXPECT_NE(std::string(e.what()).find(p.name), std::string::npos) << e.what();
          }
          p.grad_axes = grad_axes;
          p.layout = layout;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SeededRows, testing::ValuesIn(grids()),
                         [](const auto& info) { return text("grid_", info.index); });

TEST(RowTypes, OfALossAreChecked) {
  const Plan plan = tests::small_plan(tests::keys::tensor(tensor_modes::k2p5d, "8", "2"));
  const Registries sound = builtin_registries();
  const Placement placement(plan, sound, 0, at::kMeta);
  for (const auto& [wrong, axes] : std::map<std::string, Axes>{
           {"a sum left out", {"row"}}, {"one too many", {"dep", "row", "col"}}, {"none", {}}}) {
    Model model = placement.make_model();
    model.loss_axes = axes;
    EXPECT_THROW(check_row_types(plan, sound, model, placement.context()), ConfigError) << wrong;
  }
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

/// Extents that are alike, so that rows of one use look as those of another.
TEST(RowTypes, OfModelsWhoseExtentsCoincideAreAccepted) {
  const Registries registries = builtin_registries();
  std::mt19937_64 random(7);
  const auto one_of = [&](const std::vector<std::string>& values) {
    return values[random() % values.size()];
  };
  int placed = 0;
  for (int draw = 0; draw < 1200; ++draw) {
    const std::string mode = one_of({"1d", "1d-sp", "2d", "2.5d", "3d"});
    const std::string ranks = mode == "3d" || mode == "2.5d" ? "8" : mode == "2d" ? "4" : "2";
    Overrides o = tests::keys::tensor(mode, ranks, mode == "2.5d" ? "2" : "1");
    const std::string kind = one_of({"gpt", "moe_gpt", "bert", "vit"});
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
    if (kind == "vit") {
      o.insert(
          o.end(),
          {{"model.classes", one_of({"16", "32"})}, {"model.image", "16"}, {"model.patch", "4"}});
    } else {
      o.insert(o.end(), {{"model.vocab", one_of({"32", "64"})}, {"model.sequence", "16"}});
    }
    try {
      const TensorModes modes = registries.tensor_modes();
      const Plan plan =
          resolve(parse_plan("", "plan", modes, o, registries.models.names()), 0, modes);
      check_placement(plan, registries);
      ++placed;
    } catch (const ConfigError& e) {  // by a rule of the plan, never by the type of a row
      EXPECT_FALSE(std::string(e.what()).starts_with("parameter ")) << e.what();
    }
  }
  EXPECT_GT(placed, 1000);
}

}  // namespace
}  // namespace kuafu
