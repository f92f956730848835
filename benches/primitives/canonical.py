"""Scans, recurrences and matrix products in the canonical grouping, on GPUs.

Compare each case with the case of `scan` or `matmul` that has the same size: that one runs the usual grouping. On CPUs
kernels have the canonical grouping only, so there are no cases.
"""

from __future__ import annotations

import functools

import parprims
from benches.core.cases import Case, Scale
from benches.primitives.matmul import random_problem
from benches.primitives.scan import recurrence_problem, sum_problem, transposed_problem

OTHERS = dict.fromkeys(("array", "native"), "it is timed in the case of the usual grouping")


def canonical(function, *arrays, method, **options):
    """Call a function by method canonical where a bench asks for its kernel."""
    return function(*arrays, method="canonical" if method == "kernel" else method, **options)


def cases(scale: Scale):
    if not scale.gpu:
        return
    rows = scale.pick((64, 1024), None, (16384, 16384))
    lines, short = scale.pick((64, 100), None, (65536, 1000)), scale.pick((1024, 64), None, (2**20, 64))
    narrow = scale.pick((4096, 16), None, (2**24, 16))
    k = scale.pick(16, None, 28)
    for name, shape, axis in (
        (f"line, 2^{k}", (2**k,), 0),
        *((f"rows, {m} x {n}", (m, n), 1) for m, n in (rows, lines, short)),
        *((f"columns, {m} x {n}", (m, n), 0) for m, n in (rows, narrow)),
    ):
        yield Case(
            "cumulative_sum",
            f"canonical sum of {name}",
            functools.partial(sum_problem, shape=shape, axis=axis),
            functools.partial(canonical, parprims.cumulative_sum, axis=axis),
            skip=OTHERS,
        )
    m, n = scale.pick((64, 1024), None, (2048, 32768))
    for name, make, axis in (
        (f"rows, {m} x {n}", recurrence_problem, 1),
        (f"columns, {n} x {m}", transposed_problem, 0),
    ):
        yield Case(
            "linear_recurrence",
            f"canonical recurrence of {name}",
            functools.partial(make, shape=(m, n)),
            functools.partial(canonical, parprims.linear_recurrence, axis=axis),
            skip=OTHERS,
        )
    side = scale.pick(256, None, 4096)
    for rows_of_a in (side, 1):
        for dtype in ("float32", "float16"):
            yield Case(
                "matmul",
                f"canonical product of {dtype}, {rows_of_a} x {side} x {side}",
                functools.partial(random_problem, shape=(rows_of_a, side, side), dtype=dtype),
                functools.partial(canonical, parprims.matmul),
                unit="FLOP/s" if rows_of_a > 1 else "B/s",
                work=2 * rows_of_a * side * side if rows_of_a > 1 else None,
                ceiling="matmul bfloat16" if rows_of_a > 1 else "read",
                skip=OTHERS,
            )
