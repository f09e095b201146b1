# SPDX-License-Identifier: Apache-2.0
"""Figures of layers (`train.telemetry`) and of the gradient noise scale; where tall figures are cut on paper."""

import math
import re
import sys
import unittest
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import layer_maps
import layers
import noise
import page
import paper
import record
import side_by_side
import style
import synthetic
from program import Folder, run_main

NAMES = ["embedding.tokens", *(f"blocks.{b}.{w}" for b in (0, 1) for w in ("attn.qkv.weight[0]", "attn.qkv.weight[1]", "mlp.bias")),
         *(f"blocks.{b}.moe.up.weight[{e}]" for b in (0, 1) for e in range(6)), "head.weight"]
STEPS = 30


def telemetry():
    """Formulas of step and layer: norms, a layer that ends at 0, a step that updated nothing, noise of 8 samples."""
    def rows(value):
        return [[None if t == 7 else value(t, i) for i in range(len(NAMES))] for t in range(STEPS)]
    return {"layers": NAMES, "steps": list(range(STEPS)), "weight_norm": rows(lambda t, i: 1.0 + i),
            "gradient_norm": rows(lambda t, i: 0.0 if i == 3 else 10.0 ** -(i % 4) / (1 + t)),
            "update_ratio": rows(lambda t, i: 1e-3), "trust_ratio": rows(lambda t, i: 1 if i % 2 else 0.1 + 0.01 * t),
            "gradient_variance": rows(lambda t, i: 8.0 * (1 + (-1) ** t)), "gradient_square": rows(lambda t, i: 1.0 - (i == 2))}


class LayersTest(Folder):
    def setUp(self):
        super().setUp()
        lines = synthetic.few(4)
        for line in lines[1:3]:
            line["document"]["telemetry"] = telemetry()
        lines[3]["document"]["telemetry"] = None
        self.run_ = record.read_run(synthetic.write(self.folder, lines))

    def test_layers_that_differ_in_their_block_are_one_kind_and_so_are_many_experts(self):
        found = layers.of(self.run_.finished[0])
        self.assertEqual([(k.name, len(k.members)) for k in found.kinds],
                         [("embedding.tokens", 1), ("attn.qkv.weight[0]", 2), ("attn.qkv.weight[1]", 2), ("mlp.bias", 2),
                          ("moe.up.weight", 12), ("head.weight", 1)])
        self.assertEqual(sorted(at for k in found.kinds for at in k.members), list(range(len(NAMES))))
        ratios = found.rows["trust_ratio"][0]
        self.assertEqual((ratios[0], ratios[1]), (0.1, None))         # 1 in every step: left out

    def test_a_figure_a_case_shows_every_value_by_name_and_step(self):
        plots = layer_maps.plots(self.run_)
        self.assertEqual(list(plots), ["layers_1", "layers_2"])
        figure = plots["layers_1"](self.run_)
        maps = [t for t in figure.data if t.type == "heatmap"]
        told = telemetry()
        for trace, key in zip(maps, ("gradient_norm", "weight_norm", "update_ratio"), strict=False):
            self.assertEqual(sorted(trace.meta["layers"]), sorted(NAMES))
            self.assertEqual((len(trace.x), len(trace.y)), (STEPS + 1, len(NAMES) + 1))
            for name, line in zip(trace.meta["layers"], trace.z):
                for t in range(STEPS):
                    value = told[key][t][NAMES.index(name)]
                    self.assertEqual(line[t], round(math.log10(value), 3) if value else None)
                    self.assertTrue(trace.x[t] < t + 1 < trace.x[t + 1])
        self.assertEqual(len(maps), 5)
        texts = [a.text for a in figure.layout.annotations]
        self.assertIn("highest: head.weight 20", texts)
        self.assertIn("lowest: embedding.tokens 1", texts)

    def test_static_figures_and_what_is_left_out(self):
        with matplotlib.rc_context(style.MATPLOTLIB):
            drawn = layer_maps.drawings(self.run_)["layers_1"](self.run_)
        rows = [a for a in drawn.axes if a.get_subplotspec() and a.get_subplotspec().is_first_col()]
        self.assertEqual(len(rows), 5)
        labels = [t.get_text() for t in rows[0].get_yticklabels()]
        self.assertEqual(labels[:2], ["embedding.tokens", "attn.qkv.weight[0] \u00d72"])
        (self.folder / "layers_3.svg").write_text("of an earlier report")
        (self.folder / "layers_2.svg").write_text("")
        layer_maps.clear(self.run_, self.folder)
        self.assertEqual([p.name for p in self.folder.glob("layers_*")], ["layers_2.svg"])
        most, layer_maps.MOST = layer_maps.MOST, 1
        try:
            self.assertEqual(list(layer_maps.plots(self.run_)), ["layers_1"])
            self.assertIn("1 more cases recorded layers", layer_maps.sections(self.run_)["layers_1"][1])
        finally:
            layer_maps.MOST = most

    def test_noise_scales_are_quotients_of_means(self):
        self.assertEqual(layers.quotients([8, 0, None, 4], [1, 1, 1, 4], 2), [8, 4, None, 1])
        self.assertEqual(layers.quotients([8, -4, 4], [2, 1, 2], 1), [4, None, 2])
        steps, single, mean = noise.curve(self.run_.finished[0])
        count = len(NAMES)
        self.assertEqual((steps[0], len(steps)), (1, STEPS))
        self.assertAlmostEqual(single[0], 16 * count / (count - 1))
        self.assertEqual((single[1], single[7]), (None, None))
        self.assertAlmostEqual(mean[-1], 8 * count / (count - 1))
        self.assertIsNone(noise.curve(self.run_.finished[2]))
        figure = noise.PLOTS["noise_scale"](self.run_)
        self.assertEqual(sum(t.mode == "lines" and len(t.x) == STEPS for t in figure.data), 2)
        with matplotlib.rc_context(style.MATPLOTLIB):
            self.assertIsNotNone(noise.FIGURES["noise_scale"](self.run_))

    def test_scales_of_noise_have_ticks_in_plain_numbers(self):
        axis = noise.PLOTS["noise_scale"](self.run_).layout.yaxis
        self.assertEqual(list(axis.ticktext), [style.text_number(t) for t in axis.tickvals])
        self.assertGreater(len(axis.tickvals), 1)
        with matplotlib.rc_context(style.MATPLOTLIB):
            panel = noise.FIGURES["noise_scale"](self.run_).axes[0]
        self.assertEqual([t.get_text() for t in panel.get_yticklabels()], list(axis.ticktext))
        self.assertEqual(list(panel.get_yticks(minor=True)), [])

    def test_the_telemetry_of_a_case_is_worked_out_once(self):
        told = telemetry()
        self.assertIs(layers._of_telemetry(told), layers._of_telemetry(told))
        other = record.case_of(dict(synthetic.few(1)[1], name="other"))
        other.document["telemetry"] = self.run_.finished[0].document["telemetry"]
        self.assertEqual(layers.of(other).case.name, "other")
        self.assertEqual(layers.of(self.run_.finished[0]).case, self.run_.finished[0])

    def test_folders_side_by_side_have_layers_and_noise_of_each(self):
        every = side_by_side.together([self.run_, self.run_], ["a", "b"])
        self.assertEqual([c.name.split(":")[0] for c in every.finished[:4]], ["a", "b", "a", "b"])
        labels = ["a", "b"]
        plots = side_by_side.plots([self.run_, self.run_], labels)
        self.assertEqual([name for name in plots if name.startswith("layers_")], [f"layers_{i}" for i in range(1, 5)])
        self.assertEqual(sum(t.mode == "lines" and len(t.x) == STEPS for t in plots["noise_scale"].data), 4)
        names = {t.name for t in plots["noise_scale"].data if t.showlegend}
        self.assertTrue({f"{self.run_.finished[0].strategy} ({label})" for label in labels} <= names, names)
        self.assertTrue(set(plots) - {"tokens_per_second_ratios", "peak_memory_ratios"} <= set(side_by_side.figures([self.run_] * 2, labels)))
        self.assertIn("b: ", side_by_side.sections([self.run_, self.run_], labels)["layers_2"][0])

    def test_the_text_leaves_out_ratios_of_layers_that_have_none(self):
        case = self.run_.finished[0]
        # Every second layer is left out: its ratio is 1 in every step, and all others end at 0.39.
        told = layers.sentence(case).split("trust ratio ")[1]
        self.assertRegex(told, r"^0\.39 \(\S+\) to 0\.39 \(\S+\)$")
        case.document["telemetry"]["trust_ratio"] = [[1] * len(NAMES)] * STEPS
        self.assertNotIn("trust ratio", layers.sentence(case))

    def test_the_text_tells_as_many_layers_as_are_asked_for(self):
        code, out, _ = run_main(self.folder, "--text", "--layers", 1)
        self.assertEqual((code, out.count("layers, step")), (0, 1))
        self.assertIn("1 more case is left out; --layers 2 tells all", out)
        code, out, _ = run_main(self.folder, "--text", "--layers", 2)
        self.assertEqual((code, out.count("layers, step")), (0, 2))
        self.assertNotIn("left out", out)
        for given, said in ((["--layers", 2], "--layers is about --text"), (["--text", "--layers", -1], "--layers -1: give a number")):
            code, _, err = run_main(self.folder, *given)
            self.assertEqual(code, 2)
            self.assertIn(said, err)

    def test_records_without_layers_have_no_figure(self):
        for line in ({}, {"layers": ["a"], "steps": [0], "weight_norm": [[None]]}, {"layers": 3, "steps": None}, "text"):
            case = self.run_.finished[0]
            case.document["telemetry"] = line
            self.assertIsNone(layers.of(case))
            self.assertIsNone(noise.curve(case))


class PaperTest(unittest.TestCase):
    def cut(self, rows, height, ticks):
        figure = Figure(figsize=(10, height * rows + 0.5), layout="constrained")
        axes = figure.subplots(rows, 2, squeeze=False)
        for panel in axes.flat:
            panel.set_yticks(range(ticks), [f"case {i}" for i in range(ticks)])
            panel.set_ylim(ticks - 0.4, -0.6)
        figure.legend(handles=axes[0][0].plot([0], [0], label="a"), loc="outside upper left")
        figure.supylabel("cases")
        figure.supxlabel("bytes")
        paper.label_rows(figure)
        figure.savefig("/dev/null", format="svg")
        return figure, axes, paper.drawn(Path("x.svg"), figure)

    def check(self, figure, drawn):
        """Pieces go on where the one before ended, fit a page, and have the legend and the label of the x axis."""
        parts = [piece[bool(i)] for i, piece in enumerate(drawn.pieces)]
        self.assertEqual((parts[0][0], parts[-1][1]), (0, 1))
        for a, b in zip(parts, parts[1:]):
            self.assertEqual(a[1], b[0])
        for piece in drawn.pieces:
            self.assertLessEqual(sum(bottom - top for top, bottom in piece) * drawn.aspect, paper.MOST + 1e-6)
        for piece in drawn.pieces[1:]:
            self.assertEqual(piece[0][0], 0)
            self.assertGreater(piece[0][1], 0)
        label = figure._supxlabel.get_window_extent()
        for piece in drawn.pieces:
            top, bottom = piece[-1]
            self.assertLessEqual(top, 1 - label.y1 / figure.bbox.height)
            self.assertGreaterEqual(bottom, 1 - label.y0 / figure.bbox.height)
        return [bottom for _, bottom in parts[:-1]]

    def test_tall_figures_are_cut_between_their_panels(self):
        figure, axes, drawn = self.cut(5, 3, 4)
        cuts = self.check(figure, drawn)
        self.assertEqual(len(cuts), 2)
        height = figure.bbox.height
        for panel in axes.flat:
            box = panel.get_tightbbox()
            self.assertFalse([c for c in cuts if box.y0 < (1 - c) * height < box.y1])
        self.assertEqual([row[0].get_ylabel() for row in axes], ["cases"] * 5)

    def test_a_panel_taller_than_a_page_is_cut_between_its_rows(self):
        figure, axes, drawn = self.cut(1, 20, 100)
        cuts = self.check(figure, drawn)
        self.assertGreaterEqual(len(cuts), 2)
        for cut in cuts:
            y = axes[0][0].transData.inverted().transform((0, (1 - cut) * figure.bbox.height))[1]
            self.assertAlmostEqual(y % 1, 0.5, places=6)
        ticks = axes[0][0].get_xticklabels()[0].get_window_extent()
        for piece in drawn.pieces[:-1]:
            top, bottom = piece[-2]
            self.assertTrue(top <= 1 - ticks.y1 / figure.bbox.height < 1 - ticks.y0 / figure.bbox.height <= bottom)

    def test_a_figure_that_fits_a_page_is_whole(self):
        figure, axes, drawn = self.cut(2, 3, 4)
        self.assertEqual(drawn.pieces, ())
        self.assertEqual(figure.get_supylabel(), "cases")

    def test_the_page_shows_pieces_on_paper_alone(self):
        path = Path(__file__).parent / "layers_test.py"
        section = page.figure_section("memory", paper.Drawn(path, 2.0, (((0.0, 0.4),), ((0.0, 0.1), (0.4, 1.0)))))
        self.assertIn('<section id="memory" class="tall">', section)
        self.assertEqual(re.findall(r"--top:(.*?)%", section), ["-0.0000", "-0.0000", "-66.6667"])
        self.assertEqual([round(float(a), 3) for a in re.findall(r"aspect-ratio:(.*?);", section)], [1.25, 5, 0.833])
        self.assertEqual(section.count(">Memory, continued<"), 1)
        self.assertNotIn("tall", page.figure_section("memory", paper.Drawn(path)))


if __name__ == "__main__":
    unittest.main()
