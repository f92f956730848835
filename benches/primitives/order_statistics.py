"""Order statistics: what counts is the rate at which elements are read."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.problems import drawn


def numbers(rng, shape):
    """Return numbers of which none are equal, or hardly any."""
    return drawn(rng, shape, np.dtype("float32"), lambda own, length: own.standard_normal(length, np.float32))


def top_problem(rng, shape, k, ascend=False):
    """Return rows of numbers, which perhaps ascend, and the k largest of each with their places."""
    x = numbers(rng, shape)
    if ascend:
        x.sort(axis=1)
    found = np.argpartition(x, shape[1] - k, axis=1)[:, -k:]
    found = np.sort(found, axis=1)
    order = np.argsort(-np.take_along_axis(x, found, 1), axis=1, stable=True)
    places = np.take_along_axis(found, order, 1)
    return Problem((x,), (np.take_along_axis(x, places, 1), places))


def median_problem(rng, n):
    x = numbers(rng, n)
    return Problem((x,), np.asarray(np.median(x.astype(np.float64)).astype(np.float32)), 2.0**-20)


def by_jax(_, x, k):
    import jax

    return jax.lax.top_k(x, k)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    for rows, n, most, name in scale.pick(
        ((4, 2**10, 8, "row"),),
        ((16, 2**16, 64, "row"), (1, 2**20, 100, "row")),
        (
            (128, 2**16, 64, "row"),
            (2**14, 2**10, 10, "row"),
            (2**14, 2**6, 5, "row"),
            (1, 2**28, 100, "row"),
            (1, 2**28, 1000, "row"),
            (1024, 32000, 50, "row"),
            (1024, 32000, 50, "ascending row"),
            (1024, 32000, 1000, "row"),
        ),
    ):
        make = functools.partial(top_problem, shape=(rows, n), k=most, ascend=name != "row")
        peers = {
            "torch": functools.partial(lambda torch, x, k: torch.topk(x, k), k=most),
            "jax": functools.partial(by_jax, k=most),
        }
        run = functools.partial(_top, most)
        length = n if n & (n - 1) else f"2^{n.bit_length() - 1}"
        label = f"{most} of each {name}, {rows} x {length}"
        found.append(Case("top_k", label, make, run, peers, ceiling="read", skip=skip))
    peers = library(lambda xp, x: xp.median(x))
    del peers["torch"]  # whose median is the lower of the two in the middle
    for name, k in (("call", scale.pick(10, 12, 12)), ("float32", scale.pick(12, 20, 28))):
        make = functools.partial(median_problem, n=2**k)
        options = {"whole_call": True} if name == "call" else {"ceiling": "read"}
        found.append(Case("median", f"{name}, 2^{k}", make, parprims.median, peers, skip=skip, **options))
    return found


def _top(k, x, *, method):
    return parprims.top_k(x, k, method=method)
