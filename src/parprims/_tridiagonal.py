"""Tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i]."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._arrays import (
    Array,
    Namespace,
    check_kind,
    compute_dtype,
    dtype_kind,
    dtype_name,
    is_traced,
    namespace,
    normalize_axis,
)
from parprims._dispatch import Method, Methods

Eliminate = Callable[[Array, Array, Array, tuple[Array, ...]], tuple[Array, ...]]
"""Takes lower, diag and upper of one shape and right-hand sides that broadcast against them; returns the solution
for each. It never reads lower[0] and upper[n-1]."""


def solve_tridiagonal(
    lower: Array,
    diag: Array,
    upper: Array,
    rhs: Array,
    /,
    *,
    axis: int = -1,
    periodic: bool = False,
    return_residual: bool = False,
    method: str = "auto",
) -> Any:
    """Solve tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i].

    Parameters
    ----------
    lower, diag, upper : array
        The coefficients, of real or complex floating dtypes that promote together, of equal length n along the
        axis and otherwise of shapes that broadcast: every other axis counts independent systems. lower[0] and
        upper[n-1] are not read, unless periodic.
    rhs : array
        The right-hand sides, of length n along the axis. With at most as many dimensions as the coefficients
        broadcast to, it holds one right-hand side per system and broadcasts against them. With exactly one
        dimension more, its last axis counts several right-hand sides of the same system, and its other axes
        are matched with those of the coefficients; so coefficients of shape (n,) take rhs of shape (n,) or
        (n, k). To solve one system for rhs of shape (k, n), give the coefficients shape (1, n).
    axis : int
        The axis along which the unknowns are numbered, in the shape the coefficients broadcast to.
    periodic : bool
        Whether the first and the last unknown are neighbours: lower[0] multiplies x[n-1] and upper[n-1]
        multiplies x[0].
    return_residual : bool
        Whether to return the backward error too.
    method : {"auto", "native", "array"}
        Who computes.

    Returns
    -------
    x : array
        The unknowns, of the promoted dtype, of the shape coefficients and rhs broadcast to. A solution that is
        not finite in every unknown is NaN in all of them.
    backward_error : array
        Only with return_residual: for every solution max |r[i]| / (|A| |x| + |rhs|)[i] with r = rhs - A x, the
        relative change of the system's numbers that makes x exact; inf where x is not finite. Real, of the
        precision computed in, of the shape of x without the axis.

    Raises
    ------
    TypeError
        If an argument is no array or not of a floating dtype, or arrays come from several libraries.
    ValueError
        If lengths along the axis differ, shapes do not broadcast, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: O(n log n) in ceil(log2 n) steps (array), O(n) in n steps (native).
    Traffic and launches: array passes about 40 times over its n rows at each step unless a compiler fuses them.
    Error: array exchanges no rows. If |lower| + |upper| <= t |diag| in every row, t < 1, then x is within about
    8 ceil(log2 n) / (1 - t) units in the last place of max |x|. On all other diagonally dominant, symmetric
    (Hermitian) positive definite and M-matrices no pivot vanishes before rounding, but as many digits may be lost
    as the condition number has. Elsewhere a pivot may be small, which loses digits, or zero, which gives NaN,
    though the matrix is regular. Ask for the residual there, or for native, whose row exchanges keep the backward
    error small on every regular matrix. A singular matrix gives NaN or, where rounding hides that it is, large
    numbers. Nothing is raised for either. Periodic systems add a correction of rank one (Sherman and Morrison) to a
    system that is dominant, definite or an M-matrix if theirs is, and lose digits where it is much better
    conditioned than theirs. 16-bit floats are solved in float32 and rounded once; XLA may take their residual before.
    Reproducibility: the same input gives the same bits, run after run.
    Methods: native (NumPy with SciPy installed: LAPACK's gtsv; JAX on a CPU, and on a GPU for one system at a
    time), array. The native methods are for float32, float64, complex64 and complex128.
    Reference: Hockney and Jesshope, Parallel Computers, 1981; Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, chapters 7 and 9.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> ones = np.ones(4)
    >>> parprims.solve_tridiagonal(-ones, 3 * ones, -ones, np.array([2.0, 1.0, 1.0, 2.0]))
    array([1., 1., 1., 1.])
    >>> x, error = parprims.solve_tridiagonal(ones, 4 * ones, ones, ones, return_residual=True, method="array")
    >>> bool(error < 1e-15)
    True
    """
    xp, s, dtype, columns = _checked(lower, diag, upper, rhs, axis, periodic)
    x = _METHODS(method, xp, s)
    rounded = x if x.dtype == dtype else xp.astype(x, dtype)
    solution = xp.moveaxis(rounded, 0, -1) if columns else rounded
    if not return_residual:
        return solution
    error = _backward_error(xp, s, x if rounded is x else xp.astype(rounded, x.dtype))
    return solution, xp.moveaxis(error, 0, -1) if columns else error


class _System:
    """One call, checked: what every method is given.

    ``lower``, ``diag`` and ``upper`` have one shape and, like ``rhs``, the dtype computed in. ``rhs`` broadcasts
    against them, to ``shape``; several right-hand sides of a system stand along an axis before all of theirs.
    ``axis`` counts from the end and ``n`` is the length along it; ``single`` tells that the coefficients hold one
    system only.
    """

    __slots__ = ("axis", "diag", "lower", "n", "periodic", "rhs", "shape", "single", "upper")

    def __init__(
        self, lower: Array, diag: Array, upper: Array, rhs: Array, shape: tuple[int, ...], axis: int, periodic: bool
    ) -> None:
        self.lower, self.diag, self.upper, self.rhs = lower, diag, upper, rhs
        self.shape, self.axis, self.periodic = shape, axis, periodic
        self.n = shape[axis]
        self.single = math.prod(diag.shape) == self.n


def _checked(
    lower: Array, diag: Array, upper: Array, rhs: Array, axis: Any, periodic: bool
) -> tuple[Namespace, _System, Any, bool]:
    """Return the namespace, the system, the dtype of the solution and whether rhs has an axis of its own."""
    xp = namespace(lower=lower, diag=diag, upper=upper, rhs=rhs)
    arrays = {"lower": lower, "diag": diag, "upper": upper, "rhs": rhs}
    for name, x in arrays.items():
        check_kind(name, x, ("float", "complex"))
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one dimension")
    ndim = max(lower.ndim, diag.ndim, upper.ndim)
    trailing = normalize_axis(axis, ndim) - ndim
    columns = rhs.ndim > ndim
    if rhs.ndim > ndim + 1:
        raise ValueError(f"rhs must have at most {ndim + 1} dimensions, one more than the coefficients, got {rhs.ndim}")
    for name, x in arrays.items():
        own = columns and name == "rhs"
        shape = x.shape[:-1] if own else x.shape
        if diag.ndim < -trailing or len(shape) < -trailing or shape[trailing] != diag.shape[trailing]:
            raise ValueError(
                f"{name} must have the length of diag along axis {axis} of the coefficients, got shapes {x.shape} and "
                f"{diag.shape}{' (the last axis of rhs counts right-hand sides)' if own else ''}"
            )
    if columns:
        rhs = xp.moveaxis(rhs, -1, 0)
    if not lower.shape == diag.shape == upper.shape:
        shape = _broadcast_shape("lower, diag and upper", lower.shape, diag.shape, upper.shape)
        lower, diag, upper = (xp.broadcast_to(x, shape) for x in (lower, diag, upper))
    shape = diag.shape
    if rhs.shape != shape:
        shape = _broadcast_shape("rhs and the coefficients", rhs.shape, shape)
    dtype = diag.dtype
    if not lower.dtype == dtype == upper.dtype == rhs.dtype:
        dtype = xp.result_type(lower, diag, upper, rhs)
    working = compute_dtype(xp, dtype)
    if not lower.dtype == diag.dtype == upper.dtype == rhs.dtype == working:
        lower, diag, upper, rhs = (xp.astype(x, working, copy=False) for x in (lower, diag, upper, rhs))
    return xp, _System(lower, diag, upper, rhs, shape, trailing, bool(periodic)), dtype, columns


def _broadcast_shape(names: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{names} must have shapes that broadcast, got {', '.join(map(str, shapes))}") from None


def _rows(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    """Return the index that takes rows start to stop along an axis counted from the end, and all of the others."""
    return (..., slice(start, stop), *(slice(None),) * (-1 - axis))


def _array(xp: Namespace, s: _System) -> Array:
    """Return the solutions by parallel cyclic reduction."""
    return _whole(xp, _solve(xp, s, functools.partial(_cyclic_reduction, xp, s.axis)), s.axis)


def _cyclic_reduction(
    xp: Namespace, axis: int, lower: Array, diag: Array, upper: Array, rhs: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Solve by ceil(log2 n) steps, each of which eliminates the neighbours of every row at once.

    Before the step of length s, row i reads x[i] = a[i] x[i-s] + c[i] x[i+s] + d[i]. Putting rows i-s and i+s into
    it gives the same form for neighbours 2s away; what would lie beyond an end has coefficient zero. Of a only the
    rows from s and of c only the rows before n-s are held, so that a[k] and c[k] link the rows k and k+s to one
    another. Of four rows, s = 1 links 0-1, 1-2, 2-3 and s = 2 links 0-2, 1-3; then every row stands alone: x = d.
    """
    n = diag.shape[axis]
    ds = tuple(one / diag for one in rhs)
    if n < 2:
        return ds
    a = -lower[_rows(axis, 1, n)] / diag[_rows(axis, 1, n)]
    c = -upper[_rows(axis, 0, n - 1)] / diag[_rows(axis, 0, n - 1)]
    step = 1
    while step < n:
        near, far = _rows(axis, 0, n - step), _rows(axis, step, n)
        ac = a * c
        pivot = 1 - _at_end(xp, ac, diag, axis) - _at_start(xp, ac, diag, axis)
        ds = tuple((d + _at_end(xp, a * d[near], d, axis) + _at_start(xp, c * d[far], d, axis)) / pivot for d in ds)
        if 2 * step < n:
            near, far = _rows(axis, 0, n - 2 * step), _rows(axis, step, n - step)
            a, c = a[near] * a[far] / pivot[_rows(axis, 2 * step, n)], c[near] * c[far] / pivot[near]
        step *= 2
    return ds


def _at_end(xp: Namespace, x: Array, like: Array, axis: int) -> Array:
    """Return x behind as many rows of zeros as make it as long as another array."""
    return xp.concat([xp.zeros_like(like[_rows(axis, 0, like.shape[axis] - x.shape[axis])]), x], axis=axis)


def _at_start(xp: Namespace, x: Array, like: Array, axis: int) -> Array:
    """Return x before as many rows of zeros as make it as long as another array."""
    return xp.concat([x, xp.zeros_like(like[_rows(axis, 0, like.shape[axis] - x.shape[axis])])], axis=axis)


def _solve(xp: Namespace, s: _System, eliminate: Eliminate) -> Array:
    """Return the solutions by a method for systems that are not periodic.

    A periodic matrix is a tridiagonal one plus u v^T, with u = (g, 0, ..., 0, upper[n-1]) and
    v = (1, 0, ..., 0, lower[0] / g): the solutions y for rhs and q for u give x = y - q (v.y) / (1 + v.q).
    """
    lower, diag, upper, n, axis = s.lower, s.diag, s.upper, s.n, s.axis
    if not s.periodic or n == 0:
        return eliminate(lower, diag, upper, (s.rhs,))[0]
    if n == 1:
        return eliminate(lower, lower + diag + upper, upper, (s.rhs,))[0]
    if n == 2:
        both = lower + upper
        return eliminate(both, diag, both, (s.rhs,))[0]
    first, inner, last = _rows(axis, 0, 1), _rows(axis, 1, n - 1), _rows(axis, n - 1, n)
    # Any g opposite in sign to diag[0] keeps a definite matrix definite and an M-matrix one; with |g| >= |lower[0]|
    # dominant rows stay dominant, and as the largest of its row it adds nothing larger than the matrix holds.
    size = xp.maximum(xp.maximum(xp.abs(lower[first]), xp.abs(upper[first])), xp.abs(diag[first]))
    real = xp.real(diag[first]) if dtype_kind(diag.dtype) == "complex" else diag[first]
    g = xp.astype(xp.where(real < 0, size, -size), diag.dtype, copy=False)
    v = lower[first] / g
    modified = xp.concat([diag[first] - g, diag[inner], diag[last] - v * upper[last]], axis=axis)
    u = xp.concat([g, xp.zeros_like(diag[inner]), upper[last]], axis=axis)
    y, q = eliminate(lower, modified, upper, (s.rhs, u))
    return y - q * ((y[first] + v * y[last]) / (1 + q[first] + v * q[last]))


def _whole(xp: Namespace, x: Array, axis: int) -> Array:
    """Return x with NaN throughout each solution that is not finite throughout."""
    return xp.where(xp.all(xp.isfinite(x), axis=axis, keepdims=True), x, math.nan)


def _backward_error(xp: Namespace, s: _System, x: Array) -> Array:
    """Return max |rhs - A x| / (|A| |x| + |rhs|) over the axis: 0 for 0/0, inf where anything is not finite."""
    lower, upper, axis = s.lower, s.upper, s.axis
    if not s.periodic and s.n > 0:
        lower, upper = _ends_cleared(xp, lower, upper, axis)
    terms = (lower * xp.roll(x, 1, axis=axis), s.diag * x, upper * xp.roll(x, -1, axis=axis))
    residual = xp.abs(s.rhs - terms[0] - terms[1] - terms[2])
    size = xp.abs(s.rhs) + xp.abs(terms[0]) + xp.abs(terms[1]) + xp.abs(terms[2])
    error = residual / xp.where(size == 0, 1.0, size)
    error = xp.where(xp.isfinite(size) & xp.isfinite(error), error, math.inf)
    return xp.max(error, axis=axis) if s.n > 0 else xp.sum(error, axis=axis)


def _ends_cleared(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper with zeros for lower[0] and upper[n-1]."""
    n = lower.shape[axis]
    zero = xp.zeros_like(lower[_rows(axis, 0, 1)])
    return (
        xp.concat([zero, lower[_rows(axis, 1, n)]], axis=axis),
        xp.concat([upper[_rows(axis, 0, n - 1)], zero], axis=axis),
    )


_LAPACK = {"float32": "sgtsv", "float64": "dgtsv", "complex64": "cgtsv", "complex128": "zgtsv"}


def _native(xp: Namespace, s: _System) -> Array:
    """Return the solutions by the library's own routine, which exchanges rows.

    Coefficients take the shape (systems, n) and rhs (columns, systems, n); if the coefficients hold a single
    system, all right-hand sides are its columns.
    """
    if math.prod(s.shape) == 0:
        return s.rhs / s.diag
    batch = s.diag.shape if s.single else s.shape[len(s.shape) - s.diag.ndim :]
    lower, diag, upper = (_axis_last(xp, x, batch, s.axis).reshape(-1, s.n) for x in (s.lower, s.diag, s.upper))
    rhs = _axis_last(xp, s.rhs, s.shape, s.axis)
    shape = rhs.shape
    rhs = rhs.reshape(-1, *diag.shape)
    flat = _System(lower, diag, upper, rhs, rhs.shape, -1, s.periodic)
    x = _solve(xp, flat, functools.partial(_exchange_rows, xp))
    if not (array_api_compat.is_numpy_namespace(xp) and np.isfinite(x).all()):
        x = _whole(xp, x, -1)
    x = x.reshape(shape)
    return x if s.axis == -1 else xp.moveaxis(x, -1, s.axis)


def _axis_last(xp: Namespace, x: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return x broadcast to the shape and with the axis moved to the end."""
    if x.shape != shape:
        x = xp.broadcast_to(x, shape)
    return x if axis == -1 else xp.moveaxis(x, axis, -1)


def _exchange_rows(xp: Namespace, lower: Array, diag: Array, upper: Array, rhs: tuple[Array, ...]) -> tuple[Array, ...]:
    solve = _lapack_solve if array_api_compat.is_numpy_namespace(xp) else _jax_solve
    if len(rhs) == 1:
        return (solve(xp, lower, diag, upper, rhs[0]),)
    x = solve(xp, lower, diag, upper, xp.concat([rhs[0], xp.expand_dims(rhs[1], axis=0)]))
    return x[:-1, ...], x[-1, ...]


def _lapack_solve(xp: Namespace, lower: Array, diag: Array, upper: Array, rhs: Array) -> Array:
    """Solve all systems as one, whose blocks no coefficient links.

    What is not finite, or a pivot of zero, may spoil the other systems all the same: then each half is solved by
    itself.
    """
    columns, systems, n = rhs.shape
    if n == 1:
        return rhs / diag
    if systems > 1:
        lower, upper = _ends_cleared(xp, lower, upper, -1)
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

    routine: Callable[..., Any] = getattr(lapack, _LAPACK[dtype])
    return routine


def _jax_solve(xp: Namespace, lower: Array, diag: Array, upper: Array, rhs: Array) -> Array:
    from jax.lax.linalg import tridiagonal_solve

    lower, upper = _ends_cleared(xp, lower, upper, -1)
    columns, systems, n = rhs.shape
    if systems > 1:
        return xp.moveaxis(tridiagonal_solve(lower, diag, upper, xp.moveaxis(rhs, 0, -1)), -1, 0)
    x = tridiagonal_solve(lower[0], diag[0], upper[0], rhs.reshape(columns, n).T)
    return x.T.reshape(rhs.shape)


@functools.cache
def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None


def _native_refusal(xp: Namespace, s: _System) -> str | None:
    if array_api_compat.is_numpy_namespace(xp):
        if not _has_scipy():
            return "NumPy has no tridiagonal solve, and SciPy, which brings LAPACK's, is not installed"
        if math.prod(s.shape) >= 2**31:
            return "LAPACK counts the unknowns in 32 bits"
    elif array_api_compat.is_jax_namespace(xp):
        platform, traced = _jax_platform(s)
        if platform != "cpu" and (platform != "gpu" or traced or s.n < 3 or not s.single):
            return "away from the CPU, JAX exchanges rows only on a GPU, for one untraced system of 3 unknowns or more"
    else:
        return f"{xp.__name__} has no tridiagonal solve"
    if dtype_name(s.diag.dtype) not in _LAPACK:
        return f"LAPACK does not compute in {dtype_name(s.diag.dtype)}"
    return None


def _jax_platform(s: _System) -> tuple[str, bool]:
    """Return the platform the arrays are or will be on, and whether they have no values yet.

    A traced array may stand for a batch of them.
    """
    import jax

    arrays = (s.lower, s.diag, s.upper, s.rhs)
    if any(is_traced(x) for x in arrays):
        return jax.default_backend(), True
    return next(iter(s.rhs.devices())).platform, False


_METHODS = Methods("solve_tridiagonal", native=Method(_native, _native_refusal), array=Method(_array))
