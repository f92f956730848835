"""Sorts, searches, merges and histograms by which `auto` is judged on a CPU, and their peers."""

from __future__ import annotations

import functools
import math
import sys

import numpy as np

import parprims
from benches.auto.calls import Call, line
from benches.core.cases import Problem
from benches.peers import by_numba
from benches.primitives import sort as bench_sort


def sort_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), dtype).reshape(shape)
        return Problem((x,), np.sort(x, axis))

    peers = {
        "np.sort": lambda x: np.sort(x, axis),
        "torch.sort": lambda x: x.sort(axis)[0],
        "jax.numpy.sort": lambda x: x.sort(axis),
    }
    return Call("sort", "sort", dtype, shape, axis, make, functools.partial(parprims.sort, axis=axis), peers)


def argsort_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), dtype).reshape(shape)
        return Problem((x,), np.argsort(x, axis, stable=True))

    peers = {
        "np.argsort": lambda x: np.argsort(x, axis, stable=True),
        "torch.sort": lambda x: x.sort(dim=axis, stable=True)[1],
        "jax.numpy.argsort": lambda x: x.argsort(axis, stable=True),
    }
    run = functools.partial(parprims.argsort, axis=axis)
    return Call("argsort", "argsort", dtype, shape, axis, make, run, peers)


def sort_by_key_call(n: int) -> Call:
    make = functools.partial(bench_sort.by_key_problem, dtype="int32")
    peers = {
        "np.argsort": functools.partial(bench_sort.by_argsort, np),
        "torch.sort": functools.partial(bench_sort.by_torch_sort, sys.modules.get("torch")),
        "jax.lax.sort": functools.partial(bench_sort.by_jax_sort, None),
    }
    return line("sort_by_key", "sort_by_key", "int32", n, make, parprims.sort_by_key, peers)


def searchsorted_call(n: int) -> Call:
    def make(rng, n):
        x1, x2 = np.sort(rng.random(n)), rng.random(n)
        return Problem((x1, x2), np.searchsorted(x1, x2))

    peers = {
        "np.searchsorted": np.searchsorted,
        "torch.searchsorted": lambda x1, x2: sys.modules["torch"].searchsorted(x1, x2),
        "jax.numpy.searchsorted": lambda x1, x2: sys.modules["jax"].numpy.searchsorted(x1, x2),
        "numba loop": by_numba.searchsorted,
    }
    return line("searchsorted", "searchsorted", "float64", n, make, parprims.searchsorted, peers)


def merge_call(n: int) -> Call:
    def make(rng, n):
        x1, x2 = np.sort(rng.random((2, n // 2)))
        return Problem((x1, x2), np.sort(np.concatenate([x1, x2])))

    peers = {
        "np.sort": lambda x1, x2: np.sort(np.concatenate([x1, x2]), kind="stable"),
        "torch.sort": lambda x1, x2: sys.modules["torch"].cat([x1, x2]).sort()[0],
        "jax.numpy.sort": lambda x1, x2: sys.modules["jax"].numpy.concatenate([x1, x2]).sort(),
        "numba loop": by_numba.merge,
    }
    return line("merge", "merge", "float64", n, make, parprims.merge, peers)


BINS = 256


def histogram_call(n: int) -> Call:
    def make(rng, n):
        x = rng.random(n)
        return Problem((x,), np.bincount((x * BINS).astype(np.intp), minlength=BINS))

    peers = {
        "np.histogram": lambda x: np.histogram(x, BINS, (0, 1))[0],
        "torch.histc": lambda x: x.histc(BINS, 0, 1).long(),
        "numba loop": lambda x: by_numba.histogram(x, 0.0, 1.0, BINS),
    }

    def run(x, *, method):
        return parprims.histogram(x, BINS, range=(0.0, 1.0), method=method)[0]

    return line("histogram", "histogram, 256 bins", "float64", n, make, run, peers)


def weighted_histogram_call(n: int) -> Call:
    def make(rng, n):
        x, weights = rng.random(n), rng.random(n)
        sums = np.bincount((x * BINS).astype(np.intp), weights, BINS)
        return Problem((x, weights), sums, n * 2.0**-53 * sums)

    peers = {
        "np.histogram": lambda x, weights: np.histogram(x, BINS, (0, 1), weights=weights)[0],
        "numba loop": lambda x, weights: by_numba.weighted_histogram(x, weights, 0.0, 1.0, BINS),
    }

    def run(x, weights, *, method):
        return parprims.histogram(x, BINS, range=(0.0, 1.0), weights=weights, method=method)[0]

    return line("histogram", "histogram, weights", "float64", n, make, run, peers)


def integer_histogram_call(n: int) -> Call:
    def make(rng, n):
        x = rng.integers(0, BINS, n)
        return Problem((x,), np.bincount(x, minlength=BINS))

    peers = {
        "np.histogram": lambda x: np.histogram(x, BINS, (0, BINS))[0],
        "np.bincount": lambda x: np.bincount(x, minlength=BINS),
        "torch.bincount": lambda x: x.bincount(minlength=BINS),
        "numba loop": lambda x: by_numba.histogram(x, 0, BINS, BINS),
    }

    def run(x, *, method):
        return parprims.histogram(x, BINS, range=(0, BINS), method=method)[0]

    return line("histogram", "histogram, integers", "int64", n, make, run, peers)
