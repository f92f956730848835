"""Searches in sorted arrays."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.cases import Case, Problem, Scale, library
from benches.problems import drawn


def numbers(rng, n):
    return drawn(rng, n, np.dtype("float32"), lambda own, length: own.standard_normal(length, np.float32))


def search_problem(rng, n):
    x1, x2 = np.sort(numbers(rng, n)), numbers(rng, n)
    return Problem((x1, x2), np.searchsorted(x1, x2))


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k = scale.pick(12, 18, 26)
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    searches = library(lambda xp, x1, x2: xp.searchsorted(x1, x2))
    make = functools.partial(search_problem, n=2**k)
    return [Case("searchsorted", f"unsorted, 2^{k}", make, parprims.searchsorted, searches, skip=skip)]
