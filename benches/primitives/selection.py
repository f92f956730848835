"""Selections and unique elements: what counts is the rate at which elements are read, and those kept written."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.problems import drawn

EAGER = ("numpy", "cupy", "torch")
"""The libraries that are timed outside of a program, in which shapes would have to be known."""


def numbers(rng, n):
    return drawn(rng, n, np.dtype("float32"), lambda own, length: own.random(length, np.float32))


def select_problem(rng, n, share):
    x = numbers(rng, n)
    mask = x < share
    return Problem((x, mask), x[mask])


def sized_problem(rng, n, share):
    x = numbers(rng, n)
    mask = x < share
    expected = np.zeros_like(x)
    expected[: mask.sum()] = x[mask]
    return Problem((x, mask), expected)


def parted_problem(rng, n, share):
    x = numbers(rng, n)
    mask = x < share
    return Problem((x, mask), np.concatenate([x[mask], x[~mask]]))


def unique_problem(rng, n, distinct):
    x = drawn(rng, n, np.dtype("int32"), lambda own, length: own.integers(0, distinct, length, np.int32))
    return Problem((x,), np.unique(x))


def kept(x, mask, *, method):
    return parprims.select(x, mask, method=method)[0]


def sized(x, mask, *, method):
    return parprims.select(x, mask, size=x.shape[0], method=method)[0]


def parted(x, mask, *, method):
    return parprims.partition_by(x, mask, method=method)[0]


def once(x, *, method):
    return parprims.unique(x, method=method)[0]


def runs_problem(rng, n, longest):
    lengths = rng.integers(1, longest + 1, n // longest)
    x = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return Problem((x,), lengths)


def lengths(x, *, method):
    return parprims.run_lengths(x, method=method)[1]


def lengths_by_numpy(np, x):
    begins = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    return np.diff(np.append(begins, x.shape[0]))


def parted_by_torch(torch, x, mask):
    return torch.cat([x[mask], x[~mask]])


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k = scale.pick(12, 20, 26)
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    found = []
    by_mask = library(lambda _, x, mask: x[mask])
    for share in scale.pick((0.5,), (0.1, 0.9), (0.01, 0.5, 0.99)):
        make = functools.partial(select_problem, n=2**k, share=share)
        found.append(Case("select", f"{share:.0%} kept, 2^{k}", make, kept, by_mask, skip=skip, libraries=EAGER))
        make = functools.partial(sized_problem, n=2**k, share=share)
        found.append(Case("select", f"{share:.0%} kept of size n, 2^{k}", make, sized, skip=skip))
    make = functools.partial(parted_problem, n=2**k, share=0.5)
    peers = library(lambda xp, x, mask: xp.concatenate([x[mask], x[~mask]]), torch=parted_by_torch)
    found.append(Case("partition_by", f"half, 2^{k}", make, parted, peers, skip=skip, libraries=EAGER))
    make = functools.partial(unique_problem, n=2**k, distinct=1000)
    peers = library(lambda xp, x: xp.unique(x))
    found.append(Case("unique", f"1000 of int32, 2^{k}", make, once, peers, ceiling="read", skip=skip, libraries=EAGER))
    make = functools.partial(runs_problem, n=2**k, longest=100)
    peers = {
        "numpy": lengths_by_numpy,
        "torch": lambda torch, x: torch.unique_consecutive(x, return_counts=True)[1],
    }
    found.append(Case("run_lengths", f"runs up to 100, 2^{k}", make, lengths, peers, skip=skip, libraries=EAGER))
    return found
