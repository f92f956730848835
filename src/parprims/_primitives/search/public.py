"""Searches in sorted arrays, and merges of two: by halving, for all places at once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, Never

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    as_result,
    cast,
    check_choice,
    check_flag,
    check_kind,
    device,
    dtype_kind,
    dtype_name,
    lacks_arithmetic,
    library,
    move_axis,
    namespace_named,
    normalize_axis,
    spoken,
)
from parprims._core.options import is_array, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.promotion import promoted
from parprims._core.scalars import NUMBERS, float_format
from parprims._dispatch.by_device import by_device, or_by_parts
from parprims._dispatch.composite import (
    Composed,
    Part,
    by_parts,
    composed,
    gathered,
    in_program,
    native_by_numpy,
    stand_in,
)
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._dispatch.dispatch import Method, Methods, call_key, directly, in_graph, primitive, recalled
from parprims._libraries.numpy_bridge import all_by_numpy, numpy_computes, numpy_orders, reader, shares_memory
from parprims._libraries.steps import repeated
from parprims._primitives.search import cpu, cuda, merge_cpu, merge_cuda
from parprims._primitives.sort.call import ascending_integers, index_dtype, moved, widened
from parprims._primitives.sort.public import sort, sort_by_key

_REAL = ("int", "uint", "float")


@primitive
def searchsorted(
    x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None, method: str = "auto", **others: Never
) -> Array:
    """Find where elements would stand in a sorted array: the array API standard's ``searchsorted``.

    Parameters
    ----------
    x1 : array
        The sorted elements, of one dimension and of integer or real floating dtype, in the order of `sort`: NaN last.
    x2 : array, or int or float
        The elements to search for, of any shape and of a dtype that promotes with that of x1.
    side : {"left", "right"}
        Whether a place is before all equal elements, or behind them: x1[i - 1] < x2 <= x1[i], or
        x1[i - 1] <= x2 < x1[i].
    sorter : array, optional
        The indices that sort x1, if that is not sorted, as `argsort` returns them.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    array
        The places, of the shape of x2 and the library's default dtype for indices.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes have no order or do not promote together.
    ValueError
        If x1 has not one dimension, sorter not its shape, or an argument has an unknown value.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: log2 n comparisons for every element of x2, one after another (array, native, kernel on CPUs), or
    by a tree (kernel on GPUs).
    Error: none. If x1 is not sorted the places are any from 0 to n.
    Reproducibility: the same input gives the same result by every method.
    Methods: kernel, native (NumPy, CuPy, PyTorch and JAX), array.
    Derivatives: none.
    Memory and more: docs/searchsorted.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.searchsorted(np.array([1, 3, 3, 5]), np.array([3, 0, 6]))
    array([1, 0, 4])
    >>> parprims.searchsorted(np.array([1, 3, 3, 5]), np.array([3, 0, 6]), side="right")
    array([3, 0, 4])
    """
    if others:
        raise unknown_option("searchsorted", others)
    if type(x2) in NUMBERS or (isinstance(x2, np.generic) and not isinstance(x1, np.ndarray)):
        x2, side = _number(x1, x2, side)
    arrays = (x1, x2) if sorter is None else (x1, x2, sorter)
    if in_graph(arrays, method):
        return in_program("searchsorted", {"x1": x1, "x2": x2, "sorter": sorter}, {"side": side}, method)[0]
    key = call_key("searchsorted", arrays, side, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(*arrays)
    named = {"x1": x1, "x2": x2, **({} if sorter is None else {"sorter": sorter})}
    xp, admitted = admit(named)
    check_choice("side", side, ("left", "right"))
    _METHODS["searchsorted"].check(method)
    dtype = promoted(xp, {"x1": admitted[0], "x2": admitted[1]}, _REAL)
    if admitted[0].ndim != 1:
        raise ValueError(f"x1 must have one dimension, got shape {tuple(admitted[0].shape)}")
    if sorter is not None:
        check_kind("sorter", admitted[2], ("int", "uint"))
        if admitted[2].shape != admitted[0].shape:
            raise ValueError(
                f"sorter must have the shape of x1, {tuple(admitted[0].shape)}, got {tuple(admitted[2].shape)}"
            )
    same = all(one is other for one, other in zip(admitted, arrays, strict=True))
    call = _Search(
        arrays=tuple(admitted),
        key=key if same else None,
        results=((tuple(admitted[1].shape), index_dtype(xp)),),
        single=True,
        dtype=dtype,
        right=str(side) == "right",
    )
    return _METHODS["searchsorted"](method, xp, call)


@primitive
def merge(
    x1: Array, x2: Array, /, *, axis: int = -1, descending: bool = False, method: str = "auto", **others: Never
) -> Array:
    """Merge two sorted arrays into one.

    Parameters
    ----------
    x1, x2 : array
        The elements, each sorted along the axis, of equal shapes but for its length, and of integer or real floating
        dtypes that promote together.
    axis : int
        The axis to merge along.
    descending : bool
        Whether the largest elements come first, in the result as in x1 and x2.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    array
        All elements in order, those of x1 before equal ones of x2.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes have no order or do not promote together.
    ValueError
        If shapes differ in more than the length of the axis, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: for every element of the result log2 n comparisons, one after another (array), or about one
    (kernel); native sorts all elements, which is the same.
    Error: none. If x1 or x2 is not sorted the result by array and by kernel holds any of their elements, by native all
    in order.
    Reproducibility: the same input gives the same bits by every method.
    Methods: kernel, native (as `sort` has it), array.
    Derivatives: by x1 and x2 on PyTorch and JAX, by every method.
    Memory and more: docs/searchsorted.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.merge(np.array([1, 4, 6]), np.array([2, 4, 9]))
    array([1, 2, 4, 4, 6, 9])
    """
    if others:
        raise unknown_option("merge", others)
    if in_graph((x1, x2), method):
        return in_program("merge", {"x1": x1, "x2": x2}, {"axis": axis, "descending": descending}, method)[0]
    return _merged("merge", {"x1": x1, "x2": x2}, axis, descending, method)[0]


@primitive
def merge_by_key(
    keys1: Array,
    values1: Array,
    keys2: Array,
    values2: Array,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    method: str = "auto",
    **others: Never,
) -> tuple[Array, Array]:
    """Merge two arrays of sorted keys, and move values as their keys move.

    Parameters
    ----------
    keys1 : array
        Sorted keys, as x1 of `merge`, whose errors and notes apply.
    values1 : array
        What belongs to keys1, of its shape and any dtype.
    keys2 : array
        Sorted keys, as x2 of `merge`.
    values2 : array
        What belongs to keys2, of its shape and the dtype of values1.
    axis : int
        The axis to merge along.
    descending : bool
        Whether the largest keys come first, in the result as in keys1 and keys2.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    keys : array
        All keys in order, those of keys1 before equal ones of keys2.
    values : array
        The values in the order of their keys.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> first, second = np.array([1, 4]), np.array([2, 4])
    >>> parprims.merge_by_key(first, np.array([10, 11]), second, np.array([20, 21]))
    (array([1, 2, 4, 4]), array([10, 20, 11, 21]))
    """
    if others:
        raise unknown_option("merge_by_key", others)
    named = {"keys1": keys1, "values1": values1, "keys2": keys2, "values2": values2}
    if in_graph(tuple(named.values()), method):
        keys, values = in_program("merge_by_key", named, {"axis": axis, "descending": descending}, method)
    else:
        keys, values = _merged("merge_by_key", named, axis, descending, method)
    return keys, values


def _number(x1: Array, number: Any, side: str) -> tuple[Any, str]:
    """Return a number to be searched for as an array of the dtype of x1, and the side that gives its place there.

    One that no integer is equal to has the place of the integer above, one beyond all numbers that of all of them.
    """
    number = number.item() if isinstance(number, np.generic) else number
    kind = dtype_kind(x1.dtype) if is_array(x1) else "other"
    if type(number) not in (int, float) or kind not in _REAL or side not in ("left", "right"):
        return number, side
    if kind == "float":
        digits, exponent = float_format(dtype_name(x1.dtype))
        if math.inf > abs(number) > (2 - 2 ** (1 - digits)) * 2**exponent:
            number, side = (math.inf, "left") if number > 0 else (-math.inf, "right")
        number = float(number)
    else:
        limits = np.iinfo(dtype_name(x1.dtype))
        if not number <= limits.max:  # NaN too
            number, side = limits.max, "right"
        elif number < limits.min:
            number, side = limits.min, "left"
        elif number != math.floor(number):
            number, side = math.ceil(number), "left"
        number = int(number)
    return namespace_named("x1", x1).asarray(number, dtype=x1.dtype, device=device(x1)), side


# ---- Checks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Search(Composed):
    """A checked search. ``arrays`` are x1, x2 and perhaps the sorter; ``dtype`` is what elements are compared in."""

    dtype: Any
    right: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Merge(Composed):
    """A checked merge. ``arrays`` are x1 and x2, or keys and values of each; ``dtypes`` those of the results."""

    axis: int
    descending: bool
    dtypes: tuple[Any, ...]


def _merged(name: str, named: dict[str, Array], axis: Any, descending: Any, method: str) -> tuple[Array, ...]:
    given = tuple(named.values())
    key = call_key(name, given, axis, descending, method, gradient=True)
    run = recalled(key)
    if run is not None:
        found: tuple[Array, ...] = run(*given)
        return found
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return _merged(name, named, plainer["axis"], descending, method)
    xp, arrays = admit(named)
    descending = check_flag("descending", descending)
    _METHODS[name].check(method)
    names, each = list(named), len(arrays) // 2
    first, second = arrays[0], arrays[each]
    dtypes = [promoted(xp, {names[0]: first, names[each]: second}, _REAL)]
    at = normalize_axis(axis, first.ndim)
    if _but(first, at) != _but(second, at):
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"{names[0]} and {names[each]} must have equal shapes but along axis {at}, got {shapes}")
    if each == 2:
        for which in (1, 3):
            if arrays[which].shape != arrays[which - 1].shape:
                shapes = f"{tuple(arrays[which - 1].shape)}, got {tuple(arrays[which].shape)}"
                raise ValueError(f"{names[which]} must have the shape of {names[which - 1]}, {shapes}")
        if arrays[1].dtype != arrays[3].dtype:
            both = f"{dtype_name(arrays[1].dtype)} and {dtype_name(arrays[3].dtype)}"
            raise TypeError(f"values1 and values2 must have one dtype, got {both}")
        dtypes.append(arrays[1].dtype)
    length = first.shape[at] + second.shape[at]
    shape = (*first.shape[:at], length, *first.shape[at + 1 :])
    call = _Merge(
        arrays=tuple(arrays),
        key=key if all(one is other for one, other in zip(arrays, given, strict=True)) else None,
        results=tuple([(shape, dtype) for dtype in dtypes]),
        axis=at,
        descending=descending,
        dtypes=tuple(dtypes),
    )
    merged: tuple[Array, ...] = _METHODS[name](method, xp, call)
    return merged


def _but(x: Array, axis: int) -> tuple[int, ...]:
    return tuple([n for at, n in enumerate(x.shape) if at != axis]) if axis < x.ndim else (-1,)


# ---- Searches ---------------------------------------------------------------------------------------------------


def _keys(xp: Namespace, c: _Search) -> tuple[Array, Array]:
    """Return x1 in order and x2, as integers in the order of `sort`."""
    x1, x2, *sorter = (constant(x) if asked_for(x) else x for x in c.arrays)
    if sorter:
        x1 = moved(xp, x1, lambda one: xp.take(one, cast(xp, sorter[0], index_dtype(xp)), axis=0))
    one, other = (ascending_integers(xp, widened(xp, x, c.dtype)) for x in (x1, x2))
    return one, other


def above(xp: Namespace, ascending: Array, wanted: Array, strictly: bool = False) -> Array:
    """Return how many of the ascending numbers are at most each of those wanted, or ``strictly`` below it."""
    found = xp.zeros(wanted.shape, dtype=index_dtype(xp), device=device(wanted))
    n = ascending.shape[0]
    halvings = n.bit_length()

    def halved(step_number: Any, found: Array) -> Array:
        step = 1 << (halvings - 1 - step_number)
        at = found + (step - 1)
        inside = at < n
        flat = xp.reshape(xp.where(inside, at, xp.zeros_like(at)), (-1,)) if wanted.ndim != 1 else None
        flat = xp.where(inside, at, xp.zeros_like(at)) if flat is None else flat
        value = xp.reshape(xp.take(ascending, flat, axis=0), wanted.shape)
        here = value < wanted if strictly else value <= wanted
        return xp.where(inside & here, found + step, found)

    return repeated(xp, halvings, halved, found)


def _by_halving(xp: Namespace, c: _Search) -> Array:
    x1, x2 = _keys(xp, c)
    return above(xp, x1, x2, strictly=not c.right)


def _by_library(xp: Namespace, c: _Search) -> Array:
    """Return the result of the library's own function, on integers where it has another order of floats."""
    if library(xp) == "numpy" and numpy_orders(c.dtype):
        x1, x2, *sorter = c.arrays
        found = xp.searchsorted(cast(xp, x1, c.dtype), cast(xp, x2, c.dtype), "right" if c.right else "left", *sorter)
        return xp.asarray(found, dtype=index_dtype(xp))
    if _torch_compares(xp, c):
        x1, x2 = (cast(xp, x, c.dtype).contiguous() for x in c.arrays)
        last = x1[-1:]
        if not bool((last != last).any()):  # no NaN; where there is none PyTorch finds the place of NaN as well
            return xp.searchsorted(x1, x2, right=c.right)
    x1, x2 = _keys(xp, c)
    if library(xp) == "torch":
        import torch

        return torch.searchsorted(x1.contiguous(), x2.contiguous(), right=c.right)
    return cast(xp, as_result(xp.searchsorted(x1, x2, side="right" if c.right else "left")), index_dtype(xp))


def _prepare_native(xp: Namespace, c: _Search) -> Callable[..., Array]:
    """Return what searches by the library alone, where it takes the arrays as they are."""
    plain = len(c.arrays) == 2 and all(x.dtype == c.dtype for x in c.arrays) and numpy_orders(c.dtype)
    if plain and _torch_compares(xp, c) and all(x.is_contiguous() for x in c.arrays):
        return _prepare_torch(xp, c)
    if not plain or library(xp) != "numpy":
        return directly(_by_library)(xp, c)
    side: Literal["left", "right"] = "right" if c.right else "left"
    if c.arrays[1].ndim and np.intp is np.int64:  # else NumPy returns a scalar, or other integers
        return lambda x1, x2: x1.searchsorted(x2, side)
    return lambda x1, x2: np.asarray(x1.searchsorted(x2, side), np.int64)


def _prepare_torch(xp: Namespace, c: _Search) -> Callable[..., Array]:
    """Return PyTorch's own search, after a look whether the last of the sorted elements is NaN."""
    import torch

    search = functools.partial(torch.searchsorted, right=True) if c.right else torch.searchsorted
    if dtype_kind(c.dtype) != "float" or _is_empty(c):
        return search
    read, otherwise = reader(xp, c.arrays), directly(_by_library)(xp, c)

    def run(x1: Array, x2: Array) -> Array:
        last = read(x1)[-1]
        return search(x1, x2) if last == last else otherwise(x1, x2)

    return run


def _torch_compares(xp: Namespace, c: _Search) -> bool:
    """Return whether the elements may be given to PyTorch's search as they are, if there is no NaN."""
    ordered = library(xp) == "torch" and len(c.arrays) == 2 and lacks_arithmetic(xp, [c.dtype]) is None
    return ordered and shares_memory(xp, c.arrays)


def _no_search(xp: Namespace, c: _Search) -> str | None:
    del c
    return f"{spoken(xp)} has no search of its own" if library(xp) == "other" else None


def _is_empty(c: _Search) -> bool:
    return 0 in c.arrays[0].shape or 0 in c.arrays[1].shape


def _prepare_on_cpu(xp: Namespace, c: _Search) -> Callable[..., Array]:
    """Return what searches by the kernel of a CPU."""
    return (directly(_by_halving) if _is_empty(c) else cpu.prepare)(xp, c)


def _prepare_search(xp: Namespace, c: _Search) -> Callable[..., Array]:
    """Return what searches by the kernel of a GPU."""
    if _is_empty(c):
        return directly(_by_halving)(xp, c)
    side = "right" if c.right else "left"

    def otherwise(x1: Array, x2: Array) -> Array:
        one, other = (ascending_integers(xp, x) for x in (x1, x2))
        return cast(xp, as_result(xp.searchsorted(one, other, side=side)), index_dtype(xp))

    return cuda.prepare(xp, c, otherwise)


# ---- Merges -----------------------------------------------------------------------------------------------------


def _joined(xp: Namespace, c: _Merge) -> tuple[Array, ...]:
    """Return keys, and values if there are, one after the other."""
    each = len(c.arrays) // 2
    return tuple(
        [
            xp.concat([cast(xp, one, dtype), cast(xp, other, dtype)], axis=c.axis)
            for one, other, dtype in zip(c.arrays[:each], c.arrays[each:], c.dtypes, strict=True)
        ]
    )


def _sort_parts(xp: Namespace, c: _Merge) -> list[Part]:
    each = len(c.arrays) // 2
    pairs = zip(c.arrays[:each], c.results, strict=True)
    whole = tuple([stand_in(xp, x, shape, dtype) for x, (shape, dtype) in pairs])
    options: dict[str, Any] = {"axis": c.axis, "descending": c.descending}
    return [(sort, whole, options) if each == 1 else (sort_by_key, whole, options)]


def _by_sorting(xp: Namespace, c: _Merge, method: str) -> tuple[Array, ...]:
    whole = _joined(xp, c)
    options: dict[str, Any] = {"axis": c.axis, "descending": c.descending, "method": method}
    return (sort(*whole, **options),) if len(whole) == 1 else sort_by_key(*whole, **options)


def _by_places(xp: Namespace, c: _Merge) -> tuple[Array, ...]:
    """Return the merge by a search, for every place of the result, of how many elements before it are of x1.

    Of the first t elements i are of x1 and t - i of x2 where x1[i - 1] comes before x2[t - i], but x1[i] does not come
    before x2[t - i - 1].
    """
    each = len(c.arrays) // 2
    rows = [move_axis(xp, x, c.axis, -1) for x in c.arrays]
    one, other = (
        ascending_integers(xp, cast(xp, constant(x) if asked_for(x) else x, c.dtypes[0]), c.descending)
        for x in (rows[0], rows[each])
    )
    n, m = one.shape[-1], other.shape[-1]
    last = one.ndim - 1
    shape = (*one.shape[:-1], n + m)
    place = xp.broadcast_to(xp.arange(n + m, dtype=index_dtype(xp), device=device(one)), shape)
    if n == 0 or m == 0 or 0 in shape:
        return tuple([move_axis(xp, x, -1, c.axis) for x in _parts_joined(xp, rows, c.dtypes)])
    zero = xp.zeros_like(place)
    low = xp.where(place > m, place - m, zero)
    high = xp.where(place < n, place, zero + n)

    def halved(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        unsure = low < high
        mine = gathered(xp, one, xp.where(unsure, middle, zero), last)
        theirs = gathered(xp, other, xp.where(unsure, place - middle - 1, zero), last)
        goes = unsure & (mine <= theirs)
        return xp.where(goes, middle + 1, low), xp.where(unsure & ~goes, middle, high)

    low, _ = repeated(xp, min(n, m).bit_length(), halved, (low, high))
    i, j = low, place - low
    mine = gathered(xp, one, xp.where(i < n, i, zero), last)
    theirs = gathered(xp, other, xp.where(j < m, j, zero), last)
    taken = (i < n) & ((j >= m) | (mine <= theirs))
    i, j = xp.where(taken, i, zero), xp.where(taken, zero, j)

    def picked(both: Array) -> Array:
        x, y = both[..., :n], both[..., n:]
        return xp.where(taken, gathered(xp, x, i, last), gathered(xp, y, j, last))

    return tuple([move_axis(xp, moved(xp, both, picked), -1, c.axis) for both in _parts_joined(xp, rows, c.dtypes)])


def _parts_joined(xp: Namespace, rows: list[Array], dtypes: tuple[Any, ...]) -> tuple[Array, ...]:
    each = len(rows) // 2
    pairs = zip(rows[:each], rows[each:], dtypes, strict=True)
    return tuple([xp.concat([cast(xp, x, dtype), cast(xp, y, dtype)], axis=-1) for x, y, dtype in pairs])


def _merges(xp: Namespace, c: _Merge) -> bool:
    """Return whether NumPy merges: its stable sort does so with what is in order, of all but the narrowest dtypes."""
    return numpy_computes(xp, c.arrays) and numpy_orders(c.dtypes[0])


def _by_merging(xp: Namespace, c: _Merge, method: str) -> tuple[Array, ...]:
    if not _merges(xp, c):
        return _by_sorting(xp, c, method)
    whole = _joined(xp, c)
    if len(whole) == 1 and not c.descending:
        return (np.sort(whole[0], axis=c.axis, kind="stable"),)
    order = np.argsort(ascending_integers(xp, whole[0], c.descending), axis=c.axis, kind="stable")
    return tuple([np.take_along_axis(x, order, c.axis) for x in whole])


def _prepare_merging(xp: Namespace, c: _Merge) -> Callable[..., tuple[Array, ...]] | None:
    """Return what merges elements alone, of one dtype and ascending, in NumPy; None where there is more to do."""
    if len(c.arrays) > 2 or c.descending or any(x.dtype != c.dtypes[0] for x in c.arrays) or not _merges(xp, c):
        return None
    axis = c.axis

    def merged(x1: Any, x2: Any) -> tuple[Any, ...]:
        both = np.concatenate((x1, x2), axis)
        both.sort(axis, "stable")
        return (both,)

    return all_by_numpy(xp, c.arrays, merged)


def _merge_parts(xp: Namespace, c: _Merge) -> list[Part]:
    return [] if _merges(xp, c) else _sort_parts(xp, c)


_SORTS = by_parts("kernel", _by_sorting, _sort_parts)


def _prepare_merge_on_cpu(xp: Namespace, c: _Merge) -> Callable[..., tuple[Array, ...]]:
    """Return what merges by the kernel of a CPU."""
    each = len(c.arrays) // 2
    is_empty = any(0 in x.shape for x in (c.arrays[0], c.arrays[each]))
    return (directly(_joined) if is_empty else merge_cpu.prepare)(xp, c)


_METHODS = {
    "searchsorted": Methods(
        "searchsorted",
        kernel=by_device(
            Method(_prepare_search, cuda.refusal),
            Method(_prepare_on_cpu, cpu.refusal, cpu.slower),
        ),
        native=Method(_prepare_native, _no_search),
        array=Method(directly(_by_halving)),
    ),
    **{
        name: composed(
            name,
            _by_sorting,
            _sort_parts,
            kernel=by_device(
                or_by_parts(Method(merge_cuda.prepare, lambda xp, c: merge_cuda.refusal(xp, c.arrays)), _SORTS),
                or_by_parts(Method(_prepare_merge_on_cpu, merge_cpu.refusal, merge_cpu.slower), _SORTS),
            ),
            native=native_by_numpy(_by_merging, _merge_parts, _prepare_merging),
            array=Method(directly(_by_places)),
        )
        for name in ("merge", "merge_by_key")
    },
}
