"""The bins of elements in NumPy, by a search for the edges or, where bins are of one width, by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

FEW = 1000
"""Elements up to which NumPy finds bins sooner by a search than by arithmetic, or by counting values of integers."""


def searchable(edges: Any) -> Any:
    """Return edges such that as many of them are at most x as the number of the bin that x is in, counted from 1.

    It is 0 for what is below all bins, and more than there are bins for what is above, and for NaN.
    """
    found = edges.copy()
    found[-1] = np.nextafter(edges[-1], edges.dtype.type(math.inf))
    return found


def even_edges(bins: int, dtype: Any) -> Callable[[Any], Any]:
    """Return what makes edges of elements of a dtype, of which there are some; None where one is not finite."""
    numbers = np.arange(bins, dtype=dtype)

    def edges_of(x: Any) -> Any:
        first, last = x.min(), x.max()
        if not math.isfinite(first) or not math.isfinite(last):
            return None
        half = dtype.type(0.5 if first == last else 0.0)
        first, last = first - half, last + half
        edges = np.empty(bins + 1, dtype)
        steps = edges[:-1]
        np.multiply(numbers, (last - first) / bins, steps)
        np.add(steps, first, steps)
        edges[-1] = last
        return edges

    return edges_of


def is_almost_even(edges: Any) -> bool:
    """Return whether a bin that is computed from the first edge and the mean width is at most one off in NumPy."""
    kind, bins, span = np.finfo(edges.dtype), len(edges) - 1, float(edges[-1] - edges[0])
    largest = max(abs(float(edges[0])), abs(float(edges[-1])), float(kind.smallest_normal / kind.eps))
    return 8 * float(kind.eps) * bins * largest < span < math.inf  # not where an edge is NaN


def places_in_even(x: Any, edges: Any) -> Any:
    """Return the bin of every element in NumPy, the number of bins for those that have none, for almost even edges."""
    bins, first, last = len(edges) - 1, edges[0], edges[-1]
    scale = bins / (last - first)
    found = np.empty(x.shape, np.intp)
    for at in range(0, len(x), _TOGETHER):
        some = x[at : at + _TOGETHER]
        inside = (some >= first) & (some <= last)
        place = np.minimum(np.where(inside, (some - first) * scale, 0).astype(np.intp), bins - 1)
        place -= some < edges[place]
        place += (some >= edges[place + 1]) & (place < bins - 1)
        found[at : at + _TOGETHER] = np.where(inside, place, bins)
    return found


def counts_between(x: Any, edges: Any) -> Any:
    """Return how many elements are between each edge and the next, given in NumPy and ascending.

    A search for every element takes longer than to sort a part of them and to search it for every edge.
    """
    up_to = np.zeros(len(edges), np.intp)
    for at in range(0, len(x), _SORTED):
        up_to += _up_to(np.sort(x[at : at + _SORTED]), edges)
    return np.diff(up_to)


def counts_of_integers(x: Any, edges: Any) -> Any:
    """Return the same for integers in NumPy, compared in the dtype of the edges, or None if they differ too much.

    Each value is counted, which takes less time than to find the bin of every element.
    """
    least, most = x.min(), x.max()
    values = int(most) - int(least) + 1
    if values > _VALUES * len(x):
        return None
    wide = np.uint64 if x.dtype == np.uint64 else np.int64
    each = np.bincount(np.subtract(x, least, dtype=wide).astype(np.intp, copy=False))
    ascending = np.arange(values, dtype=wide) + wide(least)
    up_to = np.append(0, np.cumsum(each))
    return np.diff(up_to[_up_to(ascending.astype(edges.dtype), edges)])


def _up_to(ascending: Any, edges: Any) -> Any:
    """Return how many of the ascending numbers are before each edge, or at most the last."""
    return np.append(ascending.searchsorted(edges[:-1], "left"), ascending.searchsorted(edges[-1], "right"))


_SORTED = 2**16
"""Elements that are sorted at once."""
_VALUES = 4
"""Integers are counted by value if there are at most so many values for each element."""
_TOGETHER = 2**14
"""Elements that NumPy finds the bins of at once: as many as stay in a cache."""
