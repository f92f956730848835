"""Scan: y[i] = x[0] op x[1] op ... op x[i], in that order."""

from __future__ import annotations

from parprims._arrays import Array, Namespace, along
from parprims._operators import Operator


def inclusive(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan along an axis counted from the front, by step doubling (Hillis and Steele).

    After the step of length s, element i holds the combination of the 2s elements that end with it.
    """
    n = xs[0].shape[axis]
    step = 1
    while step < n:
        combined = op(
            tuple(x[along(axis, 0, n - step)] for x in xs),
            tuple(x[along(axis, step, n)] for x in xs),
        )
        xs = tuple(xp.concat([x[along(axis, 0, step)], y], axis=axis) for x, y in zip(xs, combined, strict=True))
        step *= 2
    return xs
