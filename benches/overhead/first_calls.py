"""The cost of first calls: ``python -m benches.overhead.first_calls [names] [--backend torch-cuda]``.

Every primitive is called once by `auto` in a process of its own, whose cache of kernels is empty, on about 10 000
elements. The modules are imported and the arrays made before. The import of Numba counts: who calls waits for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from examples import backends

N, SIDE = 10_000, 100


def _rows() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return the calls: what is called, and its arrays."""
    import parprims as pp

    rng = np.random.default_rng(1)

    def x(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape or (N,))

    line, square, numbers = x(), x(SIDE, SIDE), rng.integers(0, 9, (SIDE, SIDE))
    offsets, ordered, dominant = np.arange(0, N + 1, 100), np.sort(x()), x() + 8
    blocks, two = x(N // 4, 2, 2), 8 * np.eye(2)
    own = lambda earlier, later: earlier + later + earlier * later * 1e-3  # noqa: E731
    one = {
        name: (getattr(pp, name), (line,))
        for name in (
            "sum prod max min any all argmax argmin cumulative_sum cumulative_prod cumulative_max cumulative_min "
            "cumulative_logsumexp sort argsort median histogram unique run_lengths"
        ).split()
    }
    return one | {
        "vecdot": (pp.vecdot, (line, line)),
        "map_reduce": (lambda x: pp.map_reduce(lambda v: v * v + 1, x, op="add"), (line,)),
        "reduce, own operator": (lambda x: pp.reduce(x, own), (line,)),
        "reduce by offsets": (lambda x, offsets: pp.reduce(x, "add", offsets=offsets), (line, offsets)),
        "scan, own operator": (lambda x: pp.scan(x, own), (line,)),
        "scan, own operator, 5 elements": (lambda x: pp.scan(x, own), (line[:5].copy(),)),
        "scan by offsets": (lambda x, offsets: pp.scan(x, "add", offsets=offsets), (line, offsets)),
        "linear_recurrence": (pp.linear_recurrence, (line * 0.1, line)),
        "lfilter": (lambda x, b, a: pp.lfilter(b, a, x), (line, np.array([1.0, 0.2]), np.array([1.0, -0.3, 0.1]))),
        "sosfilt": (lambda x, s: pp.sosfilt(s, x), (line, np.array([[1.0, 0.2, 0.1, 1.0, -0.3, 0.1]]))),
        "sort_by_key": (pp.sort_by_key, (line, line)),
        "top_k": (lambda x: pp.top_k(x, 10), (line,)),
        "partition": (lambda x: pp.partition(x, 10), (line,)),
        "argpartition": (lambda x: pp.argpartition(x, 10), (line,)),
        "quantile": (lambda x: pp.quantile(x, 0.3), (line,)),
        "searchsorted": (pp.searchsorted, (ordered, line)),
        "merge": (pp.merge, (ordered, ordered)),
        "merge_by_key": (pp.merge_by_key, (ordered, line, ordered, line)),
        "select": (pp.select, (line, line > 0)),
        "partition_by": (pp.partition_by, (line, line > 0)),
        "segment_reduce": (lambda x, ids: pp.segment_reduce(x, ids, 100), (line, np.arange(N) // 100)),
        "solve_tridiagonal": (pp.solve_tridiagonal, (line, dominant, line, line)),
        "solve_tridiagonal, batch": (pp.solve_tridiagonal, (square, square + 8, square, square)),
        "solve_banded": (lambda ab, b: pp.solve_banded((1, 1), ab, b), (np.stack([line, dominant, line]), line)),
        "solve_block_tridiagonal": (pp.solve_block_tridiagonal, (blocks, blocks + two, blocks, x(N // 4, 2))),
        "matmul": (pp.matmul, (square, square)),
        "matmul of integers": (pp.matmul, (numbers, numbers)),
        "matmul, min plus": (lambda a, b: pp.matmul(a, b, add="minimum", multiply="add"), (square, square)),
    }


def measure(name: str, backend: str) -> dict[str, Any]:
    """Return what the first call of this process costs."""
    import parprims

    made = backends.make(backend)
    call, arrays = _rows()[name]
    given = [made.asarray(one) for one in arrays]
    made.wait(given)
    wall, cpu = time.perf_counter(), time.process_time()
    with parprims.explain() as calls:
        made.wait(call(*given))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"name": name, "wall": wall, "cpu": cpu, "method": calls[-1].method}


def main(arguments: list[str] | None = None) -> int:
    """Print a row for every call; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.overhead.first_calls", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; default: all")
    parser.add_argument("--backend", default="numpy", choices=(*backends.MAKERS,), help="whose arrays")
    parser.add_argument("--here", action="store_true", help="measure the one call named, in this process")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure(options.names[0], options.backend)))
        return 0
    print(f"{'first call, empty cache':32} {'wall s':>7} {'CPU s':>7}  method, {options.backend}")
    for name in options.names or _rows():
        with tempfile.TemporaryDirectory() as folder:
            words = ("-m", "benches.overhead.first_calls", name, "--here", "--backend", options.backend)
            environment = {**os.environ, "PARPRIMS_CACHE_DIR": folder}
            command = [sys.executable, *words]
            told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = json.loads(told.splitlines()[-1])
        print(f"{name:32} {row['wall']:7.2f} {row['cpu']:7.2f}  {row['method']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
