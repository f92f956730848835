"""The driver of sorts over the parts of an axis. Every part keeps its length.

Each part is sorted. The cuts between the parts of the result are found digit by digit, the most significant first:
every part counts its keys below each candidate, and the devices add their counts. Equal keys at a cut go to the earlier
parts first, in the order of the parts. Then the parts exchange their pieces. Every part merges the pieces that arrive,
or sorts them again; both keep the order of equal keys.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

from parprims._core.arrays import Array, Namespace, cast, device, dtype_bits, dtype_kind, move_axis, namespace_of
from parprims._devices.communicator import Exchange, Gather, Place, Reduce, Sorted, Step, Trade
from parprims._libraries.steps import repeated
from parprims._primitives.sort.call import bits, index_dtype, moved, ordered_integers
from parprims._primitives.sort.public import sort, sort_by_key

_CANDIDATES = 2**16
"""The most candidates for all cuts of a part in a round, beside the limits of `digits`.

A round takes the time of its search steps and its message, which hardly depends on the number of candidates.
"""

_LONG = 2**20
"""The length of a part from which few bytes of the search count, and below which few rounds do."""

_UNROLLED = 8
"""The most rounds whose search steps are unrolled in a program of JAX."""

FEW = 16
"""The most parts that gather the counts beside all cuts. More parts trade them: more messages, each P times smaller."""

LONGEST_SHORT = 2**31 - 1
"""The longest axis with indices of 32 bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SortCall:
    """A sort over parts.

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
    rows : int
        The number of rows of a part.
    """

    axis: int
    descending: bool
    method: str
    keyed: bool
    indices: bool
    width: int
    rows: int


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
    arriving : array, optional
        As in `Exchange`.
    """

    rows: list[Array]
    shape: tuple[int, ...]
    cut: Array
    arriving: Array | None = None


def sorts(call: SortCall, lengths: tuple[int, ...]) -> list[Step]:
    """Return the driver of a sort, given the lengths of all parts."""
    descending, indices = call.descending, call.indices
    sizes = digits(call.width, call.rows, lengths)
    units = [2 ** (call.width - behind) for behind in itertools.accumulate(sizes)]
    in_order = functools.partial(_in_order, descending=descending, method=call.method)
    count_below = functools.partial(below, descending=descending, loop=len(sizes) > _UNROLLED)

    def begin(place: Place, arrays: tuple[Array, ...], _: Any) -> Any:
        xp = namespace_of(arrays[0])
        shape = tuple(move_axis(xp, arrays[0], call.axis, -1).shape)
        rows = [_as_rows(xp, one, call.axis) for one in arrays]
        if indices:
            rows.append(_numbers(xp, rows[0], place))
        rows = list(in_order(tuple(rows)))
        lowest = ordered(xp, rows[0][:0, ...], descending)
        cut = xp.full(
            (rows[0].shape[0], place.count - 1),
            xp.iinfo(lowest.dtype).min if call.width > 1 else 0,
            dtype=lowest.dtype,
            device=device(rows[0]),
        )
        return ask(_Saved(rows, shape, cut), 0)

    def ask(saved: _Saved, at: int) -> Any:
        xp, cut = namespace_of(saved.rows[0]), saved.cut
        steps = xp.arange(1, 2 ** sizes[at], dtype=cut.dtype, device=device(cut)) * _wrapped(xp, units[at], cut.dtype)
        candidates = cut[:, :, None] + steps
        keys = xp.reshape(candidates, (cut.shape[0], math.prod(candidates.shape[1:])))
        counts = xp.reshape(count_below(xp, saved.rows[0], keys), tuple(candidates.shape))
        return Reduce((_short(xp, counts, sum(lengths)),)), saved

    def narrow(at: int) -> Step:
        def step(place: Place, saved: _Saved, totals: tuple[Array, ...]) -> Any:
            xp, dtype = namespace_of(saved.rows[0]), saved.cut.dtype
            fits = totals[0] <= _starts(place, saved.cut)[1:-1, None]
            last = xp.sum(xp.astype(fits, dtype), axis=-1, dtype=dtype)
            saved = dataclasses.replace(saved, cut=saved.cut + last * _wrapped(xp, units[at], dtype))
            return ask(saved, at + 1) if at + 1 < len(sizes) else edges(saved)

        return step

    def edges(saved: _Saved) -> Any:
        """Ask all parts for their keys below each edge between pieces, and equal to it."""
        xp, keys = namespace_of(saved.rows[0]), saved.rows[0]
        lower = count_below(xp, keys, saved.cut)
        equal = count_below(xp, keys, saved.cut, equal=True) - lower
        none = xp.zeros((keys.shape[0], 1), dtype=lower.dtype, device=device(lower))
        lower, equal = xp.concat([none, lower, none + keys.shape[1]], axis=1), xp.concat([none, equal, none], axis=1)
        counts = _short(xp, xp.stack([lower, equal], axis=-1), max(lengths))  # of shape (rows, parts + 1, 2)
        if len(lengths) <= FEW:
            return Gather((counts,)), saved
        pairs = xp.stack([counts[:, :-1, :], counts[:, 1:, :]], axis=2)  # the edges of each part's pieces
        return Trade((xp.permute_dims(pairs, (1, 0, 2, 3)),)), saved

    def gathered(place: Place, saved: _Saved, counts: tuple[Array, ...]) -> Any:
        """Exchange the pieces, whose bounds in all parts follow from the counts of all parts."""
        xp = namespace_of(saved.rows[0])
        bounds = _bounds(xp, counts[0], _starts(place, saved.cut))  # of shape (parts, rows, parts + 1)
        own = xp.arange(2, device=device(bounds)) + place.rank
        away = _away(xp, bounds, xp.arange(place.count, device=device(bounds))[:, None, None])
        saved = dataclasses.replace(saved, arriving=xp.take(bounds, own, axis=2))
        return exchange(place, saved, bounds[place.rank, ...], xp.max(away, axis=(0, 2)))

    def divide(place: Place, saved: _Saved, counts: tuple[Array, ...]) -> Any:
        """Tell all parts where their pieces for this part begin."""
        xp = namespace_of(saved.rows[0])
        own = xp.arange(2, device=device(saved.cut)) + place.rank
        arriving = _bounds(xp, counts[0], xp.take(_starts(place, saved.cut), own))
        return Trade((_short(xp, arriving[..., 0], max(lengths)),)), dataclasses.replace(saved, arriving=arriving)

    def divided(place: Place, saved: _Saved, begins: tuple[Array, ...]) -> Any:
        """Ask all parts for the lengths of their longest pieces."""
        xp, n = namespace_of(saved.rows[0]), saved.rows[0].shape[1]
        begin = cast(xp, xp.permute_dims(begins[0], (1, 0)), index_dtype(xp))
        leaving = xp.concat([begin, xp.full_like(begin[:, :1], n)], axis=1)
        longest = xp.max(_away(xp, leaving, place.rank), axis=1)
        return Gather((_short(xp, longest, max(lengths)),)), (saved, leaving)

    def told(place: Place, saved: tuple[_Saved, Array], longest: tuple[Array, ...]) -> Any:
        xp = namespace_of(longest[0])
        return exchange(place, *saved, xp.max(longest[0], axis=0))

    def exchange(place: Place, saved: _Saved, leaving: Array, longest: Array) -> Any:
        rows = [*saved.rows, *(_parts(namespace_of(leaving), saved.rows[0], place) if indices else ())]
        message = Exchange(
            arrays=tuple(rows),
            leaving=leaving,
            arriving=saved.arriving,
            longest=longest,
            lengths=place.lengths,
            sort=in_order,
            descending=descending if call.method in ("auto", "kernel") else None,
        )
        return message, dataclasses.replace(saved, rows=[], arriving=None)

    def end(place: Place, saved: _Saved, rows: tuple[Array, ...]) -> Any:
        xp = namespace_of(rows[0])
        done = list(rows if isinstance(rows, Sorted) else in_order(rows))
        if indices:
            parts = done.pop() if _is_long(place) else None
            done[-1] = _whole(xp, done[-1], parts, place)
        shape = (*saved.shape[:-1], rows[0].shape[-1])
        results = [move_axis(xp, xp.reshape(one, shape), -1, call.axis) for one in done]
        return None, tuple(results if call.keyed else results[-1:])

    share = [gathered] if len(lengths) <= FEW else [divide, divided, told]
    return [begin, *map(narrow, range(len(sizes))), *share, end]


def digits(width: int, rows: int, lengths: tuple[int, ...]) -> list[int]:
    """Return the numbers of bits of the digits of a key. The search has a round for each digit.

    For long parts these are the fewest rounds that send at most a hundredth of the bytes that the exchange of random
    keys sends; if there are none, a round for each bit, which sends the fewest bytes.
    """
    length, others = sum(lengths) // len(lengths), len(lengths) - 1
    exchanged = rows * length * width // 8 * others // len(lengths)
    most = min(max(rows * length, 2**8 * rows * others), _CANDIDATES)
    for count in range(-(-width // 16), width):
        sizes = [width // count + (at < width % count) for at in range(count)]
        cheap = length < _LONG or 100 * search_bytes(sizes, rows, lengths) <= exchanged
        if cheap and rows * others * (2 ** sizes[0] - 1) <= most:
            return sizes
    return [1] * width


def search_bytes(sizes: list[int], rows: int, lengths: tuple[int, ...]) -> int:
    """Return the bytes that a device sends in a search by digits of these numbers of bits."""
    parts = len(lengths)
    total, each = (4 if longest <= LONGEST_SHORT else 8 for longest in (sum(lengths), max(lengths)))
    candidates = rows * (parts - 1) * sum((1 << size) - 1 for size in sizes)
    beside_cuts = 2 * (parts + 1) if parts <= FEW else 6
    return 2 * (parts - 1) * candidates * total // parts + (parts - 1) * rows * beside_cuts * each


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


def _starts(place: Place, like: Array) -> Array:
    """Return the index of the first element of each part, and the length of the axis."""
    xp = namespace_of(like)
    dtype = index_dtype(xp)
    if sum(place.lengths) > xp.iinfo(dtype).max:
        raise ValueError(f"x must have at most {xp.iinfo(dtype).max} elements along the axis in this mode of JAX")
    return xp.asarray([0, *itertools.accumulate(place.lengths)], dtype=dtype, device=device(like))


def _short(xp: Namespace, counts: Array, most: int) -> Array:
    """Return counts, in 32 bits if these suffice for ``most``."""
    return cast(xp, counts, xp.int32) if most <= LONGEST_SHORT else counts


def _bounds(xp: Namespace, counts: Array, starts: Array) -> Array:
    """Return the bounds of pieces in every part, of shape (parts, rows, edges).

    ``counts`` has the keys of each part below each edge, and equal to it; ``starts`` has the elements before each edge.
    """
    lower, equal = (cast(xp, counts[..., at], starts.dtype) for at in (0, 1))
    left = starts - xp.sum(lower, axis=0, dtype=lower.dtype)
    before = xp.cumulative_sum(equal, axis=0, dtype=equal.dtype) - equal
    return lower + xp.minimum(xp.maximum(left - before, xp.zeros_like(equal)), equal)


def _away(xp: Namespace, bounds: Array, rank: Any) -> Array:
    """Return the lengths of pieces, given their bounds; 0 for the piece that stays on the part ``rank``."""
    lengths = bounds[..., 1:] - bounds[..., :-1]
    stays = xp.arange(lengths.shape[-1], device=device(bounds)) == rank
    return xp.where(stays, xp.zeros_like(lengths), lengths)


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


def below(
    xp: Namespace, keys: Array, bounds: Array, descending: bool, *, equal: bool = False, loop: bool = False
) -> Array:
    """Return the number of keys of each sorted row below each wanted integer; with ``equal``, not above it.

    With ``loop`` a program of JAX holds one step of the search. It compiles sooner, and may take longer.
    """
    n = keys.shape[1]
    dtype = index_dtype(xp)
    counts = xp.zeros(tuple(bounds.shape), dtype=dtype, device=device(bounds))
    if n == 0 or 0 in bounds.shape:
        return counts
    flat = xp.reshape(keys, (-1,))
    first = xp.arange(keys.shape[0], dtype=dtype, device=device(bounds))[:, None] * n

    def step(at: Any, counts: Array) -> Array:
        next_one = counts + (1 << (n.bit_length() - 1 - at))
        index = xp.reshape(first + xp.minimum(next_one, xp.full_like(next_one, n)) - 1, (-1,))
        probe = moved(xp, flat, lambda one: xp.take(one, index, axis=0))
        probe = xp.reshape(ordered(xp, probe, descending), tuple(bounds.shape))
        is_below = probe <= bounds if equal else probe < bounds
        return xp.where(is_below & (next_one <= n), next_one, counts)

    if loop:
        return repeated(xp, n.bit_length(), step, counts)
    for at in range(n.bit_length()):
        counts = step(at, counts)
    return counts
