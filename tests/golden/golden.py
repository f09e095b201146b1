#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden runs: what a stated set of plans (plans.toml) trained, moved, held and did when golden.jsonl was recorded.

    .venv/bin/python tests/golden/golden.py             compare every plan with golden.jsonl
    .venv/bin/python tests/golden/golden.py zero 2d     those whose names hold one of the words
    .venv/bin/python tests/golden/golden.py --sample 6 --seed 3
    .venv/bin/python tests/golden/golden.py --record    write golden.jsonl anew (plans named: those lines only)
    .venv/bin/python tests/golden/golden.py --record --beside    the same beside the lines of other machines

Per plan: losses, every tensor of the last checkpoint put together (parameters and optimizer state, so gradients too), the ledger,
peaks by category, and the trace of a rank without its times. Traffic, peaks and traces are equal on every machine. Values are equal to
the bit where processor and LibTorch are those of the record, else within a tolerance of the type. Exit 1: something differs."""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "golden.jsonl"
CODES = {"f64": "d", "f32": "f"}
# Relative, of a loss and of a tensor's norm after a few steps on another processor: ten times what the plans differ by between the two
# kinds that golden.jsonl has lines of (f32 2.0e-7 and 4.3e-6), more in half precision, where a rounding may turn.
LOSS_TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "bf16": 1e-3, "f16": 1e-3}
NORM_TOLERANCE = {"f64": 1e-12, "f32": 5e-5, "bf16": 1e-2, "f16": 1e-2}


def digest(value):
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def plans():
    """{name: settings}, each on top of the common ones; "-" leaves one out."""
    with open(HERE / "plans.toml", "rb") as file:
        table = tomllib.load(file)
    return {name: {key: value for key, value in (table["common"] | settings).items() if value != "-"}
            for name, settings in table["plan"].items()}


def whole_tensors(folder):
    """(name, type, values of the whole tensor in row-major order) of a checkpoint."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    files = {}
    for name in sorted({p["file"] for t in index["tensors"].values() for p in t["pieces"]}):
        data = (folder / name).read_bytes()
        length = int.from_bytes(data[:8], "little")
        files[name] = json.loads(data[8:8 + length]), data[8 + length:]
    for name, tensor in sorted(index["tensors"].items()):
        whole = [0.0] * count_of(tensor["global"])
        for piece in tensor["pieces"]:
            header, data = files[piece["file"]]
            begin, end = header[piece["key"]]["data_offsets"]
            values = struct.unpack(f"<{(end - begin) // struct.calcsize(CODES[tensor['dtype']])}{CODES[tensor['dtype']]}", data[begin:end])
            put(whole, tensor["global"], piece["slice"], values)
        yield name, tensor["dtype"], whole


def count_of(extents):
    count = 1
    for extent in extents:
        count *= extent
    return count


def put(whole, extents, box, values):
    """Copies a box's values, row by row, to where they lie in the whole."""
    if not extents:
        whole[0] = values[0]
        return
    row = box["extent"][-1]
    for number in range(count_of(box["extent"]) // row if row else 0):
        at, rest = 0, number
        place = []
        for extent in reversed(box["extent"][:-1]):
            place.append(rest % extent)
            rest //= extent
        for offset, inside, extent in zip(box["offset"][:-1], reversed(place), extents[:-1]):
            at = at * extent + offset + inside
        at = at * extents[-1] + box["offset"][-1]
        whole[at:at + row] = values[number * row:(number + 1) * row]


def tensors_of(folder):
    """{name: [digest of the bits, Euclidean norm]}"""
    return {name: [digest(struct.pack(f"<{len(values)}{CODES[dtype]}", *values)), sum(v * v for v in values) ** 0.5]
            for name, dtype, values in whole_tensors(folder)}


def trace_of(path):
    """{rank: [digest of its events without times, {event: number}]}; values read off data are values, not events."""
    ranks = collections.defaultdict(list)
    with open(path, encoding="utf-8") as file:
        next(file)
        for line in file:
            event = json.loads(line)
            for key in ("start_ns", "end_ns", *(["value"] if event["event"] == "oracle" else [])):
                event.pop(key, None)
            ranks[str(event.pop("rank"))].append(event)
    return {rank: [digest(events), dict(sorted(collections.Counter(e["event"] for e in events).items()))] for rank, events in ranks.items()}


def run(name, settings, program):
    """What a run of the plan gives, as golden.jsonl has it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = [str(program), "run", "/dev/null", "--json", str(folder / "run.json"), "--checkpoint", str(folder / "saved")]
        is_traced = settings.get("traced", True)
        if is_traced:
            words += ["--trace", str(folder / "trace.jsonl")]
        for key, value in settings.items():
            if key == "ranks":
                words += ["--ranks", str(value)]
            elif key != "traced":
                words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300)
        if done.returncode != 0:
            return {"name": name, "failure": f"exit {done.returncode}: {(done.stderr or done.stdout).strip()}"}
        document = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        last = max((folder / "saved").glob("step-*"))
        memory = document["memory"]
        libraries = document["provenance"]["libraries"]
        return {"name": name, "plan_hash": document["plan_hash"],
                "machine": {"cpu": document["provenance"]["cpu_model"], "LibTorch": libraries["LibTorch"]},
                "losses": document["loss"], "tensors": tensors_of(last), "ledger": document["ledger"],
                "peak_bytes": memory["peak_bytes"], "peak_by_category": memory["peak_by_category"],
                "trace": trace_of(folder / "trace.jsonl") if is_traced else None}


def apart(a, b, tolerance):
    return abs(a - b) > tolerance * max(abs(a), abs(b), 1e-30)


def differences(golden, found, dtype):
    """Words on what differs, the first of each kind."""
    for key in ("plan_hash", "ledger", "peak_bytes", "peak_by_category", "trace"):
        if golden[key] != found[key]:
            yield f"{key}: {json.dumps(golden[key])[:600]}, now {json.dumps(found[key])[:600]}"
    is_same = golden["machine"] == found["machine"]
    of_loss, of_norm = (0, 0) if is_same else (LOSS_TOLERANCE[dtype], NORM_TOLERANCE[dtype])
    for step, (a, b) in enumerate(zip(golden["losses"], found["losses"], strict=True), 1):
        if apart(a, b, of_loss):
            yield f"loss of step {step}: {a!r}, now {b!r}"
            break
    if golden["tensors"].keys() != found["tensors"].keys():
        yield f"tensors: {sorted(golden['tensors'].keys() ^ found['tensors'].keys())[:8]} are in one checkpoint alone"
        return
    for name, (bits, norm) in golden["tensors"].items():
        now_bits, now_norm = found["tensors"][name]
        if (is_same and bits != now_bits) or apart(norm, now_norm, of_norm):
            yield f"{name}: norm {norm!r}, now {now_norm!r}, bits {'equal' if bits == now_bits else 'differ'}"
            return


def read_record(path):
    """{name: its lines, one a machine}"""
    record = collections.defaultdict(list)
    if path.is_file():
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            record[line["name"]].append(line)
    return record


def compared(lines, found, dtype):
    """Words on what differs from the line of this machine; of another where there is none."""
    own = [line for line in lines if line["machine"] == found["machine"]]
    return list(differences((own or lines)[0], found, dtype))


def errors(chosen, before, record, options):
    """Of f32 plans the largest |loss / loss in f64 - 1| of an older record and of this one: what a change of the order of a sum costs or gains."""
    rows = []
    for name, settings in chosen.items():
        own = {line["machine"]["cpu"]: line for line in record.get(name, [])}
        pairs = [(old, own[old["machine"]["cpu"]]) for old in before.get(name, []) if old["machine"]["cpu"] in own]
        if settings.get("model.dtype", "f32") != "f32" or not pairs:
            continue
        exact = run(name, settings | {"model.dtype": "f64"}, options.kuafu)
        if "failure" in exact:
            sys.exit(f"{name} in f64: {exact['failure']}")
        old, new = (max(abs(a / b - 1) for a, b in zip(line["losses"], exact["losses"], strict=True)) for line in pairs[0])
        rows.append((old, new))
        print(f"{name}: {old:.2e}, now {new:.2e}", flush=True)
    if not rows:
        sys.exit("no f32 plan is in both records")
    for what, of in (("median", statistics.median), ("largest", max)):
        print(f"{what} of {len(rows)} plans: {of([o for o, _ in rows]):.2e}, now {of([n for _, n in rows]):.2e}")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="plans whose names hold one of these; default: all")
    parser.add_argument("--record", action="store_true", help="write what is found into golden.jsonl")
    parser.add_argument("--beside", action="store_true", help="with --record: keep the lines of other machines, to which what is found must hold")
    parser.add_argument("--sample", type=int, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kuafu", type=Path, default=ROOT / "build/release/bin/kuafu", help="program; default %(default)s")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--errors", type=Path, help="an older golden.jsonl: losses of it and of this one against f64, nothing else")
    options = parser.parse_args(arguments)
    chosen = {n: s for n, s in plans().items() if not options.words or any(word in n for word in options.words)}
    if not chosen:
        parser.error(f"no plan's name holds {' or '.join(options.words)}; plans: {', '.join(plans())}")
    if options.sample is not None:
        names = random.Random(options.seed).sample(sorted(chosen), min(options.sample, len(chosen)))
        chosen = {name: chosen[name] for name in names}
    record, failed = read_record(RECORD), 0
    if options.errors:
        if not options.errors.is_file():
            parser.error(f"--errors {options.errors}: no such file")
        errors(chosen, read_record(options.errors), record, options)
        return 0
    if not options.record:
        missing = [name for name in chosen if name not in record]
        if missing:
            parser.error(f"{RECORD.name} lacks {', '.join(missing)}: --record them at a commit that is to be kept to")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(lambda item: run(*item, options.kuafu), chosen.items())
        for (name, settings), line in zip(chosen.items(), found):
            if "failure" in line:
                failed += 1
                print(f"FAILED  {name}\n  {line['failure']}", flush=True)
                continue
            dtype = settings.get("model.dtype", "f32")
            others = [other for other in record.get(name, []) if other["machine"] != line["machine"]]
            if options.record and not (options.beside and others and compared(others, line, dtype)):
                record[name] = [*(others if options.beside else []), line]
                print(f"recorded  {name}", flush=True)
                continue
            wrong = compared(others if options.record else record[name], line, dtype)
            failed += bool(wrong)
            print(f"{'DIFFERS' if wrong else 'equal'}  {name}", *wrong, sep="\n  " if wrong else " ", flush=True)
    if options.record:
        RECORD.write_text("".join(json.dumps(line) + "\n" for n in plans() for line in record.get(n, [])), encoding="utf-8")
    else:
        print(f"{len(chosen) - failed} of {len(chosen)} plans are as recorded")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
