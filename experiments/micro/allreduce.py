#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of thread ranks, of Kuafu over MPI and of MPI_Allreduce, in turns in one go.

    .venv/bin/python experiments/micro/allreduce.py [--print]

Runs micro_comm and micro_mpi (2 and 4 ranks) in one order, then in the other, keeps what they printed under
results/benchmarks/ and prints the table of medians and ratios; --print only prints the table of the results that
are there."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "results" / "benchmarks"
BIN = ROOT / "build" / "release" / "bin"
RANKS = (2, 4)
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
    mpi = {ranks: run_mpi(ranks) for ranks in RANKS}
    for ranks in reversed(RANKS):
        mpi[ranks] += run_mpi(ranks)
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


def mpi_times(ranks: int) -> dict:
    """(what, bytes) -> median nanoseconds, what is own or library."""
    samples = []
    for line in (OUT / f"micro_mpi-{ranks}ranks.txt").read_text().splitlines():
        if found := re.match(r"(own|library)/(\d+)/\S+\s+([\d.]+) ns", line):
            samples.append(((found[1], int(found[2])), float(found[3])))
    return medians(samples)


def table() -> str:
    rows = ["| ranks | size | threads, us | memory, us | memory / threads "
            "| in cache, us | in cache / threads | own MPI, us "
            "| MPI_Allreduce, us | MPI_Allreduce / threads | MPI_Allreduce / own MPI |", "|" + "---|" * 11]
    threads = thread_times()
    for ranks in RANKS:
        mpi = mpi_times(ranks)
        # STREAM's rule: the arrays are several times the last cache.
        slowest = threads["traffic", ranks, SIZES[-1]] / SIZES[-1]
        for size in SIZES:
            t, limit, memory = threads["threads", ranks, size], threads["limit", ranks, size], slowest * size
            own, library = mpi["own", size], mpi["library", size]
            rows.append(f"| {ranks} | {size >> 10} KiB | {t / 1e3:.0f} | {memory / 1e3:.0f} | {memory / t:.2f} "
                        f"| {limit / 1e3:.0f} | {limit / t:.2f} | {own / 1e3:.0f} | {library / 1e3:.0f} "
                        f"| {library / t:.1f} | {library / own:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--print"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        run()
    print(table())
