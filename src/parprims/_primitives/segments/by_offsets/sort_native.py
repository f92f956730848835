"""Sorts of segments by NumPy: one segment after another, or all of them by their numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Namespace, dtype_name, library
from parprims._libraries.numpy_bridge import all_by_numpy, as_numpy, is_shared, numpy_computes, numpy_namespace
from parprims._primitives.segments.call import Segmented
from parprims._primitives.segments.tables import ids as segment_ids
from parprims._primitives.sort import native as sort_native
from parprims._primitives.sort.call import Sorting, index_dtype

_FEW, _LONG = 4, 1024
"""Up to ``_FEW`` segments, and all of a mean length from ``_LONG`` on, are sorted one after another."""


def _are_few(c: Segmented) -> bool:
    """Return whether segments are sorted one after another."""
    return bool(c.segments <= max(_FEW, c.arrays[0].shape[c.axis] // _LONG))


def is_quick(xp: Namespace, c: Segmented) -> bool:
    """Return whether NumPy sorts the segments faster than kernels, which sort twice."""
    return c.keyed and c.count == 1 and _are_few(c) and serves(xp, c)


def serves(xp: Namespace, c: Segmented) -> bool:
    """Return whether NumPy can sort the segments of a call."""
    return numpy_computes(xp, c.arrays) and (library(xp) == "numpy" or all(is_shared(x.dtype) for x in c.arrays))


def prepare(xp: Namespace, c: Segmented) -> Callable[..., tuple[Any, ...]]:
    """Return a function of non-empty arrays that sorts their segments."""
    call = c if library(xp) == "numpy" else c.on(*map(as_numpy, c.arrays))
    index = np.dtype(dtype_name(index_dtype(xp)))
    return all_by_numpy(xp, c.arrays, (_one_by_one if _are_few(c) else _by_numbers)(call, index))


def _sorting(c: Segmented, *arrays: Any, keyed: bool) -> Callable[..., tuple[Any, ...]]:
    """Return a sort by NumPy for arrays of the given shapes and dtypes: of keys and values, or of indices."""
    call = Sorting(arrays=arrays, axis=c.axis, descending=c.descending, stable=True, keyed=keyed, indices=not keyed)
    return sort_native.prepare(numpy_namespace(), call)


def _ascending(offsets: Any, n: int) -> Any:
    """Return offsets clipped to ascend from 0 to n, as int64, which holds n and all differences."""
    return np.maximum.accumulate(offsets.astype(np.int64, copy=False).clip(0, n))


def _one_by_one(c: Segmented, index: np.dtype[Any]) -> Callable[..., tuple[Any, ...]]:
    axis, xs, n = c.axis, c.arrays[: c.count], c.arrays[0].shape[c.axis]
    length = max(1, n // max(1, c.segments))  # the routine depends on the length
    like = [np.empty((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype) for x in xs]
    sort = _sorting(c, *(like if c.keyed else like[:1]), keyed=c.keyed)
    dtypes = [x.dtype for x in xs] if c.keyed else [index]
    before, shape = (slice(None),) * axis, xs[0].shape

    def run(*arrays: Any) -> tuple[Any, ...]:
        *xs, offsets = arrays
        bounds = _ascending(offsets, n).tolist()
        results = tuple([np.empty(shape, dtype) for dtype in dtypes])
        first = 0
        for last in (*bounds, n):  # and the elements before the first offset and after the last
            if first < last:
                place = (*before, slice(first, last))
                result = sort(*[x[place] for x in xs])
                if not c.keyed:
                    result = (result[0] + first,)
                for y, part in zip(results, result, strict=True):
                    y[place] = part
                first = last
        return results

    return run


def _by_numbers(c: Segmented, index: np.dtype[Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a sort of all elements by keys, then stably by the numbers of their segments."""
    axis, keys, n = c.axis, c.arrays[0], c.arrays[0].shape[c.axis]
    number = np.dtype(segment_ids.narrowest(c.segments + 2))
    by_keys = _sorting(c, keys, keyed=False)
    by_numbers = _sorting(dataclasses.replace(c, descending=False), np.empty(keys.shape, number), keyed=False)

    def taken(x: Any, order: Any) -> Any:
        return x[order] if x.ndim == 1 else np.take_along_axis(x, order, axis)

    def run(*arrays: Any) -> tuple[Any, ...]:
        *xs, offsets = arrays
        lengths = np.diff(_ascending(offsets, n), prepend=0, append=n)
        numbers = np.repeat(np.arange(len(lengths), dtype=number), lengths)
        (order,) = by_keys(xs[0])
        (again,) = by_numbers(numbers[order])
        order = taken(order, again)
        if not c.keyed:
            return (order.astype(index, copy=False),)
        return tuple([taken(x, order) for x in xs])

    return run
