"""Merges by NumPy's stable sort, which merges runs that are in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace
from parprims._dispatch.composite import Part
from parprims._libraries.numpy_bridge import all_by_numpy, numpy_computes, numpy_orders
from parprims._primitives.search.merges.array import by_sorting, joined, sort_parts
from parprims._primitives.search.merges.call import Merge
from parprims._primitives.sort.call import ascending_integers


def _merges(xp: Namespace, c: Merge) -> bool:
    """Return whether NumPy's stable sort computes the call. It merges sorted runs, except in the narrowest dtypes."""
    return numpy_computes(xp, c.arrays) and numpy_orders(c.dtypes[0])


def by_merging(xp: Namespace, c: Merge, method: str) -> tuple[Array, ...]:
    """Return the merge by NumPy's stable sort, or by the method ``method`` of `sort`."""
    if not _merges(xp, c):
        return by_sorting(xp, c, method)
    runs = joined(xp, c)
    if len(runs) == 1 and not c.descending:
        return (np.sort(runs[0], axis=c.axis, kind="stable"),)
    order = np.argsort(ascending_integers(xp, runs[0], c.descending), axis=c.axis, kind="stable")
    return tuple([np.take_along_axis(x, order, c.axis) for x in runs])


def prepare(xp: Namespace, c: Merge) -> Callable[..., tuple[Array, ...]] | None:
    """Return a merge in NumPy of ascending elements of one dtype without values; None for any other call."""
    if len(c.arrays) > 2 or c.descending or any(x.dtype != c.dtypes[0] for x in c.arrays) or not _merges(xp, c):
        return None
    axis = c.axis

    def merged(x1: Any, x2: Any) -> tuple[Any, ...]:
        both = np.concatenate((x1, x2), axis)
        both.sort(axis, "stable")
        return (both,)

    return all_by_numpy(xp, c.arrays, merged)


def parts(xp: Namespace, c: Merge) -> list[Part]:
    """Return the parts of the native method: none if NumPy merges, else a sort."""
    return [] if _merges(xp, c) else sort_parts(xp, c)
