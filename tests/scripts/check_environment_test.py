# SPDX-License-Identifier: Apache-2.0
"""A package counts as installed only with its version and all its files."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import check_environment  # noqa: E402


class CheckEnvironment(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site = Path(folder.name)
        sys.path.insert(0, folder.name)
        self.addCleanup(sys.path.remove, folder.name)
        info = self.site / "kuafu_sample-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kuafu-sample\nVersion: 1.2\n")
        (info / "RECORD").write_text("kuafu_sample.py,sha256=x,4\nkuafu_sample-1.2.dist-info/RECORD,,\n")
        (self.site / "kuafu_sample.py").write_text("x=1\n")

    def test_a_whole_package_counts(self):
        self.assertTrue(check_environment.is_installed("kuafu-sample", "1.2"))

    def test_another_version_does_not(self):
        self.assertFalse(check_environment.is_installed("kuafu-sample", "1.3"))

    def test_an_absent_package_does_not(self):
        self.assertFalse(check_environment.is_installed("kuafu-absent", "1.2"))

    def test_a_missing_file_does_not(self):
        (self.site / "kuafu_sample.py").unlink()
        self.assertFalse(check_environment.is_installed("kuafu-sample", "1.2"))

    def test_a_truncated_file_does_not(self):
        (self.site / "kuafu_sample.py").write_text("x")
        self.assertFalse(check_environment.is_installed("kuafu-sample", "1.2"))

    def test_a_package_without_its_list_does_not(self):
        (self.site / "kuafu_sample-1.2.dist-info" / "RECORD").unlink()
        self.assertFalse(check_environment.is_installed("kuafu-sample", "1.2"))

    def test_repair_removes_only_half_written_descriptions(self):
        half = self.site / "kuafu_half-1.0.dist-info"
        half.mkdir()
        (half / "METADATA").write_text("Metadata-Version: 2.1\nName: kuafu-half\nVersion: 1.0\n")
        check_environment.remove_half_written(self.site)
        self.assertFalse(half.exists())
        self.assertTrue(check_environment.is_installed("kuafu-sample", "1.2"))


if __name__ == "__main__":
    unittest.main()
