// SPDX-License-Identifier: Apache-2.0
//
// The conformance kit on what is built in, which holds, and on choices that are wrong from 64 elements
// on, which it finds and names by their shape.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "kuafu/conformance/kinds.h"
#include "kuafu/conformance/models.h"
#include "kuafu/conformance/schedules.h"
#include "kuafu/conformance/schemes.h"
#include "kuafu/conformance/sequences.h"
#include "tests/plugin/from_64.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using conformance::check_differences;
using conformance::check_model_under;
using conformance::check_schedule;
using conformance::Finding;
using conformance::run_sequence_check;
using conformance::Shapes;
using conformance::Variant;
using test::expect_has;

const Registries& registries() {
  static const Registries all = [] {
    Registries r = builtin_registries();
    tests::add_from_64(r);
    return r;
  }();
  return all;
}

std::vector<std::string> failed_shapes(const std::vector<Finding>& findings) {
  std::vector<std::string> shapes;
  for (const Finding& f : findings) {
    if (!f.is_ok) shapes.push_back(f.shape);
    EXPECT_EQ(f.is_ok, f.detail.empty());
  }
  return shapes;
}

void expect_all_hold(const std::vector<Finding>& findings) {
  ASSERT_FALSE(findings.empty());
  for (const Finding& f : findings) {
    EXPECT_TRUE(f.is_ok) << f.check << " of " << f.name << " on " << f.where << ", " << f.shape
                         << ": " << f.detail;
  }
}

/// Wrong on shapes beyond 64 elements alone, and nowhere else.
void expect_wrong_from_64(const std::function<std::vector<Finding>(Shapes shapes)>& check) {
  EXPECT_EQ(failed_shapes(check(Shapes::kSmall)), std::vector<std::string>{});
  EXPECT_FALSE(failed_shapes(check(Shapes::kAll)).empty());
}

const conformance::Check& scheme_check(const std::string& name) {
  const auto& all = conformance::scheme_checks();
  return *std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.name == name; });
}

TEST(ConformanceFrom64, FindsSchemesInEveryDim) {
  for (const char* name : {"1d-batch-64", "1d-tokens-64", "1d-width-64"}) {
    SCOPED_TRACE(name);
    for (const int64_t ranks : {1, 2}) {
      expect_wrong_from_64([&](Shapes shapes) {
        return run_check(scheme_check("products"), registries(), {name, ranks}, shapes);
      });
    }
  }
}

TEST(ConformanceFrom64, NamesTheShapesOfAScheme) {
  const std::vector<std::string> shapes =
      failed_shapes(run_check(scheme_check("products"), registries(), {"1d-batch-64", 2}));
  EXPECT_EQ(shapes,
            (std::vector<std::string>{"B 65, S 1, H 5, F 14, V 255", "B 513, S 2, H 3, F 8, V 7"}));
}

TEST(ConformanceFrom64, FindsSequenceModesInEveryDim) {
  for (const char* name : {"ring-batch-64", "ring-heads-64", "ring-tokens-64", "ring-head-64"}) {
    SCOPED_TRACE(name);
    expect_wrong_from_64([&](Shapes shapes) {
      return run_sequence_check("attention", registries(), name, 2, shapes);
    });
  }
}

// As long as real runs have them: found by a shape each; inner widths of four times as much too.
TEST(ConformanceOfLongDims, FindsWhatIsWrongInThemAlone) {
  for (const auto& [name, shapes] :
       {std::pair{"1d-batch-512", 1u}, {"1d-tokens-2048", 1u}, {"1d-width-1024", 2u}}) {
    SCOPED_TRACE(name);
    const auto found = run_check(scheme_check("products"), registries(), {name, 2});
    EXPECT_EQ(failed_shapes(found).size(), shapes);
  }
  for (const char* name : {"ring-batch-512", "ring-tokens-512"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(failed_shapes(run_sequence_check("attention", registries(), name, 2)).size(), 1u);
  }
}

TEST(ConformanceFrom64, FindsModelsInEveryDim) {
  for (const char* name : {"gpt-batch-64", "gpt-tokens-64", "gpt-width-64"}) {
    SCOPED_TRACE(name);
    expect_wrong_from_64([&](Shapes shapes) {
      return check_model_under({"one rank", {}, Shapes::kAll}, registries(), name, shapes);
    });
  }
}

// What no other shape has: four layers, a width of 300.
TEST(ConformanceOfLongDims, FindsModelsThatAreWrongInDeepOrWideOnesAlone) {
  for (const auto& [name, shape] :
       {std::pair{"gpt-layer-4", "layers 24, "}, {"gpt-width-300", "layers 1, H 1032"}}) {
    SCOPED_TRACE(name);
    const auto found =
        check_model_under({"one rank", {}, Shapes::kReal}, registries(), name, Shapes::kReal);
    const std::vector<std::string> failed = failed_shapes(found);
    ASSERT_FALSE(failed.empty());
    for (const std::string& f : failed) EXPECT_EQ(f.substr(0, strlen(shape)), shape);
  }
}

TEST(ConformanceOfSchemes, FindsAHalfPrecisionOfItsOwn) {
  for (const char* name : {"1d-off-in-bf16", "1d-off-in-f16"}) {
    SCOPED_TRACE(name);
    for (const int64_t ranks : {1, 2, 4}) {
      const auto of = [&](const char* check) {
        return failed_shapes(run_check(scheme_check(check), registries(), {name, ranks}));
      };
      EXPECT_FALSE(of("half").empty());
      EXPECT_TRUE(of("products").empty());
    }
  }
}

TEST(ConformanceOfSchemes, FindsAnOpThatNothingBooks) {
  const auto of = [&](const char* check) {
    return run_check(scheme_check(check), registries(), {"1d-unbooked", 2}, Shapes::kSmall);
  };
  EXPECT_TRUE(failed_shapes(of("products")).empty());
  const std::vector<Finding> found = of("training");
  ASSERT_EQ(failed_shapes(found).size(), found.size());
  for (const Finding& f : found) {
    EXPECT_NE(f.detail.find("aten::cumsum"), std::string::npos) << f.detail;
    EXPECT_NE(f.detail.find("of a step is booked by nothing"), std::string::npos) << f.detail;
  }
}

TEST(ConformanceFrom64, FindsGradientsOfAModelWithoutAnOracle) {
  expect_wrong_from_64(
      [&](Shapes shapes) { return check_differences(registries(), "gpt-slope-64", shapes); });
}

TEST(ConformanceKit, HoldsDifferencesOfARightModel) {
  expect_all_hold(check_differences(registries(), "gpt", Shapes::kSmall));
}

/// Details of the first finding of a check that is wrong; empty where all hold.
std::string first_wrong(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& f : findings) {
    if (!f.is_ok && f.check == check) return f.shape + ": " + f.detail;
  }
  return {};
}

TEST(ConformanceOfSchedules, FindsADroppedMicroBatchBeyondFour) {
  const std::string wrong =
      first_wrong(check_schedule(registries(), "drops-one", {2, 3}), "timetable");
  expect_has(wrong, "5 micro-batches, 1 stage a rank");
  expect_has(wrong, "is missing");
}

TEST(ConformanceOfSchedules, FindsADroppedMicroBatchFrom64On) {
  const std::string wrong =
      first_wrong(check_schedule(registries(), "drops-of-64", {3}), "timetable");
  expect_has(wrong, "65 micro-batches");
  expect_has(wrong, "is missing");
  EXPECT_LT(wrong.size(), 500u) << wrong;  // not whole rows
}

TEST(ConformanceOfSchedules, FindsTwoInAWrongOrder) {
  const std::string wrong =
      first_wrong(check_schedule(registries(), "swaps-two", {2, 3}), "timetable");
  expect_has(wrong, "5 micro-batches");
  expect_has(wrong, "deadlocks");
}

TEST(ConformanceOfSchedules, FindsMoreInputsAliveThanDeclared) {
  const std::string wrong = first_wrong(check_schedule(registries(), "keeps-more", {2}), "memory");
  expect_has(wrong, "5 micro-batches");
  expect_has(wrong, "keeps 5 stage inputs at once, the schedule declares 4");
  expect_has(first_wrong(check_schedule(registries(), "keeps-silent", {2}), "memory"),
             "does not declare most_alive");
}

TEST(ConformanceOfSchedules, HoldsForThoseOfThisBuild) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"}) {
    expect_all_hold(check_schedule(registries(), name, {3}));
  }
}

TEST(ConformanceOfSequences, HoldsForThoseOfThisBuild) {
  for (const char* name : {"ring", "ring-zigzag", "ulysses", "all-gather"}) {
    for (const std::string& check : conformance::sequence_checks()) {
      expect_all_hold(run_sequence_check(check, registries(), name, 2, Shapes::kSmall));
    }
  }
}

TEST(ConformanceOfSequences, TellsWhatIsRefused) {
  const std::vector<Finding> findings =
      run_sequence_check("attention", registries(), "ulysses", 4, Shapes::kSmall);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].refusal, "");
  expect_has(findings[2].refusal, "heads");  // 3 heads on 4 ranks
  EXPECT_TRUE(findings[2].is_ok);
}

TEST(ConformanceOfModels, HoldsUnderSomeOfWhatAPlanMayPutBesideThem) {
  const std::vector<Variant> all = conformance::model_variants(registries());
  for (const char* name : {"gpt", "bert", "vit"}) {
    for (const Variant& v : all) {
      if (v.name != "one rank" && v.name != "2d on 4" && v.name != "1f1b on 2") continue;
      expect_all_hold(check_model_under(v, registries(), name, Shapes::kSmall));
    }
  }
}

TEST(ConformanceOfModels, TellsWhatIsRefused) {
  const std::vector<Finding> findings =
      check_model_under({"experts", {{"parallel.data.size", "2"}, {"parallel.expert.size", "2"}}},
                        registries(), "gpt", Shapes::kSmall);
  ASSERT_FALSE(findings.empty());
  for (const Finding& f : findings) expect_has(f.refusal, "expert");
}

/// Every choice of this build by all that `kuafu conformance` does, on some of its numbers of ranks: the
/// call for all of them is in CONTRIBUTING.md.
struct Choice {
  std::string kind, name;
};

bool contains(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::ostream& operator<<(std::ostream& out, const Choice& c) { return out << c.kind << c.name; }

std::vector<Choice> built_in() {
  std::vector<Choice> all;
  const Registries r = builtin_registries();
  for (const conformance::Kind& kind : conformance::kinds()) {
    for (const std::string& name : kind.names(r)) {
      if (kind.name != "sequence" || name != "none") all.push_back({kind.name, name});
    }
  }
  return all;
}

std::vector<int64_t> sizes_of(const conformance::Kind& kind, const std::string& name) {
  if (kind.name == "scheme") {
    return contains({"2d", "2.5d", "3d"}, name) ? std::vector<int64_t>{1, 4, 8}
                                                : std::vector<int64_t>{1, 3, 5};
  }
  if (kind.name == "model" && contains({"bert", "vit"}, name)) return {2};
  std::vector<int64_t> few = kind.sizes;
  const int64_t most = name == "moe_gpt" ? 2 : 3;
  std::erase_if(few, [most](int64_t ranks) { return ranks > most; });
  return few;
}

class WholeConformance : public testing::TestWithParam<Choice> {};

TEST_P(WholeConformance, Holds) {
  static const Registries sound = builtin_registries();
  for (const conformance::Kind& kind : conformance::kinds()) {
    if (kind.name != GetParam().kind) continue;
    const std::string& name = GetParam().name;
    expect_all_hold(kind.check(sound, name, sizes_of(kind, name), {}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, WholeConformance, testing::ValuesIn(built_in()),
                         [](const auto& info) {
                           std::string name = info.param.kind + "_" + info.param.name;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace kuafu
