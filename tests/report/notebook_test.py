# SPDX-License-Identifier: Apache-2.0
"""Notebooks run on a result folder, draw the figures of the report and carry no output."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "scripts" / "report")]

import figures
import ratios
import ratios_test
import synthetic

NOTEBOOKS = ROOT / "notebooks"


def execute(folder, name="quickstart.ipynb"):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    with mock.patch.dict(os.environ, {"KUAFU_RESULTS": str(folder)}):
        NotebookClient(notebook, timeout=120, kernel_name="python3",
                       resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    return [o for cell in notebook.cells for o in cell.get("outputs", [])]


def pictures_and_text(outputs):
    pictures = [o for o in outputs if "image/svg+xml" in o.get("data", {})]
    return pictures, "".join(o["data"].get("text/html", "") + o["data"].get("text/markdown", "") for o in outputs if "data" in o)


class Notebooks(unittest.TestCase):
    def test_are_stripped(self):
        found = sorted(NOTEBOOKS.glob("*.ipynb"))
        self.assertEqual(len(found), 2)
        for path in found:
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    self.assertEqual(cell.outputs, [], path.name)
                    self.assertIsNone(cell.execution_count, path.name)


class Baselines(unittest.TestCase):
    def test_draws_the_ratios_of_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            synthetic.write(Path(folder), ratios_test.with_baselines())
            pictures, text = pictures_and_text(execute(folder, "baselines.ipynb"))
        self.assertEqual(len(pictures), len(ratios.FIGURES))
        self.assertIn("20 ratios of 20 cases against megatron_style interleaved", text)
        self.assertIn("2 ranks hold no &lt;4&gt;", text)


class Quickstart(unittest.TestCase):

    def test_draws_the_figures_of_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            synthetic.write(Path(folder))
            before = {p: p.stat().st_mtime_ns for p in Path(folder).rglob("*")}
            outputs = execute(folder)
            after = {p: p.stat().st_mtime_ns for p in Path(folder).rglob("*")}
        self.assertEqual(before, after)
        pictures, text = pictures_and_text(outputs)
        self.assertEqual(len(pictures), len(figures.FIGURES))
        self.assertIn("40 cases (36 ok, 1 refused, 1 out of memory, 1 failed, 1 timeout)", text)
        self.assertIn("34 of 36 finished ones", text)
        self.assertIn("a 2D grid needs a square number of ranks", text)

    def test_says_what_is_missing_without_a_result(self):
        with tempfile.TemporaryDirectory() as folder:
            fallbacks = [ROOT / "results" / "runs" / "quickstart", ROOT / "results" / "quickstart"]
            if any((f / "run.jsonl").is_file() for f in fallbacks):
                self.assertTrue(execute(Path(folder) / "none"))
                return
            with self.assertRaisesRegex(CellExecutionError, "no folder"):
                execute(Path(folder) / "none")


if __name__ == "__main__":
    unittest.main()
