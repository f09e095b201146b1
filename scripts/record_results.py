#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what results/ lacks, one command after the other, on a machine that is quiet.

    .venv/bin/python scripts/record_results.py [--list] [--only WORD]... [--kind timed|counted] [--again] [--even-loaded]

Commit first: programs and scripts have to come from a commit with a clean tree. A result that meets the rule of
scripts/check_results.py is left alone (--again records it anew), so that a call after a kill goes on; what is recorded leaves
the waiting list of results/index.toml. Times want a quiet machine: a load above 0.5 is waited for, ten minutes at most. --list says what would be
done, with minutes of an estimate made on 2 cores. Tables of the benchmarks are drawn anew at the end; commit results/ then.
Steps beside an earlier build (benchmarks/step-*-before.json) are none of these: results/benchmarks/README.md has their command."""

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import check_results

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "results" / "index.toml"
PYTHON = ".venv/bin/python"
BIN = "build/release/bin"
QUIET, PATIENCE_S = 0.5, 600


def steps():
    """(file, minutes, command) of every row against PyTorch."""
    shape = "--hidden 256 --layers 4 --heads 8 --sequence 128 --batch 8"
    rows = [("single", 1, shape + " --sides kuafu,kuafu_mpi,unmetered,pytorch,pytorch_compile --rounds 20", 6),
            ("single", 1, "--hidden 1024 --layers 2 --heads 16 --sequence 128 --batch 4 --sides kuafu,kuafu_mpi,pytorch,pytorch_compile --rounds 12 "
             "--steps 2", 5)]      # 29 steps: from the 35th on this training makes more of a rounding than the losses may differ by
    # As many ranks as cores: with more, a row says how the system shares a core.
    rows += [(mode, 2, shape + " --sides kuafu,kuafu_mpi,limit,limit_mpi,pytorch,pytorch_compile --rounds 10", 6)
             for mode in ("data", "1d", "zero1", "zero3", "pipeline")]
    for mode, ranks, options, minutes in rows:
        hidden = re.search(r"--hidden (\d+)", options)[1]
        file = f"benchmarks/step-{mode}-{ranks}ranks-h{hidden}.json"
        yield file, minutes, f"{PYTHON} baselines/pytorch/compare.py --mode {mode} --ranks {ranks} {options}"


TIMED = [
    ("quickstart/run.jsonl", 12, "scripts/run.sh --out build/quickstart_recorded && cp build/quickstart_recorded/run.jsonl "
                                 "build/quickstart_recorded/results.h5 results/quickstart/"),
    *steps(),
    ("benchmarks/disk.json", 4, f"{PYTHON} experiments/micro/disk.py"),
    ("benchmarks/allreduce.json", 12, f"{PYTHON} experiments/micro/allreduce.py"),
    ("benchmarks/optimizer.json", 3, f"{BIN}/micro_optimizer --rounds 20 --json results/benchmarks/optimizer.json"),
    *((f"benchmarks/trace-h{hidden}.json", 1, f"{BIN}/micro_trace examples/gpt.toml --rounds {rounds} --set model.hidden={hidden} {more}"
       f"--json results/benchmarks/trace-h{hidden}.json") for hidden, rounds, more in ((16, 400, "--set train.batch=2 "), (64, 200, ""), (256, 60, ""))),
    ("benchmarks/async_save.json", 15, f"{PYTHON} experiments/micro/async_save.py"),
    ("benchmarks/micro_experts-4ranks.json", 3, f"{BIN}/micro_experts 256 20 results/benchmarks/micro_experts-4ranks.json"),
    ("benchmarks/attention.json", 5, f"{BIN}/micro_attention --rounds 4 --json results/benchmarks/attention.json"),
    ("benchmarks/predicted-h1024.json", 15,
     f"{BIN}/micro_step predict --rounds 3 --json results/benchmarks/predicted-h1024.json"),
    ("benchmarks/overhead-h1024.json", 25,
     f"{BIN}/micro_step profile --rounds 2 --sequence 1024 --batch 4 --json results/benchmarks/overhead-h1024.json"),
    ("generation/result.json", 6, f"{PYTHON} experiments/generation/run.py"),
    ("offload_baselines/result.json", 12, f"{PYTHON} experiments/offload_baselines/run.py"),
    ("gemini/existence.json", 15, "mkdir -p results/gemini && build/release/bin/kuafu run experiments/gemini/existence.toml --certify "
                                  "--certify-memory 6GB --json results/gemini/existence.json"),
    ("data_parallel/result.json", 15, f"{PYTHON} experiments/data_parallel/run.py"),
    ("pipeline_bubble/measured.json", 4, f"{PYTHON} experiments/pipeline_bubble/run.py --measure"),
]
COUNTED = [
    ("pipeline_bubble/result.json", 1, f"{PYTHON} experiments/pipeline_bubble/run.py"),
    ("tensor_traffic/result.json", 15, f"{PYTHON} experiments/tensor_traffic/run.py"),
    ("composition/result.json", 8, f"{PYTHON} experiments/composition/run.py"),
    ("zero_memory/result.json", 9, f"{PYTHON} experiments/zero_memory/run.py"),
    ("activation_memory/result.json", 4, f"{PYTHON} experiments/activation_memory/run.py"),
    ("gemini/result.json", 25, f"{PYTHON} experiments/gemini/run.py"),
    ("crossover/result.json", 8, f"{PYTHON} experiments/crossover/run.py"),
    ("long_sequence/result.json", 8, f"{PYTHON} experiments/long_sequence/run.py"),
    ("moe_scaling/result.json", 8, f"{PYTHON} experiments/moe_scaling/run.py"),
    ("memory_policies/result.json", 10, f"{BIN}/memory_policies --count 10000 --seed 1 --out results/memory_policies"),
    ("disk_faults/result.json", 10, f"{BIN}/disk_campaign --count 10000 --seed 1 --folder build/disk --out results/disk_faults/result.json"),
    ("tokenizers/result.json", 45, f"{PYTHON} tests/tokenizer/equal_test.py --count 100000 --seed 2 --out results/tokenizers"),
    ("compatibility.json", 90, f"{BIN}/kuafu matrix --out results"),
    ("fuzz_readers/result.json", 25, "cmake --preset asan && cmake --build build/asan --target reader_fuzz && "
                                     "build/asan/bin/reader_fuzz --count 100000 --seed 1 --out results/fuzz_readers/result.json"),
]


def meets_the_rule(file, history):
    """Whether it was recorded at an acceptable commit; under the index as it is now."""
    index = tomllib.loads(INDEX.read_text(encoding="utf-8"))
    return (ROOT / "results" / file).is_file() and not list(check_results.data_problems(file, index, ROOT, history))


def without_waiting(text, files):
    """The index without these files' entries in the waiting list."""
    for file in files:
        text = re.sub(rf'\[\[waiting\]\]\nfile = "{re.escape(file)}"\nwhy = "[^\n]*"\n(?:lacks = [^\n]*\n)?\n?', "", text)
    return text


def leave_the_list(file, history):
    """What is drawn from the file is drawn anew with it."""
    if meets_the_rule(file, history):
        INDEX.write_text(without_waiting(INDEX.read_text(encoding="utf-8"), [file]), encoding="utf-8")
        return True
    return False


def wait_until_quiet(even_loaded):
    begin = time.monotonic()
    while not even_loaded and os.getloadavg()[0] > QUIET:
        if time.monotonic() - begin > PATIENCE_S:
            sys.exit(f"load {os.getloadavg()[0]:.2f} for {PATIENCE_S / 60:g} minutes: others use this machine; call again, or --even-loaded")
        time.sleep(5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="what would be done")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="results whose name holds it; may be repeated")
    parser.add_argument("--kind", choices=("timed", "counted"), help="only these; counted ones need no quiet machine")
    parser.add_argument("--again", action="store_true", help="also what meets the rule")
    parser.add_argument("--even-loaded", action="store_true", help="wait for no quiet machine")
    options = parser.parse_args()
    history = check_results.History(ROOT)
    wanted = [(*row, kind) for kind, rows in (("counted", COUNTED), ("timed", TIMED)) for row in rows
              if options.kind in (None, kind) and (not options.only or any(word in row[0] for word in options.only))]
    if not wanted:
        sys.exit(f"--only {' '.join(options.only)}: no such result; see --list")
    left = [row for row in wanted if options.again or not meets_the_rule(row[0], history)]
    for file, minutes, command, kind in wanted:
        state = f"{minutes} min" if (file, minutes, command, kind) in left else "recorded"
        print(f"{state:>9}  {kind:8} {file:42} {command}")
    print(f"{len(left)} of {len(wanted)} to record, about {sum(row[1] for row in left)} minutes", flush=True)
    if options.list or not left:
        return 0
    subprocess.run(["scripts/setup.sh", "--build"], cwd=ROOT, check=True)
    failed = []
    for number, (file, minutes, command, kind) in enumerate(left):
        print(f"[{number + 1}/{len(left)}] {time.strftime('%H:%M')} {file}, about {minutes} min: {command}", flush=True)
        if kind == "timed":
            wait_until_quiet(options.even_loaded)
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, check=False)
        if done.returncode != 0 or not leave_the_list(file, history):
            failed.append(file)
            print(f"NOT recorded: {file} (exit code {done.returncode})", flush=True)
    subprocess.run([PYTHON, "scripts/report/benchmark_tables.py"], cwd=ROOT, check=True)
    print(f"{len(left) - len(failed)} recorded, {len(failed)} not{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
