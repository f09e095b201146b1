// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <sstream>

#include "app/kuafu/options.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

const std::vector<std::string> kWorlds = {"threads", "mpi", "nccl", "simulated"};

/// Accepts the given words only; the message has the nearest.
CLI::Validator one_of(const std::vector<std::string>& allowed) {
  return CLI::Validator(
      [allowed](const std::string& given) {
        if (std::find(allowed.begin(), allowed.end(), given) != allowed.end()) return std::string();
        return text(in_quotes(given), " is none of ", join(allowed), "; did you mean ",
                    in_quotes(nearest(given, allowed)), "?");
      },
      join(allowed, "|"));
}

/// Accepts a number from `least` on, written out to its end.
template <class Number>
CLI::Validator number_from(Number least, const std::string& kind) {
  return CLI::Validator(
      [=](const std::string& given) {
        std::istringstream in(given);
        Number number{};
        const bool is_number = static_cast<bool>(in >> number) && in.eof();
        if (is_number && number >= least) return std::string();
        return text(in_quotes(given), " is not ", kind, " from ", least, " on");
      },
      "");
}

CLI::Validator positive_seconds() {
  return CLI::Validator(
      [](const std::string& given) {
        std::istringstream in(given);
        double seconds = 0;
        if (in >> seconds && in.eof() && seconds > 0) return std::string();
        return text(in_quotes(given), " is no positive number of seconds, such as 120");
      },
      "");
}

CLI::Validator count() { return number_from<int64_t>(1, "a whole number"); }

CLI::Option* list_option(CLI::App& app, const char* name, std::vector<std::string>& values,
                         const char* help) {
  return app.add_option(name, values, help)->allow_extra_args(false);  // one value each time
}

void add_plan_options(CLI::App& app, WorkerCall& call) {
  app.add_option("plan", call.plan, "plan file (TOML)")->required()->type_name("PLAN.toml");
  list_option(app, "--set", call.sets, "set a key of the plan; may be repeated")
      ->type_name("a.b=VALUE");
  app.add_option("--ranks", call.ranks, "number of ranks (default: the plan's product)")
      ->check(count())
      ->type_name("N");
  app.add_option("--steps", call.steps, "training steps (default: the plan's)")
      ->check(count())
      ->type_name("K");
  list_option(app, "--plugin", call.plugins, "load a plugin; may be repeated")->type_name("LIB.so");
}

void add_run_options(CLI::App& app, WorkerCall& call) {
  app.add_option("--world", call.world, "how ranks talk (default threads; mpi under mpirun)")
      ->check(one_of(kWorlds));
  app.add_option("--transport", call.transport,
                 "whose messages the simulated world counts: threads (default) or mpi")
      ->check(one_of({"threads", "mpi"}));
  app.add_flag_callback(
      "--certify", [&call] { call.is_certified = true; },
      "prove the steps equal to the oracle's: the model written a second time");
  app.add_flag_callback(
      "--no-certify", [&call] { call.is_certified = false; }, "do not (default)");
  app.add_option("--json", call.json, "write the document of docs/record.md")->type_name("FILE");
  app.add_option("--trace", call.trace, "write every event of the last step, one JSON line each")
      ->type_name("FILE.jsonl");
  app.add_option("--oracles", call.oracles,
                 "the trace of a real run, whose values a simulated --trace goes on with")
      ->type_name("FILE.jsonl");
  app.add_option("--timeline", call.timeline,
                 "draw what every rank did in the last step: a Chrome trace or a picture")
      ->type_name("FILE.json|FILE.svg");
  app.add_option("--timeout", call.timeout_s, "give up after so many seconds")
      ->check(number_from<double>(1e-3, "a number of seconds"))
      ->type_name("S");
  app.add_option("--mpi-collectives", call.mpi_collectives, "collectives of the MPI world")
      ->check(one_of({"own", "native"}));
  app.add_flag_callback(
      "--no-meter", [&call] { call.is_metered = false; }, "leave memory and FLOPs uncounted");
}

/// "90", "90 s", "15 m", "2 h", "1 d": seconds; below 0: no time.
double seconds_of(const std::string& given) {
  std::istringstream in(given);
  double number = 0;
  std::string unit, more;
  if (!(in >> number) || !(number > 0) || !std::isfinite(number)) return -1;
  in >> unit >> more;
  const std::map<std::string, double> kUnits = {{"", 1},     {"s", 1},    {"m", 60},
                                                {"min", 60}, {"h", 3600}, {"d", 86400}};
  const auto found = kUnits.find(unit);
  return found == kUnits.end() || !more.empty() ? -1 : number * found->second;
}

/// Training that is watched, and stopped before its end.
void add_watching_options(CLI::App& app, WorkerCall& call) {
  app.add_option("--log", call.log, "write loss, rates and times of each step as it is made")
      ->type_name("FILE.jsonl|FILE.csv");
  app.add_option(
         "--log-every", call.log_every,
         "print a line every K steps (default: one each 10 s; on a terminal one that redraws)")
      ->check(count())
      ->type_name("K");
  app.add_option("--tensorboard", call.tensorboard, "write the same as event files for TensorBoard")
      ->type_name("DIR");
  app.add_option("--stop-at", call.stop_at,
                 "end after step K of the plan; its schedule is that of the whole")
      ->check(count())
      ->type_name("K");
  app.add_option_function<std::string>(
         "--stop-after",
         [&call](const std::string& given) { call.stop_after_s = seconds_of(given); },
         "end after the step in hand when so much time has passed; saves, as a signal does")
      ->check(CLI::Validator(
          [](const std::string& given) {
            if (seconds_of(given) > 0) return std::string();
            return text(in_quotes(given), " is no time; write seconds, or 90s, 15m, 2h, 1d");
          },
          ""))
      ->type_name("TIME");
}

void add_checkpoint_options(CLI::App& app, WorkerCall& call) {
  app.add_option("--checkpoint", call.checkpoint, "save into this folder after the last step")
      ->type_name("DIR");
  app.add_option("--every", call.save_every, "and after every K steps")
      ->check(count())
      ->type_name("K");
  app.add_option("--keep", call.keep,
                 "keep the newest K checkpoints, the best and the last good one (default: all)")
      ->check(count())
      ->type_name("K");
  app.add_flag("--async", call.is_save_async,
               "copy and go on with the steps while files are written (memory: one copy more)");
  app.add_flag("--resume", call.is_resumed,
               "go on from the newest checkpoint in DIR; ranks and placement may be others");
  app.add_option("--from", call.begin_from,
                 "begin from this checkpoint, such as saved/best, and save into another DIR; with "
                 "--resume only where DIR holds none")
      ->type_name("CHECKPOINT");
  app.add_flag("--resume-with-changes", call.is_resumed_with_changes,
               "the same, and data, seed, schedule and optimizer values may be others too");
}

void add_run(CLI::App& app, FrontCall& call) {
  CLI::App& run = *app.add_subcommand("run", "train one plan and report what it cost");
  add_plan_options(run, call.worker);
  add_run_options(run, call.worker);
  add_watching_options(run, call.worker);
  add_checkpoint_options(run, call.worker);
  run.footer(R"(Examples:
  kuafu run plan.toml
  kuafu run plan.toml --ranks 4 --set parallel.tensor.mode=2d --set parallel.tensor.size=4 --certify
  kuafu run plan.toml --steps 5 --json result.json
  kuafu run plan.toml --steps 3 --timeline step.svg
  kuafu run plan.toml --steps 1000 --checkpoint saved --every 100 --keep 3
  kuafu run plan.toml --steps 1000 --checkpoint saved --every 100 --keep 3 --resume
  kuafu run plan.toml --steps 1000 --stop-at 300 --checkpoint saved
  kuafu run plan.toml --checkpoint saved --set train.validate_every=100    # saved/best: the lowest
  kuafu run plan.toml --checkpoint tuned --from saved/best --steps 2000
  kuafu run plan.toml --checkpoint saved --resume --stop-after 2h --log run.csv --tensorboard board
  kuafu run plan.toml --world simulated --ranks 4096 --set train.batch=4096
  kuafu run plan.toml --world simulated --ranks 4 --transport mpi
  mpirun -n 4 kuafu run plan.toml

SIGINT (Ctrl-C), SIGTERM and SIGHUP end a run after the step in hand: it is saved into the folder of
--checkpoint, and what it measured is written; a second one ends it at once. --timeout does the same,
and ends it at once where a step takes longer than a fifth of the time more. SIGUSR1 saves and goes on.

Exit codes: 0 ok, 1 failed or refuted by its certificate (`different`), 2 usage, 3 refused,
4 out of memory, 5 time-out, 6 diverged, 7 a file could not be written (a full disk), 130 interrupted)");
}

void add_explain(CLI::App& app, FrontCall& call) {
  CLI::App& explain = *app.add_subcommand(
      "explain", "print parameters, mesh, layouts, cost and memory of a plan before anything runs");
  add_plan_options(explain, call.worker);
  explain
      .add_option("--timetable", call.worker.timetable,
                  "write the pipeline's timetable: rows to edit and run, or a picture")
      ->type_name("FILE.csv|FILE.svg");
  explain
      .add_option("--json", call.worker.json,
                  "write all of it as JSON (docs/explain.md); - writes it instead of the text")
      ->type_name("FILE|-");
  explain.footer(R"(Examples:
  kuafu explain plan.toml
  kuafu explain plan.toml --json - | python3 -m json.tool
  kuafu explain plan.toml --ranks 4 --set parallel.pipeline=4 --timetable mine.csv
  kuafu explain plan.toml --ranks 8 --set parallel.tensor.mode=1d --set parallel.tensor.size=4)");
}

void add_frontier(CLI::App& app, FrontCall& call) {
  CLI::App& frontier = *app.add_subcommand(
      "frontier", "find the largest value of a key whose peak memory stays within memory.device");
  WorkerCall& worker = call.worker;
  frontier.add_option("plan", worker.plan, "plan file (TOML)")->required()->type_name("PLAN.toml");
  frontier.add_option("--vary", worker.vary, "integer key of the plan")
      ->required()
      ->type_name("a.b");
  frontier.add_option("--max", worker.most, "largest value to try")
      ->required()
      ->check(count())
      ->type_name("N");
  list_option(frontier, "--set", worker.sets, "set a key of the plan; may be repeated")
      ->type_name("a.b=VALUE");
  frontier.add_option("--ranks", worker.ranks, "number of ranks (default: the plan's product)")
      ->check(count())
      ->type_name("N");
  frontier.add_option("--json", worker.json, "write the answer and every value tried")
      ->type_name("FILE");
  list_option(frontier, "--plugin", worker.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  frontier.footer(
      R"(Simulates the ranks of one replica on meta tensors: the bytes are those of a real run. Values that
are refused (a batch that ranks do not divide) are stepped over.

Examples:
  kuafu frontier plan.toml --vary train.batch --max 4096 --set memory.device=16GB
  kuafu frontier plan.toml --vary model.sequence --max 100000 --ranks 64 --json answer.json

Exit codes: 0 found, 2 usage, 4 no value fits)");
}

void add_weights(CLI::App& app, FrontCall& call) {
  CLI::App& out = *app.add_subcommand(
      "export", "write a checkpoint's weights as one plain safetensors file of whole tensors");
  out.add_option("checkpoint", call.exported.checkpoint,
                 "folder of a checkpoint, or of several: the newest is taken")
      ->required()
      ->type_name("CHECKPOINT");
  out.add_option("--out", call.exported.out, "file to write; FILE.json beside it describes it")
      ->required()
      ->type_name("FILE.safetensors");
  out.footer(R"(Examples:
  kuafu export saved --out weights.safetensors
  kuafu export saved/step-00000100 --out weights.safetensors
  kuafu export saved/best --out weights.safetensors

Tensors pass one at a time. Names, types and metadata: docs/checkpoint.md.
Exit codes: 0 written, 2 no complete checkpoint, a damaged one, or a file that cannot be written)");

  CLI::App& in = *app.add_subcommand(
      "import", "make a plain file of weights a checkpoint that a run of any plan can begin from");
  in.add_option("file", call.imported.file, "what `kuafu export` wrote, or another of its form")
      ->required()
      ->type_name("FILE.safetensors");
  in.add_option("--out", call.imported.out, "folder of checkpoints; must hold none yet")
      ->required()
      ->type_name("DIR");
  list_option(in, "--plugin", call.imported.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  in.footer(R"(Examples:
  kuafu import weights.safetensors --out begun
  kuafu run plan.toml --checkpoint begun --resume

The plan must have the model that the file names; its optimizer begins anew at step 0.
Exit codes: 0 written, 2 a file that is damaged or lacks, adds or misshapes a tensor)");
}

void add_conformance(CLI::App& app, FrontCall& call) {
  ConformanceCall& conformance = call.conformance;
  CLI::App& sub = *app.add_subcommand(
      "conformance", "check tensor schemes, in or out of tree, against all that they promise");
  sub.add_option("scheme", conformance.schemes,
                 "tensor modes (default: those of the plugins, else all)")
      ->type_name("SCHEME");
  list_option(sub, "--plugin", conformance.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  sub.add_option("--sizes", conformance.sizes, "rank counts (default 1,2,3,4,5,8,9,12,27)")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->type_name("N,N...");
  sub.add_option("--json", conformance.json, "write every finding")->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu conformance
  kuafu conformance 3d 2.5d --sizes 8,27
  kuafu conformance --plugin libmine.so --json findings.json

Sizes that a scheme cannot arrange are left out. Exit codes: 0 all hold, 1 one does not, 2 usage)");
}

void add_suite(CLI::App& app, FrontCall& call) {
  SuiteCall& suite = call.suite;
  CLI::App& sub = *app.add_subcommand("suite", "run a sweep of cases into a results folder");
  sub.add_option("suite", suite.suite, "suite file (TOML)")->required()->type_name("SUITE.toml");
  sub.add_option("--out", suite.out, "results folder (default results/runs/NAME)")
      ->type_name("DIR");
  sub.add_flag_callback(  // accepted because people type it: finished cases are never run again
      "--resume", [] {}, "go on where DIR stopped: what happens anyway if DIR holds this suite");
  sub.add_option("--retry", suite.retry,
                 "run recorded cases of these statuses anew: a list of failed, timeout, "
                 "out_of_memory, refused")
      ->type_name("STATUSES");
  list_option(sub, "--filter", suite.filters,
              "only cases with this value, one of a list, or like a pattern with * and ?; may be "
              "repeated")
      ->type_name("KEY=VALUE[,VALUE...]");
  sub.add_option("--timeout", suite.timeout_s, "seconds a case may take, in place of the suite's")
      ->check(positive_seconds())
      ->type_name("S");
  sub.add_option("--budget", suite.budget,
                 "memory of a rank, such as 2GiB, in place of the suite's memory.device")
      ->type_name("BYTES");
  list_option(sub, "--set", suite.sets, "set a key of every plan; may be repeated")
      ->type_name("a.b=VALUE");
  list_option(sub, "--plugin", suite.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  sub.add_flag("--dry-run", suite.is_dry_run, "print the cases and run none");
  sub.add_flag_callback(
      "--no-report", [&suite] { suite.has_report = false; }, "leave figures and report.html out");
  sub.add_option("--worker", suite.worker,
                 "program that runs a case (default: kuafu-worker beside kuafu)")
      ->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu suite suites/quickstart.toml
  kuafu suite suites/quickstart.toml --dry-run
  kuafu suite suites/quickstart.toml --filter strategy="1D tensor" --filter ranks=2
  kuafu suite suites/quickstart.toml --out results/runs/mine --set data.path=corpus.txt
  kuafu suite suites/quickstart.toml --filter ranks=2,4 --filter "strategy=1D*" --timeout 300 --budget 2GiB
  kuafu suite suites/quickstart.toml --retry failed,timeout

Cases that the folder holds are not run again, but for those that the machine ended (killed, no memory from the
system), those that failed or ran out of time under another time-out, and those of --retry. A suite that has grown
goes on in its folder; recorded cases that it has no more stay there and are left out of the summary.

Ctrl-C or a kill stops it; the same call goes on. Exit codes: 0 done, 1 a case failed, a
certificate says `different` or a reference of the suite does not hold, 2 usage, 130 interrupted)");
}

void add_merge(CLI::App& app, FrontCall& call) {
  CLI::App& sub = *app.add_subcommand("merge", "put the cases of several results folders into one");
  sub.add_option("folders", call.merge.folders, "results folders or run.jsonl files, two or more")
      ->required()
      ->type_name("A B...");
  sub.add_option("--out", call.merge.out, "folder for the merged results; it must hold none")
      ->required()
      ->type_name("DIR");
  sub.footer(R"(Examples:
  kuafu merge results/runs/ranks2 results/runs/ranks4 --out results/runs/all

The folders may be of one suite or of several. A case that more than one of them has is kept once where its lines are
the same; else the `ok` one; else the newest; where no time tells which that is, it is an error. Former cases of a
suite stay former. A record whose lines do not match their checksums is refused, as by `kuafu compare`.
Exit codes: 0 done, 2 usage, nothing was written)");
}

void add_compare(CLI::App& app, FrontCall& call) {
  CompareCall& compare = call.compare;
  CLI::App& sub = *app.add_subcommand(
      "compare",
      "hold results B against the reference A: exact metrics exactly, times by interval");
  sub.add_option("A", compare.a, "results folder, run.jsonl or document")->required();
  sub.add_option("B", compare.b, "the same")->required();
  sub.add_flag("--exact", compare.is_exact_only, "leave step times out");
  list_option(sub, "--subset", compare.subsets,
              "only cases with this value, one of a list, or like a pattern with * and ?; may be "
              "repeated")
      ->type_name("KEY=VALUE[,VALUE...]");
  sub.add_option("--by", compare.by, "what makes two cases one: id (default) or name")
      ->check(one_of({"id", "name"}))
      ->type_name("ID");
  sub.add_option("--smallest-effect", compare.smallest_effect,
                 "change of a step time that matters, such as 5% or 0.05 (default 5%)")
      ->type_name("SHARE");
  sub.footer(R"(Examples:
  kuafu compare results/quickstart results/runs/quickstart
  kuafu compare before.json after.json
  kuafu compare --exact results/quickstart results/runs/quickstart
  kuafu compare results/quickstart results/runs/quickstart --subset ranks=2,4 --subset "strategy=1D*"
  kuafu compare before after --by name --smallest-effect 10%

A step time is `same`, `SLOWER` or `faster` where the interval of B / A lies inside, above or below the smallest effect,
and `inconclusive` where it spans an end of it: that is no regression.
Exit codes: 0 no regression, 1 a regression (another exact metric, SLOWER, missing in B) or a case that its certificate
refutes, 2 wrong usage or nothing to compare)");
}

void add_matrix(CLI::App& app, FrontCall& call) {
  MatrixCall& matrix = call.matrix;
  CLI::App& sub = *app.add_subcommand(
      "matrix", "try which choices work together: every pair and a sample of triples");
  list_option(sub, "--filter", matrix.filters, "only combinations with this value; may be repeated")
      ->type_name("DIMENSION=VALUE");
  sub.add_option("--triples", matrix.triples, "combinations of three (default 200)")
      ->check(number_from<int64_t>(0, "a whole number"))
      ->type_name("N");
  sub.add_option("--seed", matrix.seed, "draws triples and share (default 1)")
      ->check(number_from<int64_t>(0, "a whole number"))
      ->type_name("N");
  sub.add_option("--share", matrix.share, "part of all combinations to run (default 1)")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("X");
  sub.add_option("--jobs", matrix.jobs,
                 "combinations at a time, in processes of their own (default 1)")
      ->check(number_from<int64_t>(1, "a whole number"))
      ->type_name("N");
  sub.add_option("--out", matrix.out, "where compatibility.json and .md go (default results)")
      ->type_name("DIR");
  list_option(sub, "--plugin", matrix.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  sub.footer(R"(Examples:
  kuafu matrix
  kuafu matrix --filter scheme=2d --filter world=threads --triples 0 --out /tmp/matrix
  kuafu matrix --share 0.1 --seed 3 --jobs 2 --out /tmp/matrix

  kuafu matrix --filter "data mode=parameter_server" --filter zero=1 --triples 0 --out /tmp/matrix

Dimensions: scheme, sequence, experts, schedule, zero, data mode, order, bucket, overlap,
micro-batches, steps, model, dtype, recompute, optimizer, world. All of it takes some 20 minutes with
--jobs 2 on two cores. A kill loses nothing: the same call with the same program goes on.
Exit codes: 0 all equal or refused, 1 one differs from the oracle, 2 usage)");
}

void add_fuzz(CLI::App& app, FrontCall& call) {
  FuzzCall& fuzz = call.fuzz;
  CLI::App& sub =
      *app.add_subcommand("fuzz", "run random plans over all keys: each must end as a plan may");
  const auto whole = [](int64_t least) { return number_from<int64_t>(least, "a whole number"); };
  sub.add_option("--seconds", fuzz.seconds, "how long (default 60)")
      ->check(whole(1))
      ->type_name("N");
  sub.add_option("--plans", fuzz.plans, "stop after so many of the seed, those in --out included")
      ->check(whole(1))
      ->type_name("N");
  sub.add_option("--seed", fuzz.seed, "draws the plans (default 1)")
      ->check(whole(0))
      ->type_name("N");
  sub.add_option("--ranks", fuzz.ranks, "of a plan, at most (default 8)")
      ->check(whole(1))
      ->type_name("N");
  list_option(sub, "--world", fuzz.worlds,
              "only plans in this world; may be repeated (default all there are)")
      ->check(CLI::IsMember({"threads", "mpi", "mpi-native"}));
  sub.add_option("--jobs", fuzz.jobs, "plans at a time, in processes of their own (default 1)")
      ->check(whole(1))
      ->type_name("N");
  sub.add_option("--only", fuzz.only, "run plan N of the seed, and print it")
      ->check(whole(0))
      ->type_name("N");
  list_option(sub, "--set", fuzz.sets, "run the one plan of these settings; may be repeated")
      ->type_name("KEY=VALUE");
  sub.add_option("--out", fuzz.out,
                 "folder for result.json and README.md; the same seed goes on behind what it holds")
      ->type_name("DIR");
  sub.add_option("--timeout", fuzz.timeout, "seconds a plan may take (default 60)")
      ->check(whole(1))
      ->type_name("S");
  list_option(sub, "--plugin", fuzz.plugins, "load a plugin; may be repeated")->type_name("LIB.so");
  sub.footer(R"(Examples:
  kuafu fuzz --seconds 60 --seed 7
  kuafu fuzz --seconds 4000 --plans 10000 --seed 1 --jobs 2 --out build/fuzz
  kuafu fuzz --world mpi --ranks 4 --seconds 120
  kuafu fuzz --set model.kind=bert --set parallel.data=3

Each plan runs in one world: threads, MPI with Kuafu's collectives, MPI with the library's. It may end equal (certified, and
metered as simulated for that transport), refused, out of memory, diverged, or not certified for a reason that is listed.
Anything else is minimised and printed as a command that shows it.
Exit codes: 0 nothing found, 1 something found, 2 usage)");
}

void add_others(CLI::App& app, FrontCall& call) {
  CLI::App& list = *app.add_subcommand(
      "list",
      "what there is: tensor and sequence modes, models, worlds, plan keys, suites, baselines");
  list.add_option("kind", call.list.kind, "one kind only")->type_name("KIND");
  list_option(list, "--plugin", call.list.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  list.footer("Examples:\n  kuafu list\n  kuafu list keys\n  kuafu list --plugin libmine.so");

  CLI::App& doctor =
      *app.add_subcommand("doctor", "what was found on this machine; what is off and why");
  doctor.add_flag("--provenance", call.doctor.tells_provenance,
                  "only the block of commit, program and machine that results carry, as JSON");
  doctor.footer("Examples:\n  kuafu doctor\n  kuafu doctor --provenance");
}

void add_report(CLI::App& app, FrontCall& call) {
  ReportCall& report = call.report;
  CLI::App& sub = *app.add_subcommand(
      "report", "draw figures and report.html of a results folder, or of several side by side");
  sub.add_option("folder", report.folders, "results folders; several are compared with the first")
      ->required()
      ->type_name("DIR");
  sub.add_option("--out", report.out, "where the page goes (default, of one folder: that folder)")
      ->type_name("DIR");
  sub.add_flag("--text", report.is_text, "print a summary, 80 to 120 columns wide");
  sub.add_option("--csv", report.csv, "write a row a case, columns as docs/record.md names them")
      ->type_name("FILE.csv");
  sub.add_option("--junit", report.junit,
                 "write JUnit XML: how each case ended, certificates, references")
      ->type_name("FILE.xml");
  sub.add_option("--parquet", report.parquet, "the rows of --csv as Parquet (needs pyarrow)")
      ->type_name("FILE.parquet");
  sub.add_option("--suite", report.suite.suite,
                 "the suite of the folders, for order and references (default: the one in suites/ "
                 "of the same name and cases)")
      ->type_name("SUITE.toml");
  list_option(sub, "--set", report.suite.sets, "as the suite was run with; may be repeated")
      ->type_name("a.b=VALUE");
  list_option(sub, "--plugin", report.suite.plugins, "as the suite was run with; may be repeated")
      ->type_name("LIB.so");
  sub.footer(R"(Examples:
  kuafu report results/runs/quickstart
  kuafu report results/runs/quickstart --out /tmp/report
  kuafu report results/quickstart results/runs/quickstart --out /tmp/both
  kuafu report --text results/runs/quickstart
  kuafu report results/runs/quickstart --csv cases.csv --junit junit.xml

With --text, --csv, --junit or --parquet the page is drawn only where --out is given too.
Exit codes: 0 done, 2 usage, nothing to report, or an output that cannot be written)");
}

/// Names of the options of `app` as they are typed.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_fnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
  return names;
}

/// What the parser left over becomes an error with the nearest name.
void refuse_extras(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const std::string& extra : sub->remaining()) {
      const std::string name = extra.substr(0, extra.find('='));
      KUAFU_REQUIRE(extra.rfind('-', 0) != 0, "kuafu ", sub->get_name(), " has no option ", name,
                    "; did you mean ", nearest(name, option_names(*sub)), "? `kuafu ",
                    sub->get_name(), " --help` lists them");
      throw ConfigError(text("kuafu ", sub->get_name(), " does not expect ", in_quotes(extra),
                             "; `kuafu ", sub->get_name(), " --help` shows its arguments"));
    }
  }
}

/// The parser's message; only a flag with a value is left to be no number.
std::string described(const CLI::ParseError& error) {
  const std::string message = error.what(), prefix = "Could not convert: ";
  if (message.rfind(prefix, 0) != 0) return message;
  return message.substr(prefix.size()) + ": this option takes no value";
}

void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> commands = command_names(app);
  if (argc < 2) return;
  const std::string given = argv[1];
  if (given.rfind('-', 0) == 0) {
    const std::vector<std::string> known = {"--help", "-h", "--version"};
    KUAFU_REQUIRE(std::find(known.begin(), known.end(), given) != known.end(),
                  "kuafu has no option ", given, " before a command; commands are ",
                  join(commands));
    return;
  }
  KUAFU_REQUIRE(std::find(commands.begin(), commands.end(), given) != commands.end(),
                "kuafu has no command ", in_quotes(given), "; did you mean ",
                in_quotes(nearest(given, commands)), "? Commands are ", join(commands));
}

}  // namespace

Overrides split_pairs(const std::vector<std::string>& pairs, const std::string& option) {
  Overrides split;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    KUAFU_REQUIRE(equals != std::string::npos && equals > 0, option, " ", pair,
                  ": expected key=value, such as ", option, " train.batch=8");
    split.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return split;
}

FrontCall parse_command_line(int argc, char** argv) {
  FrontCall call;
  CLI::App app("Kuafu: a testbed for training large models in parallel", "kuafu");
  app.set_version_flag("--version", std::string("kuafu ") + std::string(build_info::kVersion));
  add_run(app, call);
  add_suite(app, call);
  add_compare(app, call);
  add_merge(app, call);
  add_explain(app, call);
  add_frontier(app, call);
  add_weights(app, call);
  add_matrix(app, call);
  add_fuzz(app, call);
  add_conformance(app, call);
  add_report(app, call);
  add_others(app, call);
  app.require_subcommand(1);
  app.footer(
      "Each command has its own --help with examples. Start with:\n"
      "  kuafu doctor\n  kuafu suite suites/quickstart.toml");
  for (CLI::App* sub : app.get_subcommands(nullptr)) sub->allow_extras();
  if (argc < 2) {
    std::cout << app.help();
    call.exit_code = kMisused;
    return call;
  }
  refuse_unknown_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      call.exit_code = app.exit(error);  // help or version
      return call;
    }
    refuse_extras(app);  // a misspelt option is the likelier cause than what it left missing
    throw ConfigError(text(described(error), "\n`kuafu ", argv[1], " --help` shows its options"));
  }
  refuse_extras(app);
  call.command = app.get_subcommands().front()->get_name();
  return call;
}

}  // namespace kuafu
