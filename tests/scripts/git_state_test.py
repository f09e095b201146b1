# SPDX-License-Identifier: Apache-2.0
"""The commit and the dirty flag that a build records, and that nothing is rewritten without need."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
CMAKE = os.environ.get("KUAFU_CMAKE", "cmake")


class GitState(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = Path(folder.name) / "source"
        self.source.mkdir()
        self.output = Path(folder.name) / "git_state.cpp"

    def git(self, *words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *identity, "-C", self.source, *words], check=True,
                              capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, text):
        (self.source / "file").write_text(text)
        self.git("add", "file")
        self.git("commit", "-q", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def state(self):
        subprocess.run([CMAKE, "-D", "GIT=git", "-D", f"SOURCE={self.source}", "-D", f"OUTPUT={self.output}",
                        "-P", ROOT / "cmake" / "git_state.cmake"], check=True, capture_output=True)
        return self.output.read_text()

    def test_a_clean_tree_has_its_commit(self):
        self.git("init", "-q")
        commit = self.commit("one")
        self.assertIn(f'{{"{commit}", false}}', self.state())

    def test_a_changed_file_makes_it_dirty(self):
        self.git("init", "-q")
        commit = self.commit("one")
        (self.source / "file").write_text("two")
        self.assertIn(f'{{"{commit}", true}}', self.state())

    def test_a_changed_result_does_not(self):
        self.git("init", "-q")
        (self.source / "results").mkdir()
        (self.source / "results" / "one.json").write_text("1")
        self.git("add", "results")
        commit = self.commit("one")
        (self.source / "results" / "one.json").write_text("2")
        self.assertIn(f'{{"{commit}", false}}', self.state())

    def test_a_new_commit_is_noticed(self):
        self.git("init", "-q")
        self.commit("one")
        self.state()
        commit = self.commit("two")
        self.assertIn(f'{{"{commit}", false}}', self.state())

    def test_no_repository_is_unknown_and_dirty(self):
        self.assertIn('{"unknown", true}', self.state())

    def test_a_folder_inside_another_repository_is_unknown(self):
        self.git("init", "-q")
        self.commit("one")
        self.source = self.source / "inner"
        self.source.mkdir()
        self.assertIn('{"unknown", true}', self.state())

    def test_the_same_state_leaves_the_file_alone(self):
        self.git("init", "-q")
        self.commit("one")
        self.state()
        os.utime(self.output, (1, 1))
        self.state()
        self.assertEqual(self.output.stat().st_mtime, 1)


if __name__ == "__main__":
    unittest.main()
