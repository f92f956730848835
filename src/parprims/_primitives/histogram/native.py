"""Histograms by the library's own routines, or by NumPy's in the same memory."""

from __future__ import annotations

import dataclasses
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
    is_tensor,
    library,
    library_title,
    ring_dtype,
)
from parprims._dispatch.dispatch import directly
from parprims._libraries.numpy_bridge import all_by_numpy, as_numpy, numpy_namespace, quietly, shares_memory
from parprims._libraries.settings import asked_for
from parprims._primitives.histogram.array import array_refusal, bin_of, finished, parts, spaced
from parprims._primitives.histogram.call import Histogram
from parprims._primitives.histogram.numpy_routines import (
    FEW,
    counts_between,
    counts_of_integers,
    even_edges,
    is_almost_even,
    places_in_even,
    searchable,
)


def prepare(xp: Namespace, h: Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return a function of the arrays: the counts by the library's own routines, or by NumPy's in the same memory.

    NumPy makes even edges between given ends once, which takes longer than to count a hundred elements.
    """
    name = library(xp)
    if shares_memory(xp, h.arrays):
        edges, result = (np.dtype(dtype_name(dtype)) for dtype in (h.edges, h.result))
        arrays = tuple(map(as_numpy, h.arrays))  # their dtypes and shapes count
        run = prepare(numpy_namespace(), dataclasses.replace(h, arrays=arrays, edges=edges, result=result))
        return all_by_numpy(xp, h.arrays, run)
    if name == "numpy" and h.even:
        return _prepare_even(xp, h)
    plainly: Callable[..., tuple[Array, Array]] = directly(native)(xp, h)
    return quietly(plainly) if name == "numpy" else plainly


def _prepare_even(xp: Namespace, h: Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return `prepare` for NumPy and even edges, which come from the elements unless their ends are known."""
    x, nothing = h.arrays[0], h.on(*(None,) * len(h.arrays))
    known, plain = None if h.ends is None else spaced(xp, None, h), x.dtype == h.edges and 0 not in x.shape
    known_edges = even_edges(h.bins, np.dtype(h.edges)) if plain else None

    def edges_of(x: Any) -> Any:
        return known.copy() if known is not None else None if known_edges is None else known_edges(x)

    if math.prod(x.shape) > FEW or h.weighted or h.density or not plain or np.intp != h.result:
        return quietly(lambda *arrays: native(xp, nothing.on(*arrays), edges_of(arrays[0])))
    ends, length = None if known is None else searchable(known), h.bins + 2

    def counted(x: Any) -> tuple[Any, Any]:
        edges = edges_of(x)
        if edges is None:
            return native(xp, nothing.on(x))
        places = (searchable(edges) if ends is None else ends).searchsorted(x.reshape(-1), "right")
        return np.bincount(places, None, length)[1:-1], edges

    return counted if known is not None else quietly(counted)  # of known edges there is no cause to warn


def native(xp: Namespace, h: Histogram, edges: Array | None = None) -> tuple[Array, Array]:
    """Return the counts by the library's own search, and its own counting or scattered addition."""
    name = library(xp)
    x, weights, edges = parts(xp, h, edges)
    wide = None if weights is None else cast(xp, weights, ring_dtype(xp, h.result))
    if name == "numpy" and wide is None and dtype_kind(x.dtype) != "float" and len(x) > FEW:
        counts = counts_of_integers(x, edges)
        if counts is not None:
            return finished(xp, h, counts, edges)
    if name == "numpy":
        x = cast(xp, x, h.edges)
        if not h.even and wide is None and len(x) > FEW:
            return finished(xp, h, counts_between(x, edges), edges)
    if name == "numpy" and h.even and len(x) <= FEW:
        bins = searchable(edges).searchsorted(x, "right")
        bins[bins == 0] = h.bins + 1
        bins -= 1
    elif name == "numpy" and h.even and is_almost_even(edges):
        bins = places_in_even(x, edges)
    elif name == "torch":
        import torch

        def search(ends: Array, x: Array) -> Array:
            return torch.bucketize(x.contiguous(), ends.contiguous(), right=True)

        bins = bin_of(xp, h, x, edges, search=search)
    else:
        bins = bin_of(xp, h, x, edges, search=functools.partial(xp.searchsorted, side="right"))
    if name == "jax":
        start = xp.zeros((h.bins + 1,), dtype=h.result if wide is None else wide.dtype)
        counts = start.at[bins].add(1 if wide is None else wide)
    elif wide is None:
        counts = xp.bincount(bins, minlength=h.bins + 1)
    elif name == "torch":  # sums weights of every dtype
        counts = xp.zeros((h.bins + 1,), dtype=wide.dtype, device=device(x)).index_add(0, bins, wide)
    elif dtype_kind(wide.dtype) != "float":
        counts = xp.zeros((h.bins + 1,), dtype=wide.dtype, device=device(x))
        xp.add.at(counts, bins, wide)
    else:
        counts = xp.bincount(bins, weights=wide, minlength=h.bins + 1)
    return finished(xp, h, counts[: h.bins], edges)


def refusal(xp: Namespace, h: Histogram) -> str | None:
    """Return the sentence why the library cannot serve the call, or None."""
    if library(xp) == "other":
        return f"{library_title(xp)} has no histogram"
    if h.weighted and is_tensor(h.arrays[1]) and asked_for(h.arrays[1]):
        return "PyTorch asks for a derivative by weights, which method array computes"
    return array_refusal(xp, h)
