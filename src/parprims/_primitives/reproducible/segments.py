"""Sums of segments with the same bits everywhere. The grid of a segment is of its own largest magnitude."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from parprims._core.arrays import Array, Namespace, device, dtype_bits, dtype_kind, dtype_name
from parprims._dispatch.composite import Part, stand_in
from parprims._dispatch.primitive import Arguments
from parprims._primitives.reduce.public import reduce
from parprims._primitives.reproducible import grid
from parprims._primitives.reproducible.call import (
    OnGrid,
    Plain,
    as_terms,
    check_count,
    check_real,
    check_sum,
    factors_of,
    in_kernels,
    integers_of,
    on_grid,
    sums_of,
)
from parprims._primitives.reproducible.grid import MAGNITUDES, Top, maps
from parprims._primitives.search.public import searchsorted
from parprims._primitives.segments.call import Wider, checked_by_ids, checked_by_offsets
from parprims._primitives.segments.public import segment_reduce
from parprims._primitives.sort.call import bits


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SegmentSums(OnGrid):
    """A checked call: real floats, then offsets, or ids if ``by_ids``."""

    axis: int
    segments: int
    by_ids: bool
    in_order: bool


def checked(asked: Arguments) -> tuple[Namespace, SegmentSums | Plain]:
    """Return the namespace and the checked call."""
    by_ids = asked.name == "segment_reduce"
    check = checked_by_ids if by_ids else checked_by_offsets
    xp, s = check(asked)
    dtype = None
    if isinstance(s, Wider):
        dtype = s.combination.dtypes[0]
        xp, s = check(asked.on(asked.arrays, dtype=xp.float32))
    assert not isinstance(s, Wider)
    check_sum(s.op, asked["initial"], single=s.single)
    dtype = s.dtypes[0] if dtype is None else dtype
    if dtype_kind(dtype) not in ("float", "complex"):
        return xp, Plain(asked)
    working, n = check_real(xp, dtype), s.arrays[0].shape[s.axis]
    check_count(n)
    arrays = as_terms(xp, s.arrays[0], working), s.arrays[1]
    ((shape, _),) = s.results
    return xp, SegmentSums(
        arrays=arrays,
        key=None if s.key is None else asked.key_of(*arrays),
        complete=s.complete,
        results=((shape, dtype),),
        single=True,
        axis=s.axis,
        segments=s.segments,
        by_ids=by_ids,
        in_order=s.in_order,
        terms=n,
        working=dtype_name(working),
    )


def _reduction(c: SegmentSums, values: Array, where: Array, op: str) -> Part:
    """Return a reduction of the segments as a function, its arguments and its options."""
    if c.by_ids:
        return segment_reduce, (values, where, c.segments, op), {"axis": c.axis, "indices_are_sorted": c.in_order}
    return reduce, (values, op), {"axis": c.axis, "offsets": where, "check": False}


def parts(xp: Namespace, c: SegmentSums, method: str) -> list[Part]:
    """Return the reductions of integers, which decide on the method."""
    del method
    x, where = c.arrays
    return [_reduction(c, stand_in(xp, x, tuple(x.shape), xp.int64), where, op) for op in ("add", "maximum")]


def compute(xp: Namespace, c: SegmentSums, method: str) -> Array:
    """Return the sums by a method."""
    ((shape, dtype),) = c.results
    x, where = c.arrays
    if 0 in x.shape or 0 in shape:
        return xp.zeros(shape, dtype=dtype, device=device(x))

    def reduced(values: Array, op: str) -> Array:
        function, arguments, options = _reduction(c, values, where, op)
        result: Array = function(*arguments, method=method, **options)
        return result

    found = reduced(MAGNITUDES[dtype_bits(x.dtype)](bits(xp, x)), "maximum")
    ids = where if c.by_ids else _ids(xp, c)
    ids = xp.clip(xp.astype(ids, xp.int64), 0, c.segments - 1)

    def of_elements(values: Array) -> Array:
        return xp.take(values, ids, axis=c.axis)

    if in_kernels(xp, c.arrays, method):
        factors = tuple(map(of_elements, factors_of(c.grid, dtype_name(x.dtype), found)))
        totals = tuple([reduced(one, "add") for one in integers_of(c.grid, x, factors)])
        return sums_of(c.grid, dtype, found, totals, of=dtype_name(x.dtype))
    top = Top.of(xp, found, x.dtype)
    spread = Top(of_elements(top.exponent), of_elements(top.finite))
    given = on_grid(xp, c.grid, (x,), [spread], in_kernel=False)
    totals = tuple([reduced(one(*given), "add") for one in maps(c.grid, False).each])
    result = grid.nearest(xp, c.grid, totals, exponent=c.grid.first - top.exponent, dtype=dtype)
    return grid.flagged(xp, result, top.finite, totals[0])


def _ids(xp: Namespace, c: SegmentSums) -> Array:
    """Return the segment of each place of the axis."""
    x, offsets = c.arrays
    n = x.shape[c.axis]
    places = xp.arange(n, dtype=offsets.dtype, device=device(x))
    return searchsorted(offsets, places, side="right") - 1


def plain(c: SegmentSums) -> Callable[..., Array]:
    """Return the sums of floats as a function of the arrays of a call, which has the derivative."""
    ((_, dtype),) = c.results

    def total(x: Array, where: Array) -> Array:
        function, arguments, options = _reduction(c, x, where, "add")
        result: Array = function(*arguments, dtype=dtype, **options)
        return result

    return total
