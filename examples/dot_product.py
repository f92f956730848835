"""Vector and matrix basics: the dot product of 0, 1, ..., N - 1 with 2, 2, ..., 2, and a small matrix product.

The answer is N (N - 1). Every partial sum is an integer that the dtype holds exactly, so in any order of additions
the result must be equal, not close. The source took N = 1024, added partial sums over a stride of the
grid, then by a tree in a block's shared memory; it gave no times. Its matrix product is of 4 x 4 matrices in tiles
of 2, here of integers and as exact.
"""

import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=10_000, cpu=10_000_000, cuda=90_000_000)


def example(run: common.Run) -> None:
    for n in (1024, run.size):
        dtype = "float32" if n * (n - 1) <= 2**24 else "float64"
        if n * (n - 1) > 2**53:
            raise SystemExit(f"--size must be below 94906266, or float64 does not hold the answer; got {n}")
        x, y = run.asarray(np.arange(n, dtype=dtype)), run.asarray(np.full(n, 2, dtype))

        def check(result, _, n=n):
            return f"{float(result):.0f}", abs(float(result) - n * (n - 1)), 0

        run.compare(f"E1 dot product, {n} {dtype}", parprims.vecdot, (x, y), check)

    a, b = np.arange(16).reshape(4, 4), np.arange(16)[::-1].reshape(4, 4) - 7
    expected = [[sum(int(a[i, k]) * int(b[k, j]) for k in range(4)) for j in range(4)] for i in range(4)]
    for name, tile in (("whole", None), ("in tiles of 2", 2)):
        product = run.to_numpy(parprims.matmul(run.asarray(a), run.asarray(b), tile=tile))
        difference = np.max(abs(product - np.array(expected)))
        run.report(f"E2 matrix product of 4 x 4, {name}", f"trace {np.trace(product)}", difference, 0)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
