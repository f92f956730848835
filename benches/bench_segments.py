"""Segments of uneven length: bytes of elements and results per second."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.bench_scan import integers
from benches.cases import Case, Problem, Scale


def offsets_of(rng, n, segments):
    """Return offsets of segments whose lengths differ by orders of magnitude."""
    weights = rng.pareto(1.0, segments) + 0.01
    inner = np.cumsum(weights / weights.sum() * n).astype(np.int64)[:-1]
    return np.concatenate([[0], np.clip(inner, 0, n), [n]])


def problem(rng, n, segments, scanned):
    """Return small integers as floats, whose sums are exact, and those of every segment."""
    x, offsets = integers(rng, n).astype(np.float32), offsets_of(rng, n, segments)
    sums = np.concatenate([[0.0], np.cumsum(x, dtype=np.float64)])
    if not scanned:
        return Problem((x, offsets), (sums[offsets[1:]] - sums[offsets[:-1]]).astype(np.float32))
    before = np.repeat(sums[offsets[:-1]], np.diff(offsets))
    return Problem((x, offsets), (sums[1:] - before).astype(np.float32))


def by_numbers(rng, n, segments):
    x, ids = integers(rng, n).astype(np.float32), rng.integers(0, segments, n, np.int32)
    return Problem((x, ids), np.bincount(ids, x, segments).astype(np.float32))


def reduced(x, offsets, *, method):
    return parprims.reduce(x, offsets=offsets, method=method)


def scanned(x, offsets, *, method):
    return parprims.scan(x, offsets=offsets, method=method)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k, few = scale.pick(12, 20, 26), 10
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    many = 2 ** (k - 5)
    found = []
    for segments in (few, many):
        make = functools.partial(problem, n=2**k, segments=segments, scanned=False)
        found.append(Case("reduce", f"{segments} segments, 2^{k}", make, reduced, ceiling="read", skip=skip))
        make = functools.partial(problem, n=2**k, segments=segments, scanned=True)
        found.append(Case("scan", f"{segments} segments, 2^{k}", make, scanned, skip=skip))
    make = functools.partial(by_numbers, n=2**k, segments=1000)
    run = functools.partial(parprims.segment_reduce, num_segments=1000)
    peers = {"numpy": lambda np, x, ids: np.bincount(ids, x, 1000).astype(x.dtype)}
    found.append(Case("segment_reduce", f"1000 segments, 2^{k}", make, run, peers, skip=skip))
    return found
