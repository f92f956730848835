"""Order statistics in NumPy: functions of arrays that call NumPy's own routines, prepared once for a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, library
from parprims._dispatch.composite import Compose
from parprims._dispatch.dispatch import Method
from parprims._libraries.numpy_bridge import (
    all_by_numpy,
    as_numpy,
    by_numpy,
    numpy_computes,
    numpy_namespace,
    numpy_orders,
)
from parprims._primitives.order_statistics import array, quantiles
from parprims._primitives.order_statistics.call import Quantiles, Selection
from parprims._primitives.sort import native as sort_native
from parprims._primitives.sort.call import Sorting

Pair = tuple[Array, Array]
"""Elements and their indices."""

_SORTED, _ORDERED = 200, 2000
"""The longest rows that are sorted whole, and the longest for which NumPy's stable sort is the fastest."""
_CHUNK = 8
"""The shortest chunks for which the best element of every chunk is found first."""
_CACHED, _LEAST = 1 << 22, 256
"""Rows of more bytes than a cache are cut into chunks of adjacent elements, if chunks have at least ``_LEAST``."""
_LONG = 4000
"""Rows of this length and longer are searched one after another."""
_SHORT = 24
"""The longest rows that are sorted whole if there are many."""


def serves(xp: Namespace, c: Selection | Quantiles) -> bool:
    """Return whether NumPy's own routines alone compute a call, in the order of `sort`."""
    return numpy_computes(xp, c.arrays) and 0 not in c.arrays[0].shape and numpy_orders(c.arrays[0].dtype)


def is_ordered(xp: Namespace, c: Selection | Quantiles) -> bool:
    """Return whether the namespace is NumPy's, and NumPy partitions in the order of `sort`."""
    return library(xp) == "numpy" and numpy_orders(c.arrays[0].dtype)


# ---- Partitions -------------------------------------------------------------------------------------------------


def prepare_partition(name: str, xp: Namespace, c: Selection) -> Callable[[Array], Array] | None:
    """Return a function that partitions, or finds the indices, by NumPy; None if NumPy does not compute the call."""
    if not serves(xp, c):
        return None
    places, axis, index = np.array(c.places), c.axis, np.dtype(dtype_name(c.results[0][1]))

    def partition(x: Array) -> Array:
        parted = x.copy()
        parted.partition(places, axis)
        return parted

    def argpartition(x: Array) -> Array:
        return x.argpartition(places, axis)

    def narrowed(x: Array) -> Array:
        return x.argpartition(places, axis).astype(index)

    if name == "partition":
        return by_numpy(xp, c.arrays, partition)
    return by_numpy(xp, c.arrays, argpartition if index == np.intp else narrowed)


# ---- Quantiles --------------------------------------------------------------------------------------------------


def prepare_quantiles(xp: Namespace, c: Quantiles) -> Callable[[Array], Array] | None:
    """Return a function that finds quantiles by NumPy's partition; None if NumPy does not compute the call."""
    if not serves(xp, c):
        return None
    x = as_numpy(c.arrays[0])
    kept = [axis for axis in range(x.ndim) if axis not in c.axes]
    order = (*kept, *c.axes)
    n = math.prod([x.shape[axis] for axis in c.axes])
    places = {place for low, high, _ in c.steps for place in (low, high)}
    if x.dtype.kind == "f":
        places.add(n - 1)  # NaN would be last
    kth, turned = np.array(sorted(places)), order != tuple(range(x.ndim))
    shape = n if x.size == n else (x.size // n, n)
    finish = quantiles.in_numpy(c, x.size == n)

    def found(x: Array) -> Array:
        rows = (x.transpose(order) if turned else x).copy().reshape(shape)
        rows.partition(kth, -1)
        return finish(rows)

    return by_numpy(xp, c.arrays, found)


def quantiles_by_numpy(xp: Namespace, c: Quantiles, method: str) -> Array:
    """Return quantiles, by NumPy's partition where it has the order of `sort`."""
    if not is_ordered(xp, c):
        return array.quantiles(xp, c, method)
    rows = quantiles.rows_of(xp, c)
    places = {place for low, high, _ in c.steps for place in (low, high)} | {rows.shape[-1] - 1}
    return quantiles.between(xp, c, xp.partition(rows, sorted(places), axis=-1))


# ---- The first of all elements ----------------------------------------------------------------------------------


def prepare_top(xp: Namespace, c: Selection) -> Callable[..., tuple[Array, ...]] | None:
    """Return a function that finds the k first elements in NumPy, and their indices, or None."""
    (x,), (k,) = c.arrays, c.places
    if not k or not serves(xp, c):
        return None
    find = _top(tuple(x.shape), as_numpy(x).dtype, c.axis, k=k, descending=c.descending)
    index = np.dtype(dtype_name(c.results[1][1]))
    if index == np.intp:
        return all_by_numpy(xp, c.arrays, find)

    def narrowed(x: Array) -> Pair:
        values, places = find(x)
        return values, places.astype(index)

    return all_by_numpy(xp, c.arrays, narrowed)


def _top(shape: tuple[int, ...], dtype: Any, axis: int, *, k: int, descending: bool) -> Callable[[Array], Pair]:
    """Return a function that finds the k > 0 first elements along an axis, and their indices."""
    n, last = shape[axis], len(shape) - 1
    rows = math.prod(shape) // n
    kept = (*shape[:axis], *shape[axis + 1 :], k)
    if rows == 1 or n >= _LONG:
        find_in_row = _of_row(n, dtype, k, descending)
        many = find_in_row if rows == 1 else _row_by_row(find_in_row, rows, k, dtype)
    else:
        many = _of_rows(rows, n, dtype, k=k, descending=descending)
    if len(shape) == 1:
        return many
    flat_shape = n if rows == 1 else (rows, n)

    def found(x: Array) -> Pair:
        x = x if axis == last else np.moveaxis(x, axis, -1)
        values, index = many(x.reshape(flat_shape))
        values, index = values.reshape(kept), index.reshape(kept)
        return (values, index) if axis == last else (np.moveaxis(values, -1, axis), np.moveaxis(index, -1, axis))

    return found


def _row_by_row(find_in_row: Callable[[Array], Pair], rows: int, k: int, dtype: Any) -> Callable[[Array], Pair]:
    def many(x: Array) -> Pair:
        values, index = np.empty((rows, k), dtype), np.empty((rows, k), np.intp)
        for row in range(rows):
            values[row], index[row] = find_in_row(x[row])
        return values, index

    return many


def _first_of_argsort(length: int, dtype: Any, k: int, descending: bool) -> Callable[[Array], Array]:
    """Return a function: the first k indices of a stable argsort along the last axis, tuned for about this length."""
    if length > _ORDERED:
        x = np.empty(length, dtype)
        call = Sorting(arrays=(x,), axis=0, descending=descending, stable=True, keyed=False, indices=True)
        sort = sort_native.prepare(numpy_namespace(), call)
        return lambda x: sort(x)[0][:k].copy()  # no view of all of them
    if not descending:
        return lambda x: x.argsort(-1, "stable")[..., :k].copy()
    # Twice flipped, equals keep their order.
    return lambda x: x.shape[-1] - 1 - x[..., ::-1].argsort(-1, "stable")[..., : -k - 1 : -1]


def _of_row(n: int, dtype: Any, k: int, descending: bool) -> Callable[[Array], Pair]:
    """Return a function that finds the k first elements of a row, and their indices.

    It finds a threshold that at least k elements reach: the k-th of all elements, or of the best elements of chunks. A
    chunk holds every ``count``-th element. Then it sorts the elements that reach the threshold.
    """
    if n <= _SORTED or 2 * k >= n:
        order = _first_of_argsort(n, dtype, k, descending)

        def whole(x: Array) -> Pair:
            index = order(x)
            return x[index], index

        return whole
    length = math.isqrt(n // k)
    if n * dtype.itemsize > _CACHED and length >= _LEAST:
        return _by_chunks(n, length, dtype, k=k, descending=descending)
    length = length if length >= _CHUNK else 1
    count = n // length
    place, order = count - k if descending else k - 1, _first_of_argsort(k, dtype, k, descending)
    best_of = _best_of(descending)

    def found(x: Array) -> Pair:
        best = x.copy() if length == 1 else best_of(x[: count * length].reshape(length, count))
        best.partition(place)
        threshold = best[place]
        if threshold == threshold:
            reach = ~(x < threshold) if descending else x <= threshold
        else:
            reach = x != x if descending else np.ones(n, bool)
        index = reach.nonzero()[0]
        values = x[index]
        if len(index) > 4 * k:  # many are equal: the first are taken
            index = np.delete(index, (values == threshold).nonzero()[0][k:])
            values = x[index]
        chosen = order(values)
        return values[chosen], index[chosen]

    return found


def _best_of(descending: bool) -> Callable[..., Array]:
    """Return the reduction to the first element of an order in which NaN is the largest."""
    return np.maximum.reduce if descending else np.fmin.reduce


def _by_chunks(n: int, length: int, dtype: Any, *, k: int, descending: bool) -> Callable[[Array], Pair]:
    """Return the function of `_of_row` for a row longer than a cache, which is read once, in chunks of a length.

    An element that is one of the first k is in one of the first k chunks, in the order of their best elements: each
    chunk before its own has an element that comes before it.
    """
    count, rest = divmod(n, length)
    best_of, chunks_of = _best_of(descending), _of_row(count, dtype, k, descending)
    choose, each = _of_row(k * length + rest, dtype, k, descending), np.arange(length)

    def found(x: Array) -> Pair:
        chunks = x[: count * length].reshape(count, length)
        chosen = np.sort(chunks_of(best_of(chunks, axis=1))[1]).reshape(-1, 1)
        index = np.concatenate(((chosen * length + each).reshape(-1), np.arange(count * length, len(x))))
        values, places = choose(x[index])
        return values, index[places]

    return found


def _of_rows(rows: int, n: int, dtype: Any, *, k: int, descending: bool) -> Callable[[Array], Pair]:
    """Return a function that finds the k first elements of short rows, all rows at once, and their indices."""
    place = n - k if descending else k - 1
    first, begin = np.arange(rows).reshape(-1, 1) * k, np.arange(rows).reshape(-1, 1) * n
    order = _first_of_argsort(0, dtype, k, descending)

    def whole(x: Array) -> Pair:
        index = order(x)
        return x.reshape(-1)[index + begin], index

    def found(x: Array) -> Pair:
        ordered = x.copy()
        ordered.partition(place)
        threshold = ordered[:, place : place + 1]
        reach = ~(x < threshold) if descending else x <= threshold
        index = reach.reshape(-1).nonzero()[0]
        flat = x.reshape(-1)
        if len(index) != rows * k:
            if (threshold != threshold).any():
                return whole(x)
            row = index // n
            index = _first_equals(index, flat[index] == threshold.reshape(-1)[row], row, rows=rows, k=k)
        values = flat[index].reshape(rows, k)
        chosen = (order(values) + first).reshape(-1)
        return values.reshape(-1)[chosen].reshape(rows, k), index[chosen].reshape(rows, k) - begin

    return whole if n <= _SHORT or 2 * k >= n else found


def _first_equals(index: Array, equal: Array, row: Array, *, rows: int, k: int) -> Array:
    """Return k of the indices for every row: of elements equal to the threshold only the first are kept."""
    equals = row[equal]
    counts = np.bincount(equals, None, rows)
    wanted = k - np.bincount(row, None, rows) + counts
    rank = np.arange(len(equals)) - (counts.cumsum() - counts)[equals]
    kept = ~equal
    kept[equal] = rank < wanted[equals]
    return index[kept]


def partitioned(name: str, otherwise: Callable[[Namespace, Selection, str], Array]) -> Compose:
    """Return a composition: NumPy's function of this name where it has the order of `sort`, else ``otherwise``."""

    def compose(xp: Namespace, c: Selection, method: str) -> Array:
        if not is_ordered(xp, c):
            return otherwise(xp, c, method)
        parted: Array = getattr(xp, name)(c.arrays[0], list(c.places), axis=c.axis)
        return parted

    return compose


def unless_partitions(sorts: Method) -> Method:
    """Return the kernel, which sorts; it is marked slower for arrays that NumPy partitions."""

    def slower(xp: Namespace, c: Selection | Quantiles) -> str | None:
        if numpy_computes(xp, c.arrays):
            return "NumPy is faster: it partitions without a sort"
        return None if sorts.slower is None else sorts.slower(xp, c)

    return dataclasses.replace(sorts, slower=slower)
