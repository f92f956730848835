"""Peers on a CPU: loops written by hand and compiled by Numba (`benches.peers.loops`), as functions on arrays."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np


@functools.cache
def _loops() -> Any:
    from benches.peers import loops  # takes as long as to import Numba

    return loops


def cube(x: np.ndarray, axis: int) -> np.ndarray:
    """Return an array seen with the axes (outer, n, inner)."""
    axis %= x.ndim
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


def without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return a shape without an axis."""
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def total_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of sums."""
    dtype = np.dtype(dtype)
    return np.dtype({"i": "int64", "u": "uint64"}.get(dtype.kind, dtype))


def total(x, axis=0):
    out = np.zeros(without(x.shape, axis), total_dtype(x.dtype))
    seen = cube(x, axis)
    _loops().total(seen, out.reshape(seen.shape[::2]))
    return out


def cumulative_sum(x, axis=0):
    out = np.empty(x.shape, total_dtype(x.dtype))
    _loops().cumulative_sum(cube(x, axis), cube(out, axis))
    return out


def maxima(x, axis=0):
    out = np.empty_like(x)
    _loops().maxima(cube(x, axis), cube(out, axis))
    return out


def argmaxima(x, index):
    best, place = np.empty_like(x), np.empty_like(index)
    _loops().argmaxima(x, best, place)
    return best, place


def welfords(x):
    out = tuple(np.empty_like(x) for _ in range(3))
    _loops().welfords(x, *out)
    return out


def log_sums(x):
    out = np.empty_like(x)
    _loops().log_sums(x, out)
    return out


def recurrence(a, b, axis=-1):
    out = np.empty_like(b)
    _loops().recurrence(cube(a, axis), cube(b, axis), cube(out, axis))
    return out


def constant_recurrence(a, b, axis=-1):
    out = np.empty_like(b)
    _loops().constant_recurrence(b.dtype.type(a), cube(b, axis), cube(out, axis))
    return out


def recurrence_gradient(a, b, g, axis=-1):
    """Return the solution of a recurrence and its derivatives along g."""
    x = recurrence(a, b, axis)
    da, db = np.empty_like(a), np.empty_like(b)
    _loops().recurrence_backward(*(cube(one, axis) for one in (a, x, g, da, db)))
    return x, da, db


def maximum(x):
    return _loops().maximum(x)


def every(x):
    return _loops().every(x)


def dot(x, y):
    return _loops().dot(x, y)


def fused(x, y, z):
    return _loops().fused(x, y, z)


def argmax(x, axis=0):
    seen, shape = cube(x, axis), without(x.shape, axis)
    best, place = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    _loops().argmax(seen, best.reshape(seen.shape[::2]), place.reshape(seen.shape[::2]))
    return best, place


def welford(x):
    return x.dtype.type(len(x)), *_loops().welford(x)


def affine(a, b):
    return _loops().affine(a, b)


def sort(x):
    """Sort by digits of 8 bits, the least significant first, of which those that all keys agree in are left out."""
    keys = _ordered(x)
    _loops().radix_sort(keys, np.empty_like(keys))
    if x.dtype.kind == "u":
        return keys
    sign = keys.dtype.type(1 << (8 * keys.itemsize - 1))
    if x.dtype.kind == "f":
        return np.where(keys >= sign, keys ^ sign, ~keys).view(x.dtype)
    return (keys ^ sign).view(x.dtype)


def argsort(x):
    """Sort keys and indices of 32 bits in the same way."""
    keys, order = _ordered(x), np.arange(len(x), dtype=np.uint32)
    order = _loops().radix_argsort(keys, np.empty_like(keys), order, np.empty_like(order))
    return order.astype(np.int64)


def sort_by_key(x, values):
    order = argsort(x)
    return x[order], values[order]


def _ordered(x):
    """Return a copy as unsigned integers of the same order, NaN and -0 left aside."""
    keys = x.view(f"u{x.itemsize}")
    sign = keys.dtype.type(1 << (8 * x.itemsize - 1))
    if x.dtype.kind == "f":
        return np.where(keys >= sign, ~keys, keys | sign)
    return keys ^ sign if x.dtype.kind == "i" else keys.copy()


def histogram(x, low, high, bins):
    counts = np.zeros(bins, np.int64)
    _loops().histogram(x, low, high, counts)
    return counts


def weighted_histogram(x, weights, low, high, bins):
    sums = np.zeros(bins, weights.dtype)
    _loops().weighted_histogram(x, weights, low, high, sums)
    return sums


def searchsorted(x1, x2):
    places = np.empty(len(x2), np.int64)
    _loops().searchsorted(x1, x2, places)
    return places


def merge(x1, x2):
    out = np.empty(len(x1) + len(x2), x1.dtype)
    _loops().merge(x1, x2, out)
    return out


def tridiagonal(lower, diag, upper, rhs, axis=-1):
    """Solve without exchanges: a system or a batch along its last axis one by one, along its first side by side."""
    x = np.empty_like(diag)
    if axis == 0 and x.ndim > 1:
        _loops().thomas(lower, diag, upper, rhs, x, np.empty_like(x))
    else:
        _loops().thomas_lines(*(np.atleast_2d(one) for one in (lower, diag, upper, rhs, x)))
    return x


def product(a, b):
    out = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    _loops().product(a, b, out)
    return out


def shortest(a, b):
    out = np.full((a.shape[0], b.shape[1]), np.inf, a.dtype)
    _loops().shortest(a, b, out)
    return out
