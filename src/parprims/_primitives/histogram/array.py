"""Histograms by array operations: the edges, the bin of every element, and a sort of the bins."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    cast,
    device,
    dtype_kind,
    dtype_name,
    is_jax,
    lacks_arithmetic,
    ring_dtype,
)
from parprims._dispatch.watch import unwatched
from parprims._operators.operator import BUILT_IN, segmented
from parprims._primitives.histogram.call import Histogram
from parprims._primitives.reduce.call import library_routine
from parprims._primitives.scan.array import inclusive
from parprims._primitives.search.array import above
from parprims._primitives.sort.call import comparable, flushes, from_comparable, widened
from parprims._primitives.sort.public import sort, sort_by_key


def array_refusal(xp: Namespace, h: Histogram) -> str | None:
    """Return the sentence why array operations cannot serve the call, or None."""
    return lacks_arithmetic(xp, [x.dtype for x in h.arrays])


def parts(xp: Namespace, h: Histogram, edges: Array | None = None) -> tuple[Array, Array | None, Array]:
    """Return the elements and the weights, both of one dimension, and the edges, copied if they are the caller's array.

    ``edges`` are the edges if they are known.
    """
    x = xp.reshape(h.arrays[0], (-1,))
    weights = xp.reshape(h.arrays[1], (-1,)) if h.weighted else None
    if edges is None and h.even:
        edges = spaced(xp, x, h)
    elif edges is None:
        edges = widened(xp, h.arrays[-1], h.edges)
        edges = xp.astype(edges, edges.dtype, copy=True) if edges is h.arrays[-1] else edges
    return x, weights, edges


def spaced(xp: Namespace, x: Array, h: Histogram) -> Array:
    """Return edges at equal distances; x may be None if the call has a range."""
    place = {"dtype": h.edges, "device": None if x is None else device(x)}
    if h.ends is not None or x.shape[0] == 0:
        return _even_edges(xp, h.ends or (0.0, 1.0), h.bins, place)
    keys = comparable(xp, x)
    ends = (library_routine(xp, name, (keys,))(keys) for name in ("min", "max"))
    first, last = (widened(xp, from_comparable(xp, key, x.dtype), h.edges) for key in ends)
    half = cast(xp, first == last, h.edges) * 0.5
    first, last = (xp.where(half > 0, end, edge) for edge, end in ((first, first - half), (last, last + half)))
    if dtype_kind(x.dtype) == "float":  # NaN has no order
        finite = xp.isfinite(first) & xp.isfinite(last)
        first, last = (xp.where(finite, end, xp.full_like(end, math.nan)) for end in (first, last))
    bins = xp.full((), h.bins, **place)  # an array: on GPUs PyTorch multiplies by the inverse of a number
    steps = xp.arange(h.bins, **place) * ((last - first) / bins) + first
    if flushes(xp, h.edges):  # the library compares a subnormal first edge as zero
        steps = xp.where(steps == first, first, steps)
    return xp.concat([steps, xp.reshape(last, (1,))])


def _even_edges(xp: Namespace, ends: tuple[float, float], bins: int, place: dict[str, Any]) -> Array:
    """Return edges at equal distances, rounded as NumPy rounds them, on every library.

    On JAX they are a constant: a program might round the edges that it returns and the edges that it compares
    differently.
    """
    kind = np.dtype(dtype_name(place["dtype"])).type
    with np.errstate(all="ignore"):
        low, high = map(kind, ends)
        width = (high - low) / kind(bins)
        if is_jax(xp):
            steps = np.arange(bins, dtype=kind) * width + low
            return xp.asarray(np.append(steps, high), device=place["device"])
    return xp.concat([xp.arange(bins, **place) * float(width) + float(low), xp.full((1,), float(high), **place)])


def finished(xp: Namespace, h: Histogram, counts: Array, edges: Array) -> tuple[Array, Array]:
    """Return the result, given the counts or sums in every bin."""
    counts = cast(xp, counts, h.result)
    if not h.density:
        return counts, edges
    wide = edges if dtype_kind(edges.dtype) == "float" else xp.astype(edges, xp.float64)
    counts = xp.astype(counts, wide.dtype)
    return counts / xp.sum(counts) / (wide[1:] - wide[:-1]), edges


def bin_of(xp: Namespace, h: Histogram, x: Array, edges: Array, *, search: Callable[[Array, Array], Array]) -> Array:
    """Return the bin of every element, or the number of bins for an element in no bin.

    ``search`` returns for each element the number of edges at most as large.
    """
    x = widened(xp, x, h.edges)
    key, ends = comparable(xp, x), comparable(xp, edges)
    bins = search(ends, key) - 1
    bins = xp.where(key == ends[-1], xp.full_like(bins, h.bins - 1), bins)
    inside = (key >= ends[0]) & (key <= ends[-1])
    if key is not x:
        inside = inside & (x <= edges[-1])  # neither is NaN
    return xp.where(inside, bins, xp.full_like(bins, h.bins))


def array(xp: Namespace, h: Histogram) -> tuple[Array, Array]:
    """Return the counts by a sort of the bins of elements, which moves elements of a bin side by side."""
    x, weights, edges = parts(xp, h)
    numbers = bin_of(xp, h, x, edges, search=functools.partial(above, xp))
    narrow = next(name for name in ("uint8", "int16", "int32", "int64") if h.bins <= np.iinfo(name).max)
    numbers = xp.astype(numbers, getattr(xp, narrow))
    every = xp.arange(h.bins, dtype=numbers.dtype, device=device(x))
    if weights is None:
        with unwatched():
            numbers = sort(numbers, method="array")
        ends = above(xp, numbers, every)
        starts = xp.concat([xp.zeros_like(ends[:1]), ends[:-1]])
        return finished(xp, h, ends - starts, edges)
    with unwatched():
        numbers, weights = sort_by_key(numbers, cast(xp, weights, ring_dtype(xp, h.result)), method="array")
    zero = xp.zeros((h.bins,), dtype=weights.dtype, device=device(x))
    if x.shape[0] == 0:
        return finished(xp, h, zero, edges)
    begins = xp.concat([xp.ones_like(numbers[:1], dtype=xp.bool), numbers[1:] != numbers[:-1]])
    _, sums = inclusive(xp, (begins, weights), segmented(BUILT_IN["add"]), 0)
    ends = above(xp, numbers, every)
    starts = xp.concat([xp.zeros_like(ends[:1]), ends[:-1]])
    last = xp.take(sums, xp.where(ends > 0, ends - 1, ends), axis=0)
    return finished(xp, h, xp.where(ends > starts, last, zero), edges)
