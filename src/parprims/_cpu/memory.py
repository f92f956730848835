"""What kernels for CPUs ask of NumPy's arrays: whether they can read them, and where the elements are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, dtype_name, library


def on_cpu(xp: Namespace) -> bool:
    """Return whether kernels for CPUs take the arrays of a library: those of NumPy."""
    return library(xp) == "numpy"


def host(x: Array) -> np.ndarray[Any, Any]:
    """Return an array that kernels can read: of the same memory, or a copy where elements are not aligned.

    16-bit floats are returned by their bits.
    """
    found: np.ndarray[Any, Any] = x.view(np.uint16) if dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS else x
    itemsize = found.dtype.itemsize
    if not found.flags.aligned or any(stride % itemsize for stride in found.strides):
        return found.copy()
    return found


def strides(x: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Return the strides in elements."""
    itemsize = x.dtype.itemsize
    return tuple([stride // itemsize for stride in x.strides])


def flat(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the elements of an array and all between them, from the lowest address on, as an array of one axis."""
    if x.flags.c_contiguous:
        return x.reshape(-1)
    itemsize, low, high = x.dtype.itemsize, 0, 1
    if 0 in x.shape:
        return x.reshape(-1)
    for length, stride in zip(x.shape, x.strides, strict=True):
        low += min(0, stride * (length - 1))
        high += max(0, stride * (length - 1)) // itemsize
    if low:  # begin at the lowest address: axes that descend are turned round
        x = x[tuple([slice(None, None, -1) if stride < 0 else slice(None) for stride in x.strides])]
    return np.lib.stride_tricks.as_strided(x, (high - low // itemsize,), (itemsize,), writeable=False)


def first(x: np.ndarray[Any, Any]) -> int:
    """Return where in `flat` the first element of an array is."""
    found: int = sum([(1 - length) * stride for length, stride in zip(x.shape, strides(x), strict=True) if stride < 0])
    return found


def reader(x: Array) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return the function that makes what `flat` returns of arrays of the layout of one."""
    if x.flags.c_contiguous and x.flags.aligned:
        if dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS:
            return lambda x: x.view(np.uint16).reshape(-1)
        return operator.methodcaller("reshape", -1)
    return lambda x: flat(host(x))


def bits_dtype(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a dtype in memory, for 16-bit floats that of their bits."""
    return np.dtype("uint16" if dtype in SIXTEEN_BIT_FLOATS else dtype)


def own_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name; that of bfloat16 comes with ml_dtypes, as arrays of it do."""
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)
