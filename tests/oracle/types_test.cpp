// SPDX-License-Identifier: Apache-2.0
//
// What a type costs: the oracle in f32, bf16 and f16 against itself in f64, and the engine beside it.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kuafu/comm/worlds.h"
#include "tests/oracle/cases.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

struct TypeCase {
  std::string model, type;
  double unit = 0;  ///< spacing of numbers near 1
};
std::ostream& operator<<(std::ostream& out, const TypeCase& c) { return out << c.model << c.type; }

const tests::Family& case_of(const std::string& name) {
  const auto& all = tests::oracle_cases();
  return *std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.name == name; });
}

double error(const Tensor& found, const Tensor& exact, const Tensor& terms) {
  return (found.to(at::kDouble) - exact).abs().max().item<double>() / terms.max().item<double>();
}

class OracleTypes : public testing::TestWithParam<TypeCase> {};

// Both sides round as often, in other places: their errors, the largest of each tensor's, were
// within a factor of 3.2 of each other over all models and types. A tensor of few elements may be
// lucky in a type; then an eighth of the spacing of its numbers stands for the error of the type.
TEST_P(OracleTypes, EngineErrsAsTheTypeDoes) {
  const auto& [name, type, unit] = GetParam();
  const Plan plan = tests::small_plan(tests::keys::both(
      case_of(name).overrides, {{"model.dtype", type}, {"train.loss_scale", "1"}}));
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *world, *data, {});
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  oracle::Tensors typed, wide;
  for (const Param* p : engine.params()) {
    typed[p->name] = engine.value(*p).detach().clone();
    wide[p->name] = typed[p->name].to(at::kDouble);
  }
  const auto micro = tests::samples_of(plan, *data, 0);
  const auto exact = oracle::gradients(*model, wide, micro);
  const auto own = oracle::gradients(*model, typed, micro);
  const double loss = engine.forward_backward();
  // A number below 4 that is rounded after a sum of as large ones: spacing is twice that near 1.
  EXPECT_NEAR(own.loss, exact.loss, 4 * unit);
  EXPECT_NEAR(loss, exact.loss, 4 * unit);
  for (const Param* p : engine.params()) {
    const Tensor &g = exact.gradients.at(p->name), &terms = exact.absolute.at(p->name);
    const double type_error = error(own.gradients.at(p->name), g, terms);
    EXPECT_EQ(own.gradients.at(p->name).scalar_type(), typed.at(p->name).scalar_type());
    EXPECT_GT(type_error, 0) << p->name;
    EXPECT_LE(error(engine.gradient(*p), g, terms), 8 * std::max(type_error, unit / 8)) << p->name;
  }
}

std::vector<TypeCase> type_cases() {
  std::vector<TypeCase> all;
  for (const char* model : {"gpt_dropout", "llama", "palm", "moe_top1", "bert", "vit"}) {
    for (const TypeCase& c :
         {TypeCase{"", "f32", 0x1.0p-23}, {"", "bf16", 0x1.0p-7}, {"", "f16", 0x1.0p-10}}) {
      all.push_back({model, c.type, c.unit});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OracleTypes, testing::ValuesIn(type_cases()),
                         [](const auto& info) { return info.param.model + "_" + info.param.type; });

}  // namespace
}  // namespace kuafu
