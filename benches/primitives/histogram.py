"""Histogram: bytes of the elements per second; the ceiling is the rate at which they are read."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.one_thread import on_one_thread
from benches.core.problems import PIECE, cores, drawn
from benches.peers import by_numba


def counted(x, bins, weights=None):
    """Return the counts, or the sums of weights, of bins of [0, 1], by all cores: one for each part of the elements."""

    def part(at):
        own = None if weights is None else weights[at : at + PIECE].astype(np.float64)
        return np.histogram(x[at : at + PIECE], bins, (0, 1), weights=own)[0]

    return sum(cores().map(part, range(0, x.size, PIECE)))


def problem(rng, n, bins, equal=False):
    """Return random numbers of [0, 1), or equal ones; edges are exact for powers of two."""
    x = drawn(rng, n, np.dtype("float32"), lambda own, length: own.random(length, np.float32))
    if equal:
        x[:] = x[0]
    return Problem((x,), counted(x, bins).astype(np.int64))


def weighted_problem(rng, n, bins):
    (x,) = problem(rng, n, 1).inputs
    weights = drawn(rng, n, np.dtype("float32"), lambda own, length: own.random(length, np.float32))
    sums = counted(x, bins, weights)
    return Problem((x, weights), sums.astype(np.float32), 2.0**-23 * (n / 2112 + 300) * sums)


def uneven_problem(rng, n, bins):
    (x,) = problem(rng, n, 1).inputs
    edges = np.sort(np.append(rng.random(bins - 1, np.float32), np.float32([0, 1])))
    parts = cores().map(lambda at: np.histogram(x[at : at + PIECE], edges)[0], range(0, x.size, PIECE))
    return Problem((x, edges), sum(parts).astype(np.int64))


def count_between(x, edges, method):
    return parprims.histogram(x, edges, method=method)[0]


def between_by_torch(torch, x, edges):
    return torch.bincount(torch.bucketize(x, edges, right=True) - 1, minlength=edges.shape[0] - 1)


BETWEEN = library(
    lambda xp, x, edges: xp.histogram(x, edges)[0],
    torch=between_by_torch,
    jax=lambda jnp, x, edges: jnp.histogram(x, edges)[0].astype(x.dtype),
)


def count(x, *weights, bins, method):
    options = {"weights": weights[0]} if weights else {}
    return parprims.histogram(x, bins, range=(0.0, 1.0), method=method, **options)[0]


def peers(bins):
    """Return the libraries' own, of which JAX counts in floats and PyTorch has no weights on a GPU."""

    def by_library(xp, x, *weights):
        return xp.histogram(x, bins, (0.0, 1.0), **({"weights": weights[0]} if weights else {}))[0]

    def by_torch(torch, x, *weights):
        if weights:
            return torch.bincount((x * bins).to(torch.int32), weights[0], bins).to(x.dtype)
        return torch.histc(x, bins, 0.0, 1.0).to(torch.int64)

    def by_loop(_, x, *weights):
        if weights:
            return by_numba.weighted_histogram(x, *weights, 0.0, 1.0, bins)
        return by_numba.histogram(x, 0.0, 1.0, bins)

    def by_jax(jnp, *arrays):
        return by_library(jnp, *arrays).astype(arrays[-1].dtype)

    return {**library(by_library, torch=by_torch, jax=by_jax), "numba": by_loop}


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []

    def add(name, make, bins, n, *, whole_call=False, **options):
        make = functools.partial(make, n=n, bins=bins, **options)
        run = functools.partial(count, bins=bins)
        skip = {"array": "it is timed at smaller sizes"} if n >= 2**22 else {}
        found.append(Case("histogram", name, make, run, peers(bins), whole_call=whole_call, skip=skip))

    add("call, 2^10", problem, 256, 2**10, whole_call=True)
    for k in scale.pick((12,), (14, 20), (16, 20, 26)):
        add(f"256 bins, 2^{k}", problem, 256, 2**k)
    if not scale.gpu:
        found.append(on_one_thread(found[-1]))
    k = scale.pick(12, 20, 26)
    add(f"65536 bins, 2^{k}", problem, 65536, 2**k)
    make = functools.partial(uneven_problem, n=2**k, bins=1000)
    skip = {"array": "it is timed at smaller sizes"} if k >= 22 else {}
    found.append(Case("histogram", f"1000 edges, 2^{k}", make, count_between, BETWEEN, skip=skip))
    add(f"256 bins all equal, 2^{k}", problem, 256, 2**k, equal=True)
    add(f"256 bins with weights, 2^{k}", weighted_problem, 256, 2**k)
    if scale.gpu:
        add(f"65536 bins with weights, 2^{k}", weighted_problem, 65536, 2**k)
    else:
        found.append(on_one_thread(found[-1]))
    return found
