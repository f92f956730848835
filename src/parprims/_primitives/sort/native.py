"""Sorts by the libraries' own routines: one function for each library, because each has its own order.

If a library orders the keys as we do, its sort computes the result. Otherwise, and if anything moves with the keys, the
library's argsort gives the indices (`_by_indices`). It sorts integers in our order if its own order is different.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_bits, dtype_kind, dtype_name, library, offers, spoken
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
"""A function of the arrays of a call that returns what is asked for."""


def refusal(xp: Namespace, call: Sorting) -> str | None:
    """Return the reason why the library's routines cannot compute a call, or None."""
    if offers(xp, "take_along_axis") or not call.keyed or (call.keys_alone and _standard_keeps_order(xp, call.keys)):
        return None
    return f"{spoken(xp)} has no take_along_axis at this version of the array API standard"


def prepare(xp: Namespace, call: Sorting) -> Sort:
    """Return a function of a call's arrays that sorts them by the library's own routines."""
    by_library = {"numpy": _numpy, "cupy": _cupy, "torch": _torch, "jax": _jax, "other": _other}
    return by_library[library(xp)](xp, call)


# ---- One function for each library ------------------------------------------------------------------------------


def _numpy(xp: Namespace, call: Sorting) -> Sort:
    """NumPy's order is ours, except for bfloat16. Its stable sort is its fastest only if it counts digits."""
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
        if is_ours and not call.descending:  # with as little around NumPy's own routine as possible
            if not call.keyed:
                return lambda x: (x.argsort(axis, by),)
            if keys.ndim == 1:
                return _rows_moved(call, lambda x: x.argsort(axis, by))
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


def _rows_moved(call: Sorting, argsort: Callable[[Array], Array]) -> Sort:
    """Return what sorts NumPy's arrays of one dimension by an argsort of the first."""
    indices = call.indices

    def run(*arrays: Array) -> tuple[Array, ...]:
        order = argsort(arrays[0])
        results = [x[order] for x in arrays]
        return (*results, order) if indices else tuple(results)

    return run


def _cupy(xp: Namespace, call: Sorting) -> Sort:
    """CuPy's order is ours, except for floats: NaN with a sign come first."""
    return _by_standard(xp, call, dtype_kind(call.keys.dtype) != "float")


def _torch(xp: Namespace, call: Sorting) -> Sort:
    """PyTorch's order is ours on a CPU. On GPUs NaN with a sign come first, and it compares only signed integers.

    In a CPU's memory NumPy sorts up to 80 times as fast, whatever the dtype, length and number of rows; but long lines
    of integers PyTorch, on processors whose vectors NumPy does not sort fast.
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
    """JAX on a CPU takes subnormal numbers for 0, so it sorts integers in our order, in one compiled program.

    Outside of programs NumPy sorts what is in the memory of a CPU.
    """
    if is_eager(xp, call):
        return _by_numpy(xp, call)
    return _jax_program(call.keyed, call.indices, call.axis, descending=call.descending, stable=call.stable)


def is_eager(xp: Namespace, call: Sorting) -> bool:
    """Return whether JAX arrays are sorted outside of a program."""
    return has_values(xp, call.arrays)


def _by_numpy(xp: Namespace, call: Sorting) -> Sort:
    """Return a sort by NumPy of arrays whose memory it reads."""
    sort = _numpy(numpy_namespace(), call.on(*map(as_numpy, call.arrays)))
    index = np.dtype(dtype_name(index_dtype(xp)))
    narrows = call.indices and index != np.intp  # JAX may have no more than 32 bits
    if not narrows and not call.descending:
        return all_by_numpy(xp, call.arrays, sort)

    def run(*arrays: Array) -> tuple[Array, ...]:
        found = sort(*arrays)
        if narrows:
            found = (*found[:-1], found[-1].astype(index, copy=False))
        # What is flipped runs backwards through memory.
        return tuple([y if min(y.strides, default=0) >= 0 else y.copy() for y in found])

    return all_by_numpy(xp, call.arrays, run)


def _other(xp: Namespace, call: Sorting) -> Sort:
    """The standard's order is ours for integers; array_api_strict is known to have ours for floats too."""
    return _by_standard(xp, call, _standard_keeps_order(xp, call.keys))


def _standard_keeps_order(xp: Namespace, keys: Array) -> bool:
    """Return whether a library known only by the standard has our order. The standard leaves NaN and bool open."""
    kind = dtype_kind(keys.dtype)
    return kind in ("int", "uint") or (kind == "float" and array_api_compat.is_array_api_strict_namespace(xp))


# ---- What they share --------------------------------------------------------------------------------------------


def _by_standard(xp: Namespace, call: Sorting, is_ours: bool) -> Sort:
    """Return a sort by the standard's routines. ``is_ours`` tells whether they order these keys as we do."""
    if not (call.keys_alone and is_ours):
        return _by_indices(xp, call, is_ours, stable=call.stable)
    axis, stable = call.axis, call.stable
    return _in_direction(xp, call, lambda x: xp.sort(x, axis=axis, stable=stable))


def _in_direction(xp: Namespace, call: Sorting, ascending: Callable[[Array], Array]) -> Sort:
    """Return the sort of keys alone in the direction asked for, given the ascending one.

    Descending order is ascending order flipped: flipped twice, equal elements keep their order.
    """
    if not call.descending:
        return lambda x: (ascending(x),)
    flip = functools.partial(xp.flip, axis=call.axis)
    return lambda x: (flip(ascending(flip(x))),)


def _by_indices(
    xp: Namespace, call: Sorting, is_ours: bool, *, stable: bool, argsort: Callable[[Array], Array] | None = None
) -> Sort:
    """Return a sort by the library's argsort. It is given integers in our order if the library's order is not ours."""
    axis, keyed, indices = call.axis, call.keyed, call.indices
    if argsort is None:
        argsort = functools.partial(xp.argsort, axis=axis, descending=call.descending, stable=stable)

    def run(*arrays: Array) -> tuple[Array, ...]:
        order = argsort(arrays[0] if is_ours else _signed(xp, ordered_integers(xp, arrays[0])))
        if not keyed:
            return (order,)
        results = [moved(xp, one, lambda one: xp.take_along_axis(one, order, axis=axis)) for one in arrays]
        return (*results, order) if indices else tuple(results)

    return run


def _signed(xp: Namespace, keys: Array) -> Array:
    """Return integers as signed ones in the same order: PyTorch compares no others on GPUs."""
    if dtype_kind(keys.dtype) != "uint":
        return keys
    keys = bits(xp, keys)
    return keys ^ xp.iinfo(keys.dtype).min


# Rows of 16 bits or fewer from this length on are sorted fastest by counting digits.
_COUNTED = 64
# Longer lines of 32 and 64 bits NumPy partitions by vectors before it sorts the parts.
_COMPRESSED = 512


def _stable_order(xp: Namespace, x: Array, *, axis: int, descending: bool) -> Array:
    """Return the indices that sort NumPy's array, those of equals ascending, by its sort that is not stable.

    The unstable sort is many times faster. Keys of up to 32 bits are sorted together with their indices, as integers of
    64 bits. For wider keys the indices are found first. Then the indices of equal keys are sorted, together with the
    number of their run of equals.
    """
    x = np.swapaxes(x, axis, -1)
    if descending:  # twice flipped, equals keep their order
        order = x.shape[-1] - 1 - _stable_order(xp, x[..., ::-1], axis=-1, descending=False)[..., ::-1]
        return np.swapaxes(order, axis, -1)
    if dtype_bits(x.dtype) <= 32:
        keys = ordered_integers(xp, x)
        pairs = keys.astype(np.uint64 if dtype_kind(keys.dtype) == "uint" else np.int64, order="C")
        pairs <<= pairs.dtype.type(32)
        pairs |= np.arange(x.shape[-1], dtype=pairs.dtype)
    else:
        order = np.argsort(x, axis=-1)
        found = np.take_along_axis(x, order, axis=-1)
        begins = found[..., 1:] != found[..., :-1]
        if dtype_kind(x.dtype) == "float":
            # NaN differs from NaN: only the first of them begins a run.
            begins &= found[..., :-1] == found[..., :-1]
        if begins.all():
            return np.swapaxes(order, axis, -1)
        del found
        pairs = np.zeros(x.shape, np.int64)
        np.cumsum(begins, axis=-1, out=pairs[..., 1:])
        pairs <<= 32
        pairs |= order
    pairs.sort(axis=-1)
    pairs &= pairs.dtype.type(2**32 - 1)
    return np.swapaxes(pairs.view(np.int64), axis, -1)


# Below these sizes, a stable sort takes less time than the search for zeros and NaN, and than `_stable_order`.
_SEARCHED, _PAIRED = 250, 2000
# Both sorts of NumPy insert one element after another into lines of this length or less.
_INSERTED = 16


def _floats_in_numpy(x: Array, axis: int) -> Array:
    """Return NumPy's array of floats sorted stably, by NumPy's sort that is not stable, which is many times faster.

    The only equal elements whose bits differ are zeros of both signs, and NaN, whose bits that sort may even change.
    These elements are copied from x, row by row, to the sorted rows, which have as many of them.
    """
    y = np.sort(x, axis)
    if y.ndim == 1:  # equal elements lie side by side, and a search finds them without a look at all
        zero = y.dtype.type(0)
        first = y.searchsorted(zero)
        if y[min(first, len(y) - 1)] == 0:
            y[first : y.searchsorted(zero, "right")] = x[x == 0]
        if y[-1] != y[-1]:
            y[np.isnan(y)] = x[np.isnan(x)]
        return y
    given, found = x.swapaxes(axis, -1), y.swapaxes(axis, -1)
    if np.count_nonzero(y) < y.size:
        found[found == 0] = given[given == 0]
    last = found[..., -1]
    if np.count_nonzero(last != last):
        found[np.isnan(found)] = given[np.isnan(given)]
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
