"""The calls of the short comparison, each at three sizes, with the problems and peers of the long one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import parprims
from benches.core.cases import LIBRARIES, Case, Scale, library
from benches.peers import by_numba
from benches.primitives import banded as bench_banded
from benches.primitives import extrema as bench_extrema
from benches.primitives import filters as bench_filters
from benches.primitives import histogram as bench_histogram
from benches.primitives import matmul as bench_matmul
from benches.primitives import merge as bench_merge
from benches.primitives import order_statistics as bench_order_statistics
from benches.primitives import reduce as bench_reduce
from benches.primitives import scan as bench_scan
from benches.primitives import search as bench_search
from benches.primitives import segments as bench_segments
from benches.primitives import selection as bench_selection
from benches.primitives import sort as bench_sort
from benches.primitives import tridiagonal as bench_tridiagonal

CLASSES = ("small", "medium", "large")


def exponents(scale: Scale) -> tuple[int, ...]:
    """Return for each class of sizes the exponent of two that gives the elements of the first array."""
    return tuple(scale.pick((4, 6, 8), (10, 16, 22), (10, 18, 26)))


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A call of the page at every size: ``make(rng, n)`` poses it with about n elements in its first array.

    Its time grows like n to the ``power``.
    """

    primitive: str
    label: str
    make: Callable[..., Any]
    run: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any]]
    libraries: tuple[str, ...] = LIBRARIES
    power: float = 1.0

    def __str__(self) -> str:
        return self.label

    def case(self, k: int) -> Case:
        """Return the case of 2^k elements, timed as whole calls as Python sees them."""
        return Case(
            self.primitive,
            f"{self.label}, 2^{k}",
            functools.partial(self.make, n=2**k),
            self.run,
            self.peers,
            ceiling=None,
            whole_call=True,
            libraries=self.libraries,
        )


TOP, SEGMENTS, BINS = 10, 100, 256


def largest_by_numpy(np, x):
    places = np.sort(np.argpartition(x, -TOP, axis=1)[:, -TOP:], axis=1)
    places = np.take_along_axis(places, np.argsort(-np.take_along_axis(x, places, 1), axis=1, stable=True), 1)
    return np.take_along_axis(x, places, 1), places


def largest(x, *, method):
    return parprims.top_k(x, TOP, method=method)


def argmax_problem(rng, n):
    return bench_extrema.problem(rng, (n,), None)


def sum_problem(rng, n):
    return bench_reduce.sum_problem(rng, (n,))


def cumulative_sum_problem(rng, n):
    return bench_scan.sum_problem(rng, (n,))


def recurrence_problem(rng, n):
    return bench_scan.recurrence_problem(rng, (n,))


def filter_problem(rng, n):
    return bench_filters.problem(rng, (n,), bench_filters.LOW, "lfilter")


def largest_problem(rng, n):
    return bench_order_statistics.top_problem(rng, (1, n), TOP)


def search_problem(rng, n):
    return bench_search.search_problem(rng, n, max(1, n // 16))


def merge_problem(rng, n):
    return bench_merge.merge_problem(rng, n // 2)


def tridiagonal_problem(rng, n):
    return bench_tridiagonal.random_problem(rng, (n,))


def banded_problem(rng, n):
    return bench_banded.problem(rng, max(8, n // 4), (2, 2))


def product_problem(rng, n):
    side = min(math.isqrt(n), 4096)
    return bench_matmul.random_problem(rng, (side, side, side), "float32")


def banded_by_scipy(_, ab, b):
    from scipy.linalg import solve_banded

    return solve_banded((2, 2), ab, b)


def scan_maximum(x, *, method):
    return parprims.scan(x, "maximum", method=method)


def reduce_affine(a, b, *, method):
    return parprims.reduce((a, b), "affine", method=method)


MAXIMUM = {
    **{name: call for name, call in library(bench_scan.cumulative_maximum).items() if name != "cupy"},
    "numba": lambda _, x: by_numba.maxima(x),
    "cuda.compute": bench_scan.cuda_compute("MAXIMUM", -math.inf),
}
MEDIAN = library(lambda xp, x: xp.median(x))
del MEDIAN["torch"]  # whose median is the lower of the two in the middle

ROWS = (
    Row(
        "sum",
        "sum",
        sum_problem,
        parprims.sum,
        {
            **library(lambda xp, x: xp.sum(x)),
            "numba": lambda _, x: by_numba.total(x),
            **bench_reduce.CUDA_COMPUTE_SUM,
        },
    ),
    Row("vecdot", "vecdot", bench_reduce.vecdot_problem, parprims.vecdot, bench_reduce.VECDOT_PEERS),
    Row("argmax", "argmax", argmax_problem, parprims.argmax, library(lambda xp, x: xp.argmax(x))),
    Row(
        "map_reduce",
        "map_reduce (x-y)^2 z",
        bench_reduce.fused_problem,
        functools.partial(parprims.map_reduce, bench_reduce.fused),
        {
            **library(lambda xp, x, y, z: xp.sum(bench_reduce.fused(x, y, z))),
            "numba": lambda _, x, y, z: by_numba.fused(x, y, z),
        },
    ),
    Row(
        "reduce",
        "reduce of affine maps",
        bench_reduce.affine_problem,
        reduce_affine,
        {"jax": bench_reduce.affine_by_jax, "numba": lambda _, a, b: by_numba.affine(a, b)},
    ),
    Row(
        "cumulative_sum",
        "cumulative_sum",
        cumulative_sum_problem,
        parprims.cumulative_sum,
        {
            **library(lambda xp, x: xp.cumsum(x, 0)),
            "numba": lambda _, x: by_numba.cumulative_sum(x),
            "cuda.compute": bench_scan.cuda_compute("PLUS"),
        },
    ),
    Row("scan", "scan by maximum", bench_scan.maximum_problem, scan_maximum, MAXIMUM),
    Row(
        "linear_recurrence",
        "linear_recurrence",
        recurrence_problem,
        parprims.linear_recurrence,
        {"numba": bench_scan.by_numba_loop, "jax": bench_scan.by_associative_scan},
    ),
    Row(
        "lfilter",
        "lfilter of order 4",
        filter_problem,
        parprims.lfilter,
        {"scipy": bench_filters.by_scipy("lfilter"), "cupyx": bench_filters.by_cupyx("lfilter")},
    ),
    Row(
        "sort",
        "sort",
        functools.partial(bench_sort.sort_problem, dtype="float32"),
        parprims.sort,
        bench_sort.SORT,
    ),
    Row(
        "argsort",
        "argsort",
        functools.partial(bench_sort.argsort_problem, dtype="float32"),
        parprims.argsort,
        bench_sort.ARGSORT,
    ),
    Row(
        "sort_by_key",
        "sort_by_key of int32",
        functools.partial(bench_sort.by_key_problem, dtype="int32"),
        parprims.sort_by_key,
        bench_sort.SORT_BY_KEY,
    ),
    Row(
        "top_k",
        f"top_k of {TOP}",
        largest_problem,
        largest,
        {
            "numpy": largest_by_numpy,
            "torch": lambda torch, x: torch.topk(x, TOP),
            "jax": functools.partial(bench_order_statistics.by_jax, k=TOP),
        },
    ),
    Row("median", "median", bench_order_statistics.median_problem, parprims.median, MEDIAN),
    Row(
        "searchsorted",
        "searchsorted",
        search_problem,
        parprims.searchsorted,
        library(lambda xp, x1, x2: xp.searchsorted(x1, x2), jax=bench_search.by_jax),
    ),
    Row("merge", "merge", merge_problem, parprims.merge, bench_merge.JOINED),
    Row(
        "histogram",
        f"histogram of {BINS} bins",
        functools.partial(bench_histogram.problem, bins=BINS),
        functools.partial(bench_histogram.count, bins=BINS),
        bench_histogram.peers(BINS),
    ),
    Row(
        "segment_reduce",
        f"segment_reduce to {SEGMENTS} sums",
        functools.partial(bench_segments.by_numbers, segments=SEGMENTS),
        functools.partial(parprims.segment_reduce, num_segments=SEGMENTS),
        {
            name: functools.partial(call, segments=SEGMENTS, op="add")
            for name, call in (
                ("numpy", bench_segments.by_numpy),
                ("torch", bench_segments.by_torch),
                ("cupy", bench_segments.by_cupy),
                ("jax", bench_segments.by_jax),
            )
        },
    ),
    Row(
        "select",
        "select of a half",
        functools.partial(bench_selection.select_problem, share=0.5),
        bench_selection.kept,
        library(lambda _, x, mask: x[mask]),
        bench_selection.EAGER,
    ),
    Row(
        "unique",
        "unique of int32",
        functools.partial(bench_selection.unique_problem, distinct=1000),
        bench_selection.once,
        library(lambda xp, x: xp.unique(x)),
        bench_selection.EAGER,
    ),
    Row(
        "solve_tridiagonal",
        "solve_tridiagonal",
        tridiagonal_problem,
        parprims.solve_tridiagonal,
        {
            **bench_tridiagonal.PEERS,
            "scipy": bench_tridiagonal.by_scipy,
            "numba": bench_tridiagonal.by_numba_loop,
        },
    ),
    Row(
        "solve_banded",
        "solve_banded of float64",
        banded_problem,
        functools.partial(parprims.solve_banded, (2, 2)),
        {"scipy": banded_by_scipy},
    ),
    Row("matmul", "matmul", product_problem, parprims.matmul, bench_matmul.PEERS, power=1.5),
)
