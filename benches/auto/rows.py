"""The rows of the table of calls: sizes, axes and dtypes on the arrays of each library."""

from __future__ import annotations

from collections.abc import Iterator

from benches.auto import calls_programs, calls_reduce, calls_scan, calls_solve, calls_sort
from benches.auto.calls import Call

EVERY_ROW = (calls_reduce.sum_call, calls_scan.cumulative_sum_call, calls_scan.recurrence_call, calls_sort.sort_call)

ROWS = {
    "numpy": (
        ((100,), 0, "float64"),
        ((100,), 0, "int32"),
        ((10**4,), 0, "float32"),
        ((10**4,), 0, "int64"),
        ((2**17,), 0, "uint8"),
        ((2**20,), 0, "float64"),
        ((2**20,), 0, "int64"),
        ((2**24,), 0, "float32"),
        ((64, 2**14), 0, "float64"),
        ((64, 2**14), 1, "float32"),
        ((2**14, 64), 0, "float32"),
        ((2**14, 64), 1, "int64"),
        ((2**20, 3), 0, "float64"),
        ((1000, 10), 1, "int32"),
        ((64, 128, 128), 0, "float64"),
        ((64, 128, 128), 1, "int32"),
        ((64, 128, 128), 2, "float32"),
    ),
    "torch": (
        ((100,), 0, "float32"),
        ((10**4,), 0, "float64"),
        ((2**20,), 0, "float32"),
        ((2**20,), 0, "int64"),
        ((2**24,), 0, "float32"),
        ((64, 2**14), 0, "float32"),
        ((64, 2**14), 1, "float64"),
        ((64, 128, 128), 1, "float32"),
    ),
    "jax": (
        ((100,), 0, "float32"),
        ((10**4,), 0, "float64"),
        ((2**20,), 0, "float32"),
        ((2**20,), 0, "int64"),
        ((64, 2**14), 0, "float32"),
        ((64, 2**14), 1, "float64"),
    ),
}

QUICK_ROWS = (((100,), 0, "float64"), ((10**4,), 0, "float32"), ((64, 256), 0, "float64"), ((64, 256), 1, "int64"))


def others(family: str, quick: bool) -> Iterator[Call]:
    """Yield the calls beside those of the rows."""
    long, square = (2**12, (64, 256)) if quick else (2**20, (64, 2**14))
    for n in (100, long):
        yield calls_reduce.vecdot_call(n)
        yield calls_reduce.argmax_call((n,), 0)
        yield calls_scan.maximum_call((n,), 0, "float64")
        yield calls_scan.constant_call((n,), 0, "float64")
        yield calls_sort.argsort_call((n,), 0, "float64")
        yield calls_sort.histogram_call(n)
        yield calls_sort.searchsorted_call(n)
        yield calls_sort.merge_call(n)
    yield calls_reduce.argmax_call(square, 0)
    yield calls_scan.maximum_call(square, 1, "float32")
    yield calls_scan.constant_call(square, 1, "float32")
    yield calls_sort.argsort_call(square, 1, "int64")
    yield calls_sort.sort_by_key_call(long // 4)
    yield calls_solve.tridiagonal_call((100,), 0, "float64")
    yield calls_solve.tridiagonal_call((long // 16,), 0, "float64")
    yield calls_solve.tridiagonal_call((2**12 if not quick else 32, 128), 1, "float64")
    yield calls_solve.tridiagonal_call((128, 2**12 if not quick else 32), 0, "float32")
    for n in (16,) if quick else (16, 256, 512):
        yield calls_solve.matmul_call(n, "int64")
    for n in (16,) if quick else (64, 512):
        yield calls_solve.matmul_call(n, "float32")
    yield calls_solve.shortest_call(32 if quick else 256)
    yield calls_reduce.fused_call(long)
    if family != "numpy":
        yield calls_scan.gradient_call((long,), 0)
        yield calls_scan.gradient_call((256, long // 256), 0)
        if family == "jax":
            yield from calls_programs.calls(quick)
        return
    yield calls_reduce.max_call(long)
    yield calls_reduce.all_call(long)
    for n in (100, long):
        yield calls_reduce.affine_call(n)
    yield calls_reduce.welford_call(long)
    yield calls_scan.exclusive_call(long)
    yield calls_scan.argmaxima_call(long)
    yield calls_scan.logaddexp_call(long // 4)
    yield calls_scan.ewm_call(100)
    yield calls_scan.ewm_call(long)
    yield calls_scan.constant_call(square, 0, "float64")
    yield calls_scan.maximum_call(square, 0, "int64")
    yield calls_sort.argsort_call((10**4,), 0, "float32")
    yield calls_sort.argsort_call((long,), 0, "int32")
    yield calls_sort.histogram_call(long // 64)
    yield calls_sort.weighted_histogram_call(long)
    yield calls_sort.integer_histogram_call(long)
    yield calls_solve.matmul_call(32 if quick else 256, "int32")
    yield calls_solve.matmul_call(32 if quick else 256, "uint8")
    yield calls_reduce.fused_call(100)


def calls(family: str, quick: bool) -> list[Call]:
    """Return the calls on arrays of one library."""
    rows = QUICK_ROWS if quick else ROWS[family]
    return [*(make(*row) for row in rows for make in EVERY_ROW), *others(family, quick)]
