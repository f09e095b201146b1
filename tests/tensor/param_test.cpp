// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/param.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/book.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

struct Placement {
  std::vector<Axis> axes;
  Layout layout;
};

std::vector<Placement> placements() {
  return {{{{"tensor", 1}}, {{{}, {}}}},
          {{{"tensor", 3}}, {{{}, {"tensor"}}}},
          {{{"tensor", 4}}, {{{"tensor"}, {}}}},
          {{{"data", 2}, {"tensor", 2}}, {{{"tensor"}, {}}}},
          {{{"dep", 2}, {"row", 2}, {"col", 2}}, {{{"row"}, {"col"}}}},
          {{{"dep", 1}, {"row", 2}, {"col", 2}}, {{{"row", "col"}, {}}}},
          {{{"a", 2}, {"b", 3}}, {{{}, {"b", "a"}}}}};
}

int ranks_of(const Placement& p) {
  int64_t n = 1;
  for (const Axis& axis : p.axes) n *= axis.size;
  return static_cast<int>(n);
}

Param make(const Mesh& mesh, const Placement& p, const Shape& global, DType dtype, Init init = {}) {
  return ParamFactory{.mesh = &mesh, .dtype = dtype, .seed = 11}.make("w", global, p.layout, {},
                                                                      init);
}

/// The whole parameter as one rank makes it.
Tensor whole_param(const Shape& global, DType dtype, Init init = {}) {
  const Mesh alone({}, 0);
  return make(alone, {{}, Layout::replicated(global.size())}, global, dtype, init).value.detach();
}

TEST(ParamFactory, MakesElementsOfTheGlobalIndex) {
  const Tensor w = whole_param({5, 7}, DType::kF64);
  const CounterRandom random(11, hash_name("w"));
  for (uint64_t i = 0; i < 35; ++i) {
    EXPECT_EQ(w.view(-1)[static_cast<int64_t>(i)].item<double>(), 0.02 * random.normal(i));
  }
}

TEST(ParamFactory, RoundsOneF64ValueToEveryType) {
  const Tensor w = whole_param({5, 7}, DType::kF64);
  EXPECT_TRUE(at::equal(whole_param({5, 7}, DType::kF32), w.to(at::kFloat)));
  EXPECT_TRUE(at::equal(whole_param({5, 7}, DType::kBF16), w.to(at::kBFloat16)));
}

TEST(ParamFactory, MakesTheSameWeightsUnderEveryLayout) {
  for (const Shape& global : {Shape{12, 24}, Shape{13, 25}}) {  // the second one is padded
    const Tensor whole = whole_param(global, DType::kF64);
    for (const Placement& p : placements()) {
      for (int r = 0; r < ranks_of(p); ++r) {
        const Mesh mesh(p.axes, r);
        const Param param = make(mesh, p, global, DType::kF64);
        EXPECT_TRUE(param.value.is_leaf() && param.value.requires_grad());
        EXPECT_TRUE(at::equal(param.value.detach(), scatter_param(param, whole, mesh)))
            << mesh.describe() << " of " << to_string(global);
      }
    }
  }
}

// Of more than two million elements threads make rows of their own; its shards here have fewer than are
// worth a second one.
TEST(ParamFactory, ThreadsMakeLargeWeightsAsOneDoes) {
  const Shape global = {2049, 1030};
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Tensor whole = whole_param(global, dtype);
    for (int64_t r = 0; r < 3; ++r) {
      const Placement p{{{"tensor", 3}}, {{{"tensor"}, {}}}};
      const Mesh mesh(p.axes, static_cast<int>(r));
      const Tensor shard = make(mesh, p, global, dtype).value.detach();
      EXPECT_TRUE(at::equal(shard, whole.narrow(0, r * 683, 683))) << to_string(dtype) << r;
    }
  }
}

TEST(ParamFactory, FillsPaddingWithZeros) {
  const Placement p{{{"tensor", 4}}, {{{"tensor"}, {}}}};
  const Mesh mesh(p.axes, 3);
  const Param ones = make(mesh, p, {9, 2}, DType::kF32, {Init::Kind::kOnes});
  EXPECT_EQ(ones.padded, (Shape{12, 2}));
  EXPECT_EQ(ones.value.sum().item<float>(), 0);  // rows 9, 10, 11
  const Mesh third(p.axes, 2);
  EXPECT_EQ(make(third, p, {10, 2}, DType::kF32, {Init::Kind::kOnes}).value.sum().item<float>(), 6);
  EXPECT_EQ(make(third, p, {10, 2}, DType::kF32, {Init::Kind::kZeros}).value.sum().item<float>(),
            0);
}

TEST(ParamFactory, BooksParametersAndNothingElse) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      RankBook book(0);
      const BookScope scope(&book);
      const Mesh mesh({}, 0);
      const Param p = ParamFactory{.mesh = &mesh, .device = device, .dtype = dtype}.make(
          "w", {64, 3}, Layout::replicated(2), {}, {});
      EXPECT_EQ(book.peak(), 192 * size_of(dtype));
      EXPECT_EQ(book.at_peak()[static_cast<size_t>(Category::kParameter)], 192 * size_of(dtype));
    }
  }
}

TEST(GatherParam, IsTheInverseOfScatterOnEveryMesh) {
  for (const Shape& global : {Shape{12, 24}, Shape{13, 25}}) {
    const Tensor whole = testing::closed_form(global, 5);
    for (const Placement& p : placements()) {
      run_on_threads(ranks_of(p), [&](Communicator& world) {
        Mesh mesh(p.axes, world.rank());
        mesh.connect(world, nullptr);
        const Param param = make(mesh, p, global, DType::kF64);
        const Tensor shard = scatter_param(param, whole, mesh);
        EXPECT_EQ(shard.sizes(), param.value.sizes());
        EXPECT_TRUE(at::equal(gather_param(param, shard, mesh), whole)) << mesh.describe();
        EXPECT_TRUE(
            at::equal(gather_param(param, param.value, mesh), whole_param(global, DType::kF64)));
      });
    }
  }
}

TEST(ScatterParam, RefusesAnotherShape) {
  const Mesh mesh({}, 0);
  const Param p = make(mesh, {{}, Layout::replicated(2)}, {4, 4}, DType::kF64);
  EXPECT_THROW(scatter_param(p, at::zeros({4, 5}, at::kDouble), mesh), ConfigError);
}

class Leaf : public Module {
 public:
  Leaf(const ParamFactory& f, const std::string& name)
      : w(add(f.make(name, {2}, {{{}}}, {}, {}))) {}
  Param& w;
};

class Tree : public Module {
 public:
  explicit Tree(const ParamFactory& f)
      : own(add(f.make("own", {3}, {{{}}}, {}, {}))), a(f, "a"), b(f, "b") {
    add_child(a);
    add_child(b);
  }
  Param& own;
  Leaf a, b;
};

TEST(Module, ListsItsOwnParametersThenItsChildrens) {
  const Mesh mesh({}, 0);
  Tree tree(ParamFactory{.mesh = &mesh});
  const std::vector<Param*> all = tree.params();
  EXPECT_EQ(all, (std::vector<Param*>{&tree.own, &tree.a.w, &tree.b.w}));
  EXPECT_EQ(all[2]->name, "b");
}

}  // namespace
}  // namespace kuafu
