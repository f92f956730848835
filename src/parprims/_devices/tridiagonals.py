"""Drivers for tridiagonal systems whose unknowns are split: a part becomes two equations between unknowns at its ends.

Elimination with row exchanges leaves two equations between the pairs of unknowns at both ends of a part, as for every
segment of the tree in `tridiagonal.array`. They exist for singular parts too, if the whole system is regular. All
devices gather all of these equations and solve them; each then finds its unknowns from both ends.
"""

from __future__ import annotations

import math
from typing import Any

from parprims._core.arrays import Array, Namespace, broadcast_shapes, device, dtype_name, move_axis, namespace_of
from parprims._devices.communicator import Gather, Place, Quick, Step, all_computed, overwritten
from parprims._primitives.tridiagonal.array import Rows, Tree, closed
from parprims._primitives.tridiagonal.call import System
from parprims._primitives.tridiagonal.public import solve_tridiagonal
from parprims._primitives.tridiagonal.residual import backward_error, residual, safe_backward_error

_SIXTEEN = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least number that rounds to infinity, by dtype."""

_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def solution(*, axis: int, periodic: bool, transpose: bool) -> list[Step]:
    """Return the driver that solves (lower, diag, upper, rhs) and refines the solution once, as on one device.

    ``axis`` counts from the end.
    """

    def begin(_: Place, system: Any, __: Any) -> Any:
        lower, diag, upper, rhs = system
        xp = namespace_of(diag)
        rows = Rows(xp, lower, diag, upper) if diag.shape[-1] else None
        tops = _neutral(xp, diag) if rows is None else rows.tree.top
        pair, known = _up(xp, rows, rhs)
        return Gather((xp.concat(tops), xp.stack(pair))), (lower, diag, upper, rhs, rows, known)

    def solved(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        lower, diag, upper, rhs, rows, known = saved
        xp = namespace_of(diag)
        seams = _Seams(xp, states[0])
        ends = seams.pairs_beside(place, states[1])
        x = _down(rows, ends, known, rhs)
        system = _extended(xp, lower, diag, upper)
        extended = _with_ends(xp, x, ends)
        error = backward_error(xp, system(rhs, extended), extended)
        rest = residual(xp, system(rhs, extended), extended)[..., 1:-1]
        pair, known = _up(xp, rows, rest)
        return Gather((xp.stack(pair), error)), (system, rhs, rows, known, seams, extended)

    def refined(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        system, rhs, rows, known, seams, extended = saved
        xp = namespace_of(rhs)
        ends = seams.pairs_beside(place, states[0])
        better = extended + _with_ends(xp, _down(rows, ends, known, rhs), ends)
        error = backward_error(xp, system(rhs, better), better)
        return Gather((error,)), (extended, better, xp.max(states[1], axis=0))

    def chosen(_: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        first_solution, better, before = saved
        xp = namespace_of(first_solution)
        improved = xp.max(states[0], axis=0) < before
        x = xp.where(improved[..., None], better, first_solution)[..., 1:-1]
        return Gather((xp.all(xp.isfinite(x), axis=-1),)), x

    def result(_: Place, x: Array, states: tuple[Array, ...]) -> Any:
        xp = namespace_of(x)
        x = xp.where(xp.all(states[0], axis=0)[..., None], x, xp.full_like(x, math.nan))
        return None, _back(xp, x, axis)

    return [*rows_of(axis, periodic, transpose, begin), solved, refined, chosen, result]


def by_blocks(*, axis: int, periodic: bool, transpose: bool) -> Quick:
    """Return the quick way: each part is solved alone for three right-hand sides, by any method.

    The right-hand sides are the part's own, and the coefficients of the unknowns before and after the part. The trial
    computes the whole solution, and succeeds if its backward error is small, which it is unless a part is nearly
    singular.
    """

    def begin(_: Place, system: Any, __: Any) -> Any:
        lower, diag, upper, rhs = system
        xp = namespace_of(diag)
        zeros = xp.zeros_like(diag[..., 1:])
        before, after = xp.concat([lower[..., :1], zeros], axis=-1), xp.concat([zeros, upper[..., -1:]], axis=-1)
        stacked = (lower[None, ...], diag[None, ...], upper[None, ...])
        solutions = solve_tridiagonal(*stacked, xp.stack([rhs, before, after]))
        y, v, w = (solutions[index, ...] for index in range(3))
        ones, zero = xp.ones_like(y[..., :1]), xp.zeros_like(y[..., :1])
        first = xp.stack([v[..., :1], ones, zero, w[..., :1]])
        last = xp.stack([v[..., -1:], zero, ones, w[..., -1:]])
        pair = xp.stack([y[..., :1], y[..., -1:]])
        return Gather((xp.concat([first, last]), pair)), (*system, y, v, w)

    def solved(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        lower, diag, upper, rhs, y, v, w = saved
        xp = namespace_of(diag)
        ends = _Seams(xp, states[0]).pairs_beside(place, states[1])
        x = y - v * ends[0][0] - w * ends[1][1]
        extended = _with_ends(xp, x, ends)
        return Gather((_largest(backward_error(xp, _extended(xp, lower, diag, upper)(rhs, extended), extended)),)), x

    def judged(_: Place, x: Array, states: tuple[Array, ...]) -> Any:
        xp = namespace_of(x)
        return None, (_is_small(xp, states[0]), _back(xp, x, axis))

    return [*rows_of(axis, periodic, transpose, begin), solved, judged], None


def by_ends(*, axis: int, periodic: bool, transpose: bool, head: int) -> Quick:
    """Return the quick way for parts that depend on their neighbours only in ``head`` unknowns at each end.

    Each part is solved alone for its own right-hand side. For the coefficients of the unknowns before and after the
    part, only the first and the last ``head`` equations are solved. The trial computes the whole solution, and succeeds
    if the backward error is small in these equations and the next ones, as with dominant diagonals.
    """

    def begin(place: Place, system: Any, __: Any) -> Any:
        xp = namespace_of(system[1])
        lower, diag, upper, rhs = system
        y = solve_tridiagonal(lower, diag, upper, rhs)  # reads neither lower[0] nor upper[-1]
        # At each end: the equations of the changed unknowns and one more equation, with their unknowns.
        first = [x[..., : head + 1] for x in system]
        last = [x[..., -head - 1 :] for x in system]
        y_first, y_last = y[..., : head + 2], y[..., -head - 2 :]
        if not periodic:
            first[0], last[2] = _ends_cleared(xp, place, first[0], last[2])
        zeros = xp.zeros_like(first[1][..., 1:head])
        before, after = (
            xp.concat([first[0][..., :1], zeros], axis=-1),
            xp.concat([zeros, last[2][..., -1:]], axis=-1),
        )
        lower, diag, upper = (xp.stack([x[..., :head], x_[..., 1:]]) for x, x_ in zip(first[:3], last[:3], strict=True))
        solutions = solve_tridiagonal(lower, diag, upper, xp.stack([before, after]))
        v, w = solutions[0, ...], solutions[1, ...]
        one, zero = xp.ones_like(v[..., :1]), xp.zeros_like(v[..., :1])
        states = xp.stack([v[..., :1], one, zero, zero, zero, zero, one, w[..., -1:]])
        pair = xp.stack([y_first[..., :1], y_last[..., -1:]])
        return Gather((states, pair)), (y, (first, y_first, v), (last, y_last, w))

    def solved(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        y, (first, y_first, v), (last, y_last, w) = saved
        xp = namespace_of(y)
        (before, _), (_, after) = _Seams(xp, states[0]).pairs_beside(place, states[1])
        x_first, x_last = y_first[..., :head] - v * before, y_last[..., 2:] - w * after

        def error(rows: list[Array], *unknowns: Array) -> Array:
            x = xp.concat(unknowns, axis=-1)
            return _largest(backward_error(xp, _extended(xp, *rows[:3])(rows[3], x), x))

        largest = xp.maximum(
            error(first, before, x_first, y_first[..., head:]), error(last, y_last[..., :2], x_last, after)
        )
        y, x_first, x_last, largest = all_computed(y, x_first, x_last, largest)
        x = overwritten(overwritten(y, x_first, 0, -1), x_last, y.shape[-1] - head, -1)
        return Gather((largest,)), x

    def judged(_: Place, x: Array, states: tuple[Array, ...]) -> Any:
        xp = namespace_of(x)
        return None, (_is_small(xp, states[0]), _back(xp, x, axis))

    return [*rows_of(axis, True, transpose, begin), solved, judged], None


def rows_of(axis: int, periodic: bool, transpose: bool, then: Step) -> list[Step]:
    """Return the steps that give the local rows to the step ``then``, transposed first if requested.

    The outer coefficients of the first and last row become zero, unless the system is periodic. Arrays after (lower,
    diag, upper, rhs) are passed on, with the unknowns along their last axis.
    """

    def cleared(place: Place, system: tuple[Array, ...], _: Any) -> Any:
        lower, diag, upper, *others = system
        if not periodic:
            lower, upper = _ends_cleared(namespace_of(diag), place, lower, upper)
        return then(place, (lower, diag, upper, *others), None)

    def begin(place: Place, arrays: tuple[Array, ...], _: Any) -> Any:
        xp = namespace_of(arrays[3])
        system = (*_own(arrays[:4], axis), *(move_axis(xp, x, axis, -1) for x in arrays[4:]))
        if not transpose:
            return cleared(place, system, None)
        return Gather((_edge(system[0], 0), _edge(system[2], -1))), system

    def transposed(place: Place, system: Any, edges: tuple[Array, ...]) -> Any:
        lower, diag, upper, *others = system
        if diag.shape[-1]:
            xp = namespace_of(diag)
            before, after = _neighbour(place, edges[1], -1), _neighbour(place, edges[0], 1)
            lower, upper = (
                xp.concat([before, upper[..., :-1]], axis=-1),
                xp.concat([lower[..., 1:], after], axis=-1),
            )
        return cleared(place, (lower, diag, upper, *others), None)

    return [begin, transposed] if transpose else [begin]


def product(*, axis: int, periodic: bool, transpose: bool) -> list[Step]:
    """Return the driver of the product A x, given (lower, diag, upper, x)."""

    def begin(_: Place, system: Any, __: Any) -> Any:
        return Gather((_edge(system[3], -1), _edge(system[3], 0))), system

    def end(place: Place, system: Any, edges: tuple[Array, ...]) -> Any:
        lower, diag, upper, x = system
        xp = namespace_of(x)
        if not x.shape[-1]:
            return None, _back(xp, x, axis)
        before, after = _neighbour(place, edges[0], -1), _neighbour(place, edges[1], 1)
        result = (
            lower * xp.concat([before, x[..., :-1]], axis=-1)
            + diag * x
            + upper * xp.concat([x[..., 1:], after], axis=-1)
        )
        return None, _back(xp, result, axis)

    return [*rows_of(axis, periodic, transpose, begin), end]


def finish(
    *, axis: int, periodic: bool, transpose: bool, dtype: Any, return_residual: bool, return_status: bool
) -> list[Step]:
    """Return the driver from (lower, diag, upper, rhs, x) to the results: x in its dtype, and its errors."""

    def begin(_: Place, system: Any, __: Any) -> Any:
        x = system[4]
        xp = namespace_of(x)
        within = xp.isfinite(x)
        if dtype_name(dtype) in _SIXTEEN:
            within = xp.abs(x) < _SIXTEEN[dtype_name(dtype)]
        return Gather((xp.all(within, axis=-1),)), system

    def edges(_: Place, system: Any, states: tuple[Array, ...]) -> Any:
        *rows, x = system
        xp = namespace_of(x)
        x = xp.where(xp.all(states[0], axis=0)[..., None], x, xp.full_like(x, math.nan))
        result = xp.astype(x, dtype, copy=False)
        x = xp.astype(result, x.dtype, copy=False)
        return Gather((_edge(x, -1), _edge(x, 0))), (*rows, result, x)

    def errors(place: Place, saved: Any, states: tuple[Array, ...]) -> Any:
        lower, diag, upper, rhs, result, x = saved
        xp = namespace_of(x)
        ends = tuple(_neighbour(place, edge, by) for edge, by in zip(states, (-1, 1), strict=True))
        extended = xp.concat([ends[0], x, ends[1]], axis=-1)
        error = safe_backward_error(xp, _extended(xp, lower, diag, upper)(rhs, extended), extended)
        return Gather((error,)), result

    def end(_: Place, result: Array, states: tuple[Array, ...]) -> Any:
        xp = namespace_of(result)
        error = xp.max(states[0], axis=0)
        results = [_back(xp, result, axis)]
        if return_residual:
            results.append(error)
        if return_status:
            eps = _EPS.get(dtype_name(dtype)) or xp.finfo(error.dtype).eps
            inaccurate = xp.astype(error > math.sqrt(eps), xp.int32)
            results.append(xp.where(xp.isfinite(error), 2 * inaccurate, xp.ones_like(inaccurate)))
        return None, results if len(results) > 1 else results[0]

    return [*rows_of(axis, periodic, transpose, begin), edges, errors, end]


# ---- Parts ------------------------------------------------------------------------------------------------------


def _own(arrays: tuple[Array, ...], axis: int) -> tuple[Array, ...]:
    """Return the local rows, with the unknowns along the last axis of every array."""
    xp = namespace_of(arrays[3])
    n = arrays[3].shape[axis]
    shape = broadcast_shapes(*(tuple(x.shape) for x in arrays[:3]), (n, *(1,) * (-1 - axis)))
    coefficients = [xp.broadcast_to(x, shape) for x in arrays[:3]]
    rhs = xp.broadcast_to(arrays[3], broadcast_shapes(tuple(arrays[3].shape), shape))
    return tuple(move_axis(xp, x, axis, -1) for x in (*coefficients, rhs))


def _back(xp: Namespace, x: Array, axis: int) -> Array:
    return move_axis(xp, x, -1, axis)


def _edge(x: Array, index: int) -> Array:
    """Return the first or the last element along the last axis, or zero if there is none."""
    if not x.shape[-1]:
        xp = namespace_of(x)
        return xp.zeros((*x.shape[:-1], 1), dtype=x.dtype, device=device(x))
    return x[..., :1] if index == 0 else x[..., -1:]


def _neighbour(place: Place, edges: Array, by: int) -> Array:
    """Return the edge of the nearest part with elements before or after this one, cyclically."""
    if not isinstance(place.rank, int):
        return edges[(place.rank + by) % place.count, ...]
    rank = (place.rank + by) % place.count
    while not place.lengths[rank] and rank != place.rank:
        rank = (rank + by) % place.count
    return edges[rank, ...]


def _ends_cleared(xp: Namespace, place: Place, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return lower and upper with zeros in the first row and the last row of the whole system.

    They belong to the first rows and the last rows of the local part.
    """
    if isinstance(place.rank, int):
        at_begin, at_end = place.first == 0, place.first + place.lengths[place.rank] == sum(place.lengths)
    else:  # all parts have equal length
        at_begin, at_end = place.rank == 0, place.rank == place.count - 1
    index_of_lower, index_of_upper = (xp.arange(x.shape[-1], device=device(x)) for x in (lower, upper))
    lower = xp.where((index_of_lower == 0) & at_begin, xp.zeros_like(lower), lower)
    return lower, xp.where((index_of_upper == upper.shape[-1] - 1) & at_end, xp.zeros_like(upper), upper)


def _neutral(xp: Namespace, like: Array) -> tuple[Array, Array]:
    """Return the equations of a segment of no rows: both its pairs of unknowns are equal."""
    zero = xp.zeros((*like.shape[:-1], 1), dtype=like.dtype, device=device(like))
    one = xp.ones_like(zero)
    return xp.stack([one, zero, -one, zero]), xp.stack([zero, one, zero, -one])


def _up(xp: Namespace, rows: Rows | None, rhs: Array) -> tuple[list[Array], Any]:
    if rows is None:
        zero = xp.zeros((*rhs.shape[:-1], 1), dtype=rhs.dtype, device=device(rhs))
        return [zero, zero], None
    return rows.tree.up(rows.pairs(rhs))


def _down(rows: Rows | None, ends: Any, known: Any, rhs: Array) -> Array:
    return rhs if rows is None else rows.unknowns(rows.tree.down(ends, known))


class _Seams:
    """The equations of all parts, which determine the pairs of unknowns between the parts."""

    def __init__(self, xp: Namespace, tops: Array) -> None:
        self._xp = xp
        along = move_axis(xp, tops[..., 0], 0, -1)  # of shape (8, ..., parts)
        self._tree = Tree(xp, (along[:4, ...], along[4:, ...]))
        self._close = closed(xp, self._tree.top)

    def pairs_beside(self, place: Place, pairs: Array) -> tuple[tuple[Array, Array], ...]:
        """Return the pairs of unknowns before and after the local part: first unknowns, then second unknowns."""
        along = move_axis(self._xp, pairs[..., 0], 0, -1)  # of shape (2, ..., parts)
        pair, known = self._tree.up([along[0, ...], along[1, ...]])
        ends = self._close(pair)
        all_pairs = self._tree.down(tuple((end, end) for end in ends), known)
        return tuple((y[..., place.rank][..., None], y[..., place.rank + 1][..., None]) for y in all_pairs)


def _is_small(xp: Namespace, error: Array) -> Any:
    """Return whether backward errors are as small as those that the kernel accepts at its first attempt."""
    return xp.max(error) <= 8 * xp.finfo(error.dtype).eps


def _largest(error: Array) -> Array:
    xp = namespace_of(error)
    return xp.zeros((), dtype=error.dtype, device=device(error)) if 0 in error.shape else xp.max(error)


def _with_ends(xp: Namespace, x: Array, ends: tuple[tuple[Array, Array], ...]) -> Array:
    """Return the local unknowns, with the unknown before and the unknown after them."""
    return xp.concat([ends[0][0], x, ends[1][1]], axis=-1)


def _extended(xp: Namespace, lower: Array, diag: Array, upper: Array) -> Any:
    """Return a function that makes the system of the local rows, with a row at each end that fixes an unknown."""
    zero = xp.zeros((*diag.shape[:-1], 1), dtype=diag.dtype, device=device(diag))
    arrays = tuple(
        xp.concat([end, x, end], axis=-1) for x, end in ((lower, zero), (diag, xp.ones_like(zero)), (upper, zero))
    )

    def system(rhs: Array, extended: Array) -> System:
        padded = xp.concat([extended[..., :1], rhs, extended[..., -1:]], axis=-1)
        return System(
            arrays=(*arrays, padded),
            rows=tuple(arrays[1].shape),
            shape=tuple(padded.shape),
            axis=-1,
            periodic=False,
            pivot="partial",
        )

    return system
