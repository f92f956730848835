"""Positions of extrema: what counts is the rate at which elements are read."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.problems import drawn


def problem(rng, shape, axis):
    """Return numbers, of which many are equal, and where the largest are."""
    x = drawn(rng, shape, np.dtype("float32"), lambda own, length: own.integers(0, 2**20, length).astype(np.float32))
    return Problem((x,), np.asarray(np.argmax(x, axis)))


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []
    k = scale.pick(12, 20, 26)
    for name, shape, axis in (
        (f"of all, 2^{k}", (2**k,), None),
        (f"of rows of 2^10, 2^{k}", (2 ** (k - 10), 2**10), 1),
    ):
        run = functools.partial(parprims.argmax, axis=axis)
        peers = library(lambda xp, x, axis=axis: xp.argmax(x, axis))
        make = functools.partial(problem, shape=shape, axis=axis)
        found.append(Case("argmax", name, make, run, peers, ceiling="read"))
    return found
