"""What memory a call takes besides its inputs and its result is what its docstring says, as NumPy's is counted."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parprims
from parprims._dispatch import composite
from tests.fuzz.run import FUNCTIONS

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
@pytest.mark.parametrize(("way", "sizes"), [("array", 5), ("native", 3)])
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


HUGE = 2**40
"""Elements of arrays that are in no memory."""


def asked(huge, few):
    """Yield calls of every public function as (function, arguments, options).

    The calls are not the examples of the declarations: their arrays are larger than any memory, so they have no values
    and their shapes choose the code that a method runs. ``huge`` makes such an array of a shape, and of a dtype other
    than the test's if one is given; ``few`` makes an array of numbers.
    """
    row, square, cube, mask = huge(HUGE), huge(2**20, 2**20), huge(2**10, 2**20, 2**10), huge(HUGE, dtype="bool")
    ids, weights, offsets = huge(HUGE, dtype="int64"), huge(HUGE, dtype="float32"), few([0, 5, HUGE])
    blocks, coefficients = huge(2**36, 2, 2), few([1, 1, 1], row.dtype)
    first, own = {"axis": 0}, parprims.Operator(lambda one, other: one + other, identity=0)
    lines = (
        "argmax argmin argsort cumulative_logsumexp cumulative_max cumulative_min cumulative_prod cumulative_sum "
        "max median min prod reduce scan sort sum"
    )
    for name in ("all any run_lengths unique " + lines).split():
        yield name, (row,), {}
    for name in lines.split():
        yield name, (square,), first
    for name in "all any max median min prod reduce sum".split():
        yield name, (cube,), {"axis": (0, 2), "keepdims": True}
    for name in "argpartition partition top_k".split():
        yield name, (square, 3), first
        yield name, (row, HUGE // 2), {}
    for name in "linear_recurrence merge sort_by_key vecdot".split():
        yield name, (row, row), {}
        yield name, (square, square), first
        yield name, (square, huge(2**20, 2**20, dtype="float32")), first
    for name in "argsort reduce scan sort".split():
        yield name, (row,), {"offsets": offsets}
    for name in "linear_recurrence sort_by_key".split():
        yield name, (row, row), {"offsets": offsets}
    for op in ("add", "argmax", own):
        x = (row, ids) if op == "argmax" else row
        yield "reduce", (x, op), {}
        yield "scan", (x, op), {"exclusive": op != "argmax", "reverse": True, **({"initial": 0} if op is own else {})}
        yield "segment_reduce", (x, ids, 4), {"op": op}
        yield "segment_reduce", (x, huge(HUGE, dtype="int32"), 2**20), {"op": op}
    yield "segment_reduce", (huge(2**35, 32), ids_of_rows := huge(2**35, dtype="int32"), 2**20), {}
    yield "segment_reduce", (huge(2**35, 32), ids_of_rows, 4), {"indices_are_sorted": True}
    yield "cumulative_max", (square,), {"return_indices": True, **first}
    yield "sort", (row,), {"descending": True}
    yield "top_k", (row, 3), {"mode": "smallest"}
    yield "quantile", (row, 0.3), {}
    yield "quantile", (cube, (0.3, 0.5)), {"axis": (0, 2), "interpolation": "nearest"}
    yield "map_reduce", (lambda x: x * x, row), {}
    yield "map_reduce", (lambda x, y: x * y, square, huge(2**20)), first
    yield "map_reduce", (lambda x: x * x, row), {"offsets": offsets}
    yield "map_reduce", (lambda x, y: x * y, square, huge(2**20)), {"offsets": few([0, 5, 2**20]), **first}
    yield "linear_recurrence", (few(1, row.dtype), square), {"reverse": True, **first}
    yield "linear_recurrence", (huge(2**30, 3, 3), huge(2**30, 3)), {"matrices": True, **first}
    yield "merge_by_key", (row,) * 4, {}
    yield "searchsorted", (row, row), {}
    yield "searchsorted", (row, row), {"sorter": ids}
    yield "searchsorted", (coefficients, row), {"side": "right"}
    yield "histogram", (row, 3), {}
    yield "histogram", (row, 3), {"range": (0.0, 1.0), "weights": weights, "density": True}
    yield "histogram", (row, few([0.0, 1.0, 3.0])), {"weights": weights}
    for name in ("partition_by", "select"):
        yield name, (row, mask), {}
        yield name, (square, huge(2**20, 2**20, dtype="bool")), {}
    for name, arguments in (("select", (row, mask)), ("run_lengths", (row,)), ("unique", (square,))):
        yield name, arguments, {"size": 4}
    for x, options in ((row, {}), (square, first)):
        yield "lfilter", (coefficients, coefficients, x), options
        yield "lfilter", (coefficients, coefficients[:1], x), options
        yield "sosfilt", (few([[1, 1, 1, 1, 1, 1]] * 2, row.dtype), x), options
    yield "lfilter", (coefficients, coefficients, square), {"zi": huge(2**20, 2)}
    yield "matmul", (square, square), {}
    yield "matmul", (row, row), {}
    yield "matmul", (huge(2**20, 2**10, 2**10),) * 2, {}
    yield "matmul", (square, square), {"add": "maximum", "multiply": "add"}
    yield "solve_banded", ((0, 1), huge(2, 2**38), huge(2**38)), {}
    yield "solve_banded", ((1, 1), huge(3, 2**38), huge(2**38, 2)), {}
    yield "solve_banded", ((2, 2), huge(5, 2**38), huge(2**38)), {}
    yield "solve_block_tridiagonal", (blocks, blocks, blocks, huge(2**36, 2)), {}
    yield "solve_block_tridiagonal", (blocks, blocks, blocks, huge(2**36, 2, 3)), {}
    yield "solve_tridiagonal", (row,) * 4, {}
    yield "solve_tridiagonal", (square,) * 4, {"return_status": True, "periodic": True}
    yield "solve_tridiagonal", (*(huge(2**38),) * 3, huge(2**38, 3)), {"transpose": True, "pivot": "none"}


def arrays_in_no_memory(backend, dtype):
    """Return what makes the arrays of `asked`: each is one element, or on JAX is looked at in its shape alone."""
    xp = backend.xp

    def huge(*shape, dtype=dtype):
        return composite.stand_in(xp, xp.asarray(0), shape, getattr(xp, dtype))

    def few(numbers, dtype=None):
        return xp.asarray(numbers) if dtype is None else xp.asarray(numbers, dtype=dtype)

    return huge, few


def is_in_no_memory(backend, x):
    """Return whether an array has one element in memory."""
    if backend.name == "jax":
        return np.asarray(x).size == 1
    return not any(x.stride() if backend.name == "torch" else x.strides)


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint16", "float32"])
def test_asking(backend, dtype):
    """What `methods` is told of takes no memory that grows with it: a copy of one array would fail for want of it."""
    if backend.name not in ("numpy", "torch", "jax"):
        pytest.skip("stands in for a library that is asked too")
    huge, few = arrays_in_no_memory(backend, dtype)
    assert is_in_no_memory(backend, huge(2**20, 2**20))
    names, served = set(), set()
    for name, arguments, options in asked(huge, few):
        names.add(name)
        function = getattr(parprims, name)
        try:
            found = parprims.methods(function, *arguments, **options)
        except (TypeError, ValueError) as error:  # of a dtype that the function does not take
            assert "dtype" in str(error), (name, options)  # noqa: PT017
            continue
        if None in found.values():
            served.add(name)
        if backend.name == "jax":  # where any look at the elements has failed
            continue
        tracemalloc.start()
        try:
            parprims.methods(function, *arguments, **options)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < 200_000, (name, options)
    assert {*names, "check_associative"} == set(FUNCTIONS)
    if dtype == "float32":
        assert served == names


def test_positions_are_written_piece_by_piece():
    """Neither by array nor by kernel are there as many positions as elements."""
    x = np.broadcast_to(np.float32(1), (2**24,))
    for way in ("array", "kernel"):
        try:
            assert peak(lambda: parprims.argmax(x, method=way)) * N <= 24 * 2**20  # noqa: B023
        except parprims.MethodRefused:
            assert way == "kernel"
