# SPDX-License-Identifier: Apache-2.0
"""Bytes that each rank receives when n replicas agree on B bytes of gradients, from the papers alone.

Letters: n replicas, m of them on a node, g = n / m nodes, S servers, elements of 4 bytes. A buffer is cut into parts as
evenly as can be: the first ones hold an element more."""

ELEMENT = 4


def part(elements, i, n):
    return elements // n + (1 if i % n < elements % n else 0)


def ring(elements, n, r):
    """2 (n-1)/n B on average: all parts but one, twice. [Patarasuk and Yuan, JPDC 2009]"""
    if n == 1:
        return 0
    return ELEMENT * (2 * elements - part(elements, r, n) - part(elements, r + 1, n))


def tree(elements, n, r):
    """Up a binomial tree and down again: B from each child and B from the parent."""
    links, bit = (1 if r else 0), 1
    while bit < n and r % (2 * bit) == 0:
        links += 1 if r + bit < n else 0
        bit *= 2
    return ELEMENT * elements * links


def intra(elements, n, m, r):
    """Reduce-scatter and all-gather inside a node. [Jia et al., arXiv 1807.11205]"""
    return ring(elements, m, r % m)


def inter(elements, n, m, r):
    """A ring between the nodes on the part that the rank holds."""
    return ring(part(elements, r % m + 1, m), n // m, r // m)


def server(elements, n, servers, r):
    """Pushes of the n - 1 others and pulls from the other servers. [Li et al., OSDI 2014]"""
    mine = part(elements, r, servers) if r < servers else 0
    return ELEMENT * ((n - 1) * mine + elements - mine)


def received(way, elements, n, m):
    """{ledger label: bytes a rank} of one agreement."""
    mode, *numbers = way.split(":")
    if mode in ("auto", "ring"):
        return {"data": [ring(elements, n, r) for r in range(n)]}
    if mode == "tree":
        return {"data": [tree(elements, n, r) for r in range(n)]}
    if mode == "hierarchical":
        return {"data.intra": [intra(elements, n, m, r) for r in range(n)],
                "data.inter": [inter(elements, n, m, r) for r in range(n)]}
    return {"data": [server(elements, n, int(numbers[0]), r) for r in range(n)]}
