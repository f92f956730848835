"""Banded and block tridiagonal systems."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
from typing import Any, Never

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    broadcast_shapes,
    cast,
    check_flag,
    compute_dtype,
    device,
    dtype_name,
    library,
    shown,
    spoken,
)
from parprims._core.options import integer_of, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.promotion import promoted
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, either_of
from parprims._dispatch.composite import Composed, Part, by_parts, in_program
from parprims._dispatch.derivative_rules import linear_system
from parprims._dispatch.dispatch import Method, Methods, call_key, directly, in_graph, primitive, recalled
from parprims._libraries.numpy_bridge import NOT_IN_NUMPY, as_numpy, carries_derivative, in_numpy, returned
from parprims._primitives.banded import cpu, cuda
from parprims._primitives.banded.call import Matrix, by_reflections
from parprims._primitives.tridiagonal.public import UNUSED, solve_tridiagonal

_WIDEST = 32
"""Diagonals beside the main one, and rows of two blocks, up to which systems are solved: larger ones are not narrow."""


@primitive
def solve_banded(
    l_and_u: tuple[int, int], ab: Array, b: Array, /, *, periodic: bool = False, method: str = "auto", **others: Never
) -> Array:
    """Solve systems with few diagonals: SciPy's ``solve_banded``, for batches too.

    Parameters
    ----------
    l_and_u : (int, int)
        The numbers of diagonals below and above the main one, together at most 32: (2, 2) for pentadiagonal systems.
    ab : array
        The diagonals, of shape (..., l + u + 1, n) and a floating dtype, real or complex: ab[u + i - j, j] is the
        coefficient in row i and column j. Those of no row or column are not read, unless periodic. The axes before
        count independent systems.
    b : array
        The right-hand sides, of shape (..., n), or (..., n, columns) with as many dimensions as ab. The axes before
        broadcast against those of ab.
    periodic : bool
        Whether columns are counted modulo n, so that every row has l + u + 1 coefficients; n must be more than l + u.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    array
        The solutions, of the shape of b broadcast, and of the promoted dtype. Those of a singular system are not
        finite, or as large as rounding makes them.

    Raises
    ------
    TypeError
        If ab or b is no array of floats, their dtypes do not promote together, or l_and_u is no pair of integers.
    ValueError
        If shapes do not fit, l_and_u is negative or more than 32 together, or an argument has an unknown value.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: about 20 (l + u)^2 n products in log2(n / (l + u)) steps of eliminations by reflections (array),
    2 l (l + u) n in n steps by row exchanges (kernel, native); on a GPU a thread for each system.
    Error: the backward error is within 64 (l + u) (log2 n + 1) units in the last place, and mostly one. 16-bit floats
    are computed in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run.
    Methods: kernel (CPU arrays by Numba, not periodic; CUDA arrays, up to 4 diagonals on either side, 2 if periodic or
    complex128, 1 if both; with 1 on either side that of `solve_tridiagonal`), native (LAPACK by SciPy: one system in
    the memory of a CPU, not periodic), array.
    Derivatives: by ab and b on PyTorch and JAX, of every order, by array, and on PyTorch by kernel.
    Memory and more: docs/solve_banded.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> ab = np.array([[0.0, 1.0, 1.0], [4.0, 4.0, 4.0], [1.0, 1.0, 0.0]])
    >>> parprims.solve_banded((1, 1), ab, np.array([5.0, 6.0, 5.0])).round(6)
    array([1., 1., 1.])
    """
    if others:
        raise unknown_option("solve_banded", others)
    if in_graph((ab, b), method):
        options = {"l_and_u": l_and_u, "periodic": periodic}
        return in_program("solve_banded", {"ab": ab, "b": b}, options, method)[0]
    key = call_key("solve_banded", (ab, b), l_and_u, periodic, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(ab, b)
    plainer = made_plain(l_and_u=l_and_u)
    if plainer is not None:
        return solve_banded(plainer["l_and_u"], ab, b, periodic=periodic, method=method)
    given = ab, b
    below, above = _widths(l_and_u)
    xp, arrays = admit({"ab": ab, "b": b})
    ab, b = arrays
    periodic = check_flag("periodic", periodic)
    _METHODS["solve_banded"].check(method)
    dtype = promoted(xp, {"ab": ab, "b": b}, ("float", "complex"))
    if ab.ndim < 2 or ab.shape[-2] != below + above + 1:
        raise ValueError(f"ab must have shape (..., {below + above + 1}, n), got {tuple(ab.shape)}")
    n = ab.shape[-1]
    if periodic and n <= below + above:
        raise ValueError(f"ab must have more than {below + above} columns in a periodic system, got {n}")
    shape, columns = _right_sides("b", b, (*ab.shape[:-2], n))
    call = _System(
        arrays=(ab, b),
        key=key if ab is given[0] and b is given[1] else None,
        results=((shape, dtype),),
        single=True,
        widths=(below, above),
        n=n,
        columns=columns,
        periodic=periodic,
        working=compute_dtype(xp, dtype),
    )
    return _METHODS["solve_banded"](method, xp, call)


@primitive
def solve_block_tridiagonal(
    lower: Array,
    diag: Array,
    upper: Array,
    rhs: Array,
    /,
    *,
    periodic: bool = False,
    method: str = "auto",
    **others: Never,
) -> Array:
    """Solve block tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i], with k x k blocks.

    Parameters
    ----------
    lower : array
        The blocks below the diagonal, of shape (..., n, k, k) and a floating dtype, real or complex; k is at most 16.
        lower[0] is not read, unless periodic. The axes before count independent systems and broadcast.
    diag : array
        The blocks on the diagonal.
    upper : array
        The blocks above it. upper[n-1] is not read, unless periodic.
    rhs : array
        The right-hand sides, of shape (..., n, k), or (..., n, k, columns) with as many dimensions as the blocks.
    periodic : bool
        Whether x[-1] is x[n-1] and x[n] is x[0]; n must be more than 2.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `solve_banded`, but for "native". The errors and notes of `solve_banded` apply.

    Returns
    -------
    array
        The solutions, of the shape of rhs broadcast, and of the promoted dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> eye = np.broadcast_to(np.eye(2), (3, 2, 2))
    >>> rhs = np.array([[5.0, 5.0], [6.0, 6.0], [5.0, 5.0]])
    >>> parprims.solve_block_tridiagonal(eye, 4 * eye, eye, rhs).round(6)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]])
    """
    if others:
        raise unknown_option("solve_block_tridiagonal", others)
    named = {"lower": lower, "diag": diag, "upper": upper, "rhs": rhs}
    given = tuple(named.values())
    if in_graph(given, method):
        return in_program("solve_block_tridiagonal", named, {"periodic": periodic}, method)[0]
    key = call_key("solve_block_tridiagonal", given, periodic, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(*given)
    xp, arrays = admit(named)
    periodic = check_flag("periodic", periodic)
    _METHODS["solve_block_tridiagonal"].check(method)
    dtype = promoted(xp, dict(zip(named, arrays, strict=True)), ("float", "complex"))
    for name, one in zip(named, arrays[:3], strict=False):
        if one.ndim < 3 or one.shape[-1] != one.shape[-2] or one.shape[-1] == 0:
            raise ValueError(f"{name} must have shape (..., n, k, k), got {tuple(one.shape)}")
        if one.shape[-3:] != arrays[1].shape[-3:]:
            short = one.shape[-2:] == arrays[1].shape[-2:] and one.shape[-3] == arrays[1].shape[-3] - 1
            hint = f": {UNUSED[name]} stands for no element, so put any number there" if short else ""
            raise ValueError(f"{name} must have as many blocks of the same shape as diag, got {tuple(one.shape)}{hint}")
    n, k = arrays[1].shape[-3], arrays[1].shape[-1]
    if 2 * k > _WIDEST:
        raise ValueError(f"diag must have blocks of at most {_WIDEST // 2} rows, got {k}")
    if periodic and n <= 2:
        raise ValueError(f"diag must have more than 2 blocks in a periodic system, got {n}")
    try:
        batch = broadcast_shapes(*(tuple(one.shape[:-3]) for one in arrays[:3]))
    except ValueError:
        shapes = ", ".join(str(tuple(one.shape)) for one in arrays[:3])
        raise ValueError(f"lower, diag and upper must broadcast against each other, got shapes {shapes}") from None
    shape, columns = _right_sides("rhs", arrays[3], (*batch, n, k))
    call = _System(
        arrays=tuple(arrays),
        key=key if all(one is other for one, other in zip(arrays, given, strict=True)) else None,
        results=((shape, dtype),),
        single=True,
        widths=None,
        n=n,
        columns=columns,
        periodic=periodic,
        working=compute_dtype(xp, dtype),
    )
    return _METHODS["solve_block_tridiagonal"](method, xp, call)


# ---- Checks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _System(Composed):
    """A checked call. ``widths`` are the numbers of diagonals below and above, or None for blocks.

    ``columns`` says whether the last axis of right-hand sides counts several, ``working`` what is computed in.
    """

    widths: tuple[int, int] | None
    n: int
    columns: bool
    periodic: bool
    working: Any

    @functools.cached_property
    def matrix(self) -> Matrix:
        """What is solved, but for the coefficients."""
        return Matrix(self.widths, self.n, self.periodic)

    def parts(self, xp: Namespace, *arrays: Array) -> tuple[tuple[Array, ...], Array]:
        """Return the coefficients as `Matrix` has them, and the right-hand sides of the full shape, several of each.

        All are of the dtype computed in.
        """
        *coefficients, b = [cast(xp, x, self.working) for x in arrays]
        shape = self.results[0][0]
        b = b if self.columns else xp.expand_dims(b, axis=-1)
        shape = shape if self.columns else (*shape, 1)
        return self.matrix.coefficients(xp, *coefficients), b if b.shape == shape else xp.broadcast_to(b, shape)


def _widths(given: Any) -> tuple[int, int]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"l_and_u must be a pair of integers, got {shown(given)}")
    below, above = [integer_of(f"l_and_u[{at}]", one, 0, _WIDEST) for at, one in enumerate(given)]
    if below + above > _WIDEST:
        raise ValueError(f"l_and_u must be together at most {_WIDEST}, got {shown(given)}")
    return below, above


def _right_sides(name: str, b: Array, wanted: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the shape of solutions, and whether the last axis counts several, for one right-hand side of a shape."""
    columns = b.ndim == len(wanted) + 1
    own = tuple(b.shape[:-1]) if columns else tuple(b.shape)
    last = 1 if name == "b" else 2
    fits = len(own) >= last and own[-last:] == wanted[-last:] and len(own) <= len(wanted)
    try:
        shape = broadcast_shapes(own, wanted)
    except ValueError:
        fits, shape = False, ()
    if not fits:
        raise ValueError(f"{name} must have shape {wanted}, or one axis more, got {tuple(b.shape)}")
    return ((*shape, b.shape[-1]) if columns else shape), columns


# ---- Methods ----------------------------------------------------------------------------------------------------


def _array(xp: Namespace, s: _System) -> Array:
    """Return the solutions by reflections, refined by their residuals."""
    shape, dtype = s.results[0]
    if 0 in shape:
        return xp.zeros(shape, dtype=dtype, device=device(s.arrays[0]))
    x = linear_system(xp, s.matrix, by_reflections, *s.parts(xp, *s.arrays))
    return xp.astype(x if s.columns else x[..., 0], dtype, copy=True)


def _native(xp: Namespace, s: _System) -> Array:
    """Return the solution by LAPACK, computed in NumPy's arrays."""
    from scipy.linalg import LinAlgError, solve_banded

    shape, dtype = s.results[0]
    ab, b = (np.asarray(as_numpy(cast(xp, x, s.working))) for x in s.arrays)
    b = np.broadcast_to(b, shape)
    ab, b = ab.reshape(ab.shape[-2:]), b.reshape(b.shape[b.ndim - 1 - s.columns :])
    try:
        x = solve_banded(s.widths, ab, b, check_finite=False)
    except LinAlgError:
        x = np.full(b.shape, np.nan, b.dtype)
    return cast(xp, returned(xp, np.ascontiguousarray(x.reshape(shape))), dtype)


def _native_refusal(xp: Namespace, s: _System) -> str | None:
    if s.widths is None:
        return "LAPACK has no block tridiagonal systems"
    if not in_numpy(xp, s.arrays):
        return f"{spoken(xp)} has no banded systems{NOT_IN_NUMPY.get(library(xp), '')}"
    if carries_derivative(xp, s.arrays):
        return "a gradient is asked for, which SciPy does not carry"
    if s.periodic:
        return "LAPACK solves no periodic systems"
    if dtype_name(s.working) not in ("float32", "float64", "complex64", "complex128"):
        return f"LAPACK does not compute in {dtype_name(s.working)}"
    if 0 in s.results[0][0] or s.results[0][0][: len(s.results[0][0]) - 1 - s.columns] not in ((), (1,)):
        return "LAPACK solves one system at a time"
    return None if importlib.util.find_spec("scipy") is not None else "SciPy, which brings LAPACK, is not installed"


def _prepare(xp: Namespace, s: _System) -> Any:
    """Return what solves by the kernel for GPUs."""
    return cuda.prepare(xp, s, _array)


def _tridiagonal(xp: Namespace, s: _System, method: str) -> Array:
    """Return the solutions of systems with a diagonal on either side by `solve_tridiagonal`."""
    ab, b = s.arrays
    lower, upper = xp.roll(ab[..., 2, :], 1, axis=-1), xp.roll(ab[..., 0, :], -1, axis=-1)
    x: Array = solve_tridiagonal(lower, ab[..., 1, :], upper, b, periodic=s.periodic, method=method)
    return x


def _tridiagonal_parts(xp: Namespace, s: _System) -> list[Part]:
    del xp
    ab, b = s.arrays
    return [(solve_tridiagonal, (*[ab[..., at, :] for at in range(3)], b), {"periodic": s.periodic})]


def _prepare_cpu(xp: Namespace, s: _System) -> Any:
    """Return what solves by the kernel for CPUs, with its derivative by the same."""
    if 0 in s.results[0][0]:
        return directly(_array)(xp, s)
    (shape, dtype), bare = s.results[0], s.on(*(None,) * len(s.arrays))
    batch = shape[: len(shape) - 1 - s.columns - (s.widths is None)]
    systems, columns = math.prod(batch), shape[-1] if s.columns else 1

    def flat(matrix: Matrix, coefficients: tuple[Array, ...], b: Array) -> tuple[Array, Array, int]:
        rows, below = matrix.rows(xp, coefficients)
        n, width = rows.shape[-2:]
        rows = xp.reshape(xp.broadcast_to(rows, (*batch, n, width)), (systems, n, width))
        return rows, xp.reshape(b, (systems, n, columns)), below

    prepared = cpu.prepare(*flat(s.matrix, *s.parts(xp, *map(derivative_rules.detached, s.arrays))))

    def solve(_: Namespace, matrix: Matrix, coefficients: tuple[Array, ...], b: Array) -> Array:
        rows, right, below = flat(matrix, coefficients, b)
        run = prepared if matrix == bare.matrix else cpu.prepare(rows, right, below)
        return xp.reshape(run(rows, right)[0], b.shape)

    def solved(*arrays: Array) -> Array:
        x = linear_system(xp, bare.matrix, solve, *bare.parts(xp, *arrays))
        return cast(xp, xp.reshape(x, shape), dtype)

    return solved


def _kernel_slower(xp: Namespace, s: _System) -> str | None:
    return cpu.slower(xp, _native_refusal(xp, s) is None, math.prod(s.results[0][0]))


_BANDED = Method(_prepare, cuda.refusal, cuda.slower)
_TRIDIAGONAL = by_parts("kernel", _tridiagonal, _tridiagonal_parts)

_METHODS = {
    name: Methods(
        name,
        kernel=by_device(
            either_of(lambda _, s: _TRIDIAGONAL if s.widths == (1, 1) else _BANDED),
            Method(_prepare_cpu, cpu.refusal, _kernel_slower, quiet=True),
        ),
        native=Method(directly(_native), _native_refusal),
        array=Method(directly(_array)),
    )
    for name in ("solve_banded", "solve_block_tridiagonal")
}
