"""Drivers of sums with the same bits everywhere.

The largest magnitude is a maximum over all parts. The integers of all parts then add up exactly, in any order, and each
sum is rounded once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, device, namespace_of
from parprims._core.options import dtype_named
from parprims._devices.communicator import Gather, Place, Step
from parprims._devices.products import edges_of_all, ends_of_part
from parprims._devices.scans import result_shape
from parprims._primitives.histogram.public import histogram
from parprims._primitives.reduce.public import reduce
from parprims._primitives.reproducible import call
from parprims._primitives.reproducible.call import Sum, check_count, each_integer, each_rounded
from parprims._primitives.reproducible.grid import Grid, Top
from parprims._primitives.reproducible.running import RunningSum
from parprims._primitives.scan.public import cumulative_sum


def _largest_of_all(gathered: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(namespace_of(one).max(one, axis=0) for one in gathered)


def _added(gathered: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(namespace_of(one).sum(one, axis=0, dtype=one.dtype) for one in gathered)


# ---- Sums -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """The drivers of a sum along axes, of which several may be split.

    The drivers work along the split axes one after another: `largest` along all but one, `main` along this axis, and
    `add` along the others.

    Parameters
    ----------
    local : callable
        Takes the local arrays and returns the namespace and the record of their sum.
    count : int
        The number of arrays.
    terms : callable
        Takes the place along the axis of `main` and the shape of the local terms; returns the number of all terms.
    working, dtype : str
        The names of the dtype of the grid, and of the result.
    axes, keepdims
        As in `Sum`.
    method : str
        The requested method.
    """

    local: Callable[..., tuple[Namespace, Sum]]
    count: int
    terms: Callable[[Place, tuple[int, ...]], int]
    working: str
    dtype: str
    axes: tuple[int, ...]
    keepdims: bool
    method: str

    def _largest(self, _: Place, parts: tuple[Array, ...], __: Any) -> Any:
        xs, found = parts[: self.count], parts[self.count :]
        if not found:
            found = call.largest(*self.local(xs), self.method)
        return Gather(found), xs

    def largest(self) -> list[Step]:
        """Return the driver that adds the bits of the largest magnitudes to the arrays."""
        return [self._largest, lambda _, xs, gathered: (None, (*xs, *_largest_of_all(gathered)))]

    def main(self, *, last: bool) -> list[Step]:
        """Return the driver that adds the integers, and rounds them if it is the last."""

        def integers(place: Place, xs: tuple[Array, ...], gathered: tuple[Array, ...]) -> Any:
            xp, c = self.local(xs)
            c = dataclasses.replace(c, terms=self.terms(place, c.shape))
            check_count(c.terms)
            tops = call.tops_of(xp, _largest_of_all(gathered), [x.dtype for x in c.arrays])
            return Gather(call.integers(xp, c, tops, self.method)), (Top.of_products(tops), c.terms)

        def end(_: Place, saved: Any, gathered: tuple[Array, ...]) -> Any:
            top, terms = saved
            totals = _added(gathered)
            return None, self._rounded(top, totals, terms) if last else (top.exponent, top.finite, *totals)

        return [self._largest, integers, end]

    def add(self, *, terms: int, last: bool) -> list[Step]:
        """Return the driver that adds sums of integers, and rounds them if it is the last."""

        def begin(_: Place, parts: tuple[Array, ...], __: Any) -> Any:
            return Gather(parts), None  # with the top, so that shard_map knows that all parts have equal tops

        def end(_: Place, __: None, gathered: tuple[Array, ...]) -> Any:
            top, totals = Top(*[one[0, ...] for one in gathered[:2]]), _added(gathered[2:])
            return None, self._rounded(top, totals, terms) if last else (top.exponent, top.finite, *totals)

        return [begin, end]

    def _rounded(self, top: Top, totals: tuple[Array, ...], terms: int) -> Array:
        xp = namespace_of(totals[0])
        result = call.rounded(xp, Grid.of(self.working, terms), [top], totals, dtype=dtype_named(xp, self.dtype))
        return xp.reshape(result, result_shape(self.axes, self.keepdims)(tuple(result.shape)))


# ---- Running sums -----------------------------------------------------------------------------------------------


def running(local: Callable[[Array], tuple[Namespace, RunningSum]], method: str) -> list[Step]:
    """Return the driver of a running sum. ``local`` takes a part and returns the namespace and the record of its sum.

    A part needs the largest magnitude of all parts, and the sums of the parts before it.
    """

    def begin(_: Place, parts: tuple[Array, ...], __: Any) -> Any:
        xp, c = local(*parts)
        return Gather(call.largest_finite(xp, c.arrays[0], (c.axis,), method)), parts

    def integers(place: Place, parts: tuple[Array, ...], gathered: tuple[Array, ...]) -> Any:
        xp, c = local(*parts)
        (x,), n = c.arrays, sum(place.lengths)
        check_count(n)
        (top,) = call.tops_of(xp, _largest_of_all(gathered), [x.dtype])
        on = Grid.of(c.working, n)
        words = each_integer(xp, on, x, top)
        totals = tuple([reduce(one, axis=c.axis, keepdims=True, dtype=one.dtype, method=method) for one in words])
        return Gather(totals, before=False), (words, top, on, c.axis, c.results[0][1])

    def end(place: Place, saved: Any, gathered: tuple[Array, ...]) -> Any:
        words, top, on, axis, dtype = saved
        xp = namespace_of(words[0])

        def scanned(one: Array, totals: Array) -> Array:
            order = xp.arange(place.count, dtype=totals.dtype, device=device(totals))
            before = xp.reshape(order < place.rank, (-1, *(1,) * one.ndim))
            carry = xp.sum(xp.where(before, totals, xp.zeros_like(totals)), axis=0, dtype=totals.dtype)
            return carry + cumulative_sum(one, axis=axis, dtype=one.dtype, method=method)

        sums = tuple([scanned(*pair) for pair in zip(words, gathered, strict=True)])
        return None, each_rounded(xp, on, top, sums, dtype=dtype)

    return [begin, integers, end]


# ---- Histograms -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedHistogram:
    """The driver of a histogram of (x, weights, edges unless they are even).

    Parameters
    ----------
    local : callable
        Takes the weights of a part and returns them as terms.
    terms : callable
        Takes the place and returns the number of all weights.
    bins, ends, even, hollow
        As in `products.counts`, whose ``range`` is ``ends``.
    working, dtype, method
        As in `Sums`.
    """

    local: Callable[[Array], Array]
    terms: Callable[[Place], int]
    bins: Any
    ends: Any
    even: bool
    working: str
    dtype: str
    method: str
    hollow: bool

    @property
    def steps(self) -> list[Step]:
        """The driver."""
        return [self._largest, self._integers, self._end]

    @property
    def _finds_ends(self) -> bool:
        return self.even and self.ends is None

    def _largest(self, _: Place, arrays: tuple[Array, ...], __: Any) -> Any:
        x, given = arrays[0], self.local(arrays[1])
        found = call.largest_finite(namespace_of(given), given, tuple(range(given.ndim)), self.method)
        return Gather((*(ends_of_part(x) if self._finds_ends else ()), *found)), arrays

    def _integers(self, place: Place, arrays: tuple[Array, ...], gathered: tuple[Array, ...]) -> Any:
        x, given = arrays[0], self.local(arrays[1])
        xp, n = namespace_of(given), self.terms(place)
        check_count(n)
        (top,) = call.tops_of(xp, _largest_of_all(gathered[-1:]), [given.dtype])
        edges, known = arrays[-1], None
        if self.even:
            extrema = gathered[:-1] if self._finds_ends and any(place.lengths) and not self.hollow else None
            edges, known = edges_of_all(x, extrema, bins=self.bins, ends=self.ends)
        usable = edges if known is None else xp.where(known, edges, xp.zeros_like(edges))
        on = Grid.of(self.working, n)
        sums = [
            xp.astype(histogram(x, usable, weights=one, method=self.method)[0], xp.int64)
            for one in each_integer(xp, on, given, top)
        ]
        if known is not None:
            sums = [xp.where(known, one, xp.zeros_like(one)) for one in sums]
        return Gather((*sums, edges)), (top, on)

    def _end(self, _: Place, saved: Any, gathered: tuple[Array, ...]) -> Any:
        (top, on), edges = saved, gathered[-1][0, ...]
        xp = namespace_of(edges)
        result = each_rounded(xp, on, top, _added(gathered[:-1]), dtype=dtype_named(xp, self.dtype))
        return None, [xp.reshape(result, (math.prod(result.shape),)), edges]
