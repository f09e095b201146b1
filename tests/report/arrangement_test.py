# SPDX-License-Identifier: Apache-2.0
"""How interactive figures lie at every width of a page: no text runs into another one or out of the figure. Texts are measured in
DejaVu Sans, which runs wide."""

import functools
import itertools
import math
import sys
import tempfile
import unittest
from pathlib import Path

from matplotlib.font_manager import FontProperties, findfont
from PIL import ImageFont

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import panels
import plots
import record
import suite_figures
import suite_figures_test
import synthetic

LINE = 1.3               # height of a line, in sizes of its font


@functools.cache
def font_of(size, is_bold):
    return ImageFont.truetype(findfont(FontProperties(family="DejaVu Sans", weight="bold" if is_bold else "normal")), size)


def size_of(text, size, is_bold=False):
    """(width, height) of a text with <br>, in pixels."""
    lines = text.replace("<b>", "").replace("</b>", "").split("<br>")
    return max(font_of(size, is_bold).getlength(line.strip()) for line in lines), LINE * size * len(lines)


def ticks_of(axis):
    """[(text, share of the axis)] of those that kuafu places, on a level."""
    if axis.ticktext is None or axis.range is None or axis.showticklabels is False:
        return []
    low, high = axis.range
    places = [math.log10(v) if axis.type == "log" else v for v in axis.tickvals]
    return [(text, (v - low) / (high - low)) for text, v in zip(axis.ticktext, places) if min(low, high) <= v <= max(low, high)]


def boxes_of(plot, width):
    """[(text, left, bottom, right, top)] from the lower left corner of a figure of so many pixels."""
    layout, found = plot.layout, []
    inner, inside = width - layout.margin.l - layout.margin.r, layout.height - layout.margin.t - layout.margin.b

    def put(text, x, top, size, shift, is_bold=False):
        """`x` of its left end, its middle or its right end: `shift` 0, 0.5 or 1."""
        wide, high = size_of(text, size, is_bold)
        if wide:
            found.append((text, x - shift * wide, top - high, x + (1 - shift) * wide, top))
    for index, note in enumerate(layout.annotations):
        key = str(index + 1) if index else ""
        x, y = layout[f"xaxis{key}"], layout[f"yaxis{key}"]
        left, right = (layout.margin.l + inner * end for end in x.domain)
        bottom, top = (layout.margin.b + inside * end for end in y.domain)
        put(note.text, left, top + size_of(note.text, 13)[1], 13, 0, True)
        named, ticks_end = ticks_of(x), bottom - 5 - LINE * 12.5
        for text, share in named if not x.tickangle else []:
            put(text, left + share * (right - left), bottom - 5, x.tickfont.size or 12.5, 0.5)
            ticks_end = min(ticks_end, found[-1][2])
        for text, share in named if x.tickangle else []:        # only how far down: their lines lie side by side
            ticks_end = min(ticks_end, bottom - 5 - size_of(text, 12.5)[0] * math.sin(math.radians(abs(x.tickangle))) - 8)
        if x.title.text:
            put(x.title.text, (left + right) / 2, ticks_end - 8, 12.5, 0.5)
        elif x.tickangle:
            found.append(("slanted names", left, ticks_end, right, bottom - 5))
        for text, share in ticks_of(y):
            put(text, left - 5, bottom + share * (top - bottom) + 8, 12.5, 1)
    return found


def touching(plot, width):
    boxes = boxes_of(plot, width)
    out = [text for text, left, bottom, right, top in boxes if min(left, bottom) < 0 or right > width or top > plot.layout.height]
    return out + [(a, b) for (a, *p), (b, *q) in itertools.combinations(boxes, 2)
                  if p[0] < q[2] and q[0] < p[2] and p[1] < q[3] and q[1] < p[3]]


class Apart(unittest.TestCase):
    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.folder = Path(keeper.name)

    def run_of(self, lines):
        return record.read_run(synthetic.write(self.folder / "run", lines))

    def assert_apart(self, plot, name):
        for form, width in (("wide", panels.WIDE), ("wide", 1224), ("narrow", panels.NARROW)):
            plot.plotly_relayout(plot.layout.meta[form])
            self.assertGreater(len(boxes_of(plot, width)), 0)
            self.assertEqual(touching(plot, width), [], f"{name}, {width} pixels")


class Arrangement(Apart):
    def test_a_narrow_page_has_fewer_columns_and_all_panels(self):
        plot = plots.memory(self.run_of(synthetic.lines()))
        self.assert_apart(plot, "memory")
        columns = {}
        for form in ("wide", "narrow"):
            plot.plotly_relayout(plot.layout.meta[form])
            axes = list(plot.select_xaxes())
            columns[form] = len({axis.domain[0] for axis in axes})
            corners = {(x.domain[0], y.domain[0]) for x, y in zip(axes, plot.select_yaxes())}
            self.assertEqual(len(corners), len(axes))
            self.assertEqual(sum(bool(y.showticklabels) for y in plot.select_yaxes()), -(-len(axes) // columns[form]))
        self.assertEqual(columns, {"wide": 4, "narrow": 2})

    def test_long_names_under_bars_stay_in_their_panels_which_have_the_same_places(self):
        lines = synthetic.lines()
        for line in lines[1:]:
            if line["settings"].get("strategy") == "2D tensor":
                line["settings"]["strategy"] = "deepspeed_style zero3 of a longer name"
        run = self.run_of(lines)
        plot = suite_figures.interactive(run, suite_figures_test.spec_of(lines, "bar", "strategy", "step"))
        self.assert_apart(plot, "bars")
        self.assertEqual({tuple(axis.range) for axis in plot.select_xaxes()}, {(-0.5, len(plot.layout.xaxis.ticktext) - 0.5)})
        self.assertEqual(panels._named(["dp", "deepspeed zero3"], 200), ({"ticktext": ["dp", "deepspeed<br>zero3"], "tickangle": 0}, panels.LINE))
        whole = {"ticktext": ["1D tensor", "deepspeed_style zero1"], "tickangle": -panels.SLANT}         # 14 letters have no room
        self.assertEqual(panels._named(["1D tensor", "deepspeed_style zero1"], 2 * 14 * panels.LETTER + 16)[0], whole)

    def test_the_least_width_of_a_plot_is_that_of_the_style_sheet(self):
        css = (HERE.parent.parent / "scripts" / "report" / "page.css").read_text(encoding="utf-8")
        self.assertIn(f".plot {{ width: 100%; min-width: {panels.NARROW}px; }}", css)

    def test_titles_hold_every_word(self):
        labels = [f"batch {8 << i}, sequence 64, full recomputation" for i in range(4)]
        plot, columns = panels.grid([(label, []) for label in labels], 250)
        panels.finish(plot, [], labels, columns, "peak memory of the fullest rank (MiB)", "tokens/s")
        self.assert_apart(plot, "titles")
        self.assertEqual(" ".join(note.text.replace("</b><br><b>", " ") for note in plot.layout.annotations),
                         " ".join(f"<b>{label}</b>" for label in labels))


if __name__ == "__main__":
    unittest.main()
