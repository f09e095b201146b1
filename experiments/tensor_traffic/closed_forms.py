# SPDX-License-Identifier: Apache-2.0
"""Elements that a rank receives for one transformer layer and step, forward and backward, from the papers alone.

Letters: P ranks, q side of the grid, d depth, T = B S tokens, H hidden, F = 4 H. A ring all-reduce of n elements over p
ranks receives 2 (p-1)/p n, an all-gather to n or a reduce-scatter of n (p-1)/p n.

Linears of a layer, width in -> out: qkv H -> 3H, out H -> H, up H -> 4H, down 4H -> H. So the inputs have 7 T H
elements together, the outputs 9 T H, the weights 12 H^2, the biases 9 H, the norms 4 H.
"""


def ring(p, n):
    return 2 * (p - 1) / p * n


def one_dim(p, t, h):
    """Two all-reduces of the residual stream forward, two backward. [Shoeybi et al., 1909.08053]"""
    return {"linears": 4 * ring(p, t * h), "norms": 0, "gradients": 0}


def one_dim_sp(p, t, h):
    """All-gather and reduce-scatter instead; the expand gathers X once more for dW. [Korthikanti et al., 2205.05198]"""
    turn = (p - 1) / p * t * h
    return {"linears": 2 * 3 * turn + 2 * 2 * turn, "norms": 0, "gradients": ring(p, 6 * h)}


def two_and_a_half_dim(p, t, h, d=1):
    """Each of the three products moves X and W of the local grid q-1 times. [Xu et al., 2104.05343; Wang et al., 2105.14500]"""
    q = round((p / d) ** 0.5)
    linears = 3 * (q - 1) * (7 * t * h / p + 12 * h * h / q**2)
    norms = 4 * ring(q, 2 * t / (d * q))  # two numbers a token, two norms, both ways
    gradients = ring(d, 12 * h * h / q**2 + 13 * h / q) + ring(q, 13 * h / q)
    return {"linears": linears, "norms": norms, "gradients": gradients}


def three_dim(p, t, h):
    """Each product gathers two of X, W, Y and scatters the third; dX and dW share the gathered dY. [Bian et al., 2105.14450]"""
    q = round(p ** (1 / 3))
    linears = (q - 1) * (3 * 7 * t * h + 2 * 9 * t * h + 3 * 12 * h * h) / p
    norms = 4 * ring(q, 2 * t / q**2)
    gradients = ring(q, 13 * h / q) + ring(q, 6 * h / q) + ring(q, 7 * h / q)
    return {"linears": linears, "norms": norms, "gradients": gradients}


def elements(scheme, p, depth, t, h):
    """{linears, norms, gradients}; all zero on one rank."""
    if p == 1:
        return {"linears": 0, "norms": 0, "gradients": 0}
    if scheme == "1d":
        return one_dim(p, t, h)
    if scheme == "1d-sp":
        return one_dim_sp(p, t, h)
    if scheme == "3d":
        return three_dim(p, t, h)
    return two_and_a_half_dim(p, t, h, depth)
