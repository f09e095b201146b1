# SPDX-License-Identifier: Apache-2.0
"""Times of cases as the record has them: of a process, of each round, of all rounds together."""

import math
import statistics
from dataclasses import dataclass

from values import as_dict, lookup, number, numbers

NORMAL95 = 1.959963984540054        # of a 95 % interval, in standard errors


@dataclass(frozen=True)
class Timing:
    """Seconds of one step: median, 95 % interval (None of too few samples), every sample."""
    median: float
    interval: tuple
    samples: list

    @staticmethod
    def of(value):
        value = as_dict(value)
        median = number(value.get("median"))
        if median is None or median <= 0:
            return None
        interval = numbers(value.get("ci95"))
        samples = [s for s in numbers(value.get("samples")) if s is not None]
        return Timing(median, None if len(interval) != 2 or None in interval else tuple(interval), samples)


@dataclass(frozen=True)
class Round:
    """One run of a case among those of a sweep that repeats it; rounds go over all cases in turns."""
    number: int
    sweep: str                      # the call of `kuafu suite` that made it; None: from before it was told
    step: Timing
    tokens_per_s: float
    foreign_share: float            # of the cores' time, taken by other processes

    @staticmethod
    def all_of(line):
        """Those that ended well."""
        return [Round(int(number(r.get("round")) or 0), r.get("sweep"), Timing.of(r.get("step_time_s")), number(r.get("tokens_per_s")),
                      number(lookup(r, "load.foreign_share")))
                for r in line.get("rounds") or [] if as_dict(r).get("status") == "ok"]


def round_problems_of(line):
    """[(sentence, whether it makes the sweep fail)] of what rounds show besides times."""
    found = []
    for r in map(as_dict, line.get("rounds") or []):
        head, status = f"round {r.get('round')}", r.get("status")
        if status != "ok":
            found.append((f"{head}: {status}: {r['reason']}" if r.get("reason") else f"{head}: {status}", status == "failed"))
        if r.get("losses") == "different":
            found.append((f"{head}: other losses than in round 1", True))
    return found


def step_of(timing, document):
    """Over the rounds, with the samples of the first."""
    first = as_dict(document.get("step_time_s"))
    return Timing.of({**first, **as_dict(timing.get("step_time_s"))})


def round_sentences(run):
    """What the rounds of its cases show besides times, a sentence each."""
    return [f"{case.name}: {sentence}" for case in run.cases for sentence, _ in case.round_problems]


def interval_sentences(run):
    """What has no interval, and why."""
    two = sum(c.has_two_rounds for c in run.finished)
    few = sum(c.has_few_steps for c in run.finished)
    said = [f"{few} of {len(run.finished)} finished cases have fewer than six steps after the warm-up, which give no interval of 95 %: "
            "more steps do (--set train.steps=12), or three rounds (--repeats 3)."] if few else []
    if not two:
        return said
    return [*said, f"{two} of {len(run.finished)} finished cases ran in two rounds, which give no interval: that of 95 % would be 12.7 standard "
            "errors wide to each side. Three rounds or more do (--repeats 3)."]


def _falls_to(wanted, most, tail):
    """Where a probability that falls from 0 on reaches `wanted`."""
    low, high = 0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > wanted else (low, middle)
    return low


def _within(x, degrees):
    """Probability that a Student t lies within +- x. [Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4]"""
    angle, is_odd = math.atan(x / math.sqrt(degrees)), degrees % 2
    total, term = 0, math.cos(angle) if is_odd else 1
    for k in range(is_odd, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k + 1) / (k + 2)
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if is_odd else within


def student_95(degrees):
    """Where a Student t lies within +- this in 95 % of cases."""
    return _falls_to(0.05, 100, lambda x: 1 - _within(x, degrees))


def step_ratio(a, b):
    """(logarithm, standard error) of step times `b` over `a`, from their 95 % intervals: infinite where too few steps give one. None
    without two times."""
    if a is None or b is None:
        return None
    log = math.log(b.median / a.median)
    if a.interval is None or b.interval is None:
        return log, math.inf
    if any(low <= 0 or high < low for low, high in (a.interval, b.interval)):
        return None
    return log, math.hypot(*(math.log(high / low) / (2 * NORMAL95) for low, high in (a.interval, b.interval)))


def over_rounds(ratios):
    """(ratio, its 95 % interval) of those of each round, as docs/record.md makes that of `step_time_s`; of one round that of its two
    processes, None where too few steps give one."""
    count, logs = len(ratios), [log for log, _ in ratios]
    middle = statistics.median(logs)
    if count == 1 and not math.isfinite(ratios[0][1]):
        return math.exp(middle), None
    half = NORMAL95 * math.sqrt(sum(error**2 for _, error in ratios if math.isfinite(error))) / count
    if count > 1:
        half = max(half, student_95(count - 1) * statistics.stdev(logs) / math.sqrt(count))
    if count > 2:
        half *= math.sqrt(math.pi / 2)          # of a median in the place of a mean
    return math.exp(middle), (math.exp(middle - half), math.exp(middle + half))
