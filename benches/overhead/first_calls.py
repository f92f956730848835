"""The cost of first calls: ``python -m benches.overhead.first_calls [names] [--backend torch-cuda]``.

Every primitive is called once by `auto` in a process of its own, whose cache of kernels is empty, on about 10 000
elements. The modules are imported and the arrays made before. The import of Numba counts: who calls waits for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benches.overhead import parsed, parser
from examples import backends
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared, examples

N = 10_000


def _rows() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return the calls: what is called, and its arrays.

    They are the examples of all primitives, and calls that compile other kernels.
    """
    import parprims as pp

    found = {name: (one, one.arrays) for name, one in examples(lambda: Sample((N,), dtype="float64")).items()}
    (line,), (square, other) = found["sum"][1], found["matmul"][1]
    batch = declared["solve_tridiagonal"].sampled(Sample(square.shape, 1, "float64"))
    integers = declared["matmul"].sampled(Sample((N,), dtype="int64"))
    assert batch is not None
    assert integers is not None
    own = lambda earlier, later: earlier + later + earlier * later * 1e-3  # noqa: E731
    return found | {
        "reduce, own operator": (lambda x: pp.reduce(x, own), (line,)),
        "scan, own operator": (lambda x: pp.scan(x, own), (line,)),
        "scan, own operator, 5 elements": (lambda x: pp.scan(x, own), (line[:5].copy(),)),
        "solve_tridiagonal, batch": (batch, batch.arrays),
        "matmul of integers": (integers, integers.arrays),
        "matmul, min plus": (lambda a, b: pp.matmul(a, b, add="minimum", multiply="add"), (square, other)),
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
    command = parser("first_calls", __doc__)
    command.add_argument("--backend", default="numpy", choices=(*backends.MAKERS,), help="whose arrays")
    command.add_argument("--here", action="store_true", help="measure the one call named, in this process")
    options = parsed(command, arguments, _rows())
    if options.here:
        print(json.dumps(measure(options.names[0], options.backend)))
        return 0
    print(f"{'first call, empty cache':32} {'wall s':>7} {'CPU s':>7}  method, {options.backend}")
    for name in options.names or _rows():
        with tempfile.TemporaryDirectory() as folder:
            words = ("-m", "benches.overhead.first_calls", name, "--here", "--backend", options.backend)
            environment = {**os.environ, "PARPRIMS_CACHE_DIR": folder}
            told = subprocess.run(
                [sys.executable, *words], env=environment, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        row = json.loads(told.splitlines()[-1])
        print(f"{name:32} {row['wall']:7.2f} {row['cpu']:7.2f}  {row['method']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
