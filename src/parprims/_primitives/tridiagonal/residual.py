"""The product of tridiagonal matrices with vectors, and the errors of solutions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, namespace_of
from parprims._primitives.tridiagonal.call import System, ends_cleared

Rows = tuple[Array, Array, Array, Array, Array, Array, Array]
"""Lower, diag, upper, rhs, the unknowns, and the unknowns one row before and one row after, of one shape."""


def _rows(xp: Namespace, s: System, x: Array) -> Rows:
    lower, diag, upper = s.coefficients(xp)
    if not s.periodic and s.n > 0:
        lower, upper = ends_cleared(xp, lower, upper, s.axis)
    return lower, diag, upper, s.rhs, x, xp.roll(x, 1, axis=s.axis), xp.roll(x, -1, axis=s.axis)


def _residual(xp: Namespace, rows: Rows, factor: Array | None = None) -> tuple[Array, Array]:
    """Return rhs - A x and |A| |x| + |rhs|.

    If there is a factor for each row, the coefficients and unknowns of the row are multiplied by it, and rhs by its
    square. Products that overflow count as zero.
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

    Rows with products that overflow are scaled down first, and rows with products that underflow are scaled up. Factors
    are powers of two, so that other rows keep their bits. If all products of a row are near the least normal number, a
    factor of 2^(3/4 of the range of exponents) lets only numbers overflow that are multiplied by zero.

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
    """Return the status of each solution: 0, 1 if it is not finite, 2 if its backward error is large for the dtype."""
    finite = xp.all(xp.isfinite(x), axis=s.axis)
    eps = _EPS.get(dtype_name(dtype)) or xp.finfo(error.dtype).eps
    inaccurate = xp.astype(error > math.sqrt(eps), xp.int32)
    return xp.where(finite, 2 * inaccurate, xp.ones_like(inaccurate))
