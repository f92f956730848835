"""Merges by the operations of any method: by a bisection for every element of the result, or by a sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parprims._core.arrays import Array, Namespace, cast, device, move_axis
from parprims._dispatch.composite import Part, gathered, stand_in
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._libraries.steps import repeated
from parprims._primitives.search.merges.call import Merge
from parprims._primitives.sort.call import ascending_integers, index_dtype, moved
from parprims._primitives.sort.public import sort, sort_by_key


def joined(xp: Namespace, c: Merge) -> tuple[Array, ...]:
    """Return the keys of both runs joined along the axis, and the values if there are any."""
    return rows_joined(xp, c.arrays, c.dtypes, c.axis)


def sort_parts(xp: Namespace, c: Merge) -> list[Part]:
    each = c.each
    pairs = zip(c.arrays[:each], c.results, strict=True)
    stand_ins = tuple([stand_in(xp, x, shape, dtype) for x, (shape, dtype) in pairs])
    options: dict[str, Any] = {"axis": c.axis, "descending": c.descending}
    return [(sort, stand_ins, options) if each == 1 else (sort_by_key, stand_ins, options)]


def by_sorting(xp: Namespace, c: Merge, method: str) -> tuple[Array, ...]:
    runs = joined(xp, c)
    options: dict[str, Any] = {"axis": c.axis, "descending": c.descending, "method": method}
    return (sort(*runs, **options),) if len(runs) == 1 else sort_by_key(*runs, **options)


def array(xp: Namespace, c: Merge) -> tuple[Array, ...]:
    """Return the merge. A bisection for every index t of the result finds the number i of elements of x1 before it.

    The first t elements are i of x1 and t - i of x2 if x1[i - 1] comes before x2[t - i], and x1[i] does not come before
    x2[t - i - 1].
    """
    each = c.each
    rows = [move_axis(xp, x, c.axis, -1) for x in c.arrays]
    one, other = (
        ascending_integers(xp, cast(xp, constant(x) if asked_for(x) else x, c.dtypes[0]), c.descending)
        for x in (rows[0], rows[each])
    )
    n, m = one.shape[-1], other.shape[-1]
    last = one.ndim - 1
    shape = (*one.shape[:-1], n + m)
    place = xp.broadcast_to(xp.arange(n + m, dtype=index_dtype(xp), device=device(one)), shape)
    if n == 0 or m == 0 or 0 in shape:
        return tuple([move_axis(xp, x, -1, c.axis) for x in rows_joined(xp, rows, c.dtypes, -1)])
    zero = xp.zeros_like(place)
    low = xp.where(place > m, place - m, zero)
    high = xp.where(place < n, place, zero + n)

    def halved(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        unsure = low < high
        mine = gathered(xp, one, xp.where(unsure, middle, zero), last)
        theirs = gathered(xp, other, xp.where(unsure, place - middle - 1, zero), last)
        goes = unsure & (mine <= theirs)
        return xp.where(goes, middle + 1, low), xp.where(unsure & ~goes, middle, high)

    low, _ = repeated(xp, min(n, m).bit_length(), halved, (low, high))
    i, j = low, place - low
    mine = gathered(xp, one, xp.where(i < n, i, zero), last)
    theirs = gathered(xp, other, xp.where(j < m, j, zero), last)
    taken = (i < n) & ((j >= m) | (mine <= theirs))
    i, j = xp.where(taken, i, zero), xp.where(taken, zero, j)

    def picked(both: Array) -> Array:
        x, y = both[..., :n], both[..., n:]
        return xp.where(taken, gathered(xp, x, i, last), gathered(xp, y, j, last))

    return tuple([move_axis(xp, moved(xp, both, picked), -1, c.axis) for both in rows_joined(xp, rows, c.dtypes, -1)])


def rows_joined(xp: Namespace, rows: Sequence[Array], dtypes: tuple[Any, ...], axis: int) -> tuple[Array, ...]:
    """Return the arrays of the first run joined with the arrays of the second, in the dtypes of the result."""
    each = len(dtypes)
    pairs = zip(rows[:each], rows[each:], dtypes, strict=True)
    return tuple([xp.concat([cast(xp, x, dtype), cast(xp, y, dtype)], axis=axis) for x, y, dtype in pairs])
