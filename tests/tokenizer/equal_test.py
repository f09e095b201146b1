# SPDX-License-Identifier: Apache-2.0
"""Holds `kuafu tokenize` to the `tokenizers` package, id for id and text for text.

    equal_test.py [--count N] [--seed S] [--keep DIR] [--out DIR] [FAMILY...]

Trains small tokenizers on this tree's text (families.py), draws N strings of a seed for each (hostile.py), and prints a
line a family. With `characters` the strings are those of every character that is drawn at all, between letters and alone.
With --out the families are a campaign: DIR/result.json has a row of each, and a call after a kill goes on.
Exit codes: 0 all equal, 1 something differs, 77 the package or the tokenizers of this build are not there.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.environ.get("KUAFU_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
KUAFU = os.environ.get("KUAFU_PROGRAM") or os.path.join(os.environ.get("KUAFU_BINARY_DIR", "build/release"), "bin", "kuafu")
SKIPPED = 77
sys.path.insert(0, os.path.join(ROOT, "scripts", "report"))
# Drawn files may be refused for these reasons alone: the package takes one of two such tokens by chance, or matches nothing.
MAY_BE_REFUSED = ("are normalized to the same", "of which normalizing leaves nothing")
try:
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh installs it")
    sys.exit(SKIPPED)
import experiment  # noqa: E402
import families  # noqa: E402
import hostile  # noqa: E402
import provenance  # noqa: E402


def told(path, rows, *options):
    """What `kuafu tokenize` answers to each row."""
    sent = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([KUAFU, "tokenize", path, "--json", *options], input=sent, capture_output=True, text=True)
    if "without utf8proc" in done.stderr:
        print(f"skipped: {done.stderr.strip()}")
        sys.exit(SKIPPED)
    assert done.returncode == 0, f"{path} {options}: exit code {done.returncode}: {done.stderr}"
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(rows), f"{len(answers)} answers to {len(rows)} rows"
    return answers


def smallest(path, text, options, expected):
    """A string as short as can be that still differs, by leaving out parts."""
    size = len(text) // 2
    while size > 0:
        at = 0
        while at < len(text):
            less = text[:at] + text[at + size:]
            if told(path, [less], *options)[0] != expected(less):
                text = less
            else:
                at += size
        size //= 2
    return text


def without_panic(call, rows):
    """call(row) of each; None where the package panics, which odd orders of parts make it do."""
    try:
        return [call(row) for row in rows]
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        if len(rows) == 1:
            return [None]
        half = len(rows) // 2
        return without_panic(call, rows[:half]) + without_panic(call, rows[half:])


class Family:
    def __init__(self, name, document, folder):
        self.name = name
        self.path = os.path.join(folder, f"{name}.json")
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False)
        self.package = Tokenizer.from_file(self.path)
        self.package.no_truncation()
        self.wrong = []

    def refusal(self):
        """What `kuafu` says of the file; empty: it takes it."""
        return subprocess.run([KUAFU, "tokenize", self.path], input="", capture_output=True, text=True).stderr.strip()

    def encode(self, strings, is_special):
        options = ["--special"] if is_special else []
        expected = without_panic(lambda text: self.package.encode(text, add_special_tokens=is_special).ids, strings)
        given = told(self.path, strings, *options)
        different = [i for i in range(len(strings)) if expected[i] is not None and given[i] != expected[i]]
        for i in different[:2]:
            text = smallest(self.path, strings[i], options,
                            lambda t: self.package.encode(t, add_special_tokens=is_special).ids)
            self.wrong.append(f"{self.name}: {text!a} is {told(self.path, [text], *options)[0]}, to the package "
                              f"{self.package.encode(text, add_special_tokens=is_special).ids}")
        return expected, len(strings) - len(different)

    def decode(self, rows, is_special):
        """Rows that hold a token at least: of none at all the package's BPEDecoder ends in a panic."""
        options = ["--decode"] + (["--special"] if is_special else [])
        expected = without_panic(lambda row: self.package.decode(row, skip_special_tokens=not is_special), rows)
        given = told(self.path, rows, *options)
        different = [i for i in range(len(rows)) if expected[i] is not None and given[i] != expected[i]]
        for i in different[:2]:
            self.wrong.append(f"{self.name}: ids {rows[i]} are {given[i]!a}, to the package {expected[i]!a}")
        return len(rows) - len(different)

    def random_rows(self, seed, count):
        """Ids that no text has in this order."""
        draw = random.Random(seed)
        ids = sorted(self.package.get_vocab(with_added_tokens=True).values())
        return [[draw.choice(ids) for _ in range(draw.randrange(1, 9))] for _ in range(count)]

    def run(self, strings, seed):
        """What was compared, and how much of it is equal; what differs is in `wrong`."""
        began = time.monotonic()
        plain, equal = self.encode(strings, False)
        with_special, equal_special = self.encode(strings[:len(strings) // 4], True)
        rows = [row for row in plain if row][:len(strings) // 2] + self.random_rows(seed, len(strings) // 4)
        decoded = self.decode(rows, False)
        some = [row for row in with_special if row]
        decoded += self.decode(some, True)
        print(f"{self.name}: {equal} of {len(strings)} strings have equal ids, {equal_special} of {len(with_special)} "
              f"with special tokens; {decoded} of {len(rows) + len(some)} rows have equal texts "
              f"({time.monotonic() - began:.1f} s)", flush=True)
        return {"family": self.name, "strings": len(strings), "equal": equal, "with_special": len(with_special), "equal_with_special": equal_special,
                "decoded": len(rows) + len(some), "equal_decoded": decoded, "wrong": self.wrong}


def every_character():
    """Strings that hold all characters whose tables agree, 64 each, between letters and alone."""
    drawn = hostile.Strings().assigned
    parts = [drawn[i:i + 64] for i in range(0, len(drawn), 64)]
    return ["".join(f"a{chr(c)}b {chr(c)} 1{chr(c)}\u0301." for c in part) for part in parts]


def campaign(given, names, measured):
    """Rows of all families, kept one by one."""
    import tokenizers
    given.out.mkdir(parents=True, exist_ok=True)
    build = pathlib.Path(KUAFU).parents[1]
    found = provenance.begin(build, given.out, programs=("kuafu",), tokenizers=tokenizers.__version__)
    cases = [(name, given.count, given.seed) for name in names]
    rows = experiment.measured(cases, lambda name, *_: measured(name), given.out, [pathlib.Path(KUAFU)])
    provenance.write(given.out / "result.json", {"provenance": found, "trains": False, "seed": given.seed, "rows": rows})
    experiment.finished(given.out)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(families.FAMILIES)} or characters")
    parser.add_argument("--count", type=int, default=300, help="strings a family (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, metavar="N",
                        help="in the place of families: N tokenizers of parts that are drawn too (seed, seed + 1, ...)")
    parser.add_argument("--keep", help="folder that keeps the trained files")
    parser.add_argument("--out", type=pathlib.Path, help="folder of a campaign's result.json: whole families alone")
    given = parser.parse_args()
    if given.out and (given.families or given.drawn is not None):
        parser.error("--out takes all families; leave --drawn and names of families out")
    wrong = []
    with tempfile.TemporaryDirectory() as own:
        folder = given.keep or own
        os.makedirs(folder, exist_ok=True)
        maker = families.Maker(ROOT)
        makers = families.FAMILIES if given.drawn is None else {
            f"drawn_{seed}": (lambda maker, seed=seed: families.drawn(maker, seed))
            for seed in range(given.seed, given.seed + given.drawn)}
        chosen = [name for name in given.families if name != "characters"]
        strings = hostile.Strings()
        total = 0

        def measured(name):
            family = Family(name, makers[name](maker), folder)
            if given.drawn is not None and any(reason in family.refusal() for reason in MAY_BE_REFUSED):
                print(f"{name}: {family.refusal()}")
                return {"strings": 0, "wrong": []}
            strings.begin(f"{given.seed} {name}")
            return family.run([strings.draw() for _ in range(given.count)], given.seed)

        names = [] if "characters" in given.families else chosen or list(makers)
        rows = campaign(given, names, measured) if given.out else [measured(name) for name in names]
        for row in rows:
            wrong += row["wrong"]
            total += row["strings"]
        for name in chosen or families.FAMILIES if "characters" in given.families else ():
            family = Family(name, families.FAMILIES[name](maker), folder)
            rows = every_character()
            _, equal = family.encode(rows, False)
            wrong += family.wrong
            print(f"{name}: {equal} of {len(rows)} strings of all characters have equal ids", flush=True)
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"{total} strings, {len(wrong)} differences told, seed {given.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
