# SPDX-License-Identifier: Apache-2.0
"""The look: told apart by every reader, the same in every report."""

import itertools
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "report"))

import style
import views

# Linear RGB as seen without one kind of cone: Machado, Oliveira, Fernandes 2009, severity 1.
SIGHTS = {
    "full": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])
JUST_NOTICEABLE = 2.3                   # in CIE 1976 L*a*b*


def lab(color, sight):
    srgb = np.array([int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(sight @ linear, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > (6 / 29)**3, np.cbrt(xyz), xyz / (3 * (6 / 29)**2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


class Colors(unittest.TestCase):
    def assert_apart(self, colors, steps):
        for (name, sight), (a, b) in itertools.product(SIGHTS.items(),
                                                       itertools.combinations(colors, 2)):
            distance = np.linalg.norm(lab(a, sight) - lab(b, sight))
            self.assertGreater(distance, steps * JUST_NOTICEABLE, f"{a} and {b} with {name}")

    def test_strategies_differ_for_every_sight(self):
        self.assertEqual(len(style.LOOKS), 12)
        self.assert_apart([color for color, _ in style.LOOKS] + [style.PAPER], 4)

    def test_marks_differ_for_whoever_sees_no_colour(self):
        for form in (0, 1):                    # matplotlib's and plotly's
            self.assertEqual(len({marker[form] for _, marker in style.LOOKS}), 12)

    def test_memory_categories_differ_for_every_sight(self):
        self.assert_apart(style.CATEGORIES.values(), 3)

    def test_what_is_refuted_looks_like_nothing_else(self):
        for other in [*(c for c, _ in style.LOOKS), *style.CATEGORIES.values(), style.PAPER]:
            self.assert_apart([style.DIFFERENT, other], 4)

    def test_no_two_strategies_share_a_look(self):
        looks = list(style.STRATEGIES.values())
        self.assertEqual(len(set(looks)), len(looks))
        self.assertEqual(len({marker for _, marker in looks}), len(looks))

    def test_a_strategy_keeps_its_look_in_every_report(self):
        self.assertEqual(list(style.STRATEGIES.values()), style.LOOKS[:len(style.STRATEGIES)])
        few = style.palette(["1D tensor", "my scheme"], style.STRATEGIES)
        many = style.palette(list(style.STRATEGIES) + ["my scheme"], style.STRATEGIES)
        self.assertEqual(few["1D tensor"], many["1D tensor"])
        self.assertEqual(len(set(many.values())), len(many))


    def test_up_to_twelve_names_have_twelve_colours(self):
        for names in ([chr(65 + i) for i in range(12)], ["2D tensor"] + [chr(65 + i) for i in range(11)]):
            looks = style.palette(names, style.STRATEGIES)
            self.assertEqual(len({color for color, _ in looks.values()}), 12)
            self.assertEqual(len({marker for _, marker in looks.values()}), 12)
            self.assertFalse(style.repeats_colors(looks))

    def test_names_of_ones_own_are_as_far_apart_as_can_be(self):
        self.assertEqual(sorted(style.FREE), sorted(style.LOOKS))
        for count, steps in ((2, 39), (4, 13), (7, 10), (9, 8)):     # the last rows of the table: 15, 9, 9, 7
            looks = style.palette([chr(65 + i) for i in range(count)], style.STRATEGIES)
            self.assertEqual(list(looks.values()), style.FREE[:count])
            self.assert_apart([color for color, _ in looks.values()], steps)
        looks = style.palette(["mine", "data parallel"], style.STRATEGIES)
        self.assertEqual(looks["mine"], style.FREE[1])      # the first is the other's

    def test_further_names_repeat_colours_with_other_marks(self):
        looks = style.palette([f"scheme {i}" for i in range(40)], style.STRATEGIES)
        self.assertEqual(len(set(looks.values())), 40)
        self.assertTrue(style.repeats_colors(looks))
        self.assertEqual(len({style.look(i) for i in range(144)}), 144)
        for i in range(12, 60):
            self.assertEqual(style.look(i)[0], style.LOOKS[i % 12][0])
            self.assertEqual(style.look(i)[1], style.LOOKS[(i + i // 12) % 12][1])


class Formats(unittest.TestCase):
    def test_units(self):
        self.assertEqual(style.text_bytes(1536), "1.5 KiB")
        self.assertEqual(style.text_bytes(3 * 2**20), "3 MiB")
        self.assertEqual(style.text_bytes(17), "17 B")
        self.assertEqual(style.text_bytes(None), "-")
        self.assertEqual(style.text_seconds(0.0123), "12.3 ms")
        self.assertEqual(style.text_seconds(42e-6), "42 us")
        self.assertEqual(style.text_number(39391.4), "39,391")


class Units(unittest.TestCase):
    def test_losses_are_means_over_what_the_model_reads(self):
        def of(*kinds):
            return views.loss_unit([SimpleNamespace(setting=lambda key, kind=kind: kind) for kind in kinds])
        self.assertEqual(of("gpt", "bert"), "nats per token")
        self.assertEqual(of("vit"), "nats per image")
        self.assertEqual(of("gpt", "vit"), "nats per token or image")


if __name__ == "__main__":
    unittest.main()
