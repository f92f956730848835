"""The ladder of matrix products: tile by tile in every width, in float32 and float64, beside the vendor's routine.

The matrices of the first problem are A[i,j] = (i - 0.1 j + 1) / (i + j + 1), B[i,j] = (j - 0.2 i + 1) (i + j + 1) /
(i^2 + j^2 + 1), float32, and every element of A B must be within 1e-3 of the product on a CPU, here in float64. Beyond
1024 that is 1e-3 of the element where it is larger than 1: at 2^12 elements reach 2810, sums of as many rounded terms,
and a product by float32 on a CPU is itself off by 2.7e-3. The source took 2^12 and searched tiles of 4 to 32; widths
that a block could not hold gave zeros there without a word, where parprims raises. It reported 184.7 ms with global
memory and 164.0 ms with shared memory at best, copies included, and 1400 s on the CPU.

Others climbed in float64, from packed tiles (13634 ms against the vendor's 11508) over shared memory without bank
conflicts (11333.5 against 11484.9) to tensor cores (2127.6 against 899.0), and compared float32 over sizes from 512
(2.6 ms, the vendor 230 with its start) to 8192 (1574 ms, the vendor 581). Here these matrices hold integers from -9 to
9, whose sums of products are exact in both dtypes in any order: the difference must be 0.
"""

import functools
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=48, cpu=384, cuda=4096)


def first_problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B."""
    i, j = np.arange(n, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64)
    a = (i - 0.1 * j + 1) / (i + j + 1)
    b = (j - 0.2 * i + 1) * (i + j + 1) / (i * i + j * j + 1)
    return a.astype(np.float32), b.astype(np.float32)


def integers(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two matrices of small integers."""
    rng = np.random.default_rng(n)
    return tuple(rng.integers(-9, 10, (n, n)).astype(dtype) for _ in range(2))


def example(run: common.Run) -> None:
    def compare(row, a, b, allowed, call=parprims.matmul, **options):
        expected = a.astype(np.float64) @ b.astype(np.float64)
        unit = (lambda x: np.maximum(1, abs(x))) if len(a) > 1024 else (lambda _: 1)

        def check(result, _):
            c = run.to_numpy(result)
            errors = common.by_pieces(lambda one, other: np.max(abs(one - other) / unit(other)), c, expected)
            return f"corner {c[-1, -1]:.6g}", np.max(errors), allowed

        run.compare(row, call, (run.asarray(a), run.asarray(b)), check, **options)

    n = run.size
    reported = "164.0 ms with copies" if n == 4096 else ""
    too_long = ("array",) if n > 2048 else ()
    compare(f"A {n} x {n} float32", *first_problem(n), 1e-3, reported=reported, skip=too_long)

    searched = min(n, 256)
    native = functools.partial(parprims.matmul, method="native")
    for width in (searched // 4, searched // 2, searched):
        by_tiles = functools.partial(parprims.matmul, tile=width)
        row = f"A {searched} x {searched} float32, tile {width}"
        skip = run.shown_already if width < searched else ()
        compare(row, *first_problem(searched), 1e-3, call=by_tiles, vendor=native, skip=skip)
    for tile in (0, (64, 64)):
        with common.raises(run, f"A impossible tile {tile}", ValueError):
            parprims.matmul(*map(run.asarray, first_problem(8)), tile=tile)

    for size in (size for size in (n // 8, n // 4, n // 2, n, 2 * n) if size >= 48):
        skip = ("array",) if size > n // 2 and n > 48 else run.shown_already
        reported = {512: "2.6 ms", 8192: "1574 ms"}.get(size, "")
        compare(f"D {size} x {size} float32", *integers(size, "float32"), 0, reported=reported, skip=skip)
    compare(f"C {n} x {n} float64", *integers(n, "float64"), 0, skip=too_long)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
