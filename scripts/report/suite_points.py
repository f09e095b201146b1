# SPDX-License-Identifier: Apache-2.0
"""What the figures of a suite (`[[figure]]`) show: points that `kuafu` computed, in panels of equal work and series. Shared by the
static and the interactive drawing. Nothing is computed here but medians of points that lie on each other."""

import re
import statistics
from dataclasses import dataclass, field

import reach
import style
import views

ESTIMATED = "Times of cases of the simulated world are estimated by the cost model, not measured."
RESTS = 8                                # looks of the series of one name, such as its rank counts
REST_NOTE = f"after {RESTS} of these their dashes or hatches repeat"
REASONS = 4              # told of why cases have no point
REST = ("strategy", "ranks", "world")    # of equal work; what an axis does not show tells series apart


@dataclass(frozen=True)
class Mark:
    """One point: of one case, or the median of several."""
    x: object
    y: object
    z: float
    low: float
    high: float
    cases: list

    @property
    def case(self):
        """The one that decides how the mark looks: the least proven."""
        return min(self.cases, key=lambda c: (not c.is_different, c.is_certified))


@dataclass(frozen=True)
class Series:
    name: str               # with what tells it apart from others of the same look
    by: str                 # of the legend
    rest: int               # which of these it is: dashes of lines, hatches of bars
    marks: list


@dataclass(frozen=True)
class Drawing:
    """A figure of the suite, ready to be drawn."""
    spec: dict
    panels: list            # [(label, [Series])]
    x_names: list           # categories of the x axis in order; None where it has numbers
    y_names: list           # the same of a heatmap's y axis
    looks: dict             # {by: (colour, mark)}
    cases: list
    notes: list = field(default_factory=list)

    @property
    def kind(self):
        return self.spec["kind"]

    def is_log(self, axis):
        return axis in self.spec["log"]

    @property
    def limits(self):
        """(low, high) of y, that shows every value and some of wide intervals; None where it is of names or fits all by itself."""
        marks = [m for _, series in self.panels for s in series for m in s.marks]
        if self.y_names is not None or not any(m.high > m.low for m in marks):
            return None
        origin = 0 if self.kind == "bar" and not self.is_log("y") else None
        low, high = reach.limits([m.y for m in marks], [(m.low, m.high) for m in marks], self.is_log("y"), origin)
        return None if low <= min(m.low for m in marks) and max(m.high for m in marks) <= high else (low, high)

    def title_of(self, axis):
        """ "step_time_s.median [s]" """
        name, unit = self.spec[axis]["name"], self.spec[axis]["unit"]
        return f"{name} [{unit}]" if unit and unit != name else name

    def shown(self, axis, value):
        return shown(value, self.spec[axis]["unit"])


def shown(value, unit):
    """A value as people read it, in its unit."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return {"B": style.text_bytes, "s": style.text_seconds}.get(unit, style.text_number)(value)


def name_of(index, spec):
    """Of files and of the section in the page: "suite_1_speed_up"."""
    words = re.sub("[^a-z0-9]+", "_", title_of(spec).lower()).strip("_")[:40].strip("_")
    return f"suite_{index + 1}_{words}"


def title_of(spec):
    if spec["title"]:
        return spec["title"]
    if "script" in spec:
        return spec["script"]
    return f"{spec.get('z', spec['y'])['name']} by {spec['x']['name']}"


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _names(spec, axis, points, run):
    """Categories in order, numbers by size, words as the suite has them, refused cases included; None where an axis has numbers."""
    values = [p[axis] for p in points]
    is_of_places = spec["kind"] == "heatmap" or spec["kind"] == "bar" and axis == "x"
    if not is_of_places and (axis == "y" or all(map(_is_number, values))):
        return None
    settings = [c.setting(spec[axis]["name"]) for c in run.cases]
    words = dict.fromkeys(v for v in [*settings, *values] if isinstance(v, (str, bool)) and v in values)
    return sorted({v for v in values if _is_number(v)}) + list(words)


def _is_drawable(spec, point):
    if spec["kind"] == "heatmap":
        return _is_number(point["z"])
    if not _is_number(point["y"]) or "y" in spec["log"] and point["y"] <= 0:
        return False
    return "x" not in spec["log"] or _is_number(point["x"]) and point["x"] > 0


def _used(spec):
    return {spec[axis]["name"] for axis in "xyz" if axis in spec} | {spec["by"]}


def _is_used(key, names):
    return key in names or key.rsplit(".", 1)[-1] in names


def _value(case, key):
    return {"strategy": case.strategy, "ranks": case.ranks, "world": case.world}[key]


def _rest(spec, cases):
    """Keys of equal work that vary among `cases` and that no axis shows."""
    names = _used(spec)
    return [k for k in REST if k not in names and len({_value(c, k) for c in cases}) > 1 and not (k == "strategy" and _tells_strategy(names, cases))]


def _tells_strategy(names, cases):
    """Whether the settings that axes show leave one strategy each, as those of a suite do whose rows they are."""
    found = {}
    for c in cases:
        shown = tuple(str(c.settings[n]) for n in sorted(names) if n in c.settings)
        if not shown or found.setdefault(shown, c.strategy) != c.strategy:
            return False
    return True


def _label(case, keys):
    words = []
    for key in keys:
        value = _value(case, key)
        words.append(f"{value} rank" + "s" * (value != 1) if key == "ranks" else str(value))
    return ", ".join(words)


def _reach(point, cases):
    """The interval of its y; of an estimate and of two rounds none."""
    case = cases[point["id"]]
    return [point["y"]] if case.is_estimated or case.has_two_rounds else point.get("reach", [point["y"]])


def _marks(points, cases, places):
    """Points of one series by x and y (y only of a heatmap): those that lie on each other are one mark at their median."""
    found = {}
    for point in points:
        found.setdefault(places(point), []).append(point)
    marks = []
    for members in found.values():
        values = [p["y"] for p in members]
        y = statistics.median(values) if len(members) > 1 and all(map(_is_number, values)) else values[0]
        ends = [b for p in members for b in _reach(p, cases)] if _is_number(y) else [0, 0]
        z = statistics.median(p["z"] for p in members) if "z" in members[0] else None
        marks.append(Mark(members[0]["x"], y, z, min(ends), max(ends), [cases[p["id"]] for p in members]))
    return marks


def _follows(spec, key, shown_keys):
    """Whether the suite computes `key` from one that an axis shows, which then tells it."""
    return any(_is_used(key, {other, other.rsplit(".", 1)[-1]}) and any(_is_used(used, set(names)) for used in shown_keys)
               for other, names in spec.get("follows", {}).items())


def _panels(spec, points, cases):
    """[(label, points)]: equal work a panel, but all in one of a scatter plot; of a heatmap also one a series. What follows from an
    axis is no other work."""
    if spec["kind"] == "scatter":
        return [("", points)]
    shown_keys, by_case = _used(spec), {}
    for point in points:
        by_case[point["id"]] = point
    members = [cases[i] for i in by_case]
    without = [k for k in views.varied_keys(members) if _is_used(k, shown_keys) or _follows(spec, k, shown_keys)]
    groups = [(label, [by_case[c.id] for c in group]) for label, group in views.workloads(members, without)]
    if spec["kind"] != "heatmap":
        return groups
    rest, split = _rest(spec, members), {}
    for label, group in groups:
        for point in group:
            words = [label, point.get("by", ""), _label(cases[point["id"]], rest)]
            split.setdefault(", ".join(filter(None, words)), []).append(point)
    return list(split.items())


def _rest_looks(spec, points, cases):
    """(keys that tell series of one name apart, {label: which look}): the same in every panel, also of a sweep that is half done."""
    members = [cases[p["id"]] for p in points]
    keys = [] if spec["kind"] in ("scatter", "heatmap") else _rest(spec, members)
    labels = {_label(c, keys): c.ranks if "ranks" in keys else 0 for c in members}
    return keys, {label: i for i, label in enumerate(sorted(labels, key=labels.get))}


def _series(spec, points, cases, rest, looks):
    """Series of one panel: one a value of `by`, and of the keys `rest`, whose labels have `looks`."""
    series, found = [], {}
    for point in points:
        found.setdefault(point.get("by", ""), []).append(point)
    for by, mine in found.items():
        if spec["kind"] in ("scatter", "heatmap"):
            is_map = spec["kind"] == "heatmap"
            series.append(Series(by, by, 0, _marks(mine, cases, lambda p: (p["x"], p["y"]) if is_map else p["id"])))
            continue
        parts = {}
        for point in mine:
            parts.setdefault(_label(cases[point["id"]], rest), []).append(point)
        for label, part in parts.items():
            marks = _marks(part, cases, lambda p: p["x"])
            if all(_is_number(m.x) for m in marks):
                marks.sort(key=lambda m: m.x)
            series.append(Series(", ".join(filter(None, [by, label])), by, looks[label] % RESTS, marks))
    return series


def _looks(spec, points, cases, run):
    """{by: look}: strategies look as in every other figure."""
    if spec["by"] == "strategy" and all(p.get("by") == cases[p["id"]].strategy for p in points):
        return views.looks_of([cases[p["id"]] for p in points], run)
    return style.palette(list(dict.fromkeys(p.get("by", "") for p in points)), {})


def _points(run, spec):
    """(points that can be drawn, all that the front has)"""
    ids = {c.id for c in run.cases}
    known = [p for p in spec["points"] if p["id"] in ids]
    return [p for p in known if _is_drawable(spec, p)], known


def _said_of(count, words):
    """ "2 have not ended", "for 2 there is no case with strategy = one rank": `words` may have a subject of their own."""
    verb, _, rest = words.partition(" ")
    if verb in ("has", "have"):
        return f"{count} {'has' if count == 1 else 'have'} {rest}"
    return f"{count} {words}" if verb == "ended" else f"for {count} {words}"


def left_out(run, spec):
    """ "3 of 9 cases are left out: 2 ended as refused; 1 has no number." or an empty text."""
    points, known = _points(run, spec)
    why = [(count, words) for words, count in spec.get("left_out", {}).items()]
    if len(points) < len(known):
        above = " above 0, as a logarithmic axis wants" if spec["log"] else ""
        why.append((len(known) - len(points), f"have no number{above}"))
    missing = sum(count for count, _ in why)
    if not missing:
        return ""
    why.sort(key=lambda pair: -pair[0])
    said = [_said_of(count, words) for count, words in why[:REASONS]] + ([f"{len(why) - REASONS} more reasons"] if len(why) > REASONS else [])
    return f"{missing} of {missing + len(points)} cases {'is' if missing == 1 else 'are'} left out: {'; '.join(said)}."


def drawing(run, spec):
    """The Drawing of a spec; None where no finished case has a point."""
    cases = {c.id: c for c in run.cases}
    points, _ = _points(run, spec)
    if not points:
        return None
    notes = list(filter(None, [left_out(run, spec)]))
    rest, looks = _rest_looks(spec, points, cases)
    panels = [(label, _series(spec, members, cases, rest, looks)) for label, members in _panels(spec, points, cases)]
    if any(len(m.cases) > 1 for _, series in panels for s in series for m in s.marks):
        notes.append("Where several cases have one place, the mark is their median and the bar their range.")
    if any(c.is_estimated for _, series in panels for s in series for m in s.marks for c in m.cases):
        notes.append(ESTIMATED)
    if len(looks) > RESTS:
        notes.append(f"Of what tells series of one name apart, {REST_NOTE}.")
    return Drawing(spec, panels, _names(spec, "x", points, run), _names(spec, "y", points, run), _looks(spec, points, cases, run),
                   [cases[p["id"]] for p in points], notes)
