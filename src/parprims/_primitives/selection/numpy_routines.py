"""Selection in NumPy: functions of arrays that call NumPy's own routines, prepared once for a call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, library
from parprims._libraries.numpy_bridge import all_by_numpy, as_numpy, numpy_computes, numpy_namespace, numpy_orders
from parprims._primitives.selection.call import Selection
from parprims._primitives.sort import native as sort_native
from parprims._primitives.sort.call import Sorting

_BLOCK = 1 << 16
"""Elements that NumPy selects from at a time: their indices stay in the cache."""
_COMPARED = ("bool", "uint8", "int8", "int16", "int32", "int64")
"""The dtypes for which PyTorch finds runs faster than NumPy."""
_FEW = 1 << 10
"""The most elements that NumPy takes faster by a mask than by indices."""


def serves(xp: Namespace, c: Selection) -> bool:
    """Return whether NumPy computes a call by its own routines alone."""
    return numpy_computes(xp, c.arrays) and 0 not in c.arrays[0].shape


def prepare_select(xp: Namespace, c: Selection) -> Callable[..., tuple[Array, ...]] | None:
    """Return a function that selects elements by NumPy; None if NumPy does not compute the call."""
    if not serves(xp, c):
        return None
    n, index = math.prod(c.arrays[0].shape), np.dtype(dtype_name(c.results[1][1]))
    size, fill, dtype = c.size, c.fill_value, as_numpy(c.arrays[0]).dtype

    def few(x: Array, mask: Array) -> tuple[Array, ...]:
        selected = x.reshape(-1)[mask.reshape(-1)]
        return selected, np.array(selected.size, index)

    def many(x: Array, mask: Array) -> tuple[Array, ...]:
        selected = np.empty(np.count_nonzero(mask), dtype) if size is None else np.full(size, fill, dtype)
        return selected, np.array(moved(x.reshape(-1), mask.reshape(-1), selected), index)

    return all_by_numpy(xp, c.arrays, few if size is None and n <= _FEW else many)


def prepare_partition_by(xp: Namespace, c: Selection) -> Callable[..., tuple[Array, ...]] | None:
    """Return a function that moves true elements to the front by NumPy; None if NumPy does not compute the call."""
    if not serves(xp, c):
        return None
    n, index = math.prod(c.arrays[0].shape), np.dtype(dtype_name(c.results[1][1]))

    def few(x: Array, mask: Array) -> tuple[Array, ...]:
        x, mask = x.reshape(-1), mask.reshape(-1)
        first = x[mask]
        return np.concatenate((first, x[~mask])), np.array(first.size, index)

    def many(x: Array, mask: Array) -> tuple[Array, ...]:
        x, mask = x.reshape(-1), mask.reshape(-1)
        parted = np.empty_like(x)
        count = moved(x, mask, parted)
        moved(x, ~mask, parted[count:])
        return parted, np.array(count, index)

    return all_by_numpy(xp, c.arrays, few if n <= _FEW else many)


def moved(x: Array, mask: Array, out: Array) -> int:
    """Copy the elements where the mask is true to the beginning of ``out``, as far as they fit; return their number."""
    count = 0
    for begin in range(0, x.size, _BLOCK):
        places = mask[begin : begin + _BLOCK].nonzero()[0]
        room = out[count : count + places.size]
        room[...] = x[begin : begin + _BLOCK].take(places[: room.size])
        count += places.size
    return count


def prepare_run_lengths(xp: Namespace, c: Selection) -> Callable[..., tuple[Array, ...]] | None:
    """Return a function that finds runs by NumPy or PyTorch; None if neither computes the call."""
    if not serves(xp, c):
        return None
    if library(xp) == "torch" and c.size is None and dtype_name(c.arrays[0].dtype) in _COMPARED:
        return _torch_runs()
    return all_by_numpy(xp, c.arrays, _runs(c, as_numpy(c.arrays[0]).dtype, in_order=False))


def _torch_runs() -> Callable[[Array], tuple[Array, ...]]:
    """Return PyTorch's own search for runs, for dtypes without NaN."""
    import torch

    search, count = functools.partial(torch.unique_consecutive, return_counts=True), torch.from_numpy

    def found(x: Array) -> tuple[Array, ...]:
        values, lengths = search(x)
        return values, lengths, count(np.array(len(values)))

    return found


def prepare_unique(xp: Namespace, c: Selection, sorts: Any = sort_native) -> Callable[..., tuple[Array, ...]] | None:
    """Return a function that sorts by the module ``sorts`` and finds runs; None if NumPy does not compute the call."""
    if not serves(xp, c) or not numpy_orders(c.arrays[0].dtype):
        return None
    flat = as_numpy(c.arrays[0]).reshape(-1)
    call = Sorting(arrays=(flat,), axis=0, descending=False, stable=True, keyed=True, indices=False)
    sort, runs = sorts.prepare(numpy_namespace(), call), _runs(c, flat.dtype, in_order=True)
    return all_by_numpy(xp, c.arrays, lambda x: runs(*sort(x.reshape(-1))))


def _runs(c: Selection, dtype: Any, in_order: bool) -> Callable[[Array], tuple[Array, ...]]:
    """Return a function that finds runs in NumPy; ``in_order`` says that the elements are sorted, NaN last."""
    n, index = math.prod(c.arrays[0].shape), np.dtype(dtype_name(c.results[1][1]))
    size, fill, has_odd = c.size, c.fill_value, dtype.kind not in "biu"

    def found(x: Array) -> tuple[Array, ...]:
        before, here = x[:-1], x[1:]
        begins = np.empty(n + 1, bool)  # whether a run begins; the last is True, after the end of all runs
        begins[0] = begins[n] = True
        differ = np.not_equal(here, before, out=begins[1:n])
        if has_odd and n and (x[n - 1] != x[n - 1] if in_order else (x != x).any()):
            differ &= ~((before != before) & (here != here))
        places = begins.nonzero()[0]
        count = len(places) - 1
        lengths = np.subtract(places[1:], places[:-1], dtype=index, casting="same_kind")
        values = x[places[:-1]]
        if size is not None:
            values, lengths = _fitted(values, size, fill), _fitted(lengths, size, 0)
        return values, lengths, np.array(count, index)

    return found


def _fitted(x: Array, size: int, fill: Any) -> Array:
    """Return the first ``size`` elements of x, or all of x followed by ``fill``."""
    fitted = np.full(size, fill, x.dtype)
    fitted[: len(x)] = x[:size]
    return fitted
