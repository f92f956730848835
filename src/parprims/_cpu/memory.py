"""Arrays of kernels for CPUs: readable memory, the position of elements, and the allocation of results.

Arrays of a program of JAX have no memory yet. XLA will hand their elements over in row-major order, so that `host`
returns a `Layout`, and the readers return arrays of the program.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, dtype_name, is_tensor, library
from parprims._core.jax_arrays import is_traced
from parprims._core.layout import row_major
from parprims._cpu import compiler
from parprims._libraries.numpy_bridge import carries_derivative, in_numpy, to_jax
from parprims._operators.languages import C_TYPES


def on_cpu(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether arrays are in the memory of a CPU and belong to a library that lets kernels read it."""
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
    """Return the sentence why no kernel can take these arrays on a CPU, or None.

    ``differentiable`` says whether the method carries derivatives on PyTorch.
    """
    reason = compiler.refusal()
    if reason is not None:
        return reason
    if library(xp) == "jax":
        if any(map(is_traced, arrays)):  # of a program, which `by_device.in_programs` asks about
            return None
        import jax

        single = all(type(x.sharding) is jax.sharding.SingleDeviceSharding for x in arrays)
        return None if single else "the arrays belong to a mesh of devices"
    if not in_numpy(xp, arrays):
        return (
            "a transformation of torch.func, a forward derivative or a compiler is under way, "
            "which does not see the operations of the kernel"
        )
    if not differentiable and carries_derivative(xp, arrays):
        return "a gradient is asked for, which the kernel does not carry"
    return None


def unknown_dtype(typed: Iterable[Any]) -> str | None:
    """Return the sentence why a kernel cannot take the dtype of an array, or of another object, or None."""
    unknown = next((name for x in typed if (name := dtype_name(x.dtype)) not in C_TYPES), None)
    return None if unknown is None else f"the kernel has no dtype {unknown}"


_MOST_ARRAYS = 30
"""The most arrays of an element: Numba reads no longer tuples, and they would take minutes to compile."""


def too_many(*groups: Sequence[Any]) -> str | None:
    """Return the sentence why a kernel cannot take elements with this number of arrays, or None."""
    count = max(map(len, groups))
    if count <= _MOST_ARRAYS:
        return None
    return f"an element has {count} arrays, and a kernel for CPUs takes {_MOST_ARRAYS} at most"


def _in_memory(x: Array) -> Callable[[Array], Any] | None:
    """Return a function that views arrays like one as NumPy's, or None if they are NumPy's already.

    16-bit floats are viewed as their bits. For arrays of a program, the function returns their `Layout`.
    """
    by_bits = dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS
    if is_tensor(x):
        bits = sys.modules["torch"].uint16
        if by_bits:
            return lambda x: x.detach().view(bits).numpy()
        return operator.methodcaller("numpy", force=True)  # a copy if the conjugate is not computed yet
    if isinstance(x, np.ndarray):
        return (lambda x: x.view(np.uint16)) if by_bits else None
    if is_traced(x):
        return Layout
    if by_bits:  # of JAX
        return lambda x: np.asarray(x, order="C").view(np.uint16)
    return lambda x: np.asarray(x, order="C")


class Layout:
    """The layout of an array of a program: that of a NumPy array in row-major order, without elements."""

    flags = np.empty(0).flags

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __init__(self, x: Array) -> None:
        self.shape, self.dtype = tuple(x.shape), bits_dtype(dtype_name(x.dtype))
        self.strides = tuple([step * self.dtype.itemsize for step in row_major(self.shape)])


def with_axis(x: Any, axis: int) -> Any:
    """Return an array or a layout with one more axis of length 1, without a copy."""
    if type(x) is not Layout:
        return np.expand_dims(x, axis)
    made = copy.copy(x)
    made.shape, made.strides = (*x.shape[:axis], 1, *x.shape[axis:]), (*x.strides[:axis], 0, *x.strides[axis:])
    return made


def host(x: Array) -> Any:
    """Return a view of an array that kernels can read, or a copy if it is not aligned.

    16-bit floats are viewed as their bits. For an array of a program, return its `Layout`.
    """
    read = _in_memory(x)
    seen = x if read is None else read(x)
    return seen if type(seen) is Layout else _aligned(seen)


def _aligned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    itemsize = x.dtype.itemsize
    if not x.flags.aligned or any(stride % itemsize for stride in x.strides):
        return x.copy()
    return x


def strides(x: np.ndarray[Any, Any] | Layout) -> tuple[int, ...]:
    """Return the strides in elements."""
    itemsize = x.dtype.itemsize
    return tuple([stride // itemsize for stride in x.strides])


def flat(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the memory of an array from its lowest to its highest element as an array of one axis."""
    if x.flags.c_contiguous:
        return x.reshape(-1)
    itemsize, low, high = x.dtype.itemsize, 0, 1
    if 0 in x.shape:
        return x.reshape(-1)
    for length, stride in zip(x.shape, x.strides, strict=True):
        low += min(0, stride * (length - 1))
        high += max(0, stride * (length - 1)) // itemsize
    if low:  # begin at the lowest address: descending axes are reversed
        x = x[tuple([slice(None, None, -1) if stride < 0 else slice(None) for stride in x.strides])]
    return np.lib.stride_tricks.as_strided(x, (high - low // itemsize,), (itemsize,), writeable=False)


def first(x: np.ndarray[Any, Any] | Layout) -> int:
    """Return the position of the first element of an array in `flat`."""
    position: int = sum(
        [(1 - length) * stride for length, stride in zip(x.shape, strides(x), strict=True) if stride < 0]
    )
    return position


def is_flat(x: Array) -> bool:
    """Return whether `reader` would return the array itself."""
    if not isinstance(x, np.ndarray) or dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS:
        return False
    return x.ndim == 1 and x.flags.c_contiguous and x.flags.aligned


def reader(x: Array) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return a function that computes `flat` of arrays with the library and the layout of one."""
    read = _in_memory(x)
    seen = x if read is None else read(x)
    if type(seen) is Layout:
        return lambda x: x
    if seen.flags.c_contiguous and seen.flags.aligned:
        return operator.methodcaller("reshape", -1) if read is None else lambda x: read(x).reshape(-1)
    return lambda x: flat(host(x))


def reader_in_order(x: Array, axis: int = -1) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return a function of arrays like one: their elements in row-major order, after an axis is moved last.

    Arrays in another order are copied.
    """
    if axis in (-1, x.ndim - 1) and (is_traced(x) or host(x).flags.c_contiguous):
        return reader(x)
    if axis == -1:
        return flat_in_order
    return lambda x: arranged(x, lambda numpy, x: numpy.moveaxis(x, axis, -1)).reshape(-1)


def in_order(x: Array) -> np.ndarray[Any, Any]:
    """Return the elements of an array in row-major order, as `host` returns them, or a copy."""
    found: np.ndarray[Any, Any] = arranged(x, lambda _, x: x)
    return found


def arranged(x: Array, arrange: Callable[[Any, Any], Any]) -> Any:
    """Return the elements of an array in row-major order, after ``arrange`` has moved or repeated its axes.

    ``arrange`` takes a module with NumPy's functions, and the array as `host` returns it.
    """
    seen = host(x)
    if type(seen) is Layout:
        return arrange(sys.modules["jax.numpy"], x)
    return np.ascontiguousarray(arrange(np, seen))


def viewed(
    x: Array, read: Callable[[Array], np.ndarray[Any, Any]], dtype: np.dtype[Any]
) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return a reader of arrays like x that views the result of another as a dtype of equal width."""
    return read if is_traced(x) else lambda x: read(x).view(dtype)


def flat_in_order(x: Array) -> np.ndarray[Any, Any]:
    """Return the elements of an array in row-major order as an array of one axis."""
    return in_order(x).reshape(-1)


def allocator(like: Array) -> Callable[..., np.ndarray[Any, Any]]:
    """Return a function of shape and dtype that allocates a result in memory that the library of an array can own."""
    return np.empty if is_tensor(like) or isinstance(like, np.ndarray) else _empty_for_jax


_ALIGNMENT = 64
"""The alignment, in bytes, of memory that JAX can own. It copies other memory."""


def _empty_for_jax(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + nbytes].view(dtype).reshape(shape)


Made = Callable[[list[np.ndarray[Any, Any]], tuple[Array, ...]], tuple[Array, ...]]
"""Takes the allocated results and the arrays of the call; returns the results as arrays of the library."""


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
    """Return NumPy's dtype of a dtype in memory: uint16 for 16-bit floats."""
    return np.dtype("uint16" if dtype in SIXTEEN_BIT_FLOATS else dtype)


def bytes_of(dtypes: Iterable[str]) -> int:
    """Return the bytes of one element of each dtype."""
    return sum([bits_dtype(one).itemsize for one in dtypes])


def own_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name. ml_dtypes has bfloat16, and is there if an array has this dtype."""
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)
