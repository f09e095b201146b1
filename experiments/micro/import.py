#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a folder of transformers of some GB becomes a checkpoint, and ranks' weights, beside what the disk reads and writes.

    scripts/python.sh experiments/micro/import.py [--gigabytes 1] [--rounds 5] [--json results/benchmarks/import.json] [--bin build/release/bin]

Each round, the page cache dropped of the files before each: reads the folder's files by 1 MiB into one buffer; a rank reads them into its model, as
`--init` does; `kuafu import`; reads and writes the files by 1 MiB, with fsync, as a copy does. The weights are random numbers of a GPT-2; what a rank
read is compared with them tensor by tensor, and what was imported by an export, byte by byte."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "report"))

import provenance

BLOCK = 1 << 20
HIDDEN, VOCAB, SEQUENCE = 1024, 32768, 1024
LAYER_BYTES, OTHER_BYTES = 4 * 12 * HIDDEN * HIDDEN, 4 * (VOCAB + SEQUENCE) * HIDDEN


def plan_words(layers: int) -> list:
    keys = {"model.layers": layers, "model.hidden": HIDDEN, "model.heads": 16, "model.vocab": VOCAB, "model.sequence": SEQUENCE, "model.dtype": "f32",
            "model.norm_epsilon": 1e-5, "data.kind": "synthetic", "train.batch": 1, "train.steps": 1, "train.validation_batches": 0,
            "optimizer.kind": "sgd", "optimizer.momentum": 0}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def called(kuafu: Path, *words) -> None:
    done = subprocess.run([kuafu, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"kuafu {words[0]} failed ({done.returncode}): {done.stderr}")


def files_of(folder: Path) -> list:
    return sorted(folder.glob("*.safetensors"))


def forget(folder: Path) -> None:
    """Out of the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder: Path) -> None:
    buffer = bytearray(BLOCK)
    for file in files_of(folder):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def copy(folder: Path, out: Path) -> None:
    buffer = memoryview(bytearray(BLOCK))
    for file in files_of(folder):
        with file.open("rb", buffering=0) as source, (out / file.name).open("wb", buffering=0) as target:
            while count := source.readinto(buffer):
                target.write(buffer[:count])
            os.fsync(target.fileno())


def seconds_of_init(bin: Path, folder: Path) -> float:
    forget(folder)
    done = subprocess.run([bin / "micro_init", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[0])


def timed(folder: Path, what) -> float:
    forget(folder)
    begin = time.monotonic()
    what()
    return time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    options = parser.parse_args()
    kuafu = options.bin / "kuafu"
    found = provenance.begin(options.bin.parent, options.json, ("kuafu-worker", "micro_init")) if options.json else None
    layers = max(1, round((options.gigabytes * 1e9 - OTHER_BYTES) / LAYER_BYTES))
    (ROOT / "build").mkdir(exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as own:
        own = Path(own)
        called(kuafu, "run", "/dev/null", "--checkpoint", own / "saved", *plan_words(layers))
        called(kuafu, "export", own / "saved", "--format", "hf", "--out", own / "theirs")
        subprocess.run(["rm", "-r", own / "saved"], check=True)
        size = sum(file.stat().st_size for file in files_of(own / "theirs"))
        for number in range(options.rounds):
            row = {}
            row["read_s"] = timed(own / "theirs", lambda: read(own / "theirs"))
            row["init_s"] = seconds_of_init(options.bin, own / "theirs")
            into = own / f"begun{number}"
            row["import_s"] = timed(own / "theirs", lambda: called(kuafu, "import", own / "theirs", "--format", "hf", "--out", into))
            (own / "copy").mkdir(exist_ok=True)
            row["copy_s"] = timed(own / "theirs", lambda: copy(own / "theirs", own / "copy"))
            if number == 0:
                called(kuafu, "export", into, "--format", "hf", "--out", own / "again")
                for file in files_of(own / "theirs"):
                    if file.read_bytes() != (own / "again" / file.name).read_bytes():
                        raise SystemExit(f"import, export: {file.name} has other bytes")
                subprocess.run(["rm", "-r", own / "again"], check=True)
            subprocess.run(["rm", "-r", into, own / "copy"], check=True)
            rows.append(row)
            print(f"round {number + 1}: " + ", ".join(f"{name.removesuffix('_s')} {size / seconds / 1e9:.2f} GB/s" for name, seconds in row.items()), flush=True)
    ratios = {"init_of_read": [r["read_s"] / r["init_s"] for r in rows], "import_of_read": [r["read_s"] / r["import_s"] for r in rows],
              "import_of_copy": [r["copy_s"] / r["import_s"] for r in rows]}
    for name, values in ratios.items():
        print(f"{name}: median {statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f} of {len(values)} rounds; {size / 1e9:.2f} GB")
    if options.json:
        provenance.write(options.json, {"benchmark": "import", "trains": False, "bytes": size, "rounds": rows, "ratios": ratios, "provenance": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
