"""Sort: x[p[0]] <= x[p[1]] <= ... <= x[p[n-1]], by a radix sort whose positions come from a scan."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import array_api_compat

from parprims import _cuda, _derivatives
from parprims._arrays import (
    Array,
    Namespace,
    admit,
    check_flag,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_tensor,
    move_axis,
    normalize_axis,
    offers,
)
from parprims._dispatch import Method, Methods, in_graph, watched
from parprims._operators import BUILT_IN
from parprims._scan import inclusive


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True, method: str = "auto") -> Array:
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
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    array
        The sorted elements, of the shape and dtype of x.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order.
    ValueError
        If an argument has an unknown value, or x by array has more elements than its library's indices can count.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: w / 4 passes for keys of w bits (one for bool), each a scan of 16 n counts and n binary searches,
    in O(log n) steps (array); w / 8 passes (kernel).
    Traffic and launches: kernel sorts rows of at most 8192 in one launch that reads and writes them once (of keys of 8
    bytes of at most 6912, with values or indices 5632). Longer ones take w / 8 + 1: one reads the keys and counts their
    digits, then each reads and writes keys and values, but for digits that are the same in every row; many rows go in
    several turns. It has memory for one more copy of keys and values and at most 5 % and 1 MB besides (for indices of
    32 bits and wider keys than 16 also for one more of those), and copies what is not contiguous along the axis. Array
    reads n of its counts log2(16 n) times a pass.
    Memory of array: besides the result at most 110 bytes for every element, half of them counts, half indices. Of
    native on NumPy: 2 bytes for every element and what zeros and NaN take; of a sort that moves values or tells
    indices, the indices twice and one array more. Elsewhere native has what the library takes, and the indices.
    Error: none, elements are moved as they are; JAX may change the payload of a bfloat16 NaN on the way.
    Reproducibility: the same input gives the same bits if stable; by array and kernel, which are stable, always.
    CUDA graphs: kernels on one stream share scratch, which stays theirs; those captured into a graph have the graph's,
    until it is destroyed, so that any graphs and calls may run at once.
    Methods: kernel (CUDA arrays), native (the library's own sort, of integer keys in our order where its own order is
    another), array.
    Several devices: as for `scan`.
    Derivatives: of keys and values on PyTorch (backward, of any order) and JAX (forward and backward, of any order),
    by every method: what belongs to an element moves with it. Indices have none.
    Reference: Satish, Harris and Garland, Designing Efficient Sorting Algorithms for Manycore GPUs, IPDPS 2009;
    Adinets and Merrill, Onesweep: A Faster Least Significant Digit Radix Sort for GPUs, arXiv:2206.01784, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.sort(np.array([2.0, np.nan, -1.0]))
    array([-1.,  2., nan])
    >>> parprims.sort(np.array([2.0, np.nan, -1.0]), descending=True)
    array([nan,  2., -1.])
    """
    result: Array = _sort("sort", x, (), axis, descending, stable, method)[0]
    return result


def argsort(
    x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True, method: str = "auto"
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
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `sort`, whose order, errors and notes apply.

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
    result: Array = _sort("argsort", x, None, axis, descending, stable, method)[0]
    return result


def sort_by_key(
    keys: Array,
    /,
    *values: Array,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    method: str = "auto",
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
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `sort`, whose order, errors and notes apply.

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
    return _sort("sort_by_key", keys, values, axis, descending, stable, method)


class _Sorting:
    """One call, checked: what every method is given, and answers with (keys, *values) in order.

    If ``indices`` they follow, and without values (None) the answer is they alone. ``axis`` counts from the front.
    """

    __slots__ = ("axis", "descending", "indices", "key", "keys", "stable", "values")

    def __init__(
        self, keys: Array, values: tuple[Array, ...] | None, axis: int, descending: bool, stable: bool
    ) -> None:
        self.keys, self.values, self.axis, self.descending, self.stable = keys, values, axis, descending, stable
        self.indices = values is None
        self.key: Any = None


def _sort(
    primitive: str,
    keys: Array,
    values: tuple[Array, ...] | None,
    axis: Any,
    descending: bool,
    stable: bool,
    method: str,
) -> tuple[Array, ...]:
    """Check a call of any public function here and hand it to a method."""
    if in_graph(keys, method):
        from parprims import _torch_ops

        return _torch_ops.sort(primitive, keys, values, axis, descending, stable, method)
    key = None
    if not watched():
        signature = _cuda.signature((keys, *values) if values else keys)
        if signature is not None:
            # A call like one before goes straight to its kernel: checks and choice depend on nothing else.
            kinds = type(axis), type(descending), type(stable)  # 1 and True would be one key
            key = (primitive, axis, descending, stable, method, kinds, signature)
            shortcut = _cuda.recall(_shortcuts, key)
            if shortcut is not None:
                return shortcut(keys, *(values or ()))
    name = "keys" if primitive == "sort_by_key" else "x"
    named = {name: keys, **{f"values[{index}]": one for index, one in enumerate(values or ())}}
    xp, (keys, *others) = admit(named, moved=True)
    values = None if values is None else tuple(others)
    descending, stable = check_flag("descending", descending), check_flag("stable", stable)
    _METHODS[primitive].check(method)
    for index, one in enumerate(values or ()):
        if one.shape != keys.shape:
            raise ValueError(
                f"values[{index}] must have the shape of keys, {tuple(keys.shape)}, got {tuple(one.shape)}"
            )
    if dtype_kind(keys.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(keys.dtype) not in (8, 16, 32, 64):
        raise TypeError(
            f"{name} must be of bool, or of an integer or real floating dtype of 8 to 64 bits, "
            f"got {dtype_name(keys.dtype)}"
        )
    sorting = _Sorting(keys, values, normalize_axis(axis, keys.ndim), descending, stable)
    sorting.key = key
    return _derivatives.sorting(_METHODS[primitive], method, xp, sorting)


_shortcuts: dict[Any, Callable[..., tuple[Array, ...]]] = {}


_FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def bits(xp: Namespace, x: Array) -> Array:
    """Return the bits of numbers as integers of the same width, signed ones where arrays can be viewed as such.

    Elsewhere integers stay as they are and the bits of floats are computed, where all NaN get the same.
    """
    if dtype_kind(x.dtype) == "bool":
        return xp.astype(x, xp.int8)
    if hasattr(x, "view") and getattr(x.dtype, "isnative", True) and not (is_tensor(x) and _cannot_view()):
        x = x.resolve_neg() if is_tensor(x) else x  # PyTorch views no bits of what is negated when it is read
        return x.view(getattr(xp, f"int{dtype_bits(x.dtype)}"))
    return _float_bits(xp, x) if dtype_kind(x.dtype) == "float" else x


def _cannot_view() -> bool:
    """Return whether a transformation of torch.func is under way, in a PyTorch that has no rule for views of bits."""
    import torch

    return bool(torch._C._are_functorch_transforms_active()) and not _has_rule_for_views()


@functools.cache
def _has_rule_for_views() -> bool:
    import torch

    try:
        torch.func.vmap(lambda x: x.view(torch.int32))(torch.zeros(1, 1))
    except RuntimeError:
        return False
    return True


def _float_bits(xp: Namespace, x: Array) -> Array:
    """Return the bits of floats by exact arithmetic: |x| = significand 2^exponent, 1 <= significand < 2.

    The exponent of a subnormal stays at the least, and its significand below 1.
    """
    width, fraction = dtype_bits(x.dtype), _FRACTION_BITS[dtype_name(x.dtype)]
    bias = 2 ** (width - fraction - 2) - 1
    significand = xp.where(xp.isfinite(x), abs(x), xp.zeros_like(x))
    exponent = xp.zeros_like(x, dtype=getattr(xp, f"int{width}"))
    step = (bias + 1) // 2
    while step:
        large = significand >= 2.0**step
        small = (significand < 2.0 ** (1 - step)) & (exponent - step > -bias)
        significand = xp.where(large, significand * 2.0**-step, xp.where(small, significand * 2.0**step, significand))
        exponent = xp.where(large, exponent + step, xp.where(small, exponent - step, exponent))
        step //= 2
    # The leading 1 of a normal significand adds 1 to the exponent's field.
    magnitude = (exponent + (bias - 1)) * 2**fraction + xp.astype(significand * 2.0**fraction, exponent.dtype)
    infinity = (2 * bias + 1) * 2**fraction
    magnitude = xp.where(xp.isinf(x), xp.full_like(magnitude, infinity), magnitude)
    magnitude = xp.where(xp.isnan(x), xp.full_like(magnitude, infinity + 2 ** (fraction - 1)), magnitude)
    return xp.where(xp.signbit(x), magnitude | xp.iinfo(magnitude.dtype).min, magnitude)


def _integers(xp: Namespace, x: Array) -> Array:
    """Return integers in the order of x, equal where x is: the bits of a float, read as sign and magnitude.

    So -0 becomes 0, and every NaN the largest integer.
    """
    if dtype_kind(x.dtype) in ("int", "uint"):
        return x
    pattern = bits(xp, x)
    if dtype_kind(x.dtype) == "bool":
        return pattern
    largest = xp.iinfo(pattern.dtype).max
    infinity = largest - 2 ** _FRACTION_BITS[dtype_name(x.dtype)] + 1
    magnitude = pattern & largest
    signed = xp.where(pattern < 0, -magnitude, magnitude)
    return xp.where(magnitude > infinity, xp.full_like(signed, largest), signed)


# Passes of 4 bits are the fastest on a CPU: wider ones count more digits, narrower ones search more often. A tile
# is as long as its counts, which reach its length, fit a byte.
_DIGIT = 4
_TILE = 128


def _array(xp: Namespace, s: _Sorting) -> tuple[Array, ...]:
    """Return what is asked for by a radix sort, the least significant digit first; all rows are sorted at once."""
    x = move_axis(xp, s.keys, s.axis, -1)
    n = x.shape[-1]
    source = _source(xp, "keys" if s.values else "x", xp.reshape(x, (-1,)), n, s.descending)
    flat = [
        _moved(xp, xp.reshape(move_axis(xp, one, s.axis, -1), (-1,)), lambda one: one[source])
        for one in (() if s.values is None else (s.keys, *s.values))
    ]
    if s.indices:
        flat.append(source % n if n else source)
    return tuple(move_axis(xp, xp.reshape(one, x.shape), -1, s.axis) for one in flat)


def _source(xp: Namespace, name: str, x: Array, n: int, descending: bool) -> Array:
    """Return for each slot of the sorted rows, of length n one after another, the position of its element in x."""
    index = xp.__array_namespace_info__().default_dtypes()["indexing"]
    slot = _arange(xp, x.shape[0], index, x)
    if n < 2 or x.shape[0] == 0:
        return slot
    # The counts of a pass are numbered; filling up the last tile of a row at most doubles them.
    if x.shape[0] << (_DIGIT + 1) > xp.iinfo(index).max:
        raise ValueError(f"{name} has more elements than method 'array' can number in {dtype_name(index)}")
    kind = dtype_kind(x.dtype)
    key = bits(xp, _integers(xp, x))
    if kind in ("int", "float"):
        key = key ^ xp.iinfo(key.dtype).min
    if descending:
        key = ~key
    source = slot
    width = 1 if kind == "bool" else dtype_bits(x.dtype)
    for shift in range(0, width, _DIGIT):
        radix = 2 ** min(_DIGIT, width - shift)
        digit = xp.astype((xp.take(key, source, axis=0) >> shift) & (radix - 1), xp.uint8)
        source = xp.take(source, _split(xp, digit, radix, slot, n), axis=0)
    return source


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


def _native(xp: Namespace, s: _Sorting) -> tuple[Array, ...]:
    """Return what is asked for by the library's own sort, of integers where its order of the keys is not ours."""
    if array_api_compat.is_jax_namespace(xp):
        result: tuple[Array, ...] = _jax_sort()(s.keys, s.values, s.indices, s.axis, s.descending, s.stable)
        return result
    ours = _keeps_order(xp, s.keys)
    stable = s.stable or _counted_in_numpy(xp, s.keys)
    if ours and s.values == () and not s.indices:
        if array_api_compat.is_torch_namespace(xp):
            return (xp.sort(s.keys, axis=s.axis, descending=s.descending, stable=stable),)
        # Elsewhere descending order is ascending order flipped: flipped twice, equal elements keep their order.
        x = xp.flip(s.keys, axis=s.axis) if s.descending else s.keys
        if array_api_compat.is_numpy_namespace(xp):
            y = _sorted_in_numpy(xp, x, s.axis)
        else:
            y = xp.sort(x, axis=s.axis, stable=stable)
        return (xp.flip(y, axis=s.axis) if s.descending else y,)
    keys = s.keys if ours else _integers(xp, s.keys)
    if not ours and dtype_kind(keys.dtype) == "uint":
        keys = bits(xp, keys)  # PyTorch compares only signed integers on GPUs
        keys = keys ^ xp.iinfo(keys.dtype).min
    order = xp.argsort(keys, axis=s.axis, descending=s.descending, stable=stable)
    moved = (
        _moved(xp, one, lambda one: xp.take_along_axis(one, order, axis=s.axis))
        for one in (() if s.values is None else (s.keys, *s.values))
    )
    return (*moved, order) if s.indices else tuple(moved)


def _native_refusal(xp: Namespace, s: _Sorting) -> str | None:
    if offers(xp, "take_along_axis") or s.values is None or (s.values == () and _keeps_order(xp, s.keys)):
        return None
    return f"{xp.__name__} has no take_along_axis at this version of the array API standard"


def _moved(xp: Namespace, x: Array, move: Callable[[Array], Array]) -> Array:
    """Return the array with its elements moved, unsigned integers as signed ones: PyTorch moves no others on GPUs."""
    if dtype_kind(x.dtype) == "uint" and hasattr(x, "view") and getattr(x.dtype, "isnative", True):
        return move(bits(xp, x)).view(x.dtype)
    return move(x)


def _keeps_order(xp: Namespace, x: Array) -> bool:
    """Return whether the library's own sort keeps our order of the dtype; the standard leaves NaN and bool open."""
    kind = dtype_kind(x.dtype)
    if array_api_compat.is_numpy_namespace(xp):
        return dtype_name(x.dtype) != "bfloat16"
    if array_api_compat.is_cupy_namespace(xp):
        return kind != "float"  # NaN with a sign comes first
    if array_api_compat.is_torch_namespace(xp) and kind != "int":
        return bool(x.device.type == "cpu")  # on GPUs NaN with a sign comes first
    return kind in ("int", "uint") or (array_api_compat.is_array_api_strict_namespace(xp) and kind == "float")


# Arrays shorter than this are sorted stably sooner than searched for zeros and NaN.
_SEARCHED = 1000


def _counted_in_numpy(xp: Namespace, x: Array) -> bool:
    """Return whether NumPy's stable sort of the dtype counts digits and is its fastest."""
    return array_api_compat.is_numpy_namespace(xp) and dtype_kind(x.dtype) != "float" and dtype_bits(x.dtype) <= 16


def _sorted_in_numpy(xp: Namespace, x: Array, axis: int) -> Array:
    """Return NumPy's array sorted, equal elements in their order.

    Of wide dtypes the sort that is not stable is many times faster. What is equal but differs in its bits are only
    zeros, of two signs, and NaN, of which it may even change the bits: these are taken from x, row by row, where a
    sorted row has as many of them.
    """
    if dtype_kind(x.dtype) != "float" or x.size < _SEARCHED:
        return xp.sort(x, axis=axis, stable=dtype_kind(x.dtype) == "float" or _counted_in_numpy(xp, x))
    y = xp.sort(x, axis=axis, stable=False)
    given, found = xp.moveaxis(x, axis, -1), xp.moveaxis(y, axis, -1)
    zeros = found == 0
    if zeros.any():
        found[zeros] = given[given == 0]
    if xp.isnan(found[..., -1]).any():
        found[xp.isnan(found)] = given[xp.isnan(given)]
    return y


@functools.cache
def _jax_sort() -> Callable[..., Any]:
    """Return `_native` for JAX, compiled as one program: its own order takes subnormals for 0 on a CPU."""
    import jax

    def run(
        keys: Array, values: tuple[Array, ...] | None, indices: bool, axis: int, descending: bool, stable: bool
    ) -> tuple[Array, ...]:
        ordered = _integers(jax.numpy, keys)
        if descending:
            ordered = ~ordered
        exact = ordered.dtype == keys.dtype
        operands: tuple[Array, ...] = () if values is None else values if exact else (keys, *values)
        if indices:
            index = jax.numpy.__array_namespace_info__().default_dtypes()["indexing"]
            operands += (jax.lax.broadcasted_iota(index, keys.shape, axis),)
        first, *rest = jax.lax.sort((ordered, *operands), dimension=axis, is_stable=stable, num_keys=1)
        if values is not None and exact:
            rest = [~first if descending else first, *rest]
        return tuple(rest)

    compiled: Callable[..., Any] = jax.jit(run, static_argnums=(2, 3, 4, 5))
    return compiled


# ---- The kernel -------------------------------------------------------------------------------------------------


class _Way(NamedTuple):
    """How rows of up to ``longest`` are sorted: ``group`` threads to a row, ``block`` to a block, by ``digit`` bits.

    As many blocks as ``resident`` are to fit a multiprocessor (0: any). Where something moves with keys of 4 bytes and
    not all threads have as many, registers suffice for rows of up to ``uneven``.
    """

    longest: int
    group: int
    block: int
    digit: int = 8
    resident: int = 0
    uneven: int = 8192


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The sizes of the kernels' work, chosen by measurements on an H200, registers and shared memory.

    A thread has keys of ``each`` rows of up to ``lanes``. ``rows`` are the ways to sort a longer, yet short row, and
    ``few`` come first for keys of at most 4 bytes where there are fewer rows than half of ``blocks``. A block has
    ``shared_bytes`` on every architecture.
    ``alone`` and ``together`` are the tiles of longer rows, of keys alone and of keys with values, by the bytes of the
    widest: the threads, the elements to a thread, and the blocks on a multiprocessor. Fewer blocks than ``blocks`` get
    smaller tiles; ``counters`` blocks at most count digits, with ``counting`` threads for each word of a key and
    ``chunk`` keys at least; counts and words between tiles take up to a twentieth of the memory of the keys and values
    and ``besides`` bytes. Integers of 32 bits count the keys of rows up to ``counts``, and indices on their way of rows
    up to ``places``; words between tiles always have 32 bits, and count the keys of a ``segment`` of a row above
    ``counts``.
    """

    lanes: int = 32
    each: int = 4
    rows: tuple[_Way, ...] = (
        _Way(128, 32, 128, digit=5),
        _Way(1024, 32, 128),
        _Way(8192, 256, 256, uneven=6144),
        _Way(8192, 384, 384, resident=2),
    )
    few: tuple[_Way, ...] = (_Way(128, 32, 128, digit=5), _Way(1024, 256, 256), _Way(8192, 512, 512))
    shared_bytes: int = 64 << 10
    alone: tuple[tuple[int, int, int, int], ...] = (
        (1, 512, 18, 2),
        (2, 512, 20, 2),
        (4, 384, 28, 2),
        (8, 384, 12, 3),
    )
    together: tuple[tuple[int, int, int, int], ...] = (
        (2, 512, 16, 2),
        (4, 512, 18, 2),
        (8, 384, 15, 2),
        (16, 384, 5, 3),
    )
    blocks: int = 132
    counters: int = 1056
    counting: int = 256
    chunk: int = 16384
    besides: int = 1 << 20
    counts: int = 2**30 - 1
    segment: int = 2**29
    places: int = 2**32


_SIZES = _Sizes()

_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "uint4"}
_INDICES = {"int32": "int", "int64": "long long"}


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What a kernel is made for: dtypes by name, and what it answers with.

    ``values`` are the bytes of an element of each; ``index`` is the dtype of indices, or None without them.
    """

    key: str
    descending: bool
    keyed: bool
    values: tuple[int, ...]
    index: str | None

    @property
    def bits(self) -> int:
        """Return how many bits of a key can differ."""
        return 1 if self.key == "bool" else 8 * self.key_bytes

    @property
    def moves(self) -> bool:
        """Return whether anything moves as the keys do."""
        return bool(self.values or self.index)

    @property
    def key_bytes(self) -> int:
        kind = self.key.lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(kind) // 8 if kind else 1

    def source(self, count_bytes: int, place_bytes: int) -> str:
        """Return the CUDA text before the kernel."""
        kind = {"b": "BOOL", "i": "SIGNED", "u": "UNSIGNED", "f": "FLOATING"}[
            "f" if self.key == "bfloat16" else self.key[0]
        ]
        fraction = _FRACTION_BITS.get(self.key, 0)
        infinite = ((1 << (8 * self.key_bytes - 1 - fraction)) - 1) << fraction if fraction else 0
        return "\n".join(
            (
                _cuda.device_source("_common.cuh"),
                f"using Key = {_WORDS[self.key_bytes]};",
                "enum Kind { BOOL, SIGNED, UNSIGNED, FLOATING };",
                f"constexpr Kind KIND = {kind};",
                f"constexpr Key INFINITE = (Key){infinite}ULL;",
                f"constexpr bool FALLING = {str(self.descending).lower()};",
                f"constexpr int WIDTH = {self.bits};",
                f"using Place = {_WORDS[place_bytes]};",
                f"using Count = {_WORDS[count_bytes]};",
                f"constexpr bool SEGMENTS = {str(count_bytes > 4).lower()};",
                f"using INDEX = {_INDICES[self.index or 'int64']};",
                _cuda.device_source("_sort.cu"),
            )
        )


def _plan(
    spec: _Spec, outputs: Sequence[tuple[tuple[int, ...], str]], shape: tuple[int, ...], address: int
) -> _cuda.Plan:
    """Return the launches that sort the last axis of contiguous arrays whose keys begin at an address modulo 16."""
    n = shape[-1]
    rows = math.prod(shape[:-1])
    wide = 4 if n <= _SIZES.counts else 8
    plan = functools.partial(
        _cuda.Plan,
        source=spec.source(wide, 4 if n <= _SIZES.places else 8),
        inputs=1 + len(spec.values),
        outputs=tuple(outputs),
    )
    if n <= _SIZES.lanes:
        return _plan_lanes(spec, plan, rows, n)
    way = _row_way(spec, rows, n)
    if way:
        return _plan_rows(spec, plan, rows, n, *way)
    return _plan_tiles(spec, plan, rows, n, address, wide)


def _answers(spec: _Spec, keys: str) -> Iterator[str]:
    """Yield the statements with which a whole row leaves, given that for its keys."""
    if spec.keyed:
        yield f"  {keys};"
    for at, nbytes in enumerate(spec.values):
        yield f"  sorted.move<{_WORDS[nbytes]}>(in{at + 1}, out{at + 1});"
    if spec.index:
        yield f"  sorted.indices(out{len(spec.values) + spec.keyed});"


def _plan_lanes(spec: _Spec, plan: Callable[..., _cuda.Plan], rows: int, n: int) -> _cuda.Plan:
    """Return the launch that sorts rows of a key to a lane."""
    block, lanes = 256, _cuda.power_of_two(n, up=True)
    each = _SIZES.each if rows * lanes >= 16 * block * _SIZES.blocks else 1
    body = "\n".join(
        (
            f"  const SortedLanes<{block}, {lanes}, {each}> sorted(in0, n0, (int)n1);",
            *_answers(spec, "sorted.move<Key>(in0, out0)"),
        )
    )
    return plan(body=body, integers=(rows, n), grid=-(-rows * lanes // (block * each)), block=block)


def _row_way(spec: _Spec, rows: int, n: int) -> tuple[_Way, int] | None:
    """Return the first way that fits rows, and the shared memory of each; None if none does."""
    few = rows < _SIZES.blocks // 2 and spec.key_bytes <= 4
    for way in (*(_SIZES.few if few else ()), *_SIZES.rows):
        length = -(-n // way.group) * way.group
        digits = 2 ** min(way.digit, spec.bits)
        size = length * (spec.key_bytes + 2 * spec.moves) + 4 * way.group // 32 * digits + digits // 8 + 48
        crowded = spec.moves and spec.key_bytes == 4 and way.uneven < n < length
        if n <= way.longest and not crowded and way.block // way.group * size <= _SIZES.shared_bytes:
            return way, size
    return None


def _plan_rows(spec: _Spec, plan: Callable[..., _cuda.Plan], rows: int, n: int, way: _Way, size: int) -> _cuda.Plan:
    """Return the launch that sorts rows which a warp or a block holds, given how, and the shared memory of each."""
    items, together = -(-n // way.group), way.block // way.group
    flags = ", ".join(str(flag).lower() for flag in (n == way.group * items, spec.moves))
    made = f"SortedRows<{way.block}, {way.group}, {items}, {min(way.digit, spec.bits)}, {flags}>"
    body = (
        f"  static_assert(sizeof({made}::Shared) * {together} <= {together * size});",
        f"  const {made} sorted(in0, n0, (int)n1);",
        *_answers(spec, "sorted.store(out0)"),
    )
    return plan(
        body="\n".join(body),
        integers=(rows, n),
        grid=-(-rows // together),
        block=way.block,
        shared_bytes=together * size,
        resident_blocks=way.resident,
    )


def _plan_tiles(
    spec: _Spec, plan: Callable[..., _cuda.Plan], rows: int, n: int, address: int, count_bytes: int
) -> _cuda.Plan:
    """Return the launch that counts digits and one for each digit."""
    total, key_bytes = rows * n, spec.key_bytes
    radix, passes = 2 ** min(8, spec.bits), -(-spec.bits // 8)
    place_bytes = (4 if n <= _SIZES.places else 8) if spec.index else 0
    widest = max(key_bytes, *spec.values, place_bytes)
    moved = len(spec.values) + bool(spec.index)
    sizes = _SIZES.together if moved else _SIZES.alone
    threads, items, resident = next(one[1:] for one in sizes if widest <= one[0])
    if moved > 1 or count_bytes > 4:
        resident = min(resident, 2)
    while items > 4 and rows * -(-n // (threads * items)) < _SIZES.blocks:
        items = (items + 1) // 2
    tiles = -(-n // (threads * items))

    # Rows are sorted together as far as their counts and words fit the memory there is for them, in turn with others.
    segment = max(1, _SIZES.segment // (threads * items)) if count_bytes > 4 else 0  # tiles
    words_bytes = radix * (4 * tiles + (count_bytes * -(-tiles // segment) if segment else 0))
    counts_bytes = passes * radix * count_bytes
    copy = total * (key_bytes + sum(spec.values) + place_bytes)
    several = passes > 1  # keys and values go by way of temporary memory
    room = (copy // 20 if several else copy) + _SIZES.besides
    together = -(-rows // min(rows, -(-rows * (words_bytes + counts_bytes) // room)))
    turns = -(-rows // together)

    temporary = 0

    def reserved(nbytes: int) -> str:
        """Return the address of so much of the call's own memory."""
        nonlocal temporary
        integers.append(temporary)
        temporary += -(-nbytes // 256) * 256
        return f"(char*)temporary + n{len(integers) - 1}"

    vector = 16 // key_bytes
    if (address if rows == 1 else address + n * key_bytes) % 16 or (rows > 1 and address % 16):
        vector = 1
    counting = _SIZES.counting * -(-passes // 4)
    step = 4 * counting * vector
    chunks = max(1, min(n // _SIZES.chunk, _SIZES.counters // together))
    chunk = -(-n // (chunks * step)) * step
    integers = [rows, together, n, tiles, chunk, -(-n // chunk), -(-together * words_bytes // 16)]
    words = reserved(together * words_bytes)
    single = integers[5] == 1  # one block counts a row, and need not find zeros
    counts = reserved(together * counts_bytes) if single else "(char*)zeroed + 16"
    body = []
    key_temporary = reserved(total * key_bytes) if several else "nullptr"
    key_out, aside, through = "out0", "nullptr", "nullptr"
    keys_apart = places_apart = 0
    if spec.index:
        # On the way the keys and indices of a row wait in the memory of its result as far as that goes; wide indices
        # fill it, and every second launch leaves the keys out.
        index_bytes = int(spec.index[3:]) // 8
        last = f"out{len(spec.values) + spec.keyed}"
        place_temporary = reserved(total * place_bytes) if several else "nullptr"
        aside, places_apart = last, index_bytes - place_bytes
        if not spec.keyed and passes > 2:  # two write keys on the way once
            if key_bytes + place_bytes <= index_bytes:
                integers.append(n * place_bytes)
                key_out, keys_apart = f"(char*){last} + n{len(integers) - 1}", index_bytes - key_bytes
            elif place_bytes == 8:
                key_out, through = "nullptr", last
            elif place_bytes <= key_bytes <= index_bytes:
                key_out, aside, places_apart = last, reserved(total * place_bytes), 0
            else:
                key_out = reserved(total * key_bytes)
    for at, nbytes in enumerate(spec.values):
        own = reserved(total * nbytes) if several else "nullptr"
        body.append(f"  sorted.move<{_WORDS[nbytes]}>(in{at + 1}, {own}, out{at + 1});")
    if spec.index:
        body.append(f"  sorted.indices({place_temporary}, {aside}, {last}, {places_apart});")
    count = f"count_digits<{counting}, {vector}>(in0, zeroed, {counts}, {words}, n0, n1, n2, n3, n4, n5, n6);"
    moving = (
        f"  SortedTile<{threads}, {items}> sorted(in0, {key_temporary}, {key_out}, zeroed, {counts}, {words}, n0, n1, "
        f"n2, (unsigned)n3, {str(not spec.keyed).lower()}, {segment}u, {through}, "
        f"{keys_apart});\n  if (!sorted.left) return;"
    )
    plan = functools.partial(
        plan,
        integers=tuple(integers),
        zeroed_bytes=16 + (0 if single else together * counts_bytes),
        temporary_bytes=temporary,
    )
    one = plan(
        body="\n".join((moving, *body)),
        grid=together * tiles,
        block=threads,
        shared_bytes=-(-threads * items * widest // 16) * 16,
        resident_blocks=resident,
    )
    first = plan(
        body=f"  {count}",
        grid=together * integers[5],
        block=counting,
        shared_bytes=-(-passes // 4) * radix * 128,
        resident_blocks=1536 // counting,  # as shared memory allows
    )
    return dataclasses.replace(first, then=((first, *(one,) * passes) * turns)[1:])


def _kernel_refusal(xp: Namespace, s: _Sorting) -> str | None:
    for one in s.values or ():
        if dtype_kind(one.dtype) == "other":
            return f"the kernel does not move values of dtype {dtype_name(one.dtype)}"
    return _cuda.refusal(xp, (s.keys, *(s.values or ())))


def _kernel(xp: Namespace, s: _Sorting) -> tuple[Array, ...]:
    """Return what is asked for by a radix sort in CUDA."""
    given = (s.keys, *(s.values or ()))
    if 0 in s.keys.shape:
        return _array(xp, s)
    last = s.keys.ndim - 1
    moved = (x if s.axis == last else move_axis(xp, x, s.axis, -1) for x in given)
    arrays = tuple([_cuda.contiguous(xp, _cuda.plain(xp, x)) for x in moved])
    runner = _runner(xp, s, arrays)
    ys: tuple[Array, ...] = runner(*arrays)
    if s.axis != last:
        return tuple(move_axis(xp, y, -1, s.axis) for y in ys)
    if s.key is not None and all(one is other for one, other in zip(arrays, given, strict=True)):
        alone = isinstance(runner, _cuda.Runner) and not runner.plan.then and len(given) + len(ys) == 2
        _cuda.remember(_shortcuts, s.key, (lambda x: (runner.one(x),)) if alone else runner)
    return ys


_runners: dict[Any, Callable[..., tuple[Array, ...]]] = {}


def _runner(xp: Namespace, s: _Sorting, arrays: tuple[Array, ...]) -> Any:
    """Return a function that launches the kernels on contiguous arrays, to be sorted along their last axis."""
    shape = arrays[0].shape
    address = _cuda.layout(xp, arrays[0])[1]
    gpu = None if _cuda.is_jax(xp) else _cuda.device_index(xp, arrays[0])
    dtypes = tuple([x.dtype for x in arrays])
    key = (xp, _cuda.mode(xp), dtypes, shape, s.descending, s.values is None, s.indices, address, gpu)
    runner = _runners.get(key)
    if runner is not None:
        return runner
    index = dtype_name(xp.__array_namespace_info__().default_dtypes()["indexing"]) if s.indices else None
    names = [dtype_name(dtype) for dtype in dtypes]
    spec = _Spec(names[0], s.descending, s.values is not None, tuple(x.dtype.itemsize for x in arrays[1:]), index)
    results = (names if spec.keyed else []) + ([index] if index else [])
    plan = _plan(spec, [(tuple(shape), name) for name in results], tuple(shape), address)
    if gpu is not None:
        return _cuda.remember(_runners, key, _cuda.Runner(xp, plan, gpu))
    descending, keyed, indices = s.descending, spec.keyed, s.indices

    def remade(arrays: tuple[Array, ...]) -> _Sorting:
        other = _Sorting(arrays[0], arrays[1:] if keyed else None, arrays[0].ndim - 1, descending, True)
        other.indices = indices
        return other

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        return _native(xp, remade(arrays))

    def batched(*arrays: Array) -> tuple[Array, ...]:
        return _kernel(xp, remade(tuple(xp.broadcast_arrays(*arrays))))

    return _cuda.remember(_runners, key, _cuda.traced(plan, otherwise, batched))


_METHODS = {
    primitive: Methods(
        primitive,
        kernel=Method(_kernel, _kernel_refusal),
        native=Method(_native, _native_refusal),
        array=Method(_array),
    )
    for primitive in ("sort", "argsort", "sort_by_key")
}
