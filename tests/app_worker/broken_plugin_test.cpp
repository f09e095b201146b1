// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins that do what none may (tests/plugin/broken_rules.cpp): one error that names the plug-in,
// what it gave and what is allowed; no backtrace, no abort, nothing that hangs.

#include <gtest/gtest.h>

#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using test::expect_has;
using tests::Arguments;
using tests::built;
using tests::Ended;
using tests::kSmallPlan;
using tests::Ran;
using tests::run_worker;
using tests::set;

const std::string& library() {
  static const std::string path = built("plugins/broken_rules.so");
  return path;
}

/// Failed while it ran, for this reason, told without LibTorch's stack.
void expect_failed(const Ran& ran, const std::string& words) {
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_EQ(value_at(ran.document, "status"), "failed") << ran.output;
  const std::string reason = ran.document.value("reason", "");
  expect_has(reason, library());
  expect_has(reason, words);
  EXPECT_EQ(reason.find('\n'), std::string::npos) << reason;
  EXPECT_EQ(ran.output.find("frame #"), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find("terminate called"), std::string::npos) << ran.output;
}

Ran trained(const Arguments& settings, const Arguments& more = {}, const Arguments& launcher = {}) {
  Arguments all = {"--plugin", library()};
  all.insert(all.end(), more.begin(), more.end());
  return run_worker(kSmallPlan, set(settings, all), launcher);
}
Ran by(const std::string& rule, const Arguments& more = {}, const Arguments& launcher = {}) {
  return trained({"optimizer.kind=" + rule, "parallel.data=2", "parallel.zero=1"}, more, launcher);
}

struct Broken {
  const char* rule;
  const char* words;
};

void expect_told(const Broken& b, const Arguments& more = {}) {
  const Ran ran = by(b.rule, more);
  expect_failed(ran, b.words);
  const std::string reason = ran.document.value("reason", "");
  expect_has(reason, text("optimizer \"", b.rule, "\""));
  expect_has(reason, text("optimizer.kind = \"", b.rule, "\": plug-in ", library()));
}

TEST(BrokenPlugin, RuleIsTold) {
  expect_told({"few_sums", "measure gave Double"});
  expect_told({"throws_int", "update threw something that is no std::exception"});
}

// With the line of the plan that chose it.
TEST(BrokenPlugin, RuleIsToldWithTheKeyThatChoseIt) {
  const std::string plan = text(kSmallPlan, "[optimizer]\nlr = 0.1\nkind = \"throws_error\"\n");
  const Ran ran = run_worker(plan, {"--plugin", library()});
  expect_failed(ran, "plan.toml:15: optimizer.kind = \"throws_error\": plug-in ");
}

// What a user can mend, with the key that is to be mended.
TEST(BrokenPlugin, RuleThatRefusesIsToldWithItsFile) {
  const std::string plan = text(kSmallPlan, "[optimizer]\nlr = 0.7\nkind = \"refuses\"\n");
  const Ran ran = run_worker(plan, {"--plugin", library()});
  EXPECT_EQ(ran.code, 2) << ran.output;
  expect_has(ran.document.value("reason", ""), text("plan.toml:14: plug-in ", library(),
                                                    ": optimizer \"refuses\": optimizer.lr = 0.7"));
}

TEST(BrokenPlugin, EveryBrokenRuleIsTold) {
  for (const Broken& b :
       {Broken{"no_sums", "measure gave no tensor; allowed: Double"},
        Broken{"no_ratios", "ratios gave no tensor"}, Broken{"wide_ratios", "ratios gave Double"},
        Broken{"replaces", "slot \"u\" is replaced by another tensor"},
        Broken{"resizes", "slot \"u\" is changed from"},
        Broken{"changes_what_it_reads", "update changes slot \"u\", which it only reads"},
        Broken{"uses_what_it_has_not", "update threw an error of LibTorch: "},
        Broken{"throws_error", "update threw an exception: no luck today"},
        Broken{"wrong_shapes", "update threw an error of LibTorch: "}}) {
    expect_told(b);
    expect_told(b, {"--world", "simulated"});
  }
}

// A certificate costs no results: what was measured stands, and is not called certified.
TEST(BrokenPlugin, RuleThatFailsOnlyWhileItIsCertifiedCostsNoResults) {
  for (const Broken& b :
       {Broken{"throws_in_f64", "update threw an exception: no doubles"},
        Broken{"empty_slot", "its formula left no tensor in the slot \"u\" of"},
        Broken{"no_formula", "its formula threw an exception: no such formula"}}) {
    const Ran ran = by(b.rule, {"--certify"});
    EXPECT_EQ(ran.code, 0) << ran.output;
    EXPECT_EQ(ran.document.value("status", ""), "ok");
    EXPECT_EQ(ran.document["loss"].size(), 3u) << ran.document.dump();
    EXPECT_EQ(value_at(ran.document, "certificate.verdict"), "not_run");
    const Json reason = value_at(ran.document, "certificate.reason");
    expect_has(reason.get<std::string>(), b.words);
    expect_has(reason.get<std::string>(),
               text("plug-in ", library(), ": optimizer \"", b.rule, "\""));
  }
}

TEST(BrokenPlugin, WhatIsNoExceptionIsToldOfEveryKind) {
  for (const Arguments& settings :
       {Arguments{"parallel.tensor.mode=throws_int", "parallel.tensor.size=2"},
        Arguments{"model.kind=throws_int"},
        Arguments{"parallel.sequence.mode=throws_int", "parallel.sequence.size=2"},
        Arguments{"parallel.pipeline.schedule=throws_int", "parallel.pipeline.size=2"},
        Arguments{"memory.policy=throws_int", "memory.device=1 GB"}}) {
    const Ran ran = trained(settings);
    EXPECT_TRUE(ran.code == 1 || ran.code == 2) << ran.output;
    expect_has(ran.document.value("reason", ""), library());
    expect_has(ran.document.value("reason", ""), "no std::exception; allowed");
    EXPECT_EQ(ran.output.find("terminate called"), std::string::npos) << ran.output;
  }
}

TEST(BrokenPlugin, WhatMakesNothingIsToldOfEveryKind) {
  for (const Arguments& settings :
       {Arguments{"parallel.tensor.mode=makes_nothing", "parallel.tensor.size=2"},
        Arguments{"model.kind=makes_nothing"},
        Arguments{"parallel.sequence.mode=makes_nothing", "parallel.sequence.size=2"}}) {
    const Ran ran = trained(settings);
    EXPECT_EQ(ran.code, 2) << ran.output;
    expect_has(ran.document.value("reason", ""), library());
    expect_has(ran.document.value("reason", ""), "\"makes_nothing\": it made nothing; allowed: a");
  }
}

TEST(BrokenPlugin, EndsEveryMpiRank) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "no MPI";
  expect_failed(by("throws_int", {}, tests::mpirun(2)), "no std::exception");
  expect_failed(
      trained({"parallel.tensor.mode=throws_int", "parallel.tensor.size=2"}, {}, tests::mpirun(2)),
      "no std::exception");
}

/// `kuafu fuzz` or `kuafu matrix` with the plug-in.
Ended tried(Arguments words) {
  words.insert(words.begin(), built("bin/kuafu"));
  words.insert(words.end(), {"--plugin", library()});
  return tests::Child(words).wait();
}

const std::vector<Arguments>& throwing() {
  static const std::vector<Arguments> all = {
      {"optimizer.kind=throws_int"},
      {"model.kind=throws_int"},
      {"parallel.tensor.mode=throws_int", "parallel.tensor.size=2"},
      {"parallel.sequence.mode=throws_int", "parallel.sequence.size=2"},
      {"parallel.pipeline.schedule=throws_int", "parallel.pipeline.size=2"}};
  return all;
}

void expect_found_by_fuzz(const std::string& world, const Arguments& settings) {
  const Ended ended = tried(set(settings, {"fuzz", "--world", world}));
  EXPECT_EQ(ended.code, 1) << ended.output;
  expect_has(ended.output, world + ": error, ");
  expect_has(ended.output, library());
  expect_has(ended.output, "threw something that is no std::exception");
}

TEST(BrokenPlugin, IsAFindingOfFuzz) { expect_found_by_fuzz("threads", throwing()[2]); }

TEST(BrokenPlugin, EveryOneIsAFindingOfFuzzUnderMpiAndOfCampaigns) {
  for (const Arguments& settings : throwing()) expect_found_by_fuzz("threads", settings);
  if (build_info::kMpi.found) {
    expect_found_by_fuzz("mpi", throwing()[0]);
    expect_found_by_fuzz("mpi", throwing()[2]);
  }
  // Plans that are drawn, placed and made smaller.
  const Ended ended =
      tried({"fuzz", "--plans", "24", "--seconds", "60", "--world", "threads", "--ranks", "4"});
  EXPECT_EQ(ended.code, 1) << ended.output;
  expect_has(ended.output, "threads  error  ");  // before a run, or in it
  expect_has(ended.output, "plug-in " + library() + ": ");
  EXPECT_EQ(ended.output.find("crash"), std::string::npos) << ended.output;
}

TEST(BrokenPlugin, IsDifferentInAMatrix) {
  const tests::Folder folder;
  const Ended ended =
      tried({"matrix", "--filter", "optimizer=throws_int", "--filter", "schedule=throws_int",
             "--share", "0.2", "--triples", "0", "--out", folder.path("out")});
  EXPECT_EQ(ended.code, 1) << ended.output;
  expect_has(ended.output, "DIFFERENT  ");
  expect_has(ended.output, "failed: plug-in " + library());
  EXPECT_EQ(ended.output.find("the process "), std::string::npos) << ended.output;
}

Ended listed(const std::string& kind, const std::string& name) {
  return tests::Child({built("bin/kuafu-worker"), "list", "--plugin", library()},
                      {{"KUAFU_TEST_KIND", kind}, {"KUAFU_TEST_NAME", name}})
      .wait();
}

TEST(BrokenPlugin, RuleThatDeclaresOtherSlotsEachTimeIsTold) {
  const Ended ended =
      tests::Child({built("bin/kuafu-worker"), "run", "/dev/null", "--plugin", library(), "--set",
                    "data.kind=synthetic", "--set", "optimizer.kind=other_slots"},
                   {{"KUAFU_TEST_KIND", "other_slots"}})
          .wait();
  EXPECT_NE(ended.code, 0) << ended.output;
  expect_has(ended.output, library());
  expect_has(ended.output, "make declares the slots u1 where it declared u0 for the same plan");
}

TEST(BrokenPlugin, NamesThatPlansCannotHaveAreRefused) {
  for (const auto& [kind, name] :
       std::vector<std::pair<std::string, std::string>>{{"optimizer", "a.b"},
                                                        {"tensor", "../a"},
                                                        {"model", "\xff"},
                                                        {"sequence", ""},
                                                        {"schedule", std::string(300, 'x')}}) {
    const Ended ended = listed(kind, name);
    EXPECT_EQ(ended.code, 2) << ended.output;
    expect_has(ended.output, "plug-in " + library() + ": ");
    if (!name.empty())
      expect_has(ended.output, "is no name; allowed: a letter or digit, then letters");
    EXPECT_LT(ended.output.size(), 600u) << ended.output;
  }
  EXPECT_EQ(listed("optimizer", "Fine-name_2").code, 0);
  const Ended thrown = listed("throw", "");
  EXPECT_EQ(thrown.code, 2) << thrown.output;
  expect_has(thrown.output, "plug-in " + library() + ": add threw something that is no");
}

// FLOPs and bytes stand beside the proof: work that is in neither refutes the row.
TEST(BrokenPlugin, OpsThatNothingBooksRefuteACertificate) {
  const Ran ended = by("works_aside", {"--certify"});
  EXPECT_EQ(ended.code, 1) << ended.output;
  expect_has(ended.output, "aten::addcmul_ (f32 ");
  expect_has(ended.output, "is booked by nothing");
}

TEST(BrokenPlugin, OpsThatNothingBooksFailConformance) {
  const Ended ended = tests::Child({built("bin/kuafu"), "conformance", "--optimizer", "unbooked",
                                    "--sizes", "1", "--plugin", library()})
                          .wait();
  EXPECT_EQ(ended.code, 1) << ended.output;
  expect_has(ended.output, "aten::addcmul_");
  expect_has(ended.output, "is booked by nothing");
}

}  // namespace
}  // namespace kuafu
