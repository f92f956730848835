"""Tridiagonal systems: five numbers a row are read or written, so what counts is the share of the copy rate."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale
from benches.core.one_thread import on_one_thread
from benches.peers import by_numba


def b8(_, shape, dtype):
    # One backward Euler step of diffusion from x = 1: (2 + L) x[n] - x[n-1] - x[n+1] = L x_old[n], L = 1.
    lower, diag, upper, rhs = (np.full(shape, value, dtype) for value in (-1, 3, -1, 1))
    lower[..., 0] = upper[..., -1] = 0
    x = thomas(lower.astype(np.float64), diag, upper, rhs)
    # The inverse's norm is at most 1 / (3 - 2); each of log2 n steps or 2 sweeps rounds a few times.
    return Problem((lower, diag, upper, rhs), x.astype(dtype), 64 * np.finfo(dtype).eps)


def random_problem(rng, shape, dtype="float32"):
    """Return a diagonally dominant system made backwards from its solution."""
    lower, upper = (rng.random(shape, np.float32) * 2 - 1 for _ in range(2))
    diag = 4 + rng.random(shape, np.float32)
    lower[..., 0] = upper[..., -1] = 0
    x = rng.integers(-8, 9, shape, dtype=np.int8).astype(dtype)
    rhs = diag.astype(np.float64) * x
    rhs[..., 1:] += lower[..., 1:] * x[..., :-1].astype(np.float64)
    rhs[..., :-1] += upper[..., :-1] * x[..., 1:].astype(np.float64)
    # The inverse's norm is at most 1 / (4 - 2) and a residual is a few roundings of terms below 7 * 8.
    return Problem(tuple(one.astype(dtype) for one in (lower, diag, upper, rhs)), x, 16 * 28 * np.finfo(dtype).eps)


def thomas(lower, diag, upper, rhs):
    """Solve by elimination from the first row to the last and back: all systems of a batch at once."""
    n = diag.shape[-1]
    x, c = np.empty_like(lower), np.empty_like(lower)
    last_c = last_x = 0.0
    for i in range(n):
        pivot = diag[..., i] - lower[..., i] * last_c
        last_c = c[..., i] = upper[..., i] / pivot
        last_x = x[..., i] = (rhs[..., i] - lower[..., i] * last_x) / pivot
    for i in range(n - 2, -1, -1):
        x[..., i] -= c[..., i] * x[..., i + 1]
    return x


def by_scipy(np, lower, diag, upper, rhs):
    from scipy.linalg import solve_banded

    bands = np.zeros((3, diag.shape[-1]), diag.dtype)
    bands[0, 1:], bands[1], bands[2, :-1] = upper[:-1], diag, lower[1:]
    return solve_banded((1, 1), bands, rhs)


def by_numba_loop(_, *arrays, axis=-1):
    """Solve without exchanges by a loop written by hand: one system after another, or a row of all at a time."""
    return by_numba.tridiagonal(*arrays, axis=axis)


def by_jax(_, lower, diag, upper, rhs):
    import jax

    return jax.lax.linalg.tridiagonal_solve(lower, diag, upper, rhs[..., None])[..., 0]


def by_cusparse(cupy, lower, diag, upper, rhs):
    """Solve one system with partial pivoting, or a batch without; the routine overwrites its right-hand side."""
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse

    n, x = diag.shape[-1], rhs.copy()
    pointers = (lower.data.ptr, diag.data.ptr, upper.data.ptr, x.data.ptr)
    letter = "s" if x.dtype == np.float32 else "d"
    if x.ndim == 1:
        routine, arguments = f"{letter}gtsv2", (n, 1, *pointers, n)
    else:
        routine, arguments = f"{letter}gtsv2StridedBatch", (n, *pointers, x.size // n, n)
    handle = device.get_cusparse_handle()
    scratch = cupy.empty(getattr(cusparse, f"{routine}_bufferSizeExt")(handle, *arguments), np.uint8)
    getattr(cusparse, routine)(handle, *arguments, scratch.data.ptr)
    return x


PEERS = {"jax": by_jax, "cusparse": by_cusparse}
# XLA takes ten seconds and more to compile it, whatever the size.
TIMED_ONCE = {"jax-cuda array": "it is timed in the batch of diffusion steps and at 2^20"}


def interleaved(rng, shape):
    """Return dominant systems that lie side by side: the axis of the unknowns is the first."""
    problem = random_problem(rng, shape)
    inputs = tuple(np.ascontiguousarray(x.T) for x in problem.inputs)
    return Problem(inputs, np.ascontiguousarray(problem.expected.T), problem.allowed)


def diffusion(rng, shape):
    """Return a step of diffusion, whose coefficients are numbers; one read and one write."""
    rhs = rng.random(shape, np.float32)
    rows = (np.broadcast_to(np.float32(value), shape) for value in (-1, 3, -1))
    return Problem((rhs,), thomas(*(x.astype(np.float64) for x in rows), rhs).astype(np.float32), 64 * 2.0**-23)


def diffuse(rhs, *, method):
    return parprims.solve_tridiagonal(-1.0, 3.0, -1.0, rhs, method=method)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []

    def add(name, make, peers, run=parprims.solve_tridiagonal, **options):
        skip = {} if name.startswith("batch of diffusion steps") or name == "one system, 2^20" else TIMED_ONCE
        case = Case("solve_tridiagonal", name, make, run, peers, skip=skip, **options)
        found.append(case)
        if not scale.gpu and "numba" in peers and not case.whole_call:
            found.append(on_one_thread(case))

    def add_pivots(name, size, make, **options):
        # The systems are dominant, which auto may see; partial exchanges rows all the same.
        for pivot in ("partial", "none"):
            run = functools.partial(parprims.solve_tridiagonal, pivot=pivot, **options)
            add(f"{name} by {pivot}, {size}", make, {}, run)

    loop = {"numba": by_numba_loop}
    across = {"numba": functools.partial(by_numba_loop, axis=0)}
    one, many = {**PEERS, "scipy": by_scipy, **loop}, {**PEERS, "numpy": lambda _, *arrays: thomas(*arrays), **loop}
    add("diffusion call, 128", functools.partial(b8, shape=128, dtype="float64"), one, whole_call=True)
    m = scale.pick(64, 4096, 65536)
    add(f"batch of diffusion steps, {m} x 128", functools.partial(b8, shape=(m, 128), dtype="float32"), many)
    for k in scale.pick((14,), (16, 20), (16, 20, 24, 26)):
        add(f"one system, 2^{k}", functools.partial(random_problem, shape=2**k), one)
    add_pivots("one system", f"2^{k}", functools.partial(random_problem, shape=2**k))
    shapes = scale.pick(
        ((64, 512),), ((4096, 128), (256, 4096)), ((65536, 128), (16384, 512), (4096, 4096), (64, 2**18))
    )
    for shape in shapes:
        for dtype in ("float32", "float64") if shape[1] <= 4096 else ("float32",):
            size, make = f"{shape[0]} x {shape[1]}", functools.partial(random_problem, shape=shape, dtype=dtype)
            add(f"batch, {size}", make, many if shape[1] <= 4096 else PEERS)
            if shape[1] <= 4096:
                add_pivots("batch", size, make)
    m, n = shapes[0]
    make = functools.partial(interleaved, shape=(m, n))
    add(f"interleaved batch, {m} x {n}", make, across, functools.partial(parprims.solve_tridiagonal, axis=0))
    add_pivots("interleaved batch", f"{m} x {n}", make, axis=0)
    add(f"diffusion, {m} x {n}", functools.partial(diffusion, shape=(m, n)), {}, diffuse)
    return found
