# SPDX-License-Identifier: Apache-2.0
"""What the figures show: which cases, in which panels and rows, in which order. Shared by the
static and the interactive figures, so that both say the same."""

import json
import math
import re
import textwrap

import reach
import style
from short_names import short_names
from values import flat

MIB = 2**20
HOLLOW = "hollow: not certified"
ESTIMATED = "dotted: estimated by the cost model, not measured"
DIFFERENT = "red, larger: refuted (different)"
STRIPE = 4               # length of a dash of a loss curve


def fill(case, color):
    """Of a mark: its colour where the case is proven, one of its own where it is refuted."""
    return color if case.is_certified else style.DIFFERENT if case.is_different else style.PAPER


def edge(case, color):
    return style.DIFFERENT if case.is_different else color


def bar_edge(case, color):
    """Of a part of a stack: dark lines tell the parts of a red bar."""
    return style.INK if case.is_different else color


def larger(case, size):
    """A refuted mark is larger too: for grey print."""
    return 1.5 * size if case.is_different else size


def proof_legend(cases, is_timed=False):
    """[(label, fill, edge)] of the marks among `cases` that are not proven; where a figure shows times, ESTIMATED too."""
    shown = []
    if any(c.is_different for c in cases):
        shown.append((DIFFERENT, style.DIFFERENT, style.DIFFERENT))
    priced = [c for c in cases if is_timed and c.is_estimated]
    if not all(c.is_certified or c.is_different or c in priced for c in cases):
        shown.append((HOLLOW, style.PAPER, style.MUTED))
    return shown + ([(ESTIMATED, style.PAPER, style.MUTED)] if priced else [])


# What decides where the work goes, not how much work there is: never part of a workload.
PLACEMENT_KEYS = ("ranks", "world", "strategy", "seed", "seeds", "train.seed", "plugin", "baseline")
LEARNING_PREFIXES = ("model.", "data.", "optimizer.", "train.")
PLACEMENT_PREFIXES = ("parallel.", "cluster.")
# Of a resolved plan: what tells how much work there is, whoever asked for it.
WORK_PREFIXES = LEARNING_PREFIXES + ("memory.policy", "memory.recompute")
FIRST_TOLD = ("train.batch", "model.sequence")
NO_WORK = ("train.micro_batch", "train.seed", "train.validate_every", "train.validation_batches", "data.path")


def _is_workload_key(key):
    return key not in PLACEMENT_KEYS and not key.startswith(PLACEMENT_PREFIXES)


def _work_of(case):
    """Of the resolved plan what tells how much work there is."""
    plan = dict(flat(case.plan))
    return json.dumps({k: v for k, v in plan.items() if k.startswith(WORK_PREFIXES) and k not in NO_WORK and (k, v) != ("data.hash", "")})


def _is_placement(key, cases):
    """Whether rows that a suite names only say where work goes: cases that differ in this alone have plans of the same work."""
    if "." in key or not all(c.plan for c in cases):
        return False
    groups = {}
    for case in cases:
        beside = json.dumps({k: v for k, v in case.settings.items() if k != key and k not in PLACEMENT_KEYS}, sort_keys=True)
        groups.setdefault((beside, case.ranks), []).append(case)
    several = [g for g in groups.values() if len({c.setting(key) for c in g}) > 1]
    return bool(several) and all(len({_work_of(c) for c in g}) == 1 for g in several)


def varied_keys(cases):
    """Keys of the workload that take more than one value among `cases`, in order of appearance: settings, and keys of the
    resolved plans that differ where all those settings agree (a batch that follows from the ranks by a formula)."""
    keys = []
    for case in cases:
        keys += [k for k in case.settings if _is_workload_key(k) and k not in keys]
    varied = [k for k in keys if len({json.dumps(c.setting(k)) for c in cases}) > 1 and not _is_placement(k, cases)]
    plans = [({k: json.dumps(c.setting(k)) for k in varied}, dict(flat(c.plan))) for c in cases if c.plan]
    asked = dict.fromkeys(k for _, plan in plans for k in plan if k.startswith(WORK_PREFIXES) and k not in NO_WORK)
    for key in sorted(asked, key=lambda k: k not in FIRST_TOLD):     # the others may follow from these
        found = {}
        for told, plan in plans:
            if plan.get(key) != "":              # the hash of data that a simulated case did not read
                found.setdefault(tuple(told.values()), set()).add(plan.get(key))
        if key not in varied and any(len(values) > 1 for values in found.values()):
            varied.append(key)
            for told, plan in plans:
                told[key] = plan.get(key)
    return varied


def _order(values):
    """{value: place}: numbers by size, words in the order in which the suite names them."""
    words = [v for v in dict.fromkeys(values) if not isinstance(v, (int, float))]
    counts = sorted({v for v in values if isinstance(v, (int, float))})
    return {v: i for i, v in enumerate(counts + words)}


def workloads(cases, without=()):
    """Splits `cases` into groups that do the same work: [(label, cases)], sorted.

    Cases of one group differ only in where the work goes, so that they may be compared."""
    keys = [k for k in varied_keys(cases) if k not in without]
    return _grouped(cases, keys, lambda index, key: cases[index].setting(key))


def _grouped(cases, keys, value_of):
    groups = {}
    for index, case in enumerate(cases):
        groups.setdefault(tuple(_plain(value_of(index, k)) for k in keys), []).append(case)
    places = [_order([values[i] for values in groups]) for i in range(len(keys))]
    ordered = sorted(groups, key=lambda values: [p[v] for p, v in zip(places, values)])
    # A hash that is empty is of data that are not read: nothing to call a group by.
    told = [[(k, v) for k, v in zip(keys, values) if (k, v) != ("data.hash", "")] for values in ordered]
    return [(", ".join(setting_label(*pair) for pair in pairs), groups[values]) for pairs, values in zip(told, ordered)]


def _plain(value):
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def setting_label(key, value):
    """ "batch 8" for ("train.batch", 8). """
    if key == "memory.recompute":
        return "plain" if value in (None, "none") else f"{value} recompute"
    if "." not in key and isinstance(value, str):     # the name of a bundle of settings
        return value
    name = key.removesuffix(".kind").rsplit(".", 1)[-1].replace("_", " ")     # "model gpt"
    return f"{name} {'default' if value is None else plain_value(value)}"


def plain_value(value):
    """A setting as people write it: 0.0012, not 0.0012000000000000001."""
    return f"{value:.6g}" if isinstance(value, float) else value


def wrapped(label, width):
    """`label` in lines of so many letters, cut behind commas where that is enough."""
    lines = textwrap.wrap(re.sub(r"(?<!,) (?!\()", "\xa0", label), width, break_long_words=False)
    if any(len(line) > width for line in lines):
        lines = textwrap.wrap(label, width)
    return [line.replace("\xa0", " ") for line in lines] or [label]


def lines_over(label, panels, letters):
    """`label` in lines that fit one of `panels` static panels; `letters` fit the whole width of the figure."""
    return wrapped(label, max(int(letters / grid_shape(panels)[1]), 8))


def grid_shape(panels):
    """(rows, columns) for a number of small panels."""
    columns = panels if panels <= 3 else 3 if panels in (5, 6, 9) else 4
    return -(-panels // max(columns, 1)), columns


def bar_rows(groups, run):
    """Rows of a chart with one bar per case: [(label, {panel index: case})], in the order of the suite.

    `groups` as from workloads(). Cases that differ in more than strategy and ranks (seed, world, shape
    of a grid) get rows of their own."""
    # A row stands where the suite has it first, though that case may have been refused.
    places, first = {}, {}
    for place, case in enumerate(run.cases):
        places[case.id] = place
        first.setdefault((case.strategy, case.ranks), place)
    cells = {}
    for panel, (_, cases) in enumerate(groups):
        for case in cases:
            cells.setdefault((panel, case.ranks, case.strategy), []).append(case)
    told = []
    for cases in cells.values():
        everything = {k for c in cases for k in c.settings} | {"world"}
        told += [k for k in sorted(everything) if len({_variant(c, k) for c in cases}) > 1]
    rows, short = {}, short_names(c.strategy for c in run.cases)
    for (panel, ranks, strategy), cases in cells.items():
        for index, case in enumerate(cases):
            variant = tuple(_variant(case, k) for k in dict.fromkeys(told)) if told else ()
            key = (ranks, strategy, variant, 0 if told else index)
            label = ", ".join([f"{short[strategy]}, {ranks}"] + [v for v in variant if v])
            rows.setdefault(key, (label, {}))[1].setdefault(panel, case)
    return [rows[key] for key in sorted(rows, key=lambda key: (first[key[1], key[0]],
                                                               min(places[case.id] for case in rows[key][1].values())))]


def _variant(case, key):
    value = case.world if key == "world" else case.settings.get(key)
    return "" if value is None else str(value) if key == "world" else setting_label(key, value)


def looks_of(cases, run):
    """{strategy: (colour, marker)} of `cases` in the order of the legend; a strategy looks the same in
    every figure of the run."""
    looks = style.palette(style.strategy_order([c.strategy for c in run.cases]), style.STRATEGIES)
    here = {c.strategy for c in cases}
    return {name: look for name, look in looks.items() if name in here}


def refuted_last(cases):
    """What a certificate refutes lies above everything else."""
    return sorted(cases, key=lambda c: c.is_different)


def symbols(cases, symbol):
    """plotly's symbol of each: a dot in those that are estimated."""
    return [f"{symbol}-dot" if c.is_estimated else symbol for c in cases]


def layers(cases):
    """The same as two lists, the lower one first."""
    return [c for c in cases if not c.is_different], [c for c in cases if c.is_different]


def dodge(strategies):
    """{strategy: offset} that puts the strategies of one rank count beside each other."""
    count = len(strategies)
    return {s: 0.0 if count == 1 else -0.3 + 0.6 * i / (count - 1)
            for i, s in enumerate(strategies)}


def rank_positions(cases):
    """(all rank counts, {(ranks, strategy): x}), strategies side by side at their rank count."""
    counts = sorted({c.ranks for c in cases})
    order = style.strategy_order([c.strategy for c in cases])
    positions = {}
    for index, ranks in enumerate(counts):
        here = [s for s in order if any(c.ranks == ranks and c.strategy == s for c in cases)]
        for strategy, offset in dodge(here).items():
            positions[ranks, strategy] = index + offset
    return counts, positions


def timed(run):
    """Cases with a throughput."""
    return [c for c in run.finished if c.tokens_per_s is not None]


def tokens_cuts(cases, looks, top, place_of):
    """As reach.cuts(), of the intervals of `cases` at the end of that axis."""
    return reach.cuts([(place_of(c), c.tokens_interval, edge(c, looks[c.strategy][0])) for c in cases], (0, top))


def learned(run):
    """Cases with a loss curve."""
    return [c for c in run.cases if sum(v is not None for v in c.loss) > 1]


def loss_unit(cases):
    """What a loss is the mean over: images of vit, tokens of all others; both names where cases have both."""
    kinds = {"image" if c.setting("model.kind") == "vit" else "token" for c in cases}
    return "nats per " + " or ".join(sorted(kinds, reverse=True))


def loss_groups(run):
    """[(label, cases)]: panels of curves that should agree, whatever the ranks, the strategy and the
    memory policy: same model, data, optimizer and batch in the resolved plan. Labels have the settings that tell panels
    apart, and of the plan only what these leave open: not what "auto" became."""
    cases = learned(run)
    plans = [dict(flat(c.plan)) for c in cases]
    if not all(plans):
        return workloads(cases, without=("memory.recompute", "memory.policy"))
    keys = [k for k in dict.fromkeys(k for plan in plans for k in plan)
            if k.startswith(LEARNING_PREFIXES) and k not in ("train.micro_batch", "train.validate_every")
            and len({plan.get(k) for plan in plans}) > 1]
    panels = [members for _, members in _grouped(cases, keys, lambda index, key: plans[index].get(key))]
    same = [k for k in varied_keys(cases) if all(len({_plain(c.setting(k)) for c in members}) == 1 for members in panels)]
    told = [k for k in same if k.startswith(LEARNING_PREFIXES)]

    def apart(names):
        return len({tuple(_plain(first.setting(k)) for k in names) for first, *_ in panels})
    for key in same + keys:
        if apart([*told, key]) > apart(told):
            told.append(key)
    return _grouped(cases, told, lambda index, key: cases[index].setting(key))


def loss_spread(cases):
    """Largest relative distance between two curves of one panel, over the steps they share."""
    steps = min(len(c.loss) for c in cases)
    worst = 0.0
    for step in range(steps):
        values = [c.loss[step] for c in cases if c.loss[step] is not None]
        if len(values) > 1 and max(map(abs, values)) > 0:
            worst = max(worst, (max(values) - min(values)) / max(map(abs, values)))
    return worst


def told_spread(groups):
    """`groups` of curves, labels with how far these part: inside a panel it would lie over one."""
    def told(label, cases):
        spread = loss_spread(cases)
        return f"{label or 'loss'} ({len(cases)} curves, {f'{spread:.1e} apart' if spread else 'all equal'})"
    return [(told(label, cases) if len(cases) > 1 else label, cases) for label, cases in groups]


def loss_stripes(cases):
    """{strategy: (gap before, gap after its stripe)}: equal curves show as one striped line."""
    order = style.strategy_order([c.strategy for c in cases])
    return {s: (i * STRIPE, (len(order) - 1 - i) * STRIPE) for i, s in enumerate(order)}


def metered(run):
    """Cases with their memory peak by category."""
    return [c for c in run.finished if c.categories and c.peak]


def peak_rank(case):
    """(rank, {category: bytes}) of the rank that holds the most."""
    known = [p or 0 for p in case.peaks]
    rank = min(known.index(max(known)), len(case.categories) - 1)
    return rank, case.categories[rank]


def talking(run):
    """Cases whose ledger is known; those of one rank send nothing."""
    return [c for c in run.finished if c.traffic and c.sent]


def axis_looks(cases):
    """{mesh axis: (colour, marker)} over the ledgers of `cases`, axes without traffic left out."""
    names = {a for c in cases for a, t in c.traffic.items() if any(t.sent)}
    ordered = [a for a in style.AXES if a in names] + sorted(names - set(style.AXES))
    return style.palette(ordered, style.AXES)


def byte_ticks(cases, columns):
    """Powers of two that span what the ranks sent: as many as `columns` panels beside each other can name."""
    most = 6 if columns == 1 else 4 if columns < 4 else 3
    sent = [v for c in cases for t in c.traffic.values() for v in t.sent if v]
    low, high = math.floor(math.log2(min(sent))), math.ceil(math.log2(max(sent)))
    high = max(high, low + 2)
    step = max(1, math.ceil((high - low) / (most - 1)))
    return [2.0**e for e in range(low, high + step, step)]
