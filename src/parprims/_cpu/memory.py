"""Arrays of kernels for CPUs: readable memory, the position of elements, and the allocation of results."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, dtype_name, is_tensor, library
from parprims._cpu import compiler
from parprims._libraries.numpy_bridge import carries_derivative, in_numpy, to_jax
from parprims._operators.languages import C_TYPES


def on_cpu(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether arrays are in the memory of a CPU and of a library whose memory kernels for CPUs can read."""
    kind = library(xp)
    if kind == "torch":
        return all(x.device.type == "cpu" for x in arrays)
    if kind == "jax":
        import jax

        return all(
            isinstance(x, jax.Array)
            and not isinstance(x, jax.core.Tracer)
            and {one.platform for one in x.devices()} == {"cpu"}
            for x in arrays
        )
    return kind == "numpy"


def refusal(xp: Namespace, arrays: tuple[Array, ...], *, differentiable: bool = False) -> str | None:
    """Return the sentence why no kernel can take these arrays, for which `on_cpu` holds, or None.

    ``differentiable`` says whether the method carries derivatives on PyTorch.
    """
    reason = compiler.refusal()
    if reason is not None:
        return reason
    if library(xp) == "jax":
        import jax

        single = all(type(x.sharding) is jax.sharding.SingleDeviceSharding for x in arrays)
        return None if single else "the arrays belong to a mesh of devices"
    if not in_numpy(xp, arrays):
        return (
            "a transformation of torch.func, a forward derivative or a compiler is under way, "
            "which does not see what the kernel does"
        )
    if not differentiable and carries_derivative(xp, arrays):
        return "a gradient is asked for, which the kernel does not carry"
    return None


def unknown_dtype(typed: Iterable[Any]) -> str | None:
    """Return the sentence why a kernel cannot take arrays, or other things with a dtype, because of that, or None."""
    unknown = next((name for x in typed if (name := dtype_name(x.dtype)) not in C_TYPES), None)
    return None if unknown is None else f"the kernel has no dtype {unknown}"


_MOST_ARRAYS = 30
"""The most parts of a tuple that Numba reads in a function, and more would take minutes to compile."""


def too_many(*groups: Sequence[Any]) -> str | None:
    """Return the sentence why a kernel cannot take elements of so many arrays, or None."""
    count = max(map(len, groups))
    if count <= _MOST_ARRAYS:
        return None
    return f"an element has {count} arrays, and a kernel for CPUs takes {_MOST_ARRAYS} at most"


def _in_memory(x: Array) -> Callable[[Array], np.ndarray[Any, Any]] | None:
    """Return what makes NumPy's arrays in the same memory of arrays like one, or None where they are that already.

    16-bit floats are returned by their bits.
    """
    by_bits = dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS
    if is_tensor(x):
        bits = sys.modules["torch"].uint16
        if by_bits:
            return lambda x: x.detach().view(bits).numpy()
        return operator.methodcaller("numpy", force=True)  # of one that is to be conjugated a copy
    if isinstance(x, np.ndarray):
        return (lambda x: x.view(np.uint16)) if by_bits else None
    if by_bits:  # of JAX
        return lambda x: np.asarray(x, order="C").view(np.uint16)
    return lambda x: np.asarray(x, order="C")


def host(x: Array) -> np.ndarray[Any, Any]:
    """Return an array that kernels can read as NumPy's: of the same memory, or a copy where that is not aligned.

    16-bit floats are returned by their bits.
    """
    read = _in_memory(x)
    return _aligned(x if read is None else read(x))


def _aligned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    itemsize = x.dtype.itemsize
    if not x.flags.aligned or any(stride % itemsize for stride in x.strides):
        return x.copy()
    return x


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


def is_flat(x: Array) -> bool:
    """Return whether an array is already what `reader` makes of it."""
    if not isinstance(x, np.ndarray) or dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS:
        return False
    return x.ndim == 1 and x.flags.c_contiguous and x.flags.aligned


def reader(x: Array) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return the function that makes what `flat` returns of arrays of the library and the layout of one."""
    read = _in_memory(x)
    found = x if read is None else read(x)
    if found.flags.c_contiguous and found.flags.aligned:
        return operator.methodcaller("reshape", -1) if read is None else lambda x: read(x).reshape(-1)
    return lambda x: flat(host(x))


def reader_in_order(x: Array, axis: int = -1) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return the function that makes of arrays like one their elements in row-major order, after an axis is moved last.

    They are copied where they do not lie so.
    """
    if axis in (-1, x.ndim - 1) and host(x).flags.c_contiguous:
        return reader(x)
    if axis == -1:
        return flat_in_order
    return lambda x: np.ascontiguousarray(np.moveaxis(host(x), axis, -1)).reshape(-1)


def in_order(x: Array) -> np.ndarray[Any, Any]:
    """Return the elements of an array in row-major order, as `host` returns them, or a copy."""
    return np.ascontiguousarray(host(x))


def flat_in_order(x: Array) -> np.ndarray[Any, Any]:
    """Return the elements of an array in row-major order as an array of one axis."""
    return in_order(x).reshape(-1)


def allocator(like: Array) -> Callable[..., np.ndarray[Any, Any]]:
    """Return an allocator of results, given shape and dtype, in memory that the library of an array can take over."""
    return np.empty if is_tensor(like) or isinstance(like, np.ndarray) else _empty_for_jax


_ALIGNMENT = 64
"""The alignment, in bytes, of memory that JAX takes over. What is not aligned it copies."""


def _empty_for_jax(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + nbytes].view(dtype).reshape(shape)


Made = Callable[[list[np.ndarray[Any, Any]], tuple[Array, ...]], tuple[Array, ...]]
"""Takes what was allocated and the arrays of the call; returns the results as arrays of their library."""


def maker(like: Array, dtypes: Sequence[str]) -> Made:
    """Return a function that turns results of these dtypes into arrays of the library, without a copy."""
    if is_tensor(like):
        torch = sys.modules["torch"]
        return _taken(dtypes, functools.partial(getattr, torch), torch.from_numpy)
    taken = _taken(dtypes, own_dtype)
    if isinstance(like, np.ndarray):
        return taken
    return lambda results, arrays: to_jax(taken(results, arrays), arrays)


def _taken(dtypes: Sequence[str], own: Callable[[str], Any], take: Callable[..., Array] | None = None) -> Made:
    """Return a function for all results: it applies ``take``, and views bits of 16-bit floats as these."""
    views = [own(dtype) if dtype in SIXTEEN_BIT_FLOATS else None for dtype in dtypes]
    if any(view is not None for view in views):

        def run(results: list[np.ndarray[Any, Any]], _: tuple[Array, ...]) -> tuple[Array, ...]:
            arrays = results if take is None else [take(one) for one in results]
            return tuple([one if view is None else one.view(view) for one, view in zip(arrays, views, strict=True)])

        return run
    if take is None:
        return lambda results, _: tuple(results)
    return lambda results, _: tuple([take(one) for one in results])


def bits_dtype(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a dtype in memory, for 16-bit floats that of their bits."""
    return np.dtype("uint16" if dtype in SIXTEEN_BIT_FLOATS else dtype)


def bytes_of(dtypes: Iterable[str]) -> int:
    """Return the bytes of one element of each dtype."""
    return sum([bits_dtype(one).itemsize for one in dtypes])


def own_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name; that of bfloat16 comes with ml_dtypes, as arrays of it do."""
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)
