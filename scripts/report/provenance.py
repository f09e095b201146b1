# SPDX-License-Identifier: Apache-2.0
"""Where a result comes from: the block {git_commit, git_dirty, command, machine, ...} that everything under results/
carries. The programs write it themselves (src/kuafu/record/provenance.h); drivers in Python take the program's and put
their own command into it. scripts/check_results.py holds what is committed to it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("--", ".", ":(exclude)results")     # what a result is made of; results are made of nothing under results/


def git(*words):
    """What git prints in the source tree; None where it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def portable(words):
    """The words as typed at the root of the source tree."""
    words = [str(w) for w in words]
    if Path(words[0]).name.startswith("python"):
        words[0] = ".venv/bin/python"
    inside = [os.path.relpath(w, ROOT) if os.path.isabs(w) and Path(w).is_relative_to(ROOT) else w for w in words]
    return shlex.join(inside)


def block(build, programs=("kuafu-worker",), **more):
    """The block of a run that this Python program drives with `programs` of a build folder. Dirty where the programs or
    this tree have changes, or where their sources differ."""
    kuafu = Path(build) / "bin" / "kuafu"
    done = subprocess.run([str(kuafu), "doctor", "--provenance"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{kuafu} doctor --provenance: {done.stderr.strip() or done.returncode}; build kuafu again")
    found = json.loads(done.stdout)
    # A program holds the commit that it was built from.
    is_older = any(found["git_commit"].encode() not in kuafu.with_name(name).read_bytes() for name in programs)
    if git("rev-parse", "HEAD") is None:  # a tree without a history is of the commit that it is said to be
        is_changed = os.environ.get("KUAFU_COMMIT") != found["git_commit"]
    else:
        changes = git("status", "--porcelain", "--untracked-files=no", *SOURCES)
        is_changed = changes != "" or git("diff", "--quiet", found["git_commit"], "HEAD", *SOURCES) is None
    found["git_dirty"] = found["git_dirty"] or is_changed or is_older
    found["command"] = portable([sys.executable, sys.argv[0], *sys.argv[1:]])
    return found | more


def require_recordable(out, found):
    """Exits where `out` lies in results/ (results/runs apart) and the block is of no commit with a clean tree. With
    KUAFU_EVEN_DIRTY set it is written none the less, and the test `results` names it."""
    place = Path(out).resolve()
    if not place.is_relative_to(ROOT / "results") or place.is_relative_to(ROOT / "results" / "runs"):
        return
    if found["git_dirty"] and not os.environ.get("KUAFU_EVEN_DIRTY"):
        sys.exit(f"{out}: results that are kept come from a commit; this tree has local changes, or its programs were built "
                 "from another one. Commit and build again, or write elsewhere (KUAFU_EVEN_DIRTY=1 writes it none the less, and "
                 "fails the test `results`)")


def begin(build, out, programs=("kuafu-worker",), **more):
    """The block of what will be written to `out`, taken before anything is measured; exits where it may not be."""
    found = block(build, programs, **more)
    require_recordable(out, found)
    return found


def kept_parts(known, build, out, programs=("kuafu-worker",)):
    """Of a result that is measured part by part: what `known` has, with a fresh block, where the programs of the same
    commit measured it; else the block alone, for parts of two commits are no result."""
    found = begin(build, out, programs)
    before = known.get("provenance", {})
    is_same = all(before.get(key) == found[key] for key in ("git_commit", "git_dirty", "host")) and not found["git_dirty"]
    if is_same and found["command"] not in before["command"].split(" && "):
        found["command"] = f"{before['command']} && {found['command']}"
    return (known if is_same else {}) | {"provenance": found}


def write(path, result):
    """Replaces the file as a whole: a reader sees the old one or the new."""
    beside = Path(path).with_name(Path(path).name + ".new")
    beside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)
