"""Reductions by which `auto` is judged on a CPU, and their peers."""

from __future__ import annotations

import functools
import math

import numpy as np

import parprims
from benches.auto.calls import FEW, Call, line, small_integers
from benches.core.cases import Problem
from benches.peers import by_numba
from benches.peers.by_numba import total_dtype
from benches.primitives import reduce as bench_reduce
from benches.primitives import sort as bench_sort


def sum_call(shape: tuple[int, ...], axis: int, dtype: str) -> Call:
    result = total_dtype(dtype)

    def make(rng):
        x = small_integers(rng, shape, dtype)
        return Problem((x,), x.sum(axis, dtype=np.int64).astype(result))

    peers = {
        "np.sum": lambda x: np.sum(x, axis),
        "torch.sum": lambda x: x.sum(axis),
        "jax.numpy.sum": lambda x: x.sum(axis),
        "numba loop": lambda x: by_numba.total(x, axis),
    }
    if math.prod(shape) <= FEW and len(shape) == 1:
        peers["python loop"] = lambda x: sum(x.tolist())
    return Call("sum", "sum", dtype, shape, axis, make, functools.partial(parprims.sum, axis=axis), peers)


def max_call(n: int) -> Call:
    peers = {"np.max": np.max, "torch.max": lambda x: x.max(), "numba loop": by_numba.maximum}
    return line("max", "max", "float32", n, bench_reduce.max_problem, parprims.max, peers)


def all_call(n: int) -> Call:
    make = functools.partial(bench_reduce.truth_problem, value=False)
    peers = {"np.all": np.all, "torch.all": lambda x: x.all(), "numba loop": by_numba.every}
    return line("all", "all", "bool", n, make, parprims.all, peers)


def vecdot_call(n: int) -> Call:
    peers = {
        "np.dot": np.dot,
        "np.vecdot": np.vecdot,
        "torch.dot": lambda x, y: x.dot(y),
        "jax.numpy.dot": lambda x, y: x.dot(y),
        "numba loop": by_numba.dot,
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

    peers = {
        "np.argmax": by_numpy,
        "torch.max": lambda x, _: tuple(x.max(axis)),
        "jax.numpy.argmax": lambda x, _: (x.max(axis), x.argmax(axis)),
        "numba loop": lambda x, _: by_numba.argmax(x, axis),
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

    peers = {"numba loop": by_numba.affine, **({"python loop": by_python} if n <= FEW else {})}

    def run(a, b, *, method):
        return parprims.reduce((a, b), "affine", method=method)

    return line("reduce", "reduce affine", "float32", n, bench_reduce.affine_problem, run, peers)


def fused_call(n: int) -> Call:
    peers = {
        "np expression": lambda x, y, z: np.sum((x - y) ** 2 * z),
        "torch expression": lambda x, y, z: ((x - y) ** 2 * z).sum(),
        "jax expression": lambda x, y, z: ((x - y) ** 2 * z).sum(),
        "numba loop": by_numba.fused,
    }
    run = functools.partial(parprims.map_reduce, bench_reduce.fused)
    return line("map_reduce", "map_reduce (x-y)^2 z", "float32", n, bench_reduce.fused_problem, run, peers)


def welford_call(n: int) -> Call:
    peers = {"np.mean, np.var": functools.partial(bench_reduce.moments_by_library, np), "numba loop": by_numba.welford}

    def run(x, *, method):
        return parprims.map_reduce(bench_reduce.moments, x, op="welford", method=method)

    return line("map_reduce", "map_reduce welford", "float32", n, bench_reduce.welford_problem, run, peers)
