"""Searches in sorted arrays."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.problems import drawn


def numbers(rng, n):
    return drawn(rng, n, np.dtype("float32"), lambda own, length: own.standard_normal(length, np.float32))


def search_problem(rng, n, m):
    x1, x2 = np.sort(numbers(rng, n)), numbers(rng, m)
    return Problem((x1, x2), np.searchsorted(x1, x2))


def by_jax(jnp, x1, x2):
    """Return the places by JAX's own function, on a GPU by a sort of both arrays where that is the quicker."""
    import jax

    sorts = jax.default_backend() == "gpu" and 8 * x1.shape[0] > x2.shape[0]
    return jnp.searchsorted(x1, x2, method="sort" if sorts else "scan_unrolled" if len(x1) < 2**12 else "scan")


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    for k, m in scale.pick(((12, 12),), ((18, 18), (10, 18)), ((26, 26), (24, 24), (10, 24), (17, 17))):
        make = functools.partial(search_problem, n=2**k, m=2**m)
        name = f"unsorted, 2^{k}" if k == m else f"unsorted 2^{m} in 2^{k}, 2^{k}"
        peers = library(lambda xp, x1, x2: xp.searchsorted(x1, x2), jax=by_jax)
        found.append(Case("searchsorted", name, make, parprims.searchsorted, peers, skip=skip))
    return found
