# SPDX-License-Identifier: Apache-2.0
"""The hover text of a point: the whole case in a few lines."""

import html

import record
import style


def _line(label, value):
    return f"{label}: {value}"


def card(case):
    """The hover text of a case: what it was, what it cost, whether it is proven."""
    rows = [f"<b>{html.escape(case.name, quote=False)}</b>"]
    if case.settings:
        settings = ", ".join(f"{k} = {v}" for k, v in case.settings.items())
        rows += [html.escape(part, quote=False) for part in _wrapped(settings, 78)]
    if case.step:
        step = style.estimated(style.text_seconds(case.step.median), case.is_estimated)
        rows.append(_line("step", f"{step} ({interval_text(case)})" if case.step_interval is None else
                          f"{step} (95 %: {interval_text(case)}, {len(case.step.samples)} samples)"))
    if case.tokens_per_s is not None:
        rows.append(_line("throughput", style.estimated(f"{style.text_number(case.tokens_per_s)} tokens/s", case.is_estimated)))
    if case.peak is not None:
        rows.append(_line("peak of the fullest rank", style.text_bytes(case.peak)))
    if case.sent is not None:
        rows.append(_line("sent by the busiest rank", style.text_bytes(case.sent)))
    known = [v for v in case.loss if v is not None]
    if known:
        rows.append(_line("loss", f"{known[0]:.4f} -> {known[-1]:.4f}"))
    rows.append(_line("certificate", html.escape(certificate_text(case), quote=False)))
    if case.plan_hash:
        rows.append(_line("plan", html.escape(case.plan_hash, quote=False)))
    return "<br>".join(rows)


def interval_text(case):
    """ "12.1 ms to 12.9 ms", or why there is none. """
    if case.is_estimated:
        return "estimated by the cost model"
    if case.has_two_rounds:
        return "two rounds: no interval"
    if case.has_few_steps:
        return "too few steps for an interval"
    return " to ".join(map(style.text_seconds, case.step_interval))


def _wrapped(text, width):
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines + [line]


def measure_text(case, is_native):
    """ "update 1.1e-02 of 9.5e-07": what is nearest to its bound, or an empty text. """
    measure = case.nearest_measure(is_native)
    return f"{measure[0]} {measure[1]:.1e} of {measure[2]:.1e}" if measure else ""


def certificate_text(case):
    """ "equal (full): this run, f32: update 2e-07 of 9.5e-07; its f64 twin: gradient 3e-16 of 2e-15" """
    verdict = case.certificate.get("verdict")
    if not verdict:
        return "none"
    reason = " ".join((case.certificate.get("reason") or "").split())
    if verdict == "not_run":
        return f"not run: {reason}" if reason else "not asked"
    how = [w for w in (case.certificate.get("level"), "engine" if case.is_by_engine else "") if w]
    native = f"{'a smaller model' if case.is_scaled else 'this run'}, {case.plan.get('model', {}).get('dtype', '')}"
    parts = [f"{who}: {words}" for who, is_native in ((native, True), ("its f64 twin", False)) if (words := measure_text(case, is_native))]
    text = verdict + (f" ({', '.join(how)})" if how else "") + (f", {reason}" if reason else "")
    return text + (": " + "; ".join(parts) if parts else "")


def all_peaks(case):
    shown = [style.text_bytes(p) for p in case.peaks[:8]]
    more = f" and {len(case.peaks) - 8} more" if len(case.peaks) > 8 else ""
    return _line("peak of each rank", ", ".join(shown) + more)


def axis_card(case, axis):
    entry = case.traffic[axis]
    sent = [style.text_bytes(v) for v in entry.sent[:8]]
    calls = ", ".join(f"{verb} {max(v for v in counts if v is not None):.0f}"
                      for verb, counts in entry.calls.items() if any(counts))
    peers = max(entry.peers, default=None)
    rows = [f"<b>axis {html.escape(axis, quote=False)}: {', '.join(sent)}"
            + (" ..." if len(entry.sent) > 8 else "") + " sent by its ranks</b>"]
    if calls:
        rows.append(_line("calls of a rank", html.escape(calls, quote=False)))
    if peers is not None:
        rows.append(_line("peers of a rank", peers))
    return "<br>".join(rows + [card(case)])
