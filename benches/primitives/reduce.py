"""Reductions: one pass over memory, so what counts is the share of the machine's read rate."""

from __future__ import annotations

import functools
import math

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.one_thread import on_one_thread
from benches.core.problems import computed, cores, drawn
from benches.peers import by_numba


def integers(rng, shape, low=-8, high=8):
    """Return small integers: float32 sums of them in any order are exact, so the gate allows no error."""
    return drawn(rng, shape, np.int8, lambda own, length: own.integers(low, high + 1, length, dtype=np.int8))


def uniform(rng, n):
    return drawn(rng, n, np.float32, lambda own, length: own.random(length, np.float32))


def sum_problem(rng, shape, dtype="float32", axis=None):
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    small = integers(rng, shape)
    parts = list(cores().map(lambda part: part.sum(axis=axis, dtype=np.int64), np.array_split(small, 64)))
    total = np.concatenate(parts) if axis else np.sum(parts, axis=0)
    x = computed(shape, dtype, lambda part: part, small)
    # A 16-bit float rounds its sum once, to 8 bits.
    allowed = 2.0**-8 * abs(total) if x.dtype.kind == "V" else 0.0
    return Problem((x,), np.asarray(total, x.dtype if x.dtype.kind in "fV" else np.int64), allowed)


@functools.cache
def _cuda_compute(op, dtype, out_dtype, n, start):
    """Return cuda.compute's reduction object and its scratch, made once as its documentation advises."""
    import cupy
    from cuda.compute import OpKind, make_reduce_into

    out = cupy.empty(1, out_dtype)
    options = {"d_in": cupy.empty(n, dtype), "d_out": out, "op": OpKind[op], "h_init": np.array([start], out_dtype)}
    reducer = make_reduce_into(**options)
    scratch = cupy.empty(max(1, reducer(temp_storage=None, num_items=n, **options)), np.uint8)
    return reducer, scratch, OpKind[op], options["h_init"]


def cuda_compute(op, start):
    def call(cupy, x):
        out_dtype = np.dtype(np.int64) if x.dtype.kind in "iu" and op == "PLUS" else x.dtype
        reducer, scratch, kind, init = _cuda_compute(op, x.dtype, out_dtype, x.size, start)
        out = cupy.empty(1, out_dtype)
        reducer(temp_storage=scratch, d_in=x, d_out=out, num_items=x.size, op=kind, h_init=init)
        return out

    return call


CUDA_COMPUTE_SUM = {"cuda.compute": cuda_compute("PLUS", 0)}


def sum_case(name, shape, dtype="float32", axis=None, **options):
    peers = library(lambda xp, x: xp.sum(x, axis) if axis is not None else xp.sum(x))
    peers["numba"] = lambda _, x: by_numba.total(x, axis or 0)
    return Case(
        "sum",
        name,
        lambda rng: sum_problem(rng, shape, dtype, axis),
        functools.partial(parprims.sum, axis=axis),
        peers if axis is not None or dtype == "bfloat16" else {**peers, **CUDA_COMPUTE_SUM},
        ceiling="read",
        raw_kernel=True,
        **options,
    )


def sums(scale: Scale):
    for k in scale.pick((10,), (10, 14), (10, 12, 14, 16, 18, 20)):
        yield sum_case(f"sum call, 2^{k}", 2**k, whole_call=True)
    for k in scale.pick((20,), (20, 24), (20, 24, 28, 30)):
        case = sum_case(f"sum, 2^{k}", 2**k)
        yield case
    if not scale.gpu:
        yield on_one_thread(case)
    k = scale.pick(20, 24, 28)
    for dtype in ("float32", "float64"):
        yield Case(
            "sum",
            f"same bits everywhere, 2^{k} of {dtype}",
            functools.partial(sum_problem, shape=2**k, dtype=dtype),
            functools.partial(parprims.sum, reproducible="everywhere"),
            library(lambda xp, x: xp.sum(x)),
        )
    k = scale.pick(18, 22, 28)
    for dtype in ("float64", "bfloat16", "int32", "int8"):
        if dtype != "bfloat16" or scale.gpu:
            yield sum_case(f"sum, 2^{k}", 2**k, dtype)
    axes = scale.pick(
        (((512, 512), 0),),
        (((4096, 4096), 0), ((4096, 4096), 1), ((2**20, 16), 1), ((16, 2**20), 0)),
        (
            *(((16384, 16384), axis) for axis in (0, 1)),
            *(((2**22, 16), axis) for axis in (0, 1)),
            *(((16, 2**22), axis) for axis in (0, 1)),
            ((256, 1024, 1024), 1),
        ),
    )
    for shape, axis in axes:
        case = sum_case(f"sum axis {axis}, {' x '.join(map(str, shape))}", shape, axis=axis)
        yield case
        if not scale.gpu:
            yield on_one_thread(case)
    if scale.gpu:
        yield sum_case("sum axis 0, 999983 x 67", (999983, 67), axis=0)
        yield sum_case("sum axis 0, 65536 x 1024", (65536, 1024), "bfloat16", axis=0)


def b5(rng):
    x = rng.integers(0, 10, 260_817).astype(np.float32)
    return Problem((x,), np.float32(int(x.astype(np.int64).sum())))


def max_problem(rng, n):
    x = uniform(rng, n)
    return Problem((x,), x.max())


def argmax_problem(rng, n):
    x = uniform(rng, n)
    index = np.arange(n, dtype=np.int32)
    first = index[x == x.max()][0]
    return Problem((x, index), (x[first], first))


def argmax_by_library(xp, x, _):
    # No index is read here, so the rate, which counts one, may exceed the machine's.
    if xp.__name__ == "torch":
        return xp.max(x, 0)
    first = xp.argmax(x)
    return x[first], first


def welford_problem(rng, n):
    x = uniform(rng, n)
    wide = x.astype(np.float64)
    answer = tuple(np.float32(value) for value in (n, wide.mean(), wide.var() * n))
    # All terms are positive. A tree rounds log2 n times, but libraries sum runs of a thousand terms one by one.
    relative = 1024 * 2.0**-23
    return Problem((x,), answer, tuple(relative * float(value) for value in answer))


def moments(x):
    return 0 * x + 1, x, 0 * x


def moments_by_library(xp, x):
    if xp.__name__ == "torch":
        variance, mean = xp.var_mean(x, correction=0)
        return xp.full_like(mean, x.shape[0]), mean, variance * x.shape[0]
    return xp.full(1, float(x.shape[0]), np.float32), xp.mean(x), xp.var(x) * np.float32(x.shape[0])


def affine_problem(rng, n):
    # With factors 1 and -1 the composition is exact: b[i] is multiplied by all factors after it.
    a = integers(rng, n, 0, 1) * 2 - 1
    b = integers(rng, n)
    after = np.cumprod(a[:0:-1], dtype=np.int8)[::-1]
    total = int(np.sum(b[:-1] * after, dtype=np.int64)) + int(b[-1])
    factor = int(after[0]) * int(a[0])
    return Problem((a.astype(np.float32), b.astype(np.float32)), (np.float32(factor), np.float32(total)))


def affine_by_jax(_, a, b):
    import jax

    last = jax.lax.associative_scan(lambda e, f: (f[0] * e[0], f[0] * e[1] + f[1]), (a, b))
    return last[0][-1], last[1][-1]


def vecdot_problem(rng, n):
    x, y = integers(rng, n, -4, 4), integers(rng, n, -4, 4)
    total = np.sum(x * y, dtype=np.int64)
    return Problem((x.astype(np.float32), y.astype(np.float32)), np.float32(total))


def e1(_):
    n = 1024
    return Problem((np.arange(n, dtype=np.float32), np.full(n, 2, np.float32)), np.float32(n * (n - 1)))


VECDOT_PEERS = {
    "numpy": lambda np, x, y: np.dot(x, y),
    "cublas": lambda cupy, x, y: cupy.dot(x, y),
    "torch": lambda torch, x, y: torch.dot(x, y),
    "jax": lambda jnp, x, y: jnp.dot(x, y, precision="highest"),
}


def fused(x, y, z):
    return (x - y) * (x - y) * z


def fused_problem(rng, n):
    x, y, z = (integers(rng, n, -2, 2) for _ in range(3))
    total = np.sum((x - y) ** 2 * z, dtype=np.int64)
    return Problem(tuple(v.astype(np.float32) for v in (x, y, z)), np.float32(total))


def truth_problem(_, n, value):
    # Only the last element decides, so nobody may stop early.
    x = np.full(n, not value)
    x[-1] = value
    return Problem((x,), np.bool_(value))


def others(scale: Scale):
    yield Case("sum", "any length, 260817", b5, parprims.sum, {**library(lambda xp, x: xp.sum(x)), **CUDA_COMPUTE_SUM})
    yield Case("vecdot", "call on integers, 1024", e1, parprims.vecdot, VECDOT_PEERS, whole_call=True)
    for k in scale.pick((), (10, 16), (10, 16, 20)):
        make = functools.partial(vecdot_problem, n=2**k)
        yield Case("vecdot", f"vecdot call, 2^{k}", make, parprims.vecdot, VECDOT_PEERS, whole_call=True)
    for k in scale.pick((20,), (20, 24), (20, 24, 28)):
        make = functools.partial(vecdot_problem, n=2**k)
        yield Case("vecdot", f"vecdot, 2^{k}", make, parprims.vecdot, VECDOT_PEERS, ceiling="read")
    k = scale.pick(18, 24, 27)
    yield Case(
        "vecdot",
        f"same bits everywhere, 2^{k}",
        functools.partial(vecdot_problem, n=2**k),
        functools.partial(parprims.vecdot, reproducible="everywhere"),
        VECDOT_PEERS,
    )
    k = scale.pick(18, 24, 28)
    yield Case(
        "max",
        f"max, 2^{k}",
        functools.partial(max_problem, n=2**k),
        parprims.max,
        {**library(lambda xp, x: xp.max(x)), "cuda.compute": cuda_compute("MAXIMUM", -math.inf)},
        ceiling="read",
    )
    k = scale.pick(18, 22, 26)
    yield Case(
        "reduce",
        f"argmax, 2^{k}",
        functools.partial(argmax_problem, n=2**k),
        lambda x, index, method: parprims.reduce((x, index), "argmax", method=method),
        {**library(argmax_by_library), "numba": lambda _, *xs: by_numba.argmax(xs[0])},
        ceiling="read",
    )
    affine = Case(
        "reduce",
        f"affine, 2^{k}",
        functools.partial(affine_problem, n=2**k),
        lambda a, b, method: parprims.reduce((a, b), "affine", method=method),
        {"jax": affine_by_jax, "numba": lambda _, a, b: by_numba.affine(a, b)},
        ceiling="read",
    )
    welford = Case(
        "map_reduce",
        f"welford, 2^{k}",
        functools.partial(welford_problem, n=2**k),
        lambda x, method: parprims.map_reduce(moments, x, op="welford", method=method),
        {**library(moments_by_library), "numba": lambda _, x: by_numba.welford(x)},
        ceiling="read",
    )
    k = scale.pick(18, 22, 27)
    differences = Case(
        "map_reduce",
        f"sum (x-y)^2 z, 2^{k}",
        functools.partial(fused_problem, n=2**k),
        functools.partial(parprims.map_reduce, fused),
        {**library(lambda xp, x, y, z: xp.sum(fused(x, y, z))), "numba": lambda _, x, y, z: by_numba.fused(x, y, z)},
        ceiling="read",
    )
    yield from (affine, welford, differences)
    if not scale.gpu:
        yield from map(on_one_thread, (affine, welford, differences))
    k = scale.pick(20, 24, 30)
    for function, value in ((parprims.any, True), (parprims.all, False)):
        name = function.__name__
        yield Case(
            name,
            f"{name}, 2^{k}",
            functools.partial(truth_problem, n=2**k, value=value),
            function,
            library(lambda xp, x, name=name: getattr(xp, name)(x)),
            ceiling="read",
        )


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    return [*sums(scale), *others(scale)]
