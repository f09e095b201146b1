#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexities of the published OPT on WikiText-2 beside those of the literature (papers.toml).

    scripts/python.sh experiments/opt_perplexity/run.py [--weights FOLDER --text FILE] [--json FILE] [--bin build/release/bin] [-- OPTIONS]

FOLDER has opt-125m, opt-350m, ... as transformers saves them, with tokenizer.json; FILE is wiki.test.raw, or the folder
that has it. What stands behind -- goes to `kuafu perplexity`: -- --ranks 4 --set parallel.tensor.mode=1d --set parallel.tensor.size=4.
A model that is not there is `unresolved`. Exit codes: 0 none fails, 1 one does, 2 usage."""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Published in f16, and without the tokens behind the last whole window, 1 window in 140.
TOLERANCE = 0.01


def fail(words):
    print(f"opt_perplexity: {words}", file=sys.stderr)
    raise SystemExit(2)


def test_text(path: Path) -> str:
    """The text that published perplexities are of: the lines of the test part, empty ones without their end, with an empty line
    between each two."""
    file = path / "wiki.test.raw" if path.is_dir() else path
    if not file.is_file():
        fail(f"--text {path}: there is no {file}; give wiki.test.raw of WikiText-2 raw, or its folder")
    with file.open(encoding="utf-8", newline="") as lines:
        return "\n\n".join(line if line.strip() else "" for line in lines)


def called(kuafu: Path, *words) -> None:
    done = subprocess.run([kuafu, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and "warning:" not in line]
        raise RuntimeError(said[0] if said else f"kuafu {words[0]} ended with {done.returncode}")


def perplexity_of(kuafu: Path, folder: Path, text: Path, more: list) -> dict:
    """The member `perplexity` of the document. Raises RuntimeError where it cannot be found."""
    with tempfile.TemporaryDirectory() as own:
        found = Path(own) / "found.json"
        called(kuafu, "import", folder, "--format", "hf", "--plan-only", "--out", own)
        called(kuafu, "perplexity", Path(own) / "plan.toml", "--init", folder, "--set", f"data.tokenizer={folder / 'tokenizer.json'}",
               "--file", text, "--json", found, *more)
        return json.loads(found.read_text())["perplexity"]


def row_of(model: dict, weights, text, kuafu: Path, more: list) -> dict:
    row = {"model": model["name"], "published": model["perplexity"], "perplexity": None, "verdict": "unresolved"}
    folder = weights / model["name"] if weights else None
    if folder is None or not folder.is_dir():
        return row | {"reason": f"there is no {folder}" if folder else "no --weights were given"}
    if not (folder / "tokenizer.json").is_file():
        return row | {"reason": f"{folder} has no tokenizer.json; AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it"}
    try:
        found = perplexity_of(kuafu, folder, text, more)
    except RuntimeError as error:
        return row | {"reason": str(error)}
    if found["value"] is None:
        return row | {"reason": "its perplexity is infinite"}
    holds = abs(found["value"] / model["perplexity"] - 1) <= TOLERANCE
    return row | {"perplexity": found["value"], "tokens": found["tokens"], "seconds": found["seconds"], "text_hash": found["text_hash"],
                  "verdict": "holds" if holds else "fails"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, metavar="FOLDER")
    parser.add_argument("--text", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows")
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, more = parser.parse_args(words[:split]), words[split + 1:]
    if (options.weights is None) != (options.text is None):
        fail("--weights and --text go together: the folder of the models, and wiki.test.raw")
    if options.weights and not options.weights.is_dir():
        fail(f"--weights {options.weights} is no folder; give one that has opt-125m, opt-350m, ...")
    papers = tomllib.loads((HERE / "papers.toml").read_text(encoding="utf-8"))
    rows = []
    with tempfile.TemporaryDirectory() as own:
        text = Path(own) / "test.txt"
        if options.text:
            text.write_bytes(test_text(options.text).encode())
        print("| model | published | here | verdict |\n|---|---|---|---|")
        for model in papers["models"]:
            row = row_of(model, options.weights, text, options.bin / "kuafu", more)
            rows.append(row)
            here = "" if row["perplexity"] is None else f"{row['perplexity']:.2f}"
            why = f": {row['reason']}" if "reason" in row else ""
            print(f"| {row['model']} | {row['published']:.2f} | {here} | {row['verdict']}{why} |", flush=True)
    print(f"published: {papers['source']}; holds: within {TOLERANCE:.0%}")
    if options.json:
        options.json.write_text(json.dumps({"source": papers["source"], "tolerance": TOLERANCE, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["verdict"] == "fails" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
