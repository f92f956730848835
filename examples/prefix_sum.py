"""Prefix sum: the sum before each of 10^8 integers 0 to 999, and the digits that float32 loses there.

In float64 every sum is an integer below 2^53, so all methods must give the exact answer. In float32 a sum is exact only
up to 2^24. Beyond, the error grows with the number of roundings of a term: n if numbers are added one after another,
about log n by a tree. Each rounding errs by at most half a unit in the last place of the sum, so
`additions` below bounds the error; the documentation of parprims.scan states these numbers. The remedy costs one
argument: dtype=float64 reads float32 and adds in float64.

The source reported 500 ms with a block's shared memory and 360 ms with shuffles, for 10^8 numbers in float64.
"""

import functools
import math
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=60_000, cpu=4_000_000, cuda=100_000_000)


def additions(method: str, n: int) -> float:
    """Return how many additions a term passes at most."""
    return {"array": 4 * math.log2(n), "kernel": n / 256 + 100, "native": n}[method]


def example(run: common.Run) -> None:
    n, xp = run.size, run.xp
    numbers = np.random.default_rng(9).integers(0, 1000, n)
    exact = np.cumsum(numbers) - numbers
    reported = "360 to 500 ms" if n == 10**8 else ""
    exclusive = functools.partial(parprims.scan, exclusive=True)

    def check(result, _):
        result = run.to_numpy(result)
        return f"last {result[-1]:.0f}", common.distance(result, exact), 0

    run.compare(f"B9 float64, {n}", exclusive, (run.asarray(numbers.astype(np.float64)),), check, reported=reported)

    x = run.asarray(numbers.astype(np.float32))

    def rounded(result, method):
        result = run.to_numpy(result)
        errors = common.by_pieces(lambda one, other: np.max(abs(one - other) / np.maximum(other, 1)), result, exact)
        return f"last {result[-1]:.0f}, exact {exact[-1]}", np.max(errors), additions(method, n) * 2.0**-24

    run.compare(f"B9 float32, {n}", exclusive, (x,), rounded)
    wide = functools.partial(exclusive, dtype=xp.float64)
    run.compare(f"B9 float32 added in float64, {n}", wide, (x,), check, skip=run.shown_already)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
