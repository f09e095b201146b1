# SPDX-License-Identifier: Apache-2.0
"""Names that fit a legend and the left of a panel; whole they stand in cards and tables."""

import itertools

LETTERS = 26             # of a name in a figure, at the narrowest page
DOTS = "\u2026"


def _common(names):
    """Words that all of them begin with: how many."""
    return sum(1 for _ in itertools.takewhile(lambda words: len(set(words)) == 1, zip(*names)))


def _clipped(words, head, tail, letters):
    """The words between those that all names share, and as many of these as there is room for."""
    begin, end = head, len(words) - tail

    def shown():
        return (DOTS if begin else "") + " ".join(words[begin:end]) + (DOTS if end < len(words) else "")

    fitting = shown()
    while begin and len(fitting) <= letters:
        begin -= 1
        kept, fitting = fitting, shown()
    fitting = kept if begin < head and len(fitting) > letters else fitting
    return fitting if len(fitting) <= letters else fitting[:letters - 1] + DOTS


def short_names(names, letters=LETTERS):
    """{name: name}: long ones without the words that they share, cut where that is not enough, numbered where they then
    look alike."""
    names = list(dict.fromkeys(names))
    long = [n for n in names if len(n) > letters]
    split = [n.split() for n in long]
    head = _common(split) if len(split) > 1 else 0
    tail = _common([words[head:][::-1] for words in split]) if len(split) > 1 else 0
    short, seen = {n: n for n in names}, set(names) - set(long)
    for name, words in zip(long, split):
        shown = _clipped(words, head, tail, letters)
        for number in itertools.count(2):
            if shown not in seen:
                break
            shown = f"{_clipped(words, head, tail, letters)[:letters - 4].rstrip(DOTS)}{DOTS} {number}"
        seen.add(shown)
        short[name] = shown
    return short


def fitting_names(names, rows_of, most):
    """short_names() for a legend: as many letters of a name, up to `most`, as leave it in the rows that LETTERS would take;
    `rows_of` says how many rows names take."""
    names = list(dict.fromkeys(names))
    fewest = rows_of(short_names(names).values())
    longest = min(max(map(len, names), default=0), most)
    return next((short for letters in range(longest, LETTERS, -1)
                 if rows_of((short := short_names(names, letters)).values()) <= fewest), short_names(names))
