"""The cost of JAX's programs: ``python -m benches.overhead.programs [names]``.

Every primitive is called once by method `array` on arrays of JAX in a CPU's memory, most of them of 1000 float32. A row
has the seconds until the first result is there, most of which XLA compiles for, and the memory maps that the
program keeps. A process may have 65 530 of these.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benches.overhead import parsed, parser
from parprims._core.programs import memory_maps
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import examples

N, SIDE = 1000, 300


def rows() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """Return the calls: what is called with ``method="array"``, and its arrays.

    They are the examples of all primitives, products of a size that has tiles, and ways that a primitive takes by its
    options or by an operator of the caller's.
    """
    import parprims as pp

    found = examples(lambda: Sample((N,), fixed=True))
    found |= {"matmul": examples(lambda: Sample((SIDE * SIDE,)))["matmul"]}
    affine = pp.Operator(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), components=2)
    pair, system, squares = (found[name].arrays for name in ("vecdot", "solve_tridiagonal", "matmul"))
    return {name: (one, one.arrays) for name, one in found.items()} | {
        "reduce, own operator": (lambda *xs, **how: pp.reduce(xs, affine, **how), pair),
        "scan, own operator": (lambda *xs, **how: pp.scan(xs, affine, **how), pair),
        "quantile, two": (lambda x, **how: pp.quantile(x, (0.1, 0.3), **how), pair[:1]),
        "histogram with weights": (lambda x, w, **how: pp.histogram(x, 10, weights=w, **how), pair),
        "solve_tridiagonal, periodic": (lambda *xs, **how: pp.solve_tridiagonal(*xs, periodic=True, **how), system),
        "solve_tridiagonal, no exchanges": (
            lambda *xs, **how: pp.solve_tridiagonal(*xs, pivot="none", **how), system,
        ),
        "matmul, min plus": (lambda a, b, **how: pp.matmul(a, b, add="minimum", multiply="add", **how), squares),
    }  # fmt: skip


def cost(call: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> tuple[float, float, int]:
    """Return the seconds that the first call takes, those of all processors, and the memory maps of its program."""
    import jax

    given = [jax.numpy.asarray(one) for one in arrays]
    before, wall, cpu = memory_maps(), time.perf_counter(), time.process_time()
    jax.block_until_ready(call(*given, method="array"))
    return time.perf_counter() - wall, time.process_time() - cpu, memory_maps() - before


def main(arguments: list[str] | None = None) -> int:
    """Print a row for every call; return the exit status."""
    command = parser("programs", __doc__)
    found = rows()
    options = parsed(command, arguments, found)
    cost(found["sum"][0], (np.ones(3, np.float32),))  # what starts JAX
    print(f"{'first call by array, JAX':32} {'wall s':>7} {'CPU s':>7} {'maps':>5}")
    for name in options.names or found:
        wall, cpu, kept = cost(*found[name])
        print(f"{name:32} {wall:7.2f} {cpu:7.2f} {kept:5}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
