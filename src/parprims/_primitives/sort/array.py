"""Sorts by array operations: a radix sort or, in programs, a bitonic network."""

from __future__ import annotations

import math
from typing import Any

from parprims._core.arrays import Array, Namespace, device, dtype_bits, dtype_kind, dtype_name, move_axis
from parprims._libraries.steps import in_programs, repeated
from parprims._operators.operator import BUILT_IN
from parprims._primitives.scan.array import inclusive
from parprims._primitives.sort.call import Sorting, ascending_integers, bits, index_dtype, moved, ordered_integers

_DIGIT = 4
_TILE = 128


def refusal(xp: Namespace, call: Sorting) -> str | None:
    # The counts of a pass need indices; padding the last tile of a row at most doubles them.
    index = index_dtype(xp)
    if call.keys.shape[call.axis] < 2 or math.prod(call.keys.shape) << (_DIGIT + 1) <= xp.iinfo(index).max:
        return None
    return f"indices of {dtype_name(index)} cannot number this many keys"


def array(xp: Namespace, call: Sorting) -> tuple[Array, ...]:
    """Return the results of a call; all rows are sorted at once."""
    x = move_axis(xp, call.keys, call.axis, -1)
    n = x.shape[-1]
    source = _source(xp, xp.reshape(x, (-1,)), n, call.descending)
    flat = [
        moved(xp, xp.reshape(move_axis(xp, array, call.axis, -1), (-1,)), lambda x: x[source])
        for array in (call.arrays if call.keyed else ())
    ]
    if call.indices:
        flat.append(source % n if n else source)
    return tuple(move_axis(xp, xp.reshape(y, x.shape), -1, call.axis) for y in flat)


def _source(xp: Namespace, x: Array, n: int, descending: bool) -> Array:
    """Return the position in x of the element of each slot of the sorted rows, which have length n.

    The algorithm is a radix sort, the least significant digit first. In programs it is a network, which is one loop;
    each pass of the radix sort would be four.
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
        source = xp.take(source, _split(xp, digit, radix, slot, n=n), axis=0)
    return source


def _by_network(xp: Namespace, key: Array, slot: Array, n: int) -> Array:
    """Return the positions of the elements of slots by a bitonic network, which compares slots a distance apart.

    Rows are padded to a power of two with slots after all others. Equal keys are in the order of their positions.
    """
    stages = (n - 1).bit_length()
    length, index = 1 << stages, slot.dtype
    pairs = [(1 << stage + 1, 1 << below) for stage in range(stages) for below in range(stage, -1, -1)]
    sizes, distances = (xp.asarray(column, dtype=index) for column in zip(*pairs, strict=True))
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
    """Return the position of the element of each slot after rows of length n are sorted by one digit.

    The equal digits of a tile are a segment, which fills adjacent slots. The scan of the lengths of segments, row by
    row and digit by digit, gives their ends; a search in it gives the segment of a slot. A scan along the tile, and a
    search in it, give the element. Digits 1 0 | 1 0 in two tiles have the segments (0, first),
    (0, second), (1, first), (1, second) with ends 1 2 3 4, so slots 0 1 2 3 come from positions 1 3 0 2.
    """
    tile = min(_TILE, 1 << (n - 1).bit_length())
    tiles = -(-n // tile)
    table = xp.reshape(digit, (-1, n))
    if n % tile:  # padded with an invalid digit
        table = xp.concat([table, xp.full_like(table[:, : tiles * tile - n], radix)], axis=1)
    digits = xp.reshape(_arange(xp, radix, xp.uint8, digit), (-1, 1, 1))
    flags = xp.astype(xp.reshape(table, (-1, 1, tiles, tile)) == digits, xp.uint8)
    (counts,) = inclusive(xp, (flags,), BUILT_IN["add"], 3)
    lengths = xp.reshape(xp.astype(counts[..., -1], slot.dtype), (-1,))
    (ends,) = inclusive(xp, (lengths,), BUILT_IN["add"], 0)

    row = slot // n
    segment = _search(xp, ends, row * (radix * tiles), radix * tiles, wanted=slot)
    rank = xp.astype(slot - xp.take(ends - lengths, segment, axis=0), xp.uint8)
    first = segment * tile
    place = _search(xp, xp.reshape(counts, (-1,)), first, tile, wanted=rank)
    return row * n + segment % tiles * tile + (place - first)


def _search(xp: Namespace, ascending: Array, first: Array, length: int, wanted: Array) -> Array:
    """Return the first positions with values above ``wanted``, in ranges of one length that end with such a value."""
    step = 1 << (length.bit_length() - 1)
    if step < length:  # one comparison reduces the length to a power of two
        first = xp.where(xp.take(ascending, first + (step - 1), axis=0) <= wanted, first + (length - step), first)
    while step > 1:
        step //= 2
        first = xp.where(xp.take(ascending, first + (step - 1), axis=0) <= wanted, first + step, first)
    return first


def _arange(xp: Namespace, n: int, dtype: Any, like: Array) -> Array:
    """Return 0, 1, ..., n - 1 on the device of another array."""
    return xp.arange(n, dtype=dtype, device=device(like))
