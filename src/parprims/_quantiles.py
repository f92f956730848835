"""Quantiles: the checked call, the places between which they lie, and what lies there."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from parprims._arrays import Array, Namespace, cast, dtype_kind, shown
from parprims._composed import Composed


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Quantiles(Composed):
    """A checked call. ``steps`` are for each q the places of two elements, and how far it is from the first.

    ``working`` is the dtype between elements, ``many`` says whether there is an axis for q.
    """

    axes: tuple[int, ...]
    steps: tuple[tuple[int, int, float], ...]
    many: bool
    working: Any


def share_of(q: Any) -> float:
    """Return a share as a number; raise, naming the argument, for anything else."""
    if type(q) is bool or (hasattr(q, "shape") and not isinstance(q, np.generic)):
        raise TypeError(f"q must be a number or a tuple of numbers, got {shown(q)}")
    try:
        share = float(q) if not isinstance(q, (str, bytes)) else None
    except (TypeError, ValueError, RuntimeError):
        share = None
    if share is None:
        raise TypeError(f"q must be a number or a tuple of numbers, got {shown(q)}")
    if not 0 <= share <= 1:
        raise ValueError(f"q must be from 0 to 1, got {shown(q)}")
    return share


def step(share: float, n: int, interpolation: str) -> tuple[int, int, float]:
    """Return the places of the elements before and after a share of n, and how far it is from the first."""
    place = share * (n - 1)
    low = min(math.floor(place), n - 1)
    high, part = min(low + 1, n - 1), place - low
    if interpolation == "nearest":
        low = high = min(round(place), n - 1)
    if interpolation in ("lower", "nearest") or part == 0:
        return low, low, 0.0
    return (high, high, 0.0) if interpolation == "higher" else (low, high, 0.5 if interpolation == "midpoint" else part)


def rows_of(xp: Namespace, c: Quantiles) -> Array:
    """Return the elements with the axes that are searched as the last one."""
    (x,) = c.arrays
    kept = [at for at in range(x.ndim) if at not in c.axes]
    rows = xp.permute_dims(x, (*kept, *c.axes)) if x.ndim else x
    n = math.prod([x.shape[at] for at in c.axes])
    return xp.reshape(rows, (*(x.shape[at] for at in kept), n))


def between(xp: Namespace, c: Quantiles, rows: Array) -> Array:
    """Return the quantiles, given rows that have the elements wanted, and the last, where they are if sorted."""
    shape, dtype = c.results[0]
    last = rows[..., -1]
    found: list[Array] = []
    for low, high, part in c.steps:
        one = cast(xp, rows[..., low], c.working)
        if part:
            other = cast(xp, rows[..., high], c.working)
            one = xp.where(one == other, one, _on_the_line(xp, one, other, part))
        if dtype_kind(last.dtype) == "float":
            one = xp.where(last == last, one, xp.full_like(one, math.nan))
        found.append(one)
    whole = xp.stack(found, axis=0) if c.many else found[0]
    return xp.astype(xp.reshape(whole, shape), dtype, copy=True)


def _on_the_line(xp: Namespace, one: Array, other: Array, part: float) -> Array:
    """Return what lies between two numbers, the first the smaller, without an overflow.

    No difference is of numbers of other signs, and no sum of numbers of one, into which a compiler may turn products.
    """
    above, below = one + (other - one) * part, other + (one - other) * (1 - part)
    return xp.where(one >= 0, above, xp.where(other <= 0, below, one * (1 - part) + other * part))
