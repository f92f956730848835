"""Banded systems by LAPACK, on arrays that NumPy reads."""

from __future__ import annotations

import importlib.util

import numpy as np

from parprims._core.arrays import Array, Namespace, cast, dtype_name, library, library_title
from parprims._libraries.numpy_bridge import NOT_IN_NUMPY, as_numpy, carries_derivative, in_numpy, returned
from parprims._primitives.banded.call import System


def native(xp: Namespace, s: System) -> Array:
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


def refusal(xp: Namespace, s: System) -> str | None:
    if s.widths is None:
        return "LAPACK has no block tridiagonal systems"
    if not in_numpy(xp, s.arrays):
        return f"{library_title(xp)} has no banded systems{NOT_IN_NUMPY.get(library(xp), '')}"
    if carries_derivative(xp, s.arrays):
        return "SciPy computes no derivative, and PyTorch asks for one"
    if s.periodic:
        return "LAPACK solves no periodic systems"
    if dtype_name(s.working) not in ("float32", "float64", "complex64", "complex128"):
        return f"LAPACK does not compute in {dtype_name(s.working)}"
    if 0 in s.results[0][0] or s.results[0][0][: len(s.results[0][0]) - 1 - s.columns] not in ((), (1,)):
        return "LAPACK solves one system at a time"
    return None if importlib.util.find_spec("scipy") is not None else "SciPy, which brings LAPACK, is not installed"
