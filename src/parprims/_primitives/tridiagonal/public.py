"""Tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i]."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import Array, Namespace, as_result, is_jax, library, move_axis, quiet
from parprims._core.jax_arrays import is_traced
from parprims._core.memo import Memo
from parprims._core.programs import one_program
from parprims._core.signature import signature
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, primitive, unordered
from parprims._dispatch.examples import Given, Sample, floats
from parprims._dispatch.primitive import Primitive
from parprims._dispatch.watch import unwatched
from parprims._libraries.numpy_bridge import all_by_numpy, in_numpy, numpy_namespace
from parprims._primitives.reduce.public import map_reduce
from parprims._primitives.tridiagonal import cpu, cuda, native
from parprims._primitives.tridiagonal.array import array
from parprims._primitives.tridiagonal.call import Solution, checked, rounded
from parprims._primitives.tridiagonal.residual import safe_backward_error, status


@primitive
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
        The coefficients, of real or complex floating dtypes that promote together. They have length n or 1 along the
        axis, and the other axes, which count independent systems, broadcast. An array of length 1 holds one coefficient
        for all rows of a system; a number or a 0-d array holds one for all rows of all systems. lower[0] and upper[n-1]
        are not read, unless periodic.
    rhs : array
        The right-hand sides, of length n along the axis. Let d be the number of dimensions that the coefficients
        broadcast to. If rhs has at most d dimensions, it holds one right-hand side per system and broadcasts against
        the coefficients. If rhs has d + 1 dimensions, its last axis counts the right-hand sides of each system, and its
        other axes are matched with the axes of the coefficients. So coefficients of shape (n,) take rhs of shape (n,)
        or (n, k), also if k = n. To solve one system for the rows of rhs of shape (k, n), give the coefficients shape
        (1, n). If all coefficients are numbers, rhs holds one right-hand side per system.
    axis : int, default -1
        The axis of the unknowns, in the shape that the coefficients broadcast to (the shape of rhs if all are numbers).
    pivot : {"auto", "partial", "none"}, default "auto"
        Pivoting. ``partial`` exchanges rows, and solves every regular system. ``none`` may leave the rows in their
        order, which suffices for diagonally dominant, definite and M-matrices. ``auto`` exchanges rows unless it finds
        that a matrix is diagonally dominant, so it solves every system that ``partial`` solves.
    periodic : bool, default False
        Whether the first and the last unknown are neighbours: lower[0] multiplies x[n-1] and upper[n-1]
        multiplies x[0].
    transpose : bool, default False
        Whether to solve with the transposed matrix: upper[i-1] x[i-1] + diag[i] x[i] + lower[i+1] x[i+1] = rhs[i].
        Nothing is conjugated.
    return_residual : bool, default False
        Whether to return the backward error too, after x.
    return_status : bool, default False
        Whether to return the status too.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    x : array
        The unknowns, of the promoted dtype, and of the shape to which coefficients and rhs broadcast. If any input that
        is read or any unknown is not finite, all unknowns of that system are NaN.
    backward_error : array
        Only with return_residual. For every solution it is max |r[i]| / (|A| |x| + |rhs|)[i] with r = rhs - A x, where
        0/0 is 0: if the coefficients and rhs were changed by at most this relative amount, x would be exact. It is inf
        if and only if x is not finite. Real, in the precision of the computation, of the shape of x without the axis.
        CuPy and XLA compute it with subnormal numbers as zero.
    status : array
        Only with return_status, of dtype int32. 0: x is a solution. 1: x is NaN, because a pivot was zero or a number
        was not finite or overflowed. 2: the backward error is above the square root of eps of the dtype of x. With row
        exchanges, status 2 has four causes: the matrix with scaled rows is singular to the precision; numbers
        underflow; the unknowns and rhs of a row should be zero and are at most eps of others; a periodic system is
        solved by native.

    Raises
    ------
    TypeError
        If an argument is no array or not of a floating dtype, or arrays come from several libraries.
    ValueError
        If lengths along the axis differ, shapes do not broadcast, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    solve_banded : Systems with more diagonals.
    solve_block_tridiagonal : Block tridiagonal systems.
    linear_recurrence : Bidiagonal systems.

    Notes
    -----
    Work and depth: O(n) in 4 ceil(log2 n) steps by array, and in n steps by native and by kernel on a CPU. On a GPU,
    kernel does O(n) work too, in one to three launches for systems that fit a block (8192 unknowns of float32), and 4
    to 58 for longer systems.
    Error with row exchanges: a backward error of at most ten times the error of LAPACK's gtsv, or ten eps if that is
    more; the page "solve_tridiagonal" of the documentation lists the exceptions, and return_residual shows them.
    Error without row exchanges: if |lower| + |upper| <= t |diag| in every row, t < 1, then x is within about
    8 ceil(log2 n) / (1 - t) units in the last place of max |x|.
    Singular systems: x is NaN, or large because of rounding; no error is raised, and the status is not 0.
    Reproducibility: the same input gives the same bits, alone and in a batch, by kernel and array.
    Methods: kernel (CUDA arrays; by Numba, arrays of NumPy, PyTorch and eager JAX on the CPU), native (JAX; with SciPy,
    NumPy's and PyTorch's CPU arrays), both for 32- and 64-bit real and complex floats, and array.
    Derivatives: by coefficients and rhs on PyTorch and JAX, by every method.
    More: the page "solve_tridiagonal" of the documentation.

    References
    ----------
    R. W. Hockney and C. R. Jesshope, "Parallel Computers", 1981.

    S. J. Wright, "Stable Parallel Algorithms for Two-Point Boundary Value Problems", SIAM J. Sci. Stat. Comput. 13(3),
    1992.

    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapters 7, 9 and 12.

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

    Systems down the columns, and a periodic system:

    >>> parprims.solve_tridiagonal(-1.0, 3.0, -1.0, np.array([[2.0, 4.0], [2.0, 4.0]]), axis=0)
    array([[1., 2.],
           [1., 2.]])
    >>> parprims.solve_tridiagonal(-1.0, 3.0, -1.0, np.ones(3), periodic=True).round(6)
    array([1., 1., 1.])

    Inside programs of JAX, with a derivative:

    >>> import jax
    >>> solve = jax.jit(lambda rhs: parprims.solve_tridiagonal(0.0, 2.0, 0.0, rhs))
    >>> solve(jax.numpy.array([2.0, 4.0])).tolist()
    [1.0, 2.0]
    >>> jax.grad(lambda rhs: solve(rhs)[0])(jax.numpy.ones(2)).tolist()
    [0.5, 0.0]
    """
    arrays = {"lower": lower, "diag": diag, "upper": upper, "rhs": rhs}
    return _SOLVE_TRIDIAGONAL(
        others,
        arrays,
        method,
        axis_name,
        axis=axis,
        pivot=pivot,
        periodic=periodic,
        transpose=transpose,
        return_residual=return_residual,
        return_status=return_status,
    )


def _solved(methods: Methods, method: str, xp: Namespace, solution: Solution) -> Any:
    """Return the solution, and the backward error and the status if the caller asks for them."""
    s = solution.system
    x = derivative_rules.tridiagonal(methods, method, xp, s)
    with quiet(xp):
        result = x if x.dtype == solution.dtype else rounded(xp, x, solution.dtype, s.axis)
        results = [result]
        if solution.return_residual or solution.return_status:
            results += _verdicts(xp, solution, x if result is x else xp.astype(result, x.dtype))
    if solution.columns:
        results = [move_axis(xp, result, 0, -1) for result in results]
    return tuple(results) if len(results) > 1 else results[0]


def _verdicts(xp: Namespace, solution: Solution, x: Array) -> tuple[Array, ...]:
    """Return the backward error and the status of rounded unknowns, as far as the caller asks for them."""
    s, dtype = solution.system, solution.dtype
    arrays, bare, largest = (x, *s.arrays), s.on(*(None,) * 4), None
    if library(xp) in ("cupy", "torch") and getattr(x, "is_cuda", True) and signature(arrays) is not None:
        largest = functools.partial(_largest_by_kernel, s.axis)

    def verdicts(xp: Namespace, x: Array, *arrays: Array) -> tuple[Array, ...]:
        system = bare.on(*arrays)
        error = safe_backward_error(xp, system, x, largest)
        results = [error] * solution.return_residual
        if solution.return_status:
            results.append(status(xp, system, x, error, dtype=dtype))
        return tuple(map(as_result, results))

    # One operation after another takes up to a hundred times as long as a program, and by PyTorch several times as long
    # as by NumPy.
    if is_jax(xp) and not any(map(is_traced, arrays)):
        key = bare.described(), dtype, solution.return_residual, solution.return_status
        return (_programs.get(key) or _programs.keep(key, one_program(functools.partial(verdicts, xp))))(*arrays)
    if library(xp) == "torch" and in_numpy(xp, arrays) and not any(array.requires_grad for array in arrays):
        return all_by_numpy(xp, arrays, functools.partial(verdicts, numpy_namespace()))(*arrays)
    return verdicts(xp, *arrays)


def _largest_by_kernel(axis: int, function: Callable[..., Array], *arrays: Array) -> Array:
    """Return the largest value along an axis, for which an operation at a time would take dozens of launches."""
    with unwatched():
        largest: Array = map_reduce(function, *arrays, op="maximum", axis=axis)
    return largest


_programs: Memo[Callable[..., tuple[Array, ...]]] = Memo()


def _example(make: Sample) -> Given | None:
    return ((make(), make() + make.of(4.0), make(), make()), {}) if make.is_last else None


_ON_CPU = Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True)
_SOLVE_TRIDIAGONAL = Primitive(
    name="solve_tridiagonal",
    check=checked,
    methods=Methods(
        "solve_tridiagonal",
        unordered,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal),
            _ON_CPU,
            in_programs(_ON_CPU, Method(directly(array)), batched=cpu.batched),
        ),
        native=Method(
            native.prepare,
            native.refusal,
            native.slower,
            eager=native.is_eager,
        ),
        array=Method(directly(array)),
    ),
    example=floats(_example),
    gradient=False,
    compute=_solved,
    rules="system",
    single=lambda asked: not (asked["return_residual"] or asked["return_status"]),
    sharded=True,
)
