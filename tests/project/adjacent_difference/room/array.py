"""Differences of neighbours by array operations."""

from __future__ import annotations

from parprims._primitives.adjacent_difference.call import Differences

from parprims._core.arrays import Array, Namespace, along, lacks_arithmetic


def array(xp: Namespace, c: Differences) -> Array:
    """Return the differences."""
    (x,), n = c.arrays, c.shape[c.axis]
    if n < 2:
        return xp.concat([x], axis=c.axis)  # a copy, for a result never shares memory with an input
    first, later, earlier = along(c.axis, 0, 1), along(c.axis, 1, n), along(c.axis, 0, n - 1)
    return xp.concat([x[first], x[later] - x[earlier]], axis=c.axis)


def refusal(xp: Namespace, c: Differences) -> str | None:
    """Return a refusal if the library does not subtract elements of the dtype."""
    return lacks_arithmetic(xp, [c.arrays[0].dtype])
