"""Tridiagonal systems and matrix products by which `auto` is judged on a CPU, and their peers."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.auto.calls import Call, side_by_side, small_integers
from benches.core.cases import Problem
from benches.peers import by_numba
from benches.primitives import matmul as bench_matmul
from benches.primitives import tridiagonal as bench_tridiagonal


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

    peers = {"numba loop": lambda *arrays: by_numba.tridiagonal(*arrays, axis=axis)}
    if len(shape) == 1:
        peers |= {"scipy solve_banded": functools.partial(bench_tridiagonal.by_scipy, np), "scipy gtsv": by_lapack}
    if side_by_side(shape, axis):
        peers["numpy loop"] = by_numpy
    if axis == len(shape) - 1:
        peers["jax.lax tridiagonal_solve"] = functools.partial(bench_tridiagonal.by_jax, None)
    run = functools.partial(parprims.solve_tridiagonal, axis=axis)
    return Call("solve_tridiagonal", "solve_tridiagonal", dtype, shape, axis, make, run, peers)


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

    peers = {
        "np.matmul": np.matmul,
        "torch.matmul": lambda a, b: a @ b,
        "jax.numpy.matmul": lambda a, b: a @ b,
        "numba loop": by_numba.product,
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

    def by_torch(a, b):
        import torch

        out = a[:, :1] + b[0]
        for k in range(1, n):
            torch.minimum(out, a[:, k, None] + b[k], out=out)
        return out

    peers = {"numpy loop": by_numpy, "numba loop": by_numba.shortest, "torch loop": by_torch}
    peers["jax.numpy.min"] = lambda a, b: (a[:, :, None] + b).min(1)
    run = functools.partial(parprims.matmul, add="minimum", multiply="add")
    make = functools.partial(bench_matmul.shortest_problem, n=n)
    return Call("matmul", "matmul, minimum of sums", "float32", (n, n), 1, make, run, peers)
