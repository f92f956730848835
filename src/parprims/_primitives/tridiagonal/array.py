"""Tridiagonal systems by operations on whole arrays: cyclic reduction, or elimination with row exchanges."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, Namespace, broadcast_shapes, dtype_kind, is_jax, move_axis, quiet
from parprims._libraries.halving import Halving, interleaved
from parprims._libraries.steps import repeated
from parprims._primitives.tridiagonal.call import System, ends_cleared, nan, slice_rows, whole
from parprims._primitives.tridiagonal.residual import backward_error, residual

Eliminate = Callable[[Array, Array, Array, tuple[Array, ...]], tuple[Array, ...]]
"""A function of lower, diag and upper of one shape, and right-hand sides that broadcast against them. It returns a
solution for each right-hand side, and does not read lower[0] and upper[n-1]."""


def array(xp: Namespace, s: System) -> Array:
    """Return the solutions by parallel cyclic reduction, or by elimination with row exchanges."""
    with quiet(xp):
        return _by_elimination(xp, s)


def _by_elimination(xp: Namespace, s: System) -> Array:
    if s.pivot == "none":
        return whole(xp, solve_by(xp, s, functools.partial(_cyclic_reduction, xp, s.axis)), s.axis)
    if math.prod(s.shape) == 0:
        return empty(xp, s)
    lower, diag, upper = (x if s.axis == -1 else move_axis(xp, x, s.axis, -1) for x in s.coefficients(xp))
    rhs = s.rhs if s.axis == -1 or s.rhs.ndim < -s.axis else move_axis(xp, s.rhs, s.axis, -1)
    if not s.periodic:
        lower, upper = ends_cleared(xp, lower, upper, -1)
    solve = _tree_elimination(xp, lower, diag, upper)
    shape = broadcast_shapes(diag.shape, rhs.shape)
    system = System(
        arrays=(lower, diag, upper, rhs), rows=tuple(diag.shape), shape=shape, axis=-1, periodic=True, pivot=s.pivot
    )
    x = whole(xp, _refined(xp, system, solve), -1)
    return x if s.axis == -1 else move_axis(xp, x, -1, s.axis)


def empty(xp: Namespace, s: System) -> Array:
    """Return the solutions if there are no unknowns."""
    return s.rhs / s.coefficients(xp)[1]


def _refined(xp: Namespace, s: System, solve: Callable[[Array], Array]) -> Array:
    """Return the solutions by a function of rhs. A system is refined once by its residual if that reduces its error."""

    def refine(i: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, error = state
        better = x + solve(residual(xp, s, x))
        # If x is so large that its residual is meaningless, refinement may increase the error. inf < inf is false.
        new_error = backward_error(xp, s, better)
        improved = (new_error < error) | (i == 0)
        return xp.where(xp.expand_dims(improved, axis=s.axis), better, x), xp.where(improved, new_error, error)

    if is_jax(xp):  # refines x = 0 twice, so that the program holds the solver once
        x = xp.zeros_like(s.rhs, shape=s.shape)
        return repeated(xp, 2, refine, (x, xp.zeros_like(backward_error(xp, s, x))))[0]
    x = solve(s.rhs)
    return refine(1, (x, backward_error(xp, s, x)))[0]


def _tree_elimination(xp: Namespace, lower: Array, diag: Array, upper: Array) -> Callable[[Array], Array]:
    """Return a function that solves periodic systems along the last axis for right-hand sides.

    It takes ceil(log2(n / 2)) steps to the top segment of the tree. Both ends of this segment are one pair.
    """
    rows = Rows(xp, lower, diag, upper)
    close = closed(xp, rows.tree.top)

    def solve(rhs: Array) -> Array:
        pair, known = rows.tree.up(rows.pairs(rhs))
        ends = close(pair)
        return rows.unknowns(rows.tree.down(tuple((end, end) for end in ends), known))

    return solve


class Tree:
    """Elimination of the pairs of unknowns between segments, and back substitution.

    A segment represents the rows i ... j-1 by two equations between the pairs of unknowns y[i] = (x[i-1], x[i]) and
    y[j] = (x[j-1], x[j]). Two adjacent segments make four equations between three pairs. If the pair that they share is
    eliminated, two equations remain, a segment of double length. The other two give the shared pair when the pairs
    around it are known. An unknown occurs in two adjacent segments only, so their four equations determine it, and a
    pivot exists for every regular matrix.

    A segment is stored as two rows of coefficients of (x[i-1], x[i], x[j-1], x[j]), stacked along the first axis. All
    segments of a system are along the last axis. ``top`` is the last segment that remains.
    """

    def __init__(self, xp: Namespace, segments: tuple[Array, Array]) -> None:
        self._xp = xp
        self._levels = Halving(xp, segments[0].shape[-1], -1, rows=True)
        zero, one = xp.zeros_like(segments[0][0, ..., :1]), xp.ones_like(segments[0][0, ..., :1])
        # The segment y[i] = y[j], appended after the last one, changes nothing and makes the number of segments even.
        neutral = (xp.stack([one, zero, -one, zero]), xp.stack([zero, one, zero, -one]))
        self.top, self._eliminated = self._levels.up(self._eliminate, segments, lambda _: neutral)

    def _eliminate(
        self, earlier: tuple[Array, Array], later: tuple[Array, Array]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        xp = self._xp
        nothing = xp.zeros_like(earlier[0][:2, ...])
        # Columns: the shared pair, the pair before it, the pair after it.
        rows = [xp.concat([x[2:, ...], x[:2, ...], nothing]) for x in earlier]
        rows += [xp.concat([x[:2, ...], nothing, x[2:, ...]]) for x in later]
        first, rows, exchange = _pivoted(xp, rows, 0)
        second, rows, exchange_again = _pivoted(xp, rows, 1)
        return tuple([row[2:, ...] for row in rows]), (first, second, *exchange, *exchange_again)

    def up(self, pair: list[Array]) -> tuple[list[Array], Any]:
        """Return the right-hand sides of ``top``, given those of all segments, and the input of `down`."""
        xp = self._xp

        def combine(earlier: Any, later: Any, pivots: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            top, others = _exchanged(xp, [*earlier, *later], pivots[2:8])
            middle, rest = _exchanged(xp, others, pivots[8:])
            return tuple(rest), (top, middle)

        def zeros(pair: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple([xp.zeros_like(x[..., :1]) for x in pair])

        last, known = self._levels.up(combine, tuple(pair), zeros, self._eliminated)
        return list(last), known

    def down(self, ends: tuple[tuple[Array, Array], ...], known: Any) -> tuple[Array, Array]:
        """Return the first and the second unknowns of all pairs, given the pairs at both ends."""

        def between(before: Any, behind: Any, pivots: tuple[Array, ...], known: Any) -> tuple[Array, Array]:
            (p, q, *_), (top, middle) = pivots, known
            for k, end in enumerate((*before, *behind)):
                top, middle = top - p[2 + k, ...] * end, middle - q[2 + k, ...] * end
            shared1 = middle / q[1, ...]
            return (top - p[1, ...] * shared1) / p[0, ...], shared1

        first, last = zip(*ends, strict=True)
        y0, y1 = self._levels.down(between, (first, last), self._eliminated, known)
        return y0, y1


class Rows:
    """The rows of systems along the last axis as segments of two, and the tree over them."""

    def __init__(self, xp: Namespace, lower: Array, diag: Array, upper: Array) -> None:
        self._xp, self._n = xp, diag.shape[-1]
        scale = xp.maximum(xp.maximum(_size(xp, lower), _size(xp, diag)), _size(xp, upper))
        self._scale = scale = xp.where(scale > 0, scale, xp.ones_like(scale))
        lower, diag, upper = lower / scale, diag / scale, upper / scale
        zero, one = xp.zeros_like(diag[..., :1]), xp.ones_like(diag[..., :1])
        zeros = xp.zeros_like(diag[..., ::2])
        far = zeros
        if self._n % 2:
            # The last segment has one row only. Its second equation says that both of its pairs contain the same x.
            far = xp.concat([zeros[..., 1:], upper[..., -1:]], axis=-1)
            lower, diag = xp.concat([lower, one], axis=-1), xp.concat([diag, -one], axis=-1)
            upper = xp.concat([upper[..., :-1], zero, zero], axis=-1)
        even, odd = (..., slice(0, None, 2)), (..., slice(1, None, 2))
        self.tree = Tree(
            xp,
            (
                xp.stack([lower[even], diag[even], upper[even], far]),
                xp.stack([zeros, lower[odd], diag[odd], upper[odd]]),
            ),
        )

    def pairs(self, rhs: Array) -> list[Array]:
        """Return the right-hand sides of the segments."""
        rhs = rhs / self._scale
        if self._n % 2:
            rhs = self._xp.concat([rhs, self._xp.zeros_like(rhs[..., :1])], axis=-1)
        return [rhs[..., ::2], rhs[..., 1::2]]

    def unknowns(self, pairs: tuple[Array, Array]) -> Array:
        """Return all unknowns, given all pairs."""
        y0, y1 = pairs
        return interleaved(self._xp, y1[..., :-1], y0[..., 1:])[..., : self._n]


def closed(xp: Namespace, segment: tuple[Array, Array]) -> Callable[[list[Array]], tuple[Array, Array]]:
    """Return a function of the right-hand sides of a segment: the pair at both ends of the segment."""
    rows = [xp.stack([x[0, ...] + x[2, ...], x[1, ...] + x[3, ...]]) for x in segment]
    first, (last,), closing = _pivoted(xp, rows, 0)

    def close(pair: list[Array]) -> tuple[Array, Array]:
        top, (bottom,) = _exchanged(xp, pair, closing)
        y1 = bottom / last[1, ...]
        return (top - first[1, ...] * y1) / first[0, ...], y1

    return close


def _pivoted(xp: Namespace, rows: list[Array], column: int) -> tuple[Array, list[Array], list[Array]]:
    """Return the pivot row, the other rows reduced by it, and the exchanges and factors to apply to rhs."""
    exchanges = []
    first, *others = rows
    for k, row in enumerate(others):
        larger = _size(xp, row[column, ...]) > _size(xp, first[column, ...])
        first, others[k] = xp.where(larger, row, first), xp.where(larger, first, row)
        exchanges.append(larger)
    factors = [row[column, ...] / first[column, ...] for row in others]
    reduced = [row - factor * first for row, factor in zip(others, factors, strict=True)]
    return first, reduced, exchanges + factors


def _exchanged(xp: Namespace, rhs: list[Array], how: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Return the right-hand side of the pivot row of `_pivoted`, and of the reduced rows."""
    first, *others = rhs
    exchanges, factors = how[: len(others)], how[len(others) :]
    for k, larger in enumerate(exchanges):
        first, others[k] = xp.where(larger, others[k], first), xp.where(larger, first, others[k])
    return first, [other - factor * first for other, factor in zip(others, factors, strict=True)]


def _size(xp: Namespace, x: Array) -> Array:
    """Return absolute values; for complex numbers |real| + |imag|, which suffices for pivoting."""
    return xp.abs(xp.real(x)) + xp.abs(xp.imag(x)) if dtype_kind(x.dtype) == "complex" else xp.abs(x)


def _cyclic_reduction(
    xp: Namespace, axis: int, lower: Array, diag: Array, upper: Array, rhs: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Solve by ceil(log2 n) steps. A step eliminates the neighbours of every row at once.

    Before the step of length s, row i is x[i] = a[i] x[i-s] + c[i] x[i+s] + d[i]. Substituting rows i-s and i+s gives
    this form for neighbours 2s away; neighbours past an end have coefficient zero. Only rows s, s+1, ... of a and
    rows up to n-s-1 of c are stored, so that a[k] and c[k] connect rows k and k+s with each other. For four rows,
    s = 1 connects 0-1, 1-2, 2-3 and s = 2 connects 0-2, 1-3; then x = d.
    """
    n = diag.shape[axis]
    ds = tuple(d / diag for d in rhs)
    if n < 2:
        return ds
    a = -lower[slice_rows(axis, 1, n)] / diag[slice_rows(axis, 1, n)]
    c = -upper[slice_rows(axis, 0, n - 1)] / diag[slice_rows(axis, 0, n - 1)]
    if is_jax(xp):
        return _cyclic_reduction_in_jax(xp, _at_end(xp, a, diag, axis), _at_start(xp, c, diag, axis), ds, axis=axis)
    step = 1
    while step < n:
        near, far = slice_rows(axis, 0, n - step), slice_rows(axis, step, n)
        ac = a * c
        pivot = 1 - _at_end(xp, ac, diag, axis) - _at_start(xp, ac, diag, axis)
        ds = tuple((d + _at_end(xp, a * d[near], d, axis) + _at_start(xp, c * d[far], d, axis)) / pivot for d in ds)
        if 2 * step < n:
            near, far = slice_rows(axis, 0, n - 2 * step), slice_rows(axis, step, n - step)
            a, c = a[near] * a[far] / pivot[slice_rows(axis, 2 * step, n)], c[near] * c[far] / pivot[near]
        step *= 2
    return ds


def _cyclic_reduction_in_jax(
    xp: Namespace, a: Array, c: Array, ds: tuple[Array, ...], *, axis: int
) -> tuple[Array, ...]:
    """Return the result of `_cyclic_reduction` on JAX. a and c have all rows, with zeros for missing neighbours.

    The steps are a loop, so that the size of the program does not grow with n. If there are many rows, every second row
    is eliminated before the loop.
    """
    n = a.shape[axis]
    ds = tuple([xp.broadcast_to(d, broadcast_shapes(tuple(d.shape), tuple(a.shape))) for d in ds])
    if n < _HALVED:
        return _doubled_in_jax(xp, a, c, ds, axis=axis)
    missing = n % 2  # the row x = 0, which no other row refers to
    rows = [xp.concat([x, xp.zeros_like(x[slice_rows(axis, 0, missing)])], axis=axis) for x in (a, c, *ds)]
    (a, c, *ds_odd), (a_even, c_even, *ds_even) = _odds_alone(xp, axis, *rows)
    xs = _doubled_in_jax(xp, a, c, tuple(ds_odd), axis=axis)
    both = [
        interleaved(xp, d + a_even * _previous(xp, x, axis) + c_even * x, x, axis)
        for d, x in zip(ds_even, xs, strict=True)
    ]
    return tuple([x[slice_rows(axis, 0, n)] for x in both])


_HALVED = 2048
"""The fewest rows for which every second row is eliminated first, by a larger program."""


def _odds_alone(xp: Namespace, axis: int, *rows: Array) -> tuple[list[Array], list[Array]]:
    """Return rows 1, 3, ..., which then refer to each other only, and rows 0, 2, ... unchanged; n is even."""
    rest = (slice(None),) * (-1 - axis)
    a, c, *ds = (x[(..., slice(1, None, 2), *rest)] for x in rows)
    evens = [x[(..., slice(0, None, 2), *rest)] for x in rows]
    behind = [_next(xp, x, axis) for x in evens]
    pivot = 1 - a * evens[1] - c * behind[0]
    reduced = [a * evens[0], c * behind[1]]
    reduced += [d + a * x + c * y for d, x, y in zip(ds, evens[2:], behind[2:], strict=True)]
    return [x / pivot for x in reduced], evens


def _previous(xp: Namespace, x: Array, axis: int) -> Array:
    """Return x[i - 1], zero past the end."""
    n = x.shape[axis]
    return xp.concat([xp.zeros_like(x[slice_rows(axis, 0, 1)]), x[slice_rows(axis, 0, n - 1)]], axis=axis)


def _next(xp: Namespace, x: Array, axis: int) -> Array:
    """Return x[i + 1], zero past the end."""
    n = x.shape[axis]
    return xp.concat([x[slice_rows(axis, 1, n)], xp.zeros_like(x[slice_rows(axis, 0, 1)])], axis=axis)


def _doubled_in_jax(xp: Namespace, a: Array, c: Array, ds: tuple[Array, ...], *, axis: int) -> tuple[Array, ...]:
    """Return the result of `_cyclic_reduction` on JAX, by a loop of ceil(log2 n) steps."""
    from jax import lax

    n = a.shape[axis]

    def neighbours(x: Array, step: Any) -> tuple[Array, Array]:
        """Return x[i - step] and x[i + step], zero past an end."""
        zeros = xp.zeros_like(x)
        long, axis_from_front = xp.concat([zeros, x, zeros], axis=axis), x.ndim + axis
        before: Array = lax.dynamic_slice_in_dim(long, n - step, n, axis_from_front)
        behind: Array = lax.dynamic_slice_in_dim(long, n + step, n, axis_from_front)
        return before, behind

    def double(i: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        a, c, *ds = state
        (a_before, a_behind), (c_before, c_behind) = neighbours(a, 1 << i), neighbours(c, 1 << i)
        pivot = 1 - a * c_before - c * a_behind
        doubled = [a * a_before, c * c_behind]
        for d in ds:
            before, behind = neighbours(d, 1 << i)
            doubled.append(d + a * before + c * behind)
        return tuple([x / pivot for x in doubled])

    return repeated(xp, (n - 1).bit_length(), double, (a, c, *ds))[2:]


def _at_end(xp: Namespace, x: Array, like: Array, axis: int) -> Array:
    """Return x, padded with rows of zeros at the start to the length of another array."""
    return xp.concat([xp.zeros_like(like[slice_rows(axis, 0, like.shape[axis] - x.shape[axis])]), x], axis=axis)


def _at_start(xp: Namespace, x: Array, like: Array, axis: int) -> Array:
    """Return x, padded with rows of zeros at the end to the length of another array."""
    return xp.concat([x, xp.zeros_like(like[slice_rows(axis, 0, like.shape[axis] - x.shape[axis])])], axis=axis)


def solve_by(xp: Namespace, s: System, eliminate: Eliminate) -> Array:
    """Return the solutions by a solver for systems that are not periodic.

    A periodic matrix is a tridiagonal one plus u v^T, with u = (g, 0, ..., 0, upper[n-1]) and
    v = (1, 0, ..., 0, lower[0] / g): the solutions y for rhs and q for u give x = y - q (v.y) / (1 + v.q).
    """
    lower, diag, upper = s.coefficients(xp)
    n, axis = s.n, s.axis
    eliminate = functools.partial(_unless_infinite, xp, axis, eliminate)
    if not s.periodic or n == 0:
        return eliminate(lower, diag, upper, (s.rhs,))[0]
    if n == 1:
        return eliminate(lower, lower + diag + upper, upper, (s.rhs,))[0]
    if n == 2:
        both = lower + upper
        return eliminate(both, diag, both, (s.rhs,))[0]
    first, inner, last = slice_rows(axis, 0, 1), slice_rows(axis, 1, n - 1), slice_rows(axis, n - 1, n)
    # Any g of opposite sign to diag[0] keeps a definite matrix definite, and an M-matrix an M-matrix. If |g| is at
    # least |lower[0]|, dominant rows stay dominant. As g is the largest of its
    # row, it adds no larger number.
    size = xp.maximum(xp.maximum(xp.abs(lower[first]), xp.abs(upper[first])), xp.abs(diag[first]))
    real = xp.real(diag[first]) if dtype_kind(diag.dtype) == "complex" else diag[first]
    g = xp.astype(xp.where(real < 0, size, -size), diag.dtype, copy=False)
    v = lower[first] / g
    modified = xp.concat([diag[first] - g, diag[inner], diag[last] - v * upper[last]], axis=axis)
    u = xp.concat([g, xp.zeros_like(diag[inner]), upper[last]], axis=axis)
    y, q = eliminate(lower, modified, upper, (s.rhs, u))
    return y - q * ((y[first] + v * y[last]) / (1 + q[first] + v * q[last]))


def _unless_infinite(
    xp: Namespace,
    axis: int,
    eliminate: Eliminate,
    lower: Array,
    diag: Array,
    upper: Array,
    rhs: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Return the solutions by a solver, and NaN for systems with a number that is not finite.

    A solver alone would return zero for the unknown of an infinite pivot.
    """
    xs = eliminate(lower, diag, upper, rhs)
    n = diag.shape[axis]
    if n == 0:
        return xs
    read = (lower[slice_rows(axis, 1, n)], diag, upper[slice_rows(axis, 0, n - 1)])
    if array_api_compat.is_numpy_namespace(xp) and all(map(_is_finite, (*read, *rhs))):
        return xs
    if is_jax(xp):  # a joint test makes the program smaller
        lower, upper = ends_cleared(xp, lower, upper, axis)
        finite = xp.isfinite(lower) & xp.isfinite(diag) & xp.isfinite(upper)
        known = [xp.all(finite & xp.isfinite(b), axis=axis, keepdims=True) for b in rhs]
        return tuple([xp.where(inside, x, nan(xp, x, axis)) for inside, x in zip(known, xs, strict=True)])
    finite = functools.reduce(
        lambda first, other: first & other, (xp.all(xp.isfinite(x), axis=axis, keepdims=True) for x in read)
    )
    return tuple(
        xp.where(finite & xp.all(xp.isfinite(b), axis=axis, keepdims=True), x, nan(xp, x, axis))
        for x, b in zip(xs, rhs, strict=True)
    )


def _is_finite(x: Array) -> bool:
    """Return whether a NumPy array has only finite numbers. Their sum, which is quick, is finite only then."""
    return bool(np.isfinite(x.sum()) or np.isfinite(x).all())
