#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of thread ranks, of Kuafu over MPI and of MPI_Allreduce, one after the other in one go.

    .venv/bin/python experiments/micro/allreduce.py [--print]

Runs micro_comm and micro_mpi (2 and 4 ranks), keeps what they printed under results/benchmarks/ and prints the
table of medians and ratios; --print only prints the table of the results that are there."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "results" / "benchmarks"
RANKS = (2, 4)
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)  # bytes


def run() -> None:
    """Runs both programs; their output replaces what results/benchmarks holds."""
    OUT.mkdir(parents=True, exist_ok=True)
    bin_dir = Path("build/release/bin")
    subprocess.run([bin_dir / "micro_comm", f"--benchmark_out={OUT.relative_to(ROOT)}/micro_comm.json",
                    "--benchmark_out_format=json"], cwd=ROOT, check=True)
    for ranks in RANKS:
        done = subprocess.run(["scripts/mpirun.sh", "-n", str(ranks), bin_dir / "micro_mpi", "--benchmark_color=false"],
                              cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        (OUT / f"micro_mpi-{ranks}ranks.txt").write_text(done.stdout)


def thread_times() -> dict:
    """(what, ranks, bytes) -> nanoseconds, what is threads or limit."""
    times = {}
    for entry in json.loads((OUT / "micro_comm.json").read_text())["benchmarks"]:
        what, ranks, *rest = entry["name"].split("/")
        if what in ("threads", "limit"):
            times[what, int(ranks), int(rest[0])] = entry["real_time"]
    return times


def mpi_times(ranks: int) -> dict:
    """(what, bytes) -> median nanoseconds, what is own or library."""
    samples = {}
    for line in (OUT / f"micro_mpi-{ranks}ranks.txt").read_text().splitlines():
        if found := re.match(r"(own|library)/(\d+)/\S+\s+([\d.]+) ns", line):
            samples.setdefault((found[1], int(found[2])), []).append(float(found[3]))
    return {key: statistics.median(values) for key, values in samples.items()}


def table() -> str:
    rows = ["| ranks | size | threads, us | memory limit, us | limit / threads | own MPI, us | MPI_Allreduce, us "
            "| MPI_Allreduce / threads | MPI_Allreduce / own MPI |", "|" + "---|" * 9]
    threads = thread_times()
    for ranks in RANKS:
        mpi = mpi_times(ranks)
        for size in SIZES:
            t, limit = threads["threads", ranks, size], threads["limit", ranks, size]
            own, library = mpi["own", size], mpi["library", size]
            rows.append(f"| {ranks} | {size >> 10} KiB | {t / 1e3:.0f} | {limit / 1e3:.0f} | {limit / t:.2f} | "
                        f"{own / 1e3:.0f} | {library / 1e3:.0f} | {library / t:.1f} | {library / own:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--print"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        run()
    print(table())
