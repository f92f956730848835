"""Sort: x[p[0]] <= x[p[1]] <= ... <= x[p[n-1]], by a radix sort or, in programs, by a network."""

from __future__ import annotations

import math
from typing import Any, Never

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    check_apart,
    check_flag,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_split,
    move_axis,
    normalize_axis,
)
from parprims._core.options import made_plain
from parprims._core.other_words import unknown_option
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device
from parprims._dispatch.dispatch import (
    Method,
    Methods,
    call_key,
    devices,
    directly,
    extensions,
    in_graph,
    nodes,
    primitive,
    recalled,
)
from parprims._libraries.steps import in_programs, repeated
from parprims._operators.operator import BUILT_IN
from parprims._primitives.scan.array import inclusive
from parprims._primitives.sort import cpu, cuda
from parprims._primitives.sort import native as sort_native
from parprims._primitives.sort.call import Sorting, ascending_integers, bits, index_dtype, moved, ordered_integers


@primitive
def sort(
    x: Array,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Sort the elements along an axis: the array API standard's ``sort``.

    Every method and every library keeps one order: numbers by value, -0 equal to +0, NaN last whatever its sign,
    and first if descending.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of bool, integer or real floating dtype.
    axis : int
        The axis to sort along.
    descending : bool
        Whether the largest elements come first.
    stable : bool
        Whether equal elements (-0 and +0, NaN and NaN) stay in the order they have in x, in both directions.
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segment j is offsets[j] <= i < offsets[j + 1], and perhaps empty; each is sorted by itself.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that the axis is split over, of
        which x is a part: docs/devices.md.

    Returns
    -------
    array
        The sorted elements, of the shape and dtype of x.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order.
    ValueError
        If an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call: array none with more elements than its library's indices can
        count.

    Notes
    -----
    Work and depth: w / 8 passes over keys of w bits (kernel), w / 4 in O(log n) steps each (array;
    on JAX log2(n)^2 / 2 steps of a network, for which the program is as large whatever n and w are).
    Memory besides the result: kernel one more copy of keys and values, 5 % and 1 MB, on a CPU two of keys and indices;
    array 110 bytes for every element.
    Error: none, elements are moved as they are; JAX may change the payload of a bfloat16 NaN on the way.
    Reproducibility: the same input gives the same bits if stable; by array and kernel, which are stable, always.
    Methods: kernel (CUDA arrays, and CPU arrays by Numba), native (the library's own sort, of integer keys in our order
    where its own order is another), array.
    Derivatives: of keys and values on PyTorch and JAX, by every method. Indices have none.
    Reference and more: docs/sort.md; CUDA graphs, several devices, torch.compile: docs/libraries.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.sort(np.array([2.0, np.nan, -1.0]))
    array([-1.,  2., nan])
    >>> parprims.sort(np.array([2.0, np.nan, -1.0]), descending=True)
    array([nan,  2., -1.])
    """
    if others:
        raise unknown_option("sort", others)
    if offsets is not None or check is not None:
        return _by_offsets("sort", x, (), offsets, axis, descending, stable, check, method, axis_name)[0]
    if axis_name is None and not in_graph(x, method):  # nothing else comes before a call that is remembered
        run = recalled(call_key("sort", x, axis, descending, stable, method, gradient=True))
        if run is not None:
            (result,) = run(x)
            return result
    return run_sort("sort", x, (), axis, descending, stable, method, axis_name)[0]


@primitive
def argsort(
    x: Array,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Find the indices that sort along an axis: the array API standard's ``argsort``.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of bool, integer or real floating dtype.
    axis : int
        The axis to sort along.
    descending : bool
        Whether the indices of the largest elements come first.
    stable : bool
        Whether the indices of equal elements ascend, in both directions.
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segments are those of `sort`. Indices are counted along the whole axis.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `sort`. The order, errors and notes of `sort` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the axis is split over, as in `sort`.

    Returns
    -------
    array
        The indices, of the shape of x and the library's default dtype for indices.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.argsort(np.array([2, 3, 1, 2]), descending=True)
    array([1, 0, 3, 2])
    """
    if others:
        raise unknown_option("argsort", others)
    if offsets is not None or check is not None:
        return _by_offsets("argsort", x, None, offsets, axis, descending, stable, check, method, axis_name)[0]
    return run_sort("argsort", x, None, axis, descending, stable, method, axis_name)[0]


@primitive
def sort_by_key(
    keys: Array,
    /,
    *values: Array,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> tuple[Array, ...]:
    """Sort keys along an axis, and move values as their keys move.

    Parameters
    ----------
    keys : array
        The keys, of at least one dimension and of bool, integer or real floating dtype.
    *values : array
        What belongs to the keys: arrays of the shape of keys and any dtype; by kernel any of at most 16 bytes.
    axis : int
        The axis to sort along.
    descending : bool
        Whether the largest keys come first.
    stable : bool
        Whether equal keys stay in the order they have in the input, in both directions.
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segments are those of `sort`.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `sort`. The order, errors and notes of `sort` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the axis is split over, as in `sort`.

    Returns
    -------
    tuple of array
        The sorted keys, then the values in the order of their keys.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> keys, names = parprims.sort_by_key(np.array([3, 1, 2]), np.array([30, 10, 20]))
    >>> names
    array([10, 20, 30])
    """
    if others:
        raise unknown_option("sort_by_key", others)
    if offsets is not None or check is not None:
        return _by_offsets("sort_by_key", keys, values, offsets, axis, descending, stable, check, method, axis_name)
    return run_sort("sort_by_key", keys, values, axis, descending, stable, method, axis_name)


def _by_offsets(
    primitive: str,
    keys: Array,
    values: tuple[Array, ...] | None,
    offsets: Array | None,
    axis: Any,
    descending: Any,
    stable: Any,
    check: Any,
    method: str,
    axis_name: Any,
) -> tuple[Array, ...]:
    if offsets is None:
        check_flag("check", check)
        return run_sort(primitive, keys, values, axis, descending, stable, method, axis_name)
    check_apart(axis_name)
    options = {"axis": axis, "descending": descending, "stable": stable, "check": check, "method": method}
    found: tuple[Array, ...] = extensions["sort by offsets"](primitive, keys, values, offsets=offsets, **options)
    return found


def run_sort(
    primitive: str,
    keys: Array,
    values: tuple[Array, ...] | None,
    axis: Any,
    descending: bool,
    stable: bool,
    method: str,
    axis_name: Any = None,
) -> tuple[Array, ...]:
    """Return what a public function here asks for: (keys, *values) in order, or without values (None) the indices."""
    if in_graph(keys, method) and axis_name is None:
        sorted_in_graph: tuple[Array, ...] = nodes().sort(primitive, keys, values, axis, descending, stable, method)
        return sorted_in_graph
    given_arrays = (keys, *values) if values else keys
    key = None
    if axis_name is None:  # what finds indices may have been given keys by which no derivative is asked for
        gradient = values is not None
        key = call_key(primitive, given_arrays, axis, descending, stable, method, gradient=gradient)
    run = recalled(key)
    found: tuple[Array, ...]
    if run is not None:
        found = run(keys, *(values or ()))
        return found
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return run_sort(primitive, keys, values, plainer["axis"], descending, stable, method, axis_name)
    if axis_name is not None or is_split(given_arrays):
        options = axis, descending, stable, method
        found = devices().compute("sorted", given_arrays, axis_name, primitive, keys, values, *options)
        return found
    name = "keys" if primitive == "sort_by_key" else "x"
    named = {name: keys, **{f"values[{index}]": one for index, one in enumerate(values or ())}}
    xp, arrays = admit(named, moved=True)
    given, keys = keys, arrays[0]
    descending, stable = check_flag("descending", descending), check_flag("stable", stable)
    _METHODS[primitive].check(method)
    for index, one in enumerate(arrays[1:]):
        if one.shape != keys.shape:
            raise ValueError(
                f"values[{index}] must have the shape of keys, {tuple(keys.shape)}, got {tuple(one.shape)}"
            )
    if dtype_kind(keys.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(keys.dtype) not in (8, 16, 32, 64):
        raise TypeError(
            f"{name} must be of bool, or of an integer or real floating dtype of 8 to 64 bits, "
            f"got {dtype_name(keys.dtype)}"
        )
    if any(one is not other for one, other in zip(arrays, (given, *(values or ())), strict=True)):
        key = None  # later arrays would have to be converted too
    call = Sorting(
        arrays=tuple(arrays),
        key=key,
        axis=normalize_axis(axis, keys.ndim),
        descending=descending,
        stable=stable,
        keyed=values is not None,
        indices=values is None,
    )
    return derivative_rules.sorting(_METHODS[primitive], method, xp, call)


# ---- In array operations ----------------------------------------------------------------------------------------

# Passes of 4 bits are the fastest on a CPU: wider ones count more digits, narrower ones search more often. A tile
# is as long as its counts, which reach its length, fit a byte.
_DIGIT = 4
_TILE = 128


def _array_refusal(xp: Namespace, call: Sorting) -> str | None:
    # The counts of a pass are numbered; filling up the last tile of a row at most doubles them.
    index = index_dtype(xp)
    if call.keys.shape[call.axis] < 2 or math.prod(call.keys.shape) << (_DIGIT + 1) <= xp.iinfo(index).max:
        return None
    return f"there are more keys than it can number in {dtype_name(index)}"


def _array(xp: Namespace, call: Sorting) -> tuple[Array, ...]:
    """Return what is asked for; all rows are sorted at once."""
    x = move_axis(xp, call.keys, call.axis, -1)
    n = x.shape[-1]
    source = _source(xp, xp.reshape(x, (-1,)), n, call.descending)
    flat = [
        moved(xp, xp.reshape(move_axis(xp, one, call.axis, -1), (-1,)), lambda one: one[source])
        for one in (call.arrays if call.keyed else ())
    ]
    if call.indices:
        flat.append(source % n if n else source)
    return tuple(move_axis(xp, xp.reshape(one, x.shape), -1, call.axis) for one in flat)


def _source(xp: Namespace, x: Array, n: int, descending: bool) -> Array:
    """Return for each slot of the sorted rows, of length n one after another, the position of its element in x.

    By a radix sort, the least significant digit first. In programs by a network: of its steps one loop can be made,
    where each pass of the other would be four.
    """
    slot = _arange(xp, x.shape[0], index_dtype(xp), x)
    if n < 2 or x.shape[0] == 0:
        return slot
    if in_programs(xp):
        return _by_network(xp, ascending_integers(xp, x, descending), slot, n)
    kind = dtype_kind(x.dtype)
    key = bits(xp, ordered_integers(xp, x))
    if kind in ("int", "float"):
        key = key ^ xp.iinfo(key.dtype).min
    if descending:
        key = ~key
    width = 1 if kind == "bool" else dtype_bits(x.dtype)
    radix = 2 ** min(_DIGIT, width)

    source = slot
    for shift in range(0, width, _DIGIT):
        digit = xp.astype((xp.take(key, source, axis=0) >> shift) & (radix - 1), xp.uint8)
        source = xp.take(source, _split(xp, digit, radix, slot, n), axis=0)
    return source


def _by_network(xp: Namespace, key: Array, slot: Array, n: int) -> Array:
    """Return the same for keys that are compared, by a bitonic network, whose steps compare slots a distance apart.

    Rows are filled up to a power of two with slots behind all others. Equal keys are in the order of their positions.
    """
    stages = (n - 1).bit_length()
    length, index = 1 << stages, slot.dtype
    pairs = [(1 << stage + 1, 1 << below) for stage in range(stages) for below in range(stage, -1, -1)]
    sizes, distances = (xp.asarray(ones, dtype=index) for ones in zip(*pairs, strict=True))
    rows = xp.reshape(key, (-1, n))
    rows = xp.concat([rows, xp.full_like(rows, xp.iinfo(key.dtype).max)[:, : length - n]], axis=1)
    rows = xp.reshape(rows, (-1,))
    place = xp.arange(rows.shape[0], dtype=index, device=device(key))
    within = place & (length - 1)

    def compared(step: Any, source: Array) -> Array:
        distance = distances[step]
        other = xp.take(source, place ^ distance, axis=0)
        mine, theirs = xp.take(rows, source, axis=0), xp.take(rows, other, axis=0)
        first = (mine < theirs) | ((mine == theirs) & (source < other))
        stays = first ^ ((within & distance) != 0) ^ ((within & sizes[step]) != 0)
        return xp.where(stays, source, other)

    source = repeated(xp, len(pairs), compared, place)
    source = xp.reshape(xp.reshape(source, (-1, length))[:, :n], (-1,))
    return source - slot // n * (length - n)


def _split(xp: Namespace, digit: Array, radix: int, slot: Array, n: int) -> Array:
    """Return for each slot the position its element comes from when rows of length n are ordered by one digit.

    The equal digits of a tile are a segment, which fills neighbouring slots. The scan of the segments' lengths, row
    by row and digit by digit, says where each ends, and a search in it which segment fills a slot; a scan along the
    tile, and a search in that, say which of its elements. Digits 1 0 | 1 0 in two tiles have the segments (0, first),
    (0, second), (1, first), (1, second) with ends 1 2 3 4, so slots 0 1 2 3 come from positions 1 3 0 2.
    """
    tile = min(_TILE, 1 << (n - 1).bit_length())
    tiles = -(-n // tile)
    table = xp.reshape(digit, (-1, n))
    if n % tile:  # filled up with a digit that is none
        table = xp.concat([table, xp.full_like(table[:, : tiles * tile - n], radix)], axis=1)
    digits = xp.reshape(_arange(xp, radix, xp.uint8, digit), (-1, 1, 1))
    ones = xp.astype(xp.reshape(table, (-1, 1, tiles, tile)) == digits, xp.uint8)
    (counts,) = inclusive(xp, (ones,), BUILT_IN["add"], 3)
    lengths = xp.reshape(xp.astype(counts[..., -1], slot.dtype), (-1,))
    (ends,) = inclusive(xp, (lengths,), BUILT_IN["add"], 0)

    row = slot // n
    segment = _search(xp, ends, row * (radix * tiles), radix * tiles, slot)
    rank = xp.astype(slot - xp.take(ends - lengths, segment, axis=0), xp.uint8)
    first = segment * tile
    place = _search(xp, xp.reshape(counts, (-1,)), first, tile, rank)
    return row * n + segment % tiles * tile + (place - first)


def _search(xp: Namespace, ascending: Array, first: Array, length: int, wanted: Array) -> Array:
    """Return the first positions with values above those wanted, in ranges of one length whose last value is."""
    step = 1 << (length.bit_length() - 1)
    if step < length:  # one look makes the length a power of two
        first = xp.where(xp.take(ascending, first + (step - 1), axis=0) <= wanted, first + (length - step), first)
    while step > 1:
        step //= 2
        first = xp.where(xp.take(ascending, first + (step - 1), axis=0) <= wanted, first + step, first)
    return first


def _arange(xp: Namespace, n: int, dtype: Any, like: Array) -> Array:
    """Return 0, 1, ..., n - 1 on the device of another array."""
    return xp.arange(n, dtype=dtype, device=device(like))


_METHODS = {
    primitive: Methods(
        primitive,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal),
            Method(cpu.prepare, cpu.refusal, cpu.slower),
        ),
        native=Method(sort_native.prepare, sort_native.refusal, eager=sort_native.is_eager, quiet=True),
        array=Method(directly(_array), _array_refusal),
    )
    for primitive in ("sort", "argsort", "sort_by_key")
}
