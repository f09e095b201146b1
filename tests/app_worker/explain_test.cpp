// SPDX-License-Identifier: Apache-2.0
//
// `kuafu explain`: its text, its JSON, and whether a run then records the same.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

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

constexpr int kOk = 0, kUsage = 2;

/// Dotted paths of a JSON value: `[]` an entry of a list of objects, `*` any name below `open`.
void add_paths(const Json& value, const std::string& path, std::set<std::string>& paths) {
  static const std::set<std::string> open = {
      "parameters.by_kind",      "parameters.fullest_rank.by_kind",
      "memory.at_peak",          "traffic.axes",
      "traffic.axes.*.calls",    "states[].value.types",
      "states[].gradient.types", "states[].slots",
      "moves.policies"};
  if (!path.empty()) paths.insert(path);
  if (value.is_array() && !value.empty() && value[0].is_object()) {
    for (const Json& one : value) {
      for (const auto& [key, inner] : one.items()) add_paths(inner, path + "[]." + key, paths);
    }
  }
  if (!value.is_object() || path == "plan") return;
  for (const auto& [key, inner] : value.items()) {
    const std::string name = open.contains(path) ? "*" : key;
    add_paths(inner, path.empty() ? name : path + "." + name, paths);
  }
}

/// The fields of docs/explain.md.
std::set<std::string> documented_fields() {
  std::istringstream page(
      content_of(std::string(std::getenv("KUAFU_SOURCE_DIR")) + "/docs/explain.md"));
  std::set<std::string> fields;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| `", 0) == 0) fields.insert(line.substr(3, line.find('`', 3) - 3));
  }
  return fields;
}

TEST(Explain, ExplainsInJsonAsThePageSays) {
  const Arguments settings = {"parallel.pipeline.size=2", "parallel.tensor.mode=1d",
                              "parallel.tensor.size=2",   "train.micro_batch=2",
                              "memory.device=1 GB",       "parallel.data=2",
                              "memory.policy=auto",       "memory.host=1 GB"};
  const Json json = Json::parse(explained(set(settings, {"--json", "-"}), kOk));
  std::set<std::string> paths;
  add_paths(json, "", paths);
  EXPECT_EQ(paths, documented_fields());
  int64_t sum = 0;
  for (const auto& [category, bytes] : json["memory"]["at_peak"].items())
    sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, json["memory"]["peak_bytes"]);
  EXPECT_EQ(json["ranks"], 8);
}

TEST(Explain, SaysWhereTheStatesOfEveryParameterAre) {
  const Arguments settings = {"parallel.zero=2", "parallel.data=2", "parallel.tensor.mode=1d",
                              "parallel.tensor.size=2", "model.dtype=bf16"};
  const Json json = Json::parse(explained(set(settings, {"--json", "-"}), kOk));
  ASSERT_EQ(json["states"].size(), json["layouts"].size());
  for (const Json& row : json["states"]) {
    const std::string name = row["parameter"];
    EXPECT_EQ(row["value"]["portion"], "whole") << name;
    EXPECT_EQ(row["gradient"]["portion"], "part") << name;
    EXPECT_EQ(row["gradient"]["types"]["data"], "partial") << name;
    for (const char* slot : {"m", "v", "master"}) {
      EXPECT_EQ(row["slots"][slot],
                Json::parse(R"({"portion":"part","tier":"device","dtype":"f32"})"));
    }
    const Json& along = row["value"]["types"]["tensor"];
    EXPECT_TRUE(!name.ends_with("mlp.up.weight") || along == "sharded") << name;
    EXPECT_TRUE(!name.ends_with("norm1.scale") || along == "replicated") << name;
  }
  EXPECT_TRUE(
      std::regex_search(explained(set(settings), kOk), std::regex("master +f32 +part +device")));
}

TEST(Explain, SaysThatPartsAreSharded) {
  for (const char* stage : {"2", "3"}) {
    const Json json = Json::parse(explained(
        set({std::string("parallel.zero=") + stage, "parallel.data=2"}, {"--json", "-"}), kOk));
    for (const Json& row : json["states"]) {
      EXPECT_EQ(row["value"]["types"]["data"], *stage == '3' ? "sharded" : "replicated");
    }
  }
}

TEST(Explain, SaysWhatGoesBetweenTiers) {
  const Arguments settings = {"memory.policy=host", "memory.device=1 GB", "train.steps=5"};
  const Json json = Json::parse(explained(set(settings, {"--json", "-"}), kOk));
  int64_t bytes = 0;
  for (const Json& row : json["states"]) {
    EXPECT_EQ(row["value"]["tier"], "host");
    EXPECT_EQ(row["slots"]["m"]["tier"], "host");
  }
  for (const Json& row : json["layouts"]) {
    int64_t elements = row["shard"].empty() ? 0 : 1;
    for (const Json& extent : row["shard"]) elements *= extent.get<int64_t>();
    bytes += elements * (json["plan"]["model"]["dtype"] == "f64" ? 8 : 4);
  }
  const Json& moves = json["moves"];
  EXPECT_GE(moves["step_to_host_bytes"], bytes);    // every gradient, padded
  EXPECT_GT(moves["step_to_device_bytes"], bytes);  // some parameters twice
  EXPECT_GE(moves["host_peak_bytes"], 4 * bytes);   // with gradient, m and v
  EXPECT_EQ(moves["policies"]["host"], moves["step_to_device_bytes"]);
  if (!moves["least_bytes"].is_null()) {
    EXPECT_EQ(moves["policies"]["belady"], moves["least_bytes"]);  // 1 GB hold all
    EXPECT_EQ(moves["policies"]["optimal"], moves["least_bytes"]);
    EXPECT_EQ(moves["is_proven"], true);
    EXPECT_EQ(moves["regret_bytes"],
              moves["step_to_device_bytes"].get<int64_t>() - moves["least_bytes"].get<int64_t>());
  }
  const std::string text = explained(set(settings), kOk);
  EXPECT_TRUE(std::regex_search(text, std::regex("device +host +gradients"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("head .* \\.+\\+##\\.+=\n"))) << text;
  const Ran ran = run_worker(kSmallPlan, set(settings));
  EXPECT_EQ(value_at(ran.document, "moves.step_to_device_bytes.0"), moves["step_to_device_bytes"]);
  EXPECT_EQ(value_at(ran.document, "moves.foretold_bytes"),
            value_at(ran.document, "moves.to_device_bytes"));
  EXPECT_EQ(value_at(ran.document, "memory.peak_bytes.0"), json["memory"]["peak_bytes"]);
  if (!moves["least_bytes"].is_null()) {
    EXPECT_EQ(value_at(ran.document, "moves.regret_bytes.0"), moves["regret_bytes"]);
    EXPECT_EQ(value_at(ran.document, "moves.least_bytes.0"), moves["least_bytes"]);
    EXPECT_EQ(value_at(ran.document, "moves.bound_bytes.0"), moves["least_bytes"]);
    EXPECT_EQ(value_at(ran.document, "moves.gap.0"), 0);
    EXPECT_TRUE(value_at(ran.document, "moves.regret_reason").is_null());
    EXPECT_TRUE(
        std::regex_search(ran.output, std::regex("moves .* prefetches used; .* over the least")))
        << ran.output;
  }
  EXPECT_NE(text.find(": enough"), std::string::npos) << text;
  const int64_t one = json["memory"]["at_peak"]["activation"];  // below what any policy needs
  const std::string device = "memory.device=" + std::to_string(one);
  const std::string page = explained(set({settings[0], device, settings[2]}), kOk);
  EXPECT_NE(page.find(": NOT ENOUGH"), std::string::npos) << page;
  EXPECT_NE(page.find("no policy chooses"), std::string::npos) << page;
}

TEST(Explain, SaysHowManySamplesThereAreOrWhyItCannot) {
  const tests::Folder folder;
  const std::string corpus = folder.write("corpus.txt", std::string(20'000, 'a') + "\n");
  const Arguments text = {"data.kind=text", "model.vocab=256", "data.path=" + corpus};
  const Json json = Json::parse(explained(set(text, {"--json", "-"}), kOk));
  const std::string samples = json["data"]["samples"].dump();
  EXPECT_NE(explained(set(text), kOk).find(samples + " training"), std::string::npos);
  const Ran ran = run_worker(kSmallPlan, set(text));
  EXPECT_NE(ran.output.find(", " + samples + " samples"), std::string::npos) << ran.output;
  const Arguments gone = {"data.kind=text", "model.vocab=256", "data.path=/no/corpus"};
  EXPECT_NE(explained(set(gone), kOk).find("Data  cannot be read here: "), std::string::npos);
}

TEST(Explain, ExplainsWhatARunThenRecords) {
  for (const Arguments& plan :
       std::vector<Arguments>{{"parallel.data=2", "parallel.zero=3"},
                              {"parallel.pipeline.size=2", "train.micro_batch=2"},
                              {"parallel.sequence.mode=ring", "parallel.sequence.size=3"},
                              {"parallel.data.size=2", "parallel.data.mode=parameter_server"},
                              {"model.kind=moe_gpt", "parallel.data=2", "parallel.expert.size=2"},
                              {"model.kind=vit", "model.vocab=256", "parallel.tensor.mode=2d",
                               "parallel.tensor.size=4", "model.sequence=65"}}) {
    const Json told = Json::parse(explained(set(plan, {"--json", "-"}), kOk));
    const Ran ran = run_worker(kSmallPlan, set(plan, {"--no-certify"}));
    ASSERT_EQ(ran.code, kOk) << ran.output;
    EXPECT_EQ(told["parameters"], ran.document["parameters"]);
    EXPECT_EQ(told["data"], ran.document["data"]);
    EXPECT_EQ(told["flops_per_step"], ran.document["flops_per_step"]);
    EXPECT_EQ(told["flops_per_token"], ran.document["flops_per_token"]);
    EXPECT_EQ(told["flops_optimizer"], 0);
    const Json& memory = ran.document["memory"];
    const auto rank = told["memory"]["rank"].get<size_t>();
    EXPECT_EQ(told["memory"]["at_peak"], memory["at_peak"][rank]) << plan[0];
    EXPECT_EQ(told["memory"]["peak_bytes"], value_at(ran.document, "memory.peak_bytes.max"));
  }
}

/// Of a plan with hidden matrices that are iterated, simulated on all its ranks.
void expect_optimizer(const Arguments& settings) {
  Arguments plan = {"optimizer.kind=muon"};
  plan.insert(plan.end(), settings.begin(), settings.end());
  const Json told = Json::parse(explained(set(plan, {"--json", "-"}), kOk));
  const Ran ran = run_worker(kSmallPlan, set(plan, {"--world", "simulated"}));
  ASSERT_EQ(ran.code, kOk) << ran.output;
  EXPECT_GT(told["flops_optimizer"], 0);
  EXPECT_EQ(told["flops_optimizer"], ran.document["flops_optimizer"]) << settings[0];
}

// Ranks that hold parts of a matrix share them out, so that none of them stands for the others.
TEST(Explain, CountsTheIterationsOfMatricesOfAllRanks) {
  expect_optimizer({"model.kind=moe_gpt", "parallel.data=4", "parallel.expert.size=2",
                    "parallel.zero=3", "parallel.pipeline.size=2", "train.micro_batch=1"});
  const std::string text = explained(set({"optimizer.kind=muon"}), kOk);
  EXPECT_NE(text.find("FLOP in the optimizer\n"), std::string::npos) << text;
  EXPECT_EQ(explained({}, kOk).find("in the optimizer"), std::string::npos);
}

TEST(Explain, CountsTheIterationsOfEverySharding) {
  for (const Arguments& plan : std::vector<Arguments>{
           {"parallel.data=2"},
           {"parallel.data=2", "parallel.zero=2"},
           {"parallel.data=3", "train.batch=9", "parallel.zero=1"},
           {"parallel.tensor.mode=2d", "parallel.tensor.size=4", "parallel.data=2",
            "parallel.layers=[{from=0,to=0,mode=\"1d\"}]"},
           {"parallel.data=3", "train.batch=9", "parallel.zero=3"},
           {"parallel.data.size=3", "train.batch=9", "parallel.data.mode=parameter_server",
            "parallel.data.servers=2"},
           {"parallel.tensor.mode=1d-sp", "parallel.tensor.size=2", "parallel.data=2",
            "parallel.zero=1"},
           {"parallel.tensor.mode=2.5d", "parallel.tensor.size=8", "parallel.tensor.depth=2"},
           {"parallel.tensor.mode=3d", "parallel.tensor.size=8"},
           {"model.kind=moe_gpt", "parallel.data=2", "parallel.expert.size=2"},
           {"parallel.sequence.mode=ring", "parallel.sequence.size=2", "parallel.pipeline.size=2",
            "train.micro_batch=2"},
           {"model.kind=vit", "model.vocab=256", "model.sequence=65", "parallel.tensor.mode=1d",
            "parallel.tensor.size=4"}}) {
    expect_optimizer(plan);
  }
}

// 128 ranks of one replica: the first of each tensor group stands for it.
TEST(Explain, ExplainsALargeReplicaByTheFirstOfEachTensorGroup) {
  const Arguments plan = {"parallel.tensor.mode=2d",     "parallel.tensor.size=4",
                          "parallel.sequence.mode=ring", "parallel.sequence.size=16",
                          "parallel.pipeline.size=2",    "train.micro_batch=8"};
  const Json told = Json::parse(explained(set(plan, {"--json", "-"}), kOk));
  EXPECT_EQ(told["memory"]["simulated_ranks"], 32);
  const Ran ran = run_worker(kSmallPlan, set(plan, {"--world", "simulated"}));
  EXPECT_EQ(told["flops_per_step"], ran.document["flops_per_step"]);
  EXPECT_EQ(told["memory"]["peak_bytes"], value_at(ran.document, "memory.peak_bytes.max"));
}

TEST(Explain, SaysWhyExplanationsCannotBeWritten) {
  const tests::Folder folder;
  const auto expect = [&](const std::string& file, const std::string& why) {
    const std::string output = explained({"--json", file}, kUsage);
    EXPECT_NE(output.find("--json " + file), std::string::npos) << output;
    EXPECT_NE(output.find(why), std::string::npos) << output;
  };
  expect(folder.path(""), "is a folder");
  expect(folder.path("none/a.json"), "there is no folder");
}

TEST(Explain, PrintsWhatTheModelIsInHumanUnits) {
  const std::string output = explained({}, kOk);
  const Ran ran = run_worker(kSmallPlan);
  // 2 (12 H^2 + 13 H) + (V + S) H + 2 H of H = 32, V = 64, S = 16.
  for (const char* part : {"28 k parameters", "embedding", "2.56 k", "FLOP a token"}) {
    EXPECT_NE(output.find(part), std::string::npos) << part << " in " << output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << " in " << ran.output;
  }
  EXPECT_EQ(ran.document["parameters"]["total"], 28032);
  for (const std::string& text : {output, ran.output}) {
    EXPECT_FALSE(std::regex_search(text, std::regex("\\b[0-9]{7,}\\b"))) << text;
  }
}

}  // namespace
}  // namespace kuafu
