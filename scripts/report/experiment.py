# SPDX-License-Identifier: Apache-2.0
"""What the drivers in experiments/ share: tables in Markdown, the table of claims, figures in the one look."""

import style


def markdown(head, rows):
    """Lines of a table; cells become text as they are."""
    lines = ["| " + " | ".join(map(str, head)) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def claims(checks):
    """Lines of the table of claims: {claim, found, holds} each, and the source where any has one."""
    columns = ["claim", *(["source"] if any("source" in c for c in checks) else []), "found"]
    return markdown([*columns, "holds"],
                    [[*(c.get(k, "-") for k in columns), "yes" if c["holds"] else "NO"] for c in checks])


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
