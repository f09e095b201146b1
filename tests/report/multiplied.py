# SPDX-License-Identifier: Apache-2.0
"""Large records for the tests of the report: lines of the recorded quickstart, multiplied. Settings, names, ids, times and losses
are changed by formula, so that nothing here is a measurement.

    python tests/report/multiplied.py FOLDER STRATEGIES CASES [STEPS]"""

import copy
import json
import random
import sys
from pathlib import Path

import synthetic

RECORD = Path(__file__).resolve().parents[2] / "results" / "quickstart" / "run.jsonl"
LONG_REASON = ("parallel.tensor.size = 3: model.heads = 4 does not divide over 3 ranks, and neither does model.hidden = 64; "
               "nearest sizes that divide both: 2 or 4")


def recorded():
    """(suite line, lines of its finished cases of several ranks)"""
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for key in ("checksum", "rounds", "timing"):    # each case is one run of its own time
            line.pop(key, None)
    return lines[0], [line for line in lines[1:] if line["status"] == "ok" and line["settings"]["ranks"] > 1]


def case(rng, source, name, settings, steps):
    """`source` as if it had been run under other settings for `steps` steps."""
    line = copy.deepcopy(source)
    document = line["document"]
    line |= {"case_id": synthetic.digest([name, settings]), "name": name, "settings": settings}
    document["plan"]["memory"]["recompute"] = "none"
    document["plan"]["train"] |= {"batch": settings["train.batch"], "steps": steps}
    document["plan"]["model"]["sequence"] = settings["model.sequence"]
    median = document["step_time_s"]["median"] * settings["train.batch"] * settings["model.sequence"] / 256 * rng.uniform(0.5, 2)
    samples = [median * (1 + abs(rng.gauss(0, 0.08))) * (3 if rng.random() < 0.01 else 1) for _ in range(steps)]
    middle = sorted(samples)[steps // 2]
    document["step_time_s"] |= {"median": middle, "ci95": [0.97 * middle, 1.04 * middle], "samples": samples}
    document["tokens_per_s"] = settings["train.batch"] * settings["model.sequence"] / middle
    document["loss"] = [2.4 + 3.1 / (1 + t / 9) for t in range(steps)]
    memory, factor = document["memory"], settings["train.batch"] / 8
    memory["at_peak"] = [{k: int(v * factor) for k, v in rank.items()} for rank in memory["at_peak"]]
    memory["peak_bytes"] = [sum(rank.values()) for rank in memory["at_peak"]]
    return line


def lines(strategies, cases, steps=30, seed=5):
    """A suite of `cases` cases of `strategies` strategies named A, B, ...: every ninth one is refused for one of two reasons, one
    is refuted by its certificate, one has a certificate that was not run."""
    rng, (suite, sources) = random.Random(seed), recorded()
    names = [chr(ord("A") + i) for i in range(strategies)]
    made = []
    for index in range(cases):
        strategy, work = names[index % strategies], index // strategies
        settings = {"strategy": strategy, "ranks": (2, 4)[work % 2], "train.batch": 8 << (work // 2 % 4),
                    "model.sequence": 32 << (work // 8), "world": "threads"}
        name = (f"{strategy}, {settings['ranks']} ranks, batch {settings['train.batch']}, "
                f"sequence {settings['model.sequence']}")
        fit = [line for line in sources if line["settings"]["ranks"] == settings["ranks"]]
        if index % 9 == 5:
            reason = LONG_REASON if index % 2 else "no such mesh <here>"
            made.append(synthetic.case_line(name, settings, {"status": "refused", "ranks": settings["ranks"], "reason": reason}))
        else:
            made.append(case(rng, fit[index % len(fit)], name, settings, steps))
    finished = [line for line in made if line["status"] == "ok"]
    finished[0]["document"]["certificate"] |= {"verdict": "different", "gradient_error": 0.25}
    finished[-1]["document"]["certificate"] = {"verdict": "not_run", "reason": "no legal miniature"}
    return [suite | {"format": 2, "name": "multiplied", "cases": cases}] + made


if __name__ == "__main__":
    synthetic.write(Path(sys.argv[1]), lines(*map(int, sys.argv[2:])))
