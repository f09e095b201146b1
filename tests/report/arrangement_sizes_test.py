# SPDX-License-Identifier: Apache-2.0
"""Texts of interactive figures lie apart in reports of every size."""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import arrangement_test
import multiplied
import plots
import ratios
import ratios_test
import side_by_side


class Sizes(arrangement_test.Apart):
    def test_texts_of_2_7_and_14_strategies_lie_apart(self):
        for count, cases in ((2, 38), (7, 38), (14, 60), (14, 400)):
            run = self.run_of(multiplied.lines(count, cases))
            for name, draw in plots.PLOTS.items():
                self.assert_apart(draw(run), f"{name} of {count} strategies")

    def test_texts_of_ratios_lie_apart(self):
        run = self.run_of(ratios_test.with_baselines())
        for name, draw in (ratios.PLOTS | side_by_side.plots([run, run], ["results/quickstart", "runs/quickstart"])).items():
            self.assert_apart(draw(run) if callable(draw) else draw, name)


if __name__ == "__main__":
    unittest.main()
