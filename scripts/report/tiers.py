# SPDX-License-Identifier: Apache-2.0
"""What tiers of memory moved, static and interactive: a bar a case, of the rank that moved the most, by direction."""

import plotly.graph_objects as go
from matplotlib.patches import Patch

import cards
import figures
import panels
import style
import views
from values import as_dict, number

# Of `moves` in docs/record.md: (what, key, colour).
WAYS = (("host to device", "to_device_bytes", style.BLUE), ("device to host", "to_host_bytes", style.LIME),
        ("disk to host", "disk_read_bytes", style.PLUM), ("host to disk", "disk_written_bytes", style.LAVENDER))


def _of_ranks(case, key):
    """A row of `moves`, a number a rank."""
    values = as_dict(case.document.get("moves")).get(key)
    return [number(v) or 0 for v in values] if isinstance(values, list) else []


def moved(case):
    """[bytes of each of WAYS] over all training steps, of the rank that moved the most; None where nobody has tiers."""
    rows = [_of_ranks(case, key) for _, key, _ in WAYS]
    ranks = max(map(len, rows))
    if not ranks or any(len(row) not in (0, ranks) for row in rows):
        return None
    return max(([row[r] if row else 0 for row in rows] for r in range(ranks)), key=sum)


def tiered(run):
    """Finished cases with tiers of memory."""
    return [c for c in run.finished if moved(c)]


def _layout(cases, run):
    """Groups of the same work, whatever lies where, and their rows."""
    groups = views.workloads(cases, without=[k for k in views.varied_keys(cases) if k.startswith("memory.")])
    return groups, views.bar_rows(groups, run)


def facts(case):
    """What the hover card and the text report say: what lies where, what was waited for, what was too much."""
    regret, steps = _of_ranks(case, "regret_bytes"), max(case.steps, 1)
    out = [f"{case.setting('memory.policy')}: {style.text_bytes(case.peak or 0)} on the device, "
           f"{style.text_bytes(max(_of_ranks(case, 'host_peak_bytes'), default=0))} on the host"]
    if disk := max(_of_ranks(case, "disk_bytes"), default=0):
        out[0] += f", {style.text_bytes(disk)} on the disk"
    waited = max(_of_ranks(case, "wait_s"), default=0) / steps
    out.append(f"waited {style.text_seconds(waited)} a step for copies")
    if away := max(_of_ranks(case, "step_activation_bytes"), default=0):
        out.append(f"{style.text_bytes(away)} of activations to the host and back a step")
    if regret:
        out.append(f"{style.text_bytes(max(regret))} a step over the least")
    if hits := sum(_of_ranks(case, "prefetches")):
        out.append(f"{sum(_of_ranks(case, 'prefetch_hits')):.0f} of {hits:.0f} prefetches used")
    return out


def _parts(rows, index):
    """The stacked parts of a panel's bars: (name, colour, [(y, case, where it begins, width)]), in MiB, none of width 0."""
    here = [(y, cells[index]) for y, (_, cells) in enumerate(rows) if index in cells]
    left = [0.0] * len(here)
    for way, (name, _, color) in enumerate(WAYS):
        widths = [moved(case)[way] / views.MIB for _, case in here]
        yield name, color, [(y, case, at, width) for (y, case), at, width in zip(here, left, widths) if width]
        left = [a + b for a, b in zip(left, widths)]


def static(run):
    """Bytes moved, one panel per workload."""
    cases = tiered(run)
    if not cases:
        return None
    groups, rows = _layout(cases, run)
    figure, axes = figures.bar_panels(groups, rows)
    for index in range(len(groups)):
        for _, color, parts in _parts(rows, index):
            axes[index].barh([y for y, *_ in parts], [width for *_, width in parts], left=[at for _, _, at, _ in parts], height=0.68,
                             linewidth=0.7, color=[views.fill(case, color) for _, case, *_ in parts],
                             edgecolor=[views.bar_edge(case, color) for _, case, *_ in parts])
    figure.supxlabel("moved by a rank over all training steps (MiB)", fontsize=8.5)
    handles = [Patch(color=color, label=name) for way, (name, _, color) in enumerate(WAYS) if any(moved(c)[way] for c in cases)]
    figures.legend(figure, handles + [Patch(facecolor=fill, edgecolor=edge, label=label)
                                      for label, fill, edge in views.proof_legend(cases)])
    return figure


def interactive(run):
    """The same with hover cards."""
    cases = tiered(run)
    if not cases:
        return None
    groups, rows = _layout(cases, run)
    legend = panels.Legend()
    figure, columns = panels.bars_grid(groups, rows)
    for index in range(len(groups)):
        for name, color, parts in _parts(rows, index):
            figure.add_trace(go.Bar(
                x=[width for *_, width in parts], y=[y for y, *_ in parts], orientation="h", width=0.7,
                marker={"color": [views.fill(case, color) for _, case, *_ in parts],
                        "line": {"color": [views.bar_edge(case, color) for _, case, *_ in parts], "width": 1}},
                customdata=[["<br>".join([f"<b>{name}: {style.text_bytes(width * views.MIB)}</b>", *facts(case), cards.card(case)]), case.id]
                            for _, case, _, width in parts],
                hovertemplate="%{customdata[0]}<extra></extra>", hoverlabel={"bordercolor": color}, **legend.under(name)),
                **panels.place(index, columns))
    legend.show(figure, {name: (color, "square") for way, (name, _, color) in enumerate(WAYS) if any(moved(c)[way] for c in cases)})
    figure.update_layout(barmode="stack")
    panels.match(figure.select_xaxes())
    panels.finish(figure, cases, groups, columns, "moved by a rank over all training steps (MiB)", None)
    return figure


FIGURES = {"tiers": static}
PLOTS = {"tiers": interactive}
SECTIONS = {"tiers": (
    "Tiers of memory", "What the busiest rank copied between device, host and disk in the training steps. The card of a bar says what lay where, "
    "how long a rank waited for copies, and what was loaded beyond the least that any moves of the step load.")}
