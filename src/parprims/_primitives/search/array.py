"""Searches by array operations: by bisection, for all elements at once."""

from __future__ import annotations

from typing import Any

from parprims._core.arrays import Array, Namespace, cast, device
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._libraries.steps import repeated
from parprims._primitives.search.call import Search
from parprims._primitives.sort.call import ascending_integers, index_dtype, moved, widened


def keys(xp: Namespace, c: Search) -> tuple[Array, Array]:
    """Return x1 in order and x2, as integers in the order of `sort`."""
    x1, x2, *sorter = (constant(x) if asked_for(x) else x for x in c.arrays)
    if sorter:
        x1 = moved(xp, x1, lambda array: xp.take(array, cast(xp, sorter[0], index_dtype(xp)), axis=0))
    sorted_keys, other = (ascending_integers(xp, widened(xp, x, c.dtype)) for x in (x1, x2))
    return sorted_keys, other


def above(xp: Namespace, ascending: Array, wanted: Array, strictly: bool = False) -> Array:
    """Return the number of elements of ``ascending`` at most, or ``strictly`` below, each element of ``wanted``."""
    count = xp.zeros(wanted.shape, dtype=index_dtype(xp), device=device(wanted))
    n = ascending.shape[0]
    halvings = n.bit_length()

    def halved(step_number: Any, count: Array) -> Array:
        step = 1 << (halvings - 1 - step_number)
        probed = count + (step - 1)
        inside = probed < n
        flat = xp.reshape(xp.where(inside, probed, xp.zeros_like(probed)), (-1,)) if wanted.ndim != 1 else None
        flat = xp.where(inside, probed, xp.zeros_like(probed)) if flat is None else flat
        value = xp.reshape(xp.take(ascending, flat, axis=0), wanted.shape)
        here = value < wanted if strictly else value <= wanted
        return xp.where(inside & here, count + step, count)

    return repeated(xp, halvings, halved, count)


def array(xp: Namespace, c: Search) -> Array:
    x1, x2 = keys(xp, c)
    return above(xp, x1, x2, strictly=not c.right)
