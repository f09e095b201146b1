// SPDX-License-Identifier: Apache-2.0
//
// What the kinds of models ask of a plan.

#include <gtest/gtest.h>

#include "kuafu/plan/plan.h"
#include "kuafu/plan/warnings.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

Plan parse(const std::string& toml) {
  return parse_plan(toml, "plan.toml", builtin_tensor_modes(), {}, {"gpt", "bert", "vit"});
}

/// Sizes that do not fit each other.
std::string refusal(const std::string& toml) {
  return message_of<Refused>([&] { parse(toml); });
}
/// Values that a kind does not take.
std::string mistake(const std::string& toml) {
  return message_of<ConfigError>([&] { parse(toml); });
}

TEST(ModelPlan, KeyValueHeadsDivideHeads) {
  expect_says(refusal("[model]\nheads = 8\nkv_heads = 3\n"),
              {"plan.toml:3", "model.kv_heads = 3 does not divide model.heads = 8",
               "nearest: kv_heads = 2 or 4"});
  EXPECT_EQ(parse("[model]\nheads = 8\nkv_heads = 2\n").model.num_kv_heads(), 2);
  EXPECT_EQ(parse("[model]\nheads = 8\n").model.num_kv_heads(), 8);
}

TEST(OptimizerPlan, HasAHorizonOfItsOwn) {
  const std::string head = "[optimizer]\nschedule = \"cosine\"\n";
  EXPECT_EQ(parse(head + "[train]\nsteps = 7\n").schedule_steps(), 7);
  EXPECT_EQ(parse(head + "schedule_steps = \"auto\"\n[train]\nsteps = 7\n").schedule_steps(), 7);
  EXPECT_EQ(parse(head + "schedule_steps = 90\n[train]\nsteps = 7\n").schedule_steps(), 90);
  expect_says(mistake(head + "schedule_steps = -1\n"), {"plan.toml:3", "schedule_steps"});
  expect_says(mistake(head + "warmup = 9\nschedule_steps = 8\n"),
              {"plan.toml:4", "optimizer.schedule_steps = 8", "optimizer.warmup = 9",
               "nearest: schedule_steps = 9"});
  expect_says(mistake("[optimizer]\nschedule_steps = 8\n"),
              {"no effect", "optimizer.schedule = \"constant\""});
}

TEST(DataPlan, NamesItsBytesByAHash) {
  EXPECT_EQ(parse("data.hash = \"0123456789abcdef\"\n").data.hash, "0123456789abcdef");
  for (const char* wrong : {"123", "0123456789ABCDEF", "0123456789abcdeg"}) {
    expect_says(mistake(text("data.hash = \"", wrong, "\"\n")), {wrong, "16 hex digits"});
  }
}

TEST(ModelPlan, RotaryPositionsTurnPairs) {
  expect_says(refusal("[model]\nhidden = 36\nheads = 4\npositions = \"rotary\"\n"),
              {"plan.toml:4", "is odd", "nearest: hidden = 40"});
}

TEST(ModelPlan, NumbersOfNormsAndRotationsHaveOpenRanges) {
  EXPECT_EQ(parse("[model]\nnorm_epsilon = 1e-12\n").model.norm_epsilon, 1e-12);
  for (const char* wrong : {"0", "1", "-1e-5", "2"}) {
    expect_says(mistake(text("[model]\nnorm_epsilon = ", wrong, "\n")),
                {"plan.toml:2", "model.norm_epsilon = ", "above 0 to below 1", "nearest: "});
  }
  const std::string rotary = "[model]\npositions = \"rotary\"\n";
  EXPECT_EQ(parse(rotary + "rotary_base = 500000\n").model.rotary_base, 500000);
  expect_says(mistake(rotary + "rotary_base = 1\n"), {"plan.toml:3", "rotary_base = 1", "above 1"});
  expect_says(mistake("[model]\nrotary_base = 500\n"),
              {"plan.toml:2", "no effect", "model.positions = \"learned\"", "\"rotary\""});
}

TEST(ModelPlan, OptHasKeysOfItsOwn) {
  const auto parse_any = [](const std::string& toml) {
    return parse_plan(toml, "plan.toml", builtin_tensor_modes());
  };
  const std::string opt = "[model]\nkind = \"opt\"\n";
  const Plan plan = parse_any(opt + "post_norm = true\nembedding = 32\ntied = false\n");
  EXPECT_EQ(plan.model.embedding_width(), 32);
  EXPECT_EQ(plan.model.first_position(), 2);
  EXPECT_EQ(parse_any(to_toml(plan)), plan);
  EXPECT_EQ(parse_any(opt).model.embedding_width(), ModelPlan{}.hidden);
  EXPECT_NE(plan_hash(parse_any(opt + "tied = false\n")), plan_hash(parse_any(opt)));
  EXPECT_EQ(plan_hash(parse("[model]\nnorm_epsilon = 1e-5\ntied = true\n")), plan_hash(parse("")));
  for (const char* own : {"post_norm = true", "embedding = 32"}) {
    expect_says(mistake(text("[model]\n", own, "\n")),
                {text("plan.toml:2: model.", own), "no effect", "\"gpt\"", "\"opt\""});
  }
  for (const char* kind : {"bert", "vit"}) {
    expect_says(mistake(text("[model]\nkind = \"", kind, "\"\ntied = false\n")),
                {"plan.toml:3: model.tied = false", "no effect", "\"gpt\"", "\"opt\""});
  }
  expect_says(message_of<ConfigError>(
                  [&] { parse_any(opt + "post_norm = true\nparallel_blocks = true\n"); }),
              {"plan.toml:", "model.parallel_blocks = true", "nearest: parallel_blocks = false"});
}

TEST(ModelPlan, SequenceOfImagesFollowsFromThem) {
  const std::string head = "[data]\nkind = \"synthetic\"\n[model]\nkind = \"vit\"\n";
  const TensorModes modes = builtin_tensor_modes();
  const Plan plan = parse(head + "image = 28\npatch = 4\n");
  EXPECT_EQ(plan.model.sequence, 50);
  EXPECT_EQ(resolve(plan, 1, modes), resolve(resolve(plan, 1, modes), 1, modes));
  EXPECT_EQ(parse(to_toml(plan)), plan);
  EXPECT_EQ(parse(head + "image = 28\npatch = 4\nsequence = 50\n"), plan);
  expect_says(refusal(head + "image = 28\npatch = 4\nsequence = 64\n"),
              {"plan.toml:7", "model.sequence = 64", "50 tokens", "nearest: sequence = 50"});
  expect_says(refusal(head + "image = 28\npatch = 5\n"),
              {"plan.toml:6", "model.patch = 5 does not divide model.image = 28",
               "nearest: patch = 4 or 7"});
  expect_says(mistake("[model]\nkind = \"vit\"\n[data]\nkind = \"text\"\n"),
              {"plan.toml:4", "no images", "data.kind = \"synthetic\""});
  expect_says(mistake("[model]\nkind = \"vit\"\n[data]\npath = \"x\"\n"), {"no images"});
  EXPECT_EQ(parse("").model.sequence, 64);
}

TEST(ModelPlan, KindsHaveDefaultsThatRun) {
  const TensorModes modes = builtin_tensor_modes();
  const Plan vit = parse("[model]\nkind = \"vit\"\n");
  EXPECT_EQ(vit.data.kind, "synthetic");
  const Plan bert = parse("[model]\nkind = \"bert\"\n");
  EXPECT_EQ(bert.model.vocab, 259);
  EXPECT_EQ(parse("[model]\nkind = \"bert\"\n[data]\nkind = \"synthetic\"\n").model.vocab, 256);
  for (const Plan& plan : {vit, bert}) {
    EXPECT_EQ(parse(to_toml(plan)), plan);
    EXPECT_EQ(resolve(plan, 1, modes), resolve(resolve(plan, 1, modes), 1, modes));
  }
  Plan made;  // by no document
  made.model.kind = "bert";
  EXPECT_EQ(resolve(made, 1, modes).model.vocab, 259);
}

/// Warnings of a plan on so many ranks.
std::vector<std::string> warnings_of(const std::string& toml, int64_t ranks) {
  const Plan plan = resolve(parse(toml), ranks, builtin_tensor_modes());
  return plan::warnings(plan, plan::origins_of(toml, "plan.toml"));
}

TEST(Warnings, OfAVocabularyBeyondTheBytesOfTheData) {
  const auto found = warnings_of("[model]\nvocab = 50257\n", 1);
  ASSERT_EQ(found.size(), 1u);
  expect_says(found[0], {"plan.toml:2: model.vocab = 50257", "data.kind = \"text\" has 256 tokens",
                         "50001 rows", "nearest: vocab = 256"});
  const auto bert = warnings_of("[model]\nkind = \"bert\"\nvocab = 260\n", 1);
  ASSERT_EQ(bert.size(), 1u);
  expect_says(bert[0], {"plan.toml:3", "259 tokens", "three special ones", "1 rows"});
  EXPECT_TRUE(warnings_of("[model]\nvocab = 50257\n[data]\nkind = \"synthetic\"\n", 1).empty());
  for (const char* kind : {"gpt", "bert", "vit"}) {
    EXPECT_TRUE(warnings_of(text("[model]\nkind = \"", kind, "\"\n"), 1).empty()) << kind;
  }
}

TEST(Warnings, OfWhatReplicasDoWhereThereIsOne) {
  for (const auto& [toml, given] : std::vector<std::pair<std::string, std::string>>{
           {"[parallel]\nzero = 1\n", "parallel.zero = 1"},
           {"[parallel]\ndata.mode = \"ring\"\n", "parallel.data.mode = \"ring\""},
           {"[parallel]\ndata.order = \"fixed\"\n", "parallel.data.order = \"fixed\""},
           {"[parallel]\ndata.overlap = false\n", "parallel.data.overlap = false"},
           {"[parallel]\ndata.bucket = 1000\n", "parallel.data.bucket = 1000"}}) {
    const auto found = warnings_of(toml, 1);
    ASSERT_EQ(found.size(), 1u) << toml;
    expect_says(found[0], {"plan.toml:2: " + given + " has no effect on one replica"});
    EXPECT_TRUE(warnings_of(toml, 2).empty()) << toml;
  }
}

TEST(Warnings, OfModesOfGroupsOfOneRank) {
  for (const auto& [mode, size] : std::vector<std::pair<std::string, std::string>>{
           {"tensor.mode = \"1d\"", "tensor.size"},
           {"sequence.mode = \"ring\"", "sequence.size"}}) {
    const auto found = warnings_of("[parallel]\n" + mode + "\n", 2);
    ASSERT_EQ(found.size(), 1u) << mode;
    expect_says(found[0], {"plan.toml:2: parallel." + mode, "parallel." + size + " = 1"});
    EXPECT_TRUE(warnings_of("[parallel]\n" + mode + "\n" + size + " = 2\n", 2).empty()) << mode;
  }
}

TEST(Warnings, OfAWarmUpThatIsLongerThanTheRun) {
  const std::string steps = "[train]\nsteps = 10\n[optimizer]\nwarmup = ";
  const auto found = warnings_of(steps + "40\n", 1);
  ASSERT_EQ(found.size(), 1u);
  expect_says(found[0],
              {"plan.toml:4: optimizer.warmup = 40 is longer than train.steps = 10",
               "10 / 40 of the rate", "nearest: warmup = 10, or train.steps = 40", "--stop-at"});
  EXPECT_TRUE(warnings_of(steps + "10\n", 1).empty());
  // A schedule that goes on after the run's last step.
  const std::string cosine = "40\nschedule = \"cosine\"\nschedule_steps = 100\n";
  EXPECT_TRUE(warnings_of(steps + cosine, 1).empty());
  const std::string epochs = "3\nwarmup_unit = \"epochs\"\nepoch = 80\n";
  const auto by_epochs =
      warnings_of("[train]\nbatch = 8\nsteps = 10\n[optimizer]\nwarmup = " + epochs, 1);
  ASSERT_EQ(by_epochs.size(), 1u);
  expect_says(by_epochs[0], {"plan.toml:5: optimizer.warmup = 3 epochs, 30 steps, is longer than",
                             "nearest: train.steps = 30"});
}

TEST(ModelPlan, BertNeedsRoomForItsSpecialTokens) {
  expect_says(mistake("[model]\nkind = \"bert\"\nvocab = 256\n"),
              {"plan.toml:3", "model.vocab = 256", "nearest: vocab = 259"});
  expect_says(mistake("[model]\nkind = \"bert\"\nvocab = 259\nsequence = 4\n"),
              {"plan.toml:4", "model.sequence = 4", "at least 5"});
  expect_says(mistake("[model]\nkind = \"bert\"\nvocab = 259\nparallel_blocks = true\n"),
              {"plan.toml:4", "model.parallel_blocks", "nearest: parallel_blocks = false"});
  EXPECT_EQ(parse("[model]\nkind = \"bert\"\nvocab = 259\n").model.vocab, 259);
}

TEST(ModelPlan, OptionsOfAnotherKindAreNamed) {
  expect_says(mistake("[model]\npatch = 2\n"), {"model.patch = 2", "no effect", "\"vit\""});
  const std::string vit = "[data]\nkind = \"synthetic\"\n[model]\nkind = \"vit\"\n";
  expect_says(mistake(vit + "vocab = 300\n"),
              {"plan.toml:5: ", "model.vocab = 300", "no effect", "\"vit\"", "leave it out"});
  EXPECT_EQ(parse(vit + "vocab = 256\n"), parse(vit));  // the default may be written out
}

}  // namespace
}  // namespace kuafu
