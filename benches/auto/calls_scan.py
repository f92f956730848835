"""Scans and recurrences by which `auto` is judged on a CPU, and their peers."""

from __future__ import annotations

import functools
import math

import numpy as np

import parprims
from benches.auto.calls import FEW, Call, line, side_by_side, small_integers
from benches.core.cases import Problem
from benches.peers import by_numba
from benches.peers.by_numba import total_dtype
from benches.primitives import reduce as bench_reduce
from benches.primitives import scan as bench_scan
from benches.primitives import sort as bench_sort


def cumulative_sum_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    result = total_dtype(dtype)

    def make(rng):
        x = small_integers(rng, shape, dtype)
        return Problem((x,), x.cumsum(axis, dtype=np.int64).astype(result))

    def by_steps(x):
        out = np.empty(shape, result)
        rows, sums = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
        sums[0] = rows[0]
        for i in range(1, len(rows)):
            np.add(sums[i - 1], rows[i], out=sums[i])
        return out

    peers = {
        "np.cumsum": lambda x: np.cumsum(x, axis),
        "np.add.accumulate": lambda x: np.add.accumulate(x, axis, result),
        "torch.cumsum": lambda x: x.cumsum(axis),
        "jax.numpy.cumsum": lambda x: x.cumsum(axis),
        "numba loop": lambda x: by_numba.cumulative_sum(x, axis),
    }
    if side_by_side(shape, axis):
        peers["numpy loop"] = by_steps
    run = functools.partial(parprims.cumulative_sum, axis=axis)
    return Call("cumulative_sum", "cumulative_sum", dtype, shape, axis, make, run, peers)


def factors(rng: np.random.Generator, shape: tuple[int, ...], axis: int, dtype: str) -> tuple[np.ndarray, ...]:
    """Return the factors 1 and -1 of a recurrence, 1 alone for unsigned dtypes, and their products."""
    a = np.ones(shape, np.int8)
    if np.dtype(dtype).kind != "u":
        a = 2 * bench_reduce.integers(rng, shape, 0, 1) - 1
    return a, np.cumprod(a, axis, np.int8)


def recurrence_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        # With factors 1 and -1 the answer is exact: x[n] = p[n] * sum of p[k] b[k], where p is the product of factors.
        a, p = factors(rng, shape, axis, dtype)
        b = small_integers(rng, shape, dtype)
        x = p * np.cumsum(p * b.astype(np.int64), axis)
        return Problem((a.astype(dtype), b), x.astype(dtype))

    def by_steps(a, b):
        out = np.empty(shape, dtype)
        a, b, x = (np.moveaxis(one, axis, 0) for one in (a, b, out))
        x[0] = b[0]
        for i in range(1, len(x)):
            np.multiply(a[i], x[i - 1], out=x[i])
            x[i] += b[i]
        return out

    def by_python(a, b):
        found, last = [], 0
        for factor, term in zip(a.tolist(), b.tolist(), strict=True):
            last = factor * last + term
            found.append(last)
        return np.array(found, dtype)

    peers = {
        "numba loop": lambda a, b: by_numba.recurrence(a, b, axis),
        "jax.lax.scan": functools.partial(by_lax_scan, axis=axis),
        "jax.lax.associative_scan": functools.partial(by_associative_scan, axis=axis),
    }
    if side_by_side(shape, axis):
        peers |= {"numpy loop": by_steps, "torch loop": functools.partial(by_torch_steps, axis=axis)}
    if math.prod(shape) <= FEW and len(shape) == 1:
        peers["python loop"] = by_python
    run = functools.partial(parprims.linear_recurrence, axis=axis)
    return Call("linear_recurrence", "linear_recurrence", dtype, shape, axis, make, run, peers)


def by_lax_scan(a, b, axis):
    import jax

    def step(last, now):
        last = now[0] * last + now[1]
        return last, last

    a, b = (jax.numpy.moveaxis(x, axis, 0) for x in (a, b))
    return jax.numpy.moveaxis(jax.lax.scan(step, jax.numpy.zeros_like(b[0]), (a, b))[1], 0, axis)


def by_associative_scan(a, b, axis):
    import jax

    return jax.lax.associative_scan(lambda e, f: (f[0] * e[0], f[0] * e[1] + f[1]), (a, b), axis=axis)[1]


def by_torch_steps(a, b, axis):
    import torch

    last, found = torch.zeros_like(b.select(axis, 0)), []
    for factor, term in zip(a.unbind(axis), b.unbind(axis), strict=True):
        last = torch.addcmul(term, factor, last)
        found.append(last)
    return torch.stack(found, axis)


def maximum_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), dtype).reshape(shape)
        return Problem((x,), np.maximum.accumulate(x, axis))

    def by_lax(x):
        import jax

        return jax.lax.cummax(x, axis)

    peers = {
        "np.maximum.accumulate": lambda x: np.maximum.accumulate(x, axis),
        "torch.cummax": lambda x: x.cummax(axis)[0],
        "jax.lax.cummax": by_lax,
        "numba loop": lambda x: by_numba.maxima(x, axis),
    }

    def run(x, *, method):
        return parprims.scan(x, "maximum", axis=axis, method=method)

    return Call("scan", "scan maximum", dtype, shape, axis, make, run, peers)


def exclusive_call(n: int) -> Call:
    def by_slices(x):
        out = np.empty_like(x)
        out[0] = 0
        np.cumsum(x[:-1], out=out[1:])
        return out

    peers = {"np.cumsum": by_slices}
    run = functools.partial(parprims.scan, exclusive=True)
    return line("scan", "scan sum, exclusive", "float64", n, bench_scan.b9, run, peers)


def argmaxima_call(n: int) -> Call:
    peers = {"numba loop": by_numba.argmaxima, "torch.cummax": lambda x, _: tuple(x.cummax(0))}

    def run(x, index, *, method):
        return parprims.scan((x, index), "argmax", method=method)

    return line("scan", "scan argmax", "float32", n, bench_scan.argmax_problem, run, peers)


def logaddexp_call(n: int) -> Call:
    def make(rng, n):
        x = rng.standard_normal(n)
        y = np.logaddexp.accumulate(x)
        # Each step rounds a few times, relatively to results that are no larger than these.
        return Problem((x,), y, 8 * n * 2.0**-52 * (1 + abs(y).max()))

    peers = {
        "np.logaddexp.accumulate": np.logaddexp.accumulate,
        "torch.logcumsumexp": lambda x: x.logcumsumexp(0),
        "numba loop": by_numba.log_sums,
    }

    def run(x, *, method):
        return parprims.scan(x, "logaddexp", method=method)

    return line("scan", "scan logaddexp", "float64", n, make, run, peers)


def constant_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    """Return a recurrence with one factor for all, which SciPy has as a filter."""

    def make(rng):
        b = small_integers(rng, shape, dtype)
        p = (1 - 2 * (np.arange(shape[axis]) % 2)).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        return Problem((b, np.array(-1, dtype)), (p * np.cumsum(p * b.astype(np.int64), axis)).astype(dtype))

    def by_filter(b, a):
        from scipy.signal import lfilter

        return lfilter(np.ones(1, dtype), np.array([1, -a.item()], dtype), b, axis)

    def by_python(b, a):
        found, last, factor = [], 0.0, a.item()
        for term in b.tolist():
            last = factor * last + term
            found.append(last)
        return np.array(found, dtype)

    def by_steps(b, a):
        import jax

        return by_lax_scan(jax.numpy.broadcast_to(a, b.shape), b, axis)

    peers = {
        "scipy lfilter": by_filter,
        "numba loop": lambda b, a: by_numba.constant_recurrence(a, b, axis),
        "jax.lax.scan": by_steps,
    }
    if math.prod(shape) <= FEW and len(shape) == 1:
        peers["python loop"] = by_python

    def run(b, a, *, method):
        return parprims.linear_recurrence(a, b, axis=axis, method=method)

    return Call("linear_recurrence", "linear_recurrence, constant a", dtype, shape, axis, make, run, peers)


def ewm_call(n: int) -> Call:
    """Return the exponentially weighted mean y[n] = y[n-1] / 2 + x[n] / 2 from y[0] = x[0]."""

    def make(rng, n):
        x = rng.standard_normal(n)
        y = np.zeros(n)
        for k in range(min(n, 80)):
            y[k:] += x[: n - k] * 0.5 ** (k + 1)
        y += x[0] * 0.5 ** np.arange(1, n + 1)
        return Problem((x,), y, 128 * 2.0**-53 * abs(x).max())  # the sum of 80 terms rounds as often

    def by_pandas(x):
        import pandas

        return pandas.Series(x).ewm(alpha=0.5, adjust=False).mean().to_numpy()

    def by_filter(x):
        from scipy.signal import lfilter

        return lfilter([0.5], [1.0, -0.5], x, zi=0.5 * x[:1])[0]

    def by_loop(x):
        halves = 0.5 * x
        halves[0] = x[0]
        return by_numba.constant_recurrence(0.5, halves)

    half = np.array(0.5)

    def run(x, *, method):
        return parprims.linear_recurrence(half, half * x, initial=x[0], method=method)

    peers = {"pandas ewm": by_pandas, "scipy lfilter": by_filter, "numba loop": by_loop}
    return line("linear_recurrence", "exponentially weighted mean", "float64", n, make, run, peers)


def gradient_call(shape: tuple[int, ...], axis: int) -> Call:
    """Return the solution of a recurrence with the derivatives along g: db[n] = g[n] + a[n+1] db[n+1]."""

    def make(rng):
        a, p = factors(rng, shape, axis, "float64")
        b, g = (small_integers(rng, shape, "float64") for _ in range(2))
        x = p * np.cumsum(p * b, axis)
        db = p * np.flip(np.cumsum(np.flip(p * g, axis), axis), axis)
        before = np.roll(x, 1, axis)
        np.moveaxis(before, axis, 0)[0] = 0
        return Problem((a.astype("float64"), b, g), (x, db * before, db))

    def of(solve):
        return functools.partial(bench_scan.gradient, functools.partial(solve, axis=axis))

    def run(a, b, g, *, method):
        return bench_scan.gradient(functools.partial(parprims.linear_recurrence, axis=axis, method=method), a, b, g)

    peers = {"numba loop": lambda a, b, g: by_numba.recurrence_gradient(a, b, g, axis), "jax.lax.scan": of(by_lax_scan)}
    peers["jax.lax.associative_scan"] = of(by_associative_scan)
    if side_by_side(shape, axis):
        peers["torch loop"] = of(by_torch_steps)
    name = "linear_recurrence, gradient"
    return Call("linear_recurrence", name, "float64", shape, axis, make, run, peers, compiled=True)
