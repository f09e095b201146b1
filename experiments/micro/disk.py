#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the disk tier writes and reads beside what fio reaches with the same pattern, in turns.

    .venv/bin/python experiments/micro/disk.py [--folder /var/tmp] [--rounds 10] [--out results/benchmarks/disk.json] [--print]

A round writes and reads a file of --size once by each, the order by turns: micro_disk in chunks of 24 MiB, one ahead, which the tier cuts into
requests of 1 MiB, 8 at once, with a checksum of each; fio with requests of 1 MiB, 8 at once, O_DIRECT and io_uring too, without checksums.
--print prints the table of the file that is there. fio is Debian's package (apt-get install fio)."""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "report"))

import provenance

OUT = ROOT / "results" / "benchmarks" / "disk.json"
BIN = ROOT / "build" / "release" / "bin"
WAYS = ("write", "read")


def by_tier(folder, size):
    done = subprocess.run([BIN / "micro_disk", "--folder", folder, "--size", size], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    return {way: found[f"{way}_gbs"] for way in WAYS} | {"how": found["how"], "bytes": found["bytes"]}


def by_fio(folder, size):
    with tempfile.TemporaryDirectory(dir=folder) as place:
        common = [f"--filename={place}/fio", f"--size={size.replace(' ', '').replace('iB', '')}", "--bs=1M", "--iodepth=8", "--direct=1", "--ioengine=io_uring", "--output-format=json",
                  "--randrepeat=0", "--refill_buffers"]
        subprocess.run(["fio", "--name=space", *common, "--rw=write"], check=True, stdout=subprocess.DEVNULL)   # the tier's file has its size before it is timed
        found = {}
        for way in WAYS:
            done = subprocess.run(["fio", f"--name={way}", *common, f"--rw={way}"], check=True, stdout=subprocess.PIPE, text=True)
            found[way] = json.loads(done.stdout)["jobs"][0][way]["bw_bytes"] / 1e9
    return found


def measure(options):
    before = provenance.begin(ROOT / "build" / "release", options.out, ("micro_disk",), fio=subprocess.run(["fio", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    rounds = []
    for r in range(options.rounds):
        print(f"round {r + 1} of {options.rounds}", file=sys.stderr, flush=True)
        sides = [("tier", by_tier), ("fio", by_fio)]
        rounds.append({name: side(options.folder, options.size) for name, side in sides[::1 if r % 2 == 0 else -1]})
    return {"benchmark": "disk", "trains": False, "provenance": before, "size": options.size, "rounds": rounds}


def table(result):
    rows = ["| | tier, GB/s | fio, GB/s | tier / fio | least, most |", "|---|---|---|---|---|"]
    for way in WAYS:
        tier, fio = ([r[side][way] for r in result["rounds"]] for side in ("tier", "fio"))
        ratios = [a / b for a, b in zip(tier, fio, strict=True)]
        rows.append(f"| {way} | {statistics.median(tier):.3g} | {statistics.median(fio):.3g} | **{statistics.median(ratios):.2f}** | {min(ratios):.2f}, {max(ratios):.2f} |")
    return "\n".join(rows) + f"\n\n{result['rounds'][0]['tier']['how']}; {len(result['rounds'])} rounds of {result['size']}.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/var/tmp", help="of the disk (default /var/tmp)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", default="2 GiB", help="of the file (default 2 GiB)")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--print", action="store_true", dest="prints")
    options = parser.parse_args()
    if not options.prints:
        if not shutil.which("fio"):
            sys.exit("fio is not installed: apt-get install fio")
        provenance.write(options.out, measure(options))
    print(table(json.loads(options.out.read_text())), end="")


if __name__ == "__main__":
    main()
