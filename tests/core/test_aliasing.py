"""A result never shares memory with an input, nor with another result: writing into one changes nothing else."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import parprims
from tests.support.contract import compiled_slowly

# One element, one row, one column, nothing along an axis, and more: what a method may be tempted to hand through.
SHAPES = ((1,), (2,), (3,), (1, 1), (3, 1), (1, 3), (2, 3), (3, 0))
DTYPES = ("bool", "int64", "float16", "float32", "complex128")


def first(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return earlier


def last(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return later


KEEP_FIRST, KEEP_LAST = (parprims.Operator(op, name=op.__name__) for op in (first, last))
Calls = Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]
"""Calls as (function, arguments, options)."""


def reductions(x: Any, start: Any) -> Calls:
    """Yield reductions; ``start`` has the shape of x without the last axis."""
    for axis in (None, (), 0, -1):
        for function in ("sum", "prod", "max", "min", "any", "all"):
            yield function, (x,), {"axis": axis, "keepdims": axis == -1}
        for op in ("add", "maximum", "logical_or", "logical_and", KEEP_FIRST, KEEP_LAST):
            yield "reduce", (x, op), {"axis": axis}
            yield "map_reduce", (same, x), {"op": op, "axis": axis}
            if axis == -1:
                yield "reduce", (x, op), {"axis": axis, "initial": start}
        yield "reduce", ((x, x), last), {"axis": axis}


def same(x: Any) -> Any:
    return x


def scans(x: Any, start: Any) -> Calls:
    for axis in (0, -1):
        for op in ("add", "maximum", "logical_or", KEEP_FIRST, KEEP_LAST):
            for options in ({}, {"reverse": True}):
                yield "scan", (x, op), {"axis": axis, **options}
            if axis == -1:
                yield "scan", (x, op), {"axis": axis, "exclusive": True, "initial": start}
        yield "cumulative_sum", (x,), {"axis": axis}
        yield "cumulative_prod", (x,), {"axis": axis, "include_initial": True}
        yield "linear_recurrence", (x, x), {"axis": axis}
        yield "linear_recurrence", (x, x), {"axis": axis, "reverse": True}
    yield "linear_recurrence", (x, x), {"initial": start}


def others(x: Any, start: Any) -> Calls:  # noqa: ARG001
    for axis in (0, -1):
        for options in ({}, {"descending": True}, {"stable": False}):
            yield "sort", (x,), {"axis": axis, **options}
            yield "argsort", (x,), {"axis": axis, **options}
            yield "sort_by_key", (x, x), {"axis": axis, **options}
    for pivot in ("auto", "none"):
        for periodic in (False, True):
            yield "solve_tridiagonal", (x, x, x, x), {"pivot": pivot, "periodic": periodic, "return_status": True}
    yield "vecdot", (x, x), {}
    square = x[..., None] if x.shape[-1] == 1 else x
    yield "matmul", (x, square), {}
    yield "matmul", (x, x), {}
    yield "matmul", (x, x), {"add": "maximum", "multiply": last}
    yield "matmul", (x, x), {"add": KEEP_LAST, "multiply": first}


ALIKE = ("prod", "max", "min", "all", "add", "maximum", "logical_or", "logical_and", KEEP_FIRST)


def alike(function: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether a kernel for CPUs is another's but for the operator in its text, which cannot choose memory.

    Who allocates, and by what way through Python, is the same for ``sum``, ``any`` and KEEP_LAST.
    """
    words = (one for one in (function, *arguments, *options.values()) if isinstance(one, str | parprims.Operator))
    return any(one in ALIKE for one in words)


def memory(backend: Any, x: Any) -> Any:
    """Return the array of bytes that an array holds."""
    if backend.name.startswith("torch"):
        return x.untyped_storage().data_ptr() if x.untyped_storage().nbytes() else None
    if backend.name == "cupy":
        return x.data.mem.ptr if x.size else None
    if backend.name == "array-api-strict":
        x = x._array
    if not isinstance(x, np.ndarray):
        return None  # a scalar, which holds its own
    while x.base is not None and isinstance(x.base, np.ndarray):
        x = x.base
    return x.__array_interface__["data"][0] if x.size else None


class TestAliasing:
    methods: ClassVar = ("array", "native", "kernel")

    @classmethod
    def left_out(cls, _test, given):
        backend, method, dtype = (given[name] for name in ("backend", "method", "dtype"))
        if backend.startswith("jax"):
            return "JAX's arrays cannot be written"
        if method == "auto":
            return "auto takes what is tested by name"
        if backend == "emulated" and method != "kernel":
            return "the emulator has kernels to show"
        compiled_here = method == "kernel" and backend in ("numpy", "torch", "emulated")
        if compiled_here and dtype not in ("float32", *(["bool"] if backend == "emulated" else [])):
            return "kernels take long to compile here, and no kernel hands memory through for its dtype"
        return ""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("calls", [reductions, scans, others], ids=lambda calls: calls.__name__)
    def test_no_memory_is_shared(self, backend, method, calls, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype}")
        by_numba = compiled_slowly(backend, method)
        compiled_here = by_numba or (method == "kernel" and backend.name == "emulated")
        served = 0
        for shape in SHAPES[2:5] if compiled_here else SHAPES:
            given, start = (backend.asarray(np.ones(one, dtype)) for one in (shape, shape[:-1]))
            for function, arguments, options in calls(given, start):
                if by_numba and alike(function, arguments, options):
                    continue
                try:
                    result = getattr(parprims, function)(*arguments, method=method, **options)
                except (TypeError, ValueError, IndexError, parprims.MethodRefused):
                    continue  # the dtype or the shape has no such call
                served += 1
                results = result if isinstance(result, tuple) else (result,)
                places = [place for one in results if (place := memory(backend, one)) is not None]
                inputs = {memory(backend, x) for x in (given, start)}
                what = f"{function} of {shape}, {arguments[1:]} {options}"
                assert not set(places) & inputs, f"shares an input's memory: {what}"
                assert len(set(places)) == len(places), f"shares memory with another result: {what}"
                np.testing.assert_array_equal(backend.to_numpy(given), 1)
        assert served or method == "kernel" or dtype in ("bool", "complex128")
