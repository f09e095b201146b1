# SPDX-License-Identifier: Apache-2.0
"""The name of an optimizer, model, tensor scheme or sequence mode stands once in src/, as a constant
of src/kuafu/plan/kind_names.h. Names inside longer texts (messages, examples of --help) are not looked at."""

import os
import re
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
NAMES = "src/kuafu/plan/kind_names.h"

# The same words with another meaning, and where a name cannot be had from the table: file, words, reason.
EXCEPTIONS = (
    ("src/kuafu/plan/plan.h", {"gpt", "adamw", "lamb", "none", "1d"}, "defaults of the plan's members, and of optimizer.bound"),
    ("src/kuafu/plan/key_table.cpp", {"none", "ring"}, "values of memory.recompute, parallel.data.mode and of keys of [optimizer]"),
    ("src/kuafu/plan/print.cpp", {"1d", "2d", "2.5d"}, "examples of docs/plan.md"),
    ("src/kuafu/plan/check_optimizer.cpp", {"none"}, "optimizer.exclude"),
    ("src/kuafu/plan/keys.cpp", {"none"}, "memory.recompute"),
    ("src/kuafu/plan/values.cpp", {"none"}, "memory.recompute"),
    ("src/kuafu/optim/schedule.cpp", {"none"}, "optimizer.scale_lr"),
    ("src/kuafu/oracle/schedule.cpp", {"none"}, "optimizer.scale_lr"),
    ("src/kuafu/oracle/optimizer.cpp", {"none"}, "optimizer.bound"),
    ("src/kuafu/conformance/sequences.cpp", {"none"}, "memory.recompute"),
    ("src/kuafu/parallel/reduce/gradient_sum.cpp", {"ring"}, "parallel.data.mode"),
    ("src/kuafu/tensor/ops/update.cpp", {"adam", "adamw", "sgd"}, "operators of torch.ops"),
    ("src/kuafu/tensor/ops/layer_updates.cpp", {"lamb", "lars"}, "operators of torch.ops"),
    ("src/app/worker/matrix_cases.cpp", {"none"}, "headings of rows and columns: nothing of a dimension"),
    ("src/app/worker/fuzz_plans.cpp", {"none"}, "of either of two keys, by one line"),
    ("src/app/kuafu/doctor_command.cpp", {"none"}, "no Python packages"),
    ("src/app/bench_step/main.cpp", {"1d", "1d-sp", "2d"}, "baselines it is compared by, with others that are no modes"),
)


def words_of(text):
    """Line and content of each string literal outside of comments."""
    for number, line in enumerate(text.split("\n"), 1):
        for comment, literal in re.findall(r'(//.*)|"((?:[^"\\]|\\.)*)"', line):
            if not comment:
                yield number, literal


def names_of(text):
    """The constants of the table, by their namespaces."""
    return re.findall(r'namespace (\w+) \{|constexpr const char\* \w+ = "([^"]*)"', text)


def repeated(names, path, text):
    """`path:line: "name"` of each name in a source."""
    return [(path, number, word) for number, word in words_of(text) if word in names]


class KindNames(unittest.TestCase):
    def setUp(self):
        self.rows = names_of((ROOT / NAMES).read_text(encoding="utf-8"))
        self.names = {name for _, name in self.rows if name}

    def test_each_name_stands_once_in_the_table(self):
        kind, seen = "", set()
        for namespace, name in self.rows:
            kind = namespace or kind
            if name:
                self.assertNotIn((kind, name), seen)
                seen.add((kind, name))
        self.assertGreaterEqual({"adamw", "muon", "gpt", "vit", "2.5d", "ring-zigzag"} & self.names,
                                {"adamw", "muon", "gpt", "vit", "2.5d", "ring-zigzag"})

    def test_finds_a_second_one(self):
        source = '// "adamw"\nrules.add("adamw", f);  // "sgd"\ntell("kind = \\"lamb\\"");\nif (kind == "vit") {}\n'
        self.assertEqual(repeated(self.names, "x.cpp", source), [("x.cpp", 2, "adamw"), ("x.cpp", 4, "vit")])

    def test_no_name_stands_twice(self):
        allowed = {(path, word): reason for path, words, reason in EXCEPTIONS for word in words}
        found = []
        for path in sorted((ROOT / "src").rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".cpp", ".h", ".cu") and name != NAMES and "/templates/" not in name:
                found += repeated(self.names, name, path.read_text(encoding="utf-8"))
        wrong = [f'{path}:{line}: "{word}" is written again; name the constant of {NAMES}'
                 for path, line, word in found if (path, word) not in allowed]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        idle = sorted(set(allowed) - {(path, word) for path, _, word in found})
        self.assertEqual(idle, [], "exceptions that nothing needs any more")


if __name__ == "__main__":
    unittest.main()
