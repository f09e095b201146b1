#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of thread ranks, of Kuafu over MPI and of MPI_Allreduce, beside the traffic that each must move, in turns.

    .venv/bin/python experiments/micro/allreduce.py [--print | --quick] [--out results/benchmarks/allreduce.json]

Runs micro_comm and micro_mpi (2 and 4 ranks) in one order, then in the other, keeps what they measured in one file and
prints the table of medians and ratios; --print only prints the table of the file that is there, --quick runs each program
once. micro_mpi is started several times, for where its memory comes to lie is drawn anew at every start and changes the time
of the same copies by a factor of two: ratios are taken within a start, and their median and quartiles over the starts.

The limit of a size is the fastest of several ways of moving the same bytes (traffic.h). Where thread ranks are faster in
three of four pairs of times, it is no limit: the program says so, writes nothing and ends with 1."""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "report"))

import provenance

OUT = ROOT / "results" / "benchmarks" / "allreduce.json"
BIN = ROOT / "build" / "release" / "bin"
STARTS = {2: 7, 4: 3}  # of micro_mpi, by ranks
THREAD_STARTS = 4      # of micro_comm, which has every time twice
RANKS = tuple(STARTS)
SIZES = [1 << n for n in (16, 18, 20, 22, 24, 26)]  # bytes


def run_threads():
    """[[what, ranks, bytes, nanoseconds]] of one start of micro_comm; what: threads, or a way of its limit."""
    done = subprocess.run([BIN / "micro_comm", "--benchmark_format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                          text=True)
    entries = [(e["name"].split("/"), e["real_time"]) for e in json.loads(done.stdout)["benchmarks"]]
    return [[name[0], int(name[1]), int(name[2]), time] for name, time in entries if name[0] != "startup"]


def run_mpi(ranks):
    """[[what, bytes, nanoseconds]] of one start of micro_mpi; what: own or library."""
    done = subprocess.run(["scripts/mpirun.sh", "-n", str(ranks), BIN / "micro_mpi", "--benchmark_color=false"], cwd=ROOT,
                          check=True, stdout=subprocess.PIPE, text=True)
    found = re.findall(r"^(own|library)/(\d+)/\S+\s+([\d.]+) ns", done.stdout, re.MULTILINE)
    return [[what, int(size), float(time)] for what, size, time in found]


def measure(out, is_quick):
    """Runs all programs forth and back."""
    before = provenance.begin(ROOT / "build" / "release", out, ("micro_comm", "micro_mpi"))
    threads, mpi = run_threads(), {}
    for ranks, starts in STARTS.items():
        mpi[str(ranks)] = []
        for start in range(1 if is_quick else starts):
            print(f"micro_mpi, {ranks} ranks, start {start + 1} of {starts}", file=sys.stderr, flush=True)
            mpi[str(ranks)].append(run_mpi(ranks))
    for start in range(0 if is_quick else THREAD_STARTS - 1):
        print(f"micro_comm, start {start + 2} of {THREAD_STARTS}", file=sys.stderr, flush=True)
        threads += run_threads()
    return {"benchmark": "allreduce", "trains": False, "provenance": before, "threads": threads, "mpi": mpi}


def by_key(samples):
    """[*key, nanoseconds] -> key -> all of its times."""
    found = {}
    for *key, time in samples:
        found.setdefault(tuple(key), []).append(time)
    return found


def medians(samples):
    return {key: statistics.median(times) for key, times in by_key(samples).items()}


def quartiles(ratios):
    return statistics.quantiles(ratios) if len(ratios) > 1 else ratios * 3


def limit_of(times, ranks, size):
    """The fastest way of moving the bytes: its name and its times."""
    ways = {what: t for (what, n, s), t in times.items() if (n, s) == (ranks, size) and what != "threads"}
    return min(ways.items(), key=lambda way: statistics.median(way[1]))


def beaten(threads):
    """Sentences: where thread ranks are faster than every way of moving their bytes in three of four pairs of times."""
    times = by_key(threads)
    found = []
    for (what, ranks, size), own in sorted(times.items()):
        if what != "threads":
            continue
        way, limit = limit_of(times, ranks, size)
        low, middle, _ = quartiles([b / a for a, b in zip(own, limit)])
        if low > 1:
            found.append(f"{ranks} ranks, {size} bytes: the limit '{way}' takes {middle:.2f} of the all-reduce (lower quartile "
                         f"{low:.2f}): find a faster way (traffic.h)")
    return found


def mpi_times(starts):
    """(what, bytes) -> median nanoseconds over all starts; and bytes -> the ratios library / own of the starts."""
    each = [medians(samples) for samples in starts]
    ratios = {size: sorted(m["library", size] / m["own", size] for m in each) for size in SIZES}
    return medians([[*key, time] for m in each for key, time in m.items()]), ratios


def table(result):
    rows = ["| ranks | size | threads, us | limit, us | the fastest way | limit / threads | own MPI, us | MPI_Allreduce, us "
            "| MPI_Allreduce / threads | MPI_Allreduce / own MPI | its quartiles |", "|" + "---|" * 11]
    times = by_key(result["threads"])
    for ranks in RANKS:
        mpi, ratios = mpi_times(result["mpi"][str(ranks)])
        for size in SIZES:
            t, (way, limit) = statistics.median(times["threads", ranks, size]), limit_of(times, ranks, size)
            least, own, library = statistics.median(limit), mpi["own", size], mpi["library", size]
            low, _, high = quartiles(ratios[size])
            rows.append(f"| {ranks} | {size >> 10} KiB | {t / 1e3:.0f} | {least / 1e3:.0f} | {way} | {least / t:.2f} "
                        f"| {own / 1e3:.0f} | {library / 1e3:.0f} | {library / t:.1f} | {statistics.median(ratios[size]):.2f} "
                        f"| {low:.2f} to {high:.2f} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", help="only the table of the file that is there")
    parser.add_argument("--quick", action="store_true", help="every program once")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    result = json.loads(options.out.read_text()) if options.print else measure(options.out, options.quick)
    print(table(result))
    wrong = beaten(result["threads"])
    if wrong:
        print("\n".join(["a limit that is beaten is none:", *wrong]), file=sys.stderr)
    elif not options.print:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        provenance.write(options.out, result)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
