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
        rows.append(_line("step", f"{style.text_seconds(case.step.median)} (95 %: "
                          f"{style.text_seconds(case.step.low)} to "
                          f"{style.text_seconds(case.step.high)}, {len(case.step.samples)} samples)"))
    if case.tokens_per_s is not None:
        rows.append(_line("throughput", f"{style.text_number(case.tokens_per_s)} tokens/s"))
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


def _wrapped(text, width):
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines + [line]


def certificate_text(case):
    """ "equal (full, 3 steps): loss 1e-16, gradient ..., tolerance ..." """
    verdict = case.certificate.get("verdict")
    if not verdict:
        return "none"
    reason = case.certificate.get("reason")
    if verdict == "not_run":
        return f"not run: {reason}" if reason else "not run"
    about = [str(case.certificate[k]) for k in ("level",) if case.certificate.get(k)]
    if case.certificate.get("steps"):
        about.append(f"{case.certificate['steps']} steps")
    errors = [f"{name} {error:.1e}" for name in ("loss", "gradient", "routes", "parameter")
              if (error := record.number(case.certificate.get(f"{name}_error"))) is not None]
    tolerance = record.number(case.certificate.get("tolerance"))
    if tolerance is not None:
        errors.append(f"tolerance {tolerance:.1e}")
    text = verdict + (f" ({', '.join(about)})" if about else "")
    return text + (": " + ", ".join(errors) if errors else "")


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
