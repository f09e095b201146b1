# SPDX-License-Identifier: Apache-2.0
"""The figures of pipeline_bubble: bubbles, speed-ups and memory, and the timetables themselves."""

import sys
from pathlib import Path

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

import closed_forms
import measured

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "report"))
import style

LOOKS = {("gpipe", 1): ("GPipe", style.GREY, "o"), ("1f1b", 1): ("1F1B", style.BLUE, "s"),
         ("interleaved", 2): ("interleaved, 2 chunks", style.ORANGE, "v"),
         ("interleaved", 4): ("interleaved, 4 chunks", style.VERMILION, "^"),
         ("zero_bubble", 1): ("zero bubble (H1)", style.GREEN, "D"), ("zbv", 2): ("ZB-V", style.PINK, "P")}
OPS = {"F": ("forward", style.BLUE), "B": ("backward", style.ORANGE), "I": ("gradient of the input", style.SKY),
       "W": ("gradient of the weights", style.GREEN)}
BUBBLE_RANKS = 8


def _save(figure, out, name):
    for kind in ("svg", "png"):
        figure.savefig(out / f"{name}.{kind}", dpi=130, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)


def draw_bubbles(rows, gpipe, gain, interleaved, out):
    with plt.rc_context(style.MATPLOTLIB):
        figure, panels = plt.subplots(2, 2, figsize=(10.6, 7.2), layout="constrained")
        _bubble(panels[0][0], rows)
        _memory(panels[0][1], rows)
        _speedup(panels[1][0], rows, gpipe)
        _gain(panels[1][1], rows, gain, interleaved)
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=6)
        _save(figure, out, "bubble")


def _free(rows, key, ranks):
    own = [r for r in rows if (r["schedule"], r["chunks"]) == key and r["ranks"] == ranks and r["transfer"] == 0]
    return sorted(own, key=lambda r: r["micro_batches"])


def _bubble(panel, rows):
    for key, (name, color, marker) in LOOKS.items():
        own = _free(rows, key, BUBBLE_RANKS)
        panel.plot([r["micro_batches"] for r in own], [r["bubble"] for r in own], marker, color=color, label=name, markersize=5)
        known = [r for r in own if r["closed_form"] is not None]
        panel.plot([r["micro_batches"] for r in known], [r["closed_form"] for r in known], "-", color=color, linewidth=0.9)
    panel.set(xscale="log", yscale="log", xlabel="micro-batches", ylabel="idle / working time of a rank",
              title=f"bubble on {BUBBLE_RANKS} ranks (lines: closed forms; ZB-V's is a bound)")
    _ticks(panel, [1, 2, 4, 8, 16, 32, 64, 128])


def _memory(panel, rows):
    for key, (_, color, marker) in LOOKS.items():
        own = _free(rows, key, BUBBLE_RANKS)
        panel.plot([r["micro_batches"] for r in own], [r["alive_share"] for r in own], marker + "-", color=color, markersize=5,
                   linewidth=0.9)
    panel.set(xscale="log", yscale="log", xlabel="micro-batches", ylabel="inputs kept, of a rank's whole share",
              title=f"activations on the fullest of {BUBBLE_RANKS} ranks")
    _ticks(panel, [1, 2, 4, 8, 16, 32, 64, 128])
    panel.set_yticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])


def _speedup(panel, rows, gpipe):
    for ranks, marker in ((2, "s"), (4, "o"), (8, "D")):
        own = _free(rows, ("gpipe", 1), ranks)
        x = [r["micro_batches"] for r in own]
        panel.plot(x, [r["speedup"] for r in own], marker, color=style.GREY, markersize=5, label=f"{ranks} stages")
        panel.plot(x, [closed_forms.speedup(ranks, m) for m in x], "-", color=style.GREY, linewidth=0.9)
        if ranks in gpipe["speedup"]:
            panel.plot(gpipe["micro_batches"], gpipe["speedup"][ranks], "*", color=style.VERMILION, markersize=11,
                       label="published" if ranks == 4 else None)
    panel.set(xscale="log", xlabel="micro-batches", ylabel="times one rank", ylim=(0, 8.2),
              title="GPipe: speed-up (lines: p m / (m + p - 1))")
    _ticks(panel, [1, 2, 4, 8, 16, 32, 64, 128])
    panel.legend(frameon=False, loc="upper left")


def _gain(panel, rows, gain, interleaved):
    x = list(interleaved["micro_batches"])
    for chunks, color, marker in ((2, style.ORANGE, "v"), (4, style.VERMILION, "^")):
        for transfer, line in ((0.0, "-"), (0.05, "--")):
            panel.plot(x, [100 * gain(rows, m, transfer, chunks) for m in x], marker + line, color=color, markersize=5,
                       linewidth=0.9, label=f"{chunks} chunks, messages {transfer:.0%} of a forward")
    panel.axhline(100 * interleaved["gain"], color=style.MUTED, linewidth=0.9, dashes=(4, 3))
    panel.annotate("published: more than 10 %", (x[0], 100 * interleaved["gain"]), xytext=(0, -11),
                   textcoords="offset points", fontsize=8, color=style.MUTED)
    panel.set(xlabel="micro-batches", ylabel="faster than 1F1B, %", ylim=(0, None), title=f"interleaving on {interleaved['ranks']} ranks")
    panel.set_xticks(x)
    panel.legend(frameon=False)


def _ticks(panel, values):
    panel.set_xticks(values, [str(v) for v in values])
    panel.minorticks_off()


def draw_measured(rows, gpipe, interleaved, out):
    """What the ranks took, beside what the formulas say."""
    with plt.rc_context(style.MATPLOTLIB):
        figure, panels = plt.subplots(1, 3, figsize=(13.2, 4.2), layout="constrained")
        _measured_bubble(panels[0], rows)
        _measured_speedup(panels[1], rows, gpipe)
        _measured_gain(panels[2], rows, interleaved)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=6)
        _save(figure, out, "measured")


def _measured_bubble(panel, rows):
    for (schedule, chunks), (name, color, marker) in LOOKS.items():
        own = sorted((r for r in rows if (r["schedule"], r["chunks"], r["ranks"]) == (schedule, chunks, BUBBLE_RANKS)
                      and r["micro_batches"] > 1), key=lambda r: r["micro_batches"])
        x = [r["micro_batches"] for r in own]
        panel.plot(x, [r["bubble"] for r in own], marker, color=color, label=name, markersize=5)
        panel.plot(x, [r["bubble_played"] for r in own], "-", color=color, linewidth=0.9)
    panel.set(xscale="log", yscale="log", xlabel="micro-batches", ylabel="idle / working time of a rank",
              title=f"measured bubble on {BUBBLE_RANKS} ranks (lines: played)")
    _ticks(panel, measured.MICRO_BATCHES)


def _measured_speedup(panel, rows, gpipe):
    for ranks, color in zip(gpipe["speedup"], (style.BLUE, style.ORANGE)):
        x = [1, gpipe["micro_batches"]]
        panel.plot(x, [measured.speedup(rows, ranks, m) for m in x], "o", color=color, markersize=6, label=f"{ranks} stages")
        line = [1, 2, 4, 8, 16, 32]
        panel.plot(line, [closed_forms.speedup(ranks, m) for m in line], "-", color=color, linewidth=0.9)
        panel.plot(gpipe["micro_batches"], gpipe["speedup"][ranks], "*", color=style.VERMILION, markersize=11,
                   label="published" if ranks == 4 else None)
    panel.set(xscale="log", xlabel="micro-batches", ylabel="times one rank", ylim=(0, 8),
              title="GPipe, measured: speed-up (lines: p m / (m + p - 1))")
    _ticks(panel, [1, 2, 4, 8, 16, 32])
    panel.legend(frameon=False, loc="upper left")


def _measured_gain(panel, rows, interleaved):
    p, v, x = interleaved["ranks"], interleaved["chunks"], list(interleaved["micro_batches"])
    played = [measured.at(rows, "1f1b", p, m)["length_played_s"] / measured.at(rows, "interleaved", p, m, v)["length_played_s"]
              for m in x]
    panel.plot(x, [100 * measured.gain(rows, p, m, v) for m in x], "v", color=style.ORANGE, markersize=6, label="measured")
    panel.plot(x, [100 * (g - 1) for g in played], "-", color=style.ORANGE, linewidth=0.9, label="played")
    panel.axhline(100 * interleaved["gain"], color=style.MUTED, linewidth=0.9, dashes=(4, 3))
    panel.annotate("published: more than 10 %", (x[0], 100 * interleaved["gain"]), xytext=(0, -11),
                   textcoords="offset points", fontsize=8, color=style.MUTED)
    panel.set(xlabel="micro-batches", ylabel="faster than 1F1B, %", ylim=(0, None),
              title=f"interleaving on {p} ranks, {v} chunks")
    panel.set_xticks(x)
    panel.legend(frameon=False)


def draw_timetables(timetables, out, file):
    """One panel a schedule, all on one time axis: what every rank does when."""
    with plt.rc_context(style.MATPLOTLIB):
        figure, panels = plt.subplots(len(timetables), 1, figsize=(10.6, 1.55 * len(timetables) + 0.9), layout="constrained",
                                      sharex=True)
        for panel, t in zip(panels, timetables):
            for rank, spans in enumerate(t["spans"]):
                for span in spans:
                    chunk = span["stage"] // t["ranks"]
                    panel.barh(rank, span["end"] - span["start"], left=span["start"], height=0.86, color=OPS[span["op"]][1],
                               alpha=1.0 if chunk == 0 else 0.62, edgecolor="white", linewidth=0.6)
                    panel.text((span["start"] + span["end"]) / 2, rank, span["micro_batch"], ha="center", va="center",
                               fontsize=6, color="white").set_in_layout(False)
            panel.set(yticks=range(t["ranks"]), yticklabels=[f"rank {r}" for r in range(t["ranks"])], ylim=(t["ranks"] - 0.5, -0.5))
            panel.grid(visible=False)
            panel.set_title(f"{LOOKS[t['schedule'], t['chunks']][0]}: {t['length']:g} units, bubble {t['bubble']:.3f}")
        panels[-1].set_xlabel("time, in forwards of a micro-batch by a rank (numbers: micro-batch; pale: second chunk)")
        used = {s["op"] for t in timetables for spans in t["spans"] for s in spans}
        figure.legend(handles=[Patch(color=color, label=name) for op, (name, color) in OPS.items() if op in used],
                      loc="outside upper left", ncols=4)
        _save(figure, out, file)
