# SPDX-License-Identifier: Apache-2.0
"""The same schedules on real thread ranks whose stages wait for a given time: what micro_pipeline measures, and what it
has to show."""

import json
import subprocess
import sys

RANKS = (2, 4, 8)
MICRO_BATCHES = (4, 8, 32)
FORWARD_MS = 8.0                           # of a rank, one micro-batch; both gradients take as much each
PASSES = 4                                 # over all cases
MOST_LONGER = 0.05                         # than the same timetable with free messages
MOST_OVERHEAD_US = 50
ALONE = 0.02                               # a speed-up that is almost none


def _ask(schedule, ranks, micro_batches, chunks=1, forward_ms=FORWARD_MS, **more):
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches, "chunks": chunks, "forward_ms": forward_ms,
            "input_grad_ms": forward_ms, "weight_grad_ms": forward_ms, "rounds": 1, **more}


def requests(schedules, gpipe, interleaved, drawn):
    asked = [_ask(name, p, m, v) for name, v in schedules for p in RANKS for m in MICRO_BATCHES]
    for p in gpipe["speedup"]:
        for m in (1, gpipe["micro_batches"]):
            asked.append(_ask("gpipe", 1, m, forward_ms=p * FORWARD_MS))   # one rank that does the work of all
        asked.append(_ask("gpipe", p, 1))
    asked += [_ask(name, interleaved["ranks"], m, v) for name, v in (("1f1b", 1), ("interleaved", interleaved["chunks"]))
              for m in interleaved["micro_batches"]]
    p, m = drawn
    asked += [_ask(name, p, m, v, spans=True) for name, v in schedules if (name, v) != ("interleaved", 4)]
    return asked


def _fastest(rows):
    """Of the same case in all passes, whose lengths are kept. Whatever else goes on can only make a wait longer."""
    row = min(rows, key=lambda r: r["length_s"])
    return {**row, "lengths_s": [r["length_s"] for r in rows], "bubbles": [r["bubble"] for r in rows]}


def take(program, asked, passes=PASSES):
    """Runs micro_pipeline: {"rows", "timetables", "overhead"}. The passes lie as far apart as they can: what
    disturbs a machine comes and goes in tens of seconds."""
    def run(*options, text=None):
        done = subprocess.run([str(program), *options], input=text, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr.strip())
        return json.loads(done.stdout)
    timed = [run("--requests", text=json.dumps(asked)) for _ in range(passes)]
    rows = [_fastest(same) for same in zip(*(t["rows"] for t in timed), strict=True)]
    return {"rows": [r for r in rows if "spans" not in r],
            "timetables": [_relative(r) for r in rows if "spans" in r], "overhead": run("--overhead", "--rounds", "20")["rows"]}


def _relative(row):
    """Spans in forwards of a rank, from the first one on."""
    begin = min(span["start"] for spans in row["spans"] for span in spans)
    for spans in row["spans"]:
        for span in spans:
            for key in ("start", "end"):
                span[key] = round((span[key] - begin) / row["forward_s"], 4)
    return {**row, "length": round(row["length_s"] / row["forward_s"], 3)}


def at(rows, schedule, p, m, v=1, forward_ms=FORWARD_MS):
    found = [r for r in rows if (r["schedule"], r["ranks"], r["micro_batches"], r["chunks"]) == (schedule, p, m, v)
             and abs(r["forward_s"] - forward_ms / 1000) < 1e-9]
    assert len(found) == 1, (schedule, p, m, v, forward_ms)
    return found[0]


def speedup(rows, p, m):
    """Of GPipe on p ranks over one rank that does their work."""
    return at(rows, "gpipe", 1, m, forward_ms=p * FORWARD_MS)["length_s"] / at(rows, "gpipe", p, m)["length_s"]


def gain(rows, p, m, v):
    return at(rows, "1f1b", p, m)["length_s"] / at(rows, "interleaved", p, m, v)["length_s"] - 1


def verdicts(measured, gpipe, interleaved):
    rows = measured["rows"]
    longer = [r["length_s"] / r["length_played_s"] - 1 for r in rows]
    checks = [{"claim": f"measured: as long as the played timetable, to {MOST_LONGER:.0%} ({len(rows)} cases)",
               "found": f"{min(longer):+.1%} to {max(longer):+.1%}", "holds": 0 <= min(longer) and max(longer) <= MOST_LONGER}]
    for p, published in gpipe["speedup"].items():
        found = speedup(rows, p, gpipe["micro_batches"])
        checks.append({"claim": f"measured: GPipe {published}x on {p} stages at {gpipe['micro_batches']} micro-batches "
                                f"(within {gpipe['within']:.0%})", "source": "1811.06965, table 2",
                       "found": f"{found:.2f}x, {found / published - 1:+.1%}",
                       "holds": abs(found / published - 1) <= gpipe["within"]})
        alone = speedup(rows, p, 1)
        checks.append({"claim": f"measured: almost none on {p} stages at 1 micro-batch", "source": "1811.06965, table 2",
                       "found": f"{alone:.3f}x", "holds": abs(alone - 1) <= ALONE})
    gains = {m: gain(rows, interleaved["ranks"], m, interleaved["chunks"]) for m in interleaved["micro_batches"]}
    asked = [m for m in gains if m <= interleaved["until"]]
    checks.append({"claim": f"measured: interleaving gains 10 % and more ({interleaved['ranks']} stages, {interleaved['chunks']} "
                            f"chunks, up to {asked[-1]} micro-batches)", "source": "2104.04473, abstract and figure 12",
                   "found": ", ".join(f"{m}: {g:.1%}" for m, g in gains.items()),
                   "holds": all(gains[m] >= interleaved["gain"] for m in asked)})
    worst = {key: max(r[key] for r in measured["overhead"]) for key in ("mean_us", "median_us", "p99_us")}
    checks.append({"claim": f"the executor takes under {MOST_OVERHEAD_US} us an action ({len(measured['overhead'])} cases)",
                   "found": f"at most: mean {worst['mean_us']:.1f} us, median {worst['median_us']:.1f} us, 99 % within {worst['p99_us']:.0f} us",
                   "holds": worst["mean_us"] < MOST_OVERHEAD_US})
    return checks


def table(measured, checks):
    lines = ["| claim | source | found | holds |", "|---|---|---|---|"]
    lines += [f"| {c['claim']} | {c.get('source', '-')} | {c['found']} | {'yes' if c['holds'] else 'NO'} |" for c in checks]
    lines += ["", f"Stages that wait: {FORWARD_MS:g} ms a forward of a rank's layers and as much for each gradient, unless told "
              f"otherwise; the fastest of {PASSES} passes, bubble from the executor's own timeline; slowest: of the passes.", "",
              "| schedule | chunks | ranks | micro-batches | forward, ms | length, ms | slowest | played, ms | bubble | played | closed form |",
              "|" + "---|" * 11]
    for r in measured["rows"]:
        form = "-" if r["closed_form"] is None else ("<= " if r["schedule"] == "zbv" else "") + f"{r['closed_form']:.4f}"
        lines.append(f"| {r['schedule']} | {r['chunks']} | {r['ranks']} | {r['micro_batches']} | {1e3 * r['forward_s']:g} | "
                     f"{1e3 * r['length_s']:.1f} | {1e3 * max(r['lengths_s']):.1f} | {1e3 * r['length_played_s']:.1f} | {r['bubble']:.4f} | "
                     f"{r['bubble_played']:.4f} | {form} |")
    lines += ["", "Between two actions that take no time, waits for messages apart (messages of 8 KiB, posted and sent):", "",
              "| schedule | chunks | ranks | actions | mean, us | median, us | 99 %, us |", "|" + "---|" * 7]
    lines += [f"| {r['schedule']} | {r['chunks']} | {r['ranks']} | {r['actions']} | {r['mean_us']:.1f} | {r['median_us']:.1f} | {r['p99_us']:.1f} |"
              for r in measured["overhead"]]
    return "\n".join(lines) + "\n"
