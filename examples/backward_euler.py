"""Diffusion by backward Euler: a tridiagonal system at every step, in one dimension and, by alternating
directions, in three.

In one dimension (2 + L) x[n] - x[n-1] - x[n+1] = L x_old[n], with L = 1 and x = 0 beyond both ends, from x = 1. The
source took N = 128 and 2 steps, one system per block or one per warp, did not solve many systems at once, and gave no
times. Here 32 (a warp), 128, any N, and many systems are one call, checked against elimination row after row. In three
dimensions a step solves along x, then y, then z. The check has a known answer: a product of sines stays a product of
sines, and a step divides it by (1 + 4 sin(pi / 2(N+1))^2 / L)^3.

Rows keep their order, as in the source's cyclic reduction, for they are diagonally dominant: pivot="none" says so.
In every row the neighbours add up to t = 2 / (2 + L) of the diagonal, so parprims promises 8 ceil(log2 n) / (1 - t)
units in the last place of max |x| for a solve. Elimination, done here in float64, errs by as much at most. No solve
enlarges the largest number or an error: all errors are counted relative to the largest number at the start.
"""

import functools
import math
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=10, cpu=64, cuda=384)
L, STEPS = 1.0, 2


def bound(n: int, solves: int, dtype: str) -> float:
    """Return the allowed error of the solution, relative to the largest number at the start."""
    return solves * 8 * math.ceil(math.log2(n)) * (2 + L) / L * float(np.finfo(dtype).eps)


def by_elimination(x: np.ndarray) -> np.ndarray:
    """Return the solution of (2 + L) y[n] - y[n-1] - y[n+1] = L x[n] along the last axis, row after row."""
    n = x.shape[-1]
    upper, y = np.zeros(n), np.empty_like(x)
    for i in range(n):
        pivot = 2 + L + (upper[i - 1] if i else 0)
        upper[i] = -1 / pivot
        y[..., i] = (L * x[..., i] + (y[..., i - 1] if i else 0)) / pivot
    for i in reversed(range(n - 1)):
        y[..., i] -= upper[i] * y[..., i + 1]
    return y


def implicit(x, /, *, axes: tuple[int, ...] = (-1,), method: str = "auto"):
    """Return x after STEPS implicit steps along each of the axes in turn."""
    for axis in STEPS * axes:
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        # One system for all lines: its coefficients broadcast.
        off = x[tuple(slice(length) for length in shape)] * 0 - 1
        x = parprims.solve_tridiagonal(off, 0 * off + (2 + L), off, L * x, axis=axis, pivot="none", method=method)
    return x


def example(run: common.Run) -> None:
    rng = np.random.default_rng(8)
    many = 4 * run.size
    starts = {
        "source's, N = 128, float64": np.ones((1, 128)),
        "one warp, N = 32, float64": rng.random((1, 32)),
        "any N = 1000, float64": rng.random((1, 1000)),
        f"{many} systems of N = 256, float64": rng.random((many, 256)),
        f"{many} systems of N = 256, float32": rng.random((many, 256), np.float32),
    }
    for name, start in starts.items():
        expected = start.astype(np.float64)
        for _ in range(STEPS):
            expected = by_elimination(expected)

        def check(result, _, start=start, expected=expected):
            x = run.to_numpy(result)
            allowed = bound(x.shape[-1], STEPS, x.dtype) + bound(x.shape[-1], STEPS, "float64")
            return f"middle {x[0, x.shape[1] // 2]:.6f}", common.distance(x, expected) / np.max(start), allowed

        skip = () if name.endswith("float32") or name.startswith("source") else run.shown_already
        run.compare(f"B8 {name}", implicit, (run.asarray(start),), check, skip=skip)

    n = run.size
    wave = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
    start = wave[:, None, None] * wave[:, None] * wave
    top = np.max(start)
    decay = (1 + 4 * math.sin(math.pi / 2 / (n + 1)) ** 2 / L) ** (-3 * STEPS)

    def check_wave(result, _):
        # The sines and their products are rounded too, and a step passes their errors on.
        allowed = bound(n, 3 * STEPS, "float64") + 16 * 2.0**-52
        distances = common.by_pieces(lambda x, old: np.max(abs(x - decay * old)), run.to_numpy(result), start)
        difference = np.max(distances) / top
        return f"middle {float(result[n // 2, n // 2, n // 2]):.6f}", difference, allowed

    in_space = functools.partial(implicit, axes=(0, 1, 2))
    row = f"B8 alternating directions, {n}^3 float64"
    run.compare(row, in_space, (run.asarray(start),), check_wave, skip=run.shown_already)
    profile = run.to_numpy(implicit(run.asarray(np.ones((1, 128)))))[0]
    run.plot(lambda axes: (axes.plot(profile), axes.set(xlabel="n", ylabel=f"x after {STEPS} steps")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
