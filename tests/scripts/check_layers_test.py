# SPDX-License-Identifier: Apache-2.0
"""The layer check must find each kind of violation, and nothing in a clean tree."""

import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import check_layers  # noqa: E402


def check(file, text):
    """Violations in a tree that holds the one file."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "src" / file
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        return check_layers.violations(root)[0]


class CheckLayers(unittest.TestCase):
    def assert_refused(self, file, include, word):
        found = check(file, f"#pragma once\n#include {include}\n")
        self.assertEqual(len(found), 1, f"{file}: #include {include}: {found}")
        self.assertTrue(found[0].startswith(f"src/{file}:2: "), found[0])
        self.assertIn(word, found[0])

    def assert_accepted(self, file, include):
        self.assertEqual(check(file, f"#include {include}\n"), [])

    def test_refuses_looking_up(self):
        self.assert_refused("kuafu/base/x.h", '"kuafu/comm/work.h"', "nothing else")
        self.assert_refused("kuafu/mesh/x.cpp", '"kuafu/tensor/param.h"', "may include base, comm")
        self.assert_refused("kuafu/parallel/tensor/x.cpp", '"kuafu/model/gpt.h"', "kuafu/model/gpt.h")

    def test_refuses_siblings(self):
        self.assert_refused("kuafu/record/x.cpp", '"kuafu/device/device.h"', "may include base")
        self.assert_refused("kuafu/optim/x.cpp", '"kuafu/parallel/reduce/x.h"', "optim includes")

    def test_refuses_the_oracle_whatever_it_judges(self):
        for include in ("kuafu/tensor/ops.h", "kuafu/model/blocks.h", "kuafu/optim/optimizer.h",
                        "kuafu/parallel/tensor/layers.h", "kuafu/engine/engine.h"):
            self.assert_refused("kuafu/oracle/x.cpp", f'"{include}"', "may include base, plan, dataset")
        for include in ("kuafu/base/philox.h", "kuafu/plan/plan.h", "kuafu/dataset/dataset.h"):
            self.assert_accepted("kuafu/oracle/x.cpp", f'"{include}"')

    def test_refuses_two_classes_of_one_name(self):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "src/kuafu/base"
            folder.mkdir(parents=True)
            one, other = folder / "one.h", folder / "other.cpp"
            one.write_text("namespace kuafu {\n\nstruct Part {\n  int a;\n};\n\n}  // namespace kuafu\n", encoding="utf-8")
            for text, is_wrong in (("namespace kuafu {\nclass Part final : public Other {\n};\n}  // namespace kuafu\n", True),
                                   ("namespace kuafu {\nenum class Part { kOne };\n}  // namespace kuafu\n", True),
                                   ("namespace kuafu {\nenum class Part {\n  kOne\n};\n}  // namespace kuafu\n", True),
                                   ("namespace kuafu {\nstruct Part;\n}  // namespace kuafu\n", False),
                                   ("namespace kuafu {\nnamespace {\nstruct Part {\n};\n}  // namespace\n}  // namespace kuafu\n", False),
                                   ("namespace kuafu::memory {\nstruct Part {\n};\n}  // namespace kuafu::memory\n", False),
                                   ("namespace kuafu {\nclass Whole::Part {\n};\n}  // namespace kuafu\n", False)):
                other.write_text(text, encoding="utf-8")
                found = check_layers.violations(root)[0]
                self.assertEqual(len(found), is_wrong, f"{text}{found}")
                if is_wrong:
                    self.assertRegex(found[0], r"^src/kuafu/base/other.cpp:2: kuafu::Part is a class of src/kuafu/base/one.h too")

    def test_refuses_a_readme_that_shows_other_layers(self):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "src/kuafu/base"
            folder.mkdir(parents=True)
            (folder / "x.cpp").write_text("int x;\n", encoding="utf-8")
            readme = folder.parent / "README.md"
            readme.write_text(check_layers.table(root), encoding="utf-8")
            self.assertEqual(check_layers.violations(root)[0], [])
            readme.write_text("| `base` | yes | - |\n", encoding="utf-8")
            self.assertIn("README.md:1:", check_layers.violations(root)[0][0])

    def test_refuses_a_folder_it_does_not_know(self):
        self.assert_refused("kuafu/base/x.cpp", '"kuafu/nowhere/x.h"', "no folder")
        self.assertEqual(len(check("kuafu/nowhere/x.cpp", "int x;\n")), 1)

    def test_refuses_libtorch_below_the_line(self):
        for include in ("<torch/torch.h>", "<ATen/core/Tensor.h>", "<c10/core/Device.h>"):
            for folder in ("base", "comm", "plan", "dataset", "experiment"):
                self.assert_refused(f"kuafu/{folder}/x.cpp", include, "free of LibTorch")

    def test_refuses_more_than_the_tensor_in_headers(self):
        self.assert_refused("kuafu/tensor/x.h", "<ATen/ATen.h>", "in a header")
        self.assert_accepted("kuafu/tensor/x.h", "<ATen/core/Tensor.h>")
        self.assert_accepted("kuafu/tensor/x.cpp", "<ATen/ATen.h>")

    def test_refuses_external_headers_out_of_place(self):
        self.assert_refused("kuafu/comm/worlds.cpp", "<mpi.h>", "mpi*.cpp")
        self.assert_refused("kuafu/comm/mpi.h", "<mpi.h>", "mpi*.cpp")
        self.assert_refused("kuafu/comm/mpi.cpp", "<nccl.h>", "nccl*.cpp")
        self.assert_refused("kuafu/tensor/x.cpp", "<cuda_runtime.h>", "kuafu/device/*")
        self.assert_refused("kuafu/mesh/x.cpp", "<hdf5.h>", "kuafu/record/*")
        self.assert_refused("kuafu/base/config.h", "<toml++/toml.h>", "kuafu/base/*.cpp")
        self.assert_refused("kuafu/base/x.cpp", "<gtest/gtest.h>", "tests")

    def test_accepts_external_headers_in_place(self):
        self.assert_accepted("kuafu/comm/mpi_collectives.cpp", "<mpi.h>")
        self.assert_accepted("kuafu/comm/nccl.cpp", "<nccl.h>")
        self.assert_accepted("kuafu/device/copy.cu", "<cuda_runtime.h>")
        self.assert_accepted("kuafu/record/hdf5.cpp", "<hdf5.h>")
        self.assert_accepted("app/main.cpp", "<torch/torch.h>")
        self.assert_accepted("app/main.cpp", '"kuafu/engine/engine.h"')

    def test_refuses_relative_and_angled_paths(self):
        self.assert_refused("kuafu/base/x.cpp", '"errors.h"', "not a path from src/")
        self.assert_refused("kuafu/base/x.cpp", "<kuafu/base/errors.h>", "is ours")
        self.assert_refused("kuafu/base/x.cpp", '"app/options.h"', "nothing includes the app")

    def test_keeps_private_headers_private(self):
        private = '"kuafu/tensor/ops/library.h"'
        self.assert_accepted("kuafu/tensor/x.cpp", private)
        self.assert_refused("kuafu/tensor/x.h", private, "private to")
        self.assert_refused("kuafu/model/x.cpp", private, "private to")

    def test_refuses_rules_that_know_of_ranks_or_memories(self):
        rule = "{}\nRule make_x(const OptimizerPlan& plan) {{\n  {}\n}}\n"
        for head, body, word in (('#include "kuafu/mesh/mesh.h"', "", "a rule includes kuafu/mesh/mesh.h"),
                                 ('#include "kuafu/states/store.h"', "", "a rule includes kuafu/states/store.h"),
                                 ("", "const Mesh& all = of(plan);", "a rule says Mesh"),
                                 ("", "if (rank == 0) return {};", "a rule says rank"),
                                 ("", "auto t = Tier::kHost;", "a rule says Tier")):
            found = check("kuafu/optim/x.cpp", rule.format(head, body))
            self.assertEqual(len(found), 1, found)
            self.assertIn(word, found[0])
        self.assertEqual(check("kuafu/optim/x.cpp", rule.format('#include "kuafu/optim/rule.h"', "return {};  // any rank")), [])

    def test_refuses_rules_that_are_long(self):
        for name in ("plan", "p", ""):
            rule = "Rule make_x(const OptimizerPlan& " + name + ") {\n" + "  step();\n" * 31 + "}\n"
            found = check("kuafu/optim/x.cpp", rule)
            self.assertEqual(len(found), 1, found)
            self.assertIn("make_x has 31 lines; 30 at most", found[0])

    def test_refuses_ops_of_ours_in_the_oracle(self):
        for line in ('find("kuafu::matmul", "");', "#include <ATen/core/dispatch/Dispatcher.h>", "c10::Dispatcher::singleton();",
                     'torch::jit::getOperator("x");'):
            found = check("kuafu/oracle/x.cpp", line + "\n")
            self.assertEqual(len(found), 1, (line, found))
        self.assertEqual(check("kuafu/oracle/x.cpp", "// as kuafu::matmul does\nnamespace kuafu::oracle {\n"), [])

    def test_finds_the_rules_of_this_build(self):
        named = set(re.findall(r"\bmake_\w+", (ROOT / "src/kuafu/plan/optimizers.def").read_text(encoding="utf-8")))
        found = set()
        for path in (ROOT / "src/kuafu/optim").glob("*.cpp"):
            found |= {m[0].split("(")[0].removeprefix("Rule ") for m in check_layers.RULE.finditer(path.read_text(encoding="utf-8"))}
        self.assertEqual(found, named)

    def test_table_is_ordered(self):
        seen = set()
        for folder, allowed in check_layers.ALLOWED.items():
            self.assertLessEqual(set(allowed), seen, folder)
            seen.add(folder)


if __name__ == "__main__":
    unittest.main()
