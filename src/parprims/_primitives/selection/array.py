"""Selections by the operations of any method: the indices of true elements of a mask, and the elements there."""

from __future__ import annotations

import math

import numpy as np

from parprims._core.arrays import Array, Namespace, as_result, device, dtype_bits, dtype_kind, library
from parprims._dispatch.by_device import is_of_cpu
from parprims._dispatch.composite import Part, stand_in
from parprims._dispatch.derivative_rules import asked_by_torch, asked_for, constant
from parprims._libraries.numpy_bridge import as_numpy, in_numpy, returned
from parprims._primitives.scan.public import cumulative_sum
from parprims._primitives.search.array import above
from parprims._primitives.selection import cuda
from parprims._primitives.selection.call import Selection, has_no_value
from parprims._primitives.sort.call import bits, index_dtype, moved
from parprims._primitives.sort.public import argsort, sort


def _places(xp: Namespace, mask: Array, size: int | None, method: str) -> tuple[Array, Array]:
    """Return the indices of the true elements of a flat mask, all or the first ``size``, and their number.

    If there are fewer than ``size``, the length of the mask fills up the indices.
    """
    index, n, name = index_dtype(xp), mask.shape[0], library(xp)
    if n == 0:
        return xp.zeros((size or 0,), dtype=index, device=device(mask)), xp.zeros((), dtype=index, device=device(mask))
    if method == "kernel" and not is_of_cpu(xp, (mask,)):
        places, count = cuda.mover(xp, "places", (mask,), size=size)(mask)
        return places, count
    by_numpy = method in ("native", "kernel") and in_numpy(xp, (mask,))
    if by_numpy or (method == "native" and name in ("cupy", "torch") and not has_no_value(mask)):
        places = returned(xp, np.flatnonzero(as_numpy(mask))) if by_numpy else xp.nonzero(mask)[0]
        count = xp.asarray(places.shape[0], dtype=index, device=device(mask))
        return (places if size is None else _fitted(xp, places, size, n)), count
    if method == "native" and name == "jax":
        count = xp.sum(mask, dtype=index)
        return xp.nonzero(mask, size=size, fill_value=n)[0].astype(index), count
    if method == "array":
        sums = cumulative_sum(xp.astype(mask, index), method=method)
        count = xp.reshape(sums[n - 1 :], ())
        length = int(count) if size is None else size
        return above(xp, sums, xp.arange(length, dtype=index, device=device(mask))), count
    count = as_result(xp.sum(xp.astype(mask, index), dtype=index))
    order = argsort(~mask, method=method)
    if size is None:
        return order[: int(count)], count
    slots = xp.arange(size, dtype=index, device=device(mask))
    order = _fitted(xp, order, size, n)
    return xp.where(slots < count, order, xp.full_like(order, n)), count


def _fitted(xp: Namespace, x: Array, size: int, fill: int) -> Array:
    """Return the first ``size`` elements of x; if x is shorter, ``fill`` is appended."""
    missing = size - x.shape[0]
    if missing <= 0:
        return x[:size]
    return xp.concat([x, xp.full((missing,), fill, dtype=x.dtype, device=device(x))])


def _elements_at(xp: Namespace, c: Selection, x: Array, places: Array) -> Array:
    """Return the elements at ``places``, and the fill value where a place is the length of x."""
    n = x.shape[0]
    if n == 0:
        return xp.full(places.shape, c.fill_value, dtype=x.dtype, device=device(x))
    inside = places < n
    indices = xp.where(inside, places, xp.zeros_like(places)) if c.size is not None else places
    if c.size is None:
        return moved(xp, x, lambda array: xp.take(array, indices, axis=0))
    fill = xp.full((1,), c.fill_value, dtype=x.dtype, device=device(x))

    def taken(array: Array) -> Array:
        return xp.where(inside, xp.take(array, indices, axis=0), fill if array.dtype == x.dtype else bits(xp, fill))

    return moved(xp, x, taken)


def flat(xp: Namespace, x: Array) -> Array:
    """Return the elements of an array in row-major order, of one dimension."""
    return xp.reshape(x, (math.prod(x.shape),))


def _flat_to_ask_about(xp: Namespace, x: Array) -> Array:
    """Return `flat` of x if it is a view, else a stand-in with its shape and dtype, to ask a method about."""
    return x if x.ndim == 1 else stand_in(xp, x, (math.prod(x.shape),), x.dtype)


def select(xp: Namespace, c: Selection, method: str) -> tuple[Array, ...]:
    x, mask = (flat(xp, array) for array in c.arrays)
    places, count = _places(xp, mask, c.size, method)
    return _elements_at(xp, c, x, places), count


def select_parts(xp: Namespace, c: Selection) -> list[Part]:
    return [(argsort, (_flat_to_ask_about(xp, c.arrays[1]),), {})]


def partition_by(xp: Namespace, c: Selection, method: str) -> tuple[Array, ...]:
    x, mask = (flat(xp, array) for array in c.arrays)
    index = index_dtype(xp)
    if cuda.launches(xp, c, method):
        each = xp.arange(x.shape[0], dtype=index, device=device(x))
        order, count = cuda.mover(xp, "parted", (each, mask))(each, mask)
    else:
        order = argsort(~mask, method=method)
        count = as_result(xp.sum(xp.astype(mask, index), dtype=index))
    return moved(xp, x, lambda array: xp.take(array, order, axis=0)), count


def _begins_run(xp: Namespace, x: Array) -> Array:
    """Return a mask of the elements that begin a run."""
    x = constant(x) if asked_for(x) else x
    if dtype_kind(x.dtype) == "uint" and dtype_bits(x.dtype) > 8 and library(xp) == "torch":
        x = x.view(getattr(xp, f"int{dtype_bits(x.dtype)}"))  # which PyTorch can compare
    n = x.shape[0]
    before, here = x[: max(n - 1, 0)], x[min(1, n) :]
    changed = before != here
    if dtype_kind(x.dtype) in ("float", "complex"):
        changed = changed & ~((before != before) & (here != here))
    return xp.concat([xp.ones((min(1, n),), dtype=xp.bool, device=device(x)), changed])


def _runs(xp: Namespace, c: Selection, x: Array, method: str) -> tuple[Array, ...]:
    """Return the runs of x. Their lengths are the distances between their first elements."""
    n = x.shape[0]
    if cuda.launches(xp, c.on(x), method) and not asked_by_torch((x,)):
        return cuda.prepare("runs", run_lengths, xp, c.on(x))(x)
    places, count = _places(xp, _begins_run(xp, x), None if c.size is None else c.size + 1, method)
    if c.size is None:
        places = xp.concat([places, xp.full((1,), n, dtype=places.dtype, device=device(x))])
    return _elements_at(xp, c, x, places[:-1]), places[1:] - places[:-1], count


def run_lengths(xp: Namespace, c: Selection, method: str) -> tuple[Array, ...]:
    return _runs(xp, c, c.arrays[0], method)


def run_parts(xp: Namespace, c: Selection) -> list[Part]:
    (x,) = c.arrays
    return [(argsort, (stand_in(xp, x, tuple(x.shape), xp.bool),), {})]


def unique(xp: Namespace, c: Selection, method: str) -> tuple[Array, ...]:
    return _runs(xp, c, sort(flat(xp, c.arrays[0]), method=method), method)


def unique_parts(xp: Namespace, c: Selection) -> list[Part]:
    return [(sort, (_flat_to_ask_about(xp, c.arrays[0]),), {})]
