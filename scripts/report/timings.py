# SPDX-License-Identifier: Apache-2.0
"""Times of cases as the record has them: of a process, of each round, of all rounds together."""

from dataclasses import dataclass

from values import as_dict, lookup, number, numbers


@dataclass(frozen=True)
class Timing:
    """Seconds of one step: median, 95 % interval, every sample."""
    median: float
    low: float
    high: float
    samples: list

    @staticmethod
    def of(value):
        value = as_dict(value)
        median = number(value.get("median"))
        if median is None or median <= 0:
            return None
        interval = numbers(value.get("ci95"))
        if len(interval) != 2 or None in interval:
            interval = [median, median]
        samples = [s for s in numbers(value.get("samples")) if s is not None]
        return Timing(median, interval[0], interval[1], samples)


@dataclass(frozen=True)
class Round:
    """One run of a case among those of a sweep that repeats it; rounds go over all cases in turns."""
    number: int
    step: Timing
    tokens_per_s: float
    foreign_share: float            # of the cores' time, taken by other processes

    @staticmethod
    def all_of(line):
        """Those that ended well."""
        return [Round(int(number(r.get("round")) or 0), Timing.of(r.get("step_time_s")), number(r.get("tokens_per_s")),
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
    if not two:
        return []
    return [f"{two} of {len(run.finished)} finished cases ran in two rounds, which give no interval: that of 95 % would be 12.7 standard "
            "errors wide to each side. Three rounds or more do (--repeats 3)."]
