"""Segments of uneven length: bytes of elements and results per second."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale
from benches.primitives.scan import integers


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


def by_numbers(rng, n, segments, op="add"):
    x, ids = integers(rng, n).astype(np.float32), rng.integers(0, segments, n, np.int32)
    if op == "add":
        return Problem((x, ids), np.bincount(ids, x, segments).astype(np.float32))
    return Problem((x, ids), largest(np, x, ids, segments))


def rows_by_numbers(rng, n, columns, segments):
    """Return rows of small integers as floats, and the sums of those of every segment."""
    x, ids = integers(rng, n * columns).astype(np.float32).reshape(n, columns), rng.integers(0, segments, n, np.int32)
    ordered, begin = x[np.argsort(ids, kind="stable")], np.searchsorted(np.sort(ids), np.arange(segments + 1))
    sums = np.concatenate([np.zeros((1, columns)), np.cumsum(ordered, axis=0, dtype=np.float64)])
    return Problem((x, ids), (sums[begin[1:]] - sums[begin[:-1]]).astype(np.float32))


def largest(np, x, ids, segments):
    """Return the largest element of every segment by NumPy."""
    found = np.full(segments, -np.inf, x.dtype)
    np.maximum.at(found, ids, x)
    return found


def by_numpy(np, x, ids, segments, op):
    """Return the same, or the sums, by NumPy's own functions."""
    return np.bincount(ids, x, segments).astype(x.dtype) if op == "add" else largest(np, x, ids, segments)


def by_torch(torch, x, ids, segments, op):
    """Return the same, or the sums, by PyTorch's own functions."""
    ids = ids.to(torch.int64)
    if op == "add":
        return torch.zeros((segments, *x.shape[1:]), dtype=x.dtype, device=x.device).index_add_(0, ids, x)
    return torch.full((segments,), -torch.inf, dtype=x.dtype, device=x.device).scatter_reduce_(0, ids, x, "amax")


def by_jax(_, x, ids, segments, op):
    """Return the same, or the sums, by JAX's own functions."""
    import jax

    function = jax.ops.segment_sum if op == "add" else jax.ops.segment_max
    return function(x, ids, segments)


def by_cupy(cupy, x, ids, segments, op):
    """Return the same, or the sums, by CuPy's own functions, of which sums of floats change from run to run."""
    if op == "add":
        found = cupy.zeros((segments, *x.shape[1:]), x.dtype)
        cupy.add.at(found, ids, x)
        return found
    found = cupy.full(segments, -cupy.inf, x.dtype)
    cupy.maximum.at(found, ids, x)
    return found


def reduced_by_numpy(np, x, offsets):
    """Return the sums of segments by NumPy's own function, which adds to each empty one the next element."""
    sums = np.add.reduceat(np.append(x, x.dtype.type(0)), offsets[:-1])
    sums[offsets[1:] == offsets[:-1]] = 0
    return sums


def reduced_by_torch(torch, x, offsets):
    """Return the sums of segments by PyTorch's own function."""
    return torch.segment_reduce(x, "sum", offsets=offsets, initial=0)


def reduced(x, offsets, *, method):
    return parprims.reduce(x, offsets=offsets, method=method)


def scanned(x, offsets, *, method):
    return parprims.scan(x, offsets=offsets, method=method)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k, few = scale.pick(12, 20, 28), 10
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    many = 2**k // 27
    peers = {"numpy": reduced_by_numpy, "torch": reduced_by_torch}
    found = []
    for segments in (few, many):
        make = functools.partial(problem, n=2**k, segments=segments, scanned=False)
        found.append(Case("reduce", f"{segments} segments, 2^{k}", make, reduced, peers, ceiling="read", skip=skip))
        make = functools.partial(problem, n=2**k, segments=segments, scanned=True)
        found.append(Case("scan", f"{segments} segments, 2^{k}", make, scanned, skip=skip))
    size, most = f"segments, 2^{k}", 2 ** (k - 2)
    for name, op, segments, n in (
        ("call, 2^10", "add", 1000, 2**10),
        (f"1000 {size}", "add", 1000, 2**k),
        (f"maximum 1000 {size}", "maximum", 1000, 2**k),
        (f"{most} {size}", "add", most, 2**k),
        (f"maximum {most} {size}", "maximum", most, 2**k),
    ):
        make = functools.partial(by_numbers, n=n, segments=segments, op=op)
        run = functools.partial(parprims.segment_reduce, num_segments=segments, op=op)
        peers = {
            "numpy": functools.partial(by_numpy, segments=segments, op=op),
            "torch": functools.partial(by_torch, segments=segments, op=op),
            "cupy": functools.partial(by_cupy, segments=segments, op=op),
            "jax": functools.partial(by_jax, segments=segments, op=op),
        }
        found.append(Case("segment_reduce", name, make, run, peers, whole_call=name.startswith("call"), skip=skip))
    rows, columns = 2 ** (k - 8), 64
    several = max(1, rows // 32)
    run = functools.partial(parprims.segment_reduce, num_segments=several)
    peers = {
        "torch": functools.partial(by_torch, segments=several, op="add"),
        "cupy": functools.partial(by_cupy, segments=several, op="add"),
        "jax": functools.partial(by_jax, segments=several, op="add"),
    }
    make = functools.partial(rows_by_numbers, n=rows, columns=columns, segments=several)
    name = f"2^{k - 8} rows of {columns}, {several} segments"
    found.append(Case("segment_reduce", name, make, run, peers, skip=skip))
    k -= 4
    found.append(
        Case(
            "segment_reduce",
            f"same bits everywhere, 2^{k}",
            functools.partial(by_numbers, n=2**k, segments=1000, op="add"),
            functools.partial(parprims.segment_reduce, num_segments=1000, reproducible="everywhere"),
            {
                "torch": functools.partial(by_torch, segments=1000, op="add"),
                "cupy": functools.partial(by_cupy, segments=1000, op="add"),
            },
            skip=skip,
        )
    )
    return found
