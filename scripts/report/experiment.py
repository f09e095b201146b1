# SPDX-License-Identifier: Apache-2.0
"""What the drivers in experiments/ share: rows that outlive a kill, tables in Markdown, the table of claims, figures in
the one look."""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import provenance
import style


def measured(cases, measure, out, programs):
    """measure(*case) of each case, in order. Rows go to out/unfinished.jsonl one by one, so that a call after a kill goes
    on where the last one was; rows of other `programs` (files, by their content) are measured again. The caller writes
    its result and then removes the file: finished(out)."""
    made_by = hashlib.sha256(b"".join(p.read_bytes() for p in programs)).hexdigest()[:16]
    path = out / "unfinished.jsonl"
    known = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # a kill cut it off
            continue
        if entry["made_by"] == made_by:
            known[json.dumps(entry["case"])] = entry["row"]
    path.write_text("".join(json.dumps({"made_by": made_by, "case": json.loads(case), "row": row}) + "\n"
                            for case, row in known.items()), encoding="utf-8")
    rows = []
    for i, case in enumerate(cases):
        name = json.dumps(case)
        print(f"[{i + 1}/{len(cases)}] {', '.join(map(str, case))}{' (done before)' if name in known else ''}",
              file=sys.stderr)
        if name not in known:
            known[name] = measure(*case)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"made_by": made_by, "case": case, "row": known[name]}) + "\n")
        rows.append(known[name])
    return rows


def proof(document):
    """What a row keeps of the document of a run that trained and was certified: {verdict, level, reason}."""
    certificate = document.get("certificate") or {"verdict": "not_run", "reason": "the run was not asked for one"}
    return {key: certificate.get(key) for key in ("verdict", "level", "reason")}


def proven(proofs):
    """The claim that goes with these proofs, in a list; none of records that were made before there were any."""
    verdicts = [proof["verdict"] for proof in proofs]
    return [{"claim": "every training on thread ranks is certified", "found": f"{verdicts.count('equal')} of {len(verdicts)} equal",
             "holds": set(verdicts) == {"equal"}}] if verdicts else []


def finished(out):
    """The result is written: forgets the rows on the way to it."""
    (out / "unfinished.jsonl").unlink(missing_ok=True)


def markdown(head, rows):
    """Lines of a table; cells become text as they are."""
    lines = ["| " + " | ".join(map(str, head)) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def claims(checks):
    """Lines of the table of claims: {claim, found, holds} each, and the source where any has one."""
    columns = ["claim", *(["source"] if any("source" in c for c in checks) else []), "found"]
    return markdown([*columns, "holds"],
                    [[*(c.get(k, "-") for k in columns), "yes" if c["holds"] else "NO"] for c in checks])


def add_draw(parser):
    """--draw: what the files of results hold, measuring nothing; `--draw tables` needs no matplotlib."""
    parser.add_argument("--draw", nargs="?", const="all", choices=("all", "tables"),
                        help="measure nothing: tables and pictures of what the files hold, or the tables alone")


def subplots(*shape, **options):
    """plt.subplots in the one look, without a window."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.rcParams.update(style.MATPLOTLIB)
    return plt.subplots(*shape, layout="constrained", **options)


def save(figure, out, name):
    """Writes name.svg, the same bytes each time, and name.png."""
    import matplotlib
    with matplotlib.rc_context({"svg.hashsalt": style.MATPLOTLIB["svg.hashsalt"]}):
        for kind in ("svg", "png"):
            figure.savefig(out / f"{name}.{kind}", dpi=130, metadata={"Date": None} if kind == "svg" else None)


def main(about, root, name, quick, measure, verdicts, table, draw):
    """The command of a driver that measures in one go: result.json by measure(options), table.md and the figure of it; 1 where a
    claim does not hold. `quick`: what --quick takes."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--build", type=Path, default=root / "build" / "release")
    parser.add_argument("--out", type=Path, default=root / "results" / name)
    add_draw(parser)
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "result.json"
    if options.draw:
        result = json.loads(file.read_text())
    else:
        result = {"provenance": provenance.begin(options.build, file)} | measure(options)
        provenance.write(file, result)
    checks = verdicts(result)
    (options.out / "table.md").write_text(table(result, checks))
    if options.draw != "tables":
        draw(result, options.out)
    print("\n".join(claims(checks)))
    return 0 if all(c["holds"] for c in checks) else 1
