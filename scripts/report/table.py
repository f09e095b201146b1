# SPDX-License-Identifier: Apache-2.0
"""The table of all cases: one row each, and below it what the row opens."""

import html

import cards
import load
import derived
import reasons
import style
import views
from values import flat


def text(value):
    return html.escape(str(value))


def cell_of(shown, key, kind=""):
    css = f' class="{kind}"' if kind else ""
    return f'<td{css} data-sort="{text("" if key is None else key)}">{shown}</td>'


def columns_of(run):
    """[(heading, css class, cell of a case)]"""
    keys = views.varied_keys(run.finished)
    shared = reasons.Reasons(run.cases)

    def setting(key):
        return lambda c: cell_of(text("" if c.setting(key) is None else views.plain_value(c.setting(key))),
                               c.setting(key), "tight")

    return [("case", "", lambda c: _name_cell(c, shared)),
            ("status", "", _status_cell),
            ("certificate", "", lambda c: certificate_cell(c, shared)),     # in sight on any screen
            ("ranks", "n", lambda c: cell_of(c.ranks or "", c.ranks, "n"))] + [
            (key.rsplit(".", 1)[-1].replace("_", " "), "", setting(key)) for key in keys] + [
            ("tokens/s", "n", lambda c: cell_of(style.estimated(_known(c.tokens_per_s, style.text_number), c.is_estimated),
                                              c.tokens_per_s, "n")),
            ("step (95 %)", "n", _step_cell),
            ("peak", "n", lambda c: cell_of(_known(c.peak, style.text_bytes), c.peak, "n")),
            ("sent", "n", lambda c: cell_of(_known(c.sent, style.text_bytes), c.sent, "n")),
            ("loss", "n", _loss_cell)] + derived.cells(run, cell_of)


def _name_cell(case, shared):
    reason = f"<br><small>{shared.cell(case, 0)}</small>" if case.reason else ""
    return cell_of(text(case.name) + reason, case.name, "name")


def certificate_cell(case, shared):
    verdict = str(case.certificate.get("verdict") or "").replace("_", " ")
    # The run itself where it was compared: its f64 twin says less of it.
    measure = (cards.measure_text(case, True) or cards.measure_text(case, False)) if verdict != "not run" else ""
    small = f"<br><small>{measure}</small>" if measure else ""
    if case.is_different:
        shown = f'<span class="status" style="--tone:{style.DIFFERENT}">different</span>'
    else:
        shown = text(verdict + case.how_certified if case.is_certified else verdict)
    reason = case.certificate.get("reason")
    small += f"<br><small>{shared.cell(case, -1)}</small>" if reason else ""
    return cell_of(shown + small, verdict, "tight" if not reason else "reasoned")


def _known(value, shown):
    return "" if value is None else shown(value)


def status_mark(case):
    tone = style.STATUSES.get(case.status_words, style.MUTED)
    return f'<span class="status" style="--tone:{tone}">{text(case.status_words)}</span>'


def _status_cell(case):
    shown = status_mark(case)
    if case.asked_bytes is not None:
        shown += f"<br><small>asked for {style.text_bytes(case.asked_bytes)}</small>"
    return cell_of(shown, case.status_words)


def _step_cell(case):
    if case.step is None:
        return cell_of("", None, "n")
    mark = '<span title="timed under foreign load">*</span>' if load.is_loaded(case) else ""
    shown = style.estimated(style.text_seconds(case.step.median), case.is_estimated)
    return cell_of(f"{shown}{mark}<br><small>{cards.interval_text(case)}</small>", case.step.median, "n")


def _loss_cell(case):
    known = [v for v in case.loss if v is not None]
    if not known:
        return cell_of("", None, "n")
    shown = f"{known[0]:.3f} to {known[-1]:.3f}"
    if case.validation_loss is not None:
        shown += f"<br><small>validation {case.validation_loss:.3f}</small>"
    return cell_of(shown, known[-1], "n")


def _per_rank_table(heads, rows):
    width = max((len(values) for _, values in rows), default=0)
    shown = min(width, 16)
    top = "".join(f"<th>rank {r}</th>" for r in range(shown)) + ("<th>...</th>" * (shown < width))
    body = "".join(f"<tr><td>{text(label)}</td>" + "".join(f"<td>{text(v)}</td>" for v in
                   values[:shown]) + "</tr>" for label, values in rows)
    return f"<table><tr><th>{heads}</th>{top}</tr>{body}</table>"


def detail(case, shared):
    """What a row opens: reason, memory by rank, ledger by axis and rank, the plan."""
    parts = [f"<p><b>Reason:</b> {shared.cell(case, 0)}</p>"] if case.reason else []
    parts.append(f"<p><b>Case</b> {text(case.id)} &nbsp; <b>plan</b> {text(case.plan_hash or '-')}"
                 f" &nbsp; <b>world</b> {text(case.world or '-')}</p>")
    parts.append(f"<p><b>Certificate</b> {text(cards.certificate_text(case))}</p>")
    if case.flops is not None:
        again = (f", {style.text_number(case.flops_recomputed)} recomputed"
                 if case.flops_recomputed else "")
        own = case.document.get("flops_optimizer")
        again += f"; of the optimizer's matrices {style.text_number(own)}" if own else ""
        parts.append(f"<p><b>FLOPs of a step</b> {style.text_number(case.flops)}{again}</p>")
    if case.categories:
        names = style.category_colors({k for c in case.categories for k in c})
        parts.append("<h4>Memory at the peak</h4>" + _per_rank_table("category", [
            (n, [style.text_bytes(c.get(n, 0)) for c in case.categories]) for n in names]
            + [("total", [style.text_bytes(p) for p in case.peaks]),
               ("scratch, apart", [style.text_bytes(b) for b in case.scratch])]))
    rows = []
    for axis, entry in case.traffic.items():
        for label, values in (("sent", entry.sent), ("received", entry.received)):
            rows.append((f"{axis}, {label}", [style.text_bytes(v) for v in values]))
        rows.append((f"{axis}, messages", [style.text_number(v) for v in entry.messages]))
    if rows:
        parts.append("<h4>Ledger of the training steps</h4>" + _per_rank_table("axis", rows))
    if case.plan:
        lines = "\n".join(f"{key} = {value}" for key, value in flat(case.plan))
        parts.append(f'<h4>Plan</h4><pre class="plan">{text(lines)}</pre>')
    return "".join(parts)


def row_of(case, words, cells, width, details):
    """A row and what it opens; the page filters by `words`."""
    return (f'<tbody class="case" data-id="{text(case.id)}" data-status="{text(case.status_words)}"'
            f' data-strategy="{text(case.strategy)}" data-text="{text(words.lower())}"><tr>{cells}</tr>'
            f'<tr class="detail"><td colspan="{width}">{details}</td></tr></tbody>')


def body(run, columns):
    rows, shared = [], reasons.Reasons(run.cases)
    for case in run.cases:
        words = " ".join([case.name, case.status, case.status_words, case.reason, case.id, case.plan_hash,
                          case.strategy, cards.certificate_text(case)])
        cells = "".join(cell(case) for _, _, cell in columns)
        rows.append(row_of(case, words, cells, len(columns), detail(case, shared)))
    return "".join(rows)


def plain(run):
    """The table alone, for a notebook: no sorting, no details."""
    columns = columns_of(run)
    heads = "".join(f"<th>{text(heading)}</th>" for heading, _, _ in columns)
    rows = "".join("<tr>" + "".join(cell(case) for _, _, cell in columns) + "</tr>"
                   for case in run.cases)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>" + reasons.Reasons(run.cases).list()


def options(names):
    return "".join(f'<option value="{text(n)}">{text(n.replace("_", " "))}</option>' for n in names)
