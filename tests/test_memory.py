"""What memory a call takes besides its inputs and its result is what its docstring says, as NumPy's is counted."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parprims

N = 2**16
"""Elements, so many that what does not grow with them does not count."""


_SMALL = 10_000
"""Bytes for the objects of a call, which do not grow with N."""


def peak(call: Callable[[], Any]) -> float:
    """Return the most bytes that a call has at any time besides its result, for each of N elements."""
    call()  # what is loaded or remembered on the way is not the call's
    tracemalloc.start()
    try:
        result = call()  # noqa: F841
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (most - kept) / N


def elements(dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, N).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float64"])
@pytest.mark.parametrize(("way", "sizes"), [("array", 4), ("native", 3)])
def test_scan(way, sizes, dtype):
    x = elements(dtype)
    with np.errstate(all="ignore"):
        wide = max(4, x.itemsize, parprims.scan(x[:1]).itemsize)
        for options in ({}, {"reverse": True, "exclusive": True}, {"initial": 1}):
            assert peak(lambda: parprims.scan(x, method=way, **options)) <= sizes * wide + 1  # noqa: B023


@pytest.mark.parametrize("dtype", ["int8", "float16", "complex128"])
def test_linear_recurrence(dtype):
    x, a = elements(dtype), np.zeros(N, dtype)
    wide = 4 if dtype == "float16" else x.itemsize
    for options in ({}, {"reverse": True, "initial": 1}):
        assert peak(lambda: parprims.linear_recurrence(a, x, method="array", **options)) <= 6 * wide + 1  # noqa: B023
    if x.dtype.kind in "fc":
        half = np.asarray(0.5, dtype)
        assert peak(lambda: parprims.linear_recurrence(half, x, reverse=True, method="native")) <= 3 * wide + 1


@pytest.mark.parametrize("dtype", ["int16", "float64"])
def test_sort(dtype):
    x = elements(dtype)
    y = x[: N - N // 8]  # rows whose last tile is to be filled up
    for function in (parprims.sort, parprims.argsort, lambda x, **options: parprims.sort_by_key(x, x, **options)):
        for descending in (False, True):
            assert peak(lambda: function(y, descending=descending, method="array")) <= 110  # noqa: B023
    x[::5] = 0  # of x itself then half a copy more
    most = 2 + (x.itemsize if x.dtype.kind == "f" else 0)
    for descending in (False, True):
        assert peak(lambda: parprims.sort(x, descending=descending, method="native")) <= most + 0.1  # noqa: B023
        for function in (parprims.argsort, lambda x, **options: parprims.sort_by_key(x, x, **options)):
            most = 2 * 8 + x.itemsize
            assert peak(lambda: function(x, descending=descending, method="native")) <= most + 0.1  # noqa: B023


@pytest.mark.parametrize("dtype", ["complex128"])
@pytest.mark.parametrize(
    ("way", "pivot", "sizes"), [("array", "partial", 32), ("array", "none", 14), ("native", "partial", 11)]
)
def test_solve_tridiagonal(way, pivot, sizes, dtype):
    x = elements(dtype)
    for periodic in (False, True):
        options = {"method": way, "pivot": pivot, "periodic": periodic}
        solve = parprims.solve_tridiagonal
        assert peak(lambda: solve(x * 0, x * 0 + 4, x * 0, x, **options)) <= (sizes + 3) * x.itemsize + 1  # noqa: B023
        # With the residual and the status: theirs, and the solution.
        most = max(sizes, 17) * x.itemsize + 1
        bands = x * 0, x * 0 + 4
        assert peak(lambda: solve(*bands, bands[0], x, return_status=True, **options)) <= most  # noqa: B023


def test_matmul():
    """By array 1.5 times a tile's products and their sums; by native nothing but what is widened."""
    a = elements("float16").reshape(256, 256)
    tiles = 1.5 * 2**22 * 1.5 + 4 * N
    assert peak(lambda: parprims.matmul(a, a, method="array")) * N <= tiles
    assert peak(lambda: parprims.matmul(a, a, method="native")) * N <= 3 * 4 * N + _SMALL
    b = a.astype(np.float64)
    assert peak(lambda: parprims.matmul(b, b, method="native")) * N <= _SMALL


def test_asking():
    """What `methods` is told of takes no memory that grows with it."""
    n = 2**22
    half, narrow, ids = (np.broadcast_to(np.asarray(1, one), (n,)) for one in ("float16", "int8", "int64"))
    offsets = np.array([0, 5, n])
    for function, arguments, options in (
        (parprims.argmax, (half,), {}),
        (parprims.argmin, (narrow,), {}),
        (parprims.cumulative_max, (half,), {"return_indices": True}),
        (parprims.segment_reduce, (narrow, ids, 4), {}),
        (parprims.reduce, (narrow,), {"offsets": offsets}),
        (parprims.scan, (narrow,), {"offsets": offsets}),
        (parprims.argsort, (half,), {"offsets": offsets}),
        (parprims.map_reduce, (lambda x: x * x, half), {}),
    ):
        most = peak(lambda: parprims.methods(function, *arguments, **options)) * N  # noqa: B023
        assert most < 100_000, function


def test_positions_are_written_piece_by_piece():
    """Neither by array nor by kernel are there as many positions as elements."""
    x = np.broadcast_to(np.float32(1), (2**24,))
    for way in ("array", "kernel"):
        try:
            assert peak(lambda: parprims.argmax(x, method=way)) * N <= 24 * 2**20  # noqa: B023
        except parprims.MethodRefused:
            assert way == "kernel"
