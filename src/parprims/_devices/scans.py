"""Drivers of reductions, scans and recurrences: the total of each part, then a scan of the totals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    along,
    broadcast_shapes,
    cast,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    namespace_of,
)
from parprims._core.elements import flattened, rebuilt
from parprims._core.options import dtype_named
from parprims._core.scalars import as_array, is_scalar
from parprims._devices.communicator import Gather, Place, Quick, Step, all_computed, branch, overwritten, with_nan
from parprims._operators.operator import BUILT_IN, Operator, restructured
from parprims._primitives.recurrence.public import linear_recurrence
from parprims._primitives.reduce.array import as_one_axis, of_nodes
from parprims._primitives.reduce.public import reduce
from parprims._primitives.scan.grouping import LARGEST_BLOCK, Scans, block_elements
from parprims._primitives.scan.public import scan

_EXACT = tuple(
    BUILT_IN[name]
    for name in (
        "add multiply maximum minimum logical_and logical_or bitwise_and bitwise_or bitwise_xor argmax argmin"
    ).split()
)
"""Operators with an exact identity: combined with it, every element stays as it is, infinities and NaN too."""


# ---- Reductions -------------------------------------------------------------------------------------------------


def reduction(
    local: Callable[..., Any],
    op: Any,
    shape: Callable[[tuple[int, ...]], tuple[int, ...]],
    *,
    initial: Any = None,
    dtypes: tuple[str, ...] | None = None,
    can_be_empty: bool,
) -> list[Step]:
    """Return the driver of a reduction.

    Parameters
    ----------
    local : callable
        Takes the local arrays and returns their reduction, with axes of length 1.
    op : str, Operator or callable
        The operator.
    shape : callable
        Takes the shape that ``local`` returns, and returns the shape of the result.
    initial : optional
        The element before all others.
    dtypes : tuple of str, optional
        The names of the dtypes of the result, if the results of parts have wider dtypes.
    can_be_empty : bool
        Whether the operator has an identity, so that a part may hold no elements.
    """

    def begin(place: Place, arrays: tuple[Array, ...], _: Any) -> Any:
        if not can_be_empty and isinstance(place.rank, int) and not place.lengths[place.rank]:
            arrays = tuple(_one_at_least(x) for x in arrays)  # the state of an empty part, which nobody reads
        leaves, structure = flattened(local(*arrays))
        return Gather(leaves), structure

    def end(place: Place, structure: Any, states: tuple[Array, ...]) -> Any:
        states = tuple(_reshaped(state, (state.shape[0], *shape(tuple(state.shape[1:])))) for state in states)
        if not can_be_empty:
            states = _of_elements(place, states)
        state_dtypes = tuple(state.dtype for state in states)
        result = reduce(rebuilt(structure, states), op, axis=0, initial=initial, dtype=state_dtypes)
        if dtypes is None:
            return None, result
        leaves, structure = flattened(result)
        xp = namespace_of(leaves[0])
        pairs = zip(leaves, dtypes, strict=True)
        return None, rebuilt(structure, tuple(cast(xp, state, dtype_named(xp, to)) for state, to in pairs))

    return [begin, end]


def _one_at_least(x: Array) -> Array:
    shape = tuple(max(length, 1) for length in x.shape)
    return namespace_of(x).ones(shape, dtype=x.dtype, device=device(x))


def _reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    return x if tuple(x.shape) == shape else namespace_of(x).reshape(x, shape)


def _of_elements(place: Place, states: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the states of the parts that hold elements."""
    full = [index for index, length in enumerate(place.lengths) if length]
    if not isinstance(place.rank, int) or len(full) == place.count:
        return states
    if not full:
        return tuple(one[:0, ...] for one in states)
    return tuple(namespace_of(one).stack([one[index, ...] for index in full]) for one in states)


# ---- Scans ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanCall:
    """A scan over parts.

    Parameters
    ----------
    operator : Operator
        The operator.
    axis, exclusive, reverse
        As in `scan`.
    initial : tuple or None
        The element that all results begin with, an entry for each component; arrays are replaced by marks, see
        `arrays_of`.
    dtypes : tuple of dtype or None
        The dtypes of the components that the caller requested.
    single : bool
        Whether an element is one array, not a tuple.
    """

    operator: Operator
    axis: int
    exclusive: bool
    reverse: bool
    initial: tuple[Any, ...] | None
    dtypes: tuple[Any, ...] | None
    single: bool


@dataclasses.dataclass(frozen=True)
class _Given:
    """The arrays of a part of a scan, and the dtypes of its operations.

    Parameters
    ----------
    xs : tuple of array
        The elements, in the dtypes that the caller requested.
    start : tuple or None
        The element before all others.
    dtypes : tuple of dtype or None
        The dtypes in which the part is scanned; None for those of ``xs``.
    wide : tuple of dtype or None
        These dtypes if results are then rounded to 16 bits.
    """

    xs: tuple[Array, ...]
    start: tuple[Any, ...] | None
    dtypes: tuple[Any, ...] | None
    wide: tuple[Any, ...] | None

    @classmethod
    def of(cls, call: ScanCall, arrays: tuple[Array, ...]) -> _Given:
        """Return the record of the local arrays of a call: the elements, then arrays of the initial element."""
        marks = sum(isinstance(one, _Taken) for one in call.initial or ())
        xs, starts = arrays[: len(arrays) - marks], arrays[len(arrays) - marks :]
        xp = namespace_of(xs[0])
        dtypes, wide = call.dtypes, None
        if dtypes is not None:
            xs = tuple(cast(xp, x, dtype) for x, dtype in zip(xs, dtypes * (len(xs) // len(dtypes)), strict=True))
        if any(dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS for x in xs):
            dtypes = wide = tuple(compute_dtype(xp, x.dtype) for x in xs)
        return cls(xs, with_arrays(call.initial, starts), dtypes, wide)

    def rounded(self, result: Any) -> Any:
        """Return the result of the part in the dtypes of the elements."""
        if self.wide is None:
            return result
        ys = result if isinstance(result, tuple) else (result,)
        xp = namespace_of(ys[0])
        ys = tuple(cast(xp, y, x.dtype) for x, y in zip(self.xs, ys, strict=True))
        return ys if isinstance(result, tuple) else ys[0]


def scans(call: ScanCall, local: Callable[..., Any]) -> list[Step]:
    """Return the driver of a scan: the total of each part, then a scan of each part from the earlier totals.

    ``local`` scans a part, given its arrays, the element before them or None, and the dtypes.
    """
    operator, axis, single = call.operator, call.axis, call.single

    def begin(_: Place, arrays: tuple[Array, ...], __: Any) -> Any:
        given = _Given.of(call, arrays)
        xs = given.xs
        xp = namespace_of(xs[0])
        names = tuple(dtype_name(x.dtype) for x in xs)
        if not xs[0].shape[axis] and operator.identity(*names) is None:
            states = tuple(xp.zeros(_without(x.shape, axis), dtype=x.dtype, device=device(x)) for x in xs)
        else:
            op = reversed_operator(operator) if call.reverse else operator
            total = reduce(xs[0] if single else xs, op, axis=axis, dtype=given.dtypes)
            states = (total,) if single else total
        return Gather(states, call.reverse), given

    def end(place: Place, given: _Given, states: tuple[Array, ...]) -> Any:
        start = given.start
        if start is None and (call.exclusive or operator in _EXACT):
            start = _identity(operator, states)
        starts = None if start is None else _as_arrays(start, states, 0)
        totals = Totals(states=states, starts=starts, single=single)

        def part(start: tuple[Array, ...] | None) -> Any:
            return local(given.xs, start, given.dtypes)

        return None, given.rounded(continued(place, totals, operator, reverse=call.reverse, part=part))

    return [begin, end]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """The totals of all parts.

    Parameters
    ----------
    states : tuple of array
        The components of the totals, with the parts along the first axis.
    starts : tuple of array, optional
        The components of the element before all parts.
    single : bool
        Whether an element is one array, not a tuple.
    """

    states: tuple[Array, ...]
    starts: tuple[Array, ...] | None
    single: bool


def continued(
    place: Place, totals: Totals, op: Any, *, reverse: bool, part: Callable[[tuple[Array, ...] | None], Any]
) -> Any:
    """Return the result of a part, given the totals of all parts.

    ``part`` computes it from the element before the part, or from None if there is no such element.
    """
    states, starts, single = totals.states, totals.starts, totals.single
    xp = namespace_of(states[0])
    full = [index for index, length in enumerate(place.lengths) if length] or [0]
    position = place.rank
    if len(full) < place.count:  # empty parts have no total, and their results need none
        states = tuple(xp.stack([state[index, ...] for index in full]) for state in states)
        position = sum(index < place.rank for index in full)
    if starts is not None:
        states = _begun(states, starts, 0, reverse=reverse)
    count = states[0].shape[0]
    if starts is None and place.count == 1:
        return part(None)
    dtypes = tuple(one.dtype for one in states)
    ys = scan(states[0] if single else states, op, axis=0, reverse=reverse, dtype=dtypes)
    ys = (ys,) if single else ys

    if starts is not None:
        index = (position + 1 if reverse else position) % count
        return part(tuple(y[index, ...] for y in ys))
    index = (position + 1 if reverse else position - 1) % count
    carries = tuple(y[index, ...] for y in ys)
    return branch(position == (count - 1 if reverse else 0), lambda: part(None), lambda: part(carries))


def _as_arrays(start: tuple[Any, ...], states: tuple[Array, ...], axis: int) -> tuple[Array, ...]:
    """Return an initial element as arrays like states without their axis."""
    xp = namespace_of(states[0])
    return tuple(
        as_array("initial", value, xp, state.dtype, device=device(state), shape=_without(tuple(state.shape), axis))
        for value, state in zip(start, states, strict=True)
    )


def _begun(states: tuple[Array, ...], starts: tuple[Array, ...], axis: int, *, reverse: bool) -> tuple[Array, ...]:
    """Return states along an axis with the initial element before them, or behind them if ``reverse``."""
    xp = namespace_of(states[0])
    ends = [xp.expand_dims(one, axis=axis) for one in starts]
    pairs = zip(ends, states, strict=True)
    return tuple(xp.concat([x, end] if reverse else [end, x], axis=axis) for end, x in pairs)


def reversed_operator(op: Operator) -> Operator:
    """Return the operator that takes its arguments in reverse order."""
    if op.commutative:
        return op
    combine = op.combine
    return Operator(
        lambda earlier, later: combine(later, earlier),
        identity=op.identity,
        name=op.name,
        components=op.components,
    )


_REVERSED_AFFINE = reversed_operator(BUILT_IN["affine"])


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _identity(op: Operator, states: tuple[Array, ...]) -> tuple[Any, ...] | None:
    """Return the identity; for sums of floats -0, which keeps the sign of zeros."""
    if op is BUILT_IN["add"] and dtype_kind(states[0].dtype) == "float":
        return (-0.0,)
    return op.identity(*(dtype_name(one.dtype) for one in states))


# ---- Canonical grouping -----------------------------------------------------------------------------------------
#
# The grouping of one device, of reduce/grouping.py and scan/grouping.py: parts are cut into blocks, and each device
# combines the totals of all blocks in the order of one device. So the number of devices does not show in the bits.


def blocks_of(lengths: tuple[int, ...], scale: int = 1) -> int:
    """Return the largest power of two that divides the place of the first element of every part.

    A step along the split axis passes ``scale`` elements. Raises ValueError if it is less than `CANONICAL_BLOCK`.
    """
    common = math.gcd(*(sum(lengths[:rank]) * scale for rank in range(1, len(lengths))))
    size = common & -common if common else 1 << 62
    if size < LARGEST_BLOCK:
        raise ValueError(
            f"method must not be 'canonical' for parts of {' and '.join(map(str, sorted({*lengths})))} elements along "
            f"the axis: cut parts at multiples of {LARGEST_BLOCK} elements"
        )
    return size


def canonical_reduction(
    local: Callable[..., Any],
    op: Operator,
    axes: tuple[int, ...],
    *,
    keepdims: bool,
    initial: Any = None,
    dtypes: tuple[str, ...] | None = None,
) -> list[Step]:
    """Return the driver of a reduction: the total of each block, then the tree of the totals of all parts.

    ``local`` takes arrays of one shape and an axis, and returns their reduction along it. ``axes`` are counted from the
    front, in order; the first may be split. The other parameters are those of `reduction`.
    """

    def begin(place: Place, arrays: tuple[Array, ...], _: Any) -> Any:
        xp = namespace_of(arrays[0])
        shape = broadcast_shapes(*(tuple(x.shape) for x in arrays))
        arrays, at = as_one_axis(xp, tuple(xp.broadcast_to(x, shape) for x in arrays), axes)
        scale, n = math.prod(shape[axis] for axis in axes[1:]), arrays[0].shape[at]
        size = blocks_of(place.lengths, scale)
        whole = n // size * size
        found = []
        if whole:
            lengths = whole // size, size
            split = (xp.reshape(x[along(at, 0, whole)], _replaced(x.shape, at, lengths)) for x in arrays)
            found.append(flattened(local(tuple(split), at + 1)))
        if whole < n or not n:
            rest, structure = flattened(local(tuple(x[along(at, whole, n)] for x in arrays), at))
            found.append((tuple(xp.expand_dims(x, axis=at) for x in rest), structure))
        totals = (xp.concat(list(xs), axis=at) for xs in zip(*(leaves for leaves, _ in found), strict=True))
        counts = [-(-length * scale // size) for length in place.lengths]
        most = max(*counts, 1)
        shape = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
        saved = found[0][1], at, counts if any(counts) else [1], result_shape(axes, keepdims)(shape)
        return Gather(tuple(_lengthened(xp, x, at, most) for x in totals)), saved

    def end(_: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        structure, at, counts, shape = saved
        xp = namespace_of(states[0])
        states = _of_blocks(xp, _side_by_side(xp, states, at), at, counts)
        total = rebuilt(structure, of_nodes(states, restructured(op, structure), at))
        result = reduce(total, op, axis=at, initial=initial, dtype=tuple(x.dtype for x in states), method="array")
        leaves, structure = flattened(result)
        if dtypes is not None:
            leaves = tuple(cast(xp, x, dtype_named(xp, to)) for x, to in zip(leaves, dtypes, strict=True))
        return None, rebuilt(structure, tuple(_reshaped(x, shape) for x in leaves))

    return [begin, end]


def canonical_scans(call: ScanCall, local: Callable[..., Any]) -> list[Step]:
    """Return the driver of a scan: the last state of each block, then each part from the state before it.

    The parameters are those of `scans`.
    """
    op, axis, single, reverse = call.operator, call.axis, call.single, call.reverse

    def begin(place: Place, arrays: tuple[Array, ...], _: Any) -> Any:
        given = _Given.of(call, arrays)
        xp, xs = namespace_of(given.xs[0]), given.xs
        blocks_of(place.lengths[::-1] if reverse else place.lengths)
        block = block_elements(sum(dtype_bits(x.dtype) if given.wide is None else 32 for x in xs) // 8)
        n, most = xs[0].shape[axis], max(*place.lengths, block) // block
        count = n // block
        first, end = (n - count * block, 0) if reverse else (0, block - 1)
        pieces = (x[along(axis, first, first + count * block)] for x in xs)
        blocks = tuple(xp.reshape(x, _replaced(x.shape, axis, (count, block))) for x in pieces)
        x: Any = blocks[0] if single else blocks
        ys = scan(x, op, axis=axis + 1, reverse=reverse, dtype=given.dtypes, method="canonical")
        totals = (y[along(axis + 1, end, end + 1)] for y in ((ys,) if single else ys))
        totals = (_lengthened(xp, xp.squeeze(y, axis=axis + 1), axis, most, at_front=reverse) for y in totals)
        return Gather(tuple(totals), reverse), (given, [length // block for length in place.lengths])

    def end(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        given, counts = saved
        xp = namespace_of(states[0])
        states = _of_blocks(xp, _side_by_side(xp, states, axis), axis, counts, at_end=reverse)
        start = given.start
        if start is None and op in _EXACT and not call.exclusive:
            start = _identity(op, states)
        if start is not None:
            states = _begun(states, _as_arrays(start, states, axis), axis, reverse=reverse)
        count = states[0].shape[axis]
        if start is None and not count:
            return None, given.rounded(local(given.xs, None, given.dtypes))
        if isinstance(place.rank, int):
            passed = sum(counts[place.rank + 1 :] if reverse else counts[: place.rank])
        else:
            passed = (place.count - 1 - place.rank if reverse else place.rank) * counts[0]
        passed = passed - (start is None)
        if reverse:
            states = tuple(xp.flip(x, axis=axis) for x in states)
        chain = Scans(xp, op, axis)
        before = chain.flat(chain.steps(states, count), count)
        at = xp.reshape(xp.asarray(passed % count, device=device(states[0])), (1,))
        carries = tuple(xp.squeeze(xp.take(x, at, axis=axis), axis=axis) for x in before)

        def part(start: tuple[Array, ...] | None) -> Any:
            return given.rounded(local(given.xs, start, given.dtypes))

        if start is not None:
            return None, part(carries)
        return None, branch(passed < 0, lambda: part(None), lambda: part(carries))

    return [begin, end]


def _replaced(shape: tuple[int, ...], axis: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with axes of the given lengths in place of an axis."""
    return (*shape[:axis], *lengths, *shape[axis + 1 :])


def _lengthened(xp: Any, x: Array, axis: int, n: int, *, at_front: bool = False) -> Array:
    """Return an array with n elements along an axis; those that it lacks are not read."""
    missing = n - x.shape[axis]
    if not missing:
        return x
    more = xp.ones(_replaced(x.shape, axis, (missing,)), dtype=x.dtype, device=device(x))
    return xp.concat([more, x] if at_front else [x, more], axis=axis)


def _of_blocks(
    xp: Any, states: tuple[Array, ...], axis: int, counts: list[int], *, at_end: bool = False
) -> tuple[Array, ...]:
    """Return the states of the blocks that there are: so many of each part, at the begin or end of its stretch."""
    most = states[0].shape[axis] // len(counts)
    full = [
        rank * most + i + (most - count if at_end else 0) for rank, count in enumerate(counts) for i in range(count)
    ]
    if len(full) == states[0].shape[axis]:
        return states
    return tuple(xp.take(x, xp.asarray(full, dtype=xp.int32, device=device(x)), axis=axis) for x in states)


def _side_by_side(xp: Any, states: tuple[Array, ...], axis: int) -> tuple[Array, ...]:
    """Return the gathered states of all parts, which the first axis counts, one after another along an axis."""
    moved = (xp.moveaxis(x, 0, axis) for x in states)
    return tuple(xp.reshape(x, (*x.shape[:axis], -1, *x.shape[axis + 2 :])) for x in moved)


# ---- Recurrences ------------------------------------------------------------------------------------------------


def recurrence(*, axis: int, reverse: bool, initial: tuple[Any, ...] | None, dtype: Any, method: str) -> list[Step]:
    """Return the driver of a linear recurrence: the affine map of each part, then each part from the value before it.

    ``dtype`` is the dtype of the solution. The other options are those of `linear_recurrence`.
    """

    def begin(_: Place, arrays: tuple[Array, ...], __: Any) -> Any:
        a, b, *starts = arrays
        xp = namespace_of(b)
        wide = compute_dtype(xp, dtype)
        a, b = cast(xp, a, wide), cast(xp, b, wide)
        shape = broadcast_shapes(tuple(a.shape), tuple(b.shape))
        maps = tuple(xp.broadcast_to(one, shape) for one in (a, b))
        total = reduce(maps, _REVERSED_AFFINE if reverse else "affine", axis=axis, dtype=(wide, wide))
        start = with_arrays(initial, tuple(starts))
        return Gather(total, reverse), (a, b, None if start is None else start[0], _without(shape, axis))

    def end(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        a, b, start, shape = saved
        xp = namespace_of(b)
        starts = None
        if start is not None:
            start = as_array("initial", start, xp, b.dtype, device=device(b), shape=shape)
            starts = (xp.ones_like(start), start)

        def part(start: tuple[Array, ...] | None) -> Array:
            initial = None if start is None else start[1]
            return linear_recurrence(a, b, axis=axis, initial=initial, reverse=reverse, method=method)

        totals = Totals(states=states, starts=starts, single=False)
        x = continued(place, totals, "affine", reverse=reverse, part=part)
        return None, cast(xp, x, dtype)

    return [begin, end]


def decaying(*, axis: int, reverse: bool, initial: tuple[Any, ...] | None, dtype: Any, method: str, head: int) -> Quick:
    """Return the quick way of a recurrence with decaying coefficients.

    The trial multiplies the first ``head`` coefficients of each part. If the products are so small that any number
    times them underflows, each part is solved with initial value 0, and its head is then solved again from the last
    value of the part before.
    """
    smallest = {32: -(149 + 128 + 1), 64: -(1074 + 1024 + 1)}

    def window(x: Array) -> Any:
        n = x.shape[axis]
        return along(axis, max(n - head, 0), n) if reverse else along(axis, 0, head)

    def begin(_: Place, arrays: tuple[Array, ...], __: Any) -> Any:
        a, b, *starts = arrays
        xp = namespace_of(b)
        wide = compute_dtype(xp, dtype)
        a, b = cast(xp, a, wide), cast(xp, b, wide)
        size = xp.abs(a)
        if a.ndim == b.ndim and a.shape[axis] > 1:
            total = xp.sum(xp.log2(size[window(a)]), axis=axis)
        else:
            total = xp.log2(size) * head
        return Gather((xp.all(total < smallest[dtype_bits(size.dtype)]),)), (a, b, *starts)

    def judged(_: Place, arrays: Any, states: tuple[Array, ...]) -> Any:
        return None, (namespace_of(states[0]).all(states[0]), arrays)

    def solved(_: Place, arrays: tuple[Array, ...], __: Any) -> Any:
        a, b, *starts = arrays
        y = linear_recurrence(a, b, axis=axis, reverse=reverse, method=method)
        last = y[along(axis, 0, 1) if reverse else along(axis, y.shape[axis] - 1, None)]
        xp = namespace_of(y)
        return Gather((xp.squeeze(last, axis=axis),)), (a, b, y, tuple(starts))

    def end(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        a, b, y, starts = saved
        xp, (lasts,) = namespace_of(y), states
        order = xp.arange(place.count, device=device(lasts))
        before = order > place.rank if reverse else order < place.rank
        before = xp.reshape(before, (-1, *(1,) * (lasts.ndim - 1)))
        is_lost = xp.any(before & ~xp.isfinite(lasts), axis=0)
        carry = lasts[(place.rank + (1 if reverse else -1)) % place.count, ...]
        initial_entries = with_arrays(initial, starts)
        is_first = place.rank == (place.count - 1 if reverse else 0)
        if initial_entries is not None:
            start = as_array("initial", initial_entries[0], xp, y.dtype, device=device(y), shape=tuple(carry.shape))
            carry = start if is_first is True else carry if is_first is False else xp.where(is_first, start, carry)

        varies = a.ndim == b.ndim and a.shape[axis] > 1
        coefficients, rhs = a[window(a)] if varies else a, b[window(b)] if b.shape[axis] > 1 else b
        z = linear_recurrence(coefficients, rhs, axis=axis, initial=carry, reverse=reverse, method=method)
        if initial_entries is None and is_first is not False:
            z = y[window(y)] if is_first is True else xp.where(is_first, y[window(y)], z)
        y, z = all_computed(y, z)
        first = y.shape[axis] - z.shape[axis] if reverse else 0
        result = with_nan(overwritten(y, z, first, axis), xp.expand_dims(is_lost, axis=axis))
        return None, cast(xp, result, dtype)

    return [begin, judged], [solved, end]


def result_shape(axes: tuple[int, ...], keepdims: bool) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return a function that removes the reduced axes, of length 1, from a shape, unless ``keepdims``."""

    def shape(reduced: tuple[int, ...]) -> tuple[int, ...]:
        return reduced if keepdims else tuple(length for axis, length in enumerate(reduced) if axis not in axes)

    return shape


# ---- Initial elements -------------------------------------------------------------------------------------------


class _Taken:
    """A mark in place of an array that is an input of the work."""


_TAKEN = _Taken()


def arrays_of(initial: Any) -> tuple[tuple[Array, ...], tuple[Any, ...] | None]:
    """Return the arrays of an initial element, and its entries with a mark in place of each array."""
    if initial is None:
        return (), None
    entries = initial if isinstance(initial, tuple) else (initial,)
    arrays = tuple(one for one in entries if not is_scalar(one))
    return arrays, tuple(one if is_scalar(one) else _TAKEN for one in entries)


def with_arrays(entries: tuple[Any, ...] | None, arrays: tuple[Array, ...]) -> tuple[Any, ...] | None:
    """Return the entries of an element with arrays in place of their marks."""
    left = iter(arrays)
    return None if entries is None else tuple(next(left) if isinstance(one, _Taken) else one for one in entries)
