// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/finality.h"

namespace kuafu {
namespace {

void add_suite(CLI::App& app, FrontCall& call) {
  SuiteCall& suite = call.suite;
  CLI::App& sub = *app.add_subcommand("suite", "run a sweep of cases into a results folder");
  sub.add_option("suite", suite.suite, "suite file (TOML)")->required()->type_name("SUITE.toml");
  sub.add_option("--out", suite.out, "results folder (default results/runs/NAME)")
      ->type_name("DIR");
  sub.add_flag_callback(  // accepted because people type it: finished cases are never run again
      "--resume", [] {}, "go on where DIR stopped: what happens anyway if DIR holds this suite");
  sub.add_option(
         "--retry", suite.retry,
         text("run recorded cases of these statuses anew: a list of ", join(retried_statuses())))
      ->type_name("STATUSES");
  list_option(sub, "--filter", suite.filters,
              "only cases with this value, one of a list, or like a pattern with * and ?; may be "
              "repeated")
      ->type_name("KEY=VALUE[,VALUE...]");
  sub.add_option("--timeout", suite.timeout_s, "what a case may take, in place of the suite's")
      ->transform(time_in_seconds())
      ->type_name("TIME");
  sub.add_option("--budget", suite.budget,
                 "memory of a rank, such as 2GiB, in place of the suite's memory.device")
      ->type_name("BYTES");
  sub.add_option(
         "--certify-memory", suite.certify_memory,
         "room for the reference of a certificate (default 4GiB): a case that takes more is "
         "certified by a smaller model, `scaled`")
      ->transform(size_in_bytes())
      ->type_name("SIZE");
  sub.add_option("--device", suite.device,
                 "what thread ranks compute on (default cuda where a card is found)")
      ->check(one_of({"cpu", "cuda"}));
  sub.add_option("--repeats", suite.repeats,
                 "rounds over all cases, in place of the suite's: step times again in new "
                 "processes, in another order each")
      ->check(count())
      ->type_name("N");
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
  kuafu suite suites/quickstart.toml --repeats 5

Cases that the folder holds are not run again, but for those that the machine ended (killed, no memory from the
system, a full disk), those that failed or ran out of time under another time-out, certificates that a shorter
time-out cut short, and those of --retry. A suite that has grown
goes on in its folder; recorded cases that it has no more stay there and are left out of the summary. More --repeats
in the same folder add rounds; fewer leave those that are there.

Ctrl-C or a kill stops it; the same call goes on. Exit codes: 0 done, 1 a case or a later round of one failed, a
later round has other losses, a certificate says `different` or a reference of the suite does not hold, 2 usage,
130 interrupted. A claim of the suite that fails is shown and leaves the code as it is.)");
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
the same; else the `ok` one; else the one that its certificate refutes; else the one that has a verdict; else the one of more rounds; else the newest; where no time tells which that is, it is an error. Former cases of a
suite stay former. Names that several of the cases have are told. A record whose lines do not match their checksums is refused, as by `kuafu compare`.
Exit codes: 0 done, 1 done, and a certificate refutes a case, 2 usage, nothing was written)");
}

void add_compare(CLI::App& app, FrontCall& call) {
  CompareCall& compare = call.compare;
  CLI::App& sub = *app.add_subcommand(
      "compare",
      "hold results B against the reference A: exact metrics exactly, times by interval");
  sub.add_option("A", compare.a, "results folder, run.jsonl or document")
      ->required()
      ->type_name("DIR|FILE");
  sub.add_option("B", compare.b, "the same")->required()->type_name("DIR|FILE");
  sub.add_flag("--exact", compare.is_exact_only, "leave step times out");
  list_option(sub, "--subset", compare.subsets,
              "only cases with this value, one of a list, or like a pattern with * and ?; may be "
              "repeated")
      ->type_name("KEY=VALUE[,VALUE...]");
  sub.add_option("--by", compare.by, "what makes two cases one: id (default) or name")
      ->check(one_of({"id", "name"}));
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
  sub.add_option("--layers", report.layers,
                 "with --text: of how many cases to tell the layers (train.telemetry; default 3)")
      ->type_name("N")
      ->check(count_from_zero());
  sub.add_option("--csv", report.csv, "write a row a case, columns as docs/record.md names them")
      ->type_name("FILE.csv");
  sub.add_option("--junit", report.junit,
                 "write JUnit XML: how each case ended, certificates, references, claims")
      ->type_name("FILE.xml");
  sub.add_option("--parquet", report.parquet, "the rows of --csv as Parquet (needs pyarrow)")
      ->type_name("FILE.parquet");
  sub.add_option("--suite", report.suite.suite,
                 "the suite of the folders, for order, references, columns, claims and figures "
                 "(default: the one in suites/ of the same name and cases)")
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
  kuafu report --text --layers 20 results/runs/watched
  kuafu report results/runs/quickstart --suite suites/quickstart.toml
  kuafu report results/runs/quickstart --csv cases.csv --junit junit.xml

With --text, --csv, --junit or --parquet the page is drawn only where --out is given too.
Exit codes: 0 done, 2 usage, nothing to report, or an output that cannot be written, 7 a full disk)");
}

}  // namespace

void add_sweep_commands(CLI::App& app, FrontCall& call) {
  add_suite(app, call);
  add_merge(app, call);
  add_compare(app, call);
  add_report(app, call);
}

}  // namespace kuafu
