"""The position of the largest or the smallest element: a reduction of elements together with their positions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Never

import numpy as np

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    admit,
    along,
    as_result,
    cast,
    check_flag,
    check_kind,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    lacks_arithmetic,
    library,
    library_title,
    normalize_axis,
    quiet,
)
from parprims._core.jax_arrays import is_traced, jax_platform
from parprims._dispatch.by_device import by_device, either_of
from parprims._dispatch.composite import Composed, fitted, positions
from parprims._dispatch.dispatch import Inside, Method, Methods, directly, exact, primitive
from parprims._dispatch.primitive import Arguments, Primitive, declared
from parprims._dispatch.watch import unwatched
from parprims._libraries.numpy_bridge import by_numpy, numpy_computes, searchable
from parprims._libraries.settings import compiling
from parprims._operators.operator import BUILT_IN
from parprims._primitives.reduce import cuda
from parprims._primitives.reduce.call import Reduction
from parprims._primitives.reduce.public import reduce
from parprims._primitives.sort.call import index_dtype


@primitive
def argmax(
    x: Array, /, *, axis: int | None = None, keepdims: bool = False, method: str = "auto", **others: Never
) -> Array:
    """Find where the largest element is, along an axis or of all: the array API standard's ``argmax``.

    Parameters
    ----------
    x : array
        The elements, of any shape and of bool or a real dtype. NaN counts as larger than all others.
    axis : int or None, default None
        The axis to search; None for all elements in row-major order. There must be at least one element.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The positions, of the library's default dtype for indices: the first of equal elements, and of NaN.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is complex.
    ValueError
        If an axis has no elements, or method has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    max : The largest element.
    cumulative_max : The largest element up to each, with its position.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.argmax(np.array([[3, 9, 9], [5, 2, 1]]), axis=1)
    array([1, 0])
    """
    return _ARGMAX(others, {"x": x}, method, axis=axis, keepdims=keepdims)


@primitive
def argmin(
    x: Array, /, *, axis: int | None = None, keepdims: bool = False, method: str = "auto", **others: Never
) -> Array:
    """Find where the smallest element is, along an axis or of all: the array API standard's ``argmin``.

    Parameters
    ----------
    x : array
        The elements, of any shape and of bool or a real dtype. NaN counts as smaller than all others.
    axis : int or None, default None
        The axis to search; None for all elements in row-major order. There must be at least one element.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The positions, of the library's default dtype for indices: the first of equal elements, and of NaN.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is complex.
    ValueError
        If an axis has no elements, or method has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    min : The smallest element.
    cumulative_min : The smallest element up to each, with its position.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.argmin(np.array([[3, 9, 9], [5, 2, 1]]), axis=1)
    array([0, 2])
    """
    return _ARGMIN(others, {"x": x}, method, axis=axis, keepdims=keepdims)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Search(Composed):
    """A checked call. ``axis`` is counted from the front, or None for all elements."""

    primitive: str
    axis: int | None
    keepdims: bool


def _checked(asked: Arguments) -> tuple[Namespace, _Search]:
    """Return the namespace and the checked call."""
    xp, (x,) = admit(asked.arrays)
    keepdims = check_flag("keepdims", asked["keepdims"])
    check_kind("x", x, ("bool", "int", "uint", "float"))
    key, complete = asked.key_of(x), None
    if dtype_kind(x.dtype) == "bool":
        x, complete = _bytes(xp, x), lambda x: (_bytes(xp, x),)
    axis = None if asked["axis"] is None else normalize_axis(asked["axis"], x.ndim)
    n, indices = math.prod(x.shape) if axis is None else x.shape[axis], index_dtype(xp)
    if n > 2**31 and dtype_bits(indices) < 64:
        raise ValueError(f"x must have no more than 2^31 elements to search with 32-bit positions, got {n}")
    if n == 0:
        raise ValueError(f"x must not be empty along the axes of an {asked.name}, got shape {tuple(x.shape)}")
    searched = range(x.ndim) if axis is None else (axis,)
    shape = tuple([1 if axis in searched else n for axis, n in enumerate(x.shape) if keepdims or axis not in searched])
    return xp, _Search(
        arrays=(x,),
        key=key,
        complete=complete,
        results=((shape, indices),),
        single=True,
        primitive=asked.name,
        axis=axis,
        keepdims=keepdims,
    )


def _bytes(xp: Namespace, x: Array) -> Array:
    """Return bools as integers, as a view where the library has one."""
    return x.view(xp.uint8) if library(xp) in ("numpy", "cupy", "torch") else fitted(xp, x, xp.uint8)


def _reduction(xp: Namespace, c: _Search) -> Reduction:
    """Return the call as a reduction of elements with positions that no array holds."""
    (x,) = c.arrays
    return Reduction(
        arrays=(x,),
        shape=tuple(x.shape),
        single=True,
        op=BUILT_IN[c.primitive],
        axes=tuple(range(x.ndim)) if c.axis is None else (c.axis,),
        keepdims=c.keepdims,
        operation=c.primitive,
        positions=index_dtype(xp),
    )


def _search(xp: Namespace, c: _Search, method: str) -> Array:
    """Return the positions by the reduction of elements with their positions, which are stored piece by piece."""
    (x,) = c.arrays
    (shape, index), combine = c.results[0], functools.partial(reduce, op=c.primitive, method=method)

    def extreme(x: Array, axis: int | None, start: int) -> tuple[Array, Array]:
        axes = tuple(range(x.ndim)) if axis is None else (axis,)
        result: tuple[Array, Array] = combine((x, positions(xp, x, axes, index, start=start)), axis=axis)
        return result

    def joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        if len(parts) == 1:
            return parts[0]
        result: tuple[Array, Array] = combine(
            tuple([xp.stack(list(components)) for components in zip(*parts, strict=True)]), axis=0
        )
        return result

    return xp.reshape(joined([extreme(*piece) for piece in _pieces(x, c.axis, 0)])[1], shape)


def _pieces(x: Array, axis: int | None, start: int) -> Iterator[tuple[Array, int | None, int]]:
    """Yield the pieces of an array along an axis, or in row-major order, with the axis and their first position."""
    length = math.prod(x.shape) if axis is None else x.shape[axis]
    if length <= _PIECE or is_traced(x) or compiling(x):  # a program does not store positions
        yield x, axis, start
        return
    cut = next(axis for axis, n in enumerate(x.shape) if n > 1) if axis is None else axis
    each = length // x.shape[cut]
    rows = max(1, _PIECE // each)
    for row in range(0, x.shape[cut], rows):
        part = x[along(cut, row, min(row + rows, x.shape[cut]))]
        yield from _pieces(part, axis, start + row * each)


_PIECE = 2**20
"""Positions that are stored at a time."""


def _by_reduction(name: str) -> Method:
    """Return the method that calls the reduction; its refusal is that of the reduction, without positions."""

    def reason(xp: Namespace, c: _Search, auto: bool) -> str | None:
        r = _reduction(xp, c)
        with quiet(xp):
            place = xp.zeros((), dtype=r.positions, device=device(c.arrays[0]))
        r = dataclasses.replace(r, arrays=(*r.arrays, place), positions=None, single=False)
        return declared["reduce"].methods.reason(name, xp, r, auto=auto)

    def run(xp: Namespace, c: _Search) -> Array:
        with unwatched():
            return _search(xp, c, Inside(name))

    return Method(directly(run), lambda xp, c: reason(xp, c, False), lambda xp, c: reason(xp, c, True))


def _prepare_native(xp: Namespace, c: _Search) -> Callable[[Array], Array]:
    """Return a function of the array that searches by the library's own function, or by NumPy's."""
    axis, keepdims = c.axis, c.keepdims
    if library(xp) == "numpy" or _by_numpy(xp, c):
        find, index = getattr(np.ndarray, c.primitive), np.dtype(dtype_name(index_dtype(xp)))
        return by_numpy(xp, c.arrays, lambda x: np.asarray(find(searchable(x), axis, keepdims=keepdims), index))
    if library(xp) == "torch":
        import torch

        search: Callable[..., Array] = getattr(torch, c.primitive)
        return lambda x: search(x, axis, keepdims)
    return directly(_native)(xp, c)


def _native(xp: Namespace, c: _Search) -> Array:
    """Return the result of the library's own function."""
    result = getattr(xp, c.primitive)(c.arrays[0], axis=c.axis, keepdims=c.keepdims)
    return as_result(cast(xp, as_result(result), index_dtype(xp)))


_SIDE_BY_SIDE, _MANY = 2**5, 2**12
"""Elements of a line, and of an array, from which on NumPy's vectorised search is the fastest."""


_COLUMNS, _LARGE, _LARGE_OF_16_BIT = 2**6, 2**17, 2**14
"""Lines that are adjacent in memory, and elements of an array, from which on the kernel is faster than libraries.

Libraries search 16-bit floats one by one, so ``_LARGE_OF_16_BIT`` elements suffice in any layout.
"""


def _by_numpy(xp: Namespace, c: _Search) -> bool:
    """Return whether NumPy searches long contiguous lines, which its vectorised search does many times faster."""
    (x,) = c.arrays
    size = math.prod(x.shape)
    n = size if c.axis is None else x.shape[-1] if c.axis == x.ndim - 1 else 0
    sixteen = dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS
    return n >= _SIDE_BY_SIDE and size >= _MANY and not sixteen and numpy_computes(xp, c.arrays)


def _slower_on_gpu(xp: Namespace, c: _Search) -> str | None:
    if is_jax(xp) and _native_refusal(xp, c) is None:
        return "XLA's own search is as fast, and fuses with the operations before it"
    return None


def _by_kernel() -> Method:
    parts = _by_reduction("kernel")
    on_gpu = Method(
        lambda xp, c: cuda.prepare(xp, _reduction(xp, c)),
        lambda xp, c: cuda.refusal(xp, _reduction(xp, c)),
        _slower_on_gpu,
    )

    def slower_on_cpu(xp: Namespace, c: _Search) -> str | None:
        if _by_numpy(xp, c):
            return "NumPy is faster on contiguous lines"
        (x,) = c.arrays
        behind = 1 if c.axis is None else math.prod(x.shape[c.axis + 1 :])
        size, sixteen = math.prod(x.shape), dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS
        pays = size >= _LARGE_OF_16_BIT if sixteen else behind >= _COLUMNS and size >= _LARGE
        if (not pays or is_jax(xp)) and library(xp) in ("numpy", "torch", "jax") and _native_refusal(xp, c) is None:
            return f"{library_title(xp)} is faster: the kernel would first write an array of positions"
        return parts.slower(xp, c) if parts.slower else None

    gpu = either_of(lambda _, c: parts if 0 in c.arrays[0].shape else on_gpu)
    on_cpu = dataclasses.replace(parts, slower=slower_on_cpu)
    return by_device(gpu, on_cpu, on_cpu)


def _native_refusal(xp: Namespace, c: _Search) -> str | None:
    on_gpu = library(xp) == "cupy" or (library(xp) == "jax" and jax_platform(c.arrays) != "cpu")
    if on_gpu and dtype_kind(c.arrays[0].dtype) == "float":
        return f"{library_title(xp)}'s {c.primitive} on a GPU does not return the first of several NaN"
    return lacks_arithmetic(xp, [c.arrays[0].dtype])


def _declared(name: str) -> Primitive:
    methods = Methods(
        name,
        exact,
        kernel=_by_kernel(),
        native=Method(_prepare_native, _native_refusal, eager=_by_numpy),
        array=_by_reduction("array"),
    )
    return Primitive(name=name, check=_checked, methods=methods, single=True)


_ARGMAX, _ARGMIN = map(_declared, ("argmax", "argmin"))
