#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast text becomes ids beside the `tokenizers` package, on one thread each, in turns.

    .venv/bin/python experiments/micro/tokenizer.py [--rounds 5] [--program build/release/bin/micro_tokenizer] [FAMILY...]

The text is this tree's pages and sources, line by line; the vocabularies are those of tests/tokenizer. A round is a fresh process of each:
micro_tokenizer, and `encode_batch_fast` of the package with TOKENIZERS_PARALLELISM=false. Both must give the same ids. Prints the medians of
the first pass, with nothing remembered, and of the best of three."""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "tokenizer"))
FAMILIES = ("gpt2", "roberta", "llama", "llama3", "bert_uncased", "t5")


def by_package(path, text):
    """In this process, which is a fresh one."""
    from tokenizers import Tokenizer
    whole = Path(text).read_bytes().decode()
    lines = [line + "\n" for line in whole.split("\n")]
    lines[-1] = lines[-1][:-1]
    lines = [line for line in lines if line]
    tokenizer = Tokenizer.from_file(path)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        encoded = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        seconds.append(time.perf_counter() - began)
    ids = [i for e in encoded for i in e.ids]
    return {"crc": zlib.crc32(struct.pack(f"<{len(ids)}i", *ids)), "ids": len(ids), "s": seconds}


def told(words):
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES, metavar="FAMILY")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/micro_tokenizer"))
    parser.add_argument("--package", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.package:
        print(json.dumps(by_package(*options.package)))
        return
    import families
    maker = families.Maker(ROOT)
    print("| family | package, first | kuafu, first | package, best of 3 | kuafu, best of 3 |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        sources = sorted([*ROOT.glob("*.md"), *ROOT.glob("src/**/*.md"), *ROOT.glob("src/**/*.cpp"), *ROOT.glob("src/**/*.h")])
        Path(text).write_bytes(b"".join(path.read_bytes() for path in sources))
        size = os.path.getsize(text)
        for name in options.families:
            path = os.path.join(folder, f"{name}.json")
            Path(path).write_text(json.dumps(families.FAMILIES[name](maker)), encoding="utf-8")
            package, own = [], []
            for _ in range(options.rounds):
                package.append(told([sys.executable, __file__, "--package", path, text]))
                own.append(told([options.program, path, text]))
                assert package[-1]["crc"] == own[-1]["crc"], f"{name}: other ids"
            rates = [statistics.median(size / pick(one["s"]) / 1e6 for one in runs)
                     for pick in (lambda s: s[0], min) for runs in (package, own)]
            print(f"| {name} | " + " | ".join(f"{rate:.1f} MB/s" for rate in rates) + " |", flush=True)
    print(f"\n{size / 1e6:.1f} MB of text, {options.rounds} rounds; equal ids in each")


if __name__ == "__main__":
    main()
