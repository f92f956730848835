"""Two substances that react and spread: implicit steps, each a block tridiagonal system of 2 x 2 blocks.

The Brusselator, u' = D1 u" + 1 + u^2 v - 4 u and v' = D2 v" + 3 u - u^2 v on a line with fixed ends. The reaction
couples the two in every point, so a step of backward Euler by Newton's method solves systems with blocks. The usual
tool is a banded solver for one system at a time, or a dense solver. `solve_block_tridiagonal` takes many lines at once.

Newton's method squares its error, so after four iterations a step is as exact as its systems are solved. The matrix of
a system is the identity plus dt times a bounded matrix, with an inverse of norm 2 at most here; so each step is allowed
1000 roundings, besides the errors of the steps before it. The reference eliminates block after block.
(Hairer and Wanner, Solving Ordinary Differential Equations II, IV.10.)
"""

import sys

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=4, cpu=200, cuda=20_000)
POINTS, STEPS, NEWTON = 48, 3, 4
DT, D = 0.05, (0.002, 0.001)
SPREAD = tuple(DT * d * (POINTS + 1) ** 2 for d in D)


def reaction(xp, u, v):
    """Return the rates of the reaction, and their derivatives by the two substances, as a 2 x 2 block."""
    made = xp.stack([1 + u * u * v - 4 * u, 3 * u - u * u * v], axis=-1)
    by_u, by_v = 2 * u * v, u * u
    rows = [xp.stack([by_u - 4, by_v], axis=-1), xp.stack([3 - by_u, -by_v], axis=-1)]
    return made, xp.stack(rows, axis=-2)


def blocks(xp, old, new, beside):
    """Return the blocks of Newton's system, and its right-hand side: the residual of the equation of a step."""
    made, by = reaction(xp, new[..., 0], new[..., 1])
    one = xp.ones_like(old[0, 0, 0])
    spread = xp.stack([SPREAD[0] * one, SPREAD[1] * one])
    eye = xp.stack([xp.stack([one, 0 * one]), xp.stack([0 * one, one])])
    before, after = xp.concat([beside, new[:, :-1, :]], axis=1), xp.concat([new[:, 1:, :], beside], axis=1)
    left = old - new + spread * (before - 2 * new + after) + DT * made
    diag = eye * (1 + 2 * spread) - DT * by
    return xp.zeros_like(diag) - eye * spread, diag, left


def steps(start, /, *, method: str = "auto", solve=None):
    """Return both substances (lines, points, 2) after some steps; (1, 3) holds at both ends."""
    xp = array_namespace(start)
    one = xp.ones_like(start[:, :1, 0])
    beside = xp.stack([one, 3 * one], axis=-1)
    old = start
    for _ in range(STEPS):
        new = old
        for _ in range(NEWTON):
            beyond, diag, left = blocks(xp, old, new, beside)
            if solve is None:
                new = new + parprims.solve_block_tridiagonal(beyond, diag, beyond, left, method=method)
            else:
                new = new + solve(beyond, diag, beyond, left)
        old = new
    return old


def by_elimination(lower, diag, upper, rhs):
    """Return the solution of block tridiagonal systems, block after block."""
    diag, rhs = diag.copy(), rhs[..., None].copy()
    for at in range(1, POINTS):
        factor = lower[:, at] @ np.linalg.inv(diag[:, at - 1])
        diag[:, at] -= factor @ upper[:, at - 1]
        rhs[:, at] -= factor @ rhs[:, at - 1]
    x = np.empty_like(rhs)
    for at in range(POINTS - 1, -1, -1):
        known = upper[:, at] @ x[:, at + 1] if at + 1 < POINTS else 0
        x[:, at] = np.linalg.solve(diag[:, at], rhs[:, at] - known)
    return x[..., 0]


def example(run: common.Run) -> None:
    rng = np.random.default_rng(2)
    place = np.arange(1, POINTS + 1) / (POINTS + 1)
    start = np.stack([1 + np.sin(2 * np.pi * place), 3 + 0 * place], axis=-1)
    start = start + 0.1 * rng.standard_normal((run.size, POINTS, 2)) * np.sin(np.pi * place)[:, None]
    expected = steps(start, solve=by_elimination)
    allowed = 1000 * STEPS * 2.0**-52 * np.max(abs(expected))

    def check(result, _):
        x = run.to_numpy(result)
        return f"middle {x[0, POINTS // 2, 0]:.6f}, {x[0, POINTS // 2, 1]:.6f}", common.distance(x, expected), allowed

    row = f"{STEPS} implicit steps, {run.size} lines of {POINTS} points"
    run.compare(row, steps, (run.asarray(start),), check)
    end = run.to_numpy(steps(run.asarray(start[:1])))[0]
    run.plot(lambda axes: (axes.plot(place, end), axes.set(xlabel="place", ylabel="u and v")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
