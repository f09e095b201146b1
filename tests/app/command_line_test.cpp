// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/run_log.h"
#include "kuafu/record/schema.h"
#include "tests/app/process.h"
#include "tests/record/support.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using test::expect_has;
using test::front;
using test::Output;
using test::TemporaryFolder;

const std::vector<std::string> kCommands = {
    "run",         "suite",    "explain",  "list",       "report", "compare", "doctor",
    "conformance", "matrix",   "fuzz",     "export",     "import", "merge",   "new",
    "frontier",    "tokenize", "generate", "perplexity", "embed"};

void expect_misuse(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& words) {
  const Output output = front(arguments);
  EXPECT_EQ(output.code, 2) << output.err;
  for (const auto& word : words) expect_has(output.err, word);
}

TEST(Help, OfEveryCommandHasExamplesAndStartsInATenthOfASecond) {
  std::vector<std::vector<std::string>> calls = {{"--help"}};
  for (const auto& command : kCommands) calls.push_back({command, "--help"});
  for (const auto& call : calls) {
    double fastest_s = 1e9;  // of five: what the program needs, not what the machine is busy with
    for (int i = 0; i < 5; ++i) {
      const Output output = front(call);
      EXPECT_EQ(output.code, 0);
      expect_has(output.out, "kuafu " + (call.size() > 1 ? call[0] : "doctor"));
      fastest_s = std::min(fastest_s, output.wall_s);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(fastest_s, 0.1) << call[0];
#endif
  }
}

TEST(Help, OfSuiteNamesAllThatItTakesAndAllThatItFailsBy) {
  const std::string help = front({"suite", "--help"}).out;
  const std::string list = help.substr(help.find("a list of "));
  for (const std::string& status : statuses()) {
    if (status != "ok") expect_has(list, status);
  }
  expect_has(help, "a later round");
}

TEST(Help, NamesATypeOnce) {
  EXPECT_EQ(front({"suite", "--help"}).out.find("TIME:"), std::string::npos);
  expect_has(front({"suite", "--help"}).out, "--timeout TIME ");
  expect_has(front({"compare", "--help"}).out, "--by TEXT:id|name ");
}

TEST(Front, LoadsNoLibTorch) {
  const Output libraries = front({}, {{"LD_TRACE_LOADED_OBJECTS", "1"}});
  expect_has(libraries.out, "libc.so");
  EXPECT_EQ(libraries.out.find("torch"), std::string::npos) << libraries.out;
}

TEST(Front, TellsItsVersionWhateverTheEnvironmentIs) {
  const Output output = front({"--version"}, {{"KUAFU_KERNELS", "x"}});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.err, "");
  expect_has(output.out, "kuafu ");
  EXPECT_EQ(front({"list", "fields"}, {{"KUAFU_KERNELS", "x"}}).code, 2);
}

TEST(Front, NamesTheNearestCommandAndOption) {
  expect_misuse({"siute", "x.toml"}, {"\"siute\"", "\"suite\""});
  expect_misuse({"suite", "x.toml", "--outt", "y"}, {"--outt", "--out"});
  expect_misuse({"run", "--stps", "4"}, {"--stps", "did you mean --steps?"});
  expect_misuse({"run", "a", "--steps", "4", "--steps", "5"}, {"--steps is given 2 times"});
  for (const auto& call : {std::vector<std::string>{"run", "--xyzzy"}, {"xyzzyplugh"}}) {
    const std::string err = front(call).err;  // nothing is near
    EXPECT_EQ(err.find("did you mean"), std::string::npos) << err;
  }
  expect_misuse({"run", "x.toml", "--world", "thread"}, {"\"thread\"", "\"threads\""});
  expect_misuse({"run", "x.toml", "--set", "train.steps"}, {"--set train.steps", "key=value"});
  expect_misuse({"run"}, {"plan", "required"});
  expect_misuse({"list", "kyes"}, {"\"kyes\"", "\"keys\""});
  expect_misuse({"compare", "a", "b", "c"}, {"\"c\""});
  expect_misuse({"--verbose"}, {"--verbose"});
  expect_misuse({"merge", "a", "--out", "b"}, {"a: no such file", "results folder"});
  expect_misuse({"merge", "a", "b"}, {"--out", "required"});
  expect_misuse({"suite", "x.toml", "--retry", "faild"}, {"\"faild\"", "\"failed\""});
  expect_misuse({"compare", "a", "b", "--by", "nam"}, {"\"nam\"", "\"name\""});
  expect_misuse({"compare", "a", "b", "--smallest-effect", "5"}, {"did you mean 5%?"});
  expect_misuse({"compare", "a", "b", "--subset", "ranks"}, {"--subset ranks", "key=value"});
}

TEST(Misuse, OfTokenizeNamesWhatIsMissing) {
  expect_misuse({"tokenize"}, {"tokenizer", "required"});
  expect_misuse({"tokenize", "/no/t.json", "--jsn"}, {"--jsn", "--json"});
  expect_misuse({"tokenize", "/no/t.json", "--decode", "--whole"}, {"--decode", "--whole"});
}

TEST(Front, RefusesAWrongValueOfEveryOption) {
  for (const char* number : {"0", "-1", "2.5", "abc", "4x", "99999999999999999999"}) {
    expect_misuse({"run", "x.toml", "--ranks", number},
                  {"--ranks", number, "a whole number from 1"});
    expect_misuse({"run", "x.toml", "--steps", number},
                  {"--steps", number, "a whole number from 1"});
  }
  for (const char* seconds : {"-1", "0", "1 week", "soon", "nan"}) {
    expect_misuse({"run", "x.toml", "--timeout", seconds}, {"--timeout", seconds, "90s, 15m"});
  }
  expect_misuse({"run", "x.toml", "--mpi-collectives", "both"},
                {"\"both\" is none of own, native"});
  expect_misuse({"run", "x.toml", "--json"}, {"--json", "FILE"});
  if (std::filesystem::exists(test::built("kuafu-worker"))) {  // it needs LibTorch
    expect_misuse({"run", "x.toml", "--world", "mpi"}, {"cannot read the plan", "x.toml"});
    expect_misuse({"run", "x.toml", "--world", "mpi", "--plugin", "x.so"},
                  {"--ranks N", "mpirun -n N"});
    expect_misuse({"import", "/no/file", "--format", "safetensors", "--out", "x"}, {"/no/file"});
  }
  expect_misuse({"run", "x.toml", "--certify", "--no-certify"}, {"--certify and --no-certify"});
  expect_misuse({"run", "x.toml", "--log", "s.jsonl", "--trace", "./s.jsonl"},
                {"--trace and --log both write", "s.jsonl"});
  for (const char* layers : {"x", "-1", "1.5"}) {
    expect_misuse({"report", "x", "--text", "--layers", layers},
                  {"--layers", layers, "a whole number from 0 on"});
  }
  expect_misuse({"report", "x", "--csv", "a", "--junit", "a"}, {"--csv and --junit", "write a"});
  expect_misuse({"suite", "x.toml", "--plugin", "x.so", "--plugin", "./x.so"},
                {"--plugin ./x.so is given twice"});
  expect_misuse({"explain", "x.toml", "--json"}, {"--json", "FILE|-"});
  expect_misuse({"conformance", "--timeout", "soon"}, {"--timeout", "\"soon\" is no time above 0"});
  expect_misuse({"export", "saved"}, {"--out", "required"});
  expect_misuse({"export", "/no/saved", "--out", "x.safetensors"}, {"/no/saved", "is no folder"});
  expect_misuse({"export", "/no/saved", "--format", "safetensors", "--out", "x.safetensors"},
                {"/no/saved", "is no folder"});
  expect_misuse({"export", "saved", "--format", "gguf", "--out", "x.safetensors"},
                {"--format", "gguf", "safetensors"});
  expect_misuse({"export", "saved", "--out", "x.bin"}, {"--out x.bin", ".safetensors"});
  const TemporaryFolder folder;
  const std::string there = folder / "w.safetensors";
  test::write_text(there, "somebody's");
  expect_misuse({"export", "saved", "--out", there}, {"--out " + there, "there is one already"});
  EXPECT_EQ(test::read_text(there), "somebody's");
  expect_misuse({"export", "saved", "--ot", "x"}, {"--ot", "--out"});
  expect_misuse({"import"}, {"file", "required"});
  expect_misuse({"import", "x.safetensors"}, {"--out", "required"});
  expect_misuse({"explain", "x.toml", "--certify"}, {"explain has no option --certify"});
  expect_misuse({"suite", "x.toml", "--worker", "/nowhere"}, {"--worker /nowhere"});
  expect_misuse({"suite", "x.toml", "--plugin", "/no/lib.so"}, {"--plugin /no/lib.so"});
  expect_misuse({"list", "keys", "--plugin", "x.so"}, {"list keys", "kuafu list --plugin x.so"});
  expect_misuse({"report"}, {"folder", "required"});
  expect_misuse({"compare", "a"}, {"B", "required"});
  expect_misuse({"doctor", "--json"}, {"no option --json"});
}

// Each of them would call its ranks' failures findings.
TEST(Front, SaysThatThereIsNoCardBeforeAnythingIsTried) {
  if (::access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "this machine has one";
  for (const char* command : {"matrix", "fuzz", "conformance"}) {
    const Output output = front({command, "--device", "cuda"});
    EXPECT_EQ(output.code, 2) << command;
    expect_has(output.err, "--device cuda: no CUDA device: ");
    expect_has(output.err, "use --device cpu");
  }
}

TEST(Front, RefusesAValueOfEveryFlag) {
  size_t num_flags = 0;
  for (const std::string& command : kCommands) {
    std::istringstream help(front({command, "--help"}).out);
    for (std::string line; std::getline(help, line);) {
      // "  --dry-run                   print the cases": no type stands before its words.
      const size_t at = line.find("--"), end = line.find(' ', std::min(at, line.size()));
      if (!line.starts_with("  -") || line.substr(end, 2) != "  ") continue;
      const std::string name = line.substr(at, end - at);
      ++num_flags;
      const std::string value = num_flags % 2 == 0 ? "no" : "true";
      expect_misuse({command, "x", name + "=" + value},
                    {name + " takes no value, given \"" + value, "leave it out for no"});
    }
  }
  EXPECT_GE(num_flags, kCommands.size() + 10);
}

TEST(Front, RefusesToWriteOverWhatItReads) {
  const TemporaryFolder folder;
  const std::string plan = folder / "plan.toml", corpus = folder / "c.csv", so = folder / "a.so",
                    rows = folder / "rows.csv", from = folder / "saved",
                    record = folder / "run.jsonl", hdf5 = folder / "results.h5",
                    link = folder / "link.json";
  const std::string toml = "data.path = \"" + corpus + "\"\n";
  std::filesystem::create_directory(from);
  const std::string shard = from + "/shard", runs = folder / "runs";
  const std::string index = runs + "/step-00000002/index.json";
  std::filesystem::create_directories(runs + "/step-00000002");
  for (const std::string& file : {corpus, so, rows, shard, record, hdf5, index})
    test::write_text(file, file);
  test::write_text(plan, toml);
  std::filesystem::create_symlink(plan, link);
  const std::string by_set = "parallel.pipeline.schedule=" + rows;
  using Words = std::vector<std::string>;
  for (const auto& [call, says] :
       {std::pair{Words{"run", plan, "--json", plan}, std::string("would write over the plan")},
        {{"run", link, "--trace", plan}, "would write over the plan " + link},
        {{"explain", plan, "--json", plan}, "would write over the plan"},
        {{"frontier", plan, "--vary", "a", "--max", "2", "--json", plan}, "over the plan"},
        {{"run", plan, "--log", corpus}, "--log " + corpus + " would write over the corpus"},
        {{"run", "x.toml", "--set", "data.path=" + corpus, "--json", corpus}, "the corpus"},
        {{"run", "x.toml", "--set", "data.path=\"" + corpus + "\"", "--json", corpus}, "corpus"},
        {{"run", "x.toml", "--set", "data.path=" + from, "--json", shard}, "the corpus"},
        {{"run", plan, "--set", by_set, "--timeline", rows}, "would write over the schedule"},
        {{"run", plan, "--plugin", so, "--json", so}, "would write over --plugin"},
        {{"conformance", "--plugin", so, "--json", so}, "would write over --plugin"},
        {{"run", plan, "--from", from, "--checkpoint", "x", "--json", shard}, "over --from"},
        {{"run", plan, "--checkpoint", runs, "--resume", "--json", index}, "over a checkpoint"},
        {{"report", folder.path(), "--csv", record}, "would write over the record"},
        {{"report", folder.path(), "--junit", hdf5},
         "--junit " + hdf5 + " would write over the record"},
        {{"report", folder.path(), "--suite", plan, "--csv", plan}, "would write over --suite"},
        {{"run", plan, "--log", "x.csv", "--tensorboard", "./x.csv"},
         "--log and --tensorboard both write ./x.csv"},
        {{"run", plan, "--json", "x", "--checkpoint", "x"}, "the first is a file"}}) {
    expect_misuse(call, {says});
  }
  EXPECT_EQ(test::read_text(plan), toml);
  for (const std::string& file : {corpus, so, rows, shard, record, index})
    EXPECT_EQ(test::read_text(file), file);
}

TEST(Front, RefusesNamesThatNoFileSystemTakes) {
  const std::string long_name(300, 'a');
  const std::string says =
      "the name \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"... has 300 bytes; allowed: "
      "at most 255\n";
  expect_misuse({"run", "x.toml", "--json", long_name}, {"--json: " + says});
  expect_misuse({"run", "x.toml", "--checkpoint", "/tmp/" + long_name + "/x"}, {says});
  expect_misuse({"suite", "x.toml", "--out", long_name}, {"--out: " + says});
  expect_misuse({"report", long_name}, {says});
  expect_misuse({"compare", "x", long_name}, {says});
  std::string path;
  for (int i = 0; i < 600; ++i) path += "/folders";
  expect_misuse({"merge", "a", "b", "--out", path}, {"--out: the path", "4800", "at most 4095"});
  const TemporaryFolder folder;
  test::write_text(folder / "s.toml", "[suite]\nname = \"" + long_name + "\"\n");
  expect_misuse({"suite", folder / "s.toml"}, {"s.toml:1: suite.name", "300", "at most 200"});
}

TEST(Front, SaysThatTheStackIsTooSmall) {
  if (!std::filesystem::exists(test::built("kuafu-worker"))) GTEST_SKIP() << "no LibTorch";
  const Output output =
      test::Process({"/bin/sh", "-c", "ulimit -s 64; " + test::built("kuafu") + " run x.toml"})
          .wait();
  EXPECT_EQ(output.code, 2);
  expect_has(output.err, "64 KiB here (ulimit -s); Kuafu needs 256 KiB or more: ulimit -s 8192");
}

// A full disk is not a success, whatever command prints.
TEST(Front, WhatCannotBePrintedIsTold) {
  for (const std::string command : {"list", "list keys", "--help", "suite --help", "--version"}) {
    test::Process process({"/bin/sh", "-c", test::built("kuafu") + " " + command + " >/dev/full"});
    const Output output = process.wait();
    EXPECT_EQ(output.code, 7) << command << output.err;
    EXPECT_EQ(output.err, "kuafu: cannot write all of the standard output\n") << command;
  }
}

TEST(Front, ShowsHelpWithoutACommand) {
  const Output output = front({});
  EXPECT_EQ(output.code, 2);
  expect_has(output.out, "Subcommands");
}

/// A copy of `kuafu` beside a worker that is a shell script.
struct FrontWithWorker {
  explicit FrontWithWorker(const std::string& script) {
    std::filesystem::copy_file(test::built("kuafu"), folder / "kuafu");
    test::write_text(folder / "kuafu-worker", "#!/bin/sh\n" + script);
    std::filesystem::permissions(folder / "kuafu-worker", std::filesystem::perms::owner_all);
  }
  std::vector<std::string> call(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {folder / "kuafu", "run"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  Output run(const std::vector<std::string>& arguments) const {
    return test::Process(call(arguments)).wait();
  }
  Json document() const { return Json::parse(test::read_text(json), nullptr, false); }

  TemporaryFolder folder;
  std::string json = folder / "out.json";
};

TEST(Run, HandsItsOptionsToTheWorkerBesideIt) {
  const FrontWithWorker front("printf '%s\\n' \"$@\"\nexit 3\n");
  const Output output = front.run({"--set", "train.steps=5", "p.toml", "--ranks", "4", "--set",
                                   "data.path=a b", "--certify", "--plugin", "x.so", "--no-meter",
                                   "--timeout", "60", "--world", "threads", "--steps", "7"});
  EXPECT_EQ(output.code, 3);
  EXPECT_EQ(
      output.out,
      "run\np.toml\n--set\ntrain.steps=5\n--set\ndata.path=a b\n--world\nthreads\n--ranks\n4\n"
      "--steps\n7\n--certify\n--no-meter\n--plugin\nx.so\n--timeout\n60\n");
}

TEST(Run, ReportsAWorkerThatEndsWithoutAWord) {
  struct Case {
    const char* script;
    const char* reason;
  };
  for (const Case& c : {Case{"kill -KILL $$", "killed by signal 9"},
                        Case{"exit 0", "exited with code 0 without writing"},
                        Case{"exit 127", "exited with code 127 without writing"}}) {
    const FrontWithWorker front(c.script);
    const Output output = front.run({"p.toml", "--json", front.json});
    EXPECT_EQ(output.code, 1);
    expect_has(output.err, c.reason);
    EXPECT_EQ(join(document_problems(front.document()), "\n"), "");
    EXPECT_EQ(value_at(front.document(), "status"), "failed");
    expect_has(value_at(front.document(), "reason").get<std::string>(), c.reason);
  }
}

TEST(Run, KeepsTheReasonOfAWorkerThatGaveOne) {
  const TemporaryFolder folder;
  const std::string json = folder / "out.json";
  const auto writes = [&](const char* status, const char* end) {
    return text("echo '{\"status\": \"", status, "\", \"reason\": \"own\"}' > ", json, "\n", end,
                "\n");
  };
  for (const char* end : {"kill -KILL $$", "exit 1"}) {
    EXPECT_EQ(FrontWithWorker(writes("failed", end)).run({"p.toml", "--json", json}).code, 1);
    EXPECT_EQ(value_at(Json::parse(test::read_text(json)), "reason"), "own");
    EXPECT_EQ(FrontWithWorker(writes("ok", end)).run({"p.toml", "--json", json}).code, 1);
    EXPECT_EQ(value_at(Json::parse(test::read_text(json)), "status"), "failed");
  }
  EXPECT_EQ(FrontWithWorker(writes("ok", "exit 0")).run({"p.toml", "--json", json}).code, 0);
  EXPECT_EQ(value_at(Json::parse(test::read_text(json)), "status"), "ok");
}

// Whatever ends a worker that has written its results, they stay.
TEST(Run, KeepsTheResultsOfAWorkerThatIsKilledBehindThem) {
  const TemporaryFolder folder;
  const std::string json = folder / "out.json";
  for (const char* end : {"kill -KILL $$", "kill -TERM $$", "exit 143"}) {
    const FrontWithWorker front(
        text("echo '{\"status\": \"ok\", \"loss\": [5.5, 5.25]}' > ", json, "\n", end, "\n"));
    EXPECT_EQ(front.run({"p.toml", "--json", json}).code, 1);
    const Json document = Json::parse(test::read_text(json));
    EXPECT_EQ(document["status"], "failed") << end;
    EXPECT_EQ(document["loss"], (Json{5.5, 5.25})) << end;
    EXPECT_FALSE(document["reason"].get<std::string>().empty());
  }
}

TEST(Run, TellsANewDocumentFromAnOldOne) {
  const FrontWithWorker front("exit 0");
  test::write_text(front.json, "{\"status\": \"ok\"}");
  EXPECT_EQ(front.run({"p.toml", "--json", front.json}).code, 1);
  EXPECT_EQ(value_at(front.document(), "status"), "failed");
}

TEST(Run, EndsItsWorkerWithItself) {
  const FrontWithWorker front("while :; do sleep 0.05; done");
  for (const int number : {SIGTERM, SIGKILL}) {
    test::Process process(front.call({"p.toml"}));
    const auto is_there = [&] {
      return !test::processes_with(front.folder / "kuafu-worker").empty();
    };
    ASSERT_TRUE(test::eventually(is_there));
    process.signal(number);
    EXPECT_EQ(process.wait().code, number == SIGTERM ? 130 : 128 + number);
    EXPECT_TRUE(test::eventually([&] { return !is_there(); }));
  }
}

// A signal that comes when the last step is made finds a run that ends by itself.
TEST(Run, AfterASignalKeepsTheCodeOfARunThatCameToItsEnd) {
  struct Case {
    const char* status;
    const char* end;
    int code;
  };
  for (const Case& c : {Case{"ok", "exit 0", 0}, Case{"diverged", "exit 6", 6},
                        Case{"interrupted", "exit 130", 130}, Case{"ok", "exit 7", 7},
                        Case{"ok", "kill -TERM $$", 0}, Case{"failed", "kill -KILL $$", 143}}) {
    const TemporaryFolder folder;
    const std::string json = folder / "out.json", ready = folder / "ready";
    const FrontWithWorker front(text("trap 'trap - TERM; echo \"{\\\"status\\\": \\\"", c.status,
                                     "\\\", \\\"reason\\\": \\\"own\\\"}\" > ", json, "; ", c.end,
                                     "' TERM\ntouch ", ready, "\nwhile :; do sleep 0.02; done\n"));
    test::Process process(front.call({"p.toml", "--json", json}));
    ASSERT_TRUE(test::eventually([&] { return std::filesystem::exists(ready); }));
    process.signal(SIGTERM);
    const Output output = process.wait();
    EXPECT_EQ(output.code, c.code) << c.status << ", " << c.end << ": " << output.err;
    EXPECT_EQ(value_at(Json::parse(test::read_text(json)), "status"), c.status) << c.end;
  }
}

TEST(Run, SaysThatTheWorkerIsMissing) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(test::built("kuafu"), folder / "kuafu");
  const Output output = test::Process({folder / "kuafu", "run", "p.toml"}).wait();
  EXPECT_EQ(output.code, 2);
  expect_has(output.err, folder / "kuafu-worker");
}

TEST(List, PrintsWhatThereIs) {
  const Output all = front({"list"});
  EXPECT_EQ(all.code, 0);
  for (const char* word : {"1d-sp", "simulated", "suites/quickstart.toml", "megatron_style"})
    expect_has(all.out, word);
  const std::string keys = front({"list", "keys"}).out, fields = front({"list", "fields"}).out;
  expect_has(keys, "train.micro_batch");
  expect_has(fields, "memory.peak_by_category");
  for (const std::string& listed : {all.out, keys, fields}) {
    std::istringstream lines(listed);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  }
}

TEST(Doctor, TellsWhatWasFoundAndWhatIsOff) {
  const Output output = front({"doctor"});
  EXPECT_TRUE(output.code == 0 || output.code == 1)
      << output.err;  // 1 where the worker is not built
  for (const char* word : {"kuafu", "worker", "c++", "LibTorch", "MPI", "CUDA", "NCCL", "HDF5",
                           "CBC", "io_uring", "utf8proc", "PCRE2", "GPU driver", "cores",
                           "oversubscription", "memory", "the main job can"}) {
    expect_has(output.out, word);
  }
}

/// A results folder of two cases made from a clean tree.
void write_results(const std::string& folder, int64_t bytes_sent) {
  std::filesystem::create_directories(folder);
  RunLog log(folder);
  log.begin(test::sample_header(2));
  for (int tag = 0; tag < 2; ++tag) {
    Json document = test::sample_document(2, tag);
    document["provenance"]["git_dirty"] = false;
    document["ledger"]["data"]["bytes_sent"][1] = bytes_sent;
    log.append(test::sample_case(tag == 0 ? "aa" : "bb", document));
  }
}

TEST(CompareCommand, SaysByItsExitCodeHowItWent) {
  const TemporaryFolder folder;
  write_results(folder / "a", 1);
  write_results(folder / "same", 1);
  write_results(folder / "more", 2);
  const Output same = front({"compare", folder / "a", folder / "same"});
  EXPECT_EQ(same.code, 0) << same.out;
  expect_has(same.out, "no regression");
  const Output more = front({"compare", folder / "a", folder / "more" + "/run.jsonl"});
  EXPECT_EQ(more.code, 1);
  expect_has(more.out, "ledger.data.bytes_sent.1: 1, then 2");
  expect_has(more.out, "2 regressions: ");
  expect_misuse({"compare", folder / "a", folder / "nothing"}, {"nothing"});
  test::write_text(folder / "bad.json", "[]");
  expect_misuse({"compare", folder / "bad.json", folder / "a"}, {"bad.json"});
}

TEST(Report, RunsTheProjectsScriptOnTheFolder) {
  const TemporaryFolder folder;
  write_results(folder.path(), 1);
  const Output output =
      front({"report", folder.path(), "--out", "there"}, {{"KUAFU_PYTHON", "echo"}});
  if (output.code == 2) {
    expect_has(output.err, "report.py is not there");  // a tree without the report
    return;
  }
  EXPECT_EQ(output.code, 0) << output.err;
  expect_has(output.out, "scripts/report/report.py " + folder.path() + " --out there");
}

TEST(Report, SaysWhatAFolderLacks) {
  const TemporaryFolder folder;
  expect_misuse({"report", folder / "nothing"}, {"no folder"});
  expect_misuse({"report", folder.path()}, {"run.jsonl", "not there"});
  { RunLog(folder.path()).begin(test::sample_header(1)); }
  expect_misuse({"report", folder.path()}, {"no finished case"});
  write_results(folder / "whole", 1);
  expect_misuse({"report", folder / "whole", folder / "nothing", "--out", "there"},
                {"nothing", "no folder"});
  expect_misuse({"report", folder / "whole", "--txt"}, {"no option --txt", "--text"});
  expect_misuse({"report", folder / "whole", "--set", "a=1"}, {"--suite SUITE.toml", "not given"});
  test::write_text(folder / "other.toml",
                   "[suite]\nname = \"other\"\nquestion = \"q\"\n[grid]\nranks = [1]\n");
  expect_misuse({"report", folder / "whole", "--suite", folder / "other.toml"},
                {"makes suite", "was made with"});
}

TEST(Report, HandsAllFoldersAndOutputsOn) {
  const TemporaryFolder folder;
  write_results(folder / "a", 1);
  write_results(folder / "b", 1);
  const Output output = front({"report", folder / "a", folder / "b", "--text", "--csv", "x.csv",
                               "--junit", "x.xml", "--parquet", "x.parquet"},
                              {{"KUAFU_PYTHON", "echo"}});
  if (output.code == 2) {
    expect_has(output.err, "report.py is not there");  // a tree without the report
    return;
  }
  expect_has(output.out, folder / "a" + " " + (folder / "b") +
                             " --csv x.csv --junit x.xml --parquet x.parquet --text");
  for (const char* name : {"a/results.h5", "b/results.h5", "a/lock"}) {
    EXPECT_FALSE(std::filesystem::exists(folder / name)) << name;  // only read
  }
}

}  // namespace
}  // namespace kuafu
