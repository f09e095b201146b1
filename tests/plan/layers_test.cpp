// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/plan/arrange.h"
#include "kuafu/plan/plan.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

Plan parse(const std::string& layers, const std::string& tensor = R"({ mode = "1d", size = 4 })",
           const Overrides& overrides = {}) {
  return parse_plan("[model]\nlayers = 4\n[parallel]\ntensor = " + tensor + "\n" + layers,
                    "plan.toml", builtin_tensor_modes(), overrides);
}

std::string range(int from, int to, const std::string& mode = "2d", const std::string& more = "") {
  return text("[[parallel.layers]]\nfrom = ", from, "\nto = ", to, "\nmode = \"", mode, "\"\n",
              more);
}

TEST(LayerRanges, AreReadAndPrintedBack) {
  const Plan plan = parse(range(1, 2) + range(3, 3, "2.5d", "depth = 4\n"));
  ASSERT_EQ(plan.parallel.layers.size(), 2);
  EXPECT_EQ(plan.parallel.layers[1], (LayerPlan{3, 3, "2.5d", 4}));
  EXPECT_EQ(parse_plan(to_toml(plan), "p", builtin_tensor_modes()), plan);
}

TEST(LayerRanges, AreReadFromTheCommandLine) {
  const Plan plan = parse("", R"({ mode = "1d", size = 4 })",
                          {{"parallel.layers", R"([{ from = 0, to = 1, mode = "2d" }])"}});
  EXPECT_EQ(plan.parallel.layers, (std::vector<LayerPlan>{{0, 1, "2d", 1}}));
}

TEST(LayerRanges, ChangeTheHashOnlyWhereThereAreAny) {
  const auto hash = [](const std::string& layers) {
    return plan_hash(resolve(parse(layers), 4, builtin_tensor_modes()));
  };
  EXPECT_EQ(to_toml(parse("")).find("layers]]"), std::string::npos);
  EXPECT_NE(hash(""), hash(range(1, 2)));
  EXPECT_NE(hash(range(1, 2)), hash(range(1, 3)));
}

struct Bad {
  std::string layers;
  std::vector<std::string> parts;
};

template <class E>
void expect_refused(const std::vector<Bad>& cases) {
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.layers);
    expect_says(message_of<E>([&] { parse(bad.layers); }), bad.parts);
  }
}

TEST(LayerRanges, AreRefusedWithKeyLineAndNearestLegalValue) {
  expect_refused<ConfigError>({
      {range(1, 2) + range(2, 3), {"plan.toml:10: ", "overlaps", "nearest: from = 3"}},
      {range(2, 3) + range(1, 2), {"plan.toml:10: ", "overlaps", "nearest: to = 1"}},
      {range(0, 3) + range(2, 2), {"overlaps", "nearest: one range for both"}},
      {range(0, 4), {"plan.toml:7: ", "parallel.layers.to = 4", "0 to 3", "nearest: to = 3"}},
      {range(-1, 2), {"plan.toml:6: ", "parallel.layers.from = -1", "nearest: from = 0"}},
      {range(2, 1), {"plan.toml:7: ", "parallel.layers.to = 1", "nearest: to = 2"}},
      {range(1, 2, "2d", "depht = 1\n"), {"plan.toml:9: ", "unknown key", "nearest: depth"}},
      {range(1, 2, "2d", "depth = 0\n"), {"plan.toml:9: ", "depth = 0", "nearest: depth = 1"}},
      {range(1, 2, "2D"), {"plan.toml:8: ", "\"2D\"", "nearest: \"2d\""}},
      {"[[parallel.layers]]\nfrom = 1\nmode = \"2d\"\n", {"plan.toml:5: ", "lacks the key to"}},
      {"[[parallel.layers]]\nfrom = 1.5\n", {"plan.toml:6: ", "floating-point", "an integer"}},
      {"layers = 3\n", {"plan.toml:5: ", "parallel.layers = 3", "is an integer"}},
  });
}

TEST(LayerRanges, AreRefusedWhereAModeCannotArrangeTheRanks) {
  expect_refused<Refused>({
      {range(1, 2, "none"), {"plan.toml:8: ", "size = 4", "nearest"}},
      {range(1, 2, "2.5d", "depth = 3\n"), {"plan.toml:8: ", "from = 1 to = 2", "depth = 4 or 1"}},
  });
  const auto refused = [](int64_t size, const std::string& layers) {
    return message_of<Refused>(
        [&] { parse(layers, text("{ mode = \"2d\", size = ", size, " }")); });
  };
  expect_says(refused(6, range(1, 2, "1d")), {"size = 6", "nearest: size = 4 or 9"});
  // 6 x 6 cuts at 6 and 36, 3 x 3 x 4 at 3, 9 and 36: 6 does not divide 9.
  expect_says(refused(36, range(1, 2, "2.5d", "depth = 4\n")),
              {"plan.toml:8: ", "cuts at 6 36", "cuts at 3 9 36", "tensor.size = 16"});
}

TEST(Arrange, KeepsTheAxesOfAModeThatIsAlone) {
  const TensorModes modes = builtin_tensor_modes();
  const Plan uniform = parse(range(1, 2, "1d-sp"));
  EXPECT_EQ(tensor_axes(uniform, modes), (std::vector<Axis>{{"tensor", 4}}));
  EXPECT_TRUE(parts_of(uniform, {"1d-sp", 1}, modes).empty());
}

TEST(Arrange, RefinesTheAxesOfSeveralModes) {
  const TensorModes modes = builtin_tensor_modes();
  const Plan plan = parse(range(1, 2, "2.5d", "depth = 4\n") + range(3, 3, "1d"),
                          R"({ mode = "2d", size = 16 })");
  EXPECT_EQ(tensor_axes(plan, modes), (std::vector<Axis>{{"t0", 4}, {"t1", 2}, {"t2", 2}}));
  EXPECT_EQ(parts_of(plan, {"2d", 1}, modes),
            (AxisAliases{{"dep", {}}, {"row", {"t0"}}, {"col", {"t1", "t2"}}}));
  EXPECT_EQ(parts_of(plan, {"2.5d", 4}, modes),
            (AxisAliases{{"dep", {"t0"}}, {"row", {"t1"}}, {"col", {"t2"}}}));
  EXPECT_EQ(parts_of(plan, {"1d", 1}, modes), (AxisAliases{{"tensor", {"t0", "t1", "t2"}}}));
}

TEST(Arrange, GivesEachLayerItsRange) {
  const Plan plan = parse(range(1, 2));
  EXPECT_EQ(arrangement_of(plan, 0), (Arrangement{"1d", 1}));
  EXPECT_EQ(arrangement_of(plan, 2), (Arrangement{"2d", 1}));
  EXPECT_EQ(arrangements(plan).size(), 2);
}

}  // namespace
}  // namespace kuafu
