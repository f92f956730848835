"""Running sums with the same bits everywhere: integers on a grid, their scan, and floats."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from parprims._core.arrays import Array, Namespace, device, dtype_kind, dtype_name, namespace_of
from parprims._core.layout import row_major
from parprims._cuda import Plan
from parprims._dispatch.composite import Part, stand_in
from parprims._dispatch.primitive import Arguments
from parprims._operators.foreign.names import Dtype
from parprims._operators.operator import Operator
from parprims._primitives.reproducible import grid
from parprims._primitives.reproducible.call import (
    OnGrid,
    Plain,
    as_terms,
    check_count,
    check_real,
    check_sum,
    each_integer,
    each_rounded,
    in_kernels,
    largest_finite,
    of_lines,
    on_grid,
    tops_of,
)
from parprims._primitives.reproducible.grid import Grid, Top, maps
from parprims._primitives.scan import cuda
from parprims._primitives.scan.call import checked as checked_scan
from parprims._primitives.scan.public import cumulative_sum
from parprims._primitives.scan.source import Functions, Mapped, specialisation
from parprims._primitives.scan.tiling import TUNING


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunningSum(OnGrid):
    """A checked running sum of real floats along ``axis``. It begins with the empty sum if ``include_initial``."""

    axis: int
    include_initial: bool


def checked(asked: Arguments) -> tuple[Namespace, RunningSum | Plain]:
    """Return the namespace and the checked call."""
    xp, s = checked_scan(asked)
    check_sum(s.op, None, single=True)
    (dtype,) = s.dtypes
    if dtype_kind(dtype) not in ("float", "complex"):
        return xp, Plain(asked)
    for name in ("exclusive", "reverse"):
        if asked[name]:
            raise ValueError(f"{name} must be False with reproducible")
    if asked["initial"] is not None:
        raise ValueError("initial must be None with reproducible")
    working, n = check_real(xp, dtype), s.shape[s.axis]
    check_count(n)
    x = as_terms(xp, s.inputs[0], working)
    shape = (*s.shape[: s.axis], s.n, *s.shape[s.axis + 1 :])
    return xp, RunningSum(
        arrays=(x,),
        key=asked.key_of(x),
        results=((shape, dtype),),
        single=True,
        axis=s.axis,
        include_initial=asked["include_initial"],
        terms=n,
        working=dtype_name(working),
    )


def parts(xp: Namespace, c: RunningSum, method: str) -> list[Part]:
    """Return the scan of integers, which decides on the method."""
    del method
    x = stand_in(xp, c.arrays[0], tuple(c.arrays[0].shape), xp.int64)
    return [(cumulative_sum, (x,), {"axis": c.axis, "include_initial": c.include_initial})]


def compute(xp: Namespace, c: RunningSum, method: str) -> Array:
    """Return the running sums by a method."""
    ((shape, dtype),) = c.results
    (x,) = c.arrays
    if 0 in x.shape:
        return xp.zeros(shape, dtype=dtype, device=device(x))
    found = largest_finite(xp, x, (c.axis,), method)
    if method == "kernel" and in_kernels(xp, c.arrays):
        return _in_one_scan(xp, c, found)
    (top,) = tops_of(xp, found, [x.dtype])

    def scanned(words: Array) -> Array:
        result: Array = cumulative_sum(words, axis=c.axis, include_initial=c.include_initial, method=method)
        return result

    sums = tuple(map(scanned, each_integer(xp, c.grid, x, top)))
    return each_rounded(xp, c.grid, top, sums, dtype=dtype)


# ---- By one kernel for GPUs -------------------------------------------------------------------------------------


def _in_one_scan(xp: Namespace, c: RunningSum, found: tuple[Array, ...]) -> Array:
    """Return the running sums by a scan that makes integers of elements, and floats of sums of integers."""
    (x,) = c.arrays
    name = dtype_name(x.dtype)
    factors = of_lines(functools.partial(_factors, dataclasses.astuple(c.grid), name), found, (c.axis,))
    scan = Mapped(
        arrays=(x, *factors),
        functions=_functions(c.grid, name, c.dtype),
        shape=tuple(x.shape),
        axis=c.axis,
        n=c.results[0][0][c.axis],
    )
    result: Array = cuda.prepare(xp, scan)(*scan.arrays)
    return result


def _factors(on: tuple[int, ...], dtype: str, found: Any) -> tuple[Any, ...]:
    """Return the factors of elements, and two of results, given the largest magnitudes of lines."""
    xp, own = namespace_of(found), Grid(*on)
    top = Top.of(xp, found, Dtype(dtype))
    of_results = grid.halves(xp, top.exponent - (own.first + own.second))
    return *on_grid(xp, own, (), [top], in_kernel=True), *of_results


@functools.cache
def _functions(on: Grid, dtype: str, result_dtype: str) -> Functions:
    """Return the functions of the scan, for arrays and results of these dtypes."""
    integers = maps(on, False).each

    def element(x: Any, *factors: Any) -> tuple[Any, ...]:
        xp = namespace_of(x)
        finite = xp.isfinite(x)
        number = xp.where(finite, x, xp.zeros_like(x))
        flags = xp.where(x > 0, xp.ones_like(x), xp.where(x < 0, xp.full_like(x, 2.0), xp.full_like(x, 3.0)))
        flags = xp.where(finite, xp.zeros_like(x), flags)
        return *[one(number, *factors[:-2]) for one in integers], xp.astype(flags, xp.int32)

    def combine(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        words = [one + other for one, other in zip(earlier[:-1], later[:-1], strict=True)]
        return *words, earlier[-1] | later[-1]

    def result(*given: Any) -> tuple[Any]:
        words, flags, factors = given[: on.words], given[on.words], given[-2:]
        xp = namespace_of(flags)
        found = grid.nearest_by_factors(xp, on, words, factors, dtype=Dtype(result_dtype))
        infinite = xp.where(flags == 1, xp.full_like(found, math.inf), xp.full_like(found, -math.inf))
        return (xp.where(flags == 0, found, xp.where(flags == 3, xp.full_like(found, math.nan), infinite)),)

    return Functions(
        op=Operator(combine, identity=(0,) * (on.words + 1), commutative=True, name="add", components=on.words + 1),
        states=(*("int64",) * on.words, "int32"),
        inputs=("float64" if dtype == "float64" else "float32", *("float64",) * (on.words + 2)),
        output=result_dtype,
        element=element,
        result=result,
    )


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of the scans, for arrays of each layout."""
    from array_api_compat import numpy as xp

    for dtype in ("float16", "float32", "float64"):
        for shape, axis in (((1 << 24,), 0), ((512, 20_000), 1), ((1 << 16, 40), 1), ((1 << 14, 128), 0)):
            on = Grid.of("float64" if dtype == "float64" else "float32", shape[axis])
            functions, lines = _functions(on, dtype, dtype), (*shape[:axis], 1, *shape[axis + 1 :])
            for more in (0, 1):
                scan = Mapped(arrays=(), functions=functions, shape=shape, axis=axis, n=shape[axis] + more)
                inputs = (dtype, *("float64",) * (on.words + 2))
                shapes = (shape, *(lines,) * (on.words + 2))
                geometry = cuda.Geometry(
                    shape=shape,
                    axis=axis,
                    reverse=False,
                    n=scan.n,
                    shapes=shapes,
                    layouts=tuple([(row_major(one), 0) for one in shapes]),
                )
                plan = cuda.make_plan(specialisation(xp, scan, inputs, ()), TUNING[90], geometry)
                assert plan is not None
                yield f"running sum {dtype}{' include_initial' * more}", plan


# ---- Derivatives ------------------------------------------------------------------------------------------------


def plain(c: RunningSum) -> Callable[..., Array]:
    """Return the running sum of floats as a function of the array of a call, which has the derivative."""
    ((_, dtype),) = c.results
    axis, include_initial = c.axis, c.include_initial

    def total(x: Array) -> Array:
        result: Array = cumulative_sum(x, axis=axis, dtype=dtype, include_initial=include_initial)
        return result

    return total
