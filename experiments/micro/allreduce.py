#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of thread ranks, of Kuafu over MPI and of MPI_Allreduce, in turns in one go.

    .venv/bin/python experiments/micro/allreduce.py [--print]

Runs micro_comm and micro_mpi (2 and 4 ranks) in one order, then in the other, keeps what they printed under
results/benchmarks/ and prints the table of medians and ratios; --print only prints the table of the results that
are there. micro_mpi is started several times, for where its memory comes to lie is drawn anew at every start and
changes the time of the same copies by a factor of two: ratios are taken within a start, and their median and quartiles
over the starts."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "results" / "benchmarks"
BIN = ROOT / "build" / "release" / "bin"
STARTS = {2: 7, 4: 3}  # by ranks
RANKS = tuple(STARTS)
SIZES = [1 << n for n in (16, 18, 20, 22, 24, 26)]  # bytes


def run_threads() -> dict:
    done = subprocess.run([BIN / "micro_comm", "--benchmark_format=json"], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def run_mpi(ranks: int) -> str:
    return subprocess.run(["scripts/mpirun.sh", "-n", str(ranks), BIN / "micro_mpi", "--benchmark_color=false"],
                          cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def run() -> None:
    """Runs all programs forth and back; their output replaces what results/benchmarks holds."""
    OUT.mkdir(parents=True, exist_ok=True)
    threads = run_threads()
    threads["context"]["executable"] = "build/release/bin/micro_comm"
    mpi = dict.fromkeys(RANKS, "")
    for ranks, starts in STARTS.items():
        for start in range(starts):
            print(f"micro_mpi, {ranks} ranks, start {start + 1} of {starts}", file=sys.stderr, flush=True)
            mpi[ranks] += f"start {start + 1}\n" + run_mpi(ranks)
    for ranks in RANKS:
        (OUT / f"micro_mpi-{ranks}ranks.txt").write_text(mpi[ranks])
    threads["benchmarks"] += run_threads()["benchmarks"]
    (OUT / "micro_comm.json").write_text(json.dumps(threads, indent=1) + "\n")


def medians(samples: list) -> dict:
    """(key, nanoseconds) pairs -> key -> median."""
    by_key = {}
    for key, time in samples:
        by_key.setdefault(key, []).append(time)
    return {key: statistics.median(times) for key, times in by_key.items()}


def thread_times() -> dict:
    """(what, ranks, bytes) -> median nanoseconds, what is threads, limit or traffic."""
    samples = []
    for entry in json.loads((OUT / "micro_comm.json").read_text())["benchmarks"]:
        what, ranks, *rest = entry["name"].split("/")
        if what != "startup":
            samples.append(((what, int(ranks), int(rest[0])), entry["real_time"]))
    return medians(samples)


def mpi_times(ranks: int) -> tuple:
    """(what, bytes) -> median nanoseconds over all starts, what is own or library; and bytes -> the ratios
    library / own of the starts, ascending, each of the medians of one start."""
    starts = []
    for line in (OUT / f"micro_mpi-{ranks}ranks.txt").read_text().splitlines():
        if line.startswith("start"):
            starts.append([])
        elif found := re.match(r"(own|library)/(\d+)/\S+\s+([\d.]+) ns", line):
            starts[-1].append(((found[1], int(found[2])), float(found[3])))
    each = [medians(samples) for samples in starts]
    ratios = {size: sorted(m["library", size] / m["own", size] for m in each) for size in SIZES}
    return medians([sample for m in each for sample in m.items()]), ratios


def table() -> str:
    rows = ["| ranks | size | threads, us | memory, us | memory / threads "
            "| in cache, us | in cache / threads | own MPI, us "
            "| MPI_Allreduce, us | MPI_Allreduce / threads | MPI_Allreduce / own MPI | its quartiles |", "|" + "---|" * 12]
    threads = thread_times()
    for ranks in RANKS:
        mpi, ratios = mpi_times(ranks)
        # STREAM's rule: the arrays are several times the last cache.
        slowest = threads["traffic", ranks, SIZES[-1]] / SIZES[-1]
        for size in SIZES:
            t, limit, memory = threads["threads", ranks, size], threads["limit", ranks, size], slowest * size
            low, _, high = statistics.quantiles(ratios[size])
            own, library = mpi["own", size], mpi["library", size]
            rows.append(f"| {ranks} | {size >> 10} KiB | {t / 1e3:.0f} | {memory / 1e3:.0f} | {memory / t:.2f} "
                        f"| {limit / 1e3:.0f} | {limit / t:.2f} | {own / 1e3:.0f} | {library / 1e3:.0f} "
                        f"| {library / t:.1f} | {statistics.median(ratios[size]):.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--print"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        run()
    print(table())
