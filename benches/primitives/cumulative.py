"""Extrema up to each element with their positions, and sums of exponentials: what counts is the copy rate."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.problems import drawn


def maxima(rng, n):
    """Return numbers and their extrema with positions, by NumPy's scan of the numbers and of where they change."""
    x = drawn(rng, n, np.dtype("float32"), lambda own, length: own.random(length, np.float32))
    y = np.maximum.accumulate(x)
    at = np.maximum.accumulate(np.where(np.diff(y, prepend=-1) != 0, np.arange(n), 0))
    return Problem((x,), (y, at))


def sums(rng, n):
    """Return numbers and the logarithms of their sums, which are exact to float32 in float64."""
    x = drawn(rng, n, np.dtype("float32"), lambda own, length: own.standard_normal(length, np.float32))
    y = np.log(np.cumsum(np.exp(x.astype(np.float64))))
    return Problem((x,), y.astype(np.float32), 2.0**-22 * (n**0.5 + 100) * (abs(y) + 4))


def by_jax(_, x):
    import jax

    return jax.lax.cumlogsumexp(x)


def with_positions(x, *, method):
    return parprims.cumulative_max(x, return_indices=True, method=method)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k = scale.pick(12, 20, 26)
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    # On CPUs NumPy and JAX add in float32 one element after another: of a million the check finds the result wrong.
    in_a_row = {} if scale.gpu or scale.quick else {"native": "its error grows with n beyond what the check allows"}
    by_torch = {"torch": lambda torch, x: torch.cummax(x, 0)}
    by_library = library(
        lambda xp, x: xp.logaddexp.accumulate(x),
        torch=lambda torch, x: torch.logcumsumexp(x, 0),
        jax=by_jax,
    )
    return [
        Case(
            "cumulative_max",
            f"with positions, 2^{k}",
            functools.partial(maxima, n=2**k),
            with_positions,
            by_torch,
            skip=skip,
        ),
        Case(
            "cumulative_logsumexp",
            f"float32, 2^{k}",
            functools.partial(sums, n=2**k),
            parprims.cumulative_logsumexp,
            by_library,
            skip=skip | in_a_row,
        ),
    ]
