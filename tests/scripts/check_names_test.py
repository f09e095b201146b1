# SPDX-License-Identifier: Apache-2.0
"""The check of names must find a name of two headers, and nothing where each means one thing."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import check_names  # noqa: E402

ONE = "namespace kuafu::memory {\n\nstruct Part {\n  int a;\n};\n\n}  // namespace kuafu::memory\n"


def check(**headers):
    """Violations in a tree of these headers: "folder__name" stands for src/kuafu/folder/name.h."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in headers.items():
            path = Path(root) / "src/kuafu" / (name.replace("__", "/") + ".h")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_names.violations(root)[0]


class CheckNames(unittest.TestCase):
    def test_refuses_one_name_in_two_headers(self):
        for text in ("struct Part {\n};\n", "struct Part {};\n", "class Part final : public Other {\n};\n", "enum class Part : uint8_t { kOne };\n",
                     "template <class T>\nstruct Part {\n};\n", "using Part = int;\n", "using Part =\n    int;\n"):
            found = check(base__one=ONE, hf__two="namespace kuafu::hf {\n" + text)
            self.assertEqual(len(found), 1, text)
            self.assertRegex(found[0], r"^src/kuafu/hf/two\.h:[23]: Part is declared in src/kuafu/base/one\.h too")

    def test_accepts_what_declares_no_other_thing(self):
        for text in ("struct Part;\n", "struct Part;  // {see one.h}\n", "template <>\nstruct Part<int> {\n};\n", "class Part::Inner {\n};\n",
                     "struct Other {\n  struct Part {};\n  using Part = int;\n};\n", "using memory::Part;\n", "struct Parts {\n};\n"):
            self.assertEqual(check(base__one=ONE, hf__two=text), [], text)

    def test_lets_the_oracle_mirror_the_library_and_not_itself(self):
        self.assertEqual(check(base__one=ONE, oracle__two=ONE), [])
        self.assertEqual(len(check(oracle__one=ONE, oracle__two=ONE)), 1)

    def test_excepts_the_headers_of_the_table_alone(self):
        row = ONE.replace("Part", "Row")
        self.assertEqual(check(experiment__rows=row, parallel__pipeline__timetable=row), [])
        self.assertEqual(len(check(experiment__rows=row, base__one=row)), 1)
        self.assertEqual(len(check(experiment__rows=row, base__rows=row, parallel__pipeline__timetable=row)), 2)

    def test_every_exception_is_needed(self):
        for name in list(check_names.EXCEPTIONS):
            kept = dict(check_names.EXCEPTIONS)
            del check_names.EXCEPTIONS[name]
            try:
                self.assertTrue(check_names.violations(ROOT)[0], name)
            finally:
                check_names.EXCEPTIONS = kept


if __name__ == "__main__":
    unittest.main()
