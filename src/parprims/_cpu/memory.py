"""What kernels for CPUs ask of arrays: whether they can read them, and where the elements are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, device, dtype_name, library
from parprims._cpu import compiler
from parprims._cuda.libraries import torch, transformed


def on_cpu(xp: Namespace, x: Array) -> bool:
    """Return whether an array is in the memory of the CPU, by a library whose memory kernels can read."""
    kind = library(xp)
    if kind == "torch":
        on: str = x.device.type
        return on == "cpu"
    return kind == "numpy"


def refusal(xp: Namespace, arrays: tuple[Array, ...]) -> str | None:
    """Return the sentence why no kernel can take these arrays of the CPU, or None."""
    kind = library(xp)
    if kind == "torch":
        own = torch()
        for x in arrays:
            if type(x) is not own.Tensor and type(x) is not own.nn.Parameter:
                return f"the arrays are of type {type(x).__name__}, whose memory the kernel cannot read"
        if transformed():
            return (
                "a transformation of torch.func or a forward derivative is under way, which the kernel does not carry"
            )
        if own.is_grad_enabled() and any(x.requires_grad for x in arrays):
            return "a gradient is asked for, which the kernel does not carry"
        if own.compiler.is_compiling():
            return "the call is being compiled"
    return compiler.refusal()


def host(xp: Namespace, x: Array) -> np.ndarray[Any, Any]:
    """Return an array as one of NumPy, of the same memory where that is possible, 16-bit floats by their bits."""
    kind = library(xp)
    if kind == "torch":
        x = x.detach().resolve_conj().resolve_neg()
        found: np.ndarray[Any, Any] = (x.view(xp.uint16) if x.dtype in (xp.float16, xp.bfloat16) else x).numpy()
        return found
    found = np.asarray(x)
    if dtype_name(found.dtype) in SIXTEEN_BIT_FLOATS:
        found = found.view(np.uint16)
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


def reader(xp: Namespace, x: Array) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return the function that makes what `flat` returns of arrays of the layout of one."""
    if library(xp) == "numpy" and type(x) is np.ndarray and x.flags.c_contiguous and x.flags.aligned:
        if dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS:
            return lambda x: x.view(np.uint16).reshape(-1)
        return operator.methodcaller("reshape", -1)
    return lambda x: flat(host(xp, x))


def bits_dtype(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a dtype in memory, for 16-bit floats that of their bits."""
    return np.dtype("uint16" if dtype in SIXTEEN_BIT_FLOATS else dtype)


def writer(xp: Namespace, dtype: str) -> Callable[[np.ndarray[Any, Any], Array], Array]:
    """Return the function that makes arrays of the caller's library, on the device of another, of results."""
    kind, sixteen = library(xp), dtype in SIXTEEN_BIT_FLOATS
    if kind == "torch":
        if sixteen:
            return lambda x, _: xp.from_numpy(x).view(getattr(xp, dtype))
        return lambda x, _: xp.from_numpy(x)
    if kind == "jax":
        return lambda x, like: xp.asarray(x.view(getattr(xp, dtype).dtype) if sixteen else x, device=device(like))
    if not sixteen:
        return lambda x, _: x
    found = _dtype(dtype)
    return lambda x, _: x.view(found)


def _dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name; that of bfloat16 comes with ml_dtypes, as arrays of it do."""
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)
