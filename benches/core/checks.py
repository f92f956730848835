"""The check that every result passes before it is timed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from benches.core.cases import Problem
from benches.core.problems import PIECE, cores


def gate(result: Any, problem: Problem) -> str | None:
    """Return what is wrong with a result, given as NumPy arrays, or None. NaN is always wrong."""
    ones = result if isinstance(result, tuple) else (result,)
    expected = problem.expected if isinstance(problem.expected, tuple) else (problem.expected,)
    allowed = problem.allowed if isinstance(problem.allowed, tuple) else (problem.allowed,) * len(expected)
    if len(ones) != len(expected):
        return f"{len(ones)} arrays instead of {len(expected)}"
    for one, other, bound in zip(ones, map(np.asarray, expected), allowed, strict=True):
        if one.size != other.size:
            return f"shape {one.shape} instead of {other.shape}"
        shape, starts = other.shape, range(0, max(1, other.size), PIECE)
        one, other = one.reshape(-1), other.reshape(-1)
        bound = np.broadcast_to(bound, shape).reshape(-1) if np.ndim(bound) else bound
        wrong = np.concatenate(list(cores().map(functools.partial(_wrong, one, other, bound), starts)))
        if wrong.size:
            first = wrong[0]
            return (
                f"{wrong.size} of {one.size} elements are wrong, the first is "
                f"{first}: {one[first]} instead of {other[first]}"
            )
    return None


def _wrong(one: np.ndarray, other: np.ndarray, bound: Any, start: int) -> np.ndarray:
    """Return the indices of a piece's elements that are wrong."""
    piece = slice(start, start + PIECE)
    one, other = one[piece], other[piece]
    if np.array_equal(one, other):
        return np.empty(0, np.int64)
    bound = bound[piece] if np.ndim(bound) else bound
    with np.errstate(all="ignore"):
        near = abs(one.astype(np.float64) - other.astype(np.float64)) <= bound
        return start + np.flatnonzero(~near if np.any(bound) else one != other)


def equal(result: Any, other: Any) -> bool:
    """Return whether results are the same arrays, found where they are, without a copy. NaN is equal to nothing."""
    ones, others = (x if isinstance(x, (tuple, list)) else (x,) for x in (result, other))
    return len(ones) == len(others) and all(
        x.shape == y.shape and x.dtype == y.dtype and bool((x == y).all()) for x, y in zip(ones, others, strict=True)
    )
