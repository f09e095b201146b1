// SPDX-License-Identifier: Apache-2.0
//
// A cell of the matrix is the plan that its name says: no value gives way to another in silence, and
// no two combinations are one plan but where a value is a default.

#include "app/worker/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "kuafu/base/build_folders.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/proof/certificate.h"

namespace kuafu {
namespace {

using matrix::Combination;
using matrix::Dimension;

class Matrix : public testing::Test {
 protected:
  std::optional<Plan> plan_of(const Combination& combination) const {
    try {
      const TensorModes modes = registries_.tensor_modes();
      return resolve(parse_plan("", "plan", modes, matrix::settings_of(dims_, combination),
                                registries_.models.names()),
                     0, modes);
    } catch (const ConfigError&) {  // the matrix shows why
      return std::nullopt;
    }
  }

  const matrix::DimensionValue& value_of(const Combination& combination,
                                         const std::string& name) const {
    for (const auto& [dimension, value] : combination) {
      if (dims_[dimension].name == name) return dims_[dimension].values[value];
    }
    static const matrix::DimensionValue kNone;
    return kNone;
  }

  /// The combination of these words: {"schedule", "1f1b"}.
  Combination combination(const Overrides& words) const {
    Combination out;
    for (size_t d = 0; d < dims_.size(); ++d) {
      for (size_t v = 0; v < dims_[d].values.size(); ++v) {
        const std::pair<std::string, std::string> one = {dims_[d].name, dims_[d].values[v].name};
        if (std::find(words.begin(), words.end(), one) != words.end()) out.push_back({d, v});
      }
    }
    EXPECT_EQ(out.size(), words.size());
    return out;
  }

  /// What a combination says beyond defaults. Three say nothing new: the first value of a dimension,
  /// the model of mixtures where experts are chosen, and the recomputation that goes with activations
  /// on the host.
  std::string beyond_defaults(const Combination& combination) const {
    const bool has_experts = !value_of(combination, "experts").overrides.empty();
    const bool has_activations =
        value_of(combination, "policy").name.find("activations") != std::string::npos;
    Combination rest;
    for (const matrix::ChosenValue& c : combination) {
      const bool is_of_experts = has_experts && dims_[c.dimension].name == "model" &&
                                 dims_[c.dimension].values[c.value].name == "moe_gpt";
      const bool is_of_activations = has_activations && dims_[c.dimension].name == "recompute" &&
                                     dims_[c.dimension].values[c.value].name == "full";
      if (c.value != 0 && !is_of_experts && !is_of_activations) rest.push_back(c);
    }
    return matrix::name_of(dims_, rest);
  }

  const Registries registries_ = builtin_registries();
  const std::vector<Dimension> dims_ = matrix::dimensions(registries_);
  const std::vector<Combination> all_ = matrix::combinations(dims_, 200, 1);
};

TEST_F(Matrix, HasNoCombinationTwice) {
  std::set<std::string> names;
  for (const Combination& one : all_) {
    EXPECT_TRUE(names.insert(matrix::name_of(dims_, one)).second) << matrix::name_of(dims_, one);
  }
}

TEST_F(Matrix, CombinationsOfOnePlanDifferInDefaultsAlone) {
  std::map<std::string, Combination> first;
  int64_t num_plans = 0;
  for (const Combination& one : all_) {
    const auto plan = plan_of(one);
    if (!plan) continue;
    const auto [world, resumed] = matrix::circumstances_of(dims_, one);
    const auto [at, is_new] = first.insert({plan_hash(*plan) + world + resumed, one});
    num_plans += is_new ? 1 : 0;
    EXPECT_EQ(beyond_defaults(at->second), beyond_defaults(one))
        << matrix::name_of(dims_, at->second) << " and " << matrix::name_of(dims_, one)
        << " are one plan";
  }
  EXPECT_GT(num_plans, 1500);
}

// Rows that contradict their scheme are no refusal (engine/placing/row_types.h): a placement ends in nothing else.
TEST_F(Matrix, EveryPlanIsPlacedOrRefused) {
  int64_t num_placed = 0;
  for (const Combination& one : all_) {
    const auto plan = plan_of(one);
    if (!plan) continue;
    try {
      check_placement(*plan, registries_);
      ++num_placed;
    } catch (const Refused&) {  // the matrix shows why
    } catch (const ConfigError& e) {
      ADD_FAILURE() << matrix::name_of(dims_, one) << ": " << e.what();
    }
  }
  EXPECT_GT(num_placed, 1000);
}

// Also where the plan is refused: it must be for what the name says.
TEST_F(Matrix, EveryValueOfANameIsInItsPlan) {
  for (const Combination& one : all_) {
    std::map<std::string, std::string> settings;
    for (const auto& [key, value] : matrix::settings_of(dims_, one)) settings[key] = value;
    const bool has_experts = !value_of(one, "experts").overrides.empty();
    for (const matrix::ChosenValue& choice : one) {
      for (const auto& [key, value] : dims_[choice.dimension].values[choice.value].overrides) {
        const bool gives_way =
            key == "model.kind" && has_experts && !value_of(one, "model").name.empty();
        if (gives_way) continue;
        EXPECT_EQ(settings[key], value) << matrix::name_of(dims_, one) << ": " << key;
      }
    }
    // Experts beside a model that has none: refused.
    const std::string& model = value_of(one, "model").name;
    if (has_experts && !model.empty() && model != "moe_gpt") {
      EXPECT_FALSE(plan_of(one)) << matrix::name_of(dims_, one);
    }
  }
}

TEST_F(Matrix, PlansHaveTheMicroBatchesThatAreNamedOrNeeded) {
  for (const Combination& one : all_) {
    const auto plan = plan_of(one);
    if (!plan) continue;
    const int64_t exactly = value_of(one, "micro-batches").exactly;
    int64_t replicas = 1, needed = 1;
    for (const matrix::ChosenValue& choice : one) {
      const matrix::DimensionValue& value = dims_[choice.dimension].values[choice.value];
      replicas = std::max(replicas, value.replicas);
      needed = std::max(needed, value.micro_batches);
    }
    EXPECT_EQ(plan->num_micro_batches(), exactly > 0 ? exactly : needed)
        << matrix::name_of(dims_, one);
    EXPECT_EQ(plan->parallel.data.size, replicas) << matrix::name_of(dims_, one);
  }
}

TEST_F(Matrix, PipelinesRunWithEveryNumberOfMicroBatches) {
  for (const matrix::DimensionValue& schedule :
       dims_[combination({{"schedule", "1f1b"}})[0].dimension].values) {
    for (const std::string count : {"1", "2", "3"}) {
      const auto plan =
          plan_of(combination({{"schedule", schedule.name}, {"micro-batches", count}}));
      ASSERT_TRUE(plan.has_value()) << schedule.name << " " << count;
      EXPECT_EQ(text(plan->num_micro_batches()), count) << schedule.name;
    }
  }
}

// Beyond the first three are the drawn step and the last.
TEST_F(Matrix, StepsGoBeyondTheFirstThreeOfACertificate) {
  const auto plan = plan_of(combination({{"schedule", "1f1b"}, {"steps", "5"}}));
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->train.steps, 5);
}

TEST_F(Matrix, RecordsHowFarErrorsStayFromTheirBounds) {
  matrix::CellOutcome near;
  near.status = matrix::Status::kEqual;
  near.ratio = 3, near.native_ratio = 12;
  matrix::CellOutcome far = near;
  far.native_ratio = 150, far.why_far = kUnexplained;
  const Json record = matrix::to_json(dims_, {{{}, near}, {{}, far}}, 1);
  EXPECT_EQ(record["bounds"],
            (Json{{"least_ratio", 3.0}, {"largest_ratio", 150.0}, {"unexplained", 1}}));
}

/// Choices that are younger than the record: "choice=value".
const std::set<std::string> kYounger = {};

// What the record lacks stands in kYounger, and what there is no more is in no record.
TEST_F(Matrix, IsRecordedInValuesThatThereAre) {
  std::ifstream file(text(build_info::kSourceDir, "/results/compatibility.json"));
  const Json recorded = Json::parse(file).at("dimensions");
  size_t num_met = 0;
  for (const Dimension& dimension : dims_) {
    for (const matrix::DimensionValue& value : dimension.values) {
      const Json values = recorded.value(dimension.name, Json::array());
      const bool is_recorded = std::find(values.begin(), values.end(), value.name) != values.end();
      num_met += is_recorded ? 1 : 0;
      EXPECT_NE(is_recorded, kYounger.contains(dimension.name + "=" + value.name))
          << dimension.name << "=" << value.name;
    }
  }
  size_t num_recorded = 0;
  for (const auto& [name, values] : recorded.items()) num_recorded += values.size();
  EXPECT_EQ(num_met, num_recorded) << "the record has values that no choice has";
}

}  // namespace
}  // namespace kuafu
