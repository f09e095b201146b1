// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"
#include "kuafu/base/worlds.h"

namespace kuafu {

void add_plan_options(CLI::App& app, WorkerCall& call) {
  app.add_option("plan", call.plan, "plan file (TOML)")->required()->type_name("PLAN.toml");
  list_option(app, "--set", call.sets, "set a key of the plan; may be repeated")
      ->type_name("a.b=VALUE");
  app.add_option("--ranks", call.ranks, "number of ranks (default: the plan's product)")
      ->check(count())
      ->type_name("N");
  list_option(app, "--plugin", call.plugins, "load a plugin; may be repeated")->type_name("LIB.so");
}

void add_world_options(CLI::App& app, WorkerCall& call) {
  app.add_option("--world", call.world, "how ranks talk (default threads; mpi under mpirun)")
      ->check(one_of(world_names()));
  app.add_option("--device", call.device,
                 "what ranks compute on: cpu, or cuda (default where a card is found); several "
                 "threads share one card")
      ->check(one_of({"cpu", "cuda"}));
  app.add_option("--mpi-collectives", call.mpi_collectives, "collectives of the MPI world")
      ->check(one_of({"own", "native"}));
}

namespace {

void add_steps_option(CLI::App& app, WorkerCall& call) {
  app.add_option("--steps", call.steps, "training steps (default: the plan's)")
      ->check(count())
      ->type_name("K");
}

void add_run_options(CLI::App& app, WorkerCall& call) {
  add_world_options(app, call);
  app.add_option("--transport", call.transport,
                 "whose messages the simulated world counts: threads (default) or mpi")
      ->check(one_of({worlds::kThreads, worlds::kMpi}));
  app.add_flag_callback(
      "--certify", [&call] { call.is_certified = true; },
      "prove the steps equal to the oracle's: the model written a second time");
  app.add_option("--certify-memory", call.certify_memory,
                 "room for the reference of --certify (default 4GiB): a plan that takes more is "
                 "certified by a smaller model, `scaled`")
      ->transform(size_in_bytes())
      ->type_name("SIZE");
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
  app.add_option("--timeout", call.timeout_s, "give up after so much time")
      ->transform(time_in_seconds())
      ->type_name("TIME");
  app.add_flag_callback(
      "--no-meter", [&call] { call.is_metered = false; }, "leave memory and FLOPs uncounted");
}

/// Training that is watched, and stopped before its end.
void add_watching_options(CLI::App& app, WorkerCall& call) {
  app.add_option(
         "--log", call.log,
         "write loss, rates and times of each step as it is made, and with train.telemetry "
         "norms of every layer; of a file that is there only with --resume, behind its rows")
      ->type_name("FILE.jsonl|FILE.csv");
  app.add_option(
         "--log-every", call.log_every,
         "print a line every K steps (default: one each 10 s; on a terminal one that redraws)")
      ->check(count())
      ->type_name("K");
  app.add_option("--tensorboard", call.tensorboard, "write the same as event files for TensorBoard")
      ->type_name("DIR");
  app.add_option("--stop-at", call.stop_at,
                 "end after step K of the plan; its schedule and its hash are those of the whole")
      ->check(count())
      ->type_name("K");
  app.add_option(
         "--stop-after", call.stop_after_s,
         "end after the step in hand, or a certificate in hand, when so much time has passed; "
         "saves, as a signal does")
      ->transform(time_in_seconds())
      ->type_name("TIME");
}

void add_checkpoint_options(CLI::App& app, WorkerCall& call) {
  app.add_option(
         "--checkpoint", call.checkpoint,
         "save into this folder after the last step, and on the way: after the first step, then "
         "at most each 10 s and for 1 % of the time, the newest proven state staying")
      ->type_name("DIR");
  app.add_option("--every", call.save_every,
                 "save after every K steps too, all of which stay (see --keep)")
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
  app.add_option(
         "--init", call.init,
         "begin at step 0 with these weights: a folder of Hugging Face's transformers, a "
         "checkpoint, or a file of `kuafu export`; model as in the plan; with --resume only "
         "where DIR holds no checkpoint")
      ->type_name("WEIGHTS");
  app.add_flag("--resume-with-changes", call.is_resumed_with_changes,
               "the same, and data, seed, schedule and optimizer values may be others too");
}

void add_run(CLI::App& app, FrontCall& call) {
  CLI::App& run = *app.add_subcommand("run", "train one plan and report what it cost");
  add_plan_options(run, call.worker);
  add_steps_option(run, call.worker);
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
  kuafu run plan.toml --checkpoint tuned --from saved/best --steps 2000 --resume-with-changes    # a schedule over 2000 steps
  kuafu run plan.toml --init opt-125m --steps 1000 --checkpoint tuned
  kuafu run plan.toml --checkpoint saved --resume --stop-after 2h --log run.csv --tensorboard board
  kuafu run plan.toml --set train.telemetry=true --log run.csv --tensorboard board    # every layer, noise scale
  kuafu run plan.toml --world simulated --ranks 4096 --set train.batch=4096
  kuafu run plan.toml --world simulated --ranks 4 --transport mpi
  mpirun -n 4 kuafu run plan.toml

SIGINT (Ctrl-C), SIGTERM and SIGHUP end a run after the step in hand: it is saved into the folder of
--checkpoint, and what it measured is written; a second one ends it at once. --timeout does the same,
and ends it at once where a step takes longer than a fifth of the time more. SIGUSR1 saves and goes on.
While a run is certified it ends at once at the first signal, --stop-after or --timeout: what was measured is
kept, the certificate is `not_run`, the code 0.

Exit codes: 0 ok, 1 failed or refuted by its certificate (`different`), 2 usage, 3 refused,
4 out of memory, 5 time-out, 6 diverged, 7 a document, log or trace could not be written (a full disk; at a checkpoint: 1), 130 interrupted,
128 + signal where a signal ended it before it listened)");
}

void add_explain(CLI::App& app, FrontCall& call) {
  CLI::App& explain = *app.add_subcommand(
      "explain", "print parameters, mesh, layouts, cost and memory of a plan before anything runs");
  add_plan_options(explain, call.worker);
  add_steps_option(explain, call.worker);
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
  list_option(frontier, "--policy", worker.policies,
              "search under this memory.policy, \"plain\" too, and predict a step; may be repeated")
      ->type_name("NAME");
  list_option(frontier, "--budget", worker.budgets, "search in this memory.device; may be repeated")
      ->type_name("SIZE");
  frontier.add_flag("--measure", worker.is_measured,
                    "run the largest that fits on thread ranks, in that budget, for 5 steps");
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
  kuafu frontier plan.toml --vary model.layers --max 96 --budget 6GB --budget 11GB \
    --policy plain --policy static --policy auto --measure

Exit codes: 0 found, of several searches one, 2 usage, 4 no value fits)");
}

}  // namespace

void add_run_commands(CLI::App& app, FrontCall& call) {
  add_run(app, call);
  add_explain(app, call);
  add_frontier(app, call);
}

}  // namespace kuafu
