// SPDX-License-Identifier: Apache-2.0
//
// kuafu-worker as a program: documents, exit codes, faults, plug-ins.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

#include <sstream>

#include "kuafu/base/errors.h"
#include "kuafu/device/device.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::content_of;
using tests::explained;
using tests::kSmallPlan;
using tests::Ran;
using tests::run_worker;
using tests::set;

constexpr int kOk = 0, kFailed = 1, kUsage = 2, kRefused = 3, kOutOfMemory = 4, kTimeout = 5,
              kDiverged = 6;

void expect_valid(const Json& document) {
  ASSERT_FALSE(document.is_null());
  for (const std::string& problem : document_problems(document)) ADD_FAILURE() << problem;
  for (const std::string& field : unknown_fields(document)) {
    ADD_FAILURE() << "docs/record.md lacks " << field;
  }
}

void expect_says(const Ran& ran, const std::string& part) {
  EXPECT_NE(ran.output.find(part), std::string::npos)
      << "\"" << part << "\" is missing in: " << ran.output;
}

TEST(Worker, DocumentOfARunIsComplete) {
  const Ran ran = run_worker(
      kSmallPlan,
      set({"parallel.data=2", "parallel.tensor.mode=1d", "parallel.tensor.size=2"}, {"--certify"}));
  ASSERT_EQ(ran.code, kOk) << ran.output;
  expect_valid(ran.document);
  const Json& d = ran.document;
  EXPECT_EQ(d["status"], "ok");
  EXPECT_EQ(d["world"], "threads");
  EXPECT_EQ(d["ranks"], 4);
  EXPECT_EQ(d["plan"]["parallel"]["data"]["size"], 2);
  EXPECT_EQ(d["plan_hash"].get<std::string>().size(), 16u);
  EXPECT_EQ(d["loss"].size(), 3u);
  EXPECT_TRUE(d["validation_loss"].is_number());
  EXPECT_EQ(d["certificate"]["verdict"], "equal");
  EXPECT_EQ(d["certificate"]["level"], "full");
  EXPECT_EQ(d["ledger"]["data"]["peers"], Json::parse("[1, 1, 1, 1]"));
  EXPECT_EQ(d["ledger"]["tensor"]["peers"], Json::parse("[1, 1, 1, 1]"));
  EXPECT_EQ(d["ledger"]["tensor"]["counting"], "convention");
  expect_says(ran, "certificate     equal");
}

TEST(Worker, ThroughputIsTheTokensOfTheGlobalBatchOverTheStepTime) {
  for (const Arguments& parts :
       {Arguments{}, {"train.micro_batch=2"}, {"parallel.data=2", "train.micro_batch=1"}}) {
    const Ran ran = run_worker(kSmallPlan, set(parts));
    ASSERT_EQ(ran.code, kOk) << ran.output;
    const double seconds = ran.document["step_time_s"]["median"];
    const double tokens = 8 * 16;  // train.batch x model.sequence
    EXPECT_DOUBLE_EQ(ran.document["tokens_per_s"].get<double>(), tokens / seconds);
  }
}

TEST(Worker, DocumentOfAHalfPrecisionRunCarriesItsNativeErrors) {
  const Ran ran =
      run_worker(kSmallPlan, set({"parallel.data=2", "model.dtype=bf16"}, {"--certify"}));
  ASSERT_EQ(ran.code, kOk) << ran.output;
  expect_valid(ran.document);
  const Json& native = ran.document["certificate"]["native"];
  EXPECT_EQ(native["verdict"], "equal") << ran.document["certificate"].dump(1);
  EXPECT_GT(native["gradient_error"], 1e-4);
}

// One byte over and over: all scores of an expert are equal, and the first tokens are its own.
TEST(Worker, ExpertsThatChooseAmongEqualBytesAreCertified) {
  const tests::Folder folder;
  const std::string corpus = folder.write("corpus.txt", std::string(4000, 'a'));
  const Ran ran = run_worker(
      kSmallPlan, set({"model.kind=moe_gpt", "model.router=expert_choice", "model.positions=rotary",
                       "model.vocab=256", "data.kind=text", "train.seed=5", "data.path=" + corpus},
                      {"--certify"}));
  EXPECT_EQ(ran.code, kOk) << ran.output;
  expect_valid(ran.document);
  EXPECT_EQ(ran.document["certificate"]["verdict"], "equal") << ran.output;
  const Json& c = ran.document["certificate"];
  EXPECT_GT(c["routes_tolerance"], 0);
  EXPECT_LE(c["routes_error"], c["routes_tolerance"]);
  EXPECT_LE(c["native"]["routes_error"], c["native"]["routes_bound"]);
}

TEST(Worker, TwoRunsWriteTheSameExactNumbers) {
  const Arguments more = set({"parallel.tensor.mode=2d", "parallel.tensor.size=4"});
  const Ran once = run_worker(kSmallPlan, more), again = run_worker(kSmallPlan, more);
  ASSERT_EQ(once.code, kOk) << once.output;
  for (const char* key : {"plan", "plan_hash", "loss", "validation_loss", "memory", "ledger",
                          "flops_per_step", "flops_recomputed"}) {
    EXPECT_EQ(once.document[key], again.document[key]) << key;
  }
}

TEST(Worker, SimulatedWorldPredictsWhatThreadsCount) {
  Arguments more = set({"parallel.tensor.mode=1d-sp", "parallel.tensor.size=2", "parallel.data=2"});
  const Ran real = run_worker(kSmallPlan, more);
  more.insert(more.end(), {"--world", "simulated"});
  const Ran predicted = run_worker(kSmallPlan, more);
  ASSERT_EQ(real.code, kOk) << real.output;
  ASSERT_EQ(predicted.code, kOk) << predicted.output;
  expect_valid(predicted.document);
  EXPECT_EQ(predicted.document["world"], "simulated");
  EXPECT_TRUE(predicted.document["loss"].is_null());
  EXPECT_TRUE(predicted.document["certificate"].is_null());
  EXPECT_EQ(predicted.document["transport"], "threads");
  expect_says(predicted, "estimated by the cost model, not measured");
  EXPECT_EQ(predicted.output.find("median [95 %]"), std::string::npos) << predicted.output;
  // Of 2 or 3: a first step that took as long as the others is no warm-up.
  expect_says(real, " steps: too few for an interval");
  for (const char* key : {"plan_hash", "flops_per_step", "flops_recomputed", "ledger"}) {
    EXPECT_EQ(predicted.document[key], real.document[key]) << key;
  }
  for (const char* key : {"peak_bytes", "peak_by_category", "at_peak"}) {
    EXPECT_EQ(predicted.document["memory"][key], real.document["memory"][key]) << key;
  }
}

TEST(Worker, TransportOfARealWorldIsRefused) {
  const Ran ran = run_worker(kSmallPlan, {"--transport", "mpi"});
  EXPECT_EQ(ran.code, kUsage);
  EXPECT_NE(ran.output.find("--world simulated"), std::string::npos) << ran.output;
}

TEST(Worker, DevicesOfOtherWorldsAndPlansAreRefused) {
  const Ran simulated = run_worker(kSmallPlan, {"--world", "simulated", "--device", "cuda"});
  EXPECT_EQ(simulated.code, kUsage);
  expect_says(simulated, "--device cuda: ranks of the world simulated compute on cpu");
  const Ran nccl = run_worker(kSmallPlan, {"--world", "nccl", "--device", "cpu"});
  EXPECT_EQ(nccl.code, kUsage);
  expect_says(nccl, "--device cpu: ranks of the world nccl have a card each");
  const Ran tiers = run_worker(kSmallPlan, {"--device", "cuda", "--set", "memory.policy=host"});
  EXPECT_EQ(tiers.code, kUsage);
  expect_says(tiers, "--device cuda: memory.policy = \"host\" moves chunks on cpu alone");
  EXPECT_EQ(run_worker(kSmallPlan, {"--device", "cpu"}).code, kOk);
}

TEST(Worker, TheEnvironmentNamesADeviceForThoseThatMayHaveOne) {
  ::setenv("KUAFU_DEVICE", "gpu", 1);
  const Ran wrong = run_worker(kSmallPlan, {});
  EXPECT_EQ(wrong.code, kUsage);
  expect_says(wrong, "KUAFU_DEVICE=gpu: cpu and cuda are devices");
  ::setenv("KUAFU_DEVICE", "cuda", 1);
  EXPECT_EQ(run_worker(kSmallPlan, {"--world", "simulated"}).code, kOk);
  EXPECT_EQ(run_worker(kSmallPlan, {"--device", "cpu"}).code, kOk);
  ::unsetenv("KUAFU_DEVICE");
}

// A card that is asked for and not there ends the run before its first step; one that nobody asked for is
// not missed.
TEST(Worker, ACardThatIsNotThereIsNamed) {
  if (device::num_devices() > 0) GTEST_SKIP() << "this machine has one";
  const Ran ran = run_worker(kSmallPlan, {"--device", "cuda"});
  EXPECT_EQ(ran.code, kUsage);
  expect_says(ran, "no CUDA device");
  EXPECT_EQ(ran.document["status"], "failed");
}

// On this machine, within 2 GiB and a minute.
// A suite asks it of all its cases, whatever their world.
TEST(Worker, RefusesToCertifyWhatIsSimulated) {
  const Ran ran = run_worker(kSmallPlan, {"--world", "simulated", "--certify"});
  EXPECT_EQ(ran.code, kUsage) << ran.output;
  expect_says(ran, "--certify: the world simulated computes no numbers, so it trains nothing that");
  expect_says(ran, "use --world threads, mpi or nccl");
  EXPECT_EQ(run_worker(kSmallPlan, {"--world", "simulated", "--certify", "--of-suite"}).code, kOk);
}

TEST(Worker, RefusesPlansWithMoreFlopsThanAreCounted) {
  const Ran ran =
      run_worker("", set({"train.batch=1", "model.sequence=16777216", "model.hidden=16384",
                          "model.layers=1", "model.heads=128", "model.vocab=300",
                          "data.kind=synthetic", "train.validation_batches=0"},
                         {"--steps", "2", "--world", "simulated"}));
  EXPECT_EQ(ran.code, kRefused) << ran.output;
  expect_says(ran, "model FLOPs of this plan are beyond what is counted");
}

TEST(Worker, TellsOptimizerFlopsWhereThereAreAny) {
  const Ran muon = run_worker(kSmallPlan, {"--set", "optimizer.kind=muon"});
  EXPECT_EQ(muon.code, kOk) << muon.output;
  expect_says(muon, "optimizer FLOPs ");
  EXPECT_EQ(run_worker(kSmallPlan, {}).output.find("optimizer FLOPs"), std::string::npos);
}

TEST(Worker, SimulatesFourThousandRanks) {
  const Ran ran = run_worker(
      kSmallPlan, set({"train.batch=4096"}, {"--world", "simulated", "--ranks", "4096"}));
  ASSERT_EQ(ran.code, kOk) << ran.output;
  EXPECT_EQ(ran.document["ranks"], 4096);
  EXPECT_EQ(ran.document["memory"]["peak_bytes"].size(), 4096u);
  EXPECT_LT(ran.seconds, 60);
  EXPECT_LT(ran.peak_bytes, int64_t{2} << 30);
}

struct Bad {
  const char* what;
  Arguments arguments;
  int code;
  const char* status;
  const char* says;
};
std::ostream& operator<<(std::ostream& out, const Bad& b) { return out << b.what; }

class BadInput : public testing::TestWithParam<Bad> {};

TEST_P(BadInput, IsOneClearError) {
  const Bad& bad = GetParam();
  const Ran ran = run_worker(kSmallPlan, bad.arguments);
  EXPECT_EQ(ran.code, bad.code) << ran.output;
  expect_says(ran, bad.says);
  expect_valid(ran.document);
  EXPECT_EQ(ran.document["status"], bad.status);
  EXPECT_NE(ran.document["reason"].get<std::string>().find(bad.says), std::string::npos);
}

const std::vector<Bad>& bad_inputs() {
  static const std::vector<Bad> all = {
      {"unknown key", set({"model.hiden=64"}), kUsage, "failed", "model.hidden"},
      {"misspelt mode", set({"parallel.tensor.mode=2dd"}), kUsage, "failed", "\"2d\""},
      {"no such kind of data", set({"data.kind=txt"}), kUsage, "failed", "\"text\""},
      {"zero layers", set({"model.layers=0"}), kUsage, "failed", "from 1 to"},
      {"negative batch", set({"train.batch=-8"}), kUsage, "failed", "from 1 to"},
      {"three ranks for a 2D grid", set({"parallel.tensor.mode=2d", "parallel.tensor.size=3"}),
       kRefused, "refused", "q x q"},
      {"hidden that heads do not divide", set({"model.hidden=30"}), kRefused, "refused", "heads"},
      {"heads that ranks do not divide", set({"parallel.tensor.mode=1d", "parallel.tensor.size=8"}),
       kRefused, "refused", "model.heads"},
      {"sequence that ranks do not divide",
       set({"parallel.tensor.mode=1d-sp", "parallel.tensor.size=2", "model.sequence=15"}), kRefused,
       "refused", "nearest: model.sequence = 14 or 16"},
      {"ranks that the plan does not make", set({"parallel.data=2"}, {"--ranks", "3"}), kRefused,
       "refused", "3 ranks were given"},
      {"ranks of an option that the plan does not make", set({"parallel.data=2"}, {"--ranks", "3"}),
       kRefused, "refused", "nearest: --ranks 2"},
      {"ranks of an option that do not divide the batch",
       {"--ranks", "3"},
       kRefused,
       "refused",
       "parallel.data = 3 (of --ranks 3); nearest: batch = 6 or 9, or --ranks 2 or 4"},
      {"missing corpus", set({"data.kind=text", "data.path=/nowhere/at/all", "model.vocab=256"}),
       kUsage, "failed", "/nowhere/at/all"},
      {"loss that is no number",
       set({"optimizer.kind=sgd", "optimizer.lr=1e6", "optimizer.clip=0",
            "optimizer.weight_decay=1e6", "train.steps=20"}),
       kDiverged, "diverged", "at step "},
      {"missing plug-in",
       {"--plugin", "/nowhere/plugin.so"},
       kUsage,
       "failed",
       "cannot load plug-in /nowhere/plugin.so"},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, BadInput, testing::ValuesIn(bad_inputs()));

TEST(BadCorpus, EmptyOrShorterThanASampleIsRefusedWithItsPath) {
  const tests::Folder folder;
  for (const auto& [name, content] : {std::pair{"empty.txt", ""}, {"short.txt", "too short"}}) {
    const std::string file = folder.write(name, content);
    const Ran ran =
        run_worker(kSmallPlan, set({"data.kind=text", "data.path=" + file, "model.vocab=256"}));
    EXPECT_EQ(ran.code, kUsage) << ran.output;
    expect_says(ran, file);
    EXPECT_EQ(ran.document["status"], "failed");
  }
}

TEST(Worker, OverBudgetWritesTheBytesItAskedFor) {
  const Ran ran = run_worker(kSmallPlan, set({"memory.device=100000", "parallel.data=2"}));
  EXPECT_EQ(ran.code, kOutOfMemory) << ran.output;
  expect_valid(ran.document);
  EXPECT_EQ(ran.document["status"], "out_of_memory");
  const Json& oom = ran.document["out_of_memory"];
  EXPECT_EQ(oom["budget_bytes"], 100000);
  EXPECT_GT(oom["requested_bytes"].get<int64_t>() + oom["live_bytes"].get<int64_t>(), 100000);
}

TEST(Worker, TimeoutEndsTheRun) {
  const Ran ran = run_worker(kSmallPlan, set({"train.steps=100000000"}, {"--timeout", "1"}));
  EXPECT_EQ(ran.code, kTimeout) << ran.output;
  EXPECT_EQ(ran.document["status"], "timeout");
  EXPECT_LT(ran.seconds, 10);
}

TEST(Worker, UnwritableDocumentIsAnErrorBeforeTheRun) {
  const tests::Folder folder;
  tests::Child child({tests::built("bin/kuafu-worker"), "run",
                      folder.write("plan.toml", kSmallPlan), "--json", "/proc/nothing/here.json"});
  const tests::Ended ended = child.wait();
  EXPECT_EQ(ended.code, kUsage) << ended.output;
  EXPECT_NE(ended.output.find("cannot write /proc/nothing/here.json"), std::string::npos)
      << ended.output;
  EXPECT_EQ(ended.output.find("loss"), std::string::npos) << "trained first: " << ended.output;
}

TEST(Worker, EveryKindOfModelTrainsWithItsDefaults) {
  for (const char* kind : {"gpt", "bert", "vit", "moe_gpt", "opt"}) {
    const Ran ran = run_worker("", set({text("model.kind=", kind)}, {"--steps", "2"}));
    EXPECT_EQ(ran.code, kOk) << ran.output;
    EXPECT_EQ(ran.document["loss"].size(), 2U) << kind;
    EXPECT_EQ(ran.output.find("warning"), std::string::npos) << ran.output;
  }
}

TEST(Worker, WarnsOfWhatAPlanAsksInVain) {
  const Ran ran = run_worker("model.vocab = 300\n", set({"parallel.zero=1"}, {"--steps", "1"}));
  EXPECT_EQ(ran.code, kOk) << ran.output;
  expect_says(ran, "warning: ");
  expect_says(ran, "plan.toml:1: model.vocab = 300, but data.kind = \"text\" has 256 tokens");
  expect_says(ran, "--set parallel.zero: parallel.zero = 1 has no effect on one replica");
  const Ran two = run_worker("", set({"parallel.zero=1"}, {"--steps", "1", "--ranks", "2"}));
  EXPECT_EQ(two.output.find("warning"), std::string::npos) << two.output;
}

TEST(Worker, UnknownOptionIsAUsageError) {
  const Ran ran = run_worker(kSmallPlan, {"--stepps", "3"});
  EXPECT_EQ(ran.code, kUsage) << ran.output;
  EXPECT_TRUE(ran.document.is_null());
}

TEST(Worker, ExplainsAPlanWithoutRunningIt) {
  const tests::Folder folder;
  tests::Child child({tests::built("bin/kuafu-worker"), "explain",
                      folder.write("plan.toml", kSmallPlan), "--set", "parallel.tensor.mode=2d",
                      "--set", "parallel.tensor.size=4"});
  const tests::Ended ended = child.wait();
  EXPECT_EQ(ended.code, kOk) << ended.output;
  for (const char* part :
       {"r0 r1", "r2 r3", "(B/dep.row, S, H/col)", "attention qkv", "blocks.0.mlp.up.weight"}) {
    EXPECT_NE(ended.output.find(part), std::string::npos) << part << " in " << ended.output;
  }
}

TEST(Worker, WritesATimetableThatRunsAndAPictureOfIt) {
  const tests::Folder folder;
  const std::string csv = folder.path("mine.csv"), svg = folder.path("mine.svg");
  const Arguments stages = {"parallel.pipeline.size=2", "train.micro_batch=2"};
  for (const std::string& file : {csv, svg}) {
    const std::string output = explained(set(stages, {"--timetable", file}), kOk);
    EXPECT_NE(output.find("written: " + file), std::string::npos) << output;
  }
  EXPECT_EQ(content_of(csv), "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  EXPECT_NE(content_of(svg).find("<svg"), std::string::npos);
  Arguments by_hand = stages;
  by_hand.push_back("parallel.pipeline.schedule=" + csv);
  const Ran ran = run_worker(kSmallPlan, set(by_hand, {"--certify"}));
  EXPECT_EQ(ran.document["certificate"]["verdict"], "equal") << ran.output;
}

TEST(Worker, SaysWhyThereIsNoTimetable) {
  const tests::Folder folder;
  const Arguments stages = {"parallel.pipeline.size=2", "train.micro_batch=2"};
  const auto expect = [&](const Arguments& settings, const char* file, const char* why) {
    const std::string output = explained(set(settings, {"--timetable", folder.path(file)}), kUsage);
    EXPECT_NE(output.find(why), std::string::npos) << output;
  };
  expect({}, "a.csv", "set parallel.pipeline.size");
  expect(stages, "a.txt", "must end in .csv");
  expect(stages, "none/a.csv", "No such file");
}

TEST(Worker, FrontierNamesTheKeyNearestToOneThatIsNone) {
  const tests::Folder folder;
  const tests::Ended ended =
      tests::Child({tests::built("bin/kuafu"), "frontier", folder.write("plan.toml", kSmallPlan),
                    "--vary", "train.bach", "--max", "8"})
          .wait();
  EXPECT_EQ(ended.code, kUsage) << ended.output;
  EXPECT_NE(ended.output.find("--vary train.bach: a plan has no key train.bach; nearest: "
                              "train.batch"),
            std::string::npos)
      << ended.output;
}

// A key whose least value is above 1 is not tried below it.
TEST(Worker, TheFrontierBeginsAtTheLeastValueOfItsKey) {
  const tests::Folder folder;
  const tests::Ended ended =
      tests::Child({tests::built("bin/kuafu-worker"), "frontier",
                    folder.write("plan.toml", kSmallPlan), "--set", "memory.device=1kB", "--set",
                    "data.kind=synthetic", "--vary", "model.vocab", "--max", "100"})
          .wait();
  EXPECT_EQ(ended.code, kOutOfMemory) << ended.output;
  EXPECT_NE(ended.output.find("no legal value up to 100 fits"), std::string::npos) << ended.output;
}

// One step would end before there is optimizer state beside the activations.
TEST(Worker, TheFrontierIsThatOfATrainingHoweverFewItsSteps) {
  const tests::Folder folder;
  const std::string plan = folder.write("plan.toml", kSmallPlan), json = folder.path("f.json");
  std::vector<Json> found;
  for (const char* steps : {"1", "2"}) {
    const tests::Ended ended =
        tests::Child({tests::built("bin/kuafu-worker"), "frontier", plan, "--set",
                      "memory.device=2 MB", "--vary", "model.layers", "--max", "40", "--steps",
                      steps, "--json", json})
            .wait();
    ASSERT_EQ(ended.code, kOk) << ended.output;
    found.push_back(Json::parse(content_of(json)));
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_GT(found[0]["value"], 1);
  EXPECT_LT(found[0]["value"], 40) << "the budget decides";
  EXPECT_LE(found[0]["peak_bytes"], 2'000'000);
}

// Under ZeRO replicas hold parts of other sizes, and the first one's are not the largest.
TEST(Worker, FrontierIsThatOfTheFullestReplica) {
  const tests::Folder folder;
  const std::string json = folder.path("f.json");
  Arguments words = {tests::built("bin/kuafu"), "frontier", folder.write("plan.toml", ""), "--json",
                     json};
  for (const char* key : {"model.layers=1", "model.heads=4", "model.hidden=8", "model.sequence=12",
                          "train.micro_batch=1", "train.batch=8", "memory.recompute=full",
                          "data.kind=synthetic", "parallel.data.size=4", "parallel.zero=1"}) {
    words.insert(words.end(), {"--set", key});
  }
  Arguments search = words;
  search.insert(search.end(), {"--set", "memory.device=300000", "--vary", "model.ffn", "--max",
                               "2000", "--measure"});
  const tests::Ended ended = tests::Child(search).wait();
  ASSERT_EQ(ended.code, kOk) << ended.output;
  const Json found = Json::parse(content_of(json));
  EXPECT_GT(found["measured_step_s"], 0) << "what fits runs: " << ended.output;
  EXPECT_GT(found["value"], 700);
}

// What a policy of tiers fits, plain memory does not; the largest that fits runs in its budget.
TEST(Worker, FrontierComparesPoliciesAndBudgets) {
  const tests::Folder folder;
  const std::string json = folder.path("f.json");
  const auto search = [&](Arguments more) {
    Arguments words = {tests::built("bin/kuafu"),
                       "frontier",
                       folder.write("plan.toml", kSmallPlan),
                       "--vary",
                       "model.layers",
                       "--max",
                       "40",
                       "--json",
                       json};
    words.insert(words.end(), more.begin(), more.end());
    return tests::Child(words).wait();
  };
  const tests::Ended ended = search({"--policy", "plain", "--policy", "host", "--policy", "belady",
                                     "--budget", "600 KB", "--budget", "2 MB", "--measure"});
  ASSERT_EQ(ended.code, kOk) << ended.output;
  const Json answers = Json::parse(content_of(json)).at("answers");
  ASSERT_EQ(answers.size(), 6U);
  std::map<std::pair<std::string, int64_t>, int64_t> layers;
  for (const Json& answer : answers) {
    layers[{answer.at("policy"), answer.at("budget_bytes")}] = answer.at("value");
    if (answer.at("value") == 0) continue;
    EXPECT_LE(answer.at("peak_bytes"), answer.at("budget_bytes"));
    EXPECT_GT(answer.at("predicted_step_s"), 0);
    EXPECT_GT(answer.at("measured_step_s"), 0);
    EXPECT_EQ(answer.at("host_peak_bytes") > 0, answer.at("policy") != "plain");
  }
  EXPECT_LT((layers.at({"plain", 600'000})), (layers.at({"plain", 2'000'000})));
  EXPECT_LT((layers.at({"plain", 2'000'000})), (layers.at({"host", 2'000'000})));
  EXPECT_EQ((layers.at({"belady", 2'000'000})), (layers.at({"host", 2'000'000})));
  const tests::Ended none = search({"--policy", "plain", "--budget", "10 KB", "--measure"});
  EXPECT_EQ(none.code, kOutOfMemory) << none.output;
  const tests::Ended size = search({"--budget", "2MX"});
  EXPECT_EQ(size.code, kUsage);
  EXPECT_NE(size.output.find("--budget 2MX: memory.device = "), std::string::npos) << size.output;
  const tests::Ended wrong = search({"--policy", "beladi", "--budget", "10 KB"});
  EXPECT_EQ(wrong.code, kUsage);
  EXPECT_NE(wrong.output.find("\"belady\""), std::string::npos) << wrong.output;
}

// A micro-batch of 8 samples of 16 tokens, 32 wide, in a cube of two: 128 tokens and a table of 64
// rows, gathered: (q-1)/q^3 (T + V) H elements each way.
TEST(Worker, ExplainsWhatAnEmbeddingReceives) {
  const tests::Folder folder;
  tests::Child child({tests::built("bin/kuafu-worker"), "explain",
                      folder.write("plan.toml", kSmallPlan), "--set", "parallel.tensor.mode=3d",
                      "--set", "parallel.tensor.size=8"});
  const tests::Ended ended = child.wait();
  EXPECT_EQ(ended.code, kOk) << ended.output;
  std::istringstream lines(ended.output.substr(ended.output.find("\nCost ")));
  std::string line, layer;
  while (layer != "embedding" && std::getline(lines, line)) std::istringstream(line) >> layer;
  int64_t forward = 0, backward = 0;
  std::istringstream(line) >> layer >> forward >> backward;
  EXPECT_EQ(forward, 768) << ended.output;
  EXPECT_EQ(backward, 768) << ended.output;
}

TEST(Worker, TrainsAModelOutOfTreeUnderEveryKindOfPlan) {
  const std::string library = tests::built("plugins/macaron.so");
  for (const Arguments& plan : std::vector<Arguments>{
           {"parallel.data=2"},
           {"parallel.tensor.mode=1d", "parallel.tensor.size=4"},
           {"parallel.tensor.mode=1d-sp", "parallel.tensor.size=2", "parallel.data=2"},
           {"parallel.tensor.mode=2d", "parallel.tensor.size=4"},
           {"parallel.tensor.mode=2.5d", "parallel.tensor.size=8", "parallel.tensor.depth=2"},
           {"parallel.tensor.mode=3d", "parallel.tensor.size=8"}}) {
    Arguments settings = plan;
    settings.push_back("model.kind=macaron");
    const Ran ran = run_worker(kSmallPlan, set(settings, {"--plugin", library, "--certify"}));
    ASSERT_EQ(ran.code, kOk) << ran.output;
    EXPECT_EQ(ran.document["certificate"]["verdict"], "equal") << ran.output;
    EXPECT_EQ(ran.document["certificate"]["reference"], "oracle");
  }
}

// The engine on one rank computes what the model computes, and its f32 arithmetic may be as wrong: rounding is
// drawn at random then, never measured by it.
TEST(Plugin, ModelWithoutAnOracleIsHeldInItsOwnType) {
  for (const auto& [plugin, type, verdict] : {std::tuple{"macaron_alone", "f32", "equal"},
                                              {"macaron_alone", "bf16", "equal"},
                                              {"macaron_alone", "f16", "equal"},
                                              {"macaron_f32", "f32", "different"},
                                              {"macaron_f32", "f64", "equal"}}) {
    const Ran ran = run_worker(
        kSmallPlan, set({"model.kind=macaron", text("model.dtype=", type), "parallel.data=2"},
                        {"--plugin", tests::built(text("plugins/", plugin, ".so")), "--certify"}));
    EXPECT_EQ(ran.document["certificate"]["verdict"], verdict) << plugin << " " << ran.output;
    EXPECT_EQ(ran.document["certificate"]["reference"], "engine");
  }
}

TEST(Plugin, ModelIsHeldAgainstTheOracleItBrings) {
  const auto certificate = [](const std::string& plugin) {
    const Ran ran = run_worker(
        kSmallPlan, set({"model.kind=macaron", "model.dtype=f32"},
                        {"--plugin", tests::built("plugins/" + plugin + ".so"), "--certify"}));
    return ran.document["certificate"];
  };
  const Json wrong = certificate("macaron_refuted"), none = certificate("macaron_alone");
  EXPECT_EQ(wrong["reference"], "oracle");
  EXPECT_EQ(wrong["verdict"], "different") << wrong;
  EXPECT_EQ(none["reference"], "engine");
  EXPECT_EQ(none["verdict"], "not_run") << none;  // one rank is its own reference
  const std::string why = none["reason"];
  EXPECT_NE(why.find("one rank would be compared with itself"), std::string::npos) << why;
  EXPECT_NE(why.find("register an oracle"), std::string::npos) << why;
  EXPECT_EQ(certificate("macaron_lacking")["verdict"], "different");
  const std::string lacking = certificate("macaron_lacking")["reason"];
  EXPECT_NE(lacking.find("the oracle has no weight \"blocks.1.after.down.bias\", which the model"),
            std::string::npos)
      << lacking;
  const std::string fused = certificate("macaron_fused")["reason"];
  EXPECT_NE(fused.find("\"blocks.0.attn.qkv.weight\" holds layers 1 side by side, the model's 3"),
            std::string::npos)
      << fused;
}

// Right in f64, or in the first steps: eight weight gradients a step, the 31st is in the fourth.
TEST(Plugin, SchemesThatAreWrongInTheTimedRunAreCertifiedDifferent) {
  const std::string library = tests::built("plugins/faults.so");
  for (const char* scheme : {"1d-tenth", "1d-late"}) {
    const Ran ran =
        run_worker(kSmallPlan, set({std::string("parallel.tensor.mode=") + scheme,
                                    "parallel.tensor.size=2", "model.dtype=f32", "train.steps=20"},
                                   {"--plugin", library, "--certify"}));
    expect_valid(ran.document);
    EXPECT_EQ(ran.document["certificate"]["verdict"], "different") << scheme << ran.output;
    EXPECT_EQ(ran.document["certificate"]["native"]["verdict"], "different") << scheme;
  }
}

TEST(Plugin, SchemeOutOfTreeRunsAndIsCertified) {
  const std::string library = tests::built("plugins/chain_1d.so");
  const Ran ran =
      run_worker(kSmallPlan, set({"parallel.tensor.mode=1d-chain", "parallel.tensor.size=4"},
                                 {"--plugin", library, "--certify"}));
  ASSERT_EQ(ran.code, kOk) << ran.output;
  expect_valid(ran.document);
  EXPECT_EQ(ran.document["certificate"]["verdict"], "equal");
  const Json& calls = ran.document["ledger"]["tensor"]["calls"];
  EXPECT_GT(calls["reduce"][0].get<int64_t>(), 0);
  EXPECT_EQ(calls["reduce"], calls["broadcast"]);
}

TEST(Worker, ExitsWithOneWhereTheCertificateRefutesTheRun) {
  const Arguments broken = {"--plugin", tests::built("plugins/broken_1d.so"), "--certify"};
  const Arguments plan = set({"parallel.tensor.mode=1d-broken", "parallel.tensor.size=2"}, broken);
  for (const char* program : {"bin/kuafu-worker", "bin/kuafu"}) {
    const Ran ran = tests::run_program(program, kSmallPlan, plan, {}, {});
    EXPECT_EQ(ran.code, kFailed) << ran.output;
    expect_valid(ran.document);
    EXPECT_EQ(ran.document["status"], "ok");
    EXPECT_EQ(ran.document["certificate"]["verdict"], "different");
    EXPECT_NE(ran.output.find("different: the certificate refutes this run"), std::string::npos);
  }
}

// By its declarations alone, before a rank starts (engine/placing/row_types.h).
TEST(Worker, RefusesASchemeThatLeavesASumOut) {
  const Arguments unsummed = {"--plugin", tests::built("plugins/unsummed_1d.so")};
  const Ran ran = run_worker(
      kSmallPlan, set({"parallel.tensor.mode=1d-broken", "parallel.tensor.size=2"}, unsummed));
  EXPECT_EQ(ran.code, kUsage) << ran.output;
  EXPECT_NE(ran.output.find("parameter \"blocks.0.mlp.up.weight\""), std::string::npos)
      << ran.output;
  EXPECT_NE(ran.output.find("axis \"tensor\""), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("a missing sum"), std::string::npos) << ran.output;
}

TEST(Worker, RecordsWhatItRead) {
  const tests::Folder folder;
  const std::string corpus = folder.write("corpus", std::string(1000, 'x'));
  const Arguments text = {"data.kind=text", "model.vocab=256", "data.path=" + corpus};
  const Ran ran = run_worker(kSmallPlan, set(text, {}));
  ASSERT_EQ(ran.code, kOk) << ran.output;
  expect_valid(ran.document);
  const Json data = ran.document["data"];
  EXPECT_EQ(data["kind"], "text");
  EXPECT_EQ(data["path"], corpus);
  EXPECT_EQ(data["bytes"], 1000);
  EXPECT_EQ(data["samples"], 56);  // 899 / 16
  EXPECT_EQ(ran.document["plan"]["data"]["hash"], data["hash"]);
  // The plan that a record holds runs again on these bytes and on no others.
  const std::string hash = data["hash"];
  EXPECT_EQ(run_worker(kSmallPlan, set(text, {"--set", "data.hash=" + hash})).code, kOk);
  folder.write("corpus", std::string(1000, 'y'));
  const Ran other = run_worker(kSmallPlan, set(text, {"--set", "data.hash=" + hash}));
  EXPECT_EQ(other.code, kUsage) << other.output;
  EXPECT_NE(other.output.find("data.hash = " + hash), std::string::npos) << other.output;
}

TEST(Plugin, OfAnotherBuildOrNoneIsRefused) {
  struct Case {
    const char* file;
    const char* says;
  };
  for (const Case& c : {Case{"plugins/other_abi.so", "has ABI"},
                        Case{"plugins/other_torch.so", "was built with LibTorch 1.0.0"},
                        Case{"plugins/no_symbol.so", "no symbol kuafu_plugin"},
                        Case{"plugins/data_symbol.so", "its kuafu_plugin is data; allowed"}}) {
    const Ran ran = run_worker(kSmallPlan, {"--plugin", tests::built(c.file)});
    EXPECT_EQ(ran.code, kUsage) << ran.output;
    expect_says(ran, c.says);
  }
}

TEST(Plugin, ThatEndsTheProcessWhileItIsLoadedFailsTheCommand) {
  const std::string plugin = tests::built("plugins/exits_at_load.so");
  const std::string says =
      "called exit(0) before the work was done; plug-ins given: " + plugin + "\n";
  const Ran ran = run_worker(kSmallPlan, {"--plugin", plugin});
  EXPECT_EQ(ran.code, kFailed) << ran.output;
  expect_says(ran, says);
  const tests::Ended ended =
      tests::Child({tests::built("bin/kuafu"), "conformance", "--plugin", plugin}).wait();
  EXPECT_EQ(ended.code, kFailed) << ended.output;
  EXPECT_NE(ended.output.find(says), std::string::npos) << ended.output;
}

TEST(Plugin, ThatCrashesInACommandIsTold) {
  const tests::Folder folder;
  const std::string plugin = tests::built("plugins/dead_ends.so");
  const tests::Ended ended =
      tests::Child(set({"parallel.pipeline.schedule=crashes-at-4", "parallel.pipeline.size=2",
                        "train.micro_batch=2"},
                       {tests::built("bin/kuafu"), "explain", folder.write("plan.toml", kSmallPlan),
                        "--plugin", plugin}))
          .wait();
  EXPECT_EQ(ended.code, -SIGSEGV) << ended.output;
  EXPECT_NE(ended.output.find("kuafu: the program crashed (SIGSEGV, a wrong access to "
                              "memory); plug-ins given: " +
                              plugin + "\n"),
            std::string::npos)
      << ended.output;
}

TEST(Plugin, OfAFileThatIsNoWholeSharedObjectIsRefused) {
  const tests::Folder folder;
  const std::string whole = content_of(tests::built("plugins/chain_1d.so"));
  folder.write("text.so", "int main() {}");
  folder.write("empty.so", "");
  folder.write("head.so", whole.substr(0, 64));
  folder.write("half.so", whole.substr(0, whole.size() / 2));
  folder.write("less.so", whole.substr(0, whole.size() - 1));
  ASSERT_EQ(mkfifo(folder.path("pipe.so").c_str(), 0600), 0);
  const std::pair<std::string, std::string> cases[] = {{"text.so", "it is no shared object"},
                                                       {"empty.so", "it is no shared object"},
                                                       {"head.so", "it was cut short"},
                                                       {"half.so", "it was cut short"},
                                                       {"less.so", "it was cut short"},
                                                       {"pipe.so", "it is no file"},
                                                       {"", "it is no file"}};
  for (const auto& [file, says] : cases) {
    const Ran ran = run_worker(kSmallPlan, {"--plugin", folder.path(file)});
    EXPECT_EQ(ran.code, kUsage) << file << ran.output;
    expect_says(ran, "cannot load plug-in " + folder.path(file) + ": " + says);
  }
}

}  // namespace
}  // namespace kuafu
