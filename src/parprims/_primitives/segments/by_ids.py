"""The methods of scans and recurrences with segment_ids: elements are sorted by segment, and scanned by offsets."""

from __future__ import annotations

from typing import Any

from parprims._core.arrays import Array, Namespace, along, cast, device
from parprims._dispatch.composite import Part, composed, stand_in
from parprims._dispatch.dispatch import Inside
from parprims._primitives.recurrence.public import linear_recurrence
from parprims._primitives.scan.public import scan
from parprims._primitives.search.public import searchsorted
from parprims._primitives.segments.call import Segmented, departs_by_offsets
from parprims._primitives.segments.methods import SCANS, along_axis, chosen, is_recurrence, narrow, narrow_stand_in
from parprims._primitives.sort.call import index_dtype, moved
from parprims._primitives.sort.public import argsort


def _grouped(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the scan of elements that are sorted stably by segment, with results in the places of the elements.

    Elements without a segment are one more segment, whose results are replaced by the elements.
    """
    xs, ids, axis, n = c.arrays[: c.count], c.arrays[c.count], c.axis, c.n
    elements = c.elements(xp)
    alone = elements[1:] if is_recurrence(c) else elements
    if c.segments == 0:
        empty = [xp.zeros(shape, dtype=dtype, device=device(ids)) for shape, dtype in c.results[len(alone) :]]
        ys = (*[xp.astype(x, x.dtype, copy=True) for x in alone], *empty)
        return ys[0] if c.single else ys
    ids = cast(xp, ids, index_dtype(xp))
    outside = (ids < 0) | (ids >= c.segments)
    ids = xp.where(outside, xp.full_like(ids, c.segments), ids)
    outside = along_axis(xp, c, outside)
    if is_recurrence(c):  # elements without a segment do not overflow, which would spoil derivatives
        xs = xp.where(outside, xp.zeros_like(xs[0]), xs[0]), xs[1]
    order = argsort(narrow(xp, ids, c.segments + 1), method=method)
    wanted = xp.arange(c.segments + 1, dtype=ids.dtype, device=device(ids))
    begins = searchsorted(xp.take(ids, order, axis=0), wanted, method=Inside("auto"))
    offsets = xp.concat([cast(xp, begins, ids.dtype), xp.full((1,), n, dtype=ids.dtype, device=device(ids))])
    starts = c.starts
    if c.own:
        starts = tuple([xp.concat([x, x[along(axis, 0, 1)]], axis=axis) for x in starts])
    back = argsort(narrow(xp, order, n), method=method)
    in_order = tuple([moved(xp, x, lambda x: xp.take(x, order, axis=axis)) for x in xs])
    function, arguments, options = _scan_in_order(c, in_order, offsets, starts)
    in_blocks = (method == "kernel" and c.grouped_by_kernel) or (method == "array" and c.grouped_by_array)
    found = function(*arguments, **options, return_last=c.ends, method=Inside("canonical") if in_blocks else method)
    parts = found if c.ends else (found, ())
    ys, ends = [part if isinstance(part, tuple) else (part,) for part in parts]
    ys = tuple([moved(xp, y, lambda y: xp.take(y, back, axis=axis)) for y in ys])
    ys = chosen(xp, outside, alone, ys)
    ys = (*ys, *[end[along(axis, 0, c.segments)] for end in ends])
    return ys[0] if c.single else ys


def _scan_in_order(c: Segmented, xs: tuple[Array, ...], offsets: Array, starts: tuple[Array, ...]) -> Part:
    """Return the scan, or the recurrence, of elements in the order of their segments."""
    options: dict[str, Any] = {"offsets": offsets, "check": False, "axis": c.axis, "reverse": c.reverse}
    if is_recurrence(c):
        return linear_recurrence, xs, {**options, "initial": starts[0] if starts else None}
    return scan, (xs, c.op), {**options, "initial": starts or None, "exclusive": c.exclusive, "dtype": c.dtypes}


def _grouped_parts(xp: Namespace, c: Segmented) -> list[Part]:
    ids = c.arrays[c.count]
    sort: Part = argsort, (narrow_stand_in(xp, ids, c.segments + 1),), {}
    offsets = stand_in(xp, ids, (c.segments + 2,), index_dtype(xp))
    starts = c.starts
    if c.own:
        more = [(*x.shape[: c.axis], c.segments + 1, *x.shape[c.axis + 1 :]) for x in starts]
        starts = tuple([stand_in(xp, x, shape, x.dtype) for x, shape in zip(starts, more, strict=True)])
    return [_scan_in_order(c, c.arrays[: c.count], offsets, starts), sort]


BY_IDS = {name: composed(name, departs_by_offsets, _grouped, _grouped_parts) for name in (*SCANS, "linear_recurrence")}
"""The methods of scans and recurrences with segment_ids."""
