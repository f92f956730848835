"""Sorts by the libraries' own routines: one function for each library, because their orders differ.

If a library has the order of `sort`, its sort computes the result. Otherwise, and if values or indices move with the
keys, the library's argsort gives the indices (`_by_indices`), of integers in the order of `sort` if its order differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_bits, dtype_kind, dtype_name, library, library_title, offers
from parprims._libraries.numpy_bridge import (
    all_by_numpy,
    as_numpy,
    has_values,
    numpy_namespace,
    numpy_orders,
    shares_memory,
)
from parprims._primitives.sort.call import Sorting, bits, index_dtype, moved, ordered_integers

Sort = Callable[..., tuple[Array, ...]]
"""A function from the arrays of a call to its results."""


def refusal(xp: Namespace, call: Sorting) -> str | None:
    """Return the reason why the library's routines cannot compute a call, or None."""
    if offers(xp, "take_along_axis") or not call.keyed or (call.keys_alone and _standard_keeps_order(xp, call.keys)):
        return None
    return f"{library_title(xp)} has no take_along_axis at this version of the array API standard"


def prepare(xp: Namespace, call: Sorting) -> Sort:
    """Return a function of a call's arrays that sorts them by the library's own routines."""
    by_library = {"numpy": _numpy, "cupy": _cupy, "torch": _torch, "jax": _jax, "other": _by_the_standard}
    return by_library[library(xp)](xp, call)


# ---- One function for each library ------------------------------------------------------------------------------


def _numpy(xp: Namespace, call: Sorting) -> Sort:
    """NumPy has the order of `sort`, except for bfloat16. Its stable sort is the fastest only if it counts digits."""
    keys, axis = call.keys, call.axis
    is_float = dtype_kind(keys.dtype) == "float"
    counts_digits = not is_float and dtype_bits(keys.dtype) <= 16 and keys.shape[axis] >= _COUNTED
    is_ours = numpy_orders(keys.dtype)
    if not (call.keys_alone and is_ours):
        if call.stable and not counts_digits and keys.size >= _PAIRED and keys.shape[axis] < 2**31:
            argsort = functools.partial(_stable_order, xp, axis=axis, descending=call.descending)
            return _by_indices(xp, call, is_ours=True, stable=True, argsort=argsort)
        stable = call.stable or counts_digits
        by: Any = "stable" if stable else "quicksort"
        if is_ours and not call.descending:  # as little overhead around NumPy's routine as possible
            if not call.keyed:
                return lambda x: (x.argsort(axis, by),)
            if keys.ndim == 1:
                return _sort_lines(call, lambda x: x.argsort(axis, by))
        return _by_indices(xp, call, is_ours, stable=stable)
    if is_float and keys.size >= _SEARCHED and keys.shape[axis] > _INSERTED:
        return _in_direction(xp, call, lambda x: _floats_in_numpy(x, axis))
    stable = is_float or counts_digits
    if not call.descending:
        kind: Any = "stable" if stable else "quicksort"

        def sort(x: Array) -> tuple[Array, ...]:
            y = x.copy("K")
            y.sort(axis, kind)
            return (y,)

        return sort
    return _in_direction(xp, call, lambda x: xp.sort(x, axis=axis, stable=stable))


def _sort_lines(call: Sorting, argsort: Callable[[Array], Array]) -> Sort:
    """Return a function that sorts one-dimensional NumPy arrays by an argsort of the first."""
    indices = call.indices

    def run(*arrays: Array) -> tuple[Array, ...]:
        order = argsort(arrays[0])
        results = [x[order] for x in arrays]
        return (*results, order) if indices else tuple(results)

    return run


def _cupy(xp: Namespace, call: Sorting) -> Sort:
    """CuPy has the order of `sort`, except for floats: negative NaN come first."""
    return _by_standard(xp, call, dtype_kind(call.keys.dtype) != "float")


def _torch(xp: Namespace, call: Sorting) -> Sort:
    """PyTorch has the order of `sort` on a CPU. On GPUs negative NaN come first, and it compares only signed integers.

    In CPU memory NumPy sorts up to 80 times as fast, for every dtype, length and number of rows. PyTorch sorts long
    lines of integers, on processors where NumPy's vectorised sort is slow.
    """
    keys = call.keys
    integers = dtype_kind(keys.dtype) == "int" and dtype_bits(keys.dtype) >= 32 and keys.shape[call.axis] >= _COMPRESSED
    if shares_memory(xp, call.arrays) and not (integers and _cpu.processor.compresses_slowly()):
        return _by_numpy(xp, call)
    is_ours = dtype_kind(keys.dtype) == "int" or keys.device.type == "cpu"
    if not (call.keys_alone and is_ours):
        return _by_indices(xp, call, is_ours, stable=call.stable)
    options = {"axis": call.axis, "descending": call.descending, "stable": call.stable}
    return lambda x: (xp.sort(x, **options),)


def _jax(xp: Namespace, call: Sorting) -> Sort:
    """JAX on a CPU flushes subnormal numbers to 0, so one compiled program sorts integers in the order of `sort`.

    Outside of programs NumPy sorts arrays in CPU memory.
    """
    if is_eager(xp, call):
        return _by_numpy(xp, call)
    return _jax_program(call.keyed, call.indices, call.axis, descending=call.descending, stable=call.stable)


def is_eager(xp: Namespace, call: Sorting) -> bool:
    """Return whether JAX arrays are sorted outside of a program."""
    return has_values(xp, call.arrays)


def _by_numpy(xp: Namespace, call: Sorting) -> Sort:
    """Return a sort by NumPy of arrays in memory that it reads."""
    sort = _numpy(numpy_namespace(), call.on(*map(as_numpy, call.arrays)))
    index = np.dtype(dtype_name(index_dtype(xp)))
    narrows = call.indices and index != np.intp  # JAX may have only 32-bit integers
    if not narrows and not call.descending:
        return all_by_numpy(xp, call.arrays, sort)

    def run(*arrays: Array) -> tuple[Array, ...]:
        result = sort(*arrays)
        if narrows:
            result = (*result[:-1], result[-1].astype(index, copy=False))
        # A flipped array has a negative stride.
        return tuple([y if min(y.strides, default=0) >= 0 else y.copy() for y in result])

    return all_by_numpy(xp, call.arrays, run)


def _by_the_standard(xp: Namespace, call: Sorting) -> Sort:
    """The standard has the order of `sort` for integers; array_api_strict has it for floats too."""
    return _by_standard(xp, call, _standard_keeps_order(xp, call.keys))


def _standard_keeps_order(xp: Namespace, keys: Array) -> bool:
    """Return whether a library of the standard has the order of `sort`. The standard leaves NaN and bool open."""
    kind = dtype_kind(keys.dtype)
    return kind in ("int", "uint") or (kind == "float" and array_api_compat.is_array_api_strict_namespace(xp))


# ---- Shared functions -------------------------------------------------------------------------------------------


def _by_standard(xp: Namespace, call: Sorting, is_ours: bool) -> Sort:
    """Return a sort by the standard's routines. If ``is_ours``, they have the order of `sort` for these keys."""
    if not (call.keys_alone and is_ours):
        return _by_indices(xp, call, is_ours, stable=call.stable)
    axis, stable = call.axis, call.stable
    return _in_direction(xp, call, lambda x: xp.sort(x, axis=axis, stable=stable))


def _in_direction(xp: Namespace, call: Sorting, ascending: Callable[[Array], Array]) -> Sort:
    """Return the sort of keys alone in the direction of the call, given the ascending sort.

    A descending sort flips the keys before and after an ascending sort, so equal elements keep their order.
    """
    if not call.descending:
        return lambda x: (ascending(x),)
    flip = functools.partial(xp.flip, axis=call.axis)
    return lambda x: (flip(ascending(flip(x))),)


def _by_indices(
    xp: Namespace, call: Sorting, is_ours: bool, *, stable: bool, argsort: Callable[[Array], Array] | None = None
) -> Sort:
    """Return a sort by the library's argsort, of integers in the order of `sort` unless ``is_ours``."""
    axis, keyed, indices = call.axis, call.keyed, call.indices
    if argsort is None:
        argsort = functools.partial(xp.argsort, axis=axis, descending=call.descending, stable=stable)

    def run(*arrays: Array) -> tuple[Array, ...]:
        order = argsort(arrays[0] if is_ours else _signed(xp, ordered_integers(xp, arrays[0])))
        if not keyed:
            return (order,)
        results = [moved(xp, x, lambda x: xp.take_along_axis(x, order, axis=axis)) for x in arrays]
        return (*results, order) if indices else tuple(results)

    return run


def _signed(xp: Namespace, keys: Array) -> Array:
    """Return signed integers in the order of x: PyTorch compares no others on GPUs."""
    if dtype_kind(keys.dtype) != "uint":
        return keys
    keys = bits(xp, keys)
    return keys ^ xp.iinfo(keys.dtype).min


# The length from which rows of at most 16 bits are sorted fastest by counting digits.
_COUNTED = 64
# The length from which NumPy partitions lines of 32 and 64 bits by vectors before it sorts the parts.
_COMPRESSED = 512


def _stable_order(xp: Namespace, x: Array, *, axis: int, descending: bool) -> Array:
    """Return the indices that sort a NumPy array stably, by NumPy's unstable sort.

    The unstable sort is many times faster. Keys of up to 32 bits are sorted together with their indices, as integers of
    64 bits. For wider keys an argsort gives the indices. Then the indices of equal keys are sorted, together with the
    number of their run of equal keys.
    """
    x = np.swapaxes(x, axis, -1)
    if descending:  # flipped twice, equal keys keep their order
        order = x.shape[-1] - 1 - _stable_order(xp, x[..., ::-1], axis=-1, descending=False)[..., ::-1]
        return np.swapaxes(order, axis, -1)
    if dtype_bits(x.dtype) <= 32:
        keys = ordered_integers(xp, x)
        pairs = keys.astype(np.uint64 if dtype_kind(keys.dtype) == "uint" else np.int64, order="C")
        pairs <<= pairs.dtype.type(32)
        pairs |= np.arange(x.shape[-1], dtype=pairs.dtype)
    else:
        order = np.argsort(x, axis=-1)
        result = np.take_along_axis(x, order, axis=-1)
        begins = result[..., 1:] != result[..., :-1]
        if dtype_kind(x.dtype) == "float":
            # NaN differs from NaN, but only the first NaN begins a run.
            begins &= result[..., :-1] == result[..., :-1]
        if begins.all():
            return np.swapaxes(order, axis, -1)
        del result
        pairs = np.zeros(x.shape, np.int64)
        np.cumsum(begins, axis=-1, out=pairs[..., 1:])
        pairs <<= 32
        pairs |= order
    pairs.sort(axis=-1)
    pairs &= pairs.dtype.type(2**32 - 1)
    return np.swapaxes(pairs.view(np.int64), axis, -1)


# Below these sizes, a stable sort is faster than the search for zeros and NaN, and than `_stable_order`.
_SEARCHED, _PAIRED = 250, 2000
# The most elements of a line for which both sorts of NumPy are insertion sorts.
_INSERTED = 16


def _floats_in_numpy(x: Array, axis: int) -> Array:
    """Return a stably sorted NumPy array of floats, by NumPy's unstable sort, which is many times faster.

    Only zeros of both signs, and NaN, are equal with different bits, and that sort may even change the bits of NaN.
    These elements are copied from x, row by row, into their slots of the sorted rows.
    """
    y = np.sort(x, axis)
    if y.ndim == 1:  # equal elements are adjacent, so a binary search finds them
        zero = y.dtype.type(0)
        first = y.searchsorted(zero)
        if y[min(first, len(y) - 1)] == 0:
            y[first : y.searchsorted(zero, "right")] = x[x == 0]
        if y[-1] != y[-1]:
            y[np.isnan(y)] = x[np.isnan(x)]
        return y
    source, rows = x.swapaxes(axis, -1), y.swapaxes(axis, -1)
    if np.count_nonzero(y) < y.size:
        rows[rows == 0] = source[source == 0]
    last = rows[..., -1]
    if np.count_nonzero(last != last):
        rows[np.isnan(rows)] = source[np.isnan(source)]
    return y


@functools.cache
def _jax_program(keyed: bool, indices: bool, axis: int, descending: bool, stable: bool) -> Sort:
    import jax

    def run(keys: Array, *values: Array) -> tuple[Array, ...]:
        ordered = ordered_integers(jax.numpy, keys)
        if descending:
            ordered = ~ordered
        exact = ordered.dtype == keys.dtype  # the integers determine the keys
        operands: tuple[Array, ...] = () if not keyed else values if exact else (keys, *values)
        if indices:
            operands += (jax.lax.broadcasted_iota(index_dtype(jax.numpy), keys.shape, axis),)
        first, *rest = jax.lax.sort((ordered, *operands), dimension=axis, is_stable=stable, num_keys=1)
        if keyed and exact:
            rest = [~first if descending else first, *rest]
        return tuple(rest)

    compiled: Sort = jax.jit(run)
    return compiled
