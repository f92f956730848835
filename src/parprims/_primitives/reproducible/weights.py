"""Histograms with weights that have the same bits everywhere. The grid is of the largest finite weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, dtype_kind, dtype_name
from parprims._dispatch.composite import Part, stand_in
from parprims._dispatch.primitive import Arguments
from parprims._primitives.histogram import call as histogram_call
from parprims._primitives.histogram.public import histogram
from parprims._primitives.reproducible.call import (
    OnGrid,
    Plain,
    as_terms,
    check_count,
    check_real,
    each_integer,
    each_rounded,
    factors_of,
    in_kernels,
    integers_of,
    largest_finite,
    sums_of,
    tops_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Weights(OnGrid):
    """A checked call: x, the weights, and the edges unless they are ``even``. ``ends`` are as in `Histogram`."""

    bins: int
    even: bool
    ends: tuple[float, float] | None


def checked(asked: Arguments) -> tuple[Namespace, Weights | Plain]:
    """Return the namespace and the checked call."""
    xp, h = histogram_call.check(asked)
    if h.density:
        raise ValueError("reproducible must be None with density: divide the sums of weights by their sum")
    if not h.weighted or dtype_kind(h.result) != "float":
        return xp, Plain(asked)
    working = check_real(xp, h.result)
    x, weights, *others = h.arrays
    check_count(math.prod(weights.shape))
    arrays = (x, as_terms(xp, weights, working), *others)
    return xp, Weights(
        arrays=arrays,
        key=None if h.key is None else asked.key_of(*arrays),
        complete=h.complete,
        results=(((h.bins,), h.result), ((h.bins + 1,), h.edges)),
        bins=h.bins,
        even=h.even,
        ends=h.ends,
        terms=math.prod(weights.shape),
        working=dtype_name(working),
    )


def _options(c: Weights, arrays: tuple[Array, ...], weights: Array) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and the options of a histogram with these weights."""
    return (arrays[0], c.bins if c.even else arrays[2]), {"range": c.ends, "weights": weights}


def parts(xp: Namespace, c: Weights, method: str) -> list[Part]:
    """Return the histogram of integers, which decides on the method."""
    del method
    arguments, options = _options(c, c.arrays, stand_in(xp, c.arrays[1], tuple(c.arrays[1].shape), xp.int64))
    return [(histogram, arguments, options)]


def compute(xp: Namespace, c: Weights, method: str) -> tuple[Array, Array]:
    """Return the sums of weights, and the edges, by a method."""
    weights, dtype = c.arrays[1], c.results[0][1]

    def added(weights: Array) -> tuple[Array, Array]:
        arguments, options = _options(c, c.arrays, weights)
        result: tuple[Array, Array] = histogram(*arguments, method=method, **options)
        return result

    if 0 in weights.shape:
        return added(weights)
    largest = largest_finite(xp, weights, tuple(range(weights.ndim)), method)
    if in_kernels(xp, c.arrays, method):
        name = dtype_name(weights.dtype)
        integers = integers_of(c.grid, weights, factors_of(c.grid, name, *largest), flags=True)
        found = list(map(added, integers))
        totals = tuple([counts for counts, _ in found])
        sums = sums_of(c.grid, dtype, xp.reshape(*largest, (1,)), totals, of=name, flags=True)
    else:
        (top,) = tops_of(xp, largest, [weights.dtype])
        found = list(map(added, each_integer(xp, c.grid, weights, top)))
        totals = tuple([xp.astype(counts, xp.int64) for counts, _ in found])
        sums = each_rounded(xp, c.grid, top, totals, dtype=dtype)
    return xp.reshape(sums, (c.bins,)), found[0][1]


def plain(c: Weights) -> Callable[..., tuple[Array, Array]]:
    """Return the histogram with sums of floats as a function of the arrays of a call, which has the derivative."""

    def total(*arrays: Array) -> tuple[Array, Array]:
        arguments, options = _options(c, arrays, arrays[1])
        result: tuple[Array, Array] = histogram(*arguments, **options)
        return result

    return total
