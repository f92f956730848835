"""The calls by which `auto` is judged on a CPU, each with all that people would write in its place.

A peer is named after what it calls. Names that begin with ``torch`` or ``jax`` are functions of that library's arrays,
the latter compiled by it; all others are functions of NumPy's arrays, and take those of the other libraries in the
memory that they have.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import parprims
from benches import bench_matmul, bench_reduce, bench_scan, bench_sort, bench_tridiagonal
from benches.cases import Problem
from examples.backends import installed

loops: Any = None
if installed("numba"):
    from benches import loops

FEW = 1000
"""Elements up to which a loop in Python is a peer."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: the primitive with what is special about it, its arrays, and the peers.

    ``make(rng)`` returns the problem, ``run(*arrays, method=...)`` calls the primitive. With ``compiled`` JAX compiles
    that call, as people do who ask for its gradient.
    """

    primitive: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int
    make: Callable[[np.random.Generator], Problem]
    run: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any]]
    compiled: bool = False

    @property
    def lines(self) -> int:
        """How many lines there are along the axis."""
        return math.prod(self.shape) // max(1, self.shape[self.axis])


def cube(x: Any, axis: int) -> Any:
    """Return an array seen with the axes (outer, n, inner)."""
    axis %= x.ndim
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


def side_by_side(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether a NumPy loop over time has enough to do in each step."""
    return math.prod(shape) >= 16 * shape[axis] and shape[axis] <= 2**14


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return integers whose sums in any order are exact."""
    low = 0 if np.dtype(dtype).kind in "bu" else -8
    return bench_reduce.integers(rng, shape, low, 8).astype(dtype)


def total_dtype(dtype: str) -> str:
    """Return the dtype of sums."""
    return {"i": "int64", "u": "uint64"}.get(np.dtype(dtype).kind, dtype)


# ---- What stands in every row of the table ----------------------------------------------------------------------


def sum_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    result = total_dtype(dtype)

    def make(rng):
        x = small_integers(rng, shape, dtype)
        return Problem((x,), x.sum(axis, dtype=np.int64).astype(result))

    def by_numba(x):
        seen = cube(x, axis)
        out = np.zeros((seen.shape[0], seen.shape[2]), result)
        loops.total(seen, out)
        return out.reshape(shape[:axis] + shape[axis + 1 :])

    peers = {
        "np.sum": lambda x: np.sum(x, axis),
        "torch.sum": lambda x: x.sum(axis),
        "jax.numpy.sum": lambda x: x.sum(axis),
        "numba loop": by_numba,
    }
    if math.prod(shape) <= FEW and len(shape) == 1:
        peers["python loop"] = lambda x: sum(x.tolist())
    return Call("sum", "sum", dtype, shape, axis, make, functools.partial(parprims.sum, axis=axis), peers)


def cumulative_sum_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    result = total_dtype(dtype)

    def make(rng):
        x = small_integers(rng, shape, dtype)
        return Problem((x,), x.cumsum(axis, dtype=np.int64).astype(result))

    def by_numba(x):
        out = np.empty(shape, result)
        loops.cumulative_sum(cube(x, axis), cube(out, axis))
        return out

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
        "numba loop": by_numba,
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

    def by_numba(a, b):
        out = np.empty(shape, dtype)
        loops.recurrence(cube(a, axis), cube(b, axis), cube(out, axis))
        return out

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
        "numba loop": by_numba,
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


def sort_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), dtype).reshape(shape)
        return Problem((x,), np.sort(x, axis))

    peers = {
        "np.sort": lambda x: np.sort(x, axis),
        "torch.sort": lambda x: x.sort(axis)[0],
        "jax.numpy.sort": lambda x: x.sort(axis),
    }
    return Call("sort", "sort", dtype, shape, axis, make, functools.partial(parprims.sort, axis=axis), peers)


# ---- Reductions -------------------------------------------------------------------------------------------------


def line(primitive: str, name: str, dtype: str, n: int, make: Any, run: Any, peers: Mapping[str, Any]) -> Call:
    """Return a call on arrays of one axis."""
    return Call(primitive, name, dtype, (n,), 0, functools.partial(make, n=n), run, peers)


def max_call(n: int) -> Call:
    peers = {"np.max": np.max, "torch.max": lambda x: x.max(), "numba loop": lambda x: loops.maximum(x)}
    return line("max", "max", "float32", n, bench_reduce.max_problem, parprims.max, peers)


def all_call(n: int) -> Call:
    make = functools.partial(bench_reduce.truth_problem, value=False)
    peers = {"np.all": np.all, "torch.all": lambda x: x.all(), "numba loop": lambda x: loops.every(x)}
    return line("all", "all", "bool", n, make, parprims.all, peers)


def vecdot_call(n: int) -> Call:
    peers = {
        "np.dot": np.dot,
        "np.vecdot": np.vecdot,
        "torch.dot": lambda x, y: x.dot(y),
        "jax.numpy.dot": lambda x, y: x.dot(y),
        "numba loop": lambda x, y: loops.dot(x, y),
    }
    return line("vecdot", "vecdot", "float32", n, bench_reduce.vecdot_problem, parprims.vecdot, peers)


def argmax_call(shape: tuple[int, ...], axis: int) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), "float64").reshape(shape)
        index = np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        return Problem((x, np.broadcast_to(index, shape).copy()), (x.max(axis), x.argmax(axis)))

    def by_numpy(x, _):
        place = np.argmax(x, axis, keepdims=True)
        return np.take_along_axis(x, place, axis).squeeze(axis), place.squeeze(axis)

    def by_numba(x, _):
        seen, result = cube(x, axis), shape[:axis] + shape[axis + 1 :]
        best, place = np.empty((seen.shape[0], seen.shape[2])), np.empty((seen.shape[0], seen.shape[2]), np.int64)
        loops.argmax(seen, best, place)
        return best.reshape(result), place.reshape(result)

    peers = {
        "np.argmax": by_numpy,
        "torch.max": lambda x, _: tuple(x.max(axis)),
        "jax.numpy.argmax": lambda x, _: (x.max(axis), x.argmax(axis)),
        "numba loop": by_numba,
    }

    def run(x, index, *, method):
        return parprims.reduce((x, index), "argmax", axis=axis, method=method)

    return Call("reduce", "reduce argmax", "float64", shape, axis, make, run, peers)


def affine_call(n: int) -> Call:
    def by_python(a, b):
        factor, shift = 1.0, 0.0
        for one, term in zip(a.tolist(), b.tolist(), strict=True):
            factor, shift = one * factor, one * shift + term
        return np.array(factor), np.array(shift)

    peers = {"numba loop": lambda a, b: loops.affine(a, b), **({"python loop": by_python} if n <= FEW else {})}

    def run(a, b, *, method):
        return parprims.reduce((a, b), "affine", method=method)

    return line("reduce", "reduce affine", "float32", n, bench_reduce.affine_problem, run, peers)


def fused_call(n: int) -> Call:
    peers = {
        "np expression": lambda x, y, z: np.sum((x - y) ** 2 * z),
        "torch expression": lambda x, y, z: ((x - y) ** 2 * z).sum(),
        "jax expression": lambda x, y, z: ((x - y) ** 2 * z).sum(),
        "numba loop": lambda x, y, z: loops.fused(x, y, z),
    }
    run = functools.partial(parprims.map_reduce, bench_reduce.fused)
    return line("map_reduce", "map_reduce (x-y)^2 z", "float32", n, bench_reduce.fused_problem, run, peers)


def welford_call(n: int) -> Call:
    def by_numba(x):
        mean, m2 = loops.welford(x)
        return np.float32(len(x)), mean, m2

    peers = {"np.mean, np.var": functools.partial(bench_reduce.moments_by_library, np), "numba loop": by_numba}

    def run(x, *, method):
        return parprims.map_reduce(bench_reduce.moments, x, op="welford", method=method)

    return line("map_reduce", "map_reduce welford", "float32", n, bench_reduce.welford_problem, run, peers)


# ---- Scans and recurrences --------------------------------------------------------------------------------------


def maximum_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), dtype).reshape(shape)
        return Problem((x,), np.maximum.accumulate(x, axis))

    def by_numba(x):
        out = np.empty_like(x)
        loops.maxima(cube(x, axis), cube(out, axis))
        return out

    def by_lax(x):
        import jax

        return jax.lax.cummax(x, axis)

    peers = {
        "np.maximum.accumulate": lambda x: np.maximum.accumulate(x, axis),
        "torch.cummax": lambda x: x.cummax(axis)[0],
        "jax.lax.cummax": by_lax,
        "numba loop": by_numba,
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
    def by_numba(x, index):
        best, place = np.empty_like(x), np.empty_like(index)
        loops.argmaxima(x, best, place)
        return best, place

    peers = {"numba loop": by_numba, "torch.cummax": lambda x, _: tuple(x.cummax(0))}

    def run(x, index, *, method):
        return parprims.scan((x, index), "argmax", method=method)

    return line("scan", "scan argmax", "float32", n, bench_scan.argmax_problem, run, peers)


def logaddexp_call(n: int) -> Call:
    def make(rng, n):
        x = rng.standard_normal(n)
        y = np.logaddexp.accumulate(x)
        # Each step rounds a few times, relatively to results that are no larger than these.
        return Problem((x,), y, 8 * n * 2.0**-52 * (1 + abs(y).max()))

    def by_numba(x):
        out = np.empty_like(x)
        loops.log_sums(x, out)
        return out

    peers = {
        "np.logaddexp.accumulate": np.logaddexp.accumulate,
        "torch.logcumsumexp": lambda x: x.logcumsumexp(0),
        "numba loop": by_numba,
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

    def by_numba(b, a):
        out = np.empty(shape, dtype)
        loops.constant_recurrence(a.item(), cube(b, axis), cube(out, axis))
        return out

    def by_python(b, a):
        found, last, factor = [], 0.0, a.item()
        for term in b.tolist():
            last = factor * last + term
            found.append(last)
        return np.array(found, dtype)

    def by_steps(b, a):
        import jax

        return by_lax_scan(jax.numpy.broadcast_to(a, b.shape), b, axis)

    peers = {"scipy lfilter": by_filter, "numba loop": by_numba, "jax.lax.scan": by_steps}
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

    def by_numba(x):
        out, halves = np.empty_like(x), 0.5 * x
        halves[0] = x[0]
        loops.constant_recurrence(0.5, cube(halves, 0), cube(out, 0))
        return out

    half = np.array(0.5)

    def run(x, *, method):
        return parprims.linear_recurrence(half, half * x, initial=x[0], method=method)

    peers = {"pandas ewm": by_pandas, "scipy lfilter": by_filter, "numba loop": by_numba}
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

    def by_numba(a, b, g):
        x, da, db = (np.empty(shape) for _ in range(3))
        loops.recurrence(cube(a, axis), cube(b, axis), cube(x, axis))
        loops.recurrence_backward(*(cube(one, axis) for one in (a, x, g, da, db)))
        return x, da, db

    def of(solve):
        return functools.partial(bench_scan.gradient, functools.partial(solve, axis=axis))

    def run(a, b, g, *, method):
        return bench_scan.gradient(functools.partial(parprims.linear_recurrence, axis=axis, method=method), a, b, g)

    peers = {"numba loop": by_numba, "jax.lax.scan": of(by_lax_scan)}
    peers["jax.lax.associative_scan"] = of(by_associative_scan)
    if side_by_side(shape, axis):
        peers["torch loop"] = of(by_torch_steps)
    name = "linear_recurrence, gradient"
    return Call("linear_recurrence", name, "float64", shape, axis, make, run, peers, compiled=True)


# ---- Sorts and histograms ---------------------------------------------------------------------------------------


def argsort_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        x = bench_sort.keys(rng, math.prod(shape), dtype).reshape(shape)
        return Problem((x,), np.argsort(x, axis, stable=True))

    peers = {
        "np.argsort": lambda x: np.argsort(x, axis, stable=True),
        "torch.sort": lambda x: x.sort(dim=axis, stable=True)[1],
        "jax.numpy.argsort": lambda x: x.argsort(axis, stable=True),
    }
    run = functools.partial(parprims.argsort, axis=axis)
    return Call("argsort", "argsort", dtype, shape, axis, make, run, peers)


def sort_by_key_call(n: int) -> Call:
    make = functools.partial(bench_sort.by_key_problem, dtype="int32")
    peers = {
        "np.argsort": functools.partial(bench_sort.by_argsort, np),
        "torch.sort": functools.partial(bench_sort.by_torch_sort, sys.modules.get("torch")),
        "jax.lax.sort": functools.partial(bench_sort.by_jax_sort, None),
    }
    return line("sort_by_key", "sort_by_key", "int32", n, make, parprims.sort_by_key, peers)


BINS = 256


def histogram_call(n: int) -> Call:
    def make(rng, n):
        x = rng.random(n)
        return Problem((x,), np.bincount((x * BINS).astype(np.intp), minlength=BINS))

    def by_numba(x):
        counts = np.zeros(BINS, np.int64)
        loops.histogram(x, 0.0, 1.0, counts)
        return counts

    peers = {
        "np.histogram": lambda x: np.histogram(x, BINS, (0, 1))[0],
        "torch.histc": lambda x: x.histc(BINS, 0, 1).long(),
        "numba loop": by_numba,
    }

    def run(x, *, method):
        return parprims.histogram(x, BINS, range=(0.0, 1.0), method=method)[0]

    return line("histogram", "histogram, 256 bins", "float64", n, make, run, peers)


def weighted_histogram_call(n: int) -> Call:
    def make(rng, n):
        x, weights = rng.random(n), rng.random(n)
        sums = np.bincount((x * BINS).astype(np.intp), weights, BINS)
        return Problem((x, weights), sums, n * 2.0**-53 * sums)

    def by_numba(x, weights):
        sums = np.zeros(BINS)
        loops.weighted_histogram(x, weights, 0.0, 1.0, sums)
        return sums

    peers = {
        "np.histogram": lambda x, weights: np.histogram(x, BINS, (0, 1), weights=weights)[0],
        "numba loop": by_numba,
    }

    def run(x, weights, *, method):
        return parprims.histogram(x, BINS, range=(0.0, 1.0), weights=weights, method=method)[0]

    return line("histogram", "histogram, weights", "float64", n, make, run, peers)


def integer_histogram_call(n: int) -> Call:
    def make(rng, n):
        x = rng.integers(0, BINS, n)
        return Problem((x,), np.bincount(x, minlength=BINS))

    def by_numba(x):
        counts = np.zeros(BINS, np.int64)
        loops.histogram(x, 0, BINS, counts)
        return counts

    peers = {
        "np.histogram": lambda x: np.histogram(x, BINS, (0, BINS))[0],
        "np.bincount": lambda x: np.bincount(x, minlength=BINS),
        "torch.bincount": lambda x: x.bincount(minlength=BINS),
        "numba loop": by_numba,
    }

    def run(x, *, method):
        return parprims.histogram(x, BINS, range=(0, BINS), method=method)[0]

    return line("histogram", "histogram, integers", "int64", n, make, run, peers)


# ---- Tridiagonal systems ----------------------------------------------------------------------------------------


def tridiagonal_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    def make(rng):
        if axis == len(shape) - 1:
            return bench_tridiagonal.random_problem(rng, shape, dtype)
        problem = bench_tridiagonal.random_problem(rng, shape[::-1], dtype)
        inputs = tuple(np.ascontiguousarray(x.T) for x in problem.inputs)
        return Problem(inputs, np.ascontiguousarray(problem.expected.T), problem.allowed)

    def by_lapack(lower, diag, upper, rhs):
        from scipy.linalg import lapack

        solve = lapack.dgtsv if dtype == "float64" else lapack.sgtsv
        return solve(lower[1:], diag, upper[:-1], rhs)[3]

    def by_numpy(*arrays):
        return np.moveaxis(bench_tridiagonal.thomas(*(np.moveaxis(x, axis, -1) for x in arrays)), -1, axis)

    def by_numba(*arrays):
        x = np.empty_like(arrays[1])
        if axis == 0 and len(shape) > 1:
            loops.thomas(*arrays, x, np.empty_like(x))
        else:
            loops.thomas_lines(*(np.atleast_2d(one) for one in (*arrays, x)))
        return x

    peers = {"numba loop": by_numba}
    if len(shape) == 1:
        peers |= {"scipy solve_banded": functools.partial(bench_tridiagonal.by_scipy, np), "scipy gtsv": by_lapack}
    if side_by_side(shape, axis):
        peers["numpy loop"] = by_numpy
    if axis == len(shape) - 1:
        peers["jax.lax tridiagonal_solve"] = functools.partial(bench_tridiagonal.by_jax, None)
    run = functools.partial(parprims.solve_tridiagonal, axis=axis)
    return Call("solve_tridiagonal", "solve_tridiagonal", dtype, shape, axis, make, run, peers)


# ---- Matrix products --------------------------------------------------------------------------------------------


def matmul_call(n: int, dtype: str) -> Call:
    shape = (n, n)

    def make(rng):
        if np.dtype(dtype).kind == "f":
            return bench_matmul.random_problem(rng, (n, n, n), dtype)
        a, b = (small_integers(rng, shape, dtype) for _ in range(2))
        return Problem((a, b), (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(dtype))

    def in_float64(a, b):
        """Multiply by BLAS, which is exact for integers as small as these."""
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(dtype)

    def by_numba(a, b):
        out = np.zeros(shape, dtype)
        loops.product(a, b, out)
        return out

    peers = {
        "np.matmul": np.matmul,
        "torch.matmul": lambda a, b: a @ b,
        "jax.numpy.matmul": lambda a, b: a @ b,
        "numba loop": by_numba,
    }
    if np.dtype(dtype).kind != "f":
        peers["np.matmul in float64"] = in_float64
    return Call("matmul", "matmul", dtype, shape, 1, make, parprims.matmul, peers)


def shortest_call(n: int) -> Call:
    def by_numpy(a, b):
        out = a[:, :1] + b[0]
        for k in range(1, n):
            np.minimum(out, a[:, k, None] + b[k], out=out)
        return out

    def by_numba(a, b):
        out = np.full((n, n), np.inf, np.float32)
        loops.shortest(a, b, out)
        return out

    def by_torch(a, b):
        import torch

        out = a[:, :1] + b[0]
        for k in range(1, n):
            torch.minimum(out, a[:, k, None] + b[k], out=out)
        return out

    peers = {"numpy loop": by_numpy, "numba loop": by_numba, "torch loop": by_torch}
    peers["jax.numpy.min"] = lambda a, b: (a[:, :, None] + b).min(1)
    run = functools.partial(parprims.matmul, add="minimum", multiply="add")
    make = functools.partial(bench_matmul.shortest_problem, n=n)
    return Call("matmul", "matmul, minimum of sums", "float32", (n, n), 1, make, run, peers)


# ---- The table --------------------------------------------------------------------------------------------------

EVERY_ROW = (sum_call, cumulative_sum_call, recurrence_call, sort_call)

ROWS = {
    "numpy": (
        ((100,), 0, "float64"),
        ((100,), 0, "int32"),
        ((10**4,), 0, "float32"),
        ((10**4,), 0, "int64"),
        ((2**17,), 0, "uint8"),
        ((2**20,), 0, "float64"),
        ((2**20,), 0, "int64"),
        ((2**24,), 0, "float32"),
        ((64, 2**14), 0, "float64"),
        ((64, 2**14), 1, "float32"),
        ((2**14, 64), 0, "float32"),
        ((2**14, 64), 1, "int64"),
        ((2**20, 3), 0, "float64"),
        ((1000, 10), 1, "int32"),
        ((64, 128, 128), 0, "float64"),
        ((64, 128, 128), 1, "int32"),
        ((64, 128, 128), 2, "float32"),
    ),
    "torch": (
        ((100,), 0, "float32"),
        ((10**4,), 0, "float64"),
        ((2**20,), 0, "float32"),
        ((2**20,), 0, "int64"),
        ((2**24,), 0, "float32"),
        ((64, 2**14), 0, "float32"),
        ((64, 2**14), 1, "float64"),
        ((64, 128, 128), 1, "float32"),
    ),
    "jax": (
        ((100,), 0, "float32"),
        ((10**4,), 0, "float64"),
        ((2**20,), 0, "float32"),
        ((2**20,), 0, "int64"),
        ((64, 2**14), 0, "float32"),
        ((64, 2**14), 1, "float64"),
    ),
}

QUICK_ROWS = (((100,), 0, "float64"), ((10**4,), 0, "float32"), ((64, 256), 0, "float64"), ((64, 256), 1, "int64"))


def others(family: str, quick: bool) -> Iterator[Call]:
    """Yield the calls beside those of the rows."""
    long, square = (2**12, (64, 256)) if quick else (2**20, (64, 2**14))
    for n in (100, long):
        yield vecdot_call(n)
        yield argmax_call((n,), 0)
        yield maximum_call((n,), 0, "float64")
        yield constant_call((n,), 0, "float64")
        yield argsort_call((n,), 0, "float64")
        yield histogram_call(n)
    yield argmax_call(square, 0)
    yield maximum_call(square, 1, "float32")
    yield constant_call(square, 1, "float32")
    yield argsort_call(square, 1, "int64")
    yield sort_by_key_call(long // 4)
    yield tridiagonal_call((100,), 0, "float64")
    yield tridiagonal_call((long // 16,), 0, "float64")
    yield tridiagonal_call((2**12 if not quick else 32, 128), 1, "float64")
    yield tridiagonal_call((128, 2**12 if not quick else 32), 0, "float32")
    for n in (16,) if quick else (16, 256, 512):
        yield matmul_call(n, "int64")
    for n in (16,) if quick else (64, 512):
        yield matmul_call(n, "float32")
    yield shortest_call(32 if quick else 256)
    yield fused_call(long)
    if family != "numpy":
        yield gradient_call((long,), 0)
        yield gradient_call((256, long // 256), 0)
        return
    yield max_call(long)
    yield all_call(long)
    for n in (100, long):
        yield affine_call(n)
    yield welford_call(long)
    yield exclusive_call(long)
    yield argmaxima_call(long)
    yield logaddexp_call(long // 4)
    yield ewm_call(100)
    yield ewm_call(long)
    yield constant_call(square, 0, "float64")
    yield maximum_call(square, 0, "int64")
    yield argsort_call((10**4,), 0, "float32")
    yield argsort_call((long,), 0, "int32")
    yield histogram_call(long // 64)
    yield weighted_histogram_call(long)
    yield integer_histogram_call(long)
    yield matmul_call(32 if quick else 256, "int32")
    yield matmul_call(32 if quick else 256, "uint8")
    yield fused_call(100)


def calls(family: str, quick: bool) -> list[Call]:
    """Return the calls on arrays of one library."""
    rows = QUICK_ROWS if quick else ROWS[family]
    return [*(make(*row) for row in rows for make in EVERY_ROW), *others(family, quick)]
