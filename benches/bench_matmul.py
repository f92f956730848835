"""Matrix products: operations per second, beside the machine's own product of the dtype."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.harness import Case, Problem, Scale, library

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


def product(a, b):
    """Return the problem of multiplying two matrices, whose reference is their product in float64."""
    name = a.dtype.name
    if a.dtype.kind in "iu":
        return Problem((a, b), a.astype(np.int64) @ b.astype(np.int64))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = wide_a @ wide_b
    # Sums of k products are formed in float32 at least: their errors grow like sqrt(k), the result is rounded once.
    working = max(ROUNDING["float64"], min(ROUNDING["float32"], ROUNDING[name]))
    size = abs(a).astype(np.float32) @ abs(b).astype(np.float32)
    allowed = 2 * np.sqrt(a.shape[1]) * working * size + 2 * ROUNDING[name] * abs(exact)
    return Problem((a, b), exact.astype(a.dtype), allowed)


def a_problem(_, n):
    i, j = np.arange(n, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64)
    a = (i - 0.1 * j + 1) / (i + j + 1)
    b = (j - 0.2 * i + 1) * (i + j + 1) / (i * i + j * j + 1)
    return product(a.astype(np.float32), b.astype(np.float32))


def random_problem(rng, n, dtype):
    if dtype.startswith("int"):
        return product(*(rng.integers(-9, 10, (n, n), dtype=dtype) for _ in range(2)))
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return product(*(rng.standard_normal((n, n), np.float32).astype(dtype) for _ in range(2)))


PEERS = {
    **library(lambda xp, a, b: xp.matmul(a, b), jax=lambda jnp, a, b: jnp.matmul(a, b, precision="highest")),
    "cublas": lambda cupy, a, b: cupy.dot(a, b),
}


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    largest = scale.pick(275, 512, 2048)
    found = []

    def add(name, make, n, dtype):
        ceiling = f"matmul {dtype}" if dtype in ROUNDING else None
        skip = {"array": "it would take too long"} if n > largest else {}
        peers = PEERS
        if ceiling is None:
            peers = {name: call for name, call in PEERS.items() if name in ("numpy", "jax")}
        run = parprims.matmul
        found.append(Case("matmul", name, make, run, peers, "FLOP/s", 2 * n**3, ceiling, skip=skip))

    for n in scale.pick((128,), (256, 512, 4096), (512, 4096)):
        add(f"A, {n}", functools.partial(a_problem, n=n), n, "float32")
    for n in scale.pick((128,), (256, 1024), (1024, 4096, 8192)):
        add(f"C, {n}", functools.partial(random_problem, n=n, dtype="float64"), n, "float64")
    add("B6, 275", functools.partial(random_problem, n=275, dtype="float32"), 275, "float32")
    for n in scale.pick((256,), (512, 2048), (1024, 4096, 8192)):
        add(f"square, {n}", functools.partial(random_problem, n=n, dtype="float32"), n, "float32")
    if scale.gpu:
        for dtype in ("float16", "bfloat16"):
            for n in scale.pick((512,), (), (1024, 4096, 8192)):
                add(f"square, {n}", functools.partial(random_problem, n=n, dtype=dtype), n, dtype)
    n = scale.pick(64, 256, 1024)
    add(f"square, {n}", functools.partial(random_problem, n=n, dtype="int32"), n, "int32")
    return found
