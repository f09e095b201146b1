// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/config.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/plan.h"
#include "tests/plan/random_plan.h"

namespace kuafu {
namespace {

Plan parse(const std::string& toml) { return parse_plan(toml, "p", builtin_tensor_modes()); }

std::string hash_of(const std::string& toml) {
  return plan_hash(resolve(parse(toml), 1, builtin_tensor_modes()));
}

TEST(ToToml, ReadsBackAsTheSamePlan) {
  EXPECT_EQ(parse(to_toml(Plan{})), Plan{});
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomPlan random = random_plan(seed);
    EXPECT_EQ(parse(to_toml(random.plan)), random.plan) << to_toml(random.plan);
    const Plan resolved = resolve(random.plan, random.ranks, builtin_tensor_modes());
    EXPECT_EQ(parse(to_toml(resolved)), resolved) << to_toml(resolved);
  }
}

// A document names no key of another kind; what looks values up finds all of them.
TEST(ToToml, LeavesKeysOfOtherKindsOut) {
  const Plan plan = parse("[optimizer]\nkind = \"sgd\"\n");
  const std::string printed = to_toml(plan), whole = whole_toml(plan);
  EXPECT_NE(printed.find("momentum = 0.9"), std::string::npos);
  for (const char* other : {"beta1 = 0.9", "ratio_max = 10.0", "experts = 8", "random_second ="}) {
    EXPECT_EQ(printed.find(other), std::string::npos) << other;
    EXPECT_NE(whole.find(other), std::string::npos) << other;
  }
  EXPECT_EQ(parse_values(whole, "p"), plan);
}

TEST(PlanHash, DependsOnTheMeaningNotOnTheWriting) {
  const std::string hash = hash_of("[model]\nlayers = 3\n[train]\nbatch = 4\n");
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash, hash_of("train = { batch = 4 } # the batch\nmodel.layers = 3\n"));
  EXPECT_EQ(hash, hash_of("[model]\nlayers = 3\nheads = 4\n[train]\nbatch = 4\nmicro_batch = 4\n"));
  EXPECT_NE(hash, hash_of("[model]\nlayers = 3\n[train]\nbatch = 8\n"));
}

TEST(PlanHash, TakesAutoForWhatItStandsFor) {
  const auto same = [](const std::string& keys, const std::string& spelled) {
    EXPECT_EQ(hash_of(keys + spelled + "\n"), hash_of(keys)) << spelled;
  };
  const auto other = [](const std::string& keys, const std::string& spelled) {
    EXPECT_NE(hash_of(keys + spelled + "\n"), hash_of(keys)) << spelled;
  };
  const std::string optimizer = "[optimizer]\nkind = ";
  const std::string lamb = optimizer + "\"lamb\"\n", lars = optimizer + "\"lars\"\n";
  const std::string adamw = optimizer + "\"adamw\"\n", muon = optimizer + "\"muon\"\n";
  same(lamb, "exclude = \"vectors\"");
  same(lars, "exclude = \"vectors\"");
  same(muon, "exclude = \"vectors\"");
  same(adamw, "exclude = \"none\"");
  other(lamb, "exclude = \"none\"");
  other(adamw, "exclude = \"vectors\"");
  same(lamb, "bound = \"ratio\"");
  same(lamb, "bound = \"ratio\"\nratio_min = 0\nratio_max = 10");
  same(lars, "bound = \"none\"");
  other(lamb, "bound = \"none\"");
  other(lars, "bound = \"ratio\"");
  const std::string cosine = "[train]\nsteps = 7\n[optimizer]\nschedule = \"cosine\"\n";
  same(cosine, "schedule_steps = 7");
  other(cosine, "schedule_steps = 8");
  const std::string model = "[model]\nheads = 4\nhidden = 32\n";
  same(model, "kv_heads = 4\nffn = 128");
  same(model + "kind = \"opt\"\n", "embedding = 32");
  other(model, "ffn = 64");
  same("[train]\n", "loss_scale = 1");
  same("model.dtype = \"f16\"\n[train]\n", "loss_scale = \"dynamic\"");
  other("model.dtype = \"f16\"\n[train]\n", "loss_scale = 1");
}

// The identity of recorded cases: a new key or default changes it, and with it every stored id.
TEST(PlanHash, OfTheDefaultPlanIsStable) { EXPECT_EQ(hash_of(""), "9b4f409114189ef8"); }

TEST(PlanHash, ChangesWithEveryKey) {
  const Plan defaults;
  std::set<std::string> hashes = {plan_hash(defaults)};
  size_t changes = 0;
  for (const plan::Key& key : plan::keys()) {
    Plan plan;
    std::visit(
        [](auto* slot) {
          using T = std::remove_pointer_t<decltype(slot)>;
          if constexpr (std::is_same_v<T, bool>) *slot = !*slot;
          if constexpr (std::is_same_v<T, std::string>) *slot += "x";
          if constexpr (std::is_same_v<T, DType>) *slot = DType::kF64;
          if constexpr (std::is_same_v<T, Recompute>) *slot = Recompute::kFull;
          if constexpr (std::is_same_v<T, std::optional<int64_t>>) *slot = 1;
          if constexpr (std::is_same_v<T, std::vector<int64_t>>) *slot = {1};
          if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t> ||
                        std::is_same_v<T, double>) {
            *slot += 2;  // a loss scale of 1 is what "auto" stands for
          }
        },
        key.member(plan));
    EXPECT_NE(plan, defaults) << key.name;
    if (key.name == "data.path" || key.name == "data.hash" || key.name == "data.tokenizer") {
      EXPECT_EQ(plan_hash(plan), plan_hash(defaults)) << key.name;
      continue;
    }
    EXPECT_TRUE(hashes.insert(plan_hash(plan)).second) << key.name;
    ++changes;
  }
  EXPECT_EQ(hashes.size(), changes + 1);
}

TEST(PlanKeys, AreDocumentedOnceWithTheirDefault) {
  std::set<std::string> names;
  for (const KeyDoc& doc : plan_keys()) {
    EXPECT_TRUE(names.insert(doc.key).second) << doc.key;
    EXPECT_FALSE(doc.type.empty()) << doc.key;
    EXPECT_FALSE(doc.meaning.empty()) << doc.key;
    const std::string one = doc.key + " = " + doc.default_value + "\n";
    EXPECT_EQ(parse_values(one, "p"), Plan{}) << one;
  }
  EXPECT_EQ(names.size(), plan::keys().size());
}

// Names that scripts of others read.
TEST(PlanKeys, KeepTheirNames) {
  for (const char* key : {"model.kind",
                          "model.layers",
                          "model.hidden",
                          "model.heads",
                          "model.vocab",
                          "model.sequence",
                          "model.dtype",
                          "parallel.data.size",
                          "parallel.pipeline.size",
                          "parallel.tensor.mode",
                          "parallel.tensor.size",
                          "parallel.tensor.depth",
                          "parallel.sequence.mode",
                          "parallel.sequence.size",
                          "parallel.expert.size",
                          "memory.policy",
                          "memory.recompute",
                          "memory.device",
                          "optimizer.kind",
                          "optimizer.lr",
                          "data.kind",
                          "data.path",
                          "train.batch",
                          "train.micro_batch",
                          "train.steps",
                          "train.seed"}) {
    EXPECT_NE(plan::find_key(key), nullptr) << key << " is a name that must stay";
  }
}

TEST(PlanDocs, ShowAPlanThatResolves) {
  const std::string page = plan::markdown();
  const size_t start = page.find("```toml\n") + 8;
  const Plan shown = parse(page.substr(start, page.find("```", start) - start));
  EXPECT_EQ(num_ranks(resolve(shown, 16, builtin_tensor_modes())), 16);
}

TEST(PlanDocs, AreThoseOfTheKeys) {
  const std::string path = std::string(build_info::kSourceDir) + "/docs/plan.md";
  const std::string fresh = std::string(build_info::kBinaryDir) + "/plan.md";
  if (read_file(path, "page") == plan::markdown()) return;
  std::ofstream(fresh) << plan::markdown();
  FAIL() << path << " is out of date; copy " << fresh << " over it";
}

}  // namespace
}  // namespace kuafu
