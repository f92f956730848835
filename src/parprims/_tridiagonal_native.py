"""Tridiagonal systems by the libraries' own routines: LAPACK's gtsv for NumPy, and JAX's routine."""

from __future__ import annotations

import functools
import importlib.util
import math
from cmath import isfinite
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._arrays import Array, Namespace, dtype_name, is_traced, move_axis, quiet, varying_alike
from parprims._dispatch import directly
from parprims._tridiagonal_array import empty, solve_by
from parprims._tridiagonal_system import LAPACK, System, ends_cleared, whole


def prepare(xp: Namespace, s: System) -> Callable[..., Array]:
    """Return a function that computes the solutions by the library's own routine, which exchanges rows."""
    found = directly(_native)(xp, s)
    single = len(s.shape) == 1 and s.n > 1 and all(tuple(x.shape) == s.shape for x in s.arrays) and not s.periodic
    if not (single and array_api_compat.is_numpy_namespace(xp)):
        return found
    gtsv = _gtsv(dtype_name(s.rhs.dtype))

    def solve(lower: Array, diag: Array, upper: Array, rhs: Array) -> Array:
        """Return the solution of one system by one call of LAPACK, if all of its numbers are finite."""
        lower_read, upper_read = lower[1:], upper[:-1]
        *_, x, info = gtsv(lower_read, diag, upper_read, rhs)
        # A product with a number that is not finite is not finite, and neither is a sum with one. (If rhs is not
        # finite, x is not.) Scalar products take less time than any other test.
        if info == 0 and isfinite(lower_read.dot(upper_read) + diag.dot(x)):
            return x
        return found(lower, diag, upper, rhs)

    return solve


def _native(xp: Namespace, s: System) -> Array:
    """Return the solutions by the library's own routine."""
    with quiet(xp):
        return _by_library(xp, s)


def _by_library(xp: Namespace, s: System) -> Array:
    """Return the solutions by the library's own routine.

    Coefficients are broadcast to the shape (systems, n), and rhs to (columns, systems, n). If the coefficients are
    those of one system, all right-hand sides are its columns.
    """
    if math.prod(s.shape) == 0:
        return empty(xp, s)
    batch = s.rows if s.is_single else s.shape[len(s.shape) - len(s.rows) :]
    lower, diag, upper = (_axis_last(xp, x, batch, s.axis).reshape(-1, s.n) for x in s.coefficients(xp))
    rhs = _axis_last(xp, s.rhs, s.shape, s.axis)
    shape = rhs.shape
    rhs = rhs.reshape(-1, *diag.shape)
    flat = System(
        arrays=(lower, diag, upper, rhs),
        rows=tuple(diag.shape),
        shape=tuple(rhs.shape),
        axis=-1,
        periodic=s.periodic,
        pivot=s.pivot,
    )
    x = solve_by(xp, flat, functools.partial(_exchange_rows, xp))
    if not (array_api_compat.is_numpy_namespace(xp) and np.isfinite(x).all()):
        x = whole(xp, x, -1)
    x = x.reshape(shape)
    return x if s.axis == -1 else move_axis(xp, x, -1, s.axis)


def _axis_last(xp: Namespace, x: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return x broadcast to the shape and with the axis moved to the end."""
    if x.shape != shape:
        x = xp.broadcast_to(x, shape)
    return x if axis == -1 else move_axis(xp, x, axis, -1)


def _exchange_rows(xp: Namespace, lower: Array, diag: Array, upper: Array, rhs: tuple[Array, ...]) -> tuple[Array, ...]:
    solve = _lapack_solve if array_api_compat.is_numpy_namespace(xp) else _jax_solve
    if len(rhs) == 1:
        return (solve(xp, lower, diag, upper, rhs[0]),)
    x = solve(xp, lower, diag, upper, xp.concat([rhs[0], xp.expand_dims(rhs[1], axis=0)]))
    return x[:-1, ...], x[-1, ...]


def _lapack_solve(xp: Namespace, lower: Array, diag: Array, upper: Array, rhs: Array) -> Array:
    """Solve all systems as one, whose blocks are not coupled by any coefficient.

    A number that is not finite, or a zero pivot, may still spoil other systems. Then each half of the systems is solved
    separately.
    """
    columns, systems, n = rhs.shape
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
        [_lapack_solve(xp, lower[half], diag[half], upper[half], rhs[:, half]) for half in halves], axis=1
    )


@functools.cache
def _gtsv(dtype: str) -> Callable[..., Any]:
    from scipy.linalg import lapack

    routine: Callable[..., Any] = getattr(lapack, LAPACK[dtype])
    return routine


def _jax_solve(xp: Namespace, lower: Array, diag: Array, upper: Array, rhs: Array) -> Array:
    from jax.lax.linalg import tridiagonal_solve

    lower, diag, upper, rhs = varying_alike((lower, diag, upper, rhs))
    lower, upper = ends_cleared(xp, lower, upper, -1)
    columns, systems, n = rhs.shape
    if systems > 1:
        return xp.moveaxis(tridiagonal_solve(lower, diag, upper, xp.moveaxis(rhs, 0, -1)), -1, 0)
    x = tridiagonal_solve(lower[0], diag[0], upper[0], rhs.reshape(columns, n).T)
    return x.T.reshape(rhs.shape)


@functools.cache
def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None


def refusal(xp: Namespace, s: System) -> str | None:
    """Return why the library has no routine for a call, or None."""
    if array_api_compat.is_numpy_namespace(xp):
        if not _has_scipy():
            return "NumPy has no tridiagonal solve, and SciPy, which brings LAPACK's, is not installed"
        if math.prod(s.shape) >= 2**31:
            return "LAPACK counts the unknowns in 32 bits"
    elif array_api_compat.is_jax_namespace(xp):
        platform, traced = _jax_platform(s)
        if platform != "cpu" and (platform != "gpu" or traced or s.n < 3 or not s.is_single):
            return "away from the CPU, JAX exchanges rows only on a GPU, for one untraced system of 3 unknowns or more"
    else:
        return f"{xp.__name__} has no tridiagonal solve"
    if dtype_name(s.rhs.dtype) not in LAPACK:
        return f"LAPACK does not compute in {dtype_name(s.rhs.dtype)}"
    return None


def _jax_platform(s: System) -> tuple[str, bool]:
    """Return the platform that the arrays are or will be on, and whether they have no values yet.

    A traced array may stand for a batch of them.
    """
    import jax

    if any(is_traced(x) for x in s.arrays):
        return jax.default_backend(), True
    return next(iter(s.rhs.devices())).platform, False


def slower(_: Namespace, s: System) -> str | None:
    """Return why ``auto`` does not take the library's routine, or None."""
    if s.periodic and s.pivot != "none":
        return "a correction of rank one may lose digits that exchanges of rows keep"
    return None
