# SPDX-License-Identifier: Apache-2.0
"""The name of an optimizer, model, tensor scheme, sequence mode or world stands once in src/, as a constant of
src/kuafu/plan (kind_names.h, the rows of *.def) or of src/kuafu/base/worlds.h. Names inside longer texts (messages,
examples of --help) are not looked at."""

import os
import re
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
TABLES = ("src/kuafu/plan/kind_names.h", "src/kuafu/plan/optimizers.def", "src/kuafu/plan/models.def",
          "src/kuafu/plan/tensor_modes.def", "src/kuafu/base/worlds.h")

# The same words with another meaning, and where a name cannot be had from the table: file, words, reason.
EXCEPTIONS = (
    ("src/kuafu/plan/key_table.cpp", {"ring"}, "a value of parallel.data.mode"),
    ("src/kuafu/plan/print.cpp", {"1d", "2d", "2.5d"}, "examples of docs/plan.md"),
    ("src/kuafu/parallel/reduce/gradient_sum.cpp", {"ring"}, "parallel.data.mode"),
    ("src/kuafu/tensor/ops/update.cpp", {"adam", "adamw", "sgd"}, "operators of torch.ops"),
    ("src/kuafu/tensor/ops/layer_updates.cpp", {"lamb", "lars"}, "operators of torch.ops"),
    ("src/kuafu/hf/families.h", {"opt", "bert", "vit"}, "values of model_type, which are those of transformers"),
    ("src/kuafu/record/load.cpp", {"threads"}, "a count of a process's threads"),
    ("src/app/bench_step/main.cpp", {"1d", "1d-sp", "2d"}, "baselines it is compared by, with others that are no modes"),
)

# "none" is a value of many keys: it is a mode where a mode or a name is compared with it, or is added by it.
NO_MODE = re.compile(r'(?:mode|name|base|layer)\s*[!=]=\s*"none"|(?:add|line_mode|refuse_depth)\(\{?"none"')


def words_of(text):
    """Line and content of each string literal outside of comments."""
    for number, line in enumerate(text.split("\n"), 1):
        for comment, literal in re.findall(r'(//.*)|"((?:[^"\\]|\\.)*)"', line):
            if not comment:
                yield number, literal


def names_of(text):
    """The constants of a table, by their namespaces or, in a .def, macros."""
    rows = re.findall(r'namespace (\w+) \{|constexpr const char\* \w+ = "([^"]*)"', text)
    for macro, name in re.findall(r'^(KUAFU_\w+)\(k\w+, "([^"]*)"', text, re.MULTILINE):
        rows += [(macro, ""), ("", name)]
    return rows


def repeated(names, path, text):
    """`path:line: "name"` of each name in a source."""
    lines = text.split("\n")
    return [(path, number, word) for number, word in words_of(text)
            if word in names and (word != "none" or NO_MODE.search(lines[number - 1]))]


class KindNames(unittest.TestCase):
    def setUp(self):
        self.rows = [row for table in TABLES for row in names_of((ROOT / table).read_text(encoding="utf-8"))]
        self.names = {name for _, name in self.rows if name}

    def test_each_name_stands_once_in_the_table(self):
        kind, seen = "", set()
        for namespace, name in self.rows:
            kind = namespace or kind
            if name:
                self.assertNotIn((kind, name), seen)
                seen.add((kind, name))
        self.assertLessEqual({"adamw", "muon", "gpt", "vit", "2.5d", "ring-zigzag", "simulated"}, self.names)

    def test_finds_a_second_one(self):
        source = '// "adamw"\nrules.add("adamw", f);  // "sgd"\ntell("kind = \\"lamb\\"");\nif (kind == "vit") {}\n'
        self.assertEqual(repeated(self.names, "x.cpp", source), [("x.cpp", 2, "adamw"), ("x.cpp", 4, "vit")])
        source = 'if (exclude == "none") {}\nif (plan.parallel.tensor.mode != "none") {}\nadd("none", make_serial);\n'
        self.assertEqual(repeated(self.names, "x.cpp", source), [("x.cpp", 2, "none"), ("x.cpp", 3, "none")])

    def test_no_name_stands_twice(self):
        allowed = {(path, word): reason for path, words, reason in EXCEPTIONS for word in words}
        found = []
        for path in sorted((ROOT / "src").rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".cpp", ".h", ".cu") and name not in TABLES and "/templates/" not in name:
                found += repeated(self.names, name, path.read_text(encoding="utf-8"))
        wrong = [f'{path}:{line}: "{word}" is written again; name its constant of {" or ".join(TABLES)}'
                 for path, line, word in found if (path, word) not in allowed]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        idle = sorted(set(allowed) - {(path, word) for path, _, word in found})
        self.assertEqual(idle, [], "exceptions that nothing needs any more")


if __name__ == "__main__":
    unittest.main()
