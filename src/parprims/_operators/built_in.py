"""The functions of the built-in operators, and their identities as functions of dtype names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, dtype_bits, dtype_kind, namespace_of
from parprims._libraries.settings import asked_for

Combine = Callable[[Any, Any], Any]


def lowest(name: str) -> Any:
    """Return the smallest value of a real dtype, or 0 for bool."""
    kind = dtype_kind(name)
    if kind == "int":
        return -(2 ** (dtype_bits(name) - 1))
    return -math.inf if kind == "float" else 0


def highest(name: str) -> Any:
    """Return the largest value of a real dtype, or 1 for bool."""
    kind = dtype_kind(name)
    if kind in ("int", "uint"):
        return 2 ** (dtype_bits(name) - (kind == "int")) - 1
    return math.inf if kind == "float" else 1


def all_bits(name: str) -> Any:
    """Return the value with all bits set."""
    return highest(name) if dtype_kind(name) in ("uint", "bool") else -1


def by_function(function: str) -> Combine:
    """Return the function of this name of the arrays' library."""

    def combine(earlier: Array, later: Array) -> Array:
        return getattr(namespace_of(earlier), function)(earlier, later)

    return combine


def extremum(wins: str) -> Combine:
    """Return combine for (value, index): the winning value, NaN before all; of equal values, the smallest index."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (value, index), (other, position) = earlier, later
        xp = namespace_of(value)
        better = getattr(xp, wins)(other, value)
        equal = other == value
        if dtype_kind(value.dtype) == "float":
            nan, other_nan = value != value, other != other
            better = (better | other_nan) & ~nan
            equal = equal | (nan & other_nan)
        take = better | (equal & (position < index))
        return xp.where(take, other, value), xp.where(take, position, index)

    return combine


def logaddexp(earlier: Array, later: Array) -> Array:
    """Return log(exp(earlier) + exp(later)), with derivatives of every order if they may be requested.

    The derivatives of the libraries' own functions are NaN if both elements are minus infinity. Here the derivative by
    an element is its share of the sum of exponentials: 0 for minus infinity. If the result is infinite, one element
    equal to it has derivative 1.
    """
    xp = namespace_of(earlier)
    if not (asked_for(earlier) or asked_for(later)):
        return xp.logaddexp(earlier, later)
    first = (earlier >= later) | (earlier != earlier)  # so that NaN counts as larger
    high, low = xp.where(first, earlier, later), xp.where(first, later, earlier)
    minus_infinity = xp.full_like(high, -math.inf)
    gap = xp.where(xp.isinf(high), minus_infinity, low - high)  # equal infinities have no difference
    return xp.where(high == -math.inf, minus_infinity, high) + xp.log1p(xp.exp(gap))


def affine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the composition of the maps x -> a x + b and x -> c x + d, the earlier map first."""
    (a, b), (c, d) = earlier, later
    return c * a, c * b + d


def welford(earlier: tuple[Array, Array, Array], later: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Return the count, the mean and the sum of squared deviations of two samples together."""
    (n, mean, m2), (k, other_mean, other_m2) = earlier, later
    xp = namespace_of(mean)
    total = n + k
    share = xp.where(total > 0, k / xp.where(total > 0, total, n * 0 + 1), n * 0)
    delta = other_mean - mean
    return total, mean + delta * share, m2 + other_m2 + delta * delta * (n * share)
