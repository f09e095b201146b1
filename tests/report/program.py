# SPDX-License-Identifier: Apache-2.0
"""The program of the report, run in the test's own process."""

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import progress
import report


def run_main(*arguments, columns="100"):
    """(exit code, standard output, standard error) of the program."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ, COLUMNS=columns), \
            mock.patch.object(progress, "EVERY_S", 1e9):         # a busy machine adds no lines
        code = report.main([str(a) for a in arguments])
    return code, out.getvalue(), err.getvalue()


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.root = Path(keeper.name)
        self.folder = self.root / "run"

    def refused(self, *arguments):
        """What is said, in one line, of what cannot be done."""
        code, out, err = run_main(*arguments)
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(len(err.strip().split("\n")), 1, err)
        return err
