# SPDX-License-Identifier: Apache-2.0
"""Writes a record as the suite runner would, from formulas: a fixture, not a measurement."""

import hashlib
import json
import math
import random
import zlib

STRATEGIES = [("one rank", "none", 1, (1,)), ("data parallel", "none", 1, (2, 4)),
              ("1D tensor", "1d", 0, (2, 4)), ("1D-sp", "1d-sp", 0, (2, 4)),
              ("2D tensor", "2d", 0, (2, 4)), ("data x tensor", "1d", 2, (4,))]
LAYERS, HIDDEN, VOCAB, STEPS, SAMPLES = 2, 64, 256, 30, 24
VERBS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def plan_of(mode, tensor, data, batch, sequence, recompute):
    return {"model": {"kind": "gpt", "layers": LAYERS, "hidden": HIDDEN, "heads": 4,
                      "vocab": VOCAB, "sequence": sequence, "dtype": "f32"},
            "parallel": {"data": data, "pipeline": 1,
                         "tensor": {"mode": mode, "size": tensor, "depth": 1},
                         "sequence": {"mode": "none", "size": 1}, "expert": 1},
            "memory": {"policy": "plain", "recompute": recompute},
            "optimizer": {"kind": "adamw", "lr": 3e-3},
            "train": {"batch": batch, "micro_batch": batch // data, "steps": STEPS, "seed": 1}}


def axis_entry(ranks, sent, calls):
    return {"bytes_sent": [sent] * ranks, "bytes_received": [sent] * ranks,
            "messages": [calls] * ranks,
            "peers": [ranks - 1] * ranks,
            "wire_peers": [min(2, ranks - 1)] * ranks,
            "calls": {verb: [calls if verb == "all_reduce" else 0] * ranks for verb in VERBS}}


def ledger_of(mode, tensor, data, ranks, batch, sequence):
    activation = batch // data * sequence * HIDDEN * 4
    parameters = (LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + VOCAB * HIDDEN) * 4
    ledger = {}
    if data > 1:
        ledger["data"] = axis_entry(ranks, int(2 * (data - 1) / data * parameters / tensor * STEPS),
                                    3 * STEPS)
    if mode in ("1d", "1d-sp") and tensor > 1:
        moved = 2 * (tensor - 1) / tensor * activation * 4 * LAYERS * STEPS
        ledger["tensor"] = axis_entry(ranks, int(moved), 4 * LAYERS * STEPS)
    if mode == "2d":
        q = math.isqrt(tensor)
        ledger["row"] = axis_entry(ranks, int(6 * LAYERS * STEPS * parameters / tensor / q / 3), 90)
        ledger["col"] = axis_entry(ranks, int(8 * LAYERS * STEPS * activation / q), 120)
        ledger["col"]["bytes_sent"][0] //= 2
    return ledger


def memory_of(tensor, data, ranks, batch, sequence, recompute):
    parameters = (LAYERS * 12 * HIDDEN**2 // tensor + VOCAB * HIDDEN) * 4
    activation = batch // data * sequence * HIDDEN * 4 * (34 if recompute == "none" else 12)
    activation = activation * LAYERS // (1 + (tensor - 1) // 2)
    ranked = [{"parameter": parameters, "gradient": parameters, "optimizer": 2 * parameters,
               "activation": int(activation * (1 + 0.01 * r)),
               "communication": 4 * batch * sequence * HIDDEN // data if ranks > 1 else 0,
               "temporary": batch * sequence * VOCAB // data} for r in range(ranks)]
    alone = [{k: v + 4096 for k, v in c.items()} for c in ranked]
    return {"peak_bytes": [sum(c.values()) for c in ranked], "peak_by_category": alone,
            "at_peak": ranked, "scratch_bytes": [1 << 16] * ranks}


def timing_of(rng, ranks, work, recompute, slow):
    seconds = 2.1e-9 * work * (1.33 if recompute == "full" else 1.0) * slow / min(ranks, 1.7)
    samples = sorted(seconds * (1 + abs(rng.gauss(0, 0.05))) for _ in range(SAMPLES))
    median = (samples[SAMPLES // 2 - 1] + samples[SAMPLES // 2]) / 2
    rng.shuffle(samples)
    ordered = sorted(samples)
    return {"median": median, "ci95": [ordered[SAMPLES // 2 - 5], ordered[SAMPLES // 2 + 5]],
            "samples": samples}


def loss_of(batch, sequence, wobble):
    rng = random.Random(batch * 1000 + sequence)
    curve = [2.35 + 3.25 * math.exp(-t / 9) + rng.gauss(0, 0.05) * 8 / batch
             for t in range(STEPS)]
    return [v * (1 + wobble * (t % 3) * 1e-7) for t, v in enumerate(curve)]


def document_of(rng, plan, ranks, name):
    tensor, data = plan["parallel"]["tensor"]["size"], plan["parallel"]["data"]
    mode, batch = plan["parallel"]["tensor"]["mode"], plan["train"]["batch"]
    sequence, recompute = plan["model"]["sequence"], plan["memory"]["recompute"]
    slow = {"none": 1.0, "1d": 1.1, "1d-sp": 1.15, "2d": 1.4}[mode]
    flops = 6 * LAYERS * 12 * HIDDEN**2 * batch * sequence
    step = timing_of(rng, ranks, batch * sequence * 20000, recompute, slow)
    verdict = "equal"
    if name.startswith("1D-sp, 4 ranks, batch 8, sequence 64"):
        verdict = "not_run"
    return {"status": "ok", "plan": plan, "plan_hash": digest(plan), "world": "threads",
            "ranks": ranks, "loss": loss_of(batch, sequence, ranks + tensor - 2),
            "validation_loss": 2.44, "step_time_s": step,
            "tokens_per_s": batch * sequence / step["median"], "flops_per_step": flops,
            "flops_recomputed": flops // 3 if recompute == "full" else 0,
            "memory": memory_of(tensor, data, ranks, batch, sequence, recompute),
            "ledger": ledger_of(mode, tensor, data, ranks, batch, sequence),
            "certificate": {"verdict": verdict, "level": "full", "steps": 3,
                            "loss_error": 2.2e-16, "gradient_error": 3.1e-14 * tensor,
                            "parameter_error": 8.4e-13, "tolerance": 5.7e-11},
            "provenance": {"seed": 1}}


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def case_line(name, settings, document):
    return {"kind": "case", "case_id": digest([name, settings]), "name": name,
            "settings": settings, "status": document["status"], "wall_s": 4.2,
            "reason": document.get("reason"), "document": document}


def suite_line(count):
    return {"kind": "suite", "format": 2, "name": "quickstart",
            "suite_hash": "5d0c22f1a0b34e77", "cases": count,
            "question": "What do five ways of splitting one GPT cost in time, memory and traffic?",
            "provenance": {"git_commit": "0123456789abcdef0123456789abcdef01234567",
                           "git_dirty": False, "version": "0.1.0",
                           "compiler": "g++ 12.2.0", "flags": "-O2 -DNDEBUG", "build_type": "Release",
                           "libraries": {"LibTorch": "2.11.0", "MPI": "4.1.4", "NCCL": None},
                           "host": "laptop", "system": "Linux 6.1 x86_64", "cores": 2,
                           "cpu_model": "Example CPU at 3.0 GHz", "memory_bytes": 16 << 30,
                           "gpu": None, "time": "2026-11-21T12:00:00Z"}}


def grid():
    for batch, sequence, recompute in ((8, 32, "none"), (8, 64, "none"), (16, 64, "none"),
                                       (8, 64, "full")):
        for strategy, mode, data, counts in STRATEGIES:
            for ranks in counts:
                copies = ranks if mode == "none" else max(data, 1)
                yield strategy, mode, copies, ranks, batch, sequence, recompute


def lines(seed=7):
    """All lines of the record, parsed: 38 finished or refused cases and three bad ends."""
    rng, cases = random.Random(seed), []
    for strategy, mode, data, ranks, batch, sequence, recompute in grid():
        policy = "plain" if recompute == "none" else "full recomputation"
        counted = f"{ranks} rank" + ("s" if ranks > 1 else "")
        name = f"{strategy}, {counted}, batch {batch}, sequence {sequence}, {policy}"
        settings = {"strategy": strategy, "ranks": ranks, "train.batch": batch,
                    "model.sequence": sequence, "policy": policy, "world": "threads"}
        if mode == "2d" and ranks == 2:
            if (batch, sequence, recompute) == (8, 32, "none"):
                cases.append(case_line(name, settings, {
                    "status": "refused", "ranks": 2,
                    "reason": "parallel.tensor.size = 2: a 2D grid needs a square number of ranks "
                              "<1, 4, 9, ...>; nearest: 1 or 4"}))
            continue
        plan = plan_of(mode, ranks // data, data, batch, sequence, recompute)
        cases.append(case_line(name, settings, document_of(rng, plan, ranks, name)))
    cases += bad_ends()
    return [suite_line(len(cases))] + cases


def few(count=6):
    """A short record: the suite, `count` finished cases, the bad ends."""
    every = lines()
    finished = [o for o in every[1:] if o["status"] == "ok"]
    cases = finished[:count] + bad_ends()
    return [suite_line(len(cases))] + cases


def bad_ends():
    plan = plan_of("none", 1, 1, 16, 64, "none")
    over = {"status": "out_of_memory", "plan": plan, "plan_hash": digest(plan), "world": "threads",
            "ranks": 1, "reason": "rank 0 asked for 2097152 bytes beyond its 4000000 bytes",
            "out_of_memory": {"rank": 0, "requested_bytes": 2097152, "live_bytes": 3145728,
                              "budget_bytes": 4000000}}
    wild = plan_of("none", 1, 2, 16, 64, "none")
    wild["optimizer"]["lr"] = 9
    failed = {"status": "failed", "ranks": 2, "world": "threads", "loss": [5.5, 5.9, None],
              "plan": wild,
              "reason": "loss is not a number at step 3", "certificate": {"verdict": "not_run"}}
    settings = {"train.batch": 16, "model.sequence": 64, "policy": "plain", "world": "threads"}
    return [case_line("over budget", settings | {"strategy": "one rank", "ranks": 1,
                                                 "memory.device": "4 MB"}, over),
            case_line("learning rate 9", settings | {"strategy": "data parallel", "ranks": 2,
                                                     "optimizer.lr": 9}, failed),
            case_line("slow", settings | {"strategy": "1D tensor", "ranks": 4},
                      {"status": "timeout", "ranks": 4, "reason": "no end within 60 s"})]


def sealed(line):
    """A line as the suite runner writes it: with the CRC-32 of its content as the last field."""
    content = json.dumps(line)[:-1]
    return f'{content},"checksum":"{zlib.crc32(content.encode()):08x}"}}'


def write(folder, objects=None, tail=""):
    """Writes run.jsonl into `folder`; `tail` is appended as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(sealed(o) + "\n" for o in (lines() if objects is None else objects))
    (folder / "run.jsonl").write_text(text + tail, encoding="utf-8")
    return folder


if __name__ == "__main__":
    import pathlib
    import sys
    write(pathlib.Path(sys.argv[1]))
