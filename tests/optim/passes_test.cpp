// SPDX-License-Identifier: Apache-2.0
//
// How often the loops of an update really go over memory: pages that fault at every visit.

#include <gtest/gtest.h>

#include <map>

#include <ATen/ATen.h>

#include "kuafu/base/kernel_choice.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/optim/rule.h"
#include "tests/optim/watched_pages.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kCanWatch = true;
#else
constexpr bool kCanWatch = false;  // the fault code is the processor's; sanitizers have handlers
#endif

namespace kuafu {
namespace {

using tests::PageVisits;
using tests::WatchedPages;

using Visits = std::map<std::string, PageVisits>;  // by "w", "g" or a slot

/// What one more step of a rule does to a parameter; `is_fused`: three layers in turns.
Visits visits_of_step(const std::string& kind, const OptimizerRules& rules, bool is_fused,
                      at::ScalarType gradients = at::kFloat) {
  Param p;
  p.name = "p";
  p.global = p.padded = {64, 3 * 1024};
  p.layout = Layout::replicated(2);
  if (is_fused) p.layers = {.parts = 3, .width = 256};
  p.value = at::full({64, 3 * 1024}, 0.5, at::kFloat);
  const auto optimizer = make_optimizer({.kind = kind, .weight_decay = 0.1}, rules);
  std::vector<ParamShard> shards(1);
  shards[0].value = p.value;
  shards[0].grad = at::full(p.value.sizes(), 0.25, gradients);
  shards[0].param = &p;
  optimizer->step(shards, 1e-3);
  std::map<std::string, Tensor> tensors = {{"w", p.value}, {"g", shards[0].grad}};
  for (const SlotTensor& s : optimizer->state().tensors) tensors[s.slot] = s.tensor;
  WatchedPages pages;
  for (const auto& [name, t] : tensors) pages.watch(t);
  optimizer->step(shards, 1e-3);
  Visits visits;
  for (const auto& [name, t] : tensors) visits[name] = pages.visits(t);
  return visits;
}

int64_t bytes_of(const Visits& visits) {
  int64_t bytes = 0;
  for (const auto& [name, v] : visits) bytes += 4 * (v.reads + v.writes);
  return bytes;
}

std::string said(const Visits& visits) {
  std::string words;
  for (const auto& [name, v] : visits) words += text(name, " ", v.reads, "r ", v.writes, "w  ");
  return words;
}

/// w and moments once to measure and once to update; gradients where they are read.
const std::map<std::string, Visits> kVisits = {
    {"sgd", {{"w", {1, 1}}, {"g", {1, 0}}, {"velocity", {1, 1}}}},
    {"adam", {{"w", {1, 1}}, {"g", {1, 0}}, {"m", {1, 1}}, {"v", {1, 1}}}},
    {"adamw", {{"w", {1, 1}}, {"g", {1, 0}}, {"m", {1, 1}}, {"v", {1, 1}}}},
    {"lars", {{"w", {2, 1}}, {"g", {2, 0}}, {"velocity", {1, 1}}}},
    {"lamb", {{"w", {2, 1}}, {"g", {2, 1}}, {"m", {1, 1}}, {"v", {1, 1}}}}};  // r for g
const std::map<std::string, int64_t> kBytes = {
    {"sgd", 20}, {"adam", 28}, {"adamw", 28}, {"lars", 28}, {"lamb", 40}};

TEST(PassesOverMemory, AreOneToMeasureAndOneToUpdate) {
  if (!kCanWatch || kernel_choice() != KernelChoice::kOwn) GTEST_SKIP() << "own loops alone";
  for (const auto& [kind, expected] : kVisits) {
    for (const bool is_fused : {false, true}) {
      const Visits found = visits_of_step(kind, builtin_optimizers(), is_fused);
      EXPECT_EQ(found, expected) << kind << (is_fused ? ", fused: " : ": ") << said(found);
      EXPECT_EQ(bytes_of(found), kBytes.at(kind)) << kind;
    }
    const Visits half = visits_of_step(kind, builtin_optimizers(), false, at::kBFloat16);
    // LAMB has no room for its direction in a gradient of half precision, and makes it again.
    const Visits::mapped_type once = {1, 0};
    EXPECT_EQ(half.at("g"), kind == "lamb" ? once : expected.at("g"))
        << kind << ", gradients in bf16";
  }
}

/// A rule that looks at some of what it has once more.
OptimizerRules with_look(const std::string& kind, Tensor& (*of)(RulePiece&), bool is_written) {
  OptimizerRules rules("optimizer");
  const auto make = [=](const OptimizerPlan& plan) {
    Rule rule = builtin_optimizers().find(kind).make(plan);
    rule.update = [=, update = rule.update](RulePiece& p, const Rates& rates,
                                            const Tensor& ratios) {
      update(p, rates, ratios);
      Tensor& t = of(p);
      volatile float* x = t.mutable_data_ptr<float>();
      for (int64_t i = 0; i < t.numel(); ++i) {
        const float value = x[i];
        if (is_written) x[i] = value;
      }
    };
    rule.slot_uses = {};  // it has them in both passes
    return rule;
  };
  rules.add(kind, "with a pass more", {{}, make});
  return rules;
}

TEST(PassesOverMemory, OneMoreIsSeen) {
  if (!kCanWatch || kernel_choice() != KernelChoice::kOwn) GTEST_SKIP() << "own loops alone";
  for (const auto& [kind, expected] : kVisits) {
    Visits more = expected;
    ++more.at("w").reads;
    const auto weights = [](RulePiece& p) -> Tensor& { return p.value; };
    EXPECT_EQ(visits_of_step(kind, with_look(kind, weights, false), false), more) << kind;
    const std::string slot = kind == "sgd" || kind == "lars" ? "velocity" : "m";
    more = expected;
    ++more.at(slot).reads, ++more.at(slot).writes;
    const auto first = [](RulePiece& p) -> Tensor& { return p.slots[0]; };
    EXPECT_EQ(visits_of_step(kind, with_look(kind, first, true), false), more) << kind;
  }
}

}  // namespace
}  // namespace kuafu
