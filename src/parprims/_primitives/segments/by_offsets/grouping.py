"""Segments in the canonical grouping by array operations: each segment has the bits of a line of its elements.

The groupings are those of scan/grouping.py and reduce/grouping.py, with places counted from the first element of a
segment. The parts of all segments are gathered side by side, the last part of a segment with further elements behind
it, whose results nobody reads. The number of parts is a bound, n / size + segments, so that it depends on no offset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parprims._core.arrays import Array, Namespace, along, cast, device, dtype_name
from parprims._core.jax_arrays import varying_alike
from parprims._dispatch.dispatch import Inside
from parprims._libraries.steps import in_programs
from parprims._operators.in_place import check_axes, harmless
from parprims._operators.operator import Operator
from parprims._primitives.scan.call import working_dtypes
from parprims._primitives.scan.grouping import Arrays, Scans, adds, block_of, radices_of
from parprims._primitives.scan.public import cumulative_sum
from parprims._primitives.search.public import searchsorted
from parprims._primitives.segments.call import Segmented
from parprims._primitives.sort.call import index_dtype

_AUTO = Inside("auto")


class Segments(NamedTuple):
    """Segments of elements along an axis.

    Parameters
    ----------
    scans : Scans
        The library, the operator, and the axis.
    places : array
        The place of each element in its segment.
    most : int
        The most segments that there are.
    """

    scans: Scans
    places: Array
    most: int

    @property
    def n(self) -> int:
        """The number of elements."""
        return int(self.places.shape[0])

    def arange(self, n: int) -> Array:
        return self.scans.xp.arange(n, dtype=self.places.dtype, device=device(self.places))

    def taken(self, xs: Arrays, index: Array) -> Arrays:
        """Return the elements at indices along the axis."""
        return tuple([self.scans.xp.take(x, index, axis=self.scans.axis) for x in xs])

    def chosen(self, mask: Array, xs: Arrays, ys: Arrays) -> Arrays:
        """Return the elements of xs where a mask along the axis is True, else of ys."""
        xp, _, axis = self.scans
        masks = [xp.reshape(mask, (*(1,) * axis, mask.shape[0], *(1,) * (x.ndim - axis - 1))) for x in xs]
        return tuple([xp.where(*three) for three in zip(masks, xs, ys, strict=True)])

    def parts(self, size: int) -> tuple[Array, Array]:
        """Return the number of the part of each element, and the first element of each part of ``size`` elements.

        Numbers of parts that there are not have n - 1 as their first element.
        """
        xp = self.scans.xp
        number = cumulative_sum(cast(xp, self.places % size == 0, self.places.dtype), method=_AUTO) - 1
        count = min(self.n, self.n // size + self.most)
        firsts = searchsorted(number, self.arange(count), method=_AUTO)
        return number, cast(xp, xp.where(firsts < self.n, firsts, self.n - 1), self.places.dtype)

    def inside(self, firsts: Array, steps: Array) -> Array:
        """Return the elements so many places behind others, or the others where their segments end before."""
        xp = self.scans.xp
        found = firsts + steps
        index = xp.where(found < self.n, found, self.n - 1)
        same = xp.take(self.places, index, axis=0) == xp.take(self.places, firsts, axis=0) + steps
        return xp.where(same & (found < self.n), index, firsts)

    def stepped(self, xs: Arrays, size: int, radix: int, count: int) -> tuple[Array, Arrays]:
        """Scan the last elements of the first ``count`` parts of ``size`` elements, in each part of size radix.

        Return the number of the larger part of each element, and the results, ``count`` of each larger part.
        """
        xp = self.scans.xp
        number, firsts = self.parts(size * radix)
        behind = (self.arange(count) + 1) * size - 1
        pairs = xp.broadcast_arrays(xp.expand_dims(firsts, axis=1), xp.expand_dims(behind, axis=0))
        found = self.taken(xs, self.inside(*[xp.reshape(x, (-1,)) for x in pairs]))
        return number, self.scans.flat(self.scans.steps(found, count), firsts.shape[0] * count)

    def behind(self, before: Arrays, index: Array, absent: Array, xs: Arrays) -> Arrays:
        """Return elements with the state of an index before them combined with them, unless it is absent."""
        xp = self.scans.xp
        states = self.taken(before, xp.where(absent, xp.zeros_like(index), index))
        return self.chosen(absent, xs, self.scans.op(states, xs))

    def nested(self, xs: Arrays, radices: list[int]) -> Arrays:
        """Return the scan within blocks: parts before op (... op (smallest parts before op elements))."""
        first, *rest = radices
        number, found = self.stepped(xs, 1, first, first)
        xs, size = self.taken(found, number * first + self.places % first), first
        for radix in rest:
            if radix > 1:
                number, before = self.stepped(xs, size, radix, radix - 1)
                group = self.places // size % radix
                xs = self.behind(before, number * (radix - 1) + group - 1, group == 0, xs)
            size *= radix
        return xs

    def of_parts(self, size: int) -> tuple[Array, Array, Array, Segments]:
        """Return the number of each element's part, the first and the last elements of parts, and segments of parts.

        The last part of a segment, if it has fewer elements, has its first element as the last.
        """
        xp = self.scans.xp
        number, firsts = self.parts(size)
        spare = self.arange(firsts.shape[0]) - number[-1] - 1  # parts that there are not are one more segment
        places = xp.where(spare < 0, xp.take(self.places, firsts, axis=0) // size, spare)
        last = self.inside(firsts, xp.full_like(firsts, size - 1))
        return number, firsts, last, Segments(self.scans, places, self.most + 1)


def segments_of(xp: Namespace, op: Operator, axis: int, offsets: Array, n: int) -> tuple[Segments, Array]:
    """Return the segments of an axis of n elements, and the number of the segment of each element."""
    places = xp.arange(n, dtype=offsets.dtype, device=device(offsets))
    numbers = searchsorted(offsets[1:-1], places, side="right", method=_AUTO)
    numbers = cast(xp, numbers, offsets.dtype)
    places = places - xp.take(offsets, numbers, axis=0)
    return Segments(Scans(xp, op, axis), xp.where(places < 0, xp.zeros_like(places), places), offsets.shape[0]), numbers


def scanned(segments: Segments, xs: Arrays, starts: Arrays) -> Arrays:
    """Return the inclusive scan of segments. ``starts`` are the initial elements before each element, or none."""
    places, block, n = segments.places, block_of(xs, segments.scans.axis), segments.n
    radices = radices_of(block // 32)
    if adds(segments.scans.op, xs):
        ys = segments.nested(xs, [4, 8, *radices])
    else:
        ys = segments.nested(xs, [32])
        if n > 32:
            number, _, last, of_parts = segments.of_parts(32)
            before = of_parts.nested(segments.taken(ys, last), radices)
            ys = segments.behind(before, number - 1, places // 32 % (block // 32) == 0, ys)
    if n <= block:
        return segments.scans.op(starts, ys) if starts else ys
    states, slots = _states_of_blocks(segments, ys, starts, block)
    before = segments.taken(states, slots)
    first = places < block
    if starts:
        return segments.scans.op(segments.chosen(first, starts, before), ys)
    return segments.chosen(first, ys, segments.scans.op(before, ys))


def _states_of_blocks(segments: Segments, ys: Arrays, starts: Arrays, block: int) -> tuple[Arrays, Array]:
    """Return the states behind whole blocks, and for each element the index of the state before its block.

    In each slot of as many elements at most one whole block begins. States are combined slot after slot.
    """
    (xp, op, _), places, n = segments.scans, segments.places, segments.n
    slots = segments.arange(-(-n // block))
    last = xp.where(slots * block + block < n, slots * block + block, n) - 1
    begins = last - xp.take(places, last, axis=0) % block
    is_here = begins >= slots * block
    begins = xp.where(is_here, begins, last)
    ends = segments.inside(begins, xp.full_like(begins, block - 1))
    is_whole, is_first = is_here & (ends != begins), xp.take(places, begins, axis=0) == 0
    totals = segments.taken(ys, ends)
    begun = op(segments.taken(starts, begins), totals) if starts else totals

    def step(state: Arrays, given: tuple[Arrays, Arrays, Array, Array]) -> tuple[Arrays, Arrays]:
        total, one, whole, first = given
        new = tuple([xp.where(first, *pair) for pair in zip(one, op(state, total), strict=True)])
        state = tuple([xp.where(whole, *pair) for pair in zip(new, state, strict=True)])
        return state, state

    states = _folded(segments.scans, step, (totals, begun, is_whole, is_first))
    index = (segments.arange(n) - places % block - block) // block
    return states, xp.where(index < 0, xp.zeros_like(index), index)


def _folded(scans: Scans, step: Any, given: tuple[Arrays, Arrays, Array, Array]) -> Arrays:
    """Return the states of a loop over elements, which keep the axis with length 1; it begins with the first total."""
    xp, _, axis = scans
    totals, begun, *masks = given
    if in_programs(xp):
        import jax

        def kept(state: Arrays, one: Any) -> tuple[Arrays, Arrays]:
            (total, first), flags = ([tuple([xp.expand_dims(x, axis=axis) for x in xs]) for xs in one[:2]], one[2:])
            state, _ = step(state, (total, first, *flags))
            return state, tuple([xp.squeeze(x, axis=axis) for x in state])

        first_of = varying_alike(tuple([x[along(axis, 0, 1)] for x in totals]))
        rows = [tuple([xp.moveaxis(x, axis, 0) for x in xs]) for xs in (totals, begun)]
        _, states = jax.lax.scan(kept, first_of, (*rows, *masks))
        return tuple([xp.moveaxis(x, 0, axis) for x in states])
    state, found = tuple([x[along(axis, 0, 1)] for x in totals]), []
    for at in range(masks[0].shape[0]):
        here = along(axis, at, at + 1)
        sides = [tuple([x[here] for x in xs]) for xs in (totals, begun)]
        state, _ = step(state, (*sides, *[mask[at, ...] for mask in masks]))
        found.append(state)
    return tuple([xp.concat(list(column), axis=axis) for column in zip(*found, strict=True)])


def reduced(segments: Segments, xs: Arrays) -> Arrays:
    """Return the reductions of the segments that have elements, in order, by the tree; behind them are others."""
    (xp, op, _), places, n = segments.scans, segments.places, segments.n
    if op.commutative:  # of whole 256 elements, rows are neighbours, as reduce/grouping.py says
        here = segments.arange(n)
        first = here - places % 256
        first = xp.where(first < 0, here, first)
        is_whole = segments.inside(first, xp.full_like(first, 255)) != first
        xs = segments.taken(xs, xp.where(is_whole, first + places % 8 * 32 + places % 256 // 8, here))
    for _ in range((n - 1).bit_length()):
        _, firsts, last, of_pairs = segments.of_parts(2)
        earlier = segments.taken(xs, firsts)
        xs = segments.chosen(last != firsts, op(earlier, segments.taken(xs, last)), earlier)
        segments = of_pairs
    return xs


# ---- Calls ------------------------------------------------------------------------------------------------------


def _in_working_dtypes(xp: Namespace, c: Segmented) -> tuple[Operator, tuple[Array, ...], tuple[Array, ...], Array]:
    """Return the operator, the elements and the initial element in the working dtypes, and the offsets."""
    wide = working_dtypes(xp, c.op, c.dtypes)
    xs, starts = (
        tuple([cast(xp, x, to) for x, to in zip(arrays, wide, strict=False)]) for arrays in (c.elements(xp), c.starts)
    )
    op = harmless(xp, c.op, c.operation, xs, axis=c.axis if c.shapes else None)
    check_axes(xp, c.op, c.operation, xs, axis=c.axis)
    return op, xs, starts, cast(xp, c.arrays[c.count], index_dtype(xp))


def scan_of(xp: Namespace, c: Segmented) -> Any:
    """Return the scan of segments by array operations, grouped canonically."""
    op, xs, starts, offsets = _in_working_dtypes(xp, c)
    if c.reverse:
        xs, offsets = tuple([xp.flip(x, axis=c.axis) for x in xs]), c.n - xp.flip(offsets, axis=0)
        starts = tuple([xp.flip(x, axis=c.axis) for x in starts]) if c.own else starts
    segments, numbers = segments_of(xp, op, c.axis, offsets, n=c.n)
    if c.own:
        starts = segments.taken(starts, numbers)
    else:
        pairs = zip(starts, xs, strict=False)
        starts = tuple([xp.broadcast_to(xp.expand_dims(start, axis=c.axis), x.shape) for start, x in pairs])
    ys = scanned(segments, xs, starts)
    if c.exclusive:
        if not starts:
            identity = c.op.identity(*[dtype_name(y.dtype) for y in ys])
            assert identity is not None
            starts = tuple([xp.full_like(y, value) for y, value in zip(ys, identity, strict=True)])
        before = segments.arange(c.n) - 1
        before = segments.taken(ys, xp.where(before < 0, xp.zeros_like(before), before))
        ys = segments.chosen(segments.places == 0, starts, before)
    if c.reverse:
        ys = tuple([xp.flip(y, axis=c.axis) for y in ys])
    ys = tuple([cast(xp, y, to) for y, to in zip(ys, c.dtypes, strict=True)])
    return ys[0] if c.single else ys


def reduction_of(xp: Namespace, c: Segmented) -> tuple[Arrays, Array, Array]:
    """Return the reductions of segments with elements, whether each segment has any, and the place of its result."""
    op, xs, _, offsets = _in_working_dtypes(xp, c)
    segments, _ = segments_of(xp, op, c.axis, offsets, n=c.n)
    ys = tuple([cast(xp, y, to) for y, to in zip(reduced(segments, xs), c.dtypes, strict=True)])
    full = (offsets[:-1] < offsets[1:]) & (offsets[:-1] >= 0) & (offsets[1:] <= c.n)
    return ys, full, cumulative_sum(cast(xp, full, offsets.dtype), method=_AUTO) - 1
