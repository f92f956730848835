"""Filters by SciPy, on arrays that NumPy reads."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from parprims._core.arrays import Namespace, cast, dtype_name, library, library_title
from parprims._libraries.numpy_bridge import NOT_IN_NUMPY, as_numpy, carries_derivative, in_numpy, returned
from parprims._primitives.filters.call import Filter


def native(xp: Namespace, f: Filter) -> Any:
    """Return the result by SciPy, computed in NumPy's arrays."""
    from scipy import signal

    *coefficients, x = (as_numpy(cast(xp, array, f.working)) for array in f.arrays[: len(f.arrays) - f.states])
    options = {}
    if f.states and f.order:
        options["zi"] = np.array(np.broadcast_to(as_numpy(cast(xp, f.arrays[-1], f.working)), f.state_shape))
    if f.sections is None:
        filtered = signal.lfilter(*coefficients, x, f.axis, **options)
    else:
        sos = coefficients[0] / coefficients[0][:, 3:4]
        sos[:, 3] = 1  # a complex number divided by itself may be nearly 1
        filtered = signal.sosfilt(sos, x, f.axis, **options)
    results = filtered if options else (filtered, np.zeros(f.state_shape, x.dtype))
    with_dtype = [cast(xp, returned(xp, np.ascontiguousarray(result)), f.dtype) for result in results]
    return (with_dtype[0], with_dtype[1]) if f.states else with_dtype[0]


def refusal(xp: Namespace, f: Filter) -> str | None:
    """Return the sentence why SciPy cannot serve the call, or None."""
    if not in_numpy(xp, f.arrays):
        return f"{library_title(xp)} has no filters{NOT_IN_NUMPY.get(library(xp), '')}"
    if carries_derivative(xp, f.arrays):
        return "SciPy computes no derivative, and PyTorch asks for one"
    if dtype_name(f.working) not in ("float32", "float64", "complex64", "complex128"):
        return f"SciPy does not filter {dtype_name(f.working)}"
    if 0 in f.shape:
        return "SciPy filters no empty signals"
    return None if importlib.util.find_spec("scipy") is not None else "SciPy is not installed"
