// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/resume.h"

#include <gtest/gtest.h>

#include "tests/base/messages.h"

namespace kuafu {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(const Overrides& overrides) {
  return resolve(parse_plan("", "p", builtin_tensor_modes(), overrides), 1, builtin_tensor_modes());
}

Plan with_hash(Plan plan, const std::string& hash) {
  plan.data.hash = hash;
  return plan;
}

TEST(ResumePlan, WeightsAloneAskForTheirModelAlone) {
  const Plan saved = plan_of({});
  check_same_model(saved, plan_of({{"optimizer.kind", "sgd"}, {"train.seed", "7"}}), "here");
  check_same_model(saved, plan_of({{"model.dtype", "bf16"}, {"model.dropout", "0.1"}}), "here");
  expect_says(message_of<ConfigError>([&] {
                check_same_model(saved, plan_of({{"model.layers", "3"}}), "here");
              }),
              {"here has weights", "model.layers = 2", "the plan has model.layers = 3"});
}

TEST(ResumePlan, RefusesEveryChangeOfHowItLearnsNamingBothValues) {
  struct Change {
    Overrides before, after;
    std::string said;
  };
  const std::vector<Change> changes = {
      {{}, {{"optimizer.lr", "0.5"}}, "optimizer.lr = 0.001, now 0.5"},
      {{}, {{"optimizer.beta1", "0.8"}}, "optimizer.beta1 = 0.9, now 0.8"},
      {{}, {{"optimizer.beta2", "0.8"}}, "optimizer.beta2 = 0.999, now 0.8"},
      {{}, {{"optimizer.epsilon", "0.1"}}, "optimizer.epsilon = 1e-08, now 0.1"},
      {{}, {{"optimizer.weight_decay", "0"}}, "optimizer.weight_decay = 0.01, now 0.0"},
      {{}, {{"optimizer.clip", "2"}}, "optimizer.clip = 1.0, now 2.0"},
      {{}, {{"optimizer.warmup", "3"}}, "optimizer.warmup = 0, now 3"},
      {{}, {{"optimizer.schedule", "cosine"}}, "optimizer.schedule = \"constant\", now \"cosine\""},
      {{{"optimizer.schedule", "cosine"}},
       {{"optimizer.schedule", "cosine"}, {"optimizer.min_lr_ratio", "0.5"}},
       "optimizer.min_lr_ratio = 0.1, now 0.5"},
      {{{"optimizer.kind", "sgd"}},
       {{"optimizer.kind", "sgd"}, {"optimizer.momentum", "0.5"}},
       "optimizer.momentum = 0.9, now 0.5"},
      {{}, {{"model.dropout", "0.3"}}, "model.dropout = 0.0, now 0.3"},
      {{}, {{"train.seed", "7"}}, "train.seed = 1, now 7"},
      {{}, {{"train.batch", "4"}}, "train.batch = 8, now 4"},
      {{}, {{"data.kind", "synthetic"}}, "data.kind = \"text\", now \"synthetic\""},
      {{}, {{"data.validation", "0.2"}}, "data.validation = 0.1, now 0.2"},
  };
  for (const Change& c : changes) {
    SCOPED_TRACE(c.said);
    const Plan saved = plan_of(c.before), now = plan_of(c.after);
    EXPECT_EQ(resume_changes(saved, now), Words{c.said});
    expect_says(message_of<ConfigError>([&] { check_resumable(saved, now, "here"); }),
                {"here was saved with", c.said, "--resume-with-changes"});
    EXPECT_NO_THROW(check_resumable(saved, now, "here", ResumeChanges::kMeant));
  }
}

TEST(ResumePlan, ServersThatNobodyWaitsForLearnOtherwise) {
  const Plan saved = plan_of({});
  Plan now = saved;
  now.parallel.data.staleness = 1;
  EXPECT_EQ(resume_changes(saved, now), Words{"parallel.data.staleness = 0, now 1"});
  EXPECT_THROW(check_resumable(saved, now, "here"), ConfigError);
  EXPECT_NO_THROW(check_resumable(saved, now, "here", ResumeChanges::kMeant));
  Plan more = now;
  more.parallel.data.size = 2 * now.parallel.data.size;
  EXPECT_EQ(resume_changes(now, more).size(), 1U);
  EXPECT_NE(resume_changes(now, more).at(0).find("parallel.data.size = 1, now 2"),
            std::string::npos);
  more.parallel.data.staleness = saved.parallel.data.staleness;
  EXPECT_EQ(resume_changes(saved, more), Words{});  // in step they learn the same
}

TEST(ResumePlan, TakesAutoForWhatItStandsFor) {
  const auto bounded = [](const char* kind, const char* bound) {
    return plan_of({{"optimizer.kind", kind}, {"optimizer.bound", bound}});
  };
  EXPECT_EQ(resume_changes(bounded("lamb", "auto"), bounded("lamb", "ratio")), Words{});
  EXPECT_EQ(resume_changes(bounded("lars", "none"), bounded("lars", "auto")), Words{});
  EXPECT_EQ(resume_changes(bounded("lamb", "auto"), bounded("lamb", "none")),
            Words{"optimizer.bound = \"ratio\", now \"none\""});
  const auto excluding = [](const char* kind, const char* exclude) {
    return plan_of({{"optimizer.kind", kind}, {"optimizer.exclude", exclude}});
  };
  EXPECT_EQ(resume_changes(excluding("lars", "auto"), excluding("lars", "vectors")), Words{});
  EXPECT_EQ(resume_changes(excluding("adamw", "none"), excluding("adamw", "auto")), Words{});
  EXPECT_EQ(resume_changes(excluding("adamw", "auto"), excluding("adamw", "vectors")),
            Words{"optimizer.exclude = \"none\", now \"vectors\""});
  const Plan saved = plan_of({});
  const auto heads = [&](int64_t kv_heads) {
    return plan_of({{"model.kv_heads", text(kv_heads)}});
  };
  EXPECT_NO_THROW(check_resumable(saved, heads(saved.model.heads), "here"));
  EXPECT_THROW(check_resumable(saved, heads(1), "here"), ConfigError);
}

TEST(ResumePlan, ComparesTheHorizonThatASchedulesHas) {
  const Overrides cosine = {{"optimizer.schedule", "cosine"}};
  const auto with = [&](Overrides more) {
    more.insert(more.begin(), cosine.begin(), cosine.end());
    return plan_of(more);
  };
  // Twice as long without a horizon of its own: the rates of the first half would not have been.
  EXPECT_EQ(resume_changes(with({{"train.steps", "10"}}), with({{"train.steps", "20"}})),
            Words{"optimizer.schedule_steps = 10 (by train.steps), now 20 (by train.steps)"});
  EXPECT_EQ(resume_changes(with({{"train.steps", "10"}}),
                           with({{"train.steps", "20"}, {"optimizer.schedule_steps", "10"}})),
            Words{});
  EXPECT_EQ(resume_changes(with({{"optimizer.schedule_steps", "40"}}),
                           with({{"optimizer.schedule_steps", "50"}})),
            Words{"optimizer.schedule_steps = 40, now 50"});
  EXPECT_EQ(resume_changes(plan_of({{"train.steps", "10"}}), plan_of({{"train.steps", "20"}})),
            Words{});
}

TEST(ResumePlan, KnowsDataByTheirHashAndNotByTheirPlace) {
  const Plan here = plan_of({{"data.path", "here"}}), there = plan_of({{"data.path", "there"}});
  const std::string one(16, '1'), two(16, '2');
  EXPECT_EQ(resume_changes(with_hash(here, one), with_hash(there, one)), Words{});
  EXPECT_EQ(resume_changes(with_hash(here, one), with_hash(here, two)),
            Words{"data.hash = \"" + one + "\", now \"" + two + "\""});
  EXPECT_EQ(resume_changes(here, with_hash(here, two)), Words{});  // saved before hashes were kept
}

TEST(ResumePlan, KeepsWhatDecidesTheTensorsWhateverIsMeant) {
  for (const Overrides& other : {Overrides{{"model.layers", "3"}}, {{"optimizer.kind", "sgd"}}}) {
    expect_says(message_of<ConfigError>([&] {
                  check_resumable(plan_of({}), plan_of(other), "here", ResumeChanges::kMeant);
                }),
                {other[0].first});
  }
  expect_says(message_of<ConfigError>([&] {
                check_resumable(plan_of({}), plan_of({{"model.norm_epsilon", "1e-6"}}), "here",
                                ResumeChanges::kMeant);
              }),
              {"model.norm_epsilon = 1e-05", "model.norm_epsilon = 1e-06"});
  EXPECT_NO_THROW(check_resumable(plan_of({}), plan_of({{"model.dtype", "f64"}}), "here"));
  EXPECT_NO_THROW(check_resumable(plan_of({}), plan_of({{"train.steps", "30"}}), "here"));
}

}  // namespace
}  // namespace kuafu
