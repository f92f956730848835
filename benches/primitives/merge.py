"""Merges of two sorted arrays."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.primitives.search import numbers


def merge_problem(rng, n):
    x1, x2 = (np.sort(numbers(rng, n)) for _ in range(2))
    return Problem((x1, x2), np.sort(np.concatenate([x1, x2])))


def merge_by_key_problem(rng, n):
    x1, x2 = (np.sort(numbers(rng, n)) for _ in range(2))
    whole = np.concatenate([x1, x2])
    order = np.argsort(whole, kind="stable")
    values = np.arange(2 * n, dtype=np.int32)
    return Problem((x1, values[:n], x2, values[n:]), (whole[order], values[order]))


JOINED = library(
    lambda xp, x1, x2: xp.sort(xp.concatenate([x1, x2])),
    torch=lambda torch, x1, x2: torch.sort(torch.cat([x1, x2])).values,
)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k = scale.pick(12, 18, 26)
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    merges, by_key = (functools.partial(one, n=2**k) for one in (merge_problem, merge_by_key_problem))
    return [
        Case("merge", f"float32, 2^{k}", merges, parprims.merge, JOINED, skip=skip),
        Case("merge_by_key", f"float32 and int32, 2^{k}", by_key, parprims.merge_by_key, skip=skip),
    ]
