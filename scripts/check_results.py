#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every file under results/ to a commit of the history, a clean tree, a command, a machine, and its cases to a
certificate or compared losses, and shares and counts of its outcomes to their limits; tables that a script draws are drawn anew
and compared. The CTest test `results` runs it.

    python3 scripts/check_results.py [--table]

results/index.toml says what each file is; files that wait to be recorded again are printed and counted, and one that meets
the rule must leave their list. A file of a program that trains nothing says so itself ("trains": false). Without a git history (a tarball, a shallow clone) commits are held to their form only, and
the last line says so. Pictures, and tables that a built program writes, are not drawn anew. --table prints every file with
what it is held to."""

import argparse
import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zlib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "baselines" / "pytorch"))

import compare

TRAINS_NOT = '"trains": false'
MACHINE = ("host", "system", "cpu_model", "cores", "memory_bytes")


class History:
    """The commits that HEAD comes from, as far as this checkout has them."""

    def __init__(self, root):
        self.root, self.known = root, {}
        self.why_not = self._why_not()

    def _git(self, *words):
        return subprocess.run(["git", "-c", f"safe.directory={self.root}", "-C", str(self.root), *words], capture_output=True,
                              text=True, check=False)

    def _why_not(self):
        try:
            top = self._git("rev-parse", "--show-toplevel", "--is-shallow-repository")
        except FileNotFoundError:
            return "git was not found"
        lines = top.stdout.splitlines()
        if top.returncode != 0 or Path(lines[0]).resolve() != self.root.resolve():
            return "this is no git checkout"
        return "this is a shallow clone" if lines[1] == "true" else ""

    def text_at(self, commit, path):
        """A file as that commit had it; empty where it had none."""
        return self._git("show", f"{commit}:{path}").stdout

    def files(self):
        """Tracked files under results/; without git those that are there, results/runs apart."""
        if "shallow" in self.why_not or not self.why_not:
            names = self._git("ls-files", "-z", "results").stdout.split("\0")
            return sorted(n.removeprefix("results/") for n in names if n)
        folder = self.root / "results"
        names = (f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())
        return sorted(n for n in names if not n.startswith("runs/"))

    def has(self, commit):
        if commit not in self.known:
            self.known[commit] = self._git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
        return self.known[commit]


def values_at(value, path):
    """All values at a dotted path; * stands for every entry of a list or an object."""
    for word in path.split(".") if path else []:
        if word == "*":
            return [v for part in (value if isinstance(value, list) else list(value.values()))
                    for v in values_at(part, path.split("*", 1)[1].lstrip("."))]
        value = value.get(word) if isinstance(value, dict) else None
    return [value]


def blocks(value):
    """Every object called provenance, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "provenance" and isinstance(inner, dict):
                yield inner
            else:
                yield from blocks(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from blocks(inner)


def other_builds(value):
    """Every object beside these that names a commit: another build that was measured too."""
    if isinstance(value, dict):
        if "git_commit" in value:
            yield value
        for key, inner in value.items():
            if key != "provenance":
                yield from other_builds(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from other_builds(inner)


def commit_problems(block, history):
    commit = block.get("git_commit")
    if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{40}", commit):
        yield f"git_commit is {commit!r}, no commit"
    elif not history.why_not and not history.has(commit):
        yield f"commit {commit[:12]} is not in the history of HEAD"
    if block.get("git_dirty") is not False:
        yield f"git_dirty is {block.get('git_dirty')!r}, not false"


def block_problems(block, history):
    yield from commit_problems(block, history)
    command = block.get("command")
    if not isinstance(command, str) or not command.strip():
        yield "no command"
    elif re.search(r"(^|[\s='\"])/(home|root|work|usr|tmp|opt|mnt|srv)/", command):
        yield f"the command names a path outside the tree: {command}"
    missing = [key for key in MACHINE if not block.get(key)]
    if missing:
        yield f"the machine lacks {', '.join(missing)}"


def lines_of(text):
    """The objects of lines, each held to the checksum at its end where it has one. Raises ValueError."""
    objects = []
    for number, line in enumerate(text.splitlines(), 1):
        value, seal = json.loads(line), re.search(r',"checksum":"([^"]{8})"}$', line)
        if seal and seal[1] != f"{zlib.crc32(line[:seal.start()].encode()):08x}":
            raise ValueError(f"line {number} was changed: its checksum is another")
        objects.append(value)
    return objects


def read(path):
    """Of a .jsonl {"all": its lines, "lines": those that ended ok}, the value of a .json; None of what is neither."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        lines = lines_of(text)
        return {"all": lines, "lines": [line for line in lines if line.get("status") == "ok"]}
    return json.loads(text) if path.suffix == ".json" else None


def verdict_problems(rule, value):
    found = values_at(value, rule["cases"])
    cases = [case for part in found for case in (part if isinstance(part, list) else [part])]
    if not cases or cases == [None]:
        yield f"no case at {rule['cases']!r}"
        return
    ended = Counter(line.get("status") for line in values_at(value, "all")[0] if line.get("kind") == "case") if "ended" in rule else {}
    if dict(ended) != rule.get("ended", {}):
        yield f"cases ended as {dict(ended)}; results/index.toml has {rule['ended']}"
    for number, case in enumerate(cases):
        for verdict in values_at(case, rule["verdict"]):
            if verdict not in rule["accepts"]:
                yield f"case {number}: {rule['verdict']} is {verdict!r}; accepted: {', '.join(rule['accepts'])}"
                return
        # A smaller model is proven by `scaled`, and no step of the run itself: the rule says why that is enough.
        levels = values_at(case, f"{rule['verdict'].rpartition('.')[0]}.level") if "." in rule["verdict"] else []
        if "scaled" in levels and not rule.get("scaled"):
            yield f"case {number}: its certificate is of a smaller model (scaled), and the rule has no `scaled` = why"
            return


def loss_problems(rule, value):
    """Losses of several sides of one training, held to the tolerance of now: the file's own may have been wider."""
    settings = value["settings"]
    allowed = compare.tolerance_of(settings["layers"], settings["hidden"])
    for side, apart in values_at(value, rule["losses"])[0].items():
        if not apart <= allowed:
            yield f"losses of {side} are {apart:.2g} apart; accepted: {allowed:.2g} (baselines/pytorch/compare.py)"


def share_problems(rule, value):
    """Of a rule of `shares`: the part of the values among some words that are some of these."""
    found = [v for v in values_at(value, rule["values"]) if v in rule["among"]]
    part = sum(v in rule["counted"] for v in found) / max(len(found), 1)
    if not found:
        yield f"no {' or '.join(map(str, rule['among']))} at {rule['values']!r}"
    elif part < rule["at_least"]:
        yield f"{' or '.join(map(str, rule['counted']))} is {part:.4f} of {len(found)} at {rule['values']!r}; at least {rule['at_least']}"


def fact_problems(rule, value):
    """Of a rule of `facts`: so many values at least, each what it says, or as large."""
    found = values_at(value, rule["at"])
    if len(found) < rule.get("number", 1):
        yield f"{len(found)} values at {rule['at']!r}; at least {rule.get('number', 1)}"
    if "is" in rule and any(v != rule["is"] for v in found):
        yield f"{next(v for v in found if v != rule['is'])!r} at {rule['at']!r}, where {rule['is']!r} is asked for"[:400]
    if "least" in rule and not all(isinstance(v, (int, float)) and v >= rule["least"] for v in found):
        yield f"a value below {rule['least']} at {rule['at']!r}"


def keys_of(text):
    """Plan keys of a docs/plan.md."""
    return set(re.findall(r"^\| `([a-z_0-9]+\.[a-z_0-9.]+)` ", text, re.MULTILINE))


def younger_problems(rule, value, root, history):
    """Of a rule of `younger`: the plan keys that no commit of the file had (none that ran `least` plans), named one by one."""
    if history.why_not:
        return
    parts = value.get("blocks", []) if "least" in rule else []
    ends = [part["first"] for part in parts[1:]] + [value.get("plans")]
    enough = [part["provenance"] for part, end in zip(parts, ends) if end - part["first"] >= rule["least"]] if parts else blocks(value)
    had = set()
    for block in enough:
        had |= keys_of(history.text_at(block["git_commit"], "docs/plan.md"))
    now = keys_of((root / "docs" / "plan.md").read_text(encoding="utf-8"))
    if sorted(now - had) != sorted(rule["keys"]):
        yield f"plan keys that its programs had not are {sorted(now - had)}; results/index.toml has {sorted(rule['keys'])}"


def data_problems(name, index, root, history):
    """Why a file of data does not meet the rule."""
    try:
        value = read(root / "results" / name)
    except ValueError as error:
        yield f"cannot be read: {error}"
        return
    if value is None:
        yield "this format holds no provenance; write JSON"
        return
    beside = root / "results" / f"{name}.provenance.json"
    said = [value, json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}]
    found = list(blocks(said))
    if not found:
        yield "no provenance"
    problems = {p for block in found for p in block_problems(block, history)}
    for problem in sorted(problems | {p for block in other_builds(said) for p in commit_problems(block, history)}):
        yield problem
    for rule in index.get("trains", []):
        if fnmatch.fnmatch(name, rule["file"]):
            yield from verdict_problems(rule, value)
            if "losses" in rule:
                yield from loss_problems(rule, value)
    if kind_of(name, index)[0] == "trains nothing" and not any(isinstance(part, dict) and part.get("trains") is False for part in said):
        yield f"does not say {TRAINS_NOT}, and results/index.toml says that it trains nothing"
    for rule in index.get("shares", []):
        if fnmatch.fnmatch(name, rule["file"]):
            yield from share_problems(rule, value)
    for rule in index.get("facts", []):
        if rule["file"] == name:
            yield from fact_problems(rule, value)
    for rule in index.get("younger", []):
        if rule["file"] == name:
            yield from younger_problems(rule, value, root, history)


def excused(name, index, problems):
    """Those of the problems that the waiting list names: all of a file's, or what it `lacks`."""
    entry = next((w for w in index.get("waiting", []) if w["file"] == name), None)
    return [problem for problem in problems if entry and entry.get("lacks", "") in problem]


def lacking(name, index, problems):
    """Those of the problems that a waiting file `lacks`: without what came later it is still worth its tables."""
    named = {w["file"] for w in index.get("waiting", []) if "lacks" in w}
    return excused(name, index, problems) if name in named else []


def kind_of(name, index):
    """(what a file is, why or from what), or None where the index has no such file."""
    for rule in index.get("trains", []):
        if fnmatch.fnmatch(name, rule["file"]):
            return "trains", f"{rule['verdict']} of every case"
    for pattern, why in index.get("trains_nothing", {}).items():
        if fnmatch.fnmatch(name, pattern):
            return "trains nothing", why
    if any(fnmatch.fnmatch(name, rule["file"]) for rule in index.get("shares", [])):
        return "shares", "parts of its outcomes"
    for rule in index.get("drawn", []):
        if any(fnmatch.fnmatch(name, pattern) for pattern in rule["files"]):
            return "drawn", f"{rule['from']}: {rule['command']}"
    return ("text", "") if name in index.get("texts", {}).get("files", []) else None


def drawn_problems(name, index, root, files):
    rule = next(r for r in index["drawn"] if any(fnmatch.fnmatch(name, p) for p in r["files"]))
    if not fnmatch.filter(files, rule["from"]) or Path(rule["from"]).parent != Path(name).parent:
        yield f"drawn from {rule['from']}, which is no file of its folder"
    program = next((w for w in rule["command"].split() if w.endswith((".py", ".sh"))), None)
    if program and not (root / program).is_file():
        yield f"drawn by {program}, which is not there"
    elif program and program.endswith(".py") and name.endswith(".md"):
        yield from redrawn_problems(name, rule["command"], program, root)


def redrawn_problems(name, command, program, root):
    """Why a table is not what its script makes of the data as they are. Asked are scripts that print it (--print) or draw
    into another folder (--draw tables --out)."""
    file, script = root / "results" / name, root / program
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / file.name
        if "--draw" in command:
            for data in file.parent.glob("*.json"):
                shutil.copy(data, folder)
            words = [*shlex.split(command.partition(program)[2].replace("--draw", "--draw tables")), "--out", folder]
        elif "--print" in script.read_text(encoding="utf-8"):
            words = ["--print"]
        else:
            return
        done = subprocess.run([sys.executable, "-B", script, *words], cwd=root, capture_output=True, text=True, check=False)
        if "--print" in words and done.returncode == 0:  # and a line about what was left out
            drawn.write_text(re.sub(r"^left out, .*\n\Z", "", done.stdout, flags=re.MULTILINE), encoding="utf-8")
        if not drawn.is_file():
            yield f"{program} draws it no more: {(done.stderr.strip().splitlines() or ['it writes no such file'])[-1]}"
        elif drawn.read_text(encoding="utf-8") != file.read_text(encoding="utf-8"):
            yield f"not what {program} draws of the data beside it: {command}"


def check(root, history):
    """(problems of files that must meet the rule, [waiting: file, why, what it lacks], rows of the table)"""
    index = tomllib.loads((root / "results" / "index.toml").read_text(encoding="utf-8"))
    files = history.files()
    rules = [r["file"] for kind in ("trains", "shares", "facts", "younger") for r in index.get(kind, [])] + list(index.get("trains_nothing", {}))
    rules += [pattern for r in index.get("drawn", []) for pattern in r["files"]] + index.get("texts", {}).get("files", [])
    waiting = {w["file"]: w["why"] for w in index.get("waiting", [])}
    bad = [f"{name}: waits to be recorded again, but there is no such file" for name in waiting if name not in files]
    bad += [f"{pattern}: results/index.toml has it, and there is no such file" for pattern in rules if not fnmatch.filter(files, pattern)]
    lacks, rows, still = {}, [], []
    for name in files:
        if not (root / "results" / name).is_file():
            bad.append(f"{name}: it is of the history and not here")
            continue
        kind = kind_of(name, index)
        if kind is None:
            bad.append(f"{name}: results/index.toml does not say what it is")
            continue
        rows.append((name, *kind))
        if kind[0] == "drawn":
            lacks[name] = list(drawn_problems(name, index, root, files))
        elif kind[0] != "text":
            lacks[name] = list(data_problems(name, index, root, history))
        problems = lacks.get(name, [])
        waits = excused(name, index, problems)
        if waits:
            still.append((name, waiting[name], waits[0]))
        elif name in waiting:
            bad.append(f"{name}: waits to be recorded again, but it meets the rule: take it from the list in results/index.toml")
        bad += [f"{name}: {problem}" for problem in problems if problem not in waits]
    return bad, still, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="every file and what it is held to")
    options = parser.parse_args()
    history = History(ROOT)
    bad, waiting, rows = check(ROOT, history)
    if options.table:
        print("\n".join(f"{name:52} {kind:15} {why}" for name, kind, why in rows))
    for name, why, lacks in waiting:
        print(f"waiting to be recorded again: {name}: {why} ({lacks})")
    print("\n".join(bad))
    print(f"{len(rows)} files, {len(waiting)} waiting to be recorded again, {len(bad)} problems"
          + (f"; commits were held to their form only: {history.why_not}" if history.why_not else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
