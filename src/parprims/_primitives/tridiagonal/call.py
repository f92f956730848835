"""Tridiagonal systems as all methods are given them, their product with a vector, and the errors of solutions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, namespace_of
from parprims._dispatch.dispatch import Checked

LAPACK = {"float32": "sgtsv", "float64": "dgtsv", "complex64": "cgtsv", "complex128": "zgtsv"}
"""The dtypes that LAPACK and the kernel compute in, with LAPACK's routine."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class System(Checked):
    """A checked call: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i].

    ``arrays`` are lower, diag, upper and rhs, of the dtype computed in. The coefficients broadcast to ``rows``, and
    with rhs to ``shape``, the shape of the solution. Several right-hand sides of a system are along an axis of rhs
    before the axes of the coefficients. ``axis`` counts from the end.
    """

    rows: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int
    periodic: bool
    pivot: str

    @property
    def rhs(self) -> Array:
        """The right-hand sides."""
        return self.arrays[3]

    @property
    def n(self) -> int:
        """The number of unknowns of a system."""
        return self.shape[self.axis]

    @property
    def is_single(self) -> bool:
        """Whether the coefficients are those of one system only."""
        return math.prod(self.rows) == self.n

    def coefficients(self, xp: Namespace) -> tuple[Array, Array, Array]:
        """Return lower, diag and upper, each broadcast to ``rows``."""
        lower, diag, upper = (
            x if tuple(x.shape) == self.rows else xp.broadcast_to(x, self.rows) for x in self.arrays[:3]
        )
        return lower, diag, upper

    def for_rhs(self, rhs: Array) -> System:
        """Return the system for right-hand sides of the full shape."""
        return dataclasses.replace(self, arrays=(*self.arrays[:3], rhs), key=None)

    def transposed(self, xp: Namespace, rhs: Array) -> System:
        """Return the system of the transposed matrix for right-hand sides of the full shape."""
        lower, diag, upper, _ = self.arrays
        lower, upper = transposed(xp, lower, upper, self.axis)
        return dataclasses.replace(self, arrays=(lower, diag, upper, rhs), key=None)


def transposed(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper of the transposed matrix. Corners are read only if a system is periodic."""

    def moved(x: Array, distance: int) -> Array:
        return x if x.ndim == 0 or x.shape[axis] == 1 else xp.roll(x, distance, axis=axis)

    return moved(upper, 1), moved(lower, -1)


def slice_rows(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    """Return the index that takes rows start to stop along an axis counted from the end."""
    return (..., slice(start, stop), *(slice(None),) * (-1 - axis))


def ends_cleared(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper with zeros for lower[0] and upper[n-1]."""
    n = lower.shape[axis]
    if n == 0:
        return lower, upper
    zero = xp.zeros_like(lower[slice_rows(axis, 0, 1)])
    return (
        xp.concat([zero, lower[slice_rows(axis, 1, n)]], axis=axis),
        xp.concat([upper[slice_rows(axis, 0, n - 1)], zero], axis=axis),
    )


Rows = tuple[Array, Array, Array, Array, Array, Array, Array]
"""Lower, diag, upper and rhs, unknowns, and those one row before and one row behind, of one shape."""


def _rows(xp: Namespace, s: System, x: Array) -> Rows:
    lower, diag, upper = s.coefficients(xp)
    if not s.periodic and s.n > 0:
        lower, upper = ends_cleared(xp, lower, upper, s.axis)
    return lower, diag, upper, s.rhs, x, xp.roll(x, 1, axis=s.axis), xp.roll(x, -1, axis=s.axis)


def _residual(xp: Namespace, rows: Rows, factor: Array | None = None) -> tuple[Array, Array]:
    """Return rhs - A x and |A| |x| + |rhs|.

    If there is a factor for each row, the coefficients and unknowns of the row are multiplied by it, and rhs by its
    square. What becomes infinite by that counts as zero.
    """

    def scaled(y: Array) -> Array:
        if factor is None:
            return y
        y = y * factor
        return xp.where(xp.isfinite(y), y, xp.zeros_like(y))

    lower, diag, upper, rhs, x, before, after = rows
    rhs = scaled(scaled(rhs))
    terms = scaled(lower) * scaled(before), scaled(diag) * scaled(x), scaled(upper) * scaled(after)
    size = xp.abs(rhs) + xp.abs(terms[0]) + xp.abs(terms[1]) + xp.abs(terms[2])
    return rhs - terms[0] - terms[1] - terms[2], size


def residual(xp: Namespace, s: System, x: Array) -> Array:
    """Return rhs - A x."""
    return _residual(xp, _rows(xp, s, x))[0]


def product(xp: Namespace, s: System, x: Array) -> Array:
    """Return A x."""
    return -residual(xp, s.for_rhs(xp.zeros_like(x)), x)


def backward_error(xp: Namespace, s: System, x: Array) -> Array:
    """Return max |rhs - A x| / (|A| |x| + |rhs|) over the axis: 0 for 0/0, inf where anything is not finite."""
    return _largest(xp, s, _ratio(xp, *_residual(xp, _rows(xp, s, x))))


def _ratio(xp: Namespace, residual: Array, size: Array) -> Array:
    error = xp.abs(residual) / xp.where(size == 0, xp.ones_like(size), size)
    return xp.where(xp.isfinite(size) & xp.isfinite(error), error, xp.full_like(error, math.inf))


def _largest(xp: Namespace, s: System, error: Array) -> Array:
    return xp.max(error, axis=s.axis) if s.n > 0 else xp.sum(error, axis=s.axis)


def _safe_ratio(least: float, exponents: int, *rows: Array) -> Array:
    """Return the backward error of each row, elementwise."""
    xp, x = namespace_of(rows[0]), rows[4]
    _, size = _residual(xp, rows)
    larger, smaller = 2.0 ** (3 * exponents // 4), 2.0 ** (-exponents // 2 - 2)
    factor = xp.where(size < least, xp.full_like(size, larger), xp.ones_like(size))
    factor = xp.where(xp.isfinite(size), factor, xp.full_like(size, smaller))
    error = _ratio(xp, *_residual(xp, rows, factor))
    return xp.where(xp.isfinite(x), error, xp.full_like(error, math.inf))


def safe_backward_error(xp: Namespace, s: System, x: Array, largest: Callable[..., Array] | None = None) -> Array:
    """Return `backward_error`, but inf only for solutions that are not finite.

    Rows whose products overflow are scaled down before, and rows whose products underflow are scaled up. The factors
    are powers of two, so that other rows keep their bits. If all products of a row are near the least normal number, a
    factor of 2^(3/4 of the range of exponents) makes only such numbers overflow as are multiplied by zero.

    ``largest``, if given, returns the largest value of an elementwise function of arrays along the axis.
    """
    info, rows = xp.finfo(x.dtype), _rows(xp, s, x)
    least, exponents = 4 * float(info.smallest_normal), round(math.log2(float(info.max)))
    ratio = functools.partial(_safe_ratio, least, exponents)
    if largest is not None and s.n > 0:
        return largest(ratio, *rows)
    if isinstance(x, np.ndarray):
        rest, size = _residual(xp, rows)
        if size.size and size.min() >= least and math.isfinite(size.max()):
            return _largest(xp, s, _ratio(xp, rest, size))  # as no row needs to be scaled
    return _largest(xp, s, ratio(*rows))


_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def status(xp: Namespace, s: System, x: Array, error: Array, dtype: Any) -> Array:
    """Return for each solution 0, or 1 if there is none, or 2 if its backward error is large for its dtype."""
    finite = xp.all(xp.isfinite(x), axis=s.axis)
    eps = _EPS.get(dtype_name(dtype)) or xp.finfo(error.dtype).eps
    inaccurate = xp.astype(error > math.sqrt(eps), xp.int32)
    return xp.where(finite, 2 * inaccurate, xp.ones_like(inaccurate))


def nan(xp: Namespace, x: Array, axis: int) -> Array:
    """Return NaN for each solution, as an array: version 2023.12 of the standard has no `where` of numbers."""
    return xp.full_like(x[slice_rows(axis, 0, 1)] if x.shape[axis] else x, math.nan)


def whole(xp: Namespace, x: Array, axis: int) -> Array:
    """Return x, with NaN for all unknowns of a solution if one is not finite."""
    return xp.where(xp.all(xp.isfinite(x), axis=axis, keepdims=True), x, nan(xp, x, axis))


_ROUNDED_TO_INFINITY = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least number that rounds to infinity."""


def rounded(xp: Namespace, x: Array, dtype: Any, axis: int) -> Array:
    """Return x in a 16-bit dtype, with NaN for all unknowns of a solution if one is not finite in it."""
    within = xp.abs(x) < _ROUNDED_TO_INFINITY[dtype_name(dtype)]
    return xp.astype(xp.where(xp.all(within, axis=axis, keepdims=True), x, nan(xp, x, axis)), dtype)
