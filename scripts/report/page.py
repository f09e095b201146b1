# SPDX-License-Identifier: Apache-2.0
"""Puts a run into one HTML file that needs nothing else: text, plots, plotly.js and the table."""

import base64
import json
import string
from pathlib import Path

from plotly.offline import get_plotlyjs

import derived
import layer_maps
import load
import noise
import paper_table
import plots
import ratios
import reasons
import side_by_side
import steps
import style
import suite_figures
import table
import tiers
import timings
import views
from table import text
from values import flat, number

HERE = Path(__file__).resolve().parent

SECTIONS = {
    "tokens_per_second": ("Throughput", "Tokens per second by number of ranks and strategy, one "
                          "panel for each kind of work. Bars are 95 % intervals of the median step, cut with an arrow where "
                          "they are far wider than the values differ; the dashed line (dotted: estimated) is one rank doing the same "
                          "work."),
    "loss_curves": ("Loss", "Training loss. Strategies start from the same weights and see the same "
                    "data, so the curves of a panel lie on top of each other and show as one "
                    "striped line; how far they part stands over the panel."),
    "memory": ("Memory", "What the fullest rank held at its peak, by category. The small ticks are "
               "the peaks of all ranks."),
    "traffic": ("Traffic", "Bytes a rank sent during the training steps, by mesh axis. Marks show "
                "the busiest rank, the line reaches down to the least busy one; cases of one rank "
                "send nothing and have no row."),
    "tradeoff": ("Speed and memory", "Every finished case by what it costs in memory and gives in "
                 "throughput, one panel for each kind of work. Up and left is better; a larger mark has more ranks."),
} | tiers.SECTIONS | steps.SECTIONS | noise.SECTIONS | ratios.SECTIONS | side_by_side.SECTIONS
HOLLOW_NOTE = ("Filled marks are proven: the case carries a certificate of equality with a "
               "reference. Hollow ones carry none. Marks in red are different: the certificate refutes the case, "
               "which stands in no ranking and no ratio.")


ESTIMATED_NOTE = (f"{style.ESTIMATED} and a dot in a mark: estimated by the cost model. Cases of the simulated world are not timed, "
                  "and have no interval.")


def hollow_note(runs):
    priced = any(c.is_estimated for run in runs for c in run.finished)
    return f'<p class="caption">{HOLLOW_NOTE}{" " + ESTIMATED_NOTE if priced else ""}</p>'


def _tile(value, label, tone):
    return f'<li style="--tone:{tone}"><b>{text(value)}</b><span>{text(label)}</span></li>'


def _described(case, cases):
    """A case among `cases`: how it spreads its work, and which work that is."""
    work = next(label for label, members in views.workloads(cases) if case in members)
    return ", ".join([case.strategy, "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"] + ([work] if work else []))


def tiles(run):
    """The headline: how many cases ended how, and the best of the proven ones."""
    counts, items = run.by_status, []
    done = f"{len(run.cases)} / {run.planned}" if run.planned > len(run.cases) else len(run.cases)
    items.append(_tile(done, "cases ended", style.INK))
    certified = sum(c.is_certified for c in run.finished)
    items.append(_tile(f"{certified} / {len(run.finished)}", "certified equal", style.GREEN if certified else style.MUTED))
    different = sum(c.is_different for c in run.cases)
    if different:
        items.append(_tile(different, "different", style.DIFFERENT))
    unproven = sum(c.is_unproven for c in run.finished)
    if unproven:
        items.append(_tile(unproven, "certificate not run", style.MUTED))
    estimated = sum(c.is_estimated for c in run.finished)
    if estimated:
        items.append(_tile(estimated, "estimated, not measured", style.MUTED))
    for status, tone in style.STATUSES.items():
        if status not in ("ok", "different") and counts.get(status):
            items.append(_tile(counts[status], status, tone))
    scaled = sum(c.is_certified and c.is_scaled for c in run.finished)
    if scaled:
        items.append(_tile(scaled, "of these by a smaller model (scaled)", style.MUTED))
    engine = sum(c.is_certified and c.is_by_engine for c in run.finished)
    if engine:
        items.append(_tile(engine, "of these by the engine on one rank (no oracle)", style.MUTED))
    proven = [c for c in run.finished if c.is_certified and not c.is_scaled]
    kinds = len(views.workloads(proven)) if proven else 0
    among = f" of {kinds} kinds of work" if kinds > 1 else ""    # which are no rivals: the table beside has each by itself
    fastest = max((c for c in proven if c.tokens_per_s), key=lambda c: c.tokens_per_s, default=None)
    if fastest:
        items.append(_tile(f"{style.text_number(fastest.tokens_per_s)} tokens/s", f"fastest{among}: {_described(fastest, proven)}", style.BLUE))
    leanest = min((c for c in proven if c.peak), key=lambda c: c.peak, default=None)
    if leanest:
        items.append(_tile(style.text_bytes(leanest.peak), f"smallest peak{among}: {_described(leanest, proven)}", style.BLUE))
    return "".join(items)


MACHINE_KEYS = ("host", "hostname", "cpu", "cpu_model", "cores", "memory", "memory_bytes", "gpu",
                "os", "time")


def machine(run):
    """One line from the provenance: host, processor, cores, GPU, time."""
    known = {key.rsplit(".", 1)[-1]: value for key, value in flat(run.provenance)}
    parts = []
    for key in MACHINE_KEYS:
        value = known.get(key)
        if value in (None, "", "none"):
            continue
        if key == "memory_bytes":
            value = style.text_bytes(number(value))
        parts.append(f"{value} cores" if key == "cores" else str(value))
    parts += load.words(run)
    return text(" \u00b7 ".join(parts)) or "Machine unknown: the record has no provenance."


def odd_facts(run):
    """What a reader must know before trusting the numbers, besides what was odd in the file."""
    said = []
    if any(key.rsplit(".", 1)[-1].endswith("dirty") and value is True
           for key, value in flat(run.provenance)):
        said.append("Made from a source tree with uncommitted changes: the commit below does not "
                    "fully describe the program.")
    said += timings.round_sentences(run) + timings.interval_sentences(run)
    said += [sentence for sentence in (load.sentence(run), reasons.blind(run)) if sentence]
    if run.planned > len(run.cases):
        said.append(f"The suite is not finished: {run.planned - len(run.cases)} of {run.planned} "
                    "cases have not ended. Running it again continues where it stopped.")
    return said


def notes(run):
    return "".join(f'<p class="note">{text(n)}</p>' for n in run.notes + odd_facts(run))


def _image(path):
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:image/svg+xml;base64,{data}"


def _pieces(name, title, drawn):
    """What paper shows of a figure that is taller than a page; the page's script puts the picture into each window."""
    again = f'<p class="again">{text(title)}, continued</p>'

    def window(top, bottom):
        height = bottom - top
        return (f'<div class="window" style="aspect-ratio:{1 / (height * drawn.aspect):.6f};--top:{-100 * top / height:.4f}%"></div>')
    return "".join(f'<div class="piece" data-of="static-{name}">{again if i else ""}{"".join(window(*w) for w in piece)}</div>'
                   for i, piece in enumerate(drawn.pieces))


def figure_section(name, static, sections=SECTIONS):
    title, caption = sections[name]
    css = ' class="tall"' if static.pieces else ""
    return (f'<section id="{name}"{css}><h2>{text(title)}</h2><p class="caption">{text(caption)} '
            f'<a data-static="static-{name}" download="{name}.svg" href="#">SVG</a></p>'
            f'<div class="figure"><div class="plot" id="plot-{name}"></div>'
            f'<img class="static" id="static-{name}" alt="{text(title)}" src="{_image(static.path)}">'
            f"{_pieces(name, title, static)}</div></section>")


def script_section(name, static, sections):
    """What a script of the suite drew: a picture that moves nothing and loads nothing."""
    title, caption = sections[name]
    return (f'<section id="{name}"><h2>{text(title)}</h2><p class="caption">{text(caption)}</p>'
            f'<div class="figure"><img class="drawn" alt="{text(title)}" src="{_image(static)}"></div></section>')


def _script_safe(source):
    return source.replace("</", "<\\/")


CASES = ("All cases", "Every case that has ended, refused ones included, in the order of the suite where that is "
            "known, else in that of the record. A click on a heading sorts, a click on a row opens its plan, memory and ledger.")


def _references(run, label=""):
    """The suite's expectations, held against the folder `label` among several; nothing where there are none or none are known."""
    if not run.references:
        return ""
    of = f": {text(label)}" if label else ""
    tones = {"holds": style.GREEN, "broken": style.DIFFERENT, "no case": style.MUTED}
    rows = "".join(
        f'<tr><td><span class="status" style="--tone:{tones[r.verdict]}">{r.verdict}</span></td><td>{text(r.what)}'
        + "".join(f"<br><small>{text(sentence)}</small>" for sentence in r.broken)
        + f'</td><td class="n">{r.checked - len(r.broken)} of {r.checked}</td></tr>' for r in run.references)
    return (f'<section id="references{text(label)}"><h2>References{of}</h2><p class="caption">What the suite expects of its results, and in how many '
            'of the finished cases that it is about it holds.</p><div class="scroll"><table class="ratios"><thead><tr><th>verdict</th>'
            f"<th>reference</th><th>cases</th></tr></thead><tbody>{rows}</tbody></table></div></section>")


def _nav(links):
    return "<ul>" + "".join(f'<li><a href="#{n}">{t}</a></li>' for n, t in links) + "</ul>"


def _fill(plotted, cases, columns, rows_of, **parts):
    """The template: `plotted` {name: plot}, `cases` (heading, caption), `columns` of the table, what each cell of its rows is made of,
    and the other parts."""
    template = string.Template((HERE / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        css=(HERE / "page.css").read_text(encoding="utf-8"), cases_title=text(cases[0]), cases_caption=text(cases[1]),
        paper=json.dumps(paper_table.parts([h for h, _, _ in columns], [[cell(*of) for _, _, cell in columns] for of in rows_of])),
        heads="".join(f'<th class="{css}" data-title="{text(h)}"><button>{text(h)}</button></th>' for h, css, _ in columns),
        plotly=get_plotlyjs(), config=json.dumps(style.PLOTLY_CONFIG),
        plots="{" + ",".join(f"{json.dumps(n)}: {_script_safe(p.to_json())}" for n, p in plotted.items()) + "}",
        script=(HERE / "page.js").read_text(encoding="utf-8"), **parts)


def _facts(rows):
    return "".join(f"<tr><td>{text(k)}</td><td>{text(v)}</td></tr>" for k, v in rows)


def render(run, written, progress=None):
    """The whole page of one run. `written` maps figure names to what was drawn (paper.Drawn), those of scripts to SVG files."""
    asked = layer_maps.plots(run) | suite_figures.pages(run)
    sections = SECTIONS | layer_maps.sections(run) | suite_figures.sections(run)
    drawings = plots.PLOTS | tiers.PLOTS | steps.PLOTS | noise.PLOTS | asked | ratios.PLOTS
    figures = {name: plot for name, function in (progress.of(drawings, "page:") if progress else drawings).items()
               if name in written and (plot := function(run)) is not None}
    scripts = [name for name in sections if name in written and name not in figures and name not in SECTIONS]
    columns = table.columns_of(run)
    compared, references, claims = ratios.section(run), _references(run), derived.section(run)
    links = [(name, text(sections[name][0])) for name in [*figures, *scripts]]
    links += [("ratios", "Ratios")] if compared else []
    links += [("references", "References")] if references else []
    links += [("claims", "Claims")] if claims else []
    hollow = hollow_note([run]) if figures else ""
    return _fill(
        figures, CASES, columns, [(c,) for c in run.cases], title=text(f"{run.name} - Kuafu report"), name=text(run.name),
        question=text(run.question), tiles=tiles(run), machine=machine(run), notes=notes(run) + hollow,
        nav=_nav(links + [("cases", "All cases"), ("provenance", "Provenance")]),
        figures="".join(figure_section(n, written[n], sections) for n in figures)
        + "".join(script_section(n, written[n], sections) for n in scripts) + compared + references + claims,
        statuses=table.options(sorted(run.by_status)),
        strategies=table.options(style.strategy_order([c.strategy for c in run.cases])),
        rows=table.body(run, columns), reasons=reasons.Reasons(run.cases).list(),
        provenance=_facts([("suite hash", run.suite_hash or "-")] + flat(run.provenance)))


def render_side_by_side(runs, labels, written):
    """The whole page of several runs beside each other."""
    figures = {name: plot for name, plot in side_by_side.plots(runs, labels).items() if name in written}
    sections = side_by_side.sections(runs, labels)
    columns = side_by_side.columns_of(runs, labels)
    every = [c for run in runs for c in run.cases]
    held = [(f"{name}{label}", f"{title}: {label}", section) for name, title, draw in
            (("references", "References", _references), ("claims", "Claims", derived.section))
            for run, label in zip(runs, labels) if (section := draw(run, label))]
    said = side_by_side.notes(runs, labels) + [f"{label}: {n}" for run, label in zip(runs, labels) for n in odd_facts(run)]
    caption = (f"Cases meet by their id. A ratio is that of a later folder to {labels[0]}, with the interval that both 95 % "
               "intervals allow; there is none where a certificate refutes a side. A click on a heading sorts, a click on a row "
               "opens the case of each folder.")
    return _fill(
        figures, ("Cases side by side", caption), columns, side_by_side.rows(runs), title=text(f"{', '.join(labels)} - Kuafu report"),
        name=text(" beside ".join(labels)), question=text(runs[0].question),
        tiles="".join(_tile(f"{sum(c.is_certified for c in run.finished)} / {len(run.finished)}", f"certified equal: {label}", style.GREEN)
                      + (_tile(refuted, f"different: {label}", style.DIFFERENT) if (refuted := sum(c.is_different for c in run.cases)) else "")
                      for run, label in zip(runs, labels))
        + _tile(len(side_by_side.met(runs)), "cases in every folder", style.INK),
        machine="<br>".join(f"{text(label)}: {machine(run)}" for run, label in zip(runs, labels)),
        notes="".join(f'<p class="note">{text(n)}</p>' for n in said) + (hollow_note(runs) if figures else ""),
        nav=_nav([(name, text(sections[name][0])) for name in figures] + [(text(name), text(title)) for name, title, _ in held]
                 + [("cases", "Cases"), ("provenance", "Provenance")]),
        figures="".join(figure_section(n, written[n], sections) for n in figures) + "".join(section for _, _, section in held),
        statuses=table.options(sorted({c.status_words for c in every})),
        strategies=table.options(style.strategy_order([c.strategy for c in every])),
        rows=side_by_side.body(runs, labels, columns), reasons=reasons.Reasons(every).list(),
        provenance=_facts(side_by_side.provenance(runs, labels)))
