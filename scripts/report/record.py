# SPDX-License-Identifier: Apache-2.0
"""Reads the record of a run, run.jsonl: one line for the suite, then one line per finished case."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import lines
from lines import RecordError
from strategies import strategy_of
from timings import Round, Timing, round_problems_of, step_of
from values import as_dict, lookup, number, numbers

RECORD_NAME = "run.jsonl"


@dataclass(frozen=True)
class AxisTraffic:
    """Bytes one mesh axis carried during the training steps, per rank."""
    sent: list
    received: list
    messages: list
    peers: list
    calls: dict

    @staticmethod
    def of(value):
        value = as_dict(value)
        peers = value.get("peers")
        calls = {verb: numbers(counts) for verb, counts in as_dict(value.get("calls")).items()}
        return AxisTraffic(numbers(value.get("bytes_sent")), numbers(value.get("bytes_received")),
                           numbers(value.get("messages")),
                           peers if isinstance(peers, list) else [], calls)


@dataclass(frozen=True)
class Case:
    """One line of the record. Absent measurements are None or empty, never invented."""
    id: str
    name: str
    settings: dict
    status: str
    reason: str
    wall_s: float                   # seconds of the process of the case
    strategy: str
    ranks: int
    world: str
    plan: dict
    plan_hash: str
    loss: list
    validation_loss: float
    validation: list                # [(steps done, loss)] on the way
    step: Timing                    # over all rounds where there are several
    tokens_per_s: float
    rounds: list                    # Round, in their order
    round_problems: list            # round_problems_of
    flops: float
    flops_recomputed: float
    peaks: list                     # bytes, per rank
    categories: list                # {category: bytes} at the moment of the peak, per rank
    scratch: list                   # bytes inside an op, apart from the peak, per rank
    asked_bytes: float              # what a case over its budget asked for
    traffic: dict                   # axis -> AxisTraffic
    certificate: dict
    document: dict = field(repr=False, default_factory=dict)

    @property
    def baseline(self):
        """The baseline that a comparison row of the suite ran, or an empty text."""
        return str(self.settings.get("baseline") or "")

    @property
    def is_certified(self):
        return self.certificate.get("verdict") == "equal"

    @property
    def is_scaled(self):
        """What was certified is a smaller model: of this run its last step was compared, where certificate.native is "full", or none."""
        return self.certificate.get("level") == "scaled"

    @property
    def is_by_engine(self):
        """There is no oracle of its model: it was compared with the same engine on one rank."""
        return self.certificate.get("reference") == "engine"

    @property
    def unseen(self):
        """What the certificate could not see of the run; or an empty text."""
        return str(as_dict(self.certificate.get("native")).get("unseen") or "")

    @property
    def how_certified(self):
        """ " (scaled, engine, blind)": what makes a verdict less than one by the oracle on all of the run itself; or an empty text. """
        how = [word for word, holds in (("scaled", self.is_scaled), ("engine", self.is_by_engine), ("blind", self.unseen)) if holds]
        return f" ({', '.join(how)})" if how else ""

    @property
    def is_different(self):
        """The certificate refutes the run: its numbers are of a wrong result."""
        return self.certificate.get("verdict") == "different"

    @property
    def is_refuted(self):
        """It ended well, with a result that its certificate refutes."""
        return self.status == "ok" and self.is_different

    @property
    def status_words(self):
        """How it ended, as a reader sees it: "different" in place of the "ok" of a run that its certificate refutes."""
        return "different" if self.is_refuted else self.status.replace("_", " ")

    @property
    def is_unproven(self):
        """It was measured, and no certificate says whether rightly; an estimate has none to give."""
        return self.status == "ok" and not self.is_estimated and not self.is_certified and not self.is_different

    def nearest_measure(self, is_native):
        """Of the run itself, or of its f64 twin: (measure, error, bound) nearest to its bound or furthest beyond; None where
        nothing was compared."""
        part = as_dict(self.certificate.get("native")) if is_native else self.certificate
        names = ([(n, f"{n}_error", f"{n}_bound") for n in ("loss", "gradient", "routes", "blocks", "update")] if is_native else
                 [("loss", "loss_error", "loss_tolerance"), ("gradient", "gradient_error", "tolerance"),
                  ("routes", "routes_error", "routes_tolerance"), ("update", "parameter_error", "parameter_tolerance")])
        found = [(name, math.inf if part.get(error) is None else number(part[error]), bound) for name, error, bound_name in names
                 if error in part and (bound := number(part.get(bound_name)))]
        return max(found, key=lambda m: m[1] / m[2], default=None)

    @property
    def is_estimated(self):
        """Its times are prices of the cost model, which nobody measured."""
        return self.world == "simulated"

    @property
    def has_two_rounds(self):
        """Two rounds give no interval: Student's t of one degree of freedom is 12.7."""
        return sum(r.step is not None for r in self.rounds) == 2

    @property
    def has_few_steps(self):
        """Nor do fewer than six steps of one process."""
        return self.step is not None and self.step.interval is None and not self.is_estimated

    @property
    def step_interval(self):
        """95 % interval of the step time in seconds, or None."""
        return None if self.step is None or self.is_estimated or self.has_two_rounds else self.step.interval

    @property
    def tokens_interval(self):
        """95 % interval of tokens/s: tokens of a step over the interval of the step time."""
        low, high = self.step_interval or (0, 0)
        if self.tokens_per_s is None or low <= 0 or high <= 0:
            return None
        tokens = self.tokens_per_s * self.step.median
        return tokens / high, tokens / low

    @property
    def peak(self):
        """Bytes on the rank that holds the most."""
        known = [p for p in self.peaks if p is not None]
        return max(known) if known else None

    @property
    def sent(self):
        """Bytes over all axes on the rank that sends the most, or None where nothing is known."""
        if not self.traffic:
            return 0.0 if self.status == "ok" and "ledger" in self.document else None
        width = max(len(t.sent) for t in self.traffic.values())
        totals = [sum((t.sent[r] or 0) for t in self.traffic.values() if r < len(t.sent))
                  for r in range(width)]
        return max(totals, default=0.0)

    @property
    def steps(self):
        return len(self.loss) or int(lookup(self.plan, "train.steps") or 0)

    def setting(self, key):
        """A varied setting, or the resolved plan's value of the same key. An axis may be called as a whole table of the plan is."""
        value = self.settings.get(key)
        if value is None:
            value = lookup(self.plan, key)
        return None if isinstance(value, dict) else value


@dataclass(frozen=True)
class Run:
    """A whole record: the suite line and its cases, last line of a case winning."""
    folder: Path
    name: str
    question: str
    suite_hash: str
    planned: int
    provenance: dict
    cases: list
    notes: list                     # what was odd in the file, for the reader of the report
    references: list = field(default_factory=list)  # of the suite, where it is known
    columns: list = field(default_factory=list)     # what the suite computes (derived.py)
    claims: list = field(default_factory=list)
    figures: list = field(default_factory=list)     # suite_points.py

    @property
    def finished(self):
        return [c for c in self.cases if c.status == "ok"]

    @property
    def by_status(self):
        counts = {}
        for case in self.cases:
            counts[case.status_words] = counts.get(case.status_words, 0) + 1
        return counts


def _ranks_of(line, document, settings, plan):
    for value in (document.get("ranks"), line.get("ranks"), settings.get("ranks")):
        if isinstance(value, list):
            value = len(value)
        if number(value) is not None:
            return int(value)
    product = 1
    for key in ("data", "pipeline", "tensor.size", "sequence.size"):
        product *= int(number(lookup(plan, f"parallel.{key}")) or 1)
    return product if plan else 0


def case_of(line):
    """The Case of one parsed line of kind "case"."""
    document = as_dict(line.get("document"))
    settings = as_dict(line.get("settings"))
    plan = as_dict(document.get("plan"))
    memory = as_dict(document.get("memory"))
    timing = as_dict(line.get("timing"))
    name = str(line.get("name") or line.get("case_id") or "unnamed")
    # at_peak adds up to the peak; peak_by_category, each category's own peak, stands in for it.
    categories = memory.get("at_peak") or memory.get("peak_by_category")
    return Case(
        id=str(line.get("case_id") or name), name=name, settings=settings,
        status=str(line.get("status") or document.get("status") or "failed"),
        reason=str(line.get("reason") or document.get("reason") or ""),
        wall_s=number(line.get("wall_s")),
        strategy=strategy_of(name, settings, plan),
        ranks=_ranks_of(line, document, settings, plan),
        world=str(document.get("world") or ""), plan=plan,
        plan_hash=str(document.get("plan_hash") or ""),
        loss=numbers(document.get("loss")),
        validation_loss=number(document.get("validation_loss")),
        validation=list(zip(numbers(lookup(document, "validation.steps")), numbers(lookup(document, "validation.losses")))),
        step=step_of(timing, document), rounds=Round.all_of(line), round_problems=round_problems_of(line),
        tokens_per_s=number(timing.get("tokens_per_s", document.get("tokens_per_s"))),
        flops=number(document.get("flops_per_step")),
        flops_recomputed=number(document.get("flops_recomputed")),
        peaks=numbers(memory.get("peak_bytes")),
        categories=[as_dict(c) for c in categories] if isinstance(categories, list) else [],
        scratch=numbers(memory.get("scratch_bytes")),
        asked_bytes=number(lookup(document, "out_of_memory.requested_bytes")),
        traffic={axis: AxisTraffic.of(v) for axis, v in as_dict(document.get("ledger")).items()},
        certificate=as_dict(document.get("certificate")), document=document)


def read_run(folder):
    """Reads `folder`/run.jsonl.

    Raises RecordError if the folder or its record is missing or holds no suite, or where a line does
    not match its checksum."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"no folder '{folder}': give the folder that `kuafu suite --out` wrote")
    path = folder / RECORD_NAME
    if not path.is_file():
        raise RecordError(f"no {RECORD_NAME} in '{folder}': give the folder that `kuafu suite "
                          "--out` wrote, or run the suite first")
    objects, notes = lines.parsed(path.read_text(encoding="utf-8", errors="replace"), path)
    suite = next((o for o in objects if o.get("kind") == "suite"), None)
    cases = {}
    for line in objects:
        if line.get("kind") == "case":
            case = case_of(line)
            cases[case.id] = case        # run again: in the place where it stood first
    if suite is None:
        if not cases:
            raise RecordError(f"'{path}' holds neither a suite nor a case: run the suite again")
        notes.append("The record has no line for its suite: question and provenance are unknown.")
        suite = {}
    return Run(folder=folder, name=str(suite.get("name") or folder.resolve().name),
               question=str(suite.get("question") or ""),
               suite_hash=str(suite.get("suite_hash") or ""),
               planned=int(number(suite.get("cases")) or len(cases)),
               provenance=as_dict(suite.get("provenance")), cases=list(cases.values()), notes=notes)
