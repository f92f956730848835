"""Tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i]."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims import _cuda, _derivatives
from parprims._arrays import (
    Array,
    Namespace,
    admit,
    as_result,
    as_scalar,
    broadcast_shapes,
    check_choice,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    is_scalar,
    is_traced,
    move_axis,
    normalize_axis,
    quiet,
    varying_alike,
)
from parprims._dispatch import Method, Methods, in_graph, watched
from parprims._scan import _merged, _row_major
from parprims._trace import C_TYPES

Eliminate = Callable[[Array, Array, Array, tuple[Array, ...]], tuple[Array, ...]]
"""Takes lower, diag and upper of one shape and right-hand sides that broadcast against them; returns the solution
for each. It never reads lower[0] and upper[n-1]."""

_PIVOTS = ("auto", "partial", "none")


def solve_tridiagonal(
    lower: Array | complex,
    diag: Array | complex,
    upper: Array | complex,
    rhs: Array,
    /,
    *,
    axis: int = -1,
    pivot: str = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: bool = False,
    return_status: bool = False,
    method: str = "auto",
) -> Any:
    """Solve tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i].

    Parameters
    ----------
    lower, diag, upper : array or number
        The coefficients, of real or complex floating dtypes that promote together, of length n or 1 along the axis
        and otherwise of shapes that broadcast: every other axis counts independent systems. An array of length 1
        holds one coefficient for every row, a number or an array of no dimension one for all systems. lower[0] and
        upper[n-1] are not read, unless periodic.
    rhs : array
        The right-hand sides, of length n along the axis. With at most as many dimensions as the coefficients
        broadcast to, it holds one right-hand side per system and broadcasts against them. With exactly one
        dimension more, its last axis counts several right-hand sides of the same system, and its other axes
        are matched with those of the coefficients; so coefficients of shape (n,) take rhs of shape (n,) or
        (n, k). To solve one system for rhs of shape (k, n), give the coefficients shape (1, n). If all coefficients
        are numbers, rhs holds one right-hand side per system.
    axis : int
        The axis along which the unknowns are numbered, in the shape the coefficients broadcast to (that of rhs if
        all are numbers).
    pivot : {"auto", "partial", "none"}
        Which systems must come out right. ``partial`` exchanges rows, which every regular matrix allows. ``none``
        may leave them in their order: for diagonally dominant, definite and M-matrices. ``auto`` exchanges rows
        unless a matrix is seen to be diagonally dominant, so it is right wherever ``partial`` is.
    periodic : bool
        Whether the first and the last unknown are neighbours: lower[0] multiplies x[n-1] and upper[n-1]
        multiplies x[0].
    transpose : bool
        Whether to solve with the transposed matrix: upper[i-1] x[i-1] + diag[i] x[i] + lower[i+1] x[i+1] = rhs[i].
        Nothing is conjugated.
    return_residual : bool
        Whether to return the backward error too.
    return_status : bool
        Whether to return the status too.
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    x : array
        The unknowns, of the promoted dtype, of the shape coefficients and rhs broadcast to. A solution that is
        not finite in every unknown is NaN in all of them, and so is one of numbers of which one that is read is not
        finite.
    backward_error : array
        Only with return_residual: for every solution max |r[i]| / (|A| |x| + |rhs|)[i] with r = rhs - A x, the
        relative change of the system's numbers that makes x exact, 0 for 0/0; inf where x is not finite, and only
        there. Real, of the precision computed in, of the shape of x without the axis. CuPy and XLA take
        subnormal numbers for zero in it.
    status : array
        Only with return_status: for every solution 0 if it is one; 1 if there is none that is finite, because a pivot
        was zero or a number was not finite or overflowed, and x is NaN; 2 if the backward error is above the square
        root of eps of x's dtype. With row exchanges only these give that: a matrix singular to the precision once its
        rows are scaled, numbers that underflow, a row whose unknowns and rhs should all be zero and are no more than
        eps of others, and native of periodic systems. Of dtype int32.

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
    Work and depth: O(n) in 2 ceil(log2 n) steps, twice (array; with ``none`` O(n log n) in ceil(log2 n) steps), O(n)
    in n steps (native). Kernel is O(n): a few rows to a thread, then log2 n steps, twice where exchanges leave errors.
    Traffic and launches: kernel reads every number once and writes every unknown once, in one launch, in whatever order
    the axes lie, for systems that a block holds: 8192 unknowns of float32, 4096 of float64 and complex64, 1568 of
    complex128 (on GPUs with 227 KB of shared memory to a block). With ``partial`` it is two launches, the second for
    the few systems whose error the first finds too large, which read theirs again; with ``auto`` one more comes first,
    which leaves them those that are not diagonally dominant. Longer systems take 4 to 58 launches, most of which may
    find nothing to do; they read the data twice and keep a thirty-second to a sixteenth of the unknowns' memory
    between; ``auto`` reads it once more before it exchanges rows. Where the error of a long system is too large, those
    of its data are read once or twice more that are within some hundred rows of one with such an error, and rows there
    solved again; where that was not enough, all of its data twice, for the residual; where that was not either, or the
    system is periodic, two or four times more. With exchanges there is memory for a second solution in case.
    Coefficients that broadcast are read as they are, those of several right-hand sides once for each. Array passes
    about 150 times over its n rows in all (with ``none`` 40 times at each step) unless a compiler fuses them.
    Memory besides input and result, in sizes of the solution in the precision computed in: up to 32 (array), 14 (array
    with ``none``) or 11 (native), and up to 16 for the residual and the status.
    Error with row exchanges: rows are scaled to a largest coefficient of 1 and eliminated in the order of a binary
    tree, a change of the order of unknowns, with partial pivoting among the four rows that hold an unknown; the
    solution is refined once by its residual, by kernel where the backward error of a row is above 6 eps, and the better
    of both returned. Kernel first tries a faster elimination with pivots among two rows, once refined if need be, and
    keeps its solution where no row has a backward error above 8 eps; in long systems a row may, as where x is zero,
    whose residual is at most 2^-10 eps of the largest numbers in the few rows of a thread. The backward error is at
    most ten times that of LAPACK's gtsv, or ten eps if that is more, in the classes of matrices that studies of
    stability use (tests/test_tridiagonal.py has them), by array and kernel, and by array commonly below eps. This holds
    for periodic and transposed systems too. Not so in float32 for a few in a thousand systems whose solution is 1e20
    times rhs, such as of random coefficients with a diagonal of size 1e-8: the error may be a thousand times that of
    gtsv there, and return_residual tells.
    Error without: if |lower| + |upper| <= t |diag| in every row, t < 1, then x is within about
    8 ceil(log2 n) / (1 - t) units in the last place of max |x|. On all other diagonally dominant, symmetric
    (Hermitian) positive definite and M-matrices no pivot vanishes before rounding, but as many digits may be lost
    as the condition number has. Elsewhere a pivot may be small, which loses digits, or zero, which gives NaN,
    though the matrix is regular. Periodic systems add a correction of rank one (Sherman and Morrison) to a
    system that is dominant, definite or an M-matrix if theirs is, and lose digits where it is much better
    conditioned than theirs; so do native's, which auto takes for them only with ``none``.
    Singular systems: the solution is NaN or, where rounding hides that the matrix is singular, large numbers. Nothing
    is raised and NumPy warns of nothing; the status tells. 16-bit floats are solved in float32 and rounded once; XLA
    may take their residual before.
    Reproducibility: the same input gives the same bits, run after run, and a system gives the same bits alone and in a
    batch: by kernel, and by array with row exchanges where the library's elementwise operations do (NumPy's do).
    Methods: kernel (CUDA arrays), native (NumPy with SciPy installed: LAPACK's gtsv; JAX on a CPU, and on a GPU for one
    system at a time), array.
    Kernel and native are for float32, float64, complex64 and complex128; native always exchanges rows.
    Several devices: as for `scan`.
    Derivatives: by coefficients and rhs on PyTorch (backward, of any order) and JAX (forward and backward, of any
    order), by every method. With g the derivative by x, that by rhs is the solution l of the transposed system for
    g, by the same method, and that by diag is -l x; on PyTorch the matrix and x are conjugated.
    Reference: Hockney and Jesshope, Parallel Computers, 1981; Wright, Stable Parallel Algorithms for Two-Point
    Boundary Value Problems, SIAM J. Sci. Stat. Comput. 13(3), 1992; Skeel, Iterative Refinement Implies Numerical
    Stability for Gaussian Elimination, Math. Comp. 35, 1980; Higham, Accuracy and Stability of Numerical Algorithms,
    2002, chapters 7, 9 and 12.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> ones = np.ones(4)
    >>> parprims.solve_tridiagonal(-ones, 3 * ones, -ones, np.array([2.0, 1.0, 1.0, 2.0]))
    array([1., 1., 1., 1.])
    >>> parprims.solve_tridiagonal(-1.0, 3.0, -1.0, np.array([2.0, 1.0, 1.0, 2.0]))
    array([1., 1., 1., 1.])
    >>> x, error = parprims.solve_tridiagonal(1.0, 0.0, 1.0, np.array([1.0, 2.0]), return_residual=True)
    >>> x, bool(error < 1e-15)
    (array([2., 1.]), True)
    >>> parprims.solve_tridiagonal(ones[:2], ones[:2], ones[:2], ones[:2], return_status=True)
    (array([nan, nan]), array(1, dtype=int32))
    """
    if in_graph((lower, diag, upper, rhs), method):
        from parprims import _torch_ops

        options = (axis, pivot, periodic, transpose, return_residual, return_status, method)
        return _torch_ops.solve_tridiagonal(lower, diag, upper, rhs, *options)
    given, key = (lower, diag, upper, rhs), None
    if transpose is False and return_residual is False and return_status is False and not watched():
        signature = _cuda.signature(given)
        if signature is not None:
            # A call like one before goes straight to its kernel: checks and choice depend on nothing else.
            key = (axis, type(axis), periodic, type(periodic), pivot, method, signature)
            shortcut = _cuda.recall(_shortcuts, key)
            if shortcut is not None:
                return shortcut(*given)[0]
    pivot = check_choice("pivot", pivot, _PIVOTS)
    periodic, transpose = check_flag("periodic", periodic), check_flag("transpose", transpose)
    return_residual = check_flag("return_residual", return_residual)
    return_status = check_flag("return_status", return_status)
    xp, s, dtype, columns = _checked(lower, diag, upper, rhs, axis, periodic, transpose, pivot)
    _METHODS.check(method)
    if all(one is other for one, other in zip((*s.given, s.rhs), given, strict=True)):
        s.key = key
    x = _derivatives.tridiagonal(_METHODS, method, xp, s)
    with quiet(xp):
        rounded = x if x.dtype == dtype else _rounded(xp, x, dtype, s.axis)
        results = [rounded]
        if return_residual or return_status:
            working = x if rounded is x else xp.astype(rounded, x.dtype)
            error = _safe_backward_error(xp, s, working)
            if return_residual:
                results.append(as_result(error))
            if return_status:
                results.append(as_result(_status(xp, s, working, error, dtype)))
    if columns:
        results = [move_axis(xp, one, 0, -1) for one in results]
    return tuple(results) if len(results) > 1 else results[0]


class _System:
    """One call, checked: what every method is given.

    ``lower``, ``diag`` and ``upper`` have one shape and, like ``rhs``, the dtype computed in. ``rhs`` broadcasts
    against them, to ``shape``; several right-hand sides of a system stand along an axis before all of theirs.
    ``axis`` counts from the end and ``n`` is the length along it; ``single`` tells that the coefficients hold one
    system only. ``given`` are the coefficients before they were broadcast. By ``key`` the kernel is found again that
    takes them and ``rhs`` as they are.
    """

    __slots__ = ("axis", "diag", "given", "key", "lower", "n", "periodic", "pivot", "rhs", "shape", "single", "upper")

    def __init__(
        self,
        lower: Array,
        diag: Array,
        upper: Array,
        rhs: Array,
        shape: tuple[int, ...],
        axis: int,
        periodic: bool,
        pivot: str,
        given: tuple[Array, Array, Array] | None = None,
    ) -> None:
        self.given = (lower, diag, upper) if given is None else given
        self.lower, self.diag, self.upper, self.rhs = lower, diag, upper, rhs
        self.shape, self.axis, self.periodic, self.pivot = shape, axis, periodic, pivot
        self.n = shape[axis]
        self.single = math.prod(diag.shape) == self.n
        self.key: Any = None

    def for_rhs(self, rhs: Array) -> _System:
        """Return the system for right-hand sides of the full shape."""
        return _System(
            self.lower, self.diag, self.upper, rhs, self.shape, self.axis, self.periodic, self.pivot, self.given
        )

    def transposed(self, xp: Namespace, rhs: Array) -> _System:
        """Return the system of the transposed matrix for right-hand sides of the full shape."""
        lower, upper = _transposed(xp, self.lower, self.upper, self.axis)
        return _System(lower, self.diag, upper, rhs, self.shape, self.axis, self.periodic, self.pivot)


def _checked(
    lower: Any, diag: Any, upper: Any, rhs: Array, axis: Any, periodic: bool, transpose: bool, pivot: str
) -> tuple[Namespace, _System, Any, bool]:
    """Return the namespace, the system, the dtype of the solution and whether rhs has an axis of its own."""
    arrays = {"lower": lower, "diag": diag, "upper": upper, "rhs": rhs}
    numbers = [name for name, x in arrays.items() if name != "rhs" and is_scalar(x)]
    xp, admitted = admit({name: x for name, x in arrays.items() if name not in numbers})
    arrays |= zip((name for name in arrays if name not in numbers), admitted, strict=True)
    rhs = arrays["rhs"]
    check_kind("rhs", rhs, ("float", "complex"))
    if rhs.ndim == 0:
        raise ValueError("rhs must have at least one dimension")
    for name in ("lower", "diag", "upper"):
        if name in numbers:
            # Unlike asarray, full makes no device wait for a copy.
            number = as_scalar(name, arrays[name], rhs.dtype)
            with quiet(xp):
                arrays[name] = xp.full((), number, dtype=rhs.dtype, device=device(rhs))
        check_kind(name, arrays[name], ("float", "complex"))
    lower, diag, upper = coefficients = tuple(arrays[name] for name in ("lower", "diag", "upper"))
    ndim = max(x.ndim for x in coefficients) or rhs.ndim
    trailing = normalize_axis(axis, ndim) - ndim
    columns = rhs.ndim > ndim
    if rhs.ndim > ndim + 1:
        raise ValueError(f"rhs must have at most {ndim + 1} dimensions, one more than the coefficients, got {rhs.ndim}")
    _check_lengths(arrays, axis, trailing, columns)
    if columns:
        rhs = move_axis(xp, rhs, -1, 0)
    if transpose:
        lower, upper = _transposed(xp, lower, upper, trailing)
    n = rhs.shape[trailing]
    given = lower, diag, upper
    shape = _broadcast_shape("lower, diag and upper", lower.shape, diag.shape, upper.shape)
    if not lower.shape == diag.shape == upper.shape or len(shape) < -trailing or shape[trailing] != n:
        shape = _broadcast_shape("coefficients and rhs", shape, (n, *(1,) * (-1 - trailing)))
        lower, diag, upper = (xp.broadcast_to(x, shape) for x in (lower, diag, upper))
    if rhs.shape != shape:
        shape = _broadcast_shape("rhs and the coefficients", rhs.shape, shape)
    dtype = diag.dtype
    if not lower.dtype == dtype == upper.dtype == rhs.dtype:
        dtype = xp.result_type(lower, diag, upper, rhs)
    working = compute_dtype(xp, dtype)
    if not lower.dtype == diag.dtype == upper.dtype == rhs.dtype == working:
        arrays_cast = tuple(xp.astype(x, working, copy=False) for x in (lower, diag, upper, rhs, *given))
        (lower, diag, upper, rhs), given = arrays_cast[:4], arrays_cast[4:]
    return xp, _System(lower, diag, upper, rhs, shape, trailing, periodic, pivot, given), dtype, columns


def _check_lengths(arrays: dict[str, Array], axis: Any, trailing: int, columns: bool) -> None:
    """Raise ValueError unless the lengths along the axis are one n, or 1 for coefficients."""
    shapes = {name: x.shape[:-1] if columns and name == "rhs" else x.shape for name, x in arrays.items()}
    lengths = {name: shape[trailing] if len(shape) >= -trailing else None for name, shape in shapes.items()}
    # The length that others are held against: that of diag, if it says anything.
    first = next((name for name in ("diag", "lower", "upper") if lengths[name] not in (1, None)), "rhs")
    for name, length in lengths.items():
        constant = name != "rhs" and (length == 1 or not shapes[name])
        if not constant and (length is None or length != lengths[first]):
            raise ValueError(
                f"{name} must have the length of {first} along axis {axis} of the coefficients, got shapes "
                f"{arrays[name].shape} and {arrays[first].shape}"
                f"{' (the last axis of rhs counts right-hand sides)' if columns and name == 'rhs' else ''}"
            )


def _transposed(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper of the transposed matrix; of a matrix that is not periodic the corners are not read."""

    def moved(x: Array, distance: int) -> Array:
        return x if x.ndim == 0 or x.shape[axis] == 1 else xp.roll(x, distance, axis=axis)

    return moved(upper, 1), moved(lower, -1)


def _broadcast_shape(names: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{names} must have shapes that broadcast, got {', '.join(map(str, shapes))}") from None


def _rows(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    """Return the index that takes rows start to stop along an axis counted from the end, and all of the others."""
    return (..., slice(start, stop), *(slice(None),) * (-1 - axis))


def _array(xp: Namespace, s: _System) -> Array:
    """Return the solutions by parallel cyclic reduction, or by an elimination that exchanges rows."""
    with quiet(xp):
        return _by_elimination(xp, s)


def _by_elimination(xp: Namespace, s: _System) -> Array:
    if s.pivot == "none":
        return _whole(xp, _solve(xp, s, functools.partial(_cyclic_reduction, xp, s.axis)), s.axis)
    if math.prod(s.shape) == 0:
        return s.rhs / s.diag
    lower, diag, upper = (x if s.axis == -1 else move_axis(xp, x, s.axis, -1) for x in (s.lower, s.diag, s.upper))
    rhs = s.rhs if s.axis == -1 or s.rhs.ndim < -s.axis else move_axis(xp, s.rhs, s.axis, -1)
    if not s.periodic:
        lower, upper = ends_cleared(xp, lower, upper, -1)
    solve = _tree_elimination(xp, lower, diag, upper)
    shape = _broadcast_shape("all", diag.shape, rhs.shape)
    moved = _System(lower, diag, upper, rhs, shape, -1, True, s.pivot)
    x = _whole(xp, _refined(xp, moved, solve), -1)
    return x if s.axis == -1 else move_axis(xp, x, -1, s.axis)


def _refined(xp: Namespace, s: _System, solve: Callable[[Array], Array]) -> Array:
    """Return the solutions by a function of rhs, or these and those for their residuals, whichever are better."""
    x = solve(s.rhs)
    better = x + solve(_residual(xp, s, x)[0])
    # Where x is so large that its residual says nothing, refining may harm. An error of inf is not less than inf.
    improved = _backward_error(xp, s, better) < _backward_error(xp, s, x)
    return xp.where(xp.expand_dims(improved, axis=s.axis), better, x)


def _tree_elimination(xp: Namespace, lower: Array, diag: Array, upper: Array) -> Callable[[Array], Array]:
    """Return a function that solves periodic systems along the last axis for right-hand sides.

    Two rows i and i+1 are two equations between y[i] = (x[i-1], x[i]) and y[i+2] = (x[i+1], x[i+2]). Two neighbours
    of such segments make four equations between three ys; elimination of the y they share leaves a segment of double
    length, and two equations that give this y, once the others are known. After ceil(log2(n / 2)) steps there is one
    segment, whose ends are the same y. A column holds nonzeros in two neighbouring segments only, so the four
    equations hold all that is known of their y: no regular matrix lacks a pivot there.

    A segment is two rows of coefficients of (x[i-1], x[i], x[j-1], x[j]), stacked along the first axis, all segments
    of a system along the last.
    """
    n = diag.shape[-1]
    scale = xp.maximum(xp.maximum(_size(xp, lower), _size(xp, diag)), _size(xp, upper))
    scale = xp.where(scale > 0, scale, xp.ones_like(scale))
    lower, diag, upper = lower / scale, diag / scale, upper / scale
    zero, one = xp.zeros_like(diag[..., :1]), xp.ones_like(diag[..., :1])
    zeros = xp.zeros_like(diag[..., ::2])
    far = zeros
    if n % 2:
        # The last segment is one row, and the equation that the x it shares with the next y is one.
        far = xp.concat([zeros[..., 1:], upper[..., -1:]], axis=-1)
        lower, diag = xp.concat([lower, one], axis=-1), xp.concat([diag, -one], axis=-1)
        upper = xp.concat([upper[..., :-1], zero, zero], axis=-1)
    even, odd = (..., slice(0, None, 2)), (..., slice(1, None, 2))
    segments = (
        xp.stack([lower[even], diag[even], upper[even], far]),
        xp.stack([zeros, lower[odd], diag[odd], upper[odd]]),
    )
    # y[i] = y[j]: behind the last segment it changes nothing, and makes their number even.
    neutral = (xp.stack([one, zero, -one, zero]), xp.stack([zero, one, zero, -one]))
    steps = []
    while (count := segments[0].shape[-1]) > 1:
        if count % 2:
            segments = tuple(xp.concat(pair, axis=-1) for pair in zip(segments, neutral, strict=True))
        nothing = xp.zeros_like(segments[0][:2, ...][even])
        # Columns: the shared y, the y before it, the y behind it.
        rows = [xp.concat([x[2:, ...][even], x[:2, ...][even], nothing]) for x in segments]
        rows += [xp.concat([x[:2, ...][odd], nothing, x[2:, ...][odd]]) for x in segments]
        first, rows, exchange = _pivoted(xp, rows, 0)
        second, rows, exchange_again = _pivoted(xp, rows, 1)
        steps.append((count, first, second, exchange, exchange_again))
        segments = tuple(row[2:, ...] for row in rows)
    rows = [xp.stack([x[0, ...] + x[2, ...], x[1, ...] + x[3, ...]]) for x in segments]
    first, (last,), closing = _pivoted(xp, rows, 0)

    def solve(rhs: Array) -> Array:
        rhs = rhs / scale
        if n % 2:
            rhs = xp.concat([rhs, xp.zeros_like(rhs[..., :1])], axis=-1)
        pair = [rhs[even], rhs[odd]]
        known = []
        for count, *_, exchange, exchange_again in steps:
            if count % 2:
                pair = [xp.concat([x, xp.zeros_like(x[..., :1])], axis=-1) for x in pair]
            top, others = exchange([x[at] for at in (even, odd) for x in pair])
            middle, pair = exchange_again(others)
            known.append((top, middle))
        top, (bottom,) = closing(pair)
        y1 = bottom / last[1, ...]
        y0 = (top - first[1, ...] * y1) / first[0, ...]
        y0, y1 = xp.concat([y0, y0], axis=-1), xp.concat([y1, y1], axis=-1)
        for (count, p, q, *_), (top, middle) in zip(reversed(steps), reversed(known), strict=True):
            ends = (y0[..., :-1], y1[..., :-1], y0[..., 1:], y1[..., 1:])
            for k, end in enumerate(ends):
                top, middle = top - p[2 + k, ...] * end, middle - q[2 + k, ...] * end
            shared1 = middle / q[1, ...]
            shared0 = (top - p[1, ...] * shared1) / p[0, ...]
            y0 = xp.concat([_interleaved(xp, y0[..., :-1], shared0), y0[..., -1:]], axis=-1)[..., : count + 1]
            y1 = xp.concat([_interleaved(xp, y1[..., :-1], shared1), y1[..., -1:]], axis=-1)[..., : count + 1]
        return _interleaved(xp, y1[..., :-1], y0[..., 1:])[..., :n]

    return solve


def _pivoted(
    xp: Namespace, rows: list[Array], column: int
) -> tuple[Array, list[Array], Callable[[list[Array]], tuple[Array, list[Array]]]]:
    """Return the row with the largest number in the column, the others without it, and what does so to their rhs."""
    exchanges = []
    first, *others = rows
    for k, row in enumerate(others):
        larger = _size(xp, row[column, ...]) > _size(xp, first[column, ...])
        first, others[k] = xp.where(larger, row, first), xp.where(larger, first, row)
        exchanges.append(larger)
    factors = [row[column, ...] / first[column, ...] for row in others]

    def eliminate(rhs: list[Array]) -> tuple[Array, list[Array]]:
        first, *others = rhs
        for k, larger in enumerate(exchanges):
            first, others[k] = xp.where(larger, others[k], first), xp.where(larger, first, others[k])
        return first, [other - factor * first for other, factor in zip(others, factors, strict=True)]

    return first, [row - factor * first for row, factor in zip(others, factors, strict=True)], eliminate


def _size(xp: Namespace, x: Array) -> Array:
    """Return the absolute values; of complex numbers the sum of those of their parts, which no elimination minds."""
    return xp.abs(xp.real(x)) + xp.abs(xp.imag(x)) if dtype_kind(x.dtype) == "complex" else xp.abs(x)


def _interleaved(xp: Namespace, x: Array, y: Array) -> Array:
    """Return x[0], y[0], x[1], y[1], ... along the last axis."""
    return xp.reshape(xp.stack([x, y], axis=-1), (*x.shape[:-1], 2 * x.shape[-1]))


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
    eliminate = functools.partial(_unless_infinite, xp, axis, eliminate)
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


def _unless_infinite(
    xp: Namespace,
    axis: int,
    eliminate: Eliminate,
    lower: Array,
    diag: Array,
    upper: Array,
    rhs: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Return the solutions by a method, NaN where a number that is read is not finite.

    Divided by an infinite pivot, an unknown would be zero.
    """
    xs = eliminate(lower, diag, upper, rhs)
    n = diag.shape[axis]
    if n == 0:
        return xs
    read = (lower[_rows(axis, 1, n)], diag, upper[_rows(axis, 0, n - 1)])
    if array_api_compat.is_numpy_namespace(xp) and all(map(_is_finite, (*read, *rhs))):
        return xs
    finite = functools.reduce(
        lambda one, other: one & other, (xp.all(xp.isfinite(x), axis=axis, keepdims=True) for x in read)
    )
    return tuple(
        xp.where(finite & xp.all(xp.isfinite(one), axis=axis, keepdims=True), x, _nan(xp, x, axis))
        for x, one in zip(xs, rhs, strict=True)
    )


def _is_finite(x: Array) -> bool:
    """Return whether a NumPy array holds finite numbers alone: a sum, which is quick, is finite only then."""
    return bool(np.isfinite(x.sum()) or np.isfinite(x).all())


def _whole(xp: Namespace, x: Array, axis: int) -> Array:
    """Return x with NaN throughout each solution that is not finite throughout."""
    return xp.where(xp.all(xp.isfinite(x), axis=axis, keepdims=True), x, _nan(xp, x, axis))


def _nan(xp: Namespace, x: Array, axis: int) -> Array:
    """Return NaN for each solution: an array, because version 2023.12 of the standard selects from no numbers."""
    return xp.full_like(x[_rows(axis, 0, 1)] if x.shape[axis] else x, math.nan)


_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDED_TO_INFINITY = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least number that rounds to infinity."""


def _rounded(xp: Namespace, x: Array, dtype: Any, axis: int) -> Array:
    """Return x in a 16-bit dtype, NaN throughout each solution that is not finite in it."""
    within = xp.abs(x) < _ROUNDED_TO_INFINITY[dtype_name(dtype)]
    return xp.astype(xp.where(xp.all(within, axis=axis, keepdims=True), x, _nan(xp, x, axis)), dtype)


def _residual(xp: Namespace, s: _System, x: Array, factor: Array | None = None) -> tuple[Array, Array]:
    """Return rhs - A x and |A| |x| + |rhs|.

    With a factor for each row, coefficients and unknowns of the row are multiplied by it, and rhs by its square; what
    that makes infinite counts as zero.
    """

    def scaled(y: Array) -> Array:
        if factor is None:
            return y
        y = y * factor
        return xp.where(xp.isfinite(y), y, xp.zeros_like(y))

    lower, upper, rhs = s.lower, s.upper, scaled(scaled(s.rhs))
    if not s.periodic and s.n > 0:
        lower, upper = ends_cleared(xp, lower, upper, s.axis)
    terms = (
        scaled(lower) * scaled(xp.roll(x, 1, axis=s.axis)),
        scaled(s.diag) * scaled(x),
        scaled(upper) * scaled(xp.roll(x, -1, axis=s.axis)),
    )
    size = xp.abs(rhs) + xp.abs(terms[0]) + xp.abs(terms[1]) + xp.abs(terms[2])
    return rhs - terms[0] - terms[1] - terms[2], size


def product(xp: Namespace, s: _System, x: Array) -> Array:
    """Return A x."""
    return -_residual(xp, s.for_rhs(xp.zeros_like(x)), x)[0]


def _backward_error(xp: Namespace, s: _System, x: Array) -> Array:
    """Return max |rhs - A x| / (|A| |x| + |rhs|) over the axis: 0 for 0/0, inf where anything is not finite."""
    return _largest_ratio(xp, s, *_residual(xp, s, x))


def _largest_ratio(xp: Namespace, s: _System, residual: Array, size: Array) -> Array:
    error = xp.abs(residual) / xp.where(size == 0, xp.ones_like(size), size)
    error = xp.where(xp.isfinite(size) & xp.isfinite(error), error, xp.full_like(error, math.inf))
    return xp.max(error, axis=s.axis) if s.n > 0 else xp.sum(error, axis=s.axis)


def _safe_backward_error(xp: Namespace, s: _System, x: Array) -> Array:
    """Return what `_backward_error` does, but inf for none but solutions that are not finite.

    Rows whose products overflow are computed from smaller numbers and those whose products underflow from larger ones:
    powers of two, so that others keep their bits. Where all products of a row together are near the least normal
    number, a factor of 2^(3/4 of the exponents' range) makes only numbers overflow that are multiplied by zero.
    """
    _, size = _residual(xp, s, x)
    info = xp.finfo(size.dtype)
    exponents = round(math.log2(float(info.max)))
    larger, same = xp.full_like(size, 2.0 ** (3 * exponents // 4)), xp.ones_like(size)
    factor = xp.where(size < 4 * float(info.smallest_normal), larger, same)
    factor = xp.where(xp.isfinite(size), factor, xp.full_like(size, 2.0 ** (-exponents // 2 - 2)))
    error = _largest_ratio(xp, s, *_residual(xp, s, x, factor))
    return xp.where(xp.all(xp.isfinite(x), axis=s.axis), error, xp.full_like(error, math.inf))


def _status(xp: Namespace, s: _System, x: Array, error: Array, dtype: Any) -> Array:
    """Return 0 for each solution, 1 where there is none and 2 where its backward error is large for its dtype."""
    finite = xp.all(xp.isfinite(x), axis=s.axis)
    name = dtype_name(dtype)
    lost = xp.astype(error > math.sqrt(_EPS.get(name) or xp.finfo(error.dtype).eps), xp.int32)
    return xp.where(finite, 2 * lost, xp.ones_like(lost))


def ends_cleared(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper with zeros for lower[0] and upper[n-1]."""
    n = lower.shape[axis]
    if n == 0:
        return lower, upper
    zero = xp.zeros_like(lower[_rows(axis, 0, 1)])
    return (
        xp.concat([zero, lower[_rows(axis, 1, n)]], axis=axis),
        xp.concat([upper[_rows(axis, 0, n - 1)], zero], axis=axis),
    )


_LAPACK = {"float32": "sgtsv", "float64": "dgtsv", "complex64": "cgtsv", "complex128": "zgtsv"}


def _native(xp: Namespace, s: _System) -> Array:
    """Return the solutions by the library's own routine, which exchanges rows."""
    with quiet(xp):
        return _by_library(xp, s)


def _by_library(xp: Namespace, s: _System) -> Array:
    """Return the solutions by the library's own routine.

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
    flat = _System(lower, diag, upper, rhs, rhs.shape, -1, s.periodic, s.pivot)
    x = _solve(xp, flat, functools.partial(_exchange_rows, xp))
    if not (array_api_compat.is_numpy_namespace(xp) and np.isfinite(x).all()):
        x = _whole(xp, x, -1)
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
    """Solve all systems as one, whose blocks no coefficient links.

    What is not finite, or a pivot of zero, may spoil the other systems all the same: then each half is solved by
    itself.
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

    routine: Callable[..., Any] = getattr(lapack, _LAPACK[dtype])
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


@dataclasses.dataclass(frozen=True)
class _Tile:
    """How the kernel cuts its work, chosen by measurements on an H200.

    ``rows`` are those of a thread, by the bytes of a number; ``threads`` the most in a block of short systems;
    ``across`` how many systems a block has where they lie side by side, if their threads are at most ``most`` divided
    by the words of a number, so that their registers suffice;
    ``shared_bytes`` what a block may have; ``blocks`` how many there are at most where they take systems in turn;
    ``chunk`` the threads of a block that has a part of a long system, a quarter of that up to ``few`` unknowns, which
    have fewer ways before the stable one.
    Where rows stay in registers a thread has ``rows_in_order`` or ``rows_exchanging`` of them, twice as many if a
    system would have more than ``units_in_order`` or ``units_exchanging`` threads, or 64 with 4-byte numbers.
    ``across_in_order`` and ``across_exchanging`` are the threads of a block whose systems lie side by side (the latter
    of 4-byte numbers), ``threads_exchanging`` those of one with exchanges otherwise. Of long systems ``stretch`` are
    the threads of a block, which shorten them until ``units_short`` threads have the rest; ``long_blocks`` how many
    blocks there are at most, which take parts in turn, ``few_blocks`` where there may be nothing to do; ``window`` the
    threads that mend a few rows in the stable way. So many blocks of short systems of 4-byte numbers are to fit a
    multiprocessor: ``resident`` in the stable way, ``resident_exchanging`` with at most 16 threads to a system.
    """

    rows: tuple[tuple[int, int], ...] = ((4, 8), (8, 8), (16, 4))
    threads: int = 128
    across: int = 32
    most: int = 512
    shared_bytes: int = 227 << 10
    blocks: int = 2112
    chunk: int = 256
    few: int = 1 << 19
    rows_in_order: tuple[tuple[int, int], ...] = ((4, 8), (8, 8), (16, 4))
    units_in_order: tuple[tuple[int, int], ...] = ((4, 256), (8, 512), (16, 256))
    across_in_order: int = 512
    rows_exchanging: tuple[tuple[int, int], ...] = ((4, 8), (8, 8), (16, 2))
    units_exchanging: int = 512
    across_exchanging: int = 256
    resident_exchanging: int = 10
    threads_exchanging: int = 64
    stretch: int = 128
    units_short: int = 512
    long_blocks: int = 4224
    few_blocks: int = 1056
    resident: int = 4
    window: int = 128


_TILE = _Tile()
_KEPT = 13  # as in _tridiagonal.cu
_TIDINGS = 32
_VERDICT = 56


def _plan(
    shape: tuple[int, ...],
    axis: int,
    periodic: bool,
    pivot: str,
    dtype: str,
    columns: int,
    shapes: Sequence[tuple[int, ...]],
    layouts: Sequence[tuple[tuple[int, ...], int]],
) -> _cuda.Plan | None:
    """Return the launch for coefficients and rhs of these shapes and layouts, or None if they have too many axes.

    ``shape`` is that of the solution. ``columns`` right-hand sides of each system stand along an axis before it, which
    the coefficients do not have.
    """
    whole = (columns, *shape) if columns else shape
    seen = _seen(whole, axis, dtype, shapes, layouts)
    if seen is None:
        return None
    groups, numbers, views = seen
    (_, _), (middles, _), (lows, low) = groups
    n, systems = shape[axis], math.prod(whole) // shape[axis]
    across = low[3] == 1 and numbers[15] != 1
    rows, units, together, shared = _block(dtype, n, across)
    blocks = -(-systems // together)
    numbers += (systems, middles, lows, n)
    arguments = f"{', '.join(views)}, n20, n21, n22, n23"

    sizes = C_TYPES[dtype], str(rows), str(units), str(together), _cpp(across)

    def stable(pivot: str, left: str) -> str:
        call = ", ".join((*sizes, pivot.upper(), _cpp(periodic)))
        return f"  solve_systems<{call}>({arguments}, {left});"

    plan = _cuda.Plan(
        source=_cuda.device_source("_common.cuh", "_tridiagonal.cu"),
        body=stable(pivot, "Left{}"),
        inputs=4,
        outputs=((whole, dtype),),
        integers=tuple(numbers),
        grid=blocks,
        block=units * together,
        shared_bytes=shared,
        resident_blocks=_TILE.resident if dtype == "float32" and units * together <= _TILE.threads else 0,
    )
    if periodic or systems >= 2**32:
        return plan
    lies = _lies(dtype, n, groups, numbers, [address for _, address in layouts])

    def launch(call: str, block: tuple[int, int, int, int], resident: int, *others: str) -> _cuda.Plan:
        rows, units, together, shared = block
        sizes = ", ".join((C_TYPES[dtype], *map(str, (rows, units, together)), _cpp(across)))
        return dataclasses.replace(
            plan,
            body=f"  {call.format(sizes, ', '.join(lies))}({', '.join((arguments, *others))});",
            grid=-(-systems // together),
            block=units * together,
            shared_bytes=shared,
            resident_blocks=resident,
        )

    in_order, exchanging = _block_in_order(dtype, n, across), _block_exchanging(dtype, n, across)
    # Registers for two blocks of systems side by side.
    beside = 2 if across and dtype == "float32" and in_order[0] == 8 and in_order[1] * in_order[2] <= 512 else 0
    dense = _TILE.resident_exchanging if dtype == "float32" and not across and exchanging[1] <= 16 else 0
    if pivot == "none":
        return launch("solve_in_order<{}, false, {}>", in_order, beside, "Left{}")
    # The systems that a launch leaves to the one behind it.
    lists = [f"Left{{(unsigned*)zeroed + {2 * k}, (unsigned*)temporary + {k} * n20}}" for k in range(2)]
    launches = []
    if pivot == "auto":
        launches.append(launch("solve_in_order<{}, true, {}>", in_order, beside, lists[0]))
    given = lists[0] if launches else "Left{}"
    launches.append(launch("solve_exchanging<{}, {}>", exchanging, dense, given, lists[1]))
    launches.append(dataclasses.replace(plan, body=stable("partial", lists[1])))
    # Blocks take the systems that are left in turn: where none are, few have to find that out. All launches have the
    # lists, which they share.
    first, *then = (
        dataclasses.replace(
            one, grid=min(one.grid, _TILE.blocks) if k else one.grid, zeroed_bytes=16, temporary_bytes=8 * systems
        )
        for k, one in enumerate(launches)
    )
    return dataclasses.replace(first, then=tuple(then))


def _lies(
    dtype: str, n: int, groups: Sequence[tuple[int, tuple[int, ...]]], numbers: Sequence[int], addresses: Sequence[int]
) -> list[str]:
    """Return how the rows of coefficients, rhs and solution lie in memory, by the names of `Lies`."""
    nbytes = np.dtype(dtype).itemsize
    found = []
    for at, address in enumerate((*addresses, 0)):
        along = numbers[4 * at + 3]
        steps = [step[at] for length, step in groups if length > 1]
        whole = along == 1 and address % 16 == 0 and all(step * nbytes % 16 == 0 for step in steps)
        if along == 0:
            found.append("SAME")
        else:
            found.append("VECTORS" if whole and n * nbytes % 16 == 0 else "APART")
    return found


def _seen(
    shape: tuple[int, ...],
    axis: int,
    dtype: str,
    shapes: Sequence[tuple[int, ...]],
    layouts: Sequence[tuple[tuple[int, ...], int]],
) -> tuple[list[tuple[int, tuple[int, ...]]], list[int], list[str]] | None:
    """Return how the kernel sees the coefficients, rhs and the solution, or None if that takes more than three axes.

    These are the axes beside that of the unknowns, merged; the integers that the kernel is given first; and the
    arguments they make, one for each array.
    """
    strides = []
    for one, (steps, _) in zip(shapes, layouts, strict=True):
        known = tuple(0 if length == 1 else step for length, step in zip(one, steps, strict=True))
        strides.append((0,) * (len(shape) - len(known)) + known)
    strides.append(_row_major(shape))
    before, behind = _merged(shape, axis % len(shape), strides)
    groups = before + behind
    if len(groups) > 3:
        return None
    groups = [(1, (0,) * 5)] * (3 - len(groups)) + groups
    numbers, views = [], []
    for at, name in enumerate(("in0", "in1", "in2", "in3", "out0")):
        numbers += [*(steps[at] for _, steps in groups), strides[at][axis]]
        kind = C_TYPES[dtype] if at == 4 else f"const {C_TYPES[dtype]}"
        views.append(f"{{({kind}*){name}, {', '.join(f'n{k}' for k in range(4 * at, 4 * at + 4))}}}")
    return groups, numbers, views


def _long_plan(
    shape: tuple[int, ...],
    axis: int,
    periodic: bool,
    pivot: str,
    dtype: str,
    columns: int,
    shapes: Sequence[tuple[int, ...]],
    layouts: Sequence[tuple[tuple[int, ...], int]],
) -> _cuda.Plan | None:
    """Return the launches for systems that no block can hold, or None if the arrays have too many axes.

    The arguments are those of `_plan`.
    """
    whole = (columns, *shape) if columns else shape
    seen = _seen(whole, axis, dtype, shapes, layouts)
    if seen is None:
        return None
    groups, numbers, views = seen
    (_, _), (middles, _), (lows, _) = groups
    n, systems = shape[axis], math.prod(whole) // shape[axis]
    kind, nbytes = C_TYPES[dtype], np.dtype(dtype).itemsize
    memory = _Memory()
    exchanged, checked = pivot != "none", pivot == "auto" and not periodic
    verdicts = f"(Verdict*){memory.place(_VERDICT * systems)}"
    lies = _lies(dtype, n, groups, numbers, [address for _, address in layouts])
    launches: list[tuple[str, int, int, int]] = []  # body, blocks, threads, shared memory
    again_too = n > _TILE.few  # else the stable way costs little more than the launches that find nothing to do
    for exchange, again in ((False, False), (True, False), (True, True)):
        if not periodic and (checked or exchange == exchanged) and (again_too or not again):
            launches += _register_launches(dtype, n, systems, (exchange, checked, again), lies, verdicts, memory)
    if exchanged or periodic:
        ways = (exchanged, periodic, 0 if periodic or not exchanged else 8 if again_too else 6)
        launches += _exchange_launches(dtype, n, systems, ways, verdicts, memory)
    better = memory.place(nbytes * n * systems if exchanged else 0)
    launches.append((f"  finish_long<{kind}>(all, (const {kind}*){better}, {verdicts});", _TILE.few_blocks, 256, 0))
    integers = (*numbers, systems, middles, lows, n, *memory.places)
    given = f"  const System<{kind}> all = {{{', '.join(views)}, n20, n21, n22, n23}};\n"
    plans = [
        _cuda.Plan(
            source=_cuda.device_source("_common.cuh", "_tridiagonal.cu"),
            body=given + body.replace("BETTER", f"({kind}*){better}"),
            inputs=4,
            outputs=((whole, dtype),),
            integers=integers,
            grid=blocks,
            block=threads,
            shared_bytes=shared,
            temporary_bytes=memory.nbytes,
        )
        for body, blocks, threads, shared in launches
    ]
    return dataclasses.replace(plans[0], then=tuple(plans[1:]))


class _Memory:
    """What the launches for long systems keep in temporary memory, and where: integers from n24 on."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.nbytes = 0

    def place(self, nbytes: int) -> str:
        """Return the expression of the address of that many bytes."""
        self.places.append(self.nbytes)
        self.nbytes += -(-nbytes // 16) * 16
        return f"((char*)temporary + n{23 + len(self.places)})"

    def number(self, value: int) -> str:
        """Return the expression of a number."""
        self.places.append(value)
        return f"n{23 + len(self.places)}"


def _register_launches(
    dtype: str, n: int, systems: int, ways: tuple[bool, bool, bool], lies: Sequence[str], verdicts: str, memory: _Memory
) -> list[tuple[str, int, int, int]]:
    """Return the launches for long systems in registers, whose rows are exchanged, checked, a residual's, or not."""
    exchange, checked, again = ways
    kind, nbytes, threads = C_TYPES[dtype], np.dtype(dtype).itemsize, _TILE.stretch
    most = _TILE.few_blocks if again or (exchange and checked) else _TILE.long_blocks
    rows = dict(_TILE.rows_exchanging if exchange else _TILE.rows_in_order)[nbytes]
    # Of every warp remain two rows of 4 numbers, or one of 7.
    keep, left, numbers = ("kept_system", 2, 4) if exchange else ("kept_ends", 1, 7)
    shorten, top, lengthen = (
        ("reduce_long", "solve_short", "expand_long") if exchange else ("shorten_long", "solve_top", "lengthen_long")
    )
    blocks = -(-n // (threads * rows))
    # Blocks with a row that is not dominant, or units with one whose backward error is too large.
    marked = (not again and 2 * -(-n // (32 * rows))) if exchange else checked and blocks
    marks = f"(unsigned*){memory.place(4 * systems * marked)}"
    down, up = [], []
    count, system, places, given = n, "all", tuple(lies), True
    while given or count > rows * _TILE.units_short:
        grid = min(most, systems * -(-count // (threads * rows)))
        count = left * -(-count // (32 * rows))
        kept = memory.place((numbers + 1) * nbytes * count * systems)
        above = f"{keep}(({kind}*){kept}, n20, {memory.number(count)})"
        sizes = f"{kind}, {rows}, {_cpp(checked)}, {_cpp(given)}" + f", {_cpp(again)}" * exchange
        lie = ", ".join(places if exchange else places[:4])
        body = f"  {shorten}<{sizes}, {lie}>({system}, {above}, {verdicts if exchange else marks});"
        down.append((body, grid, threads, 0))
        arguments = f"{system}, {above}, {'BETTER, ' * exchange}{verdicts}{f', {marks}' * exchange}"
        up.append((f"  {lengthen}<{sizes}, {', '.join(places)}>({arguments});", grid, threads, 0))
        system, places, given = above, ("APART",) * 5, False
    mend = []
    if exchange and not again:
        windows = n // (32 * rows) + 2
        each = min(8, _cuda.power_of_two(-(-systems * windows * 32 // (threads * _TILE.few_blocks)), up=True))
        grid = min(_TILE.few_blocks, systems * -(-windows * 32 // (threads * each)))
        call = f"(all, {memory.number(each)}, {marks}, {verdicts});"
        mend += 2 * [(f"  mend_long<{kind}, {rows}, {', '.join(lies)}>{call}", grid, threads, 0)]
        if n > _TILE.few:
            stable, units = dict(_TILE.rows)[nbytes], _TILE.window
            shared = nbytes * (4 * units * (stable + 1) + _KEPT * (units + 2))
            body = f"  mend_stably<{kind}, {stable}, {units}, {rows}>(all, {marks}, {verdicts});"
            mend += 2 * [(body, min(_TILE.few_blocks, systems * (n // (stable * units) + 2)), units, shared)]
    units = max(32, _cuda.power_of_two(-(-count // rows), up=True))
    arguments = verdicts if exchange else f"{verdicts}, {marks}, {memory.number(blocks)}"
    sizes = f"{kind}, {rows}, {units}, {_cpp(checked)}" + f", {_cpp(again)}" * exchange
    body = f"  {top}<{sizes}>({system}, {arguments});"
    return [*down, (body, min(most, systems), units, 0), *reversed(up), *mend]


def _exchange_launches(
    dtype: str, n: int, systems: int, ways: tuple[bool, bool, int], verdicts: str, memory: _Memory
) -> list[tuple[str, int, int, int]]:
    """Return the launches for long systems whose rows may be exchanged, and which launches before have left."""
    exchanged, periodic, left = ways
    kind, nbytes = C_TYPES[dtype], np.dtype(dtype).itemsize
    rows, units, joined = dict(_TILE.rows)[nbytes], _TILE.chunk, _TILE.chunk
    if n <= _TILE.few:
        units = max(32, units // 4)
    chunks = -(-n // (rows * units))
    counts = [chunks]
    while counts[-1] > joined:
        counts.append(-(-counts[-1] // joined))
    segments = [f"({kind}*){memory.place(10 * nbytes * count * systems)}" for count in counts]
    ys = [f"({kind}*){memory.place(2 * nbytes * count * systems)}" for count in counts]
    lengths = [memory.number(count) for count in counts]
    in_chunk = nbytes * (4 * units * (rows + 1) + _KEPT * (units + 2))
    in_join = nbytes * _KEPT * (joined + 2)
    launches = []
    for again in (False, True) if exchanged else (False,):
        most = _TILE.few_blocks if again or left else _TILE.long_blocks
        call = f"<{kind}, {rows}, {units}, {_cpp(exchanged)}, {_cpp(periodic)}, {left}, {_cpp(again)}>"
        joining = f"{kind}, {joined}, {_cpp(exchanged)}, {left}, {_cpp(again)}"

        def join(step: str, level: int) -> tuple[str, int, int, int]:
            last = level + 1 == len(counts)
            above, known = ("nullptr", "nullptr") if last else (segments[level + 1], ys[level + 1])
            arguments = f"{segments[level]}, {above}, {known}, {ys[level]}, {verdicts}, n20, {lengths[level]}"
            blocks = min(most, systems * -(-counts[level] // joined))  # noqa: B023
            return f"  join_segments<{joining}, {step}>({arguments});", blocks, joined, in_join  # noqa: B023

        blocks = min(most, systems * chunks)
        launches.append((f"  reduce_chunks{call}(all, {segments[0]}, {verdicts});", blocks, units, in_chunk))
        launches += [join("JOIN", level) for level in range(len(counts) - 1)]
        launches.append(join("CLOSE", len(counts) - 1))
        launches += [join("RESOLVE", level) for level in reversed(range(len(counts) - 1))]
        launches.append((f"  solve_chunks{call}(all, {ys[0]}, BETTER, {verdicts});", blocks, units, in_chunk))
    return launches


def _block(dtype: str, n: int, across: bool) -> tuple[int, int, int, int]:
    """Return the rows of a thread, the threads of a system, the systems of a block and its shared memory."""
    nbytes = np.dtype(dtype).itemsize
    rows = dict(_TILE.rows)[nbytes]
    units = _cuda.power_of_two(-(-n // rows), up=True)
    # A block has whole warps; systems side by side are 32 bytes at least, as memory is read, where they fit.
    together = max(
        32 // units, (min(_TILE.across, 4 * _TILE.most // nbytes // units) if across else _TILE.threads // units), 1
    )
    while True:
        places = 4 * -(-n // rows) * (rows if across else rows + 1) + _KEPT * units
        shared = together * (places * nbytes + _TIDINGS) + 2 * _KEPT * nbytes
        if shared <= _TILE.shared_bytes or units * together <= 32 or together == 1:
            return rows, units, together, shared
        together //= 2


def _rows_of_threads(rows: int, n: int, nbytes: int, most: int) -> tuple[int, int]:
    """Return the rows of a thread, twice as many where a warp or a block then suffices, and the threads of a system."""
    units = _cuda.power_of_two(-(-n // rows), up=True)
    return (2 * rows, units // 2) if (nbytes == 4 and units == 64) or units > most else (rows, units)


def _block_in_order(dtype: str, n: int, across: bool) -> tuple[int, int, int, int]:
    """Return what `_block` does, for systems whose rows are not exchanged."""
    nbytes = np.dtype(dtype).itemsize
    rows, units = _rows_of_threads(dict(_TILE.rows_in_order)[nbytes], n, nbytes, dict(_TILE.units_in_order)[nbytes])
    # Systems side by side are 32 bytes at least, as memory is read, where they fit.
    beside = min(_TILE.across, max(_TILE.across_in_order // units, 32 // nbytes), 4096 // nbytes // units)
    together = max(32 // units, beside if across else _TILE.threads // units, 1)
    return rows, units, together, 7 * nbytes * (units + 1) * together if across else 0


def _block_exchanging(dtype: str, n: int, across: bool) -> tuple[int, int, int, int]:
    """Return what `_block` does, for systems whose rows are exchanged in registers."""
    nbytes = np.dtype(dtype).itemsize
    rows, units = _rows_of_threads(dict(_TILE.rows_exchanging)[nbytes], n, nbytes, _TILE.units_exchanging)
    threads = 4 * _TILE.across_exchanging // nbytes if across else _TILE.threads_exchanging
    together = max(32 // units, min(_TILE.across, threads // units), 1)
    return rows, units, together, 8 * nbytes * (units + 1) * together if across else 0


def _cpp(truth: bool) -> str:
    return "true" if truth else "false"


def _kernel_refusal(xp: Namespace, s: _System) -> str | None:
    reason = _cuda.refusal(xp, (*s.given, s.rhs))
    if reason is not None:
        return reason
    dtype = dtype_name(s.diag.dtype)
    if dtype not in _LAPACK:
        return f"the kernel does not compute in {dtype}"
    return None


def _beyond_block(dtype: str, n: int) -> bool:
    """Return whether a system is more than a block can hold."""
    _, units, _, shared = _block(dtype, max(n, 1), across=False)
    return units > 1024 or shared > _TILE.shared_bytes


def _kernel(xp: Namespace, s: _System) -> Array:
    """Return the solutions by a CUDA kernel, or for long systems by several."""
    if 0 in s.shape:
        return s.rhs / s.diag
    # More axes than the coefficients have: the first counts right-hand sides.
    columns = s.shape[0] if len(s.shape) > s.diag.ndim else 0
    shape = s.shape[1:] if columns else s.shape
    dtype = dtype_name(s.diag.dtype)
    arrays = tuple(_cuda.plain(xp, x) for x in (*s.given, s.rhs))
    options = (shape, s.axis, s.periodic, s.pivot, dtype, columns)
    gpu = None if _cuda.is_jax(xp) else _cuda.device_index(xp, arrays[3])

    def runner() -> Callable[..., tuple[Array, ...]] | None:
        shapes, layouts = tuple([tuple(x.shape) for x in arrays]), tuple([_cuda.layout(xp, x) for x in arrays])
        key = (xp, gpu, options, shapes, layouts)
        found = _runners.get(key)
        if found is None:
            plan = (_long_plan if _beyond_block(dtype, s.n) else _plan)(*options, shapes, layouts)
            if plan is None:
                return None
            found = _cuda.remember(_runners, key, _traced(xp, s, plan) if gpu is None else _cuda.Runner(xp, plan, gpu))
        return found

    run = runner()
    if run is None:  # no three axes beside that of the unknowns: copies have at most two
        arrays = (
            *(_cuda.contiguous(xp, xp.broadcast_to(x, s.diag.shape)) for x in arrays[:3]),
            _cuda.contiguous(xp, xp.broadcast_to(arrays[3], s.shape)),
        )
        run = runner()
        assert run is not None
    solution: Array = run(*arrays)[0]
    if s.key is not None and all(one is other for one, other in zip(arrays, (*s.given, s.rhs), strict=True)):
        _cuda.remember(_shortcuts, s.key, run)
    return solution


_runners: dict[Any, Any] = {}
_shortcuts: dict[Any, Callable[..., tuple[Array, ...]]] = {}


def _traced(xp: Namespace, s: _System, plan: _cuda.Plan) -> Callable[..., tuple[Array, ...]]:
    """Return the plan as a function for JAX."""
    axis, periodic, pivot = s.axis, s.periodic, s.pivot

    def system(arrays: tuple[Array, ...]) -> _System:
        *given, rhs = arrays
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        rows = np.broadcast_shapes(*(x.shape for x in given), (shape[axis], *(1,) * (-1 - axis)))
        lower, diag, upper = (xp.broadcast_to(x, rows) for x in given)
        return _System(lower, diag, upper, rhs, shape, axis, periodic, pivot, (given[0], given[1], given[2]))

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        return (_array(xp, system(arrays)),)

    def batched(*arrays: Array) -> tuple[Array, ...]:
        # The new axis leads: every array gets as many axes as the solution has, before those that it has.
        ndim = max(x.ndim for x in arrays)
        aligned = (xp.reshape(x, (x.shape[0], *(1,) * (ndim - x.ndim), *x.shape[1:])) for x in arrays)
        return (_kernel(xp, system(tuple(aligned))),)

    return _cuda.traced(plan, otherwise, batched)


def _native_slower(_: Namespace, s: _System) -> str | None:
    if s.periodic and s.pivot != "none":
        return "a correction of rank one may lose digits that exchanges of rows keep"
    return None


_METHODS = Methods(
    "solve_tridiagonal",
    kernel=Method(_kernel, _kernel_refusal),
    native=Method(_native, _native_refusal, _native_slower),
    array=Method(_array),
)
