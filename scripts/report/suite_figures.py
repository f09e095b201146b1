# SPDX-License-Identifier: Apache-2.0
"""The figures that a suite asks for (`[[figure]]`), static (matplotlib) and interactive (plotly), in the look of all others."""

import html
from pathlib import Path

import plotly.graph_objects as go
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

import cards
import figures
import panels
import reach
import style
import suite_axes
import suite_places
import suite_points
import views

SCALE = ["#e6f1f8", style.SKY, style.BLUE]
# (line, plotly's line, hatch, plotly's pattern) of the series of one name
RESTS = [("-", "solid", "", ""), ("--", "dash", "///", "/"), (":", "dot", "...", "."), ("-.", "dashdot", "xxx", "x"),
         ((0, (6, 1)), "longdash", "---", "-"), ((0, (6, 1, 1, 1)), "longdashdot", "|||", "|"),
         ((0, (1, 3)), "2px,6px", "\\\\\\", "\\"), ((0, (3, 1, 1, 1, 1, 1)), "6px,2px,2px,2px", "+++", "+")]


def _interval(mark):
    return (mark.low, mark.high) if mark.high > mark.low else None


def _cuts(d, series):
    """Where intervals of a panel go on beyond its axis."""
    if d.limits is None:
        return []
    return reach.cuts([(x, _interval(m), style.INK if d.kind == "bar" else views.edge(m.case, d.looks[s.by][0]))
                       for i, s in enumerate(series) for x, m in zip(suite_places.along_x(d, series, i), s.marks)], d.limits)


def _draw_marks(panel, d, series):
    for index, s in enumerate(series):
        color, marker = d.looks[s.by]
        if d.kind == "bar":
            for x, m in zip(suite_places.along_x(d, series, index), s.marks):
                panel.bar(x, m.y, suite_places.bar_width(d) * 0.92, facecolor=views.fill(m.case, color),
                          edgecolor=style.PAPER if RESTS[s.rest][2] and m.case.is_certified else views.edge(m.case, color),
                          hatch=RESTS[s.rest][2], linewidth=0 if m.case.is_certified else 0.9, yerr=reach.static_errors(m.y, _interval(m)), ecolor=style.INK)
            continue
        xs = suite_places.along_x(d, series, index)
        if d.kind == "line":
            panel.plot(xs, [m.y for m in s.marks], color=color, linestyle=RESTS[s.rest][0], linewidth=1.4)
        for x, m in sorted(zip(xs, s.marks), key=lambda pair: pair[1].case.is_different):
            mark, _, _ = panel.errorbar(x, m.y, yerr=reach.static_errors(m.y, _interval(m)), color=color, marker=marker[0], elinewidth=1.0,
                                        markersize=views.larger(m.case, 5.5), markerfacecolor=views.fill(m.case, color),
                                        markeredgecolor=views.edge(m.case, color))
            mark.set_clip_on(False)  # whole at an end of the axis, where its interval is cut
            figures.dot(panel, x, m.y, m.case, color, marker)


def _draw_cells(panel, d, series, scale):
    grid = [[float("nan")] * len(d.x_names) for _ in d.y_names]
    marks = [m for s in series for m in s.marks]
    for m in marks:
        grid[suite_places.of(d, "y", m.y)][suite_places.of(d, "x", m.x)] = m.z
    image = panel.imshow(grid, aspect="auto", origin="lower", cmap=LinearSegmentedColormap.from_list("kuafu", SCALE),
                         vmin=scale[0], vmax=scale[1])
    panel.grid(False)
    for m in marks:
        x, y = suite_places.of(d, "x", m.x), suite_places.of(d, "y", m.y)
        is_dark = m.z > scale[0] + 0.65 * (scale[1] - scale[0])
        panel.text(x, y, d.shown("z", m.z), ha="center", va="center", fontsize=7.5, color=style.PAPER if is_dark else style.INK)
        if m.case.is_different:
            panel.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor=style.DIFFERENT, linewidth=2))
    return image


def _scale(d):
    """Least and greatest value of a heatmap."""
    values = [m.z for _, series in d.panels for s in series for m in s.marks]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _rests(d):
    """{what tells series of one name apart: which look}"""
    found = {}
    for _, series in d.panels:
        for s in series:
            if s.name != s.by:
                found.setdefault(s.name.removeprefix(s.by).lstrip(", "), s.rest)
    return found


def _handles(d):
    if d.kind == "heatmap":
        return []
    rests = _rests(d)
    told_of = ([style.CYCLE_NOTE] if style.repeats_colors(d.looks) else []) + ([suite_points.REST_NOTE] if len(rests) > suite_points.RESTS else [])
    note = [Line2D([], [], linestyle="none", label=words) for words in told_of]
    short = figures.legend_names(d.looks)
    if d.kind == "bar":
        named = [Patch(color=color, label=short[name]) for name, (color, _) in d.looks.items() if name]
    else:
        named = [Line2D([], [], color=color, marker=marker[0], linestyle="-" if d.kind == "line" else "none", label=short[name])
                 for name, (color, marker) in d.looks.items() if name]
    told = [Line2D([], [], color=style.MUTED, linestyle=RESTS[rest][0], label=name) if d.kind == "line" else
            Patch(facecolor=style.MUTED, edgecolor=style.PAPER, hatch=RESTS[rest][2], label=name) for name, rest in rests.items()]
    return named + told + figures.proof_handles(d.cases, d.kind != "bar") + note


def static(run, spec):
    """The figure, or None where nothing is to be shown."""
    d = suite_points.drawing(run, spec)
    if d is None:
        return None
    is_map = d.kind == "heatmap"
    height = 0.9 + 0.34 * len(d.y_names) if is_map else 3.4 if len(d.panels) == 1 else 2.5
    figure, axes = figures.panels(len(d.panels), height, sharey=True)
    figures.titles(axes, d.panels)
    scale, image = _scale(d) if is_map else None, None
    for panel, (_, series) in zip(axes.flat, d.panels):
        if is_map:
            image = _draw_cells(panel, d, series, scale)
        else:
            _draw_marks(panel, d, series)
        suite_axes.format_static(panel, d)
        suite_axes.ticks_at_marks(panel, d)
        reach.draw_static(panel, _cuts(d, series))
        if d.limits:
            panel.set_ylim(*d.limits)
        if d.kind == "bar" and not d.is_log("y"):
            panel.axhline(0, color=style.MUTED, linewidth=0.7)
    figure.supxlabel(d.title_of("x"), fontsize=8.5)
    figure.supylabel(d.title_of("y"), fontsize=8.5)
    if is_map:
        bar = figure.colorbar(image, ax=axes.ravel().tolist(), label=d.title_of("z"), pad=0.01)
        bar.ax.yaxis.set_major_formatter(lambda v, _: d.shown("z", v))
    if handles := _handles(d) + ([reach.handle()] if d.limits else []):
        figures.legend(figure, handles)
    return figure


def _hover(d, s, mark):
    value = f"{d.shown('z', mark.z)} at " if d.kind == "heatmap" else ""
    at = f"{html.escape(str(d.shown('x', mark.x)))}, {value}{html.escape(str(d.shown('y', mark.y)))}"
    more = f"<br>and {len(mark.cases) - 1} more" if len(mark.cases) > 1 else ""
    name = f"{html.escape(s.name)}: " if s.name else ""
    return [f"{name}{at}<br>{cards.card(mark.case)}{more}", mark.case.id]


def _pattern(rest, colors):
    """plotly's hatch of bars."""
    return {"shape": RESTS[rest][3], "fgcolor": colors, "fillmode": "overlay", "size": 6}


def _show_rests(figure, d):
    """In the legend: what dashes of lines or hatches of bars mean."""
    for name, rest in _rests(d).items():
        common = {"x": [None], "y": [None], "name": html.escape(name, quote=False), "hoverinfo": "skip", "legendrank": 1500}
        if d.kind == "bar":
            trace = go.Bar(marker={"color": style.MUTED, "pattern": _pattern(rest, style.PAPER)}, **common)
        else:
            trace = go.Scatter(mode="lines", line={"color": style.MUTED, "dash": RESTS[rest][1], "width": 1.8}, **common)
        figure.add_trace(trace, **panels.place(0, 1))


def _trace(d, series, index):
    s = series[index]
    color, marker = d.looks[s.by]
    common = {"y": [m.y for m in s.marks], "customdata": [_hover(d, s, m) for m in s.marks],
              "hovertemplate": "%{customdata[0]}<extra></extra>", "hoverlabel": {"bordercolor": color},
              **reach.error_bars([m.y for m in s.marks], list(map(_interval, s.marks)), style.INK if d.kind == "bar" else color)}
    fills, edges = [views.fill(m.case, color) for m in s.marks], [views.edge(m.case, color) for m in s.marks]
    if d.kind == "bar":
        return go.Bar(x=suite_places.along_x(d, series, index), width=suite_places.bar_width(d) * 0.92,
                      marker={"color": fills, "line": {"color": edges, "width": 1.2},
                              "pattern": _pattern(s.rest, [style.PAPER if m.case.is_certified else views.edge(m.case, color) for m in s.marks])},
                      **common)
    return go.Scatter(x=suite_places.along_x(d, series, index), mode="lines+markers" if d.kind == "line" else "markers",
                      line={"color": color, "dash": RESTS[s.rest][1], "width": 1.8},
                      marker={"symbol": views.symbols([m.case for m in s.marks], marker[1]), "size": [views.larger(m.case, 9) for m in s.marks], "color": fills, "opacity": 1,
                              "line": {"color": edges, "width": 1.8}}, **common)


def _plotly_unit(d, axis):
    """Ticks of seconds have a prefix, 20ms; those of bytes stand at round numbers of binary units, as everywhere."""
    unit = d.spec[axis]["unit"]
    if unit == "B":
        ticks = suite_axes.ticks(d, axis)
        return {"tickvals": ticks, "ticktext": [style.text_bytes(t) for t in ticks]}
    return {"ticksuffix": unit, "exponentformat": "SI", "minexponent": 0} if unit == "s" else {}


def _cells(d, series, scale):
    marks = [(s, m) for s in series for m in s.marks]
    grid = {key: [[empty] * len(d.x_names) for _ in d.y_names] for key, empty in (("z", None), ("text", ""), ("card", None))}
    for s, m in marks:
        y, x = suite_places.of(d, "y", m.y), suite_places.of(d, "x", m.x)
        grid["z"][y][x], grid["text"][y][x], grid["card"][y][x] = m.z, d.shown("z", m.z), _hover(d, s, m)
    return go.Heatmap(z=grid["z"], text=grid["text"], texttemplate="%{text}", customdata=grid["card"],
                      hovertemplate="%{customdata[0]}<extra></extra>", hoverongaps=False, zmin=scale[0], zmax=scale[1], xgap=2, ygap=2,
                      colorscale=[[i / (len(SCALE) - 1), color] for i, color in enumerate(SCALE)],
                      # Left of the buttons; seconds and bytes with their prefix.
                      colorbar={"title": {"text": html.escape(d.title_of("z"), quote=False), "side": "right"}, "thickness": 16,
                                **_plotly_unit(d, "z")})


def interactive(run, spec):
    """The same for the page."""
    d = suite_points.drawing(run, spec)
    if d is None:
        return None
    is_map = d.kind == "heatmap"
    groups, legend = d.panels, panels.Legend()
    x_names, y_names = suite_axes.names_of(d, "x"), suite_axes.names_of(d, "y")
    figure, columns = panels.grid(groups, 110 + 34 * len(d.y_names) if is_map else 330 if len(groups) == 1 else 270,
                                  **panels.beside(y_names or []), **({"right": 130} if is_map else {}))
    for index, (_, series) in enumerate(groups):
        where = panels.place(index, columns)
        for i in range(len(series) if not is_map else 0):
            figure.add_trace(_trace(d, series, i).update(legend.under(series[i].by)), **where)
        if cut := _cuts(d, series):
            figure.add_trace(reach.trace(cut, legend), **where)
        if is_map:
            figure.add_trace(_cells(d, series, _scale(d)).update(showscale=index == 0), **where)
            _mark_refuted(figure, d, series, where)
    if not is_map:
        legend.show(figure, {name: (color, marker[1]) for name, (color, marker) in d.looks.items() if name})
        _show_rests(figure, d)
    for axis, update in (("x", figure.update_xaxes), ("y", figure.update_yaxes)):
        names = x_names if axis == "x" else y_names
        if names is not None:
            update(tickvals=list(range(len(names))), ticktext=names)
        elif d.is_log(axis):
            update(type="log")
        elif suite_axes.is_whole(d, axis):
            update(**panels.whole_ticks(suite_axes.values(d, axis)))
        if names is None:
            update(**_plotly_unit(d, axis))
    if xs := suite_axes.marked(d):
        figure.update_xaxes(tickvals=xs, ticktext=[d.shown("x", x) for x in xs])
    if len(groups) > 1:
        panels.match(figure.select_yaxes())
    if d.limits:
        figure.update_yaxes(range=reach.log_range(d.limits) if d.is_log("y") else d.limits)
    if x_names is not None:             # a name has one place in all panels
        figure.update_xaxes(range=[-0.5, len(x_names) - 0.5])
    panels.finish(figure, [] if is_map else d.cases, groups, columns, d.title_of("x"), d.title_of("y"), d.kind != "bar", x_names)
    return figure


def _mark_refuted(figure, d, series, where):
    for s in series:
        for m in s.marks:
            if m.case.is_different:
                x, y = suite_places.of(d, "x", m.x), suite_places.of(d, "y", m.y)
                figure.add_shape(type="rect", x0=x - 0.47, x1=x + 0.47, y0=y - 0.47, y1=y + 0.47,
                                 line={"color": style.DIFFERENT, "width": 2}, **where)


def _drawn(run):
    """{name: spec} of the figures that kuafu draws."""
    return {suite_points.name_of(i, spec): spec for i, spec in enumerate(run.figures) if "kind" in spec}


def drawings(run):
    """{name: function of a run}, as figures.FIGURES."""
    return {name: lambda r, spec=spec: static(r, spec) for name, spec in _drawn(run).items()}


def pages(run):
    """{name: function of a run}, as plots.PLOTS."""
    return {name: lambda r, spec=spec: interactive(r, spec) for name, spec in _drawn(run).items()}


def _asked_at(spec):
    """ "quickstart.toml:163": where the suite's file lay is no news. """
    return Path(spec["at"]).name


def missing(run):
    """A sentence a figure of which no case has a point."""
    return [f"The figure {suite_points.title_of(spec)!r} ({_asked_at(spec)}) is not drawn: no case has a point. {suite_points.left_out(run, spec)}".strip()
            for spec in run.figures if "kind" in spec and suite_points.drawing(run, spec) is None]


def sections(run):
    """{name: (title, caption)} of all figures of the suite."""
    out = {}
    for index, spec in enumerate(run.figures):
        said = [f"A figure of the suite ({_asked_at(spec)})."]
        if "kind" in spec:
            over = f"{spec['z']['name']} at {spec['y']['name']}" if "z" in spec else spec["y"]["name"]
            said = [f"{over} over {spec['x']['name']}" + (f" by {spec['by']}" if spec["by"] else "")
                    + (f", where {spec['where']}" if spec["where"] else "") + f"; asked for at {_asked_at(spec)}."]
            d = suite_points.drawing(run, spec)
            said += d.notes if d else []
        out[suite_points.name_of(index, spec)] = (suite_points.title_of(spec), " ".join(said))
    return out
