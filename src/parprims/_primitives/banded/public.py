"""Banded and block tridiagonal systems."""

from __future__ import annotations

from typing import Never

from parprims._core.arrays import Array, Namespace
from parprims._dispatch.by_device import by_device, either_of, in_programs
from parprims._dispatch.composite import Part, by_parts
from parprims._dispatch.dispatch import Method, Methods, directly, primitive, unordered
from parprims._dispatch.examples import Given, MakesCall, Sample, floats
from parprims._dispatch.primitive import Check, Primitive
from parprims._primitives.banded import cpu, cuda, native
from parprims._primitives.banded.array import array
from parprims._primitives.banded.call import System, check_banded, check_blocks
from parprims._primitives.tridiagonal.public import solve_tridiagonal


@primitive
def solve_banded(
    l_and_u: tuple[int, int], ab: Array, b: Array, /, *, periodic: bool = False, method: str = "auto", **others: Never
) -> Array:
    """Solve systems of linear equations with few diagonals, as SciPy's ``solve_banded`` does, in batches too.

    Parameters
    ----------
    l_and_u : (int, int)
        The numbers of diagonals below and above the main diagonal, together at most 32: (2, 2) for pentadiagonal
        systems.
    ab : array
        The diagonals, of shape (..., l + u + 1, n) and a floating dtype, real or complex: ab[u + i - j, j] is the
        coefficient in row i and column j. Entries outside the matrix are not read, unless periodic. The leading axes
        count independent systems.
    b : array
        The right-hand sides, of shape (..., n), or (..., n, columns) with as many dimensions as ab. The leading
        axes broadcast against the leading axes of ab.
    periodic : bool, default False
        Whether columns are counted modulo n, so that every row has l + u + 1 coefficients; n must be more than l + u.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The solutions, of the shape of b broadcast, and of the promoted dtype. The solution of a singular system is not
        finite, or large because of rounding.

    Raises
    ------
    TypeError
        If ab or b is no array of floats, their dtypes do not promote together, or l_and_u is no pair of integers.
    ValueError
        If shapes do not fit, l_and_u is negative or more than 32 together, or an argument has an unknown value.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    solve_tridiagonal : Tridiagonal systems.
    solve_block_tridiagonal : Block tridiagonal systems.

    Notes
    -----
    Work and depth: about 20 (l + u)^2 n products in log2(n / (l + u)) steps of eliminations by reflections (array),
    2 l (l + u) n in n steps by row exchanges (kernel, native); on a GPU one thread solves one system.
    Error: the backward error is within 64 (l + u) (log2 n + 1) units in the last place, and mostly one. 16-bit floats
    are computed in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run.
    Methods: kernel (CPU arrays by Numba, not periodic; CUDA arrays, up to 4 diagonals on either side, 2 if periodic or
    complex128, 1 if both; the kernel of `solve_tridiagonal` for 1 diagonal on either side), native (LAPACK by SciPy:
    one system in the memory of a CPU, not periodic), array.
    Derivatives: by ab and b on PyTorch and JAX, of every order, by array, and on PyTorch by kernel.
    Memory and more: the page "solve_banded" of the documentation.

    References
    ----------
    S. J. Wright, "Stable Parallel Algorithms for Two-Point Boundary Value Problems", SIAM J. Sci. Stat. Comput. 13(3),
    1992.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> ab = np.array([[0.0, 1.0, 1.0], [4.0, 4.0, 4.0], [1.0, 1.0, 0.0]])
    >>> parprims.solve_banded((1, 1), ab, np.array([5.0, 6.0, 5.0])).round(6)
    array([1., 1., 1.])

    Two systems of one matrix, in the rows of b, and a periodic system:

    >>> parprims.solve_banded((1, 1), ab[None], np.array([[5.0, 6.0, 5.0], [10.0, 12.0, 10.0]])).round(6)
    array([[1., 1., 1.],
           [2., 2., 2.]])
    >>> parprims.solve_banded((1, 1), np.ones((3, 4)) + [[0], [3], [0]], np.full(4, 6.0), periodic=True).round(6)
    array([1., 1., 1., 1.])
    """
    return _SOLVE_BANDED(others, {"ab": ab, "b": b}, method, l_and_u=l_and_u, periodic=periodic)


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
        lower[0] is not read, unless periodic. The leading axes count independent systems and broadcast.
    diag : array
        The blocks on the diagonal.
    upper : array
        The blocks above the diagonal. upper[n-1] is not read, unless periodic.
    rhs : array
        The right-hand sides, of shape (..., n, k), or (..., n, k, columns) with as many dimensions as the blocks.
    periodic : bool, default False
        Whether x[-1] is x[n-1] and x[n] is x[0]; n must be more than 2.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The solutions, of the shape of rhs broadcast, and of the promoted dtype.

    Raises
    ------
    TypeError
        If an argument is no array of floats, or dtypes do not promote together.
    ValueError
        If shapes do not fit, k is more than 16, or an argument has an unknown value.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    solve_banded : Systems with few diagonals.
    solve_tridiagonal : Tridiagonal systems.

    Notes
    -----
    The notes of `solve_banded` apply, except that there is no native method.

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
    arrays = {"lower": lower, "diag": diag, "upper": upper, "rhs": rhs}
    return _SOLVE_BLOCK_TRIDIAGONAL(others, arrays, method, periodic=periodic)


# ---- Declarations -------------------------------------------------------------------------------------------------


def _by_tridiagonal(xp: Namespace, s: System, method: str) -> Array:
    """Return the solutions of systems with one diagonal on either side, by `solve_tridiagonal`."""
    ab, b = s.arrays
    lower, upper = xp.roll(ab[..., 2, :], 1, axis=-1), xp.roll(ab[..., 0, :], -1, axis=-1)
    x: Array = solve_tridiagonal(lower, ab[..., 1, :], upper, b, periodic=s.periodic, method=method)
    return x


def _by_tridiagonal_parts(xp: Namespace, s: System) -> list[Part]:
    del xp
    ab, b = s.arrays
    return [(solve_tridiagonal, (*[ab[..., row, :] for row in range(3)], b), {"periodic": s.periodic})]


_BY_TRIDIAGONAL = by_parts("kernel", _by_tridiagonal, _by_tridiagonal_parts)
_ON_CPU = Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True)
_ON_GPU = Method(cuda.prepare, cuda.refusal, cuda.slower)


def _of_bands(make: Sample) -> Given | None:
    dominant = make.of([0.0], [4.0], [0.0])
    return (((1, 1), make(*make.shape[:-1], 3, make.n) + dominant, make()), {}) if make.is_last else None


def _of_blocks(make: Sample) -> Given | None:
    lower, diag, upper = (make(*make.shape, 2, 2) for _ in range(3))
    dominant = make.of([8.0, 0.0], [0.0, 8.0])
    return ((lower, diag + dominant, upper, make(*make.shape, 2)), {}) if make.is_last else None


def _declared(name: str, check: Check, example: MakesCall) -> Primitive:
    methods = Methods(
        name,
        unordered,
        kernel=by_device(
            either_of(lambda _, s: _BY_TRIDIAGONAL if s.widths == (1, 1) else _ON_GPU),
            _ON_CPU,
            in_programs(_ON_CPU, Method(directly(array))),
        ),
        native=Method(directly(native.native), native.refusal),
        array=Method(directly(array)),
    )
    return Primitive(name=name, check=check, methods=methods, example=floats(example), single=True)


_SOLVE_BANDED = _declared("solve_banded", check_banded, _of_bands)
_SOLVE_BLOCK_TRIDIAGONAL = _declared("solve_block_tridiagonal", check_blocks, _of_blocks)
