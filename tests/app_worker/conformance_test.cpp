// SPDX-License-Identifier: Apache-2.0
//
// kuafu-worker conformance on schemes in and out of tree.

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <set>
#include <tuple>

#include "app/worker/exit_code.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::built;
using tests::Ended;

/// `conformance` and what it wrote to --json.
struct Checked : Ended {
  Json document;
};

Checked check(const tests::Arguments& arguments, const char* program = "bin/kuafu-worker") {
  const tests::Folder folder;
  const std::string file = folder.path("findings.json");
  tests::Arguments command = {built(program), "conformance"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"--json", file});
  Checked checked{tests::Child(command).wait(std::chrono::seconds(400)), {}};
  std::ifstream in(file);
  if (in) checked.document = Json::parse(in);
  return checked;
}

TEST(Conformance, HoldsForAPluginThatIsRight) {
  const Checked c = check({"--plugin", built("plugins/chain_1d.so"), "--sizes", "1,2,3"});
  ASSERT_EQ(c.code, kOk) << c.output;
  EXPECT_EQ(c.document["status"], "ok");
  EXPECT_EQ(c.document["failed"], 0);
  EXPECT_EQ(c.document["passed"], c.document["findings"].size());
  for (const Json& f : c.document["findings"]) {
    EXPECT_EQ(f["name"], "1d-chain");  // without names, what the plug-in brought
    EXPECT_EQ(f["ok"], true);
    EXPECT_EQ(f["detail"], "");
  }
}

TEST(Conformance, FailsForAPluginThatIsBroken) {
  const Checked c = check({"--plugin", built("plugins/broken_1d.so"), "--sizes", "1,2"});
  ASSERT_EQ(c.code, kFailed) << c.output;
  EXPECT_EQ(c.document["status"], "failed");
  std::set<std::string> failed;
  for (const Json& f : c.document["findings"]) {
    if (f["ok"] == true) continue;
    failed.insert(f["check"].get<std::string>());
    EXPECT_EQ(f["where"], "tensor2");  // one rank has nothing to sum
    EXPECT_NE(f["detail"], "");
  }
  EXPECT_EQ(failed, (std::set<std::string>{"half", "layers", "products", "training"}));
  EXPECT_NE(c.output.find("input gradient of an expand layer"), std::string::npos) << c.output;
}

TEST(Conformance, FailsForSchemesThatAreWrongInF32OrLateOrWide) {
  for (const char* scheme : {"1d-tenth", "1d-late", "1d-wide"}) {
    const Checked c = check({scheme, "--plugin", built("plugins/faults.so"), "--sizes", "2"});
    EXPECT_EQ(c.code, kFailed) << scheme << c.output;
    std::set<std::string> failed;
    for (const Json& f : c.document["findings"]) {
      if (f["ok"] == false) failed.insert(f["check"].get<std::string>());
    }
    EXPECT_TRUE(failed.contains("training")) << scheme << c.output;
  }
}

TEST(Conformance, ChecksWhatIsNamed) {
  const Checked c = check({"2d", "3d", "--sizes", "1,4,8"});
  ASSERT_EQ(c.code, kOk) << c.output;
  std::set<std::string> meshes;
  for (const Json& f : c.document["findings"]) meshes.insert(f["where"].get<std::string>());
  EXPECT_EQ(meshes, (std::set<std::string>{"dep1 x row1 x col1", "dep1 x row2 x col2",
                                           "x1 x y1 x z1", "x2 x y2 x z2"}));
}

/// Shapes on which a check found something wrong.
std::set<std::string> failed_shapes(const Checked& c, const std::string& check) {
  std::set<std::string> shapes;
  for (const Json& f : c.document["findings"]) {
    if (f["ok"] == false && f["check"] == check) shapes.insert(f["shape"].get<std::string>());
  }
  return shapes;
}

TEST(Conformance, NamesTheShapesFromWhichOnASchemeIsWrong) {
  const Checked c = check({"1d-batch-64", "--plugin", built("plugins/from_64.so"), "--sizes", "2"});
  EXPECT_EQ(c.code, kFailed) << c.output;
  EXPECT_EQ(failed_shapes(c, "products"),
            (std::set<std::string>{"B 65, S 1, H 5, F 14, V 255", "B 513, S 2, H 3, F 8, V 7"}));
  EXPECT_NE(c.output.find("products of 1d-batch-64 on tensor2, B 65, S 1, H 5, F 14, V 255"),
            std::string::npos)
      << c.output;
}

TEST(Conformance, FindsSchedulesThatDropOrSwapAMicroBatch) {
  for (const auto& [name, says] :
       {std::pair{"drops-one", "is missing"}, std::pair{"swaps-two", "the schedule deadlocks"}}) {
    const Checked c =
        check({"--schedule", name, "--plugin", built("plugins/from_64.so"), "--sizes", "2,3"});
    EXPECT_EQ(c.code, kFailed) << c.output;
    for (const Json& f : c.document["findings"]) EXPECT_EQ(f["where"], "pipeline2");  // no larger
    EXPECT_TRUE(failed_shapes(c, "timetable").contains("5 micro-batches, 1 stage a rank"))
        << c.output;
    EXPECT_NE(c.output.find(says), std::string::npos) << c.output;
  }
}

// A broken model on many ranks takes minutes: what is found is told at once, and it ends there.
TEST(ConformanceWhole, TellsAtOnceAndStopsAtTheFirstSizeThatFails) {
  const tests::Folder folder;
  tests::Child child({built("bin/kuafu-worker"), "conformance", "--model", "gpt-batch-64",
                      "--sizes", "1,2", "--plugin", built("plugins/from_64.so"), "--json",
                      folder.path("findings.json")});
  const auto says = [&](const char* part) {
    return child.output().find(part) != std::string::npos;
  };
  EXPECT_TRUE(
      tests::eventually([&] { return says("one rank: start ."); }, std::chrono::seconds(60)));
  EXPECT_FALSE(says("findings hold"));
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kFailed) << ended.output;
  const Json document = Json::parse(tests::content_of(folder.path("findings.json")));
  EXPECT_EQ(document["status"], "failed");
  for (const Json& f : document["findings"]) EXPECT_EQ(f["where"], "one rank");
}

TEST(Conformance, HoldsForTheTemplateOfASchedule) {
  const Checked c = check({"--plugin", built("plugins/my_schedule.so"), "--sizes", "2,3"});
  EXPECT_EQ(c.code, kOk) << c.output;
  EXPECT_EQ(c.document["findings"][0]["kind"], "schedule");
  EXPECT_EQ(c.document["findings"][0]["name"], "my_schedule");
}

TEST(Conformance, HoldsForTheTemplateOfAPolicy) {
  const Checked c = check({"--plugin", built("plugins/my_policy.so"), "--sizes", "1"});
  EXPECT_EQ(c.code, kOk) << c.output;
  std::set<std::string> checks;
  for (const Json& f : c.document["findings"]) {
    EXPECT_EQ(f["kind"], "policy");
    EXPECT_EQ(f["name"], "my_policy");
    checks.insert(f["check"].get<std::string>());
  }
  EXPECT_EQ(checks, (std::set<std::string>{"moves", "pure", "bytes", "training"}));
}

// Everything about one choice takes long.
TEST(ConformanceWhole, FindsModelsAndSequenceModesThatAreWrongFrom64On) {
  for (const auto& [option, name, shape] :
       {std::tuple{"--model", "gpt-width-64", "layers 1, H 130, N 65, V 17, S 10, B 4"},
        std::tuple{"--sequence", "ring-tokens-64", "B 1, N 1, Nkv 1, D 8, S 66"}}) {
    const Checked c = check({option, name, "--plugin", built("plugins/from_64.so")});
    EXPECT_EQ(c.code, kFailed) << c.output;
    EXPECT_NE(c.output.find(shape), std::string::npos) << c.output;
  }
}

TEST(ConformanceWhole, HoldsForAModelThatBringsNoOracle) {
  const Checked c = check({"--plugin", built("plugins/macaron_alone.so"), "--sizes", "1"});
  EXPECT_EQ(c.code, kOk) << c.output;
  EXPECT_NE(c.output.find("differences"), std::string::npos) << c.output;
}

/// `kuafu conformance` of one of the schedules that never come back.
Checked check_dead_end(const char* schedule, const tests::Arguments& more = {},
                       const char* program = "bin/kuafu-worker") {
  tests::Arguments arguments = {"--schedule", schedule,   "--sizes",
                                "2",          "--plugin", built("plugins/dead_ends.so")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return check(arguments, program);
}

TEST(Conformance, TellsInWhichCheckAPluginCrashed) {
  struct Case {
    const char* schedule;
    int signal;
    const char* says;
  };
  for (const Case& c : {Case{"segfaults", SIGSEGV, "(SIGSEGV, a wrong access to memory)"},
                        Case{"aborts", SIGABRT, "(SIGABRT, a call of abort())"},
                        Case{"divides", SIGFPE, "(SIGFPE, arithmetic such as"},
                        Case{"overflows", SIGSEGV, "(SIGSEGV"}}) {
    const Checked checked = check_dead_end(c.schedule);
    EXPECT_EQ(checked.code, -c.signal) << checked.output;
    EXPECT_NE(checked.output.find(c.says), std::string::npos) << checked.output;
    const std::string where = std::string(" in the middle of: check timetable of schedule \"") +
                              c.schedule +
                              "\" on pipeline2, 1 micro-batches, 1 stage a rank; plug-ins given: " +
                              built("plugins/dead_ends.so") + "\n";
    EXPECT_NE(checked.output.find(where), std::string::npos) << checked.output;
    EXPECT_EQ(checked.document["status"], "unfinished");
  }
}

TEST(Conformance, KeepsWhatItFoundBeforeACrash) {
  const Checked c = check_dead_end("crashes-at-4", {}, "bin/kuafu");
  EXPECT_EQ(c.code, kFailed) << c.output;
  EXPECT_NE(c.output.find("kuafu: failed: the worker was killed by signal 11"), std::string::npos)
      << c.output;
  EXPECT_EQ(c.document["status"], "crashed");
  EXPECT_GT(c.document["passed"], 0);
  EXPECT_EQ(c.document["under_way"].get<std::string>().find("check timetable of schedule"), 0u);
}

TEST(Conformance, SaysWhatASignalInterrupted) {
  const tests::Folder folder;
  const std::string file = folder.path("findings.json");
  tests::Child child({built("bin/kuafu"), "conformance", "--schedule", "hangs", "--sizes", "2",
                      "--plugin", built("plugins/dead_ends.so"), "--json", file});
  ASSERT_TRUE(tests::eventually([&] { return !tests::content_of(file).empty(); },
                                std::chrono::seconds(60)));
  ::kill(child.pid(), SIGINT);
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  EXPECT_NE(ended.output.find("kuafu: interrupted: signal 2 (Interrupt) in the middle of: check "
                              "timetable of schedule \"hangs\""),
            std::string::npos)
      << ended.output;
  EXPECT_EQ(Json::parse(tests::content_of(file))["status"], "interrupted");
  EXPECT_NE(ended.output.find("0 of 0 findings hold, and not all is checked\n"), std::string::npos);
}

TEST(Conformance, TellsOfACrashOfARank) {
  const Checked c = check({"1d-crash", "--sizes", "2", "--plugin", built("plugins/faults.so")});
  EXPECT_EQ(c.code, -SIGABRT) << c.output;
  EXPECT_NE(c.output.find("(SIGABRT, a call of abort()) in the middle of: check "),
            std::string::npos)
      << c.output;
}

TEST(Conformance, IsNotPassedByAPlugInThatEndsTheProcess) {
  const Checked quits = check_dead_end("quits");
  EXPECT_EQ(quits.code, kFailed) << quits.output;
  EXPECT_NE(quits.output.find("something called quick_exit(0)"), std::string::npos) << quits.output;
  const Checked rank =
      check({"1d-exit-at-once", "--sizes", "2", "--plugin", built("plugins/faults.so")});
  EXPECT_EQ(rank.code, kFailed) << rank.output;
  EXPECT_NE(rank.output.find("something called _exit(0)"), std::string::npos) << rank.output;
}

TEST(Conformance, FailsForARefusalWithoutAReason) {
  const Checked c = check_dead_end("refuses");
  EXPECT_EQ(c.code, kFailed) << c.output;
  const std::string detail = c.document["findings"][0]["detail"];
  EXPECT_NE(detail.find("pipeline schedule \"refuses\": make refused without a reason"),
            std::string::npos)
      << c.output;
}

TEST(Conformance, GivesUpWhereACheckTakesTooLong) {
  const Checked c = check_dead_end("hangs", {"--timeout", "1"});
  EXPECT_EQ(c.code, kTimeout) << c.output;
  EXPECT_NE(c.output.find("kuafu: timeout: check timetable of schedule \"hangs\" on pipeline2, 1 "
                          "micro-batches, 1 stage a rank took longer than 1 s (--timeout)\n"),
            std::string::npos)
      << c.output;
  EXPECT_NE(c.output.find("\nschedule  on "), std::string::npos) << c.output;  // so far
  EXPECT_NE(c.output.find("\n0 of 1 findings hold, and not all is checked\n"), std::string::npos)
      << c.output;
  EXPECT_EQ(c.document["status"], "timeout");
  EXPECT_EQ(c.document["failed"], 1);
  EXPECT_EQ(c.document["findings"][0]["detail"], "took longer than 1 s (--timeout)");
}

TEST(Conformance, RefusesSchemesAndSizesThatDoNotExist) {
  struct Case {
    tests::Arguments arguments;
    const char* says;
  };
  for (const Case& c :
       {Case{{"4d"}, "4d"}, Case{{"3d", "--sizes", "4"}, "--sizes"},
        Case{{"1d", "--sizes", "0"}, "0"},
        Case{{"--sequence", "rnig"}, "no sequence mode \"rnig\"; nearest: \"ring\""},
        Case{
            {"--model", "gtp"},
            "no model \"gtp\"; nearest: \"gpt\"; allowed: \"gpt\", \"moe_gpt\", \"opt\", \"bert\""},
        Case{{"--model", "gtp"}, "; or give the plug-in that has it with --plugin FILE"},
        Case{{"--model", "macarone", "--plugin", built("plugins/macaron.so")},
             "macaron.so has none of that name"},
        Case{{"gpt"}, "the model of that name is checked by: kuafu conformance --model gpt"},
        Case{{"--schedule", "zbw"}, "no pipeline schedule \"zbw\"; nearest: \"zbv\""},
        Case{{"--model", "gpt", "--sizes", "3"}, "a model is checked on 1, 2, 4, 8 ranks; --sizes"},
        Case{{"--plugin", built("plugins/no_symbol.so")}, "no symbol"}}) {
    const Checked checked = check(c.arguments);
    EXPECT_EQ(checked.code, kUsage) << checked.output;
    EXPECT_NE(checked.output.find(c.says), std::string::npos) << checked.output;
    EXPECT_TRUE(checked.document.is_null());
  }
}

}  // namespace
}  // namespace kuafu
