"""The driver of sorts over the parts of an axis. Every part keeps its length.

Each part is sorted. The cuts are found digit by digit, the most significant first: every part counts its keys below
each candidate. Equal keys at a cut go to the earlier parts first, in the order of the parts. Then the parts exchange
their pieces. Every part merges the pieces that arrive, or sorts them again; both keep the order of equal keys.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

from parprims._core.arrays import Array, Namespace, cast, device, dtype_bits, dtype_kind, move_axis, namespace_of
from parprims._devices.communicator import Exchange, Gather, Place, Sorted, Step
from parprims._primitives.sort.call import bits, index_dtype, moved, ordered_integers
from parprims._primitives.sort.public import sort, sort_by_key

_CANDIDATES = 2**16
"""The most candidates for all cuts of a part in a round, beside the limits of `digit_bits`.

A round takes the time of its search steps and its message, which hardly depends on the number of candidates.
"""

LONGEST_SHORT = 2**31 - 1
"""The longest axis with indices of 32 bits."""


@dataclasses.dataclass(frozen=True)
class _Saved:
    """The data of a part between steps.

    Parameters
    ----------
    rows : list of array
        The sorted keys and the arrays that move with them, each of shape (rows, length).
    shape : tuple of int
        The shape of the part with its axis last.
    cut : array
        Lower bounds of the keys at the cuts, as integers of shape (rows, cuts).
    lower : array, optional
        The number of keys below each cut, of shape (rows, cuts).
    """

    rows: list[Array]
    shape: tuple[int, ...]
    cut: Array
    lower: Array | None = None


def sorts(
    *, axis: int, descending: bool, keyed: bool, indices: bool, method: str, width: int, digit: int
) -> list[Step]:
    """Return the driver of a sort.

    Parameters
    ----------
    axis, descending, method
        As in `sort`.
    keyed : bool
        Whether the results begin with the sorted keys and the values.
    indices : bool
        Whether the indices that sort are the last result.
    width : int
        The number of bits of a key.
    digit : int
        The number of bits of a digit (see `digit_bits`).
    """
    shifts = list(range(width, 0, -digit))
    in_order = functools.partial(_in_order, descending=descending, method=method)

    def begin(place: Place, arrays: tuple[Array, ...], _: Any) -> Any:
        xp = namespace_of(arrays[0])
        shape = tuple(move_axis(xp, arrays[0], axis, -1).shape)
        rows = [_as_rows(xp, one, axis) for one in arrays]
        if indices:
            rows.append(_numbers(xp, rows[0], place))
        rows = list(in_order(tuple(rows)))
        lowest = ordered(xp, rows[0][:0, ...], descending)
        cut = xp.full(
            (rows[0].shape[0], place.count - 1),
            xp.iinfo(lowest.dtype).min if width > 1 else 0,
            dtype=lowest.dtype,
            device=device(rows[0]),
        )
        return _ask(_Saved(rows, shape, cut), 0)

    def _ask(saved: _Saved, digit_index: int) -> Any:
        xp = namespace_of(saved.rows[0])
        wanted = saved.cut[:, :, None] + _steps(xp, saved.cut, digit_index)
        keys = xp.reshape(wanted, (wanted.shape[0], math.prod(wanted.shape[1:])))
        counts = below(xp, saved.rows[0], keys, descending)
        return Gather((xp.reshape(counts, tuple(wanted.shape)),)), saved

    def _steps(xp: Namespace, cut: Array, digit_index: int) -> Array:
        size = 2 ** (max(shifts[digit_index] - digit, 0))
        count = 2 ** min(digit, shifts[digit_index])
        return xp.arange(count, dtype=cut.dtype, device=device(cut)) * _wrapped(xp, size, cut.dtype)

    def narrow(digit_index: int) -> Step:
        def step(place: Place, saved: _Saved, counts: tuple[Array, ...]) -> Any:
            xp = namespace_of(saved.rows[0])
            total = xp.sum(counts[0], axis=0, dtype=counts[0].dtype)
            fits = total <= _targets(xp, place, total)
            last = xp.sum(xp.astype(fits, saved.cut.dtype), axis=-1, dtype=saved.cut.dtype) - 1
            size = 2 ** (max(shifts[digit_index] - digit, 0))
            cut = saved.cut + last * _wrapped(xp, size, saved.cut.dtype)
            saved = dataclasses.replace(saved, cut=cut)
            if digit_index + 1 < len(shifts):
                return _ask(saved, digit_index + 1)
            keys = saved.rows[0]
            lower = below(xp, keys, cut, descending)
            upper = below(xp, keys, cut, descending, equal=True)
            return Gather((xp.stack([lower, upper], axis=-1),)), saved

        return step

    def cut(place: Place, saved: _Saved, counts: tuple[Array, ...]) -> Any:
        xp = namespace_of(saved.rows[0])
        lower, upper = counts[0][..., 0], counts[0][..., 1]  # of shape (parts, rows, cuts)
        equal = upper - lower
        left = _targets(xp, place, lower[0, ..., None])[..., 0] - xp.sum(lower, axis=0, dtype=lower.dtype)
        before = xp.cumulative_sum(equal, axis=0, dtype=equal.dtype) - equal
        taken = xp.minimum(xp.maximum(left - before, xp.zeros_like(equal)), equal)
        ends = xp.zeros_like(lower[..., :1])
        lengths = xp.reshape(xp.asarray(place.lengths, dtype=lower.dtype, device=device(lower)), (-1, 1, 1))
        bounds = xp.concat([ends, lower + taken, ends + lengths], axis=-1)
        merges = descending if method in ("auto", "kernel") else None
        rows = [*saved.rows, *(_parts(xp, saved.rows[0], place) if indices else ())]
        exchange = Exchange(tuple(rows), bounds, place.lengths, sort=in_order, descending=merges)
        return exchange, dataclasses.replace(saved, rows=[])

    def end(place: Place, saved: _Saved, rows: tuple[Array, ...]) -> Any:
        xp = namespace_of(rows[0])
        done = list(rows if isinstance(rows, Sorted) else in_order(rows))
        if indices:
            parts = done.pop() if _is_long(place) else None
            done[-1] = _whole(xp, done[-1], parts, place)
        shape = (*saved.shape[:-1], rows[0].shape[-1])
        results = [move_axis(xp, xp.reshape(one, shape), -1, axis) for one in done]
        return None, tuple(results if keyed else results[-1:])

    return [begin, *(narrow(at) for at in range(len(shifts))), cut, end]


def digit_bits(cuts: int, elements: int) -> int:
    """Return the number of bits of a digit, given the elements of a part, and its cuts in all rows together."""
    cuts = max(cuts, 1)
    candidates = min(max(elements, 2**8 * cuts), _CANDIDATES)
    return max((candidates // cuts).bit_length() - 1, 1)


def _in_order(rows: tuple[Array, ...], *, descending: bool, method: str) -> tuple[Array, ...]:
    if len(rows) == 1:
        return (sort(rows[0], descending=descending, method=method),)
    return sort_by_key(*rows, descending=descending, method=method)


def _as_rows(xp: Namespace, x: Array, axis: int) -> Array:
    x = move_axis(xp, x, axis, -1)
    return xp.reshape(x, (-1, x.shape[-1])) if x.shape[-1] else xp.reshape(x, (_product(x.shape[:-1]), 0))


def _product(lengths: tuple[int, ...]) -> int:
    product = 1
    for length in lengths:
        product *= length
    return product


def _is_long(place: Place) -> bool:
    """Return whether the indices of elements along the whole axis need more than 32 bits."""
    return sum(place.lengths) > LONGEST_SHORT


def _numbers(xp: Namespace, keys: Array, place: Place) -> Array:
    """Return the index of each element along the axis; for a long axis, the index in the local part.

    Indices have 32 bits if these suffice, so that less is moved and sent.
    """
    dtype = index_dtype(xp)
    if sum(place.lengths) > xp.iinfo(dtype).max:
        raise ValueError(f"x must have at most {xp.iinfo(dtype).max} elements along the axis for indices of {dtype}")
    if max(place.lengths) <= LONGEST_SHORT:
        dtype = xp.int32
    numbers = xp.arange(keys.shape[1], dtype=dtype, device=device(keys))
    if not _is_long(place):
        first = place.first
        numbers = numbers + (first if isinstance(first, int) else xp.astype(first, dtype))
    return xp.broadcast_to(numbers, tuple(keys.shape))


def _parts(xp: Namespace, keys: Array, place: Place) -> list[Array]:
    """Return the number of its part for each element of a long axis. It moves with the index in the part."""
    dtype = xp.uint8 if place.count <= 2**8 else xp.int32
    return [xp.full(tuple(keys.shape), place.rank, dtype=dtype, device=device(keys))] if _is_long(place) else []


def _whole(xp: Namespace, numbers: Array, parts: Array | None, place: Place) -> Array:
    """Return the indices along the whole axis, given the `_numbers` and the `_parts` of elements."""
    numbers = cast(xp, numbers, index_dtype(xp))
    if parts is None:
        return numbers
    first = xp.asarray([0, *itertools.accumulate(place.lengths[:-1])], dtype=numbers.dtype, device=device(numbers))
    at = xp.reshape(xp.astype(parts, numbers.dtype), (-1,))
    return numbers + xp.reshape(xp.take(first, at, axis=0), tuple(numbers.shape))


def _targets(xp: Namespace, place: Place, like: Array) -> Array:
    """Return the number of keys before each cut, broadcastable to arrays of shape (rows, cuts, candidates)."""
    before = list(itertools.accumulate(place.lengths))[:-1]
    if sum(place.lengths) > xp.iinfo(like.dtype).max:
        raise ValueError(f"x must have at most {xp.iinfo(like.dtype).max} elements along the axis in this mode of JAX")
    return xp.reshape(xp.asarray(before, dtype=like.dtype, device=device(like)), (1, -1, 1))


def _wrapped(xp: Namespace, number: int, dtype: Any) -> Any:
    """Return a power of two modulo 2^bits, as a number of a signed dtype."""
    info = xp.iinfo(dtype)
    return number if number <= info.max else number - 2 ** (info.bits)


def ordered(xp: Namespace, x: Array, descending: bool) -> Array:
    """Return signed integers that are in order exactly when the elements are sorted."""
    integers = ordered_integers(xp, x)
    if dtype_kind(x.dtype) == "uint":
        integers = bits(xp, integers)
        integers = integers ^ xp.iinfo(integers.dtype).min
    if descending:
        integers = 1 - integers if dtype_kind(x.dtype) == "bool" else ~integers
    return integers


def key_width(dtype: Any) -> int:
    """Return the number of bits of keys of a dtype."""
    return 1 if dtype_kind(dtype) == "bool" else dtype_bits(dtype)


def below(xp: Namespace, keys: Array, bounds: Array, descending: bool, *, equal: bool = False) -> Array:
    """Return the number of keys of each sorted row below each wanted integer; with ``equal``, not above it."""
    n = keys.shape[1]
    dtype = index_dtype(xp)
    counts = xp.zeros(tuple(bounds.shape), dtype=dtype, device=device(bounds))
    if n == 0 or 0 in bounds.shape:
        return counts
    flat = xp.reshape(keys, (-1,))
    first = xp.arange(keys.shape[0], dtype=dtype, device=device(bounds))[:, None] * n
    step = 1 << (n.bit_length() - 1)
    while step:
        next_one = counts + step
        index = xp.reshape(first + xp.minimum(next_one, xp.full_like(next_one, n)) - 1, (-1,))
        probe = moved(xp, flat, lambda one, index=index: xp.take(one, index, axis=0))  # type: ignore[misc]
        probe = xp.reshape(ordered(xp, probe, descending), tuple(bounds.shape))
        is_below = probe <= bounds if equal else probe < bounds
        counts = xp.where(is_below & (next_one <= n), next_one, counts)
        step //= 2
    return counts
