"""The bins of elements in NumPy, by a search for the edges or, where bins are of one width, by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

FEW = 1000
"""The most elements for which NumPy finds bins faster by a search than by arithmetic or counts of integers."""


def searchable(edges: Any) -> Any:
    """Return edges for a search to the right: the number of edges at most x is the bin of x, counted from 1.

    It is 0 for x below all bins, and more than the number of bins for x above them and for NaN.
    """
    ascending = edges.copy()
    ascending[-1] = np.nextafter(edges[-1], edges.dtype.type(math.inf))
    return ascending


def even_edges(bins: int, dtype: Any) -> Callable[[Any], Any]:
    """Return a function: even edges of a non-empty array of elements, or None if an element is not finite."""
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
    """Return whether arithmetic with the first edge and the mean width finds bins with an error of at most one."""
    kind, bins, span = np.finfo(edges.dtype), len(edges) - 1, float(edges[-1] - edges[0])
    largest = max(abs(float(edges[0])), abs(float(edges[-1])), float(kind.smallest_normal / kind.eps))
    return 8 * float(kind.eps) * bins * largest < span < math.inf  # not where an edge is NaN


def places_in_even(x: Any, edges: Any) -> Any:
    """Return the bin of every element for almost even edges, or the number of bins for an element in no bin."""
    bins, first, last = len(edges) - 1, edges[0], edges[-1]
    scale = bins / (last - first)
    numbers_of_bins = np.empty(x.shape, np.intp)
    for start in range(0, len(x), _TOGETHER):
        some = x[start : start + _TOGETHER]
        inside = (some >= first) & (some <= last)
        place = np.minimum(np.where(inside, (some - first) * scale, 0).astype(np.intp), bins - 1)
        place -= some < edges[place]
        place += (some >= edges[place + 1]) & (place < bins - 1)
        numbers_of_bins[start : start + _TOGETHER] = np.where(inside, place, bins)
    return numbers_of_bins


def counts_between(x: Any, edges: Any) -> Any:
    """Return the number of elements between each edge and the next.

    A search for every element takes longer than to sort a part of them and to search it for every edge.
    """
    up_to = np.zeros(len(edges), np.intp)
    for start in range(0, len(x), _SORTED):
        up_to += _counts_before(np.sort(x[start : start + _SORTED]), edges)
    return np.diff(up_to)


def counts_of_integers(x: Any, edges: Any) -> Any:
    """Return `counts_between` for integers, compared in the dtype of the edges, or None if their range is too large.

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
    return np.diff(up_to[_counts_before(ascending.astype(edges.dtype), edges)])


def _counts_before(ascending: Any, edges: Any) -> Any:
    """Return the number of ascending numbers before each edge, and up to the last edge."""
    return np.append(ascending.searchsorted(edges[:-1], "left"), ascending.searchsorted(edges[-1], "right"))


_SORTED = 2**16
"""The elements of a sort."""
_VALUES = 4
"""Integers are counted by value if there are at most this many values for each element."""
_TOGETHER = 2**14
"""The elements of a step of `places_in_even`, which stay in a cache."""
