"""Running sums with the same bits everywhere: integers on a grid, their scan, and floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from parprims._core.arrays import Array, Namespace, device, dtype_kind, dtype_name
from parprims._dispatch.composite import Part, stand_in
from parprims._dispatch.primitive import Arguments
from parprims._primitives.reproducible.call import (
    OnGrid,
    Plain,
    as_terms,
    check_count,
    check_real,
    check_sum,
    each_integer,
    each_rounded,
    largest_finite,
    tops_of,
)
from parprims._primitives.scan.call import checked as checked_scan
from parprims._primitives.scan.public import cumulative_sum


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
    (top,) = tops_of(xp, found, [x.dtype])

    def scanned(words: Array) -> Array:
        result: Array = cumulative_sum(words, axis=c.axis, include_initial=c.include_initial, method=method)
        return result

    sums = tuple(map(scanned, each_integer(xp, c.grid, x, top)))
    return each_rounded(xp, c.grid, top, sums, dtype=dtype)


# ---- Derivatives ------------------------------------------------------------------------------------------------


def plain(c: RunningSum) -> Callable[..., Array]:
    """Return the running sum of floats as a function of the array of a call, which has the derivative."""
    ((_, dtype),) = c.results
    axis, include_initial = c.axis, c.include_initial

    def total(x: Array) -> Array:
        result: Array = cumulative_sum(x, axis=axis, dtype=dtype, include_initial=include_initial)
        return result

    return total
