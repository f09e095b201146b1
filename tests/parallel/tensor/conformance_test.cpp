// SPDX-License-Identifier: Apache-2.0
//
// The conformance kit over every built-in scheme: what `kuafu conformance` does, with the meshes
// that the literature draws and the ones it leaves out.

#include <gtest/gtest.h>

#include "kuafu/conformance/schemes.h"
#include "kuafu/conformance/subject.h"

namespace kuafu {
namespace {

using conformance::Check;
using conformance::Finding;
using conformance::SchemeCase;
using conformance::Shapes;

/// Cubes that are none: the scheme itself takes any box, axes of one included.
const std::vector<std::vector<Axis>>& boxes() {
  static const std::vector<std::vector<Axis>> all = {{{"x", 2}, {"y", 1}, {"z", 3}},
                                                     {{"x", 1}, {"y", 2}, {"z", 2}},
                                                     {{"x", 2}, {"y", 2}, {"z", 1}},
                                                     {{"x", 3}, {"y", 1}, {"z", 1}}};
  return all;
}

int64_t product_of(const std::vector<Axis>& axes) {
  int64_t product = 1;
  for (const Axis& axis : axes) product *= axis.size;
  return product;
}

/// "box0", "box1", ...: the 3D scheme on boxes().
const Registries& registries() {
  static const Registries all = [] {
    Registries r = builtin_registries();
    for (size_t i = 0; i < boxes().size(); ++i) {
      const auto arrange = [axes = boxes()[i]](int64_t size, int64_t) -> std::vector<Axis> {
        if (size != product_of(axes)) throw Refused("a box of another size");
        return axes;
      };
      const TensorMode mode{text("box", i), "3d on a box", arrange};
      r.tensor.add(mode.name, mode.summary, TensorScheme{mode, make_cube_3d});
    }
    return r;
  }();
  return all;
}

std::vector<SchemeCase> table() {
  std::vector<SchemeCase> cases = {
      {"none", 1},    {"1d", 1},       {"1d", 2},      {"1d", 3},      {"1d", 4},
      {"1d", 5},      {"1d-sp", 1},    {"1d-sp", 2},   {"1d-sp", 3},   {"1d-sp", 5},
      {"2d", 1},      {"2d", 4},       {"2d", 9},      {"2.5d", 1, 1}, {"2.5d", 4, 1},
      {"2.5d", 8, 2}, {"2.5d", 12, 3}, {"2.5d", 3, 3}, {"2.5d", 2, 2}, {"3d", 1},
      {"3d", 8},      {"3d", 27},
  };
  for (size_t i = 0; i < boxes().size(); ++i) {
    cases.push_back({text("box", i), product_of(boxes()[i])});
  }
  return cases;
}

struct Row {
  SchemeCase where;
  const Check* check;
};

std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << row.check->fact << ": " << row.where.mode << " on " << row.where.size << ", depth "
             << row.where.depth;
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const SchemeCase& where : table()) {
    for (const Check& check : conformance::scheme_checks()) all.push_back({where, &check});
  }
  return all;
}

/// "2.5d" -> "m2p5d_12x3_products": names that GoogleTest and CTest take.
std::string name_of(const Row& row) {
  std::string name = "m";
  for (const char ch : row.where.mode) name += ch == '.' ? 'p' : ch == '-' ? '_' : ch;
  return text(name, "_", row.where.size, "x", row.where.depth, "_", row.check->name);
}

class TensorSchemes : public testing::TestWithParam<Row> {};

TEST_P(TensorSchemes, Conform) {
  const std::vector<Finding> findings =
      conformance::run_check(*GetParam().check, registries(), GetParam().where, Shapes::kSmall);
  EXPECT_EQ(findings.size(), 2u);  // one a shape
  for (const Finding& f : findings) {
    EXPECT_TRUE(f.is_ok) << f.where << ", " << f.shape << ": " << f.detail;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorSchemes, testing::ValuesIn(rows()),
                         [](const auto& info) { return name_of(info.param); });

/// 1D that is wrong in one way.
class Wrong1d : public TensorParallel {
 public:
  enum class Fault { kNone, kNoSum, kCost, kLayout, kGradient };
  Wrong1d(const Mesh& mesh, Fault fault)
      : TensorParallel(mesh), right_(make_megatron_1d(mesh)), fault_(fault) {}
  Layout activation(Stream s) const override {
    if (fault_ == Fault::kLayout && s == Stream::kInner) return {{{}, {}, {"nowhere"}}};
    return right_->activation(s);
  }
  Layout weight(Role r) const override { return right_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return right_->forward(x, w, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    if (fault_ == Fault::kNoSum) return right_->input_grad(dy, w, Role::kContract);
    return right_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    const Tensor dw = right_->weight_grad(x, dy, r);
    return fault_ == Fault::kGradient ? dw.mul(1 + 1e-9) : dw;
  }
  Cost cost(const LinearShape& s, Role r) const override {
    Cost cost = right_->cost(s, r);
    cost.forward += fault_ == Fault::kCost;
    return cost;
  }

 private:
  std::unique_ptr<TensorParallel> right_;
  Fault fault_;
};

/// Names of the checks that find something wrong.
std::vector<std::string> failures_of(Wrong1d::Fault fault) {
  Registries r = builtin_registries();
  const TensorMode mode{"wrong", "1d with a fault", builtin_tensor_modes().at("1d").axes};
  r.tensor.add(mode.name, mode.summary, TensorScheme{mode, [fault](const Mesh& mesh) {
                                                       return std::make_unique<Wrong1d>(mesh,
                                                                                        fault);
                                                     }});
  std::vector<std::string> names;
  for (const Check& check : conformance::scheme_checks()) {
    for (const Finding& f : conformance::run_check(check, r, {"wrong", 2}, Shapes::kSmall)) {
      if (!f.is_ok && (names.empty() || names.back() != f.check)) names.push_back(f.check);
      EXPECT_EQ(f.is_ok, f.detail.empty());
    }
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(ConformanceKit, FindsNothingInAnUnspoiltDecorator) {
  EXPECT_EQ(failures_of(Wrong1d::Fault::kNone), Names{});
}

TEST(ConformanceKit, FindsALostSum) {
  EXPECT_EQ(failures_of(Wrong1d::Fault::kNoSum),
            (Names{"types", "products", "half", "traffic", "layers", "training"}));
}

TEST(ConformanceKit, FindsAWrongCost) {
  EXPECT_EQ(failures_of(Wrong1d::Fault::kCost), Names{"traffic"});
}

TEST(ConformanceKit, FindsAGradientOffByOneInABillion) {
  EXPECT_EQ(failures_of(Wrong1d::Fault::kGradient), (Names{"products", "layers", "training"}));
}

TEST(ConformanceKit, FindsAnAxisThatDoesNotExist) {
  const Names failures = failures_of(Wrong1d::Fault::kLayout);
  ASSERT_FALSE(failures.empty());
  EXPECT_EQ(failures[0], "layouts");
}

TEST(ConformanceKit, PlacesASchemeOnEverySizeItTakes) {
  using conformance::cases_of;
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 8, 12};
  const auto cases = [&](const char* mode) { return cases_of(registries(), mode, sizes); };
  EXPECT_EQ(cases("none"), (std::vector<SchemeCase>{{"none", 1}}));
  EXPECT_EQ(cases("1d").size(), 6u);
  EXPECT_EQ(cases("2d"), (std::vector<SchemeCase>{{"2d", 1}, {"2d", 4}}));
  EXPECT_EQ(cases("2.5d"), (std::vector<SchemeCase>{{"2.5d", 1, 1},
                                                    {"2.5d", 2, 2},
                                                    {"2.5d", 3, 3},
                                                    {"2.5d", 4, 1},
                                                    {"2.5d", 4, 4},
                                                    {"2.5d", 8, 2},
                                                    {"2.5d", 8, 8},
                                                    {"2.5d", 12, 3},
                                                    {"2.5d", 12, 12}}));
  EXPECT_EQ(cases("3d"), (std::vector<SchemeCase>{{"3d", 1}, {"3d", 8}}));
}

}  // namespace
}  // namespace kuafu
