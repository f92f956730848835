"""Linear recurrences by array operations, and by library routines."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    along,
    cast,
    dtype_kind,
    dtype_name,
    is_jax,
    library,
    library_title,
    quiet,
    ring_dtype,
)
from parprims._core.jax_arrays import varying_alike
from parprims._dispatch.dispatch import directly
from parprims._libraries.numpy_bridge import NOT_IN_NUMPY, as_numpy, in_numpy, returned
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.recurrence.parts import by_parts
from parprims._primitives.scan.array import interleave, library_inclusive, steps_in_jax

# ---- As a recurrence of the maps of parts -------------------------------------------------------------------------


def array(xp: Namespace, r: Recurrence) -> Array:
    """Return the solution by parts of parts."""
    with quiet(xp):  # products of coefficients may overflow without an effect on the result
        return _solution(xp, r, functools.partial(by_parts, xp))


def _solution(xp: Namespace, r: Recurrence, solve: Callable[[Array, Array, int, Array | None], Array]) -> Array:
    """Return the result of a call; ``solve`` solves from the front, after an initial element or None."""
    axis = r.axis
    a, b = (cast(xp, xp.broadcast_to(x, r.shape), ring_dtype(xp, r.dtype)) for x in r.inputs)
    if r.reverse:
        a, b = xp.flip(a, axis=axis), xp.flip(b, axis=axis)
    start = cast(xp, r.starts[0], b.dtype) if r.starts else None
    x = xp.concat([b], axis=axis) if 0 in r.shape else solve(a, b, axis, start)
    if r.reverse:
        x = xp.flip(x, axis=axis)
    return cast(xp, x, r.dtype)


def _after_first(solve: Callable[..., Array]) -> Callable[..., Array]:
    """Return a solver that combines the initial element with the first of its elements."""

    def solution(xp: Namespace, a: Array, b: Array, axis: int, start: Array | None) -> Array:
        if start is not None:
            first = a[along(axis, 0, 1)] * start + b[along(axis, 0, 1)]
            b = xp.concat([first, b[along(axis, 1, None)]], axis=axis)
        return solve(xp, a, b, axis) if b.shape[axis] > 1 else xp.concat([b], axis=axis)

    return solution


def _product(c: Array, x: Array, zero: Array) -> Array:
    """Return c x, where an overflowed c times a zero is zero."""
    xp = array_api_compat.array_namespace(c)
    product = c * x
    return xp.where((product != product) & zero, xp.zeros_like(product), product)


def _compose(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (c, d) = earlier, later
    return _product(c, a, (c == 0) | (a == 0)), _product(c, b, b == 0) + d


_COMPOSE = Operator(_compose, name="recurrence", components=2)


def _by_pairs(xp: Namespace, a: Array, b: Array, axis: int) -> Array:
    """Return the solution of a recurrence with x[0] = b[0]: neighbours are composed by hand, the pairs scanned.

    The coefficients of pairs are products and may overflow, so `_compose` checks them. The coefficients of the call
    need half of these checks. A coefficient that is infinite or NaN makes the right-hand side of its pair NaN, which
    distinguishes it from an overflow.
    """
    n = b.shape[axis]
    first, second = along(axis, 0, 1), along(axis, 1, 2)
    evens, odds = along(axis, 2, n - 1, 2), along(axis, min(3, n), n, 2)
    c = xp.concat([a[second], a[odds] * a[evens]], axis=axis)
    nan_if_not_finite = a[evens] - a[evens]
    d = xp.concat([a[second] * b[first] + b[second], a[odds] * b[evens] + b[odds] + nan_if_not_finite], axis=axis)
    op = BUILT_IN["affine"] if dtype_kind(b.dtype) in ("int", "uint") else _COMPOSE
    odd = library_inclusive(xp, (c, d), op, axis)[1] if n > 3 else d
    rest = along(axis, 2, n, 2)
    even = a[rest] * odd[along(axis, 0, (n - 1) // 2)] + b[rest]
    return interleave(xp, b, even, odd, axis=axis)


# ---- By the library's own routine -------------------------------------------------------------------------------

_BLAS = {"float32": "stbsv", "float64": "dtbsv", "complex64": "ctbsv", "complex128": "ztbsv"}
"""BLAS's solvers of triangular band systems, by dtype."""

_SIDE_BY_SIDE, _TOGETHER = 128, 16
"""The fewest lines, and the fewest adjacent lines, for which NumPy steps along all lines at once.

A step costs two calls of NumPy, about a microsecond; BLAS takes about 10 ns for an element. Measured from 16 to 16384
lines of 64 to 1000 elements of float32 and float64, and with 2 to 64 lines together.
"""


def prepare_native(xp: Namespace, r: Recurrence) -> Callable[..., Array]:
    """Return a solver that takes one step after another: by JAX's loop, BLAS, SciPy or NumPy."""
    if is_jax(xp):
        return directly(_native_jax)(xp, r)
    name = dtype_name(r.dtype)
    plain = all(x.dtype == r.dtype and tuple(x.shape) in (r.shape, ()) for x in r.inputs)
    if len(r.shape) == 1 < r.n and name in _BLAS and plain and not (r.starts or r.constant or r.inputs[1].ndim == 0):
        if library(xp) == "numpy":
            return functools.partial(_one_line, name, r.reverse)
        return lambda a, b: returned(xp, _one_line(name, r.reverse, as_numpy(a), as_numpy(b)))
    return directly(_native)(xp, r)


def native_refusal(xp: Namespace, r: Recurrence) -> str | None:
    """Return the reason why the library has no routine for the call, or None."""
    if is_jax(xp):
        return None
    if not in_numpy(xp, r.arrays):
        return f"{library_title(xp)} has no linear recurrence{NOT_IN_NUMPY.get(library(xp), '')}"
    if _side_by_side(r):
        return None
    name = dtype_name(ring_dtype(xp, r.dtype))
    if name not in _BLAS:
        return f"BLAS solves recurrences of floats, not of {name}; NumPy's steps need more adjacent lines"
    if math.prod(r.shape) >= 2**30:
        return "BLAS counts elements in 32 bits"
    return None if _has_scipy() else "SciPy, which brings BLAS, is not installed"


def _native_jax(xp: Namespace, r: Recurrence) -> Array:
    """Return the solution by JAX's loop where that is fastest, else by its associative scan."""
    return _solution(xp, r, functools.partial(_after_first(_by_loop if steps_in_jax() else _by_pairs), xp))


def _by_loop(xp: Namespace, a: Array, b: Array, axis: int) -> Array:
    """Return the solution by JAX's loop over all elements, including the first; to omit it would take copies."""
    import jax

    a, b = varying_alike((xp.moveaxis(a, axis, 0), xp.moveaxis(b, axis, 0)))

    def step(carry: tuple[Array, Array], coefficients: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        x, is_first = carry
        c, d = coefficients
        x = xp.where(is_first, d, c * x + d)
        return (x, xp.zeros_like(is_first)), x

    _, x = jax.lax.scan(step, (b[0], xp.ones((), dtype=bool)), (a, b))
    return xp.moveaxis(x, 0, axis)


def _native(xp: Namespace, r: Recurrence) -> Array:
    """Return the solution, computed in NumPy's arrays."""
    working = ring_dtype(xp, r.dtype)
    a, b, *starts = (as_numpy(cast(xp, x, working)) for x in r.arrays)
    if 0 in r.shape:
        return r.empty(xp)
    solve = _by_steps if _side_by_side(r) else _by_lines
    a, b = np.broadcast_to(a, r.shape), np.broadcast_to(b, r.shape)
    return cast(xp, returned(xp, solve(a, b, starts[0] if starts else None, axis=r.axis, reverse=r.reverse)), r.dtype)


def _side_by_side(r: Recurrence) -> bool:
    """Return whether there are enough lines, and adjacent lines, to step along all of them at once."""
    others = math.prod(r.shape) // max(1, r.n)
    return others >= _SIDE_BY_SIDE and math.prod(r.shape[r.axis + 1 :]) >= _TOGETHER


def _by_steps(a: Any, b: Any, start: Any, axis: int, reverse: bool) -> Any:
    """Return the solution by steps along the axis, each for all lines."""
    x = np.empty(b.shape, b.dtype)
    order = slice(None, None, -1 if reverse else 1)
    a, b, y = (array.swapaxes(axis, 0)[order] for array in (a, b, x))
    y[0] = b[0] if start is None else a[0] * start.swapaxes(axis, 0)[0] + b[0]
    for c, d, before, here in zip(a[1:], b[1:], y[:-1], y[1:], strict=True):
        np.multiply(c, before, out=here)
        np.add(here, d, out=here)
    return x


def _by_lines(a: Any, b: Any, start: Any, axis: int, reverse: bool) -> Any:
    """Return the solution of one line after another."""
    a, b = a.swapaxes(axis, -1), b.swapaxes(axis, -1)
    n = b.shape[-1]
    first = n - 1 if reverse else 0
    x = np.array(b, order="C").reshape(-1, n)
    if start is not None:
        x[:, first] += (a[..., first] * start.swapaxes(axis, -1)[..., 0]).reshape(-1)
    if not any(a.strides) and "scipy.signal" in sys.modules:
        x = _filter(a.flat[0], x, reverse)
    else:
        _by_band(a.reshape(x.shape), x, reverse)
    return x.reshape(b.shape).swapaxes(axis, -1)


def _filter(a: Any, x: Any, reverse: bool) -> Any:
    """Return the solution for one coefficient by SciPy's filter, twice as fast as BLAS.

    SciPy's signal package is used only if the program has imported it: the import takes longer than a recurrence of
    10^8 elements.
    """
    from scipy.signal import lfilter

    order = slice(None, None, -1 if reverse else 1)
    unit = np.ones((), x.dtype)
    return lfilter(np.stack([unit]), np.stack([unit, -a]), x[:, order], axis=-1)[:, order]


_BLOCK = 2**13
"""Elements of one call of BLAS: as many as fit in a cache."""


def _by_band(a: Any, x: Any, reverse: bool) -> None:
    """Solve every line of x by BLAS, in place: long ones part by part, short ones several at a time.

    Several short lines are solved as one line with zero coefficients between them. If a line ends in an infinity or
    NaN, which would reach the next line, each line is solved separately.
    """
    lines, n = x.shape
    several, width = max(1, _BLOCK // n), min(n, _BLOCK)
    starts = range(0, n, width)
    behind, first, last = (1, -1, 0) if reverse else (-1, 0, -1)
    buffer = np.empty((several * width, 2), x.dtype)
    for line, start in itertools.product(range(0, lines, several), reversed(starts) if reverse else starts):
        part_of_lines = slice(line, line + several), slice(start, start + width)
        part, coefficients = x[part_of_lines], a[part_of_lines]
        if start != (starts[-1] if reverse else 0):
            edge = range(n)[part_of_lines[1]][first]
            part[:, first] += coefficients[:, first] * x[line, edge + behind]
        band = buffer[: part.size].reshape(*part.shape, 2)
        np.negative(coefficients, out=band[..., int(reverse)])
        band[:, first] = 0
        y = _solve_band(band.reshape(-1, 2), part.reshape(-1), reverse).reshape(part.shape)
        if len(y) > 1 and not np.isfinite(y[:, last]).all():
            y = np.stack([_solve_band(c, d, reverse) for c, d in zip(band, part, strict=True)])
        part[...] = y


def _solve_band(band: Any, x: Any, reverse: bool) -> Any:
    """Return the solution, given the coefficients with the opposite sign in a column of the band.

    The row of the matrix for x[n] is 1 at n and -a[n] at n-1, or n+1 if reverse. BLAS stores a band by columns, so it
    solves with the transpose. In this form BLAS multiplies every coefficient, also by zeros.
    """
    return _tbsv(x.dtype.name)(1, band.T, x, trans=1, diag=1, lower=int(reverse))


def _one_line(name: str, reverse: bool, a: Array, b: Array) -> Array:
    """Return the solution for arrays of one dimension without an initial element."""
    band = np.empty((2, b.size), b.dtype, "F")
    np.negative(a, out=band[int(reverse)])
    return _tbsv(name)(1, band, b, trans=1, diag=1, lower=int(reverse))


@functools.cache
def _tbsv(dtype: str) -> Callable[..., Any]:
    from scipy.linalg import blas

    routine: Callable[..., Any] = getattr(blas, _BLAS[dtype])
    return routine


@functools.cache
def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None
