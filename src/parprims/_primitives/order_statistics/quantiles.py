"""Quantiles: the rows of a call, and the interpolation between two elements of a sorted row."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, cast, dtype_kind, dtype_name
from parprims._dispatch.composite import stand_in
from parprims._primitives.order_statistics.call import Quantiles


def rows_of(xp: Namespace, c: Quantiles) -> Array:
    """Return the elements with the searched axes merged into the last axis."""
    (x,) = c.arrays
    kept = [axis for axis in range(x.ndim) if axis not in c.axes]
    rows = xp.permute_dims(x, (*kept, *c.axes)) if x.ndim else x
    n = math.prod([x.shape[axis] for axis in c.axes])
    return xp.reshape(rows, (*(x.shape[axis] for axis in kept), n))


def rows_to_ask_about(xp: Namespace, c: Quantiles) -> Array:
    """Return `rows_of` if it is a view, else a stand-in with its shape and dtype, to ask a method about."""
    (x,) = c.arrays
    if len(c.axes) == 1:
        return rows_of(xp, c)
    kept = [m for axis, m in enumerate(x.shape) if axis not in c.axes]
    return stand_in(xp, x, (*kept, math.prod([x.shape[axis] for axis in c.axes])), x.dtype)


def between(xp: Namespace, c: Quantiles, rows: Array) -> Array:
    """Return the quantiles, given rows in which the elements needed, and the last, are where a sort would move them."""
    shape, dtype = c.results[0]
    last = rows[..., -1]
    values: list[Array] = []
    for low, high, part in c.steps:
        value = cast(xp, rows[..., low], c.working)
        if part:
            other = cast(xp, rows[..., high], c.working)
            value = xp.where(value == other, value, _interpolated(xp, value, other, part))
        if dtype_kind(last.dtype) == "float":
            value = xp.where(last == last, value, xp.full_like(value, math.nan))
        values.append(value)
    quantiles = xp.stack(values, axis=0) if c.many else values[0]
    return xp.astype(xp.reshape(quantiles, shape), dtype, copy=True)


def _interpolated(xp: Namespace, low: Array, high: Array, part: float) -> Array:
    """Return the linear interpolation between two numbers, the first the smaller, without an overflow.

    The code subtracts only numbers of equal sign and adds only numbers of opposite sign, even if a compiler rearranges.
    """
    from_low, from_high = low + (high - low) * part, high + (low - high) * (1 - part)
    return xp.where(low >= 0, from_low, xp.where(high <= 0, from_high, low * (1 - part) + high * part))


def in_numpy(c: Quantiles, single: bool) -> Callable[[Any], Any]:
    """Return `between` for rows in NumPy, partitioned at the indices needed and, for floats, at the last.

    ``single`` says that the rows are a single row, of one dimension.
    """
    shape, dtype = c.results[0][0], np.dtype(dtype_name(c.results[0][1]))
    working, is_float = np.dtype(dtype_name(c.working)), dtype_kind(c.arrays[0].dtype) == "float"
    make = functools.partial(_of_numbers if single else _of_rows, c.steps, working.type)

    @np.errstate(all="ignore")
    def found(rows: Any) -> Any:
        return make(rows, is_float).astype(dtype, copy=False).reshape(shape)

    return found


def _of_numbers(steps: tuple[tuple[int, int, float], ...], kind: Any, row: Any, is_float: bool) -> Any:
    """Return quantiles of one row."""
    if is_float and row[-1] != row[-1]:
        return np.full(len(steps), math.nan, kind)
    values = []
    for low, high, part in steps:
        value = kind(row[low])
        if part:
            other = kind(row[high])
            if value != other:
                value = _between_numbers(value, other, kind(part), kind(1 - part))
        values.append(value)
    return np.array(values)


def _between_numbers(low: Any, high: Any, part: Any, rest: Any) -> Any:
    """Return the interpolation of `_interpolated` for NumPy scalars."""
    if low >= 0:
        return low + (high - low) * part
    return high + (low - high) * rest if high <= 0 else low * rest + high * part


def _of_rows(steps: tuple[tuple[int, int, float], ...], kind: Any, rows: Any, is_float: bool) -> Any:
    """Return an array (quantiles, rows)."""
    last = rows[..., -1]
    odd = is_float and (last != last)
    values = np.empty((len(steps), *last.shape), kind)
    for (low, high, part), to in zip(steps, values, strict=True):
        to[...] = rows[..., low]
        if part:
            other = rows[..., high].astype(kind)
            to[...] = np.where(to == other, to, _interpolated(np, to, other, part))
        if is_float:
            to[odd] = math.nan
    return values
