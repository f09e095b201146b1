# SPDX-License-Identifier: Apache-2.0
"""One look for the static and the interactive figures: colours, markers, type, number formats."""

import itertools
import math

FONTS = ["Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"]
INK = "#1f2933"
MUTED = "#5f6b7a"
GRID = "#e4e8ee"
PAPER = "#ffffff"

# After Okabe and Ito, and four more found by search: every two differ with any of the common colour
# deficiencies, from paper and from the red below (a test computes it). Marks say the same a second
# time, in grey print and for whoever sees no colour.
GREY, BLUE, VERMILION, ORANGE = "#4d4d4d", "#0072b2", "#d55e00", "#e69f00"
GREEN, PINK, SKY, VIOLET = "#009e73", "#cc79a7", "#56b4e9", "#5d3a9b"
LIME, PURPLE, PLUM, LAVENDER = "#b4c378", "#a500f0", "#4b0f4b", "#a578ff"
# What a certificate refutes; no strategy, axis or category has it.
DIFFERENT = "#d00030"

# (matplotlib marker, plotly symbol)
CIRCLE, SQUARE, DIAMOND = ("o", "circle"), ("s", "square"), ("D", "diamond")
UP, DOWN, PLUS = ("^", "triangle-up"), ("v", "triangle-down"), ("P", "cross")
LEFT, RIGHT = ("<", "triangle-left"), (">", "triangle-right")
PENTAGON, CROSS = ("p", "pentagon"), ("X", "x")
STAR, HEXAGON = ("*", "star"), ("h", "hexagon")

# The table of looks: twelve colours, each with a mark of its own. From the thirteenth name on the
# colours come again in the same order, each with the mark of the next row: see look().
LOOKS = [(GREY, CIRCLE), (BLUE, SQUARE), (VERMILION, UP), (ORANGE, DOWN), (GREEN, DIAMOND),
         (PINK, PLUS), (SKY, PENTAGON), (LIME, CROSS), (VIOLET, RIGHT), (PURPLE, LEFT),
         (PLUM, STAR), (LAVENDER, HEXAGON)]
CYCLE_NOTE = f"after {len(LOOKS)} names colours repeat"

# In this order names without a look of their own take one: each is as far as can be from those
# before it, for every sight (a test computes it).
FREE = [(color, mark) for hue in (BLUE, VERMILION, PLUM, LIME, PURPLE, SKY, GREY, LAVENDER, PINK,
                                  ORANGE, GREEN, VIOLET)
        for color, mark in LOOKS if color == hue]
# Names that keep one look in every report: the first rows of the table, in the legend's order.
STRATEGIES = dict(zip(("one rank", "data parallel", "1D tensor", "1D-sp", "2D tensor",
                       "data x tensor", "2.5D tensor", "3D tensor", "pipeline"), LOOKS))
ALIASES = {"serial": "one rank", "1d": "1D tensor", "1d-sp": "1D-sp", "1d-sp tensor": "1D-sp",
           "1d sequence-parallel": "1D-sp", "2d": "2D tensor", "2.5d": "2.5D tensor",
           "3d": "3D tensor", "data": "data parallel", "data x 1d tensor": "data x tensor"}

AXES = {
    "data": (BLUE, SQUARE), "tensor": (VERMILION, UP), "row": (GREEN, RIGHT), "col": (ORANGE, DOWN),
    "dep": (PINK, DIAMOND), "pipeline": (VIOLET, PENTAGON), "sequence": (SKY, CIRCLE),
    "expert": (LIME, PLUS), "world": (GREY, CROSS),
}
CATEGORIES = {
    "parameter": BLUE, "gradient": SKY, "optimizer": GREEN, "activation": ORANGE,
    "communication": PINK, "temporary": GREY, "scratch": VERMILION,
}
# By the words that readers see (record.Case.status_words).
STATUSES = {"ok": GREEN, "different": DIFFERENT, "refused": MUTED, "out of memory": VERMILION, "timeout": ORANGE,
            "diverged": PURPLE, "interrupted": SKY, "failed": PLUM}


def look(index):
    """Row `index` of the table of looks, which goes on without end: every further round has the
    colours in their order, each with the mark one row further down. 144 names differ."""
    rounds, row = divmod(index, len(LOOKS))
    return LOOKS[row][0], LOOKS[(row + rounds) % len(LOOKS)][1]


def palette(names, known):
    """{name: (colour, mark)}: known names keep theirs in every report. Others take what those leave of
    FREE, in its order, then the further rounds of the table: up to twelve names have twelve
    colours."""
    lowered = {k.lower(): v for k, v in known.items()}

    def own(name):
        key = name.lower()
        return lowered.get(key if key in lowered else ALIASES.get(key, key).lower())

    chosen, taken = {}, set()
    for name in names:
        if own(name) and own(name) not in taken:
            chosen[name] = own(name)
            taken.add(own(name))
    used = {color for color, _ in taken}
    free = [x for x in FREE if x[0] not in used]
    further = (x for x in map(look, itertools.count(len(LOOKS))) if x not in taken)
    for name in names:
        if name not in chosen:
            chosen[name] = free.pop(0) if free else next(further)
    return {name: chosen[name] for name in names}


def repeats_colors(looks):
    """Whether two names of a palette have one colour, which the legend then says."""
    colors = [color for color, _ in looks.values()]
    return len(set(colors)) < len(colors)


def strategy_order(names):
    """The order of the legend: that in which the suite has them."""
    return list(dict.fromkeys(names))


def category_colors(names):
    """{category: colour}, known ones first and in the order of the stack."""
    spare = [LIME, PLUM, VIOLET, LAVENDER]
    ordered = [c for c in CATEGORIES if c in names] + sorted(set(names) - set(CATEGORIES))
    return {c: CATEGORIES[c] if c in CATEGORIES else spare[i % len(spare)]
            for i, c in enumerate(ordered)}


MATPLOTLIB = {
    "font.family": "sans-serif", "font.sans-serif": FONTS, "font.size": 8.5,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 8.5, "axes.labelcolor": INK, "axes.edgecolor": "#9aa5b1",
    "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.7,
    "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "legend.frameon": False,
    "legend.fontsize": 8.5, "figure.facecolor": PAPER, "figure.dpi": 110, "savefig.dpi": 180,
    "lines.linewidth": 1.3, "lines.markersize": 5.5, "errorbar.capsize": 2.5,
    "svg.hashsalt": "kuafu", "svg.fonttype": "path", "hatch.linewidth": 0.6,
}


def plotly_layout():
    """The same look for plotly: arguments of update_layout."""
    return {
        "font": {"family": ", ".join(FONTS) + ", sans-serif", "size": 12.5, "color": INK},
        "paper_bgcolor": PAPER, "plot_bgcolor": PAPER, "hoverdistance": 24,
        "hoverlabel": {"bgcolor": PAPER, "align": "left", "font": {"size": 12, "color": INK}},
        "modebar": {"orientation": "v", "bgcolor": PAPER},     # beside the panels, not over the legend
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "bottom",
                   "itemsizing": "constant", "tracegroupgap": 0, "font": {"size": 12.5}},
    }


PLOTLY_AXIS = {"gridcolor": GRID, "linecolor": "#9aa5b1", "showline": True, "zeroline": False,
               "ticks": "outside", "ticklen": 3, "tickcolor": "#9aa5b1", "title": {"standoff": 8, "font": {"size": 12.5}},
               "automargin": True}
PLOTLY_CONFIG = {"displaylogo": False, "responsive": True,
                 "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
                 "toImageButtonOptions": {"format": "svg"}}


def text_bytes(count):
    """ "1.50 MiB"; exact below one KiB. """
    if count is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}" if count < 100 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def byte_ticks(low, high, is_log=False, most=6):
    """Round numbers of binary units from `low` to `high`: powers of two on a logarithmic axis, else, and where that has few,
    multiples of one."""
    if is_log and high == low:
        low, high = low / 2, high * 2
    if is_log and high < 4 * low:
        return byte_ticks(low, high, most=8)
    if is_log:
        first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
        return [2.0**e for e in range(first, last + 1, max(1, -(-(last - first) // (most - 1))))]
    step = 2 ** max(0, math.ceil(math.log2(max(high - low, 1) / (most - 1))))
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def round_ticks(low, high, least=3):
    """Multiples of 1, 2 or 5 times a power of ten: at least so many."""
    for part in (1, 0.5, 0.2, 0.1, 0.05, 0.02):
        step = part * 10.0 ** math.ceil(math.log10(high - low))
        ticks = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(ticks) >= least:
            break
    return ticks


def log_ticks(low, high):
    """Of a logarithmic scale, at least three: powers of ten; 1 and 3 times them where they are few; below a hundred 1, 2 and 5 times them, or round steps."""
    if high == low:
        low, high = low / 2, high * 2
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    is_short = math.log10(high / low) < 2
    for factors in ((1, 2, 5),) if is_short else ((1,), (1, 3)):
        ticks = [m * 10.0**d for d in decades for m in factors if low <= m * 10.0**d <= high]
        if len(ticks) > 2:
            return ticks[::-(-len(ticks) // 6)]
    return round_ticks(low, high)


def text_seconds(seconds):
    """ "12.3 ms" """
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


# Before what nobody measured: a time that the cost model says, or what follows from it.
ESTIMATED = "~"


def estimated(shown, is_estimate):
    """ "~12.3 ms" """
    return f"{ESTIMATED}{shown}" if is_estimate and shown not in ("", "-") else shown


def console_number(value, digits=3):
    """As `kuafu` prints it in its tables (human_number)."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:.{digits - 1}e}" if not -4 <= magnitude <= 11 else f"{value:.{max(0, digits - 1 - magnitude)}f}"


def text_number(value, digits=4):
    """Thousands separated where large, significant digits where small."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
