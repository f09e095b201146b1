// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include <filesystem>
#include <fstream>

#include "kuafu/plan/choices.h"
#include "kuafu/plan/plan.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

Plan parse(std::string_view toml, const Overrides& overrides = {}) {
  return parse_plan(toml, "plan.toml", builtin_tensor_modes(), overrides);
}

/// A document that is wrong and what the message must hold.
struct Bad {
  std::string toml;
  std::vector<std::string> parts;
};

template <class E>
void expect_refused(const std::vector<Bad>& documents) {
  for (const Bad& bad : documents) {
    SCOPED_TRACE(bad.toml);
    expect_says(message_of<E>([&] { parse(bad.toml); }), bad.parts);
  }
}

TEST(ParsePlan, TakesDefaultsWhereNothingIsGiven) { EXPECT_EQ(parse(""), Plan{}); }

TEST(ParsePlan, ReadsEveryKindOfValue) {
  const Plan plan = parse(R"(
[model]
layers = 6
dtype = "bf16"
dropout = 0.1
[parallel]
data = { size = 2, overlap = false, bucket = "1 MiB" }
tensor = { mode = "2.5d", size = 8, depth = 2 }
[memory]
recompute = "selective"
device = "6 GB"
[optimizer]
kind = "sgd"
lr = 1
[data]
path = "a/b"
[train]
batch = 4
seed = 42
)");
  EXPECT_EQ(plan.model.layers, 6);
  EXPECT_EQ(plan.model.dtype, DType::kBF16);
  EXPECT_EQ(plan.model.dropout, 0.1);
  EXPECT_EQ(plan.parallel.data.size, 2);
  EXPECT_EQ(plan.parallel.tensor, (TensorPlan{"2.5d", 8, 2}));
  EXPECT_FALSE(plan.parallel.data.overlap);
  EXPECT_EQ(plan.parallel.data.bucket, 1024 * 1024);
  EXPECT_EQ(plan.memory.recompute, Recompute::kSelective);
  EXPECT_EQ(plan.memory.device, 6'000'000'000);
  EXPECT_EQ(plan.optimizer.kind, "sgd");
  EXPECT_EQ(plan.optimizer.lr, 1.0);
  EXPECT_EQ(plan.data.path, "a/b");
  EXPECT_EQ(plan.train.batch, 4);
  EXPECT_EQ(plan.train.seed, 42u);
}

TEST(ParsePlan, ReadsSizesAsTextOrBytes) {
  EXPECT_EQ(parse("[memory]\ndevice = \"512 MiB\"").memory.device, 512ll << 20);
  EXPECT_EQ(parse("[memory]\ndevice = 12345").memory.device, 12345);
  EXPECT_EQ(parse("[memory]\ndevice = \"unlimited\"").memory.device, std::nullopt);
}

TEST(ParsePlan, TakesABareNumberForASize) {
  const Plan plan = parse("[parallel]\ndata = 2\npipeline = 1\nsequence = 1\nexpert = 1\n");
  EXPECT_EQ(plan, parse("[parallel]\ndata = { size = 2 }\npipeline = { size = 1 }\n"
                        "sequence = { size = 1 }\nexpert = { size = 1 }\n"));
  EXPECT_EQ(plan, parse("[parallel.data]\nsize = 2\n"));
  EXPECT_EQ(plan.parallel.data.size, 2);
}

TEST(ParsePlan, LeavesDataAndMicroBatchOpenWhereAuto) {
  const Plan plan = parse("[parallel]\ndata = \"auto\"\n[train]\nmicro_batch = \"auto\"\n");
  EXPECT_EQ(plan, Plan{});
}

TEST(ParsePlan, RefusesUnknownNames) {
  expect_refused<ConfigError>({
      {"[modle]\nlayers = 1\n",
       {"plan.toml:1: ", "unknown section [modle]", "nearest: [model]",
        "allowed: model, parallel"}},
      {"[model]\n\nlayrs = 3\n",
       {"plan.toml:3: ", "unknown key model.layrs = 3", "nearest: model.layers",
        "allowed: in [model] kind, layers, hidden"}},
      {"[train]\nlr = 0.1\n",
       {"plan.toml:2: ", "unknown key train.lr = 0.1", "nearest: optimizer.lr"}},
      {"[suite]\nname = \"s\"\n",
       {"plan.toml:1: ", "[suite] belongs to a suite", "run a suite with: kuafu suite FILE"}},
      {"layers = 3\n", {"plan.toml:1: ", "unknown key layers = 3", "nearest: model.layers"}},
      {"[parallel]\ntensor = { mod = \"1d\" }\n",
       {"plan.toml:2: ", "unknown key parallel.tensor.mod = \"1d\"",
        "nearest: parallel.tensor.mode"}},
      {"[parallel]\nexpert = { sise = 2 }\n",
       {"plan.toml:2: ", "parallel.expert.sise = 2", "nearest: parallel.expert.size"}},
      {"[model.layers]\ncount = 1\n", {"plan.toml:1: ", "model.layers = { count = 1 } is a table"}},
      {"\"parallel.tensr.mode\" = \"2d\"\n",
       {"unknown key parallel.tensr.mode", "nearest: parallel.tensor.mode"}},
      {"[parallel]\ntensr.mode = \"2d\"\n",
       {"unknown key parallel.tensr", "nearest: parallel.tensor.mode"}},
      {"[model.foo]\na = 1\n", {"plan.toml:1: ", "unknown key model.foo"}},
  });
}

TEST(ParsePlan, RefusesWrongTypes) {
  expect_refused<ConfigError>({
      {"[model]\nlayers = \"4\"\n",
       {"plan.toml:2: ", "model.layers = \"4\" is a string", "an integer from 1", "nearest: 4"}},
      {"[model]\nlayers = 4.6\n",
       {"plan.toml:2: ", "model.layers = 4.6 is a floating-point number", "nearest: 5"}},
      {"[model]\nlayers = true\n", {"plan.toml:2: ", "model.layers = true is a boolean"}},
      {"[train]\nsteps = [1, 2]\n", {"plan.toml:2: ", "train.steps = [1, 2] is a list"}},
      {"[train]\nsteps = 1979-05-27\n", {"plan.toml:2: ", "1979-05-27 is a date or time"}},
      {"[model]\ndtype = 32\n",
       {"plan.toml:2: ", "model.dtype = 32 is an integer", "\"f64\", \"f32\", \"bf16\" or \"f16\"",
        "nearest: \"f32\""}},
      {"[optimizer]\nlr = \"0.1\"\n",
       {"plan.toml:2: ", "optimizer.lr = \"0.1\" is a string", "a number", "nearest: 0.1"}},
      {"[parallel]\ndata = { overlap = \"True\" }\n",
       {"plan.toml:2: ", "overlap = \"True\" is a string", "true or false", "nearest: true"}},
      {"[data]\npath = \"a\\u0000b\"\n", {"plan.toml:2: ", "data.path = ", "holds a NUL byte"}},
      {"[optimizer]\nlr = 1e-400\n", {"plan.toml:2: lr = 1e-400 is too small"}},
      {"[data]\npath = 7\n", {"plan.toml:2: ", "data.path = 7 is an integer", "allowed: a string"}},
      {"model = 3\n", {"plan.toml:1: ", "model = 3 is an integer", "a section [model]"}},
      {"[[model]]\nlayers = 1\n", {"plan.toml:1: ", "is a list", "a section [model]"}},
      {"[parallel]\nexpert = \"two\"\n",
       {"plan.toml:2: ", "parallel.expert = \"two\" is a string", "{ size = 2 }"}},
      {"[parallel]\ntensor = 2\n",
       {"plan.toml:2: ", "parallel.tensor = 2", "nearest: tensor = { mode = \"1d\", size = 2 }"}},
  });
}

TEST(ParsePlan, RefusesValuesOutOfRange) {
  expect_refused<ConfigError>({
      {"[model]\nlayers = 0\n",
       {"plan.toml:2: ", "model.layers = 0 is out of range", "from 1", "nearest: 1"}},
      {"[model]\nhidden = -64\n", {"plan.toml:2: ", "model.hidden = -64", "nearest: 1"}},
      {"[model]\nvocab = 1\n", {"plan.toml:2: ", "model.vocab = 1", "nearest: 2"}},
      {"[train]\nbatch = 0\n", {"plan.toml:2: ", "train.batch = 0", "nearest: 1"}},
      {"[train]\nseed = -1\n", {"plan.toml:2: ", "train.seed = -1", "nearest: 0"}},
      {"[parallel]\ndata = 0\n", {"plan.toml:2: ", "parallel.data.size = 0", "or \"auto\""}},
      {"[parallel]\ndata = -2\n", {"plan.toml:2: ", "parallel.data.size = -2", "nearest: 1"}},
      {"[parallel]\ndata = \"atuo\"\n",
       {"plan.toml:2: ", "parallel.data.size = \"atuo\"", "nearest: \"auto\""}},
      {"[parallel]\nexpert = 0\n", {"plan.toml:2: ", "parallel.expert.size = 0", "nearest: 1"}},
      {"[parallel]\npipeline = { size = 0 }\n", {"plan.toml:2: ", "parallel.pipeline.size = 0"}},
      {"[optimizer]\nlr = nan\n", {"plan.toml:2: ", "optimizer.lr = nan is not finite"}},
      {"[optimizer]\nlr = inf\n", {"plan.toml:2: ", "optimizer.lr = inf is not finite", "nearest"}},
      {"[optimizer]\nbeta1 = 1.0\n",
       {"plan.toml:2: ", "beta1 = 1.0 is out of range", "from 0 to below 1", "nearest: 0.9"}},
      {"[data]\nvalidation = -0.5\n", {"plan.toml:2: ", "data.validation = -0.5", "nearest: 0.0"}},
      {"[memory]\ndevice = 0\n", {"plan.toml:2: ", "memory.device = 0", "or \"unlimited\""}},
      {"[memory]\ndevice = \"6 XB\"\n",
       {"plan.toml:2: ", "memory.device = \"6 XB\" is no size", "\"6 GB\" or \"512 MiB\"",
        "nearest: \"6 GB\""}},
      {"[memory]\ndevice = \"-6 GB\"\n", {"plan.toml:2: ", "\"-6 GB\" is no size"}},
      {"[memory]\nrecompute = \"ful\"\n",
       {"plan.toml:2: ", "\"ful\" is not allowed", "nearest: \"full\""}},
      {"[data]\nkind = \"txt\"\n",
       {"plan.toml:2: ", "\"text\" or \"synthetic\"", "nearest: \"text\""}},
      {"[optimizer]\nkind = \"lambda\"\n", {"plan.toml:2: ", "nearest: \"lamb\""}},
      {"[optimizer]\nlr = -0.1\n",
       {"plan.toml:2: ", "lr = -0.1 is out of range",
        "allowed: a number above 0 to 1000000; nearest: 1e-06"}},
      {"[optimizer]\nlr = 0\n", {"plan.toml:2: ", "lr = 0 is out of range", "nearest: 1e-06"}},
      {"[optimizer]\nlr = -inf\n", {"plan.toml:2: ", "is not finite", "nearest: 1e-06"}},
      {"[optimizer]\nlr = \"0\"\n", {"plan.toml:2: ", "is a string", "nearest: 1e-06"}},
      {"[optimizer]\nkind = \"muon\"\nadam_lr = -1\n",
       {"plan.toml:3: ", "adam_lr = -1 is out of range", "above 0", "nearest: 1e-06"}},
      {"[optimizer]\nkind = \"lamb\"\n\nratio_min = 2.0\nratio_max = 0.5\n",
       {"plan.toml:5: ", "optimizer.ratio_max = 0.5 is below optimizer.ratio_min = 2",
        "nearest: ratio_max = 2"}},
      {"[optimizer]\nscale_lr = \"linear\"\nbase_batch = 0\n",
       {"plan.toml:3: ", "optimizer.base_batch = 0 is out of range", "nearest: 1"}},
      {"[optimizer]\nexclude = \"vector\"\n", {"plan.toml:2: ", "nearest: \"vectors\""}},
      {"[optimizer]\nschedule = \"poly\"\n", {"plan.toml:2: ", "\"polynomial\""}},
  });
}

// The nearest number that is told is one that is taken.
TEST(ParsePlan, TakesTheRatesThatItsMessagesName) {
  for (const char* rate : {"0", "-1", "1e-400", "1e7"}) {
    const std::string message =
        message_of<ConfigError>([&] { parse(std::string("[optimizer]\nlr = ") + rate + "\n"); });
    const std::string words = "nearest: ";
    const size_t at = message.find(words);
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_GT(parse("[optimizer]\nlr = " + message.substr(at + words.size()) + "\n").optimizer.lr,
              0)
        << message;
  }
}

TEST(ParsePlan, RefusesWhatIsNoToml) {
  expect_refused<ConfigError>({
      {"[model]\nlayers = 2\nlayers = 3\n", {"plan.toml:3: ", "not valid TOML", "'layers'"}},
      {"[model]\n[model]\n", {"plan.toml:2: ", "not valid TOML"}},
      {"[model\n", {"plan.toml:1: ", "not valid TOML"}},
      {"[model]\nlayers = 99999999999999999999\n", {"plan.toml:2: ", "64 bits"}},
  });
}

TEST(ParsePlan, TakesAnEmptyNameForNone) {
  const Plan plan = parse("[data]\nkind = \"synthetic\"\npath = \"\"\ntokenizer = \"\"\n");
  EXPECT_EQ(plan, parse("[data]\nkind = \"synthetic\"\n"));
}

TEST(ParsePlan, RefusesOptionsWithoutEffect) {
  expect_refused<ConfigError>({
      {"[optimizer]\nmomentum = 0.5\n",
       {"plan.toml:2: ", "optimizer.momentum = 0.5 has no effect", "optimizer.kind = \"adamw\"",
        "set optimizer.kind = \"sgd\""}},
      // What is written is refused whatever its value, the default too.
      {"[optimizer]\nmomentum = 0.9\n",
       {"plan.toml:2: ", "optimizer.momentum = 0.9 has no effect", "optimizer.kind = \"adamw\""}},
      {"[optimizer]\nkind = \"sgd\"\nratio_max = 10\n",
       {"plan.toml:3: ", "optimizer.ratio_max = 10", "set optimizer.kind = \"lars\" or \"lamb\""}},
      {"[optimizer]\nkind = \"sgd\"\nadam_lr = 0.001\n",
       {"plan.toml:3: ", "optimizer.adam_lr = 0.001", "set optimizer.kind = \"muon\""}},
      {"[optimizer]\nbeta2 = 0.999\nkind = \"lars\"\n",
       {"plan.toml:2: ", "optimizer.beta2 = 0.999", "optimizer.kind = \"lars\""}},
      {"[model]\nexperts = 8\n", {"plan.toml:2: ", "model.experts = 8", "\"moe_gpt\""}},
      {"[model]\nrandom_second = true\n",
       {"plan.toml:2: ", "model.random_second = true has no effect with model.kind = \"gpt\"",
        "set model.kind = \"moe_gpt\""}},
      {"[model]\nkind = \"moe_gpt\"\nrouter = \"expert_choice\"\nbalance_loss = 0.1\n",
       {"plan.toml:4: ", "model.balance_loss = 0.1 has no effect with model.router = ",
        "\"expert_choice\""}},
      {"[data]\nkind = \"synthetic\"\nvalidation = 0.1\n", {"plan.toml:3: ", "data.validation"}},
      {"[data]\nkind = \"synthetic\"\npath = \"x\"\n",
       {"plan.toml:3: ", "data.path = \"x\" has no effect"}},
      {"[optimizer]\nkind = \"lamb\"\nmomentum = 0.5\n",
       {"plan.toml:3: ", "optimizer.momentum = 0.5 has no effect", "optimizer.kind = \"lamb\"",
        "set optimizer.kind = \"sgd\", \"lars\"", "\"muon\""}},
      {"[optimizer]\nbase_batch = 8\n",
       {"plan.toml:2: ", "optimizer.scale_lr = \"none\"", "\"linear\" or \"sqrt\""}},
      {"[optimizer]\nmin_lr_ratio = 0.5\n", {"plan.toml:2: ", "optimizer.schedule"}},
      {"[optimizer]\nkind = \"lamd\"\n",
       {"plan.toml:2: ", "optimizer.kind = \"lamd\" is not allowed", "\"lamb\"", "\"muon\"",
        "with --plugin", "nearest: \"lamb\""}},
      {"[optimizer]\nepoch = 8\n",
       {"plan.toml:2: ", "optimizer.warmup_unit = \"steps\"", "\"epochs\""}},
      {"[optimizer]\nwarmup_unit = \"epochs\"\n",
       {"plan.toml:2: ", "optimizer.epoch = 0", "allowed: from 1", "warmup_unit = \"steps\""}},
      {"[optimizer]\nwarmup_unit = \"epochs\"\nepoch = 8\n",
       {"plan.toml:2: ", "has no effect with optimizer.warmup = 0", "nearest: warmup = 1"}},
      {"[optimizer]\nkind = \"lamb\"\nscaled_layers = \"decayed\"\n",
       {"plan.toml:3: ", "has no effect with optimizer.weight_decay = 0.01", "\"included\""}},
      {"[optimizer]\nkind = \"muon\"\nweight_decay = 0\nexclude = \"none\"\n",
       {"plan.toml:4: ", "has no effect with optimizer.weight_decay = 0 of \"muon\"", "\"auto\""}},
      {"[optimizer]\nkind = \"sgd\"\nweight_decay = 0\nexclude = \"vectors\"\n",
       {"plan.toml:4: ", "has no effect with optimizer.weight_decay = 0 of \"sgd\"",
        "exclude = \"auto\""}},
      {"[optimizer]\nwarmup_unit = \"epoch\"\n", {"plan.toml:2: ", "nearest: \"epochs\""}},
      {"[optimizer]\nadam_lr = 0.5\n", {"plan.toml:2: ", "set optimizer.kind = \"muon\""}},
      {"[optimizer]\nrewarm_at = 8\n",
       {"plan.toml:2: ", "optimizer.rewarm_at = 8", "warmup = 1, or rewarm_at = 0"}},
      {"[optimizer]\nwarmup = 1\nrewarm_at = 10\n[train]\nsteps = 10\n",
       {"plan.toml:3: ", "optimizer.rewarm_at = 10", "has no effect", "nearest: rewarm_at = 9"}},
      {"[optimizer]\nwarmup = 5\nrewarm_at = 3\n[train]\nsteps = 20\n",
       {"plan.toml:3: ", "optimizer.rewarm_at = 3 leaves 3 steps before it and 17 after it",
        "optimizer.warmup takes 5", "allowed: from 5 to 15", "nearest: warmup = 3"}},
      {"[optimizer]\nwarmup = 5\nrewarm_at = 6\nschedule = \"cosine\"\nschedule_steps = 8\n",
       {"plan.toml:3: ", "leaves 6 steps before it and 2 after it",
        "allowed: a warm-up of at most 4 steps", "nearest: warmup = 2"}},
      {"[optimizer]\nkind = \"muon\"\nmomentum = 0\nnesterov = true\n",
       {"plan.toml:4: ", "optimizer.nesterov = true has no effect", "nesterov = false"}},
      {"[optimizer]\nkind = \"lars\"\nratio_max = 10\n",
       {"plan.toml:3: ", "optimizer.ratio_max = 10 has no effect", "nearest: bound = \"ratio\""}},
      {"[optimizer]\nkind = \"lamb\"\nbound = \"none\"\nratio_min = 0\n",
       {"plan.toml:4: ", "optimizer.ratio_min = 0 has no effect", "bound = \"none\" of \"lamb\""}},
      {"[optimizer]\nkind = \"sgd\"\nmomentum = 0\nnesterov = true\n",
       {"plan.toml:4: ", "optimizer.nesterov = true has no effect", "nesterov = false"}},
      {"[optimizer]\nbound = \"ratios\"\n",
       {"plan.toml:2: ", "optimizer.bound = \"ratios\"", "\"weights\"", "nearest: \"ratio\""}},
      {"[optimizer]\ncorrection_in = \"rates\"\n", {"plan.toml:2: ", "nearest: \"rate\""}},
      {"[optimizer]\nscaled_layers = \"al\"\n", {"plan.toml:2: ", "nearest: \"all\""}},
      {"[optimizer]\nrate_in = \"steps\"\n", {"plan.toml:2: ", "nearest: \"step\""}},
      {"[optimizer]\ndenominator = \"sum\"\n", {"plan.toml:2: ", "\"norm_of_sum\""}},
      {"[optimizer]\nmatrix_scale = \"sizes\"\n", {"plan.toml:2: ", "nearest: \"size\""}},
      {"[optimizer]\ncoefficients = \"poly\"\n", {"plan.toml:2: ", "nearest: \"polar\""}},
      {"[optimizer]\nkind = \"sgd\"\ndampening = 1\n",
       {"plan.toml:3: ", "optimizer.dampening = 1", "below 1"}},
      {"[optimizer]\nrate_in = \"step\"\n",
       {"plan.toml:2: ", "optimizer.rate_in = \"step\" has no effect", "kind = \"lars\""}},
      {"[optimizer]\nkind = \"lars\"\nbound = \"weights\"\n",
       {"plan.toml:3: ", "optimizer.bound = \"weights\"", "\"lars\"", "nearest: \"ratio\""}},
      {"[optimizer]\nkind = \"lamb\"\nbound = \"rate\"\n",
       {"plan.toml:3: ", "optimizer.bound = \"rate\"", "\"lamb\"", "nearest: \"ratio\""}},
      {"[optimizer]\nkind = \"lars\"\nratio_max = 5.0\n",
       {"plan.toml:3: ", "optimizer.ratio_max = 5 has no effect", "bound = \"auto\" of \"lars\"",
        "nearest: bound = \"ratio\""}},
      {"[optimizer]\nkind = \"lamb\"\nbound = \"none\"\nratio_min = 0.1\n",
       {"plan.toml:4: ", "optimizer.ratio_min = 0.1 has no effect", "bound = \"none\""}},
      {"[optimizer]\nkind = \"lamb\"\nbias_correction = false\ncorrection_in = \"rate\"\n",
       {"plan.toml:4: ", "optimizer.correction_in = \"rate\" has no effect",
        "nearest: bias_correction = true"}},
      {"[optimizer]\nkind = \"lamb\"\nexclude = \"none\"\nscaled_layers = \"all\"\n",
       {"plan.toml:4: ", "optimizer.scaled_layers = \"all\" has no effect",
        "exclude = \"vectors\""}},
      {"[optimizer]\nrate_in = \"ratio\"\n", {"plan.toml:2: ", "\"step_with_ratio\""}},
      {"[optimizer]\nkind = \"lars\"\nmomentum = 0\nrate_in = \"step_with_ratio\"\n",
       {"plan.toml:4: ", "optimizer.rate_in = \"step_with_ratio\" has no effect"}},
      {"[optimizer]\nkind = \"lars\"\nmomentum = 0\nrate_in = \"step\"\n",
       {"plan.toml:4: ", "optimizer.rate_in = \"step\" has no effect", "momentum = 0.9"}},
      {"[optimizer]\nkind = \"lars\"\nweight_decay = 0\ndenominator = \"norm_of_sum\"\n",
       {"plan.toml:4: ", "optimizer.denominator = \"norm_of_sum\" has no effect",
        "weight_decay = 0.01"}},
      {"[optimizer]\nkind = \"sgd\"\nnesterov = true\ndampening = 0.5\n",
       {"plan.toml:4: ", "optimizer.dampening = 0.5", "nesterov = true", "nearest: dampening = 0"}},
      {"[optimizer]\nrewarm_at = -1\n", {"plan.toml:2: ", "optimizer.rewarm_at = -1", "from 0"}},
      {"[optimizer]\nwarmup = 3\nwarmup_unit = \"epochs\"\nepoch = 80\nschedule = \"linear\"\n"
       "schedule_steps = 29\n",
       {"plan.toml:6: ", "ends inside optimizer.warmup = 3 epochs, 30 steps", "at least 30"}},
      {"[data]\nvalidation = 0\n",
       {"plan.toml:2: ", "holds nothing out", "validation_batches = 2", "allowed"}},
      {"[model]\nvocab = 100\n",
       {"plan.toml:2: ", "model.vocab = 100 is too small", "nearest: vocab = 256"}},
  });
}

// TOML has no place for them, and they are no words either.
TEST(ParsePlan, TakesNumbersBeyondTomlForNumbers) {
  const auto of = [](const std::string& key, const std::string& value) {
    return message_of<ConfigError>([&] { parse("", {{key, value}}); });
  };
  expect_says(of("model.layers", "99999999999999999999"),
              {"--set model.layers: ", "is out of range", "nearest: "});
  expect_says(of("optimizer.lr", "1e999"),
              {"--set optimizer.lr: ", "optimizer.lr = ", "nearest: "});
  expect_says(of("model.layers", "two"), {"is a string"});
}

TEST(ParsePlan, RefusesKeysOfOtherKindsFromTheCommandLine) {
  const auto of = [](const Overrides& overrides) {
    return message_of<ConfigError>([&] { parse("[optimizer]\nkind = \"sgd\"\n", overrides); });
  };
  expect_says(of({{"optimizer.ratio_max", "10"}}),
              {"--set optimizer.ratio_max: ", "optimizer.ratio_max = 10.0 has no effect"});
  expect_says(of({{"optimizer.momentum", "0.9"}, {"optimizer.kind", "lamb"}}),
              {"--set optimizer.momentum: ", "optimizer.kind = \"lamb\""});
}

// Sweeps go through them: on one replica, or one rank, they have no effect and are no error.
TEST(ParsePlan, TakesWhatHasAnEffectOnOtherNumbersOfRanks) {
  parse(
      "[parallel]\nzero = 3\ndata = { size = 1, order = \"fixed\", overlap = false, bucket = 9 "
      "}\n");
  parse("[parallel]\ndata = { size = 1, mode = \"ring\" }\n");
}

TEST(ParsePlan, RefusesHeadsThatDoNotDivide) {
  expect_refused<Refused>({
      {"[model]\nhidden = 64\nheads = 3\n",
       {"plan.toml:3: ", "model.heads = 3", "model.hidden = 64", "heads = 2 or 4",
        "hidden = 63 or 66"}},
      {"[model]\nhidden = 62\n", {"plan.toml:2: ", "model.heads = 4", "hidden = 60 or 64"}},
  });
}

TEST(ParsePlan, RefusesBatchesThatDoNotDivide) {
  expect_refused<Refused>({
      {"[parallel]\ndata = 3\n[train]\nbatch = 8\n",
       {"plan.toml:4: ", "train.batch = 8", "parallel.data = 3", "batch = 6 or 9",
        "data = 2 or 4"}},
      {"[parallel]\ndata = 2\n[train]\nbatch = 8\nmicro_batch = 3\n",
       {"plan.toml:4: ", "train.batch = 8", "2 x 3 = 6", "batch = 6 or 12",
        "micro_batch = 2 or 4"}},
  });
}

TEST(ParsePlan, RefusesImpossibleGrids) {
  expect_refused<Refused>({
      {"[parallel]\ntensor = { mode = \"2d\", size = 3 }\n",
       {"plan.toml:2: ", "q x q", "size = 3", "nearest: size = 1 or 4"}},
      {"[parallel]\ntensor = { mode = \"2d\", size = 6 }\n", {"nearest: size = 4 or 9"}},
      {"[parallel.tensor]\nmode = \"2d\"\nsize = 4\ndepth = 2\n",
       {"plan.toml:3: ", "depth = 2", "nearest: depth = 1", "\"2.5d\""}},
      {"[parallel]\ntensor = { mode = \"2.5d\", size = 6, depth = 4 }\n",
       {"plan.toml:2: ", "q x q x depth", "size = 6 with depth = 4", "size = 4 or 16",
        "depth = 6"}},
      {"[parallel]\ntensor = { mode = \"2.5d\", size = 12 }\n",
       {"size = 9 or 16", "depth = 3 or 12"}},
      {"[parallel]\ntensor = { mode = \"3d\", size = 12 }\n",
       {"plan.toml:2: ", "q x q x q", "size = 12", "nearest: size = 8 or 27"}},
      {"[parallel]\ntensor = { mode = \"3d\", size = 8, depth = 2 }\n",
       {"plan.toml:2: ", "depth = 2", "nearest: depth = 1", "\"2.5d\""}},
      {"[parallel]\ntensor = { size = 8 }\n",
       {"plan.toml:2: ", "mode \"none\"", "size = 8", "nearest: size = 1, or mode = \"1d\""}},
  });
}

TEST(ParsePlan, ReadsLossScales) {
  const auto scale = [](const std::string& value) {
    return parse("[train]\nloss_scale = " + value + "\n").train.loss_scale;
  };
  EXPECT_EQ(scale("\"auto\""), TrainPlan::kAutoScale);
  EXPECT_EQ(scale("0"), TrainPlan::kAutoScale);
  EXPECT_EQ(scale("0.0"), TrainPlan::kAutoScale);
  EXPECT_EQ(scale("\"dynamic\""), TrainPlan::kDynamicScale);
  EXPECT_EQ(scale("1024"), 1024);
  EXPECT_EQ(scale("0.5"), 0.5);
  expect_refused<ConfigError>({
      {"[train]\nloss_scale = \"dynamical\"\n",
       {"plan.toml:2: ", "train.loss_scale = \"dynamical\" is not allowed",
        "\"dynamic\" or \"auto\"", "nearest: \"dynamic\""}},
      {"[train]\nloss_scale = \"1024\"\n", {"is a string", "nearest: 1024"}},
      {"[train]\nloss_scale = -1\n", {"train.loss_scale = -1 is out of range", "nearest: "}},
      {"[train]\nloss_scale = inf\n", {"is not finite", "nearest: "}},
      {"[train]\nloss_scale = true\n", {"is a boolean"}},
      {"[train]\nloss_scale_start = 4096\n",
       {"plan.toml:2: ", "train.loss_scale_start = 4096", "no effect",
        "train.loss_scale = \"auto\"", "model.dtype = \"f32\"",
        "set train.loss_scale = \"dynamic\""}},
      {"[train]\nloss_scale = 8\nloss_scale_interval = 5\n",
       {"plan.toml:3: ", "no effect with train.loss_scale = 8"}},
      {"[train]\nloss_scale = \"dynamic\"\nloss_scale_interval = 0\n", {"nearest: 1"}},
  });
}

TEST(ParsePlan, RefusesScaledLossesOfReplicasOutOfStep) {
  const std::string stale =
      "[parallel]\ndata = { size = 2, mode = \"parameter_server\", staleness = 1 }\n"
      "[optimizer]\nclip = 0\n";
  expect_refused<Refused>({
      {stale + "[model]\ndtype = \"f16\"\n",
       {"plan.toml:6: ", "model.dtype = \"f16\"", "staleness = 1", "nearest: loss_scale = 1"}},
      {stale + "[train]\nloss_scale = \"dynamic\"\n", {"train.loss_scale", "loss_scale = 1"}},
  });
}

TEST(ParsePlan, ReadsTiersOfMemory) {
  const Plan plan = parse(
      "[memory]\npolicy = \"auto\"\ndevice = \"6 GB\"\nhost = \"64 GB\"\nchunk_size = \"1 MiB\"\n"
      "prefetch = 2\nmargin = 0.2\nthrottle = true\n[cluster]\nhost_gbs = 25\n");
  EXPECT_TRUE(plan.memory.has_tiers());
  EXPECT_FALSE(Plan{}.memory.has_tiers());
  EXPECT_EQ(plan.memory.host, 64'000'000'000);
  EXPECT_EQ(plan.memory.chunk_size, 1 << 20);
  EXPECT_EQ(plan.memory.prefetch, 2);
  EXPECT_EQ(plan.memory.margin, 0.2);
  EXPECT_TRUE(plan.memory.throttle);
  EXPECT_EQ(plan.cluster.host_gbs, 25);
}

TEST(ParsePlan, RefusesTiersWhereTheyHaveNoMeaning) {
  expect_refused<ConfigError>({
      {"[memory]\nhost = \"64 GB\"\n", {"plan.toml:2: ", "memory.host", "memory.policy"}},
      {"[cluster]\nhost_gbs = 25\n", {"plan.toml:2: ", "cluster.host_gbs", "memory.policy"}},
      {"[memory]\npolicy = \"host\"\nmargin = 0.2\n",
       {"plan.toml:3: ", "memory.margin", "\"auto\""}},
      {"[memory]\npolicy = \"lru\"\ndevice = \"1 GB\"\nstatic_share = 0.5\n",
       {"plan.toml:4: ", "memory.static_share", "\"static\""}},
      {"[memory]\npolicy = \"beladi\"\nhost = \"64 GB\"\n",
       {"plan.toml:2: ", "is not allowed", "allowed: \"plain\", \"host\"", "nearest: \"belady\""}},
      {"[memory]\npolicy = \"host\"\nhorizon = \"cycle\"\n",
       {"plan.toml:3: ", "memory.horizon", "\"auto\""}},
      {"[memory]\npolicy = \"host\"\ngradients = \"disk\"\n",
       {"plan.toml:3: ", "memory.gradients = \"disk\" without memory.disk_path", "nearest"}},
      {"[memory]\ngradients = \"disk\"\n", {"plan.toml:2: ", "memory.gradients", "memory.policy"}},
      {"[memory]\nactivations = \"host\"\n", {"plan.toml:2: ", "memory.activations"}},
      {"[cluster]\nhost_memory_gbs = 25\n", {"plan.toml:2: ", "cluster.host_memory_gbs"}},
  });
  expect_refused<Refused>({
      {"[memory]\npolicy = \"lru\"\n",
       {"plan.toml:2: ", "memory.policy = \"lru\" without memory.device", "policy = \"host\""}},
      {"[memory]\npolicy = \"host\"\nactivations = \"host\"\nrecompute = \"selective\"\n",
       {"plan.toml:3: ", "memory.activations = \"host\" with memory.recompute = \"selective\"",
        "recompute = \"full\""}},
      {"[parallel]\ndata = { size = 2, bucket = 1000 }\n[memory]\npolicy = \"host\"\n",
       {"plan.toml:2: ", "parallel.data.bucket = 1000 with memory.policy = \"host\"",
        "memory.chunk_size = 1000"}},
      {"[parallel]\ndata = { size = 2, mode = \"parameter_server\" }\n[memory]\npolicy = "
       "\"host\"\n",
       {"plan.toml:4: ", "parallel.data.mode = \"parameter_server\"", "policy = \"plain\""}},
  });
}

// What the policies of a build and of plug-ins are decides what [memory] may say.
TEST(ParsePlan, HoldsMemoryToThePoliciesThatThereAre) {
  Choices choices;
  choices.policies.push_back({.name = "mine", .summary = "of a test", .keys = {"margin"}});
  choices.policies.push_back({.name = "afar", .summary = "of a test", .lacks = "CBC (not found)"});
  const auto read = [&](const std::string& toml) {
    return parse_plan("[memory]\ndevice = \"1 GB\"\n" + toml, "plan.toml", choices).memory;
  };
  const std::string mine = "policy = \"mine\"\n";
  EXPECT_EQ(read(mine + "margin = 0.5\nhost = \"1 GB\"\nchunk_size = 1000\n").margin, 0.5);
  EXPECT_EQ(read(mine).policy, "mine");
  expect_says(message_of<ConfigError>([&] { read(mine + "prefetch = 2\n"); }),
              {"plan.toml:4: ", "memory.prefetch = 2 has no effect with memory.policy = \"mine\"",
               "\"belady\""});
  expect_says(message_of<ConfigError>([&] { read("policy = \"lru\"\nmargin = 0.5\n"); }),
              {"set memory.policy = \"auto\" or \"mine\""});
  expect_says(message_of<ConfigError>([&] { read("policy = \"mime\"\n"); }),
              {"\"afar\"", "nearest: \"mine\""});
  expect_says(message_of<Refused>([&] { read("policy = \"afar\"\n"); }),
              {"plan.toml:3: ",
               "memory.policy = \"afar\" is not available in this build, which has "
               "no CBC (not found)",
               "nearest: policy = \"belady\""});
  const auto& kinds = memory::builtin_policy_kinds();
  const auto optimal = std::ranges::find(kinds, "optimal", [](const auto& k) { return k.name; });
  ASSERT_NE(optimal, kinds.end());
  if (optimal->lacks.empty()) {
    EXPECT_EQ(read("policy = \"optimal\"\n").policy, "optimal");
  }
}

TEST(ParsePlan, RefusesSequencesThatRanksCannotShare) {
  expect_refused<Refused>({
      {"[parallel]\nsequence = 2\n",
       {"plan.toml:2: ", "mode = \"none\", size = 2", "nearest: size = 1, or mode = \"ring\""}},
      {"[model]\nsequence = 3\n[parallel]\nsequence = { mode = \"ring\", size = 4 }\n",
       {"plan.toml:4: ", "parallel.sequence.size = 4", "model.sequence = 3",
        "nearest: size = 3, or sequence = 4"}},
      {"[parallel]\nsequence = { mode = \"ulysses\", size = 8 }\n",
       {"plan.toml:2: ", "more ranks than heads", "model.heads = 4", "nearest: size = 4 or 2"}},
      {"[model]\nheads = 6\nhidden = 60\n[parallel]\nsequence = { mode = \"ulysses\", size = 4 }\n",
       {"plan.toml:5: ", "does not divide model.heads = 6", "nearest: size = 3 or 2"}},
  });
}

TEST(ParsePlan, TakesSequenceModesOfPlugins) {
  const std::string toml = "[parallel]\nsequence = { mode = \"spiral\", size = 2 }\n";
  expect_refused<ConfigError>(
      {{toml,
        {"plan.toml:2: ", "parallel.sequence.mode = \"spiral\"",
         "\"none\", \"ring\", \"ring-zigzag\", \"ulysses\" or \"all-gather\""}}});
  const Plan plan = parse_plan(toml, "p", builtin_tensor_modes(), {}, {"gpt"}, {"spiral"});
  EXPECT_EQ(plan.parallel.sequence.mode, "spiral");
}

// A literature name that nobody registered is refused, not misspelt.
TEST(ParsePlan, RefusesAModeThatIsNotRegistered) {
  TensorModes fewer = builtin_tensor_modes();
  fewer.erase("3d");
  const auto parse = [&] {
    parse_plan("[parallel]\ntensor = { mode = \"3d\", size = 8 }\n", "plan.toml", fewer);
  };
  expect_says(message_of<Refused>(parse), {"plan.toml:2: ", "not available in this build", "\"3d\"",
                                           "\"none\", \"1d\", \"1d-sp\", \"2d\""});
}

TEST(ParsePlan, NamesTheModesForAnUnknownOne) {
  expect_refused<ConfigError>({{"[parallel]\ntensor = { mode = \"1D\", size = 2 }\n",
                                {"plan.toml:2: ", "parallel.tensor.mode = \"1D\" is not allowed",
                                 "with --plugin", "\"1d-sp\"", "nearest: \"1d\""}}});
}

TEST(ParsePlan, KnowsTheModesOfPlugIns) {
  TensorModes modes = builtin_tensor_modes();
  modes["diagonal"] = {"diagonal", "", [](int64_t size, int64_t) {
                         return std::vector<Axis>{{"diagonal", size}};
                       }};
  const std::string toml = "[parallel]\ntensor = { mode = \"diagonal\", size = 3 }\n";
  EXPECT_EQ(parse_plan(toml, "p", modes).parallel.tensor.mode, "diagonal");
  expect_says(message_of<ConfigError>([&] { parse(toml); }), {"\"diagonal\" is not allowed"});
}

TEST(ParsePlan, KnowsTheModelsOfPlugIns) {
  const TensorModes modes = builtin_tensor_modes();
  const std::string toml = "[model]\nkind = \"gpx\"\n";
  EXPECT_EQ(parse_plan(toml, "p", modes, {}, {"gpt", "gpx"}).model.kind, "gpx");
  expect_says(message_of<ConfigError>([&] { parse(toml); }),
              {"plan.toml:2: ", "model.kind = \"gpx\" is not allowed",
               "nearest: \"gpt\"; or give the plug-in"});
}

TEST(ParsePlan, SaysWhatToDoAboutNamesThatAPlugInMayHave) {
  Choices given;
  given.plugins = {"a.so", "b.so"};
  Choices one;
  one.plugins = {"a.so"};
  for (const auto& [toml, name] : std::vector<std::pair<std::string, std::string>>{
           {"model.kind = \"gpx\"", "gpx"},
           {"optimizer.kind = \"adamx\"", "adamx"},
           {"memory.policy = \"beladx\"", "beladx"},
           {"parallel.sequence = { mode = \"rinq\", size = 2 }", "rinq"},
           {"parallel.tensor = { mode = \"1dx\", size = 2 }", "1dx"},
           {"[parallel]\ntensor = { mode = \"1d\", size = 4 }\n[[parallel.layers]]\nfrom = 0\n"
            "to = 0\nmode = \"2dx\"",
            "2dx"},
           {"parallel.pipeline = { size = 2, schedule = \"1f1x\" }", "1f1x"}}) {
    const auto told = [&, &toml = toml](const Choices& choices) {
      return message_of<ConfigError>([&] { parse_plan(toml, "p.toml", choices); });
    };
    expect_says(told({}), {"\"" + name + "\"", "; nearest: \"",
                           "; or give the plug-in that has it with --plugin FILE"});
    expect_says(told(one), {"; nearest: \"", "; plug-in a.so has none of that name"});
    expect_says(told(given), {"; nearest: \"", "; plug-ins a.so, b.so have none of that name"});
  }
}

TEST(ParseValues, ReadsPlansThatAreRefused) {
  const std::string toml = "[parallel]\ntensor = { mode = \"2d\", size = 3 }\n";
  EXPECT_THROW(parse(toml), Refused);
  EXPECT_EQ(parse_values(toml, "p").parallel.tensor, (TensorPlan{"2d", 3, 1}));
  EXPECT_THROW(parse_values("[model]\nlayers = 0\n", "p"), ConfigError);
}

TEST(LoadPlan, NamesTheFile) {
  const std::string path = testing::TempDir() + "load_plan.toml";
  std::ofstream(path) << "[model]\nlayers = 0\n";
  const TensorModes modes = builtin_tensor_modes();
  expect_says(message_of<ConfigError>([&] { load_plan(path, modes); }), {path + ":2: "});
  std::filesystem::remove(path);
  expect_says(message_of<ConfigError>([&] { load_plan(path, modes); }), {path, "No such file"});
}

}  // namespace
}  // namespace kuafu
