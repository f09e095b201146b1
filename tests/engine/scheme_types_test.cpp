// SPDX-License-Identifier: Apache-2.0
//
// Seeded errors of schemes: an axis of a layout left out, added, or exchanged for another; a sum that
// the code makes twice, or of which it takes a share. All are refused where the plan is placed, with the
// name of a parameter, the product and the axis, before anything is sent.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/parallel/tensor/axis_types.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/tensor/collectives.h"
#include "tests/engine/seeded.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::Grid;
using tests::long_axes;
using tests::refusal;
using tests::seeded;

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

const std::vector<Grid>& scheme_grids() {
  static const std::vector<Grid> all = {{tensor_modes::k1d, "2", "1"},
                                        {tensor_modes::k1dSp, "2", "1"},
                                        {tensor_modes::k2d, "4", "1"},
                                        {tensor_modes::k2p5d, "8", "2"},
                                        {tensor_modes::k3d, "8", "1"}};
  return all;
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

/// Which result of which product goes wrong.
enum class Wrong { kForward, kInputGrad, kWeightGrad, kBackwardDx, kBackwardDw };
const char* name_of(Wrong w) {
  static const char* names[] = {"forward", "input_grad", "weight_grad", "backward", "backward"};
  return names[static_cast<size_t>(w)];
}

/// A scheme that changes one result of another's code.
class Changed : public TensorParallel {
 public:
  using Change = std::function<Tensor(const Mesh& mesh, const Tensor& result)>;
  Changed(const Mesh& mesh, std::unique_ptr<TensorParallel> code, Wrong wrong, Role role,
          Change change)
      : TensorParallel(mesh),
        code_(std::move(code)),
        wrong_(wrong),
        role_(role),
        change_(std::move(change)) {}
  Layout activation(Stream s) const override { return code_->activation(s); }
  Layout weight(Role r) const override { return code_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return of(Wrong::kForward, r, code_->forward(x, w, r));
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return of(Wrong::kInputGrad, r, code_->input_grad(dy, w, r));
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return of(Wrong::kWeightGrad, r, code_->weight_grad(x, dy, r));
  }
  LinearGrads backward(const Tensor& x, const Tensor& w, const Tensor& dy, Role r) const override {
    const LinearGrads g = code_->backward(x, w, dy, r);
    return {of(Wrong::kBackwardDx, r, g.dx), of(Wrong::kBackwardDw, r, g.dw)};
  }
  Cost cost(const LinearShape& local, Role r) const override { return code_->cost(local, r); }

 private:
  Tensor of(Wrong wrong, Role role, const Tensor& result) const {
    return wrong == wrong_ && role == role_ ? change_(mesh(), result) : result;
  }

  std::unique_ptr<TensorParallel> code_;
  Wrong wrong_;
  Role role_;
  Change change_;
};

/// The sums of a scheme's code, made once more along an axis, or all of them halved or doubled on the
/// rank itself.
TEST_P(SeededSchemes, WhoseCodeSumsTwiceAreRefused) {
  const Plan plan =
      tests::small_plan(tests::keys::tensor(GetParam().mode, GetParam().size, GetParam().depth));
  const Registries sound = builtin_registries();
  const TensorScheme& scheme = sound.tensor.find(GetParam().mode);
  const Axes axes =
      long_axes(scheme.mode.axes(plan.parallel.tensor.size, plan.parallel.tensor.depth));
  std::vector<std::pair<std::string, Changed::Change>> changes = {
      {"twice", [](const Mesh&, const Tensor& t) { return t * 2; }},
      {"half", [](const Mesh&, const Tensor& t) { return t / 2; }}};
  for (const std::string& axis : axes) {
    changes.emplace_back(axis, [axis](const Mesh& mesh, const Tensor& t) {
      return raw::all_reduce(t.contiguous().clone(), mesh.comm(axis));
    });
  }
  int named = 0;
  const auto check = [&](Wrong wrong, Role role, const std::string& what,
                         const Changed::Change& change) {
    Registries registries = sound;
    registries.tensor = Registry<TensorScheme>("tensor mode");
    registries.tensor.add(GetParam().mode, "seeded",
                          {scheme.mode, [&](const Mesh& on) -> std::unique_ptr<TensorParallel> {
                             return std::make_unique<Changed>(on, scheme.make(on), wrong, role,
                                                              change);
                           }});
    const std::string told = refusal(plan, registries);
    const std::string of = text(name_of(wrong), ", ", what, ": ", told);
    EXPECT_NE(told.find("parameter \""), std::string::npos) << of;
    if (told.find("a sum made twice") == std::string::npos) return;
    EXPECT_NE(told.find(name_of(wrong)), std::string::npos) << of;
    if (told.find(text("axis \"", what, "\"")) != std::string::npos) ++named;
  };
  for (const Wrong wrong : {Wrong::kForward, Wrong::kInputGrad, Wrong::kWeightGrad,
                            Wrong::kBackwardDx, Wrong::kBackwardDw}) {
    for (const Role role : {Role::kExpand, Role::kContract}) {
      for (const auto& [what, change] : changes) check(wrong, role, what, change);
    }
  }
  EXPECT_GE(named, 2);
}

INSTANTIATE_TEST_SUITE_P(All, SeededSchemes, testing::ValuesIn(scheme_grids()),
                         [](const auto& info) { return text("grid_", info.index); });

TEST(SchemeTypes, ThatComputeNoDoublesAreToldWithModeParameterAndProduct) {
  Plan plan = tests::small_plan(tests::keys::tensor("1d", "2"));
  plan.model.dtype = DType::kF32;
  const TensorScheme scheme = builtin_registries().tensor.find("1d");
  const auto change = [](const Mesh&, const Tensor& t) -> Tensor {
    if (t.is_cpu() && t.scalar_type() == at::kDouble) throw std::runtime_error("no doubles here");
    return t;
  };
  Registries registries = builtin_registries();
  registries.tensor = Registry<TensorScheme>("tensor mode");
  registries.tensor.add("1d", "seeded",
                        {scheme.mode, [&](const Mesh& on) -> std::unique_ptr<TensorParallel> {
                           return std::make_unique<Changed>(on, scheme.make(on), Wrong::kInputGrad,
                                                            Role::kContract, change);
                         }});
  const std::string told = refusal(plan, registries);
  for (const char* word :
       {"parallel.tensor.mode = \"1d\"", "mlp.down.weight", "input_grad of a contract",
        "of doubles", "no doubles here", "computes in f64 too"}) {
    EXPECT_NE(told.find(word), std::string::npos) << word << " in " << told;
  }
}

TEST(SchemeTypes, OfLargeMeshesAreCountedOnSmallerOnes) {
  const Registries registries = builtin_registries();
  const std::vector<Grid> large = {{tensor_modes::k1d, "4096", "1"},
                                   {tensor_modes::k1dSp, "4096", "1"},
                                   {tensor_modes::k2d, "4096", "1"},
                                   {tensor_modes::k2p5d, "8192", "2"},
                                   {tensor_modes::k3d, "4096", "1"}};
  for (const Grid& g : large) {
    const TensorScheme& scheme = registries.tensor.find(g.mode);
    EXPECT_NO_THROW(
        check_axis_types(scheme, scheme.mode.axes(std::stoll(g.size), std::stoll(g.depth))))
        << g.mode;
  }
}

}  // namespace
}  // namespace kuafu
