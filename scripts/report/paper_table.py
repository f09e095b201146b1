# SPDX-License-Identifier: Apache-2.0
"""The table of cases on paper: one that is wider than a page is shown there in parts under each other, each with the names of the
cases. Widths are estimated, for fonts that run wide."""

import html
import re

PAGE = 1040              # pixels of A4 in landscape within the margins of page.css
LETTER, BOLD, SMALL = 5.5, 6.0, 4.6     # pixels of a letter in the type of page.css on paper: of cells, headings, <small>
EDGES = 9                # of a cell, left and right
NAME, REASONED = 150, 98                # least widths of cells whose words may break, as in page.css


def _tags_out(shown):
    return html.unescape(re.sub("<[^>]*>", "", shown))


def _cell_width(cell):
    css = re.match('<td(?: class="([^"]*)")?', cell)[1] or ""
    if css in ("name", "reasoned"):
        return NAME if css == "name" else REASONED
    lines = [(line, SMALL if "<small>" in line else LETTER) for line in cell.split("<br>")]
    if css == "":                       # may break between words
        lines = [(word, letter) for line, letter in lines for word in _tags_out(line).split()]
    return EDGES + max((letter * len(_tags_out(line)) for line, letter in lines), default=0)


def widths(headings, rows):
    """Pixels of each column; `rows` are lists of cells."""
    heads = [EDGES + BOLD * max(map(len, heading.split())) for heading in headings]
    return [max([head] + [_cell_width(row[i]) for row in rows]) for i, head in enumerate(heads)]


def _groups(headings, pixels):
    """[[indexes]] of columns that stay together: one quantity of several folders ("peak, a", "peak, b", "ratio"), where a page has
    room for it."""
    groups = []
    for i, heading in enumerate(headings[1:], 1):
        of = heading.rpartition(", ")[0]
        if groups and (heading == "ratio" or of and of == headings[groups[-1][0]].rpartition(", ")[0]):
            groups[-1].append(i)
        else:
            groups.append([i])
    return [part for group in groups for part in ([group] if pixels[0] + sum(pixels[i] for i in group) <= PAGE else [[i] for i in group])]


def parts(headings, rows):
    """[[indexes of the columns of a part]], the first column in each."""
    pixels, found = widths(headings, rows), [[0]]
    for group in _groups(headings, pixels):
        if len(found[-1]) > 1 and sum(pixels[i] for i in found[-1] + group) > PAGE:
            found.append([0])
        found[-1] += group
    return found
