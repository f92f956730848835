"""Scans and linear recurrences: every element read once and written once, so what counts is the copy rate."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.harness import Case, Problem, Scale, library


def integers(rng, shape, low=-8, high=8):
    """Return small integers, whose float32 sums in any order are exact, so the gate allows no error."""
    return rng.integers(low, high + 1, shape, dtype=np.int8)


@functools.cache
def _cuda_compute(op, inclusive, dtype, n, start):
    """Return cuda.compute's scan object, its scratch and what else every call needs, made once."""
    import cupy
    from cuda.compute import OpKind, make_exclusive_scan, make_inclusive_scan

    options = {"op": OpKind[op], "init_value": np.array([start], dtype)}
    make = make_inclusive_scan if inclusive else make_exclusive_scan
    x, out = cupy.empty(n, dtype), cupy.empty(n, dtype)
    scanner = make(d_in=x, d_out=out, **options)
    scratch = scanner(temp_storage=None, d_in=x, d_out=out, num_items=n, **options)
    return scanner, cupy.empty(max(1, scratch), np.uint8), options


def cuda_compute(op, start=0.0, *, inclusive=True):
    def call(cupy, x):
        scanner, scratch, options = _cuda_compute(op, inclusive, x.dtype, x.size, start)
        out = cupy.empty_like(x)
        scanner(temp_storage=scratch, d_in=x, d_out=out, num_items=x.size, **options)
        return out

    return call


def sum_problem(rng, shape, dtype="float32"):
    x = integers(rng, shape)
    return Problem((x.astype(dtype),), np.cumsum(x, axis=-1, dtype=np.int32).astype(dtype))


def cumulative_maximum(xp, x):
    if xp.__name__ == "torch":
        return xp.cummax(x, 0)[0]
    if xp.__name__ == "jax.numpy":
        import jax

        return jax.lax.cummax(x)
    return xp.maximum.accumulate(x)


def maximum_problem(rng, n):
    # Rising on the whole, so that the maximum changes all along the array.
    x = rng.random(n, np.float32) + np.linspace(0, 4, n, dtype=np.float32)
    return Problem((x,), np.maximum.accumulate(x))


def b9(rng, n):
    x = rng.integers(0, 1000, n)
    total = np.cumsum(x)
    return Problem((x.astype(np.float64),), (total - x).astype(np.float64))


def scans(scale: Scale):
    for k in scale.pick((16,), (16, 20, 24), (16, 20, 24, 26, 28)):
        yield Case(
            "cumulative_sum",
            f"sum, 2^{k}",
            functools.partial(sum_problem, shape=2**k),
            parprims.cumulative_sum,
            {**library(lambda xp, x: xp.cumsum(x, 0)), "cuda.compute": cuda_compute("PLUS")},
        )
    shape = scale.pick((64, 1024), (512, 4096), (16384, 16384))
    yield Case(
        "cumulative_sum",
        f"sum of rows, {shape[0]} x {shape[1]}",
        functools.partial(sum_problem, shape=shape),
        functools.partial(parprims.cumulative_sum, axis=-1),
        library(lambda xp, x: xp.cumsum(x, -1)),
    )
    k = scale.pick(16, 22, 26)
    peers = library(cumulative_maximum)
    del peers["cupy"]  # its ufunc.accumulate knows sums and products only
    yield Case(
        "scan",
        f"maximum, 2^{k}",
        functools.partial(maximum_problem, n=2**k),
        lambda x, method: parprims.scan(x, "maximum", method=method),
        {**peers, "cuda.compute": cuda_compute("MAXIMUM", -np.inf)},
    )
    n = scale.pick(10**5, 10**7, 10**8)
    yield Case(
        "scan",
        f"B9, {n:.0e}".replace("e+0", "e"),
        functools.partial(b9, n=n),
        functools.partial(parprims.scan, exclusive=True),
        {**library(lambda xp, x: xp.cumsum(x, 0) - x), "cuda.compute": cuda_compute("PLUS", inclusive=False)},
    )


def recurrence_problem(rng, shape):
    # With factors 1 and -1 the answer is exact: x[n] = p[n] * sum of p[k] b[k], where p is the product of factors.
    a = 2 * integers(rng, shape, 0, 1) - 1
    b = integers(rng, shape)
    p = np.cumprod(a, axis=-1, dtype=np.int8)
    x = p * np.cumsum(p * b, axis=-1, dtype=np.int32)
    return Problem((a.astype(np.float32), b.astype(np.float32)), x.astype(np.float32))


def b10(rng):
    a, b = rng.uniform(0, 2, 100), rng.uniform(0, 2, 100)
    # All terms are positive, so each of the at most 100 roundings of a product and a sum is a relative error.
    x = by_loop(np, a, b)
    return Problem((a, b), x, 200 * 2.0**-52 * x)


def by_loop(np, a, b):
    x = np.empty_like(b)
    last = 0.0
    for n in range(b.shape[-1]):
        last = x[..., n] = a[..., n] * last + b[..., n]
    return x


def by_associative_scan(_, a, b):
    import jax

    return jax.lax.associative_scan(lambda e, f: (f[0] * e[0], f[0] * e[1] + f[1]), (a, b), axis=a.ndim - 1)[1]


def by_accelerated_scan(_, a, b):
    from accelerated_scan.scalar import scan

    return scan(a, b)


def recurrences(scale: Scale):
    yield Case(
        "linear_recurrence",
        "B10, 100",
        b10,
        parprims.linear_recurrence,
        {"numpy": by_loop, "jax": by_associative_scan},
        whole_call=True,
    )
    for k in scale.pick((16,), (16, 20, 22), (16, 20, 24, 26)):
        yield Case(
            "linear_recurrence",
            f"one sequence, 2^{k}",
            functools.partial(recurrence_problem, shape=2**k),
            parprims.linear_recurrence,
            {"jax": by_associative_scan},
        )
    batches = scale.pick(
        ((1, 64, 1024),),
        ((1, 256, 4096),),
        ((8, 1536, 2048), (8, 1536, 16384), (1, 1536, 65536)),
    )
    for shape in batches:
        yield Case(
            "linear_recurrence",
            f"batch, {' x '.join(map(str, shape))}",
            functools.partial(recurrence_problem, shape=shape),
            parprims.linear_recurrence,
            {"numpy": by_loop, "jax": by_associative_scan, "accelerated-scan": by_accelerated_scan},
        )


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    return [*scans(scale), *recurrences(scale)]
