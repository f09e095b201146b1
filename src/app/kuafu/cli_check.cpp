// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"
#include "kuafu/base/worlds.h"

namespace kuafu {
namespace {

void add_device(CLI::App& sub, std::string& device) {
  sub.add_option("--device", device, "what thread ranks compute on (default cpu)")
      ->check(one_of({"cpu", "cuda"}));
}

void add_matrix(CLI::App& app, FrontCall& call) {
  MatrixCall& matrix = call.matrix;
  CLI::App& sub = *app.add_subcommand(
      "matrix", "try which choices work together: every pair and a sample of triples");
  list_option(sub, "--filter", matrix.filters,
              "only combinations with this value; of several dimensions all must hold, of several "
              "values of one dimension any")
      ->type_name("DIMENSION=VALUE");
  sub.add_option("--triples", matrix.triples, "combinations of three (default 200)")
      ->check(number_from<int64_t>(0, "a whole number"))
      ->type_name("N");
  sub.add_option("--seed", matrix.seed, "draws triples and share (default 1)")
      ->check(number_from<int64_t>(0, "a whole number"))
      ->type_name("N");
  sub.add_option("--share", matrix.share,
                 "part of all combinations to run, every dimension met (default 1)")
      ->check(number_from<double>(0, "a number"))
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("X");
  sub.add_option("--jobs", matrix.jobs,
                 "combinations at a time, in processes of their own (default 1)")
      ->check(number_from<int64_t>(1, "a whole number"))
      ->type_name("N");
  add_device(sub, matrix.device);
  sub.add_option("--out", matrix.out, "where compatibility.json and .md go (default build/matrix)")
      ->type_name("DIR");
  list_option(sub, "--plugin", matrix.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  sub.footer(R"(Examples:
  kuafu matrix --jobs 2
  kuafu matrix --filter scheme=2d --filter world=threads --triples 0
  kuafu matrix --share 0.1 --seed 3 --jobs 2 --out /tmp/matrix
  kuafu matrix --filter "data mode=parameter_server" --filter zero=1 --triples 0
  kuafu matrix --filter "resumed=other plan" --triples 0

Dimensions: scheme, sequence, experts, schedule, zero, data mode, order, bucket, overlap,
micro-batches, steps, model, dtype, recompute, optimizer, policy, world, resumed,
documents. All of it takes
some 16 minutes with --jobs 2 on two cores. A kill loses nothing: the same call with the same program goes on.
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
      ->check(CLI::IsMember({worlds::kThreads, worlds::kMpi, "mpi-native"}));
  sub.add_option("--jobs", fuzz.jobs, "plans at a time, in processes of their own (default 1)")
      ->check(whole(1))
      ->type_name("N");
  sub.add_option("--only", fuzz.only, "run plan N of the seed, and print it")
      ->check(whole(0))
      ->type_name("N");
  list_option(sub, "--set", fuzz.sets,
              "run the one plan of these settings in each world; may be repeated")
      ->type_name("KEY=VALUE");
  add_device(sub, fuzz.device);
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
  kuafu fuzz --set model.kind=bert --set parallel.data=3 --set train.batch=9

Each plan runs in one world: threads, MPI with Kuafu's collectives, MPI with the library's. It may end equal (certified, and
metered as simulated for that transport), refused, out of memory, diverged, or not certified for a reason that is listed.
Anything else is minimised and printed as a command that shows it.
Exit codes: 0 nothing found, 1 something found, 2 usage)");
}

void add_conformance(CLI::App& app, FrontCall& call) {
  ConformanceCall& conformance = call.conformance;
  CLI::App& sub = *app.add_subcommand("conformance",
                                      "check schemes, sequence modes, models, schedules, "
                                      "optimizers and memory policies, in or out of tree, against "
                                      "all that they promise");
  sub.add_option("scheme", conformance.schemes,
                 "tensor modes (default, where nothing is named: all that the plugins bring, else "
                 "all there is)")
      ->type_name("SCHEME");
  list_option(sub, "--sequence", conformance.sequences, "a sequence mode; may be repeated")
      ->type_name("NAME");
  list_option(sub, "--model", conformance.models, "a model; may be repeated")->type_name("NAME");
  list_option(sub, "--schedule", conformance.schedules, "a pipeline schedule; may be repeated")
      ->type_name("NAME");
  list_option(sub, "--optimizer", conformance.optimizers, "an optimizer; may be repeated")
      ->type_name("NAME");
  list_option(sub, "--policy", conformance.policies, "a memory policy; may be repeated")
      ->type_name("NAME");
  list_option(sub, "--plugin", conformance.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  sub.add_option("--sizes", conformance.sizes,
                 "rank counts (default: schemes 1,2,3,4,5,8,9,12,27; sequence modes 1,2,3,4,8; "
                 "models, schedules and optimizers up to 8; memory policies 1,2,3); the first that "
                 "fails is "
                 "the last")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->type_name("N,N...");
  sub.add_option("--timeout", conformance.timeout_s,
                 "give up where one check takes longer (default 10m)")
      ->transform(time_in_seconds())
      ->type_name("TIME");
  add_device(sub, conformance.device);
  sub.add_option("--json", conformance.json, "write every finding")->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu conformance
  kuafu conformance 3d 2.5d --sizes 8,27
  kuafu conformance --sequence ring --sizes 2,4
  kuafu conformance --model gpt
  kuafu conformance --model gpt --sizes 1,2
  kuafu conformance --schedule zbv --schedule 1f1b
  kuafu conformance --optimizer lamb --sizes 1,2,4
  kuafu conformance --plugin libmine.so --json findings.json --timeout 2m

Shapes go from as narrow as can be to more than 64 elements in every dim of a shard. What a choice refuses is listed with the
reason; sizes that a scheme cannot arrange are left out. Each finding is
told as it comes: . holds, r refused, or what FAILED; after that no larger size is tried. One choice takes one to three minutes on two cores.
Exit codes: 0 all hold, 1 one does not, 2 usage, 5 a check took longer than --timeout)");
}

}  // namespace

void add_check_commands(CLI::App& app, FrontCall& call) {
  add_matrix(app, call);
  add_fuzz(app, call);
  add_conformance(app, call);
}

}  // namespace kuafu
