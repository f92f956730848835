"""Tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i]."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    as_result,
    broadcast_shapes,
    check_choice,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    is_jax,
    is_split,
    is_traced,
    library,
    move_axis,
    normalize_axis,
    quiet,
)
from parprims._core.memo import Memo
from parprims._core.options import made_plain
from parprims._core.other_words import unknown_option
from parprims._core.programs import one_program
from parprims._core.scalars import NUMBERS, as_scalar, is_scalar, number_as_array
from parprims._core.signature import signature
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device
from parprims._dispatch.composite import fitted, stand_in
from parprims._dispatch.dispatch import (
    Method,
    Methods,
    call_key,
    devices,
    directly,
    entered,
    in_graph,
    listing,
    nodes,
    recalled,
    unwatched,
)
from parprims._libraries.numpy_bridge import all_by_numpy, in_numpy, numpy_namespace
from parprims._primitives.reduce.public import map_reduce
from parprims._primitives.tridiagonal import cpu, cuda
from parprims._primitives.tridiagonal import native as tridiagonal_native
from parprims._primitives.tridiagonal.array import array
from parprims._primitives.tridiagonal.call import System, rounded, safe_backward_error, status, transposed

_PIVOTS = ("auto", "partial", "none")


@entered
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
    axis_name: Any = None,
    **others: Never,
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
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that
        the axis is split over: docs/devices.md.

    Returns
    -------
    x : array
        The unknowns, of the promoted dtype, of the shape coefficients and rhs broadcast to. If any input that is read
        or any unknown is not finite, all unknowns of that system are NaN.
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
    Work and depth: O(n) in 4 ceil(log2 n) steps (array), in n steps (native; kernel on a CPU). Kernel is O(n) on a GPU
    too: one to three launches for systems that fit a block (8192 unknowns of float32), 4 to 58 for longer ones.
    Error with row exchanges: a backward error of at most ten times that of LAPACK's gtsv, or of ten eps if that is
    more; docs/solve_tridiagonal.md has the exceptions, which return_residual tells.
    Error without: if |lower| + |upper| <= t |diag| in every row, t < 1, then x is within about
    8 ceil(log2 n) / (1 - t) units in the last place of max |x|.
    Singular systems: x is NaN or, where rounding hides it, large; nothing is raised, and the status tells.
    Reproducibility: the same input gives the same bits, alone and in a batch, by kernel and array.
    Methods: kernel (CUDA arrays; by Numba those of NumPy, PyTorch and eager JAX on the CPU), native (JAX; NumPy and
    PyTorch's CPU with SciPy), both of 32 and 64-bit floats and complex, array.
    Derivatives: by coefficients and rhs on PyTorch and JAX, by every method. More: docs/solve_tridiagonal.md.

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
    if others:
        raise unknown_option("solve_tridiagonal", others)
    if in_graph((lower, diag, upper, rhs), method) and axis_name is None:
        options = (axis, pivot, periodic, transpose, return_residual, return_status, method)
        return nodes().solve_tridiagonal(lower, diag, upper, rhs, *options)
    given, key = (lower, diag, upper, rhs), None
    if axis_name is None and transpose is False and return_residual is False and return_status is False:
        key = call_key("solve_tridiagonal", given, axis, pivot, periodic, method)
        run = recalled(key)
        if run is not None:
            return run(*given)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        asked = {"transpose": transpose, "return_residual": return_residual, "return_status": return_status}
        rest: dict[str, Any] = {"pivot": pivot, "periodic": periodic, **asked, "method": method, "axis_name": axis_name}
        return solve_tridiagonal(*given, **plainer, **rest)
    split = axis_name is not None or is_split(given)
    pivot = check_choice("pivot", pivot, _PIVOTS)
    periodic, transpose = check_flag("periodic", periodic), check_flag("transpose", transpose)
    return_residual = check_flag("return_residual", return_residual)
    return_status = check_flag("return_status", return_status)
    if split:
        flags = periodic, transpose, return_residual, return_status
        coefficients = lower, diag, upper
        return devices().compute("tridiagonal", given, axis_name, coefficients, rhs, axis, pivot, *flags, method)
    xp, s, dtype, columns = checked(lower, diag, upper, rhs, axis, periodic, transpose, pivot)
    _METHODS.check(method)
    if all(one is other or type(other) in NUMBERS for one, other in zip(s.arrays, given, strict=True)):
        numbers = any(type(one) in NUMBERS for one in given)
        s = dataclasses.replace(s, key=key, complete=functools.partial(_completed, xp) if numbers else None)
    x = derivative_rules.tridiagonal(_METHODS, method, xp, s)
    with quiet(xp):
        result = x if x.dtype == dtype else rounded(xp, x, dtype, s.axis)
        results = [result]
        if return_residual or return_status:
            working = x if result is x else xp.astype(result, x.dtype)
            results += _verdicts(xp, s, working, dtype, return_residual, return_status)
    if columns:
        results = [move_axis(xp, one, 0, -1) for one in results]
    return tuple(results) if len(results) > 1 else results[0]


def _verdicts(
    xp: Namespace, s: System, x: Array, dtype: Any, return_residual: bool, return_status: bool
) -> tuple[Array, ...]:
    """Return what is asked for of the backward error and the status of solutions, which were rounded to a dtype."""
    arrays, bare, largest = (x, *s.arrays), s.on(*(None,) * 4), None
    if library(xp) in ("cupy", "torch") and getattr(x, "is_cuda", True) and signature(arrays) is not None:
        largest = functools.partial(_largest_by_kernel, s.axis)

    def verdicts(xp: Namespace, x: Array, *arrays: Array) -> tuple[Array, ...]:
        system = bare.on(*arrays)
        error = safe_backward_error(xp, system, x, largest)
        found = [error] * return_residual
        if return_status:
            found.append(status(xp, system, x, error, dtype))
        return tuple(map(as_result, found))

    # One operation after another takes up to a hundred times as long as a program, and by PyTorch several times as long
    # as by NumPy.
    if is_jax(xp) and not any(map(is_traced, arrays)):
        key = bare.described(), dtype, return_residual, return_status
        return (_programs.get(key) or _programs.keep(key, one_program(functools.partial(verdicts, xp))))(*arrays)
    if library(xp) == "torch" and in_numpy(xp, arrays) and not any(one.requires_grad for one in arrays):
        return all_by_numpy(xp, arrays, functools.partial(verdicts, numpy_namespace()))(*arrays)
    return verdicts(xp, *arrays)


def _largest_by_kernel(axis: int, function: Callable[..., Array], *arrays: Array) -> Array:
    """Return the largest value along an axis, for which an operation at a time would take dozens of launches."""
    with unwatched():
        found: Array = map_reduce(function, *arrays, op="maximum", axis=axis)
    return found


_programs: Memo[Callable[..., tuple[Array, ...]]] = Memo()


def _completed(xp: Namespace, *given: Any) -> tuple[Array, ...]:
    """Return coefficients and right-hand side with arrays of no dimension in place of numbers."""
    rhs = given[3]
    dtype, on = rhs.dtype, device(rhs)
    found = list(given)
    with quiet(xp):
        for index, name in enumerate(("lower", "diag", "upper")):
            if is_scalar(given[index]):
                found[index] = number_as_array(xp, as_scalar(name, given[index], dtype), dtype, on)
    return tuple(found)


def checked(
    lower: Any,
    diag: Any,
    upper: Any,
    rhs: Array,
    axis: Any,
    periodic: bool,
    transpose: bool,
    pivot: str,
    *,
    sharded: bool = False,
) -> tuple[Namespace, System, Any, bool]:
    """Return the namespace, the system, the dtype of the solution and whether rhs has an axis of its own.

    ``sharded`` lets arrays of JAX be spread over several devices.
    """
    arrays = {"lower": lower, "diag": diag, "upper": upper, "rhs": rhs}
    numbers = [name for name, x in arrays.items() if name != "rhs" and is_scalar(x)]
    xp, admitted = admit({name: x for name, x in arrays.items() if name not in numbers}, sharded=sharded)
    arrays |= zip((name for name in arrays if name not in numbers), admitted, strict=True)
    rhs = arrays["rhs"]
    check_kind("rhs", rhs, ("float", "complex"))
    if rhs.ndim == 0:
        raise ValueError("rhs must have at least one dimension")
    if numbers:
        arrays = dict(zip(arrays, _completed(xp, *arrays.values()), strict=True))
    for name in ("lower", "diag", "upper"):
        check_kind(name, arrays[name], ("float", "complex"))
    lower, diag, upper = coefficients = tuple(arrays[name] for name in ("lower", "diag", "upper"))
    ndim = max(x.ndim for x in coefficients) or rhs.ndim
    trailing = normalize_axis(axis, ndim) - ndim
    columns = rhs.ndim > ndim
    if rhs.ndim > ndim + 1:
        raise ValueError(f"rhs must have at most {ndim + 1} dimensions, one more than the coefficients, got {rhs.ndim}")
    _check_lengths(arrays, axis, trailing, columns)
    if columns:
        by_columns = (rhs.shape[-1], *rhs.shape[:-1])
        jax_listing = listing() and is_jax(xp)  # which has no views
        rhs = stand_in(xp, rhs, by_columns, rhs.dtype) if jax_listing else move_axis(xp, rhs, -1, 0)
    if transpose:
        lower, upper = (upper, lower) if listing() else transposed(xp, lower, upper, trailing)
    rows = _broadcast_shape("lower, diag and upper", lower.shape, diag.shape, upper.shape)
    n = rhs.shape[trailing]
    if len(rows) < -trailing or rows[trailing] != n:
        rows = _broadcast_shape("coefficients and rhs", rows, (n, *(1,) * (-1 - trailing)))
    shape = rows if tuple(rhs.shape) == rows else _broadcast_shape("rhs and the coefficients", rhs.shape, rows)
    given = lower, diag, upper, rhs
    dtype = diag.dtype
    if not lower.dtype == dtype == upper.dtype == rhs.dtype:
        dtype = xp.result_type(*given)
    working = compute_dtype(xp, dtype)
    if not lower.dtype == diag.dtype == upper.dtype == rhs.dtype == working:
        given = tuple(fitted(xp, x, working) for x in given)
    system = System(arrays=given, rows=rows, shape=shape, axis=trailing, periodic=periodic, pivot=pivot)
    return xp, system, dtype, columns


UNUSED = {"lower": "lower[0]", "upper": "upper[n-1]"}
"""Elements that are not read, unless a system is periodic."""


def _check_lengths(arrays: dict[str, Array], axis: Any, trailing: int, columns: bool) -> None:
    """Raise ValueError unless the lengths along the axis are one n, or 1 for coefficients."""
    shapes = {name: x.shape[:-1] if columns and name == "rhs" else x.shape for name, x in arrays.items()}
    lengths = {name: shape[trailing] if len(shape) >= -trailing else None for name, shape in shapes.items()}
    # The length that others are held against: that of diag, if it says anything.
    first = next((name for name in ("diag", "lower", "upper") if lengths[name] not in (1, None)), "rhs")
    for name, length in lengths.items():
        constant = name != "rhs" and (length == 1 or not shapes[name])
        if not constant and (length is None or length != lengths[first]):
            n = lengths[first]
            hint = (
                f": {UNUSED[name]} stands for no element, so put any number there"
                if (name in UNUSED and n is not None and length == n - 1)
                else ""
            )
            raise ValueError(
                f"{name} must have the length of {first} along axis {axis} of the coefficients, got shapes "
                f"{arrays[name].shape} and {arrays[first].shape}"
                f"{' (the last axis of rhs counts right-hand sides)' if columns and name == 'rhs' else ''}{hint}"
            )


def _broadcast_shape(names: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(broadcast_shapes(*shapes))
    except ValueError:
        raise ValueError(f"{names} must have shapes that broadcast, got {', '.join(map(str, shapes))}") from None


_METHODS = Methods(
    "solve_tridiagonal",
    kernel=by_device(
        Method(cuda.prepare, cuda.refusal),
        Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True),
    ),
    native=Method(
        tridiagonal_native.prepare,
        tridiagonal_native.refusal,
        tridiagonal_native.slower,
        eager=tridiagonal_native.is_eager,
    ),
    array=Method(directly(array)),
)
