"""The ladder of matrix products: kernel by kernel, tile by tile, in float32 and float64, beside the vendor's routine.

A. The matrices are A[i,j] = (i - 0.1 j + 1) / (i + j + 1), B[i,j] = (j - 0.2 i + 1) (i + j + 1) / (i^2 + j^2 + 1),
float32, and every element of A B must be within 1e-3 of the product on a CPU, here in float64. Beyond 1024 that is 1e-3
of the element where it is larger than 1: at 2^12 elements reach 2810, sums of as many rounded terms, and a product by
float32 on a CPU itself errs by 2.7e-3. The source took 2^12 and searched tiles of 4 to 32; widths that a block could
not hold silently gave zeros there, where parprims raises. It reported 184.7 ms with global memory (naive) and
164.0 ms with shared memory (tiled) at best, copies included, and 1400 s on the CPU.

C. Others climbed in float64, from packed tiles (13634 ms against the vendor's 11508) over shared memory without bank
conflicts (11333.5 against 11484.9) to tensor cores (2127.6 against 899.0). D1 and D4 compared float32 over sizes: a
thread for each element, in blocks of 32 to 512 threads, from 512 (2.6 ms) to 8192 (1574 ms), and the vendor (230 ms
with its start, and 581 ms). Here these matrices hold integers from -9 to 9. Their sums of products are exact in both
dtypes in any order: the difference must be 0.

Last come the precisions of float32 beside a chain of sums, by errors in parts of |A| |B|. A chain of k sums allows
(k + 1) eps; tf32 drops all but 10 fraction bits of both factors, 2^-9 more; highest rounds once, eps / 2.
"""

import functools
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=48, cpu=384, cuda=4096)
GLOBAL, SHARED = "184.7 ms with copies", "164.0 ms with copies"
THREADS = (32, 64, 128, 256, 512)
EPS = 2.0**-23


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


class Rows:
    """The rows of one problem: the product by every method, and by kernels that are named."""

    def __init__(self, run: common.Run, a: np.ndarray, b: np.ndarray, allowed: float, parts: bool = False) -> None:
        self.run, self.allowed = run, allowed
        self.arrays = run.asarray(a), run.asarray(b)
        self.expected = a.astype(np.float64) @ b.astype(np.float64)
        self.unit = np.ones(())
        if parts:
            self.unit = abs(a).astype(np.float64) @ abs(b).astype(np.float64)
        elif allowed and len(a) > 1024:
            self.unit = np.maximum(1, abs(self.expected))
        self.unit = np.broadcast_to(self.unit, self.expected.shape)

    def check(self, result, _) -> tuple[str, float, float]:
        """Return the text of a result, its difference and the allowed difference."""
        c = self.run.to_numpy(result)
        errors = common.by_pieces(lambda x, y, unit: np.max(abs(x - y) / unit), c, self.expected, self.unit)
        return f"corner {c[-1, -1]:.6g}", np.max(errors), self.allowed

    def methods(self, row: str, **options) -> None:
        """Report the product by every method."""
        call = functools.partial(parprims.matmul, **options.pop("arguments", {}))
        self.run.compare(row, call, self.arrays, self.check, **options)

    def kernels(self, rungs: dict, reported: str = "") -> None:
        """Report the product by kernels, given as the rows' names and arguments, beside the library's own."""
        run, calls, found, refusals = self.run, {}, {}, set()
        compiled = {row: run.compile(functools.partial(parprims.matmul, **rung)) for row, rung in rungs.items()}
        run.compile_now(compiled.values(), *self.arrays)
        for row, one in compiled.items():
            one = functools.partial(one, *self.arrays)
            try:
                found[row], calls[row] = one(), one
            except parprims.MethodRefused as refusal:
                if str(refusal) not in refusals:
                    print(f"{row}: {refusal}")
                refusals.add(str(refusal))
        if not calls:
            return
        native = run.compile(functools.partial(parprims.matmul, method="native"))
        vendor, *seconds = run.times(functools.partial(native, *self.arrays), *calls.values())
        for (row, result), time in zip(found.items(), seconds, strict=True):
            run.report(row, *self.check(result, ""), seconds=time, reported=reported, vendor=vendor)


def example(run: common.Run) -> None:
    n = run.size
    too_long = ("array",) if n > 2048 else ()
    rows = Rows(run, *first_problem(n), 1e-3)
    rows.methods(f"A {n} x {n} float32", skip=too_long)
    for kernel, source in (("naive", GLOBAL), ("tiled", SHARED)):
        rungs = {f"A {n} x {n} {kernel} {width}": {"kernel": kernel, "tile": width} for width in (4, 8, 16, 32)}
        rows.kernels(rungs, source if n == 4096 else "")

    searched = min(n, 256)
    rows = Rows(run, *first_problem(searched), 1e-3)
    native = functools.partial(parprims.matmul, method="native")
    for width in (searched // 4, searched // 2, searched):
        row = f"A {searched} x {searched} float32, tile {width}"
        skip = run.shown_already if width < searched else ()
        rows.methods(row, arguments={"tile": width}, vendor=native, skip=skip)
    for options in ({"tile": 0}, {"tile": (64, 64)}, {"kernel": "tiled", "tile": 64}):
        with common.raises(run, f"A impossible {options}", ValueError):
            parprims.matmul(*map(run.asarray, first_problem(8)), **options)

    for size in (size for size in (n // 8, n // 4, n // 2, n, 2 * n) if size >= 48):
        rows = Rows(run, *integers(size, "float32"), 0)
        blocks = THREADS if size <= n else (256,)
        rungs = {f"D1 {size} x {size} naive {one}": {"kernel": "naive", "tile": (one // 32, 32, 1)} for one in blocks}
        rows.kernels(rungs, {512: "2.6 ms", 8192: "1574 ms"}.get(size, ""))
        skip = ("array",) if size > n // 2 and n > 48 else run.shown_already
        reported = {512: "230 ms, the vendor's", 8192: "581 ms, the vendor's"}.get(size, "")
        rows.methods(f"D4 {size} x {size} float32", reported=reported, skip=skip)

    rows = Rows(run, *integers(n, "float64"), 0)
    ladder = enumerate(("packed", "tiled", "conflict_free", "tensor"), 1)
    rows.kernels({f"C{rung} {n} x {n} float64 {kernel}": {"kernel": kernel} for rung, kernel in ladder})
    rows.methods(f"C {n} x {n} float64", skip=too_long)

    k = min(n, 1024)
    normals = np.random.default_rng(0).standard_normal((2, k, k), np.float32)
    chain = (k + 1) * EPS
    Rows(run, *normals, chain, parts=True).kernels({f"chain of sums, {k}": {"kernel": "conflict_free"}})
    for precision, allowed in (("float32", chain), ("tf32", chain + 2.0**-9), ("highest", EPS / 2)):
        rows, row = Rows(run, *normals, allowed, parts=True), f"precision {precision}, {k}"
        rows.methods(row, arguments={"precision": precision}, skip=run.shown_already)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
