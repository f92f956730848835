"""Tridiagonal systems by the libraries' own routines: LAPACK's gtsv for NumPy and PyTorch on a CPU, and JAX's routine.

If SciPy is installed, LAPACK also solves JAX arrays in CPU memory outside of programs. If many systems are adjacent in
memory, NumPy carries out the steps of gtsv without row exchanges for all systems at once.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from cmath import isfinite
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, library, library_title, move_axis, quiet
from parprims._core.jax_arrays import is_traced, jax_platform, varying_alike
from parprims._dispatch.dispatch import directly
from parprims._libraries.numpy_bridge import NOT_IN_NUMPY, as_numpy, by_numpy, has_values, in_numpy, numpy_namespace
from parprims._primitives.tridiagonal.array import empty, solve_by
from parprims._primitives.tridiagonal.call import LAPACK, System, ends_cleared, whole

_Coefficients = tuple[Array, Array, Array]
"""Lower, diag and upper."""


def prepare(xp: Namespace, s: System) -> Callable[..., Array]:
    """Return a function that computes the solutions by the library's own routine, which exchanges rows."""
    if library(xp) == "torch" or is_eager(xp, s):
        return by_numpy(xp, s.arrays, prepare(numpy_namespace(), s.on(*map(as_numpy, s.arrays))))
    solve_any = directly(_native)(xp, s)
    single = len(s.shape) == 1 and s.n > 1 and all(tuple(x.shape) == s.shape for x in s.arrays) and not s.periodic
    if not (single and array_api_compat.is_numpy_namespace(xp)):
        return solve_any
    gtsv = _gtsv(dtype_name(s.rhs.dtype))

    def solve(lower: Array, diag: Array, upper: Array, rhs: Array) -> Array:
        """Return the solution of one system by one call of LAPACK, if all of its numbers are finite."""
        lower_read, upper_read = lower[1:], upper[:-1]
        *_, x, info = gtsv(lower_read, diag, upper_read, rhs)
        # Products and sums with a number that is not finite are not finite. (If rhs is not finite, x is not.) A scalar
        # product is the fastest test.
        if info == 0 and isfinite(lower_read.dot(upper_read) + diag.dot(x)):
            return x
        return solve_any(lower, diag, upper, rhs)

    return solve


def is_eager(xp: Namespace, s: System) -> bool:
    """Return whether systems of JAX are solved outside of a program: by LAPACK, without a copy of the arrays."""
    return has_values(xp, s.arrays) and _has_scipy() and math.prod(s.shape) < _MOST


def _native(xp: Namespace, s: System) -> Array:
    """Return the solutions by the library's own routine."""
    with quiet(xp):
        return _by_library(xp, s)


def _by_library(xp: Namespace, s: System) -> Array:
    """Return the solutions by the library's own routine.

    Coefficients are broadcast to the shape (systems, n), and rhs to (columns, systems, n). If the coefficients belong
    to one system, all right-hand sides are its columns.
    """
    if math.prod(s.shape) == 0:
        return empty(xp, s)
    batch = s.rows if s.is_single else s.shape[len(s.shape) - len(s.rows) :]
    steps = array_api_compat.is_numpy_namespace(xp) and _side_by_side(batch, s.axis)
    # The axis comes before the systems where steps go along it, else behind them.
    to = -len(batch) if steps else -1
    lower, diag, upper = (_axis_moved(xp, x, batch, axis=s.axis, to=to) for x in s.coefficients(xp))
    rhs = _axis_moved(xp, s.rhs, s.shape, axis=s.axis, to=to)
    shape = rhs.shape
    lower, diag, upper = (x.reshape((s.n, -1) if steps else (-1, s.n)) for x in (lower, diag, upper))
    rhs = rhs.reshape(-1, *diag.shape)
    flat = System(
        arrays=(lower, diag, upper, rhs),
        rows=tuple(diag.shape),
        shape=tuple(rhs.shape),
        axis=-2 if steps else -1,
        periodic=s.periodic,
        pivot=s.pivot,
    )
    solve = _by_steps if steps else _lapack_solve if array_api_compat.is_numpy_namespace(xp) else _jax_solve
    x = solve_by(xp, flat, functools.partial(_exchange_rows, xp, solve))
    if not (array_api_compat.is_numpy_namespace(xp) and np.isfinite(x).all()):
        x = whole(xp, x, flat.axis)
    x = x.reshape(shape)
    return x if s.axis == to else move_axis(xp, x, to, s.axis)


def _axis_moved(xp: Namespace, x: Array, shape: tuple[int, ...], axis: int, to: int) -> Array:
    """Return x broadcast to the shape and with the axis moved."""
    if x.shape != shape:
        x = xp.broadcast_to(x, shape)
    return x if axis == to else move_axis(xp, x, axis, to)


def _exchange_rows(
    xp: Namespace,
    solve: Callable[[Namespace, _Coefficients, Array], Array],
    lower: Array,
    diag: Array,
    upper: Array,
    rhs: tuple[Array, ...],
) -> tuple[Array, ...]:
    coefficients = lower, diag, upper
    if len(rhs) == 1:
        return (solve(xp, coefficients, rhs[0]),)
    x = solve(xp, coefficients, xp.concat([rhs[0], xp.expand_dims(rhs[1], axis=0)]))
    return x[:-1, ...], x[-1, ...]


_SIDE_BY_SIDE, _TOGETHER = 512, 64
"""The fewest systems, and the fewest adjacent in memory, that NumPy solves by steps along all of them.

A step costs eight calls of NumPy, 5 to 10 microseconds, and LAPACK 30 to 50 ns for an unknown. Measured on 16 to 16384
systems of 64 to 1000 unknowns.
"""


def _side_by_side(batch: tuple[int, ...], axis: int) -> bool:
    """Return whether enough systems are adjacent in memory for NumPy's steps along all of them to pay."""
    systems = math.prod(batch) // batch[axis]
    return systems >= _SIDE_BY_SIDE and math.prod(batch[len(batch) + axis + 1 :]) >= _TOGETHER


def _by_steps(xp: Namespace, coefficients: _Coefficients, rhs: Array) -> Array:
    """Solve systems that are adjacent in memory, a row of all systems at a time, by LAPACK's elimination.

    LAPACK exchanges rows if a number is larger than the pivot above it. Such systems, and systems with numbers that are
    not finite, are left to LAPACK.
    """
    x, largest = _eliminated(*coefficients, rhs)
    exchanging = np.flatnonzero(~(largest <= 1))
    if exchanging.size:
        lower, diag, upper, right = (
            np.ascontiguousarray(np.swapaxes(array[..., exchanging], -1, -2)) for array in (*coefficients, rhs)
        )
        x[..., exchanging] = np.swapaxes(_lapack_solve(xp, (lower, diag, upper), right), -1, -2)
    return x


def _eliminated(lower: Array, diag: Array, upper: Array, rhs: Array) -> tuple[Array, Array]:
    """Return solutions by an elimination without exchanges, and the largest factor of each system."""
    pivots, x = np.empty_like(diag), np.moveaxis(np.empty_like(rhs), -2, 0)
    rhs = np.moveaxis(rhs, -2, 0)
    factor, size, product = np.empty_like(diag[0]), np.empty(diag.shape[1:], abs(diag[:1]).dtype), np.empty_like(x[0])
    largest = np.zeros_like(size)
    pivots[0], x[0] = diag[0], rhs[0]
    rows = zip(lower[1:], diag[1:], upper, rhs[1:], pivots, pivots[1:], x, x[1:], strict=False)
    for a, b, c, d, above, pivot, y, z in rows:
        np.divide(a, above, out=factor)
        np.maximum(largest, np.abs(factor, out=size), out=largest)  # which keeps NaN
        np.subtract(b, np.multiply(factor, c, out=pivot), out=pivot)
        np.subtract(d, np.multiply(factor, y, out=z), out=z)
    x[-1] /= pivots[-1]
    for c, pivot, below, z in zip(upper[-2::-1], pivots[-2::-1], x[:0:-1], x[-2::-1], strict=True):
        np.subtract(z, np.multiply(c, below, out=product), out=z)
        np.divide(z, pivot, out=z)
    return np.moveaxis(x, 0, -2), largest


def _lapack_solve(xp: Namespace, coefficients: _Coefficients, rhs: Array) -> Array:
    """Solve all systems as a single system with uncoupled blocks.

    A number that is not finite, or a zero pivot, may still spoil other systems. Then each half of the systems is solved
    separately.
    """
    (lower, diag, upper), (columns, systems, n) = coefficients, rhs.shape
    if n == 1:
        return rhs / diag
    if systems > 1:
        lower, upper = ends_cleared(xp, lower, upper, -1)
    gtsv = _gtsv(dtype_name(diag.dtype))
    *_, x, info = gtsv(lower.reshape(-1)[1:], diag.reshape(-1), upper.reshape(-1)[:-1], rhs.reshape(columns, -1).T)
    if info == 0 and (systems == 1 or np.isfinite(x).all()):
        return x.T.reshape(rhs.shape)
    if systems == 1:
        return np.full_like(rhs, math.nan)
    halves = slice(systems // 2), slice(systems // 2, systems)
    return np.concatenate(
        [_lapack_solve(xp, (lower[half], diag[half], upper[half]), rhs[:, half]) for half in halves], axis=1
    )


@functools.cache
def _gtsv(dtype: str) -> Callable[..., Any]:
    from scipy.linalg import lapack

    routine: Callable[..., Any] = getattr(lapack, LAPACK[dtype])
    return routine


def _jax_solve(xp: Namespace, coefficients: _Coefficients, rhs: Array) -> Array:
    from jax.lax.linalg import tridiagonal_solve

    lower, diag, upper, rhs = varying_alike((*coefficients, rhs))
    lower, upper = ends_cleared(xp, lower, upper, -1)
    columns, systems, n = rhs.shape
    if systems > 1:
        return xp.moveaxis(tridiagonal_solve(lower, diag, upper, xp.moveaxis(rhs, 0, -1)), -1, 0)
    x = tridiagonal_solve(lower[0], diag[0], upper[0], rhs.reshape(columns, n).T)
    return x.T.reshape(rhs.shape)


_MOST = 2**31
"""LAPACK counts unknowns below this number."""


@functools.cache
def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None


def refusal(xp: Namespace, s: System) -> str | None:
    """Return why the library has no routine for a call, or None."""
    if in_numpy(xp, s.arrays):
        if not _has_scipy():
            return "NumPy has no tridiagonal solve, and SciPy, which brings LAPACK's, is not installed"
        if math.prod(s.shape) >= _MOST:
            return "LAPACK counts the unknowns in 32 bits"
    elif array_api_compat.is_jax_namespace(xp):
        platform, traced = jax_platform(s.arrays), any(map(is_traced, s.arrays))  # a tracer may represent a batch
        if platform != "cpu" and (platform != "gpu" or traced or s.n < 3 or not s.is_single):
            return "away from the CPU, JAX exchanges rows only on a GPU, for one untraced system of 3 unknowns or more"
    else:
        return f"{library_title(xp)} has no tridiagonal solve{NOT_IN_NUMPY.get(library(xp), '')}"
    if dtype_name(s.rhs.dtype) not in LAPACK:
        return f"LAPACK does not compute in {dtype_name(s.rhs.dtype)}"
    return None


def slower(_: Namespace, s: System) -> str | None:
    """Return why ``auto`` does not take the library's routine, or None."""
    if s.periodic and s.pivot != "none":
        return "its correction of rank one for periodic systems may lose digits that row exchanges keep"
    return None
