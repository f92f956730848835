"""The cost of JAX's programs: ``python -m benches.overhead.programs [names]``.

Every primitive is called once by method `array` on arrays of JAX in a CPU's memory, most of them of 1000 float32. A row
has the seconds until the first result is there, most of which XLA compiles for, and the memory maps that the
program keeps. A process may have 65 530 of these.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.programs import memory_maps

N, SIDE = 1000, 300


def rows() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """Return the calls: what is called with ``method="array"``, and its arrays."""
    import parprims as pp

    rng = np.random.default_rng(1)

    def x(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape or (N,)).astype(np.float32)

    line, square, ordered, dominant, small = x(), x(SIDE, SIDE), np.sort(x()), np.abs(x()) + 4, x() * np.float32(0.1)
    keys, mask, offsets = rng.integers(0, 100, N, dtype=np.int32), line > 0, np.asarray([0, 300, 500, N], np.int32)
    blocks, two = x(N // 2, 2, 2) * np.float32(0.3), 4 * np.eye(2, dtype=np.float32)
    bands = x(4, N) + np.asarray([[0], [0], [8], [0]], np.float32)
    b, a = np.asarray([1, 0.2, 0.1], np.float32), np.asarray([1, 0.3, 0.1], np.float32)
    sections = np.asarray([[1, 0.2, 0.1, 1, 0.3, 0.1], [1, 0.1, 0.1, 1, -0.3, 0.2]], np.float32)
    affine = pp.Operator(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), components=2)
    names = (
        "sum prod max min vecdot argmax argmin cumulative_sum cumulative_prod cumulative_max cumulative_min "
        "cumulative_logsumexp scan reduce sort argsort sort_by_key median searchsorted merge merge_by_key "
        "linear_recurrence solve_tridiagonal solve_block_tridiagonal matmul any all"
    ).split()
    arrays: dict[str, tuple[np.ndarray, ...]] = {
        "vecdot": (line, dominant),
        "sort_by_key": (keys, line),
        "searchsorted": (ordered, line),
        "merge": (ordered, ordered),
        "merge_by_key": (ordered, line, ordered, small),
        "linear_recurrence": (small, line),
        "solve_tridiagonal": (line, dominant, line, line),
        "solve_block_tridiagonal": (blocks, blocks + two, blocks, x(N // 2, 2)),
        "matmul": (square, square),
        "any": (mask,),
        "all": (mask,),
    }
    plain = {name: (getattr(pp, name), arrays.get(name, (line,))) for name in names}
    return plain | {
        "map_reduce": (lambda x, **how: pp.map_reduce(lambda v: v * v, x, **how), (line,)),
        "reduce, own operator": (lambda *xs, **how: pp.reduce(xs, affine, **how), (small, line)),
        "reduce by offsets": (lambda x, o, **how: pp.reduce(x, offsets=o, **how), (line, offsets)),
        "scan, own operator": (lambda *xs, **how: pp.scan(xs, affine, **how), (small, line)),
        "scan by offsets": (lambda x, o, **how: pp.scan(x, offsets=o, **how), (line, offsets)),
        "sort by offsets": (lambda x, o, **how: pp.sort(x, offsets=o, **how), (line, offsets)),
        "segment_reduce": (lambda x, ids, **how: pp.segment_reduce(x, ids, 100, **how), (line, keys)),
        "linear_recurrence of matrices": (
            lambda a, b, **how: pp.linear_recurrence(a, b, matrices=True, **how),
            (blocks, x(N // 2, 2)),
        ),
        "top_k": (lambda x, **how: pp.top_k(x, 5, **how), (line,)),
        "partition": (lambda x, **how: pp.partition(x, 5, **how), (line,)),
        "argpartition": (lambda x, **how: pp.argpartition(x, 5, **how), (line,)),
        "quantile": (lambda x, **how: pp.quantile(x, (0.1, 0.3), **how), (line,)),
        "select": (lambda x, k, **how: pp.select(x, k, size=50, **how), (line, mask)),
        "partition_by": (pp.partition_by, (line, mask)),
        "run_lengths": (lambda x, **how: pp.run_lengths(x, size=50, **how), (keys,)),
        "unique": (lambda x, **how: pp.unique(x, size=50, **how), (keys,)),
        "histogram": (lambda x, **how: pp.histogram(x, 10, **how), (line,)),
        "histogram with weights": (lambda x, w, **how: pp.histogram(x, 10, weights=w, **how), (line, small)),
        "solve_tridiagonal, periodic": (
            lambda *system, **how: pp.solve_tridiagonal(*system, periodic=True, **how),
            (line, dominant, line, line),
        ),
        "solve_tridiagonal, no exchanges": (
            lambda *system, **how: pp.solve_tridiagonal(*system, pivot="none", **how),
            (small, dominant, small, line),
        ),
        "solve_banded": (lambda ab, b, **how: pp.solve_banded((1, 2), ab, b, **how), (bands, line)),
        "lfilter": (lambda x, b, a, **how: pp.lfilter(b, a, x, **how), (line, b, a)),
        "sosfilt": (lambda x, s, **how: pp.sosfilt(s, x, **how), (line, sections)),
        "matmul, min plus": (
            lambda a, b, **how: pp.matmul(a, b, add="minimum", multiply="add", **how),
            (square, square),
        ),
    }


def cost(call: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> tuple[float, float, int]:
    """Return the seconds that the first call takes, those of all processors, and the memory maps of its program."""
    import jax

    given = [jax.numpy.asarray(one) for one in arrays]
    before, wall, cpu = memory_maps(), time.perf_counter(), time.process_time()
    jax.block_until_ready(call(*given, method="array"))
    return time.perf_counter() - wall, time.process_time() - cpu, memory_maps() - before


def main(arguments: list[str] | None = None) -> int:
    """Print a row for every call; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.overhead.programs", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; default: all")
    options = parser.parse_args(arguments)
    found = rows()
    cost(found["sum"][0], (np.ones(3, np.float32),))  # what starts JAX
    print(f"{'first call by array, JAX':32} {'wall s':>7} {'CPU s':>7} {'maps':>5}")
    for name in options.names or found:
        wall, cpu, kept = cost(*found[name])
        print(f"{name:32} {wall:7.2f} {cpu:7.2f} {kept:5}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
