# SPDX-License-Identifier: Apache-2.0
"""The notebook runs on a result folder, draws every figure of the report and carries no output."""

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
import synthetic

NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


def execute(folder):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with mock.patch.dict(os.environ, {"KUAFU_RESULTS": str(folder)}):
        NotebookClient(notebook, timeout=120, kernel_name="python3",
                       resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return [o for cell in notebook.cells for o in cell.get("outputs", [])]


class Quickstart(unittest.TestCase):
    def test_is_stripped(self):
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                self.assertEqual(cell.outputs, [])
                self.assertIsNone(cell.execution_count)

    def test_draws_the_figures_of_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            synthetic.write(Path(folder))
            before = {p: p.stat().st_mtime_ns for p in Path(folder).rglob("*")}
            outputs = execute(folder)
            after = {p: p.stat().st_mtime_ns for p in Path(folder).rglob("*")}
        self.assertEqual(before, after)
        pictures = [o for o in outputs if "image/svg+xml" in o.get("data", {})]
        self.assertEqual(len(pictures), len(figures.FIGURES))
        text = "".join(o["data"].get("text/html", "") + o["data"].get("text/markdown", "")
                       for o in outputs if "data" in o)
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
