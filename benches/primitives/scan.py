"""Scans and linear recurrences: every element read once and written once, so what counts is the copy rate."""

from __future__ import annotations

import functools
import math

import array_api_compat
import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.one_thread import on_one_thread
from benches.core.problems import copied, drawn
from benches.peers import by_numba
from examples.backends import installed


def integers(rng, shape, low=-8, high=8):
    """Return small integers, whose float32 sums in any order are exact, so the gate allows no error."""
    return drawn(rng, shape, np.int8, lambda own, length: own.integers(low, high + 1, length, dtype=np.int8))


def copies(shape):
    """Return a smaller shape and how often it makes up the shape along axis 0.

    Large problems are made of copies of 2^24 elements or more, too many for a cache to hold, because numbers would
    take a host longer to draw and sum than to copy.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    times = math.gcd(shape[0], max(1, math.prod(shape) >> 24))
    return (shape[0] // times, *shape[1:]), times


def running_sums(x, axis, times, dtype, result=None):
    """Return the sums along an axis, formed in a dtype, of copies of x that follow each other along axis 0."""
    y = np.cumsum(x, axis=axis, dtype=dtype)
    return copied(y, times, result or dtype, lambda y, k: y + k * y[-1] if axis == 0 else y)


def floats(x, dtype, times=1):
    """Return copies of x, one after another along axis 0, of a floating dtype."""
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return copied(x, times, dtype)


TIMED_SMALLER = dict.fromkeys(("array", "native", "jax"), "it is timed at smaller sizes")


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


def sum_problem(rng, shape, axis=0, dtype="float32"):
    shape, times = copies(shape)
    x = integers(rng, shape)
    return Problem((floats(x, dtype, times),), running_sums(x, axis, times, np.int32, dtype))


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


def argmax_problem(rng, n):
    x = maximum_problem(rng, n).inputs[0]
    top = np.maximum.accumulate(x)
    # Whatever comes again once it is the largest becomes smaller, for libraries disagree on which of two equals counts.
    again = np.zeros(n, bool)
    again[1:] = x[1:] == top[:-1]
    x = np.where(again, x - 1, x)
    index = np.arange(n, dtype=np.int32)
    return Problem((x, index), (top, np.maximum.accumulate(np.where(x == top, index, 0))))


def argmax_by_library(torch, x, _):
    # No index is read here, and those written have 8 bytes.
    return torch.cummax(x, 0)


def welford_problem(rng, n):
    (length,), times = copies(n)
    x = rng.random(length, np.float32)
    count = np.arange(1.0, n + 1)
    mean = running_sums(x, 0, times, np.float64) / count
    m2 = running_sums(x.astype(np.float64) ** 2, 0, times, np.float64) - count * mean * mean
    answer = tuple(one.astype(np.float32) for one in (count, mean, m2))
    # All terms are positive, and no schedule lets one pass 1024 roundings; m2 is off by the mean's error too.
    relative = 1024 * 2.0**-24
    one, zero = np.ones(n, np.float32), np.zeros(n, np.float32)
    return Problem((one, floats(x, "float32", times), zero), answer, (relative * count, relative, relative * (1 + m2)))


@functools.partial(parprims.Operator, identity=(1, 0, 0, 1), components=4)
def multiply_matrices(earlier, later):
    (a, b, c, d), (e, f, g, h) = earlier, later
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def matrices_problem(rng, n):
    # The eight symmetries of a square, R^r F^f of a quarter turn R and a flip F. Products stay among them, so they
    # are exact, and do not commute: F R = R^-1 F, by which the flips before a turn decide its direction.
    turns, flips = integers(rng, n, 0, 3), integers(rng, n, 0, 1)
    flipped = np.cumsum(flips, dtype=np.int8) & 1
    before = flipped ^ flips
    turned = np.cumsum(np.where(before, -turns, turns), dtype=np.int8) & 3

    def entries(turns, flips):
        which = turns + 4 * flips
        table = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]], np.float32)
        table = np.concatenate([table, table * np.array([1, -1], np.float32)])
        return tuple(table[:, row, column][which] for row in (0, 1) for column in (0, 1))

    return Problem(entries(turns, flips), entries(turned, flipped))


def scans(scale: Scale):
    for k in scale.pick((10,), (10, 16, 20), (10, 16, 20)):
        yield Case(
            "cumulative_sum",
            f"sum call, 2^{k}",
            functools.partial(sum_problem, shape=2**k),
            parprims.cumulative_sum,
            library(lambda xp, x: xp.cumsum(x, 0)),
            whole_call=True,
            raw_kernel=True,
        )
    numba = {"numba": lambda _, x: by_numba.cumulative_sum(x)}
    for k in scale.pick((16,), (16, 20, 24), (16, 20, 24, 26, 28)):
        case = Case(
            "cumulative_sum",
            f"sum, 2^{k}",
            functools.partial(sum_problem, shape=2**k),
            parprims.cumulative_sum,
            {**library(lambda xp, x: xp.cumsum(x, 0)), **numba, "cuda.compute": cuda_compute("PLUS")},
            raw_kernel=True,
        )
        yield case
    if not scale.gpu:
        yield on_one_thread(case)
    k = scale.pick(16, 24, 28)
    yield Case(
        "cumulative_sum",
        f"same bits everywhere, 2^{k}",
        functools.partial(sum_problem, shape=2**k),
        functools.partial(parprims.cumulative_sum, reproducible="everywhere"),
        library(lambda xp, x: xp.cumsum(x, 0)),
    )
    squares = scale.pick((64, 1024), (512, 4096), (16384, 16384))
    narrow = scale.pick((4096, 16), (2**17, 16), (2**24, 16))
    odd = scale.pick((1021, 67), (65521, 67), (999983, 67))
    shapes = ("rows", 1, squares), ("columns", 0, squares), ("narrow columns", 0, narrow), ("odd columns", 0, odd)
    for name, axis, shape in shapes:
        numba = {"numba": lambda _, x, axis=axis: by_numba.cumulative_sum(x, axis)}
        case = Case(
            "cumulative_sum",
            f"sum of {name}, {shape[0]} x {shape[1]}",
            functools.partial(sum_problem, shape=shape, axis=axis),
            functools.partial(parprims.cumulative_sum, axis=axis),
            {**library(lambda xp, x, axis=axis: xp.cumsum(x, axis)), **numba},
            skip={"array": TIMED_SMALLER["array"]} if scale.gpu and shape in (narrow, odd) else {},
        )
        yield case
        if not scale.gpu:
            yield on_one_thread(case)
    k = scale.pick(16, 22, 26)
    peers = {**library(cumulative_maximum), "numba": lambda _, x: by_numba.maxima(x)}
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
        f"exclusive sum, {n:.0e}".replace("e+0", "e"),
        functools.partial(b9, n=n),
        functools.partial(parprims.scan, exclusive=True),
        {**library(lambda xp, x: xp.cumsum(x, 0) - x), "cuda.compute": cuda_compute("PLUS", inclusive=False)},
    )
    k = scale.pick(16, 22, 26)
    for name, make, op, peers in (
        (
            *("argmax", argmax_problem, "argmax"),
            {"torch": argmax_by_library, "numba": lambda _, x, index: by_numba.argmaxima(x, index)},
        ),
        ("welford", welford_problem, "welford", {"numba": lambda _, *xs: by_numba.welfords(xs[1])}),
        ("2 x 2 matrices", matrices_problem, multiply_matrices, {}),
    ):
        case = Case(
            "scan",
            f"{name}, 2^{k}",
            functools.partial(make, n=2**k),
            lambda *xs, method, op=op: parprims.scan(xs, op, method=method),
            peers,
        )
        yield case
        if not scale.gpu and "numba" in peers:
            yield on_one_thread(case)


def recurrence_problem(rng, shape, dtype="float32"):
    # With factors 1 and -1 the answer is exact: x[n] = p[n] * sum of p[k] b[k], where p is the product of factors.
    shape, times = copies(shape)
    a = 2 * integers(rng, shape, 0, 1) - 1
    b = integers(rng, shape)
    p = np.cumprod(a, axis=-1, dtype=np.int8)
    x = p * np.cumsum(p * b, axis=-1, dtype=np.int32)
    before = [0]
    while len(before) < times:  # a sequence goes on from where the copy before ended
        before.append(x[-1] + p[-1] * before[-1] if x.ndim == 1 else 0)
    answer = copied(x, times, dtype, lambda x, k: x + p * before[k])
    return Problem((floats(a, dtype, times), floats(b, dtype, times)), answer)


def transposed_problem(rng, shape):
    """Return the problem of lines that lie side by side: the axis walked is the first."""
    problem = recurrence_problem(rng, shape)
    return Problem(tuple(np.ascontiguousarray(x.T) for x in problem.inputs), np.ascontiguousarray(problem.expected.T))


RUN = 32


def runs_problem(rng, shape, dtype="float32", *, backward=False):
    """Return a problem of runs of 32 elements, each begun anew by a factor 0, so that 16 bits hold the answer.

    ``backward`` adds the derivatives along g: db[n] = g[n] + a[n+1] db[n+1] and da[n] = db[n] x[n-1].
    """
    shape, times = copies(shape)
    runs = (*shape[:-1], shape[-1] // RUN, RUN)
    a, b = 2 * integers(rng, runs, 0, 1) - 1, integers(rng, runs, -2, 2)
    a[..., 0] = 0
    p = a.copy()
    p[..., 0] = 1
    np.cumprod(p, axis=-1, out=p)
    x = p * np.cumsum(p * b, axis=-1, dtype=np.int8)
    inputs, answers = [a, b], [x]
    if backward:
        g = integers(rng, runs, -2, 2)
        db = p * np.cumsum((p * g)[..., ::-1], axis=-1, dtype=np.int8)[..., ::-1]
        x = x.reshape(shape)
        before = np.concatenate([np.zeros_like(x[..., :1]), x[..., :-1]], axis=-1).reshape(runs)
        inputs.append(g)
        answers += [db * before.astype(np.int16), db]
    inputs, answers = (tuple(floats(one.reshape(shape), dtype, times) for one in ones) for ones in (inputs, answers))
    return Problem(inputs, answers if backward else answers[0])


def fewer_problem(rng, shape, channels):
    """Return b and factors 1 and -1 that are one for all or one per channel."""
    a = np.float32(2) * integers(rng, (shape[1], 1) if channels else (), 0, 1) - 1
    if not channels:
        a = np.asarray(-1, np.float32)
    b = integers(rng, shape)
    p = np.where(np.arange(shape[-1]) % 2, a, 1).astype(np.int8)
    x = p * np.cumsum(p * b, axis=-1, dtype=np.int32)
    return Problem((b.astype(np.float32), a), x.astype(np.float32))


def b10(rng):
    a, b = rng.uniform(0, 2, 100), rng.uniform(0, 2, 100)
    # All terms are positive, so each of the at most 100 roundings of a product and a sum is a relative error.
    x = by_loop(np, a, b)
    return Problem((a, b), x, 200 * 2.0**-52 * x)


def numbers_problem(rng):
    b = rng.uniform(0, 2, 2**10)
    x = by_loop(np, np.full_like(b, 0.9), np.concatenate([[0.9 * 0.5 + b[0]], b[1:]]))
    return Problem((b,), x, 2**11 * 2.0**-52 * x)  # as above


def by_numbers(b, *, method):
    return parprims.linear_recurrence(0.9, b, initial=0.5, method=method)


def numbers_by_scipy(_, b):
    from scipy.signal import lfilter

    return lfilter([1.0], [1.0, -0.9], b, zi=np.asarray([0.45]))[0]


def numbers_by_associative_scan(jax_numpy, b):
    return by_associative_scan(jax_numpy, jax_numpy.full_like(b, 0.9), b.at[0].add(0.45))


def by_loop(np, a, b):
    x = np.empty_like(b)
    last = 0.0
    for n in range(b.shape[-1]):
        last = x[..., n] = a[..., n] * last + b[..., n]
    return x


def by_numba_loop(_, a, b, axis=-1):
    return by_numba.recurrence(a, b, axis)


def by_associative_scan(_, a, b):
    import jax

    return jax.lax.associative_scan(lambda e, f: (f[0] * e[0], f[0] * e[1] + f[1]), (a, b), axis=a.ndim - 1)[1]


def by_accelerated_scan(_, a, b):
    from accelerated_scan.scalar import scan

    return scan(a, b)


def gradient(solve, a, b, g):
    """Return the solution of a recurrence and its derivatives along g."""
    if array_api_compat.is_torch_array(a):
        import torch

        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        x = solve(a, b)
        return x.detach(), *torch.autograd.grad(x, (a, b), g)
    import jax

    x, pull = jax.vjp(solve, a, b)
    return x, *pull(g)


def forward_and_backward(a, b, g, *, method):
    return gradient(functools.partial(parprims.linear_recurrence, method=method), a, b, g)


def backward_by_accelerated_scan(torch, a, b, g):
    return gradient(functools.partial(by_accelerated_scan, torch), a, b, g)


_affine_scans = {}


def by_cuda_compute(cupy, a, b):
    key = (a.data.ptr, b.data.ptr, a.dtype, a.size)
    if key not in _affine_scans:
        _affine_scans.clear()
        _affine_scans[key] = _affine_scan(cupy, a, b)
    return _affine_scans[key]()


def _affine_scan(cupy, a, b):
    """Return a function that scans affine maps with everything made beforehand, and returns their second halves."""
    from cuda.compute import TransformOutputIterator, ZipIterator, gpu_struct, make_inclusive_scan

    number = a.dtype.type
    Map = gpu_struct({"a": number, "b": number}, name="Map")

    def compose(earlier, later):
        return Map(later.a * earlier.a, later.a * earlier.b + later.b)

    def second(pair):
        return pair.b

    compose.__annotations__ = {"earlier": Map, "later": Map, "return": Map}
    second.__annotations__ = {"pair": Map, "return": number}
    x = cupy.empty_like(b)
    options = {"d_in": ZipIterator(a, b), "d_out": TransformOutputIterator(x, second), "op": compose}
    options["init_value"] = Map(number(1), number(0))
    scanner = make_inclusive_scan(**options)
    scratch = cupy.empty(max(1, scanner(temp_storage=None, num_items=a.size, **options)), np.uint8)

    def call():
        scanner(temp_storage=scratch, num_items=a.size, **options)
        return x

    return call


def recurrences(scale: Scale):
    yield Case(
        "linear_recurrence",
        "short call, 100",
        b10,
        parprims.linear_recurrence,
        {"numpy": by_loop, "numba": by_numba_loop, "jax": by_associative_scan},
        whole_call=True,
    )
    yield Case(
        "linear_recurrence",
        "call, 2^10",
        functools.partial(recurrence_problem, shape=2**10),
        parprims.linear_recurrence,
        {"jax": by_associative_scan},
        whole_call=True,
    )
    yield Case(
        "linear_recurrence",
        "call with numbers, 2^10",
        numbers_problem,
        by_numbers,
        {"scipy": numbers_by_scipy, "jax": numbers_by_associative_scan},
        whole_call=True,
    )
    no_numba = {} if installed("numba") else {"cuda.compute": "an operator in Python needs Numba"}
    longest = scale.pick(16, 22, 28)
    sizes = [(k, "float32") for k in scale.pick((16,), (16, 20, 22), (16, 20, 24, 26, 28))] + [(longest, "float64")]
    for k, dtype in sizes:
        case = Case(
            "linear_recurrence",
            f"one sequence, 2^{k}",
            functools.partial(recurrence_problem, shape=2**k, dtype=dtype),
            parprims.linear_recurrence,
            {"jax": by_associative_scan, "numba": by_numba_loop, "cuda.compute": by_cuda_compute},
            skip={**no_numba, **(TIMED_SMALLER if scale.gpu and dtype == "float64" else {})},
        )
        yield case
        if not scale.gpu and k == longest:
            yield on_one_thread(case)
    batches = scale.pick(
        ((1, 64, 1024),),
        ((1, 256, 4096),),
        ((8, 1536, 2048), (8, 1536, 16384), (1, 1536, 65536), (2, 512, 65536), (4, 768, 8192), (4, 768, 8191)),
    )
    for shape in batches:
        case = Case(
            "linear_recurrence",
            f"batch, {_times(shape)}",
            functools.partial(recurrence_problem, shape=shape),
            parprims.linear_recurrence,
            {
                "numpy": by_loop,
                "numba": by_numba_loop,
                "jax": by_associative_scan,
                "accelerated-scan": by_accelerated_scan,
            },
        )
        yield case
    if not scale.gpu:
        across = Case(
            "linear_recurrence",
            f"side by side, {shape[2]} x {shape[1]}",
            functools.partial(transposed_problem, shape=shape[1:]),
            functools.partial(parprims.linear_recurrence, axis=0),
            {"numba": functools.partial(by_numba_loop, axis=0)},
        )
        yield across
        yield from map(on_one_thread, (case, across))
    if scale.gpu:
        shape = batches[:2][-1]
        yield Case(
            "linear_recurrence",
            f"batch, {_times(shape)}",
            functools.partial(runs_problem, shape=shape, dtype="bfloat16"),
            parprims.linear_recurrence,
            {"accelerated-scan": by_accelerated_scan},
        )
    # The rate counts every array once. The backward pass must read a and the solution again: 8 arrays, not 6, move.
    for shape in batches[:2]:
        yield Case(
            "linear_recurrence",
            f"forward and backward, {_times(shape)}",
            functools.partial(runs_problem, shape=shape, backward=True),
            forward_and_backward,
            {"accelerated-scan": backward_by_accelerated_scan},
            libraries=("torch", "jax"),
            skip=TIMED_SMALLER if math.prod(shape) > 2**26 else {},
        )
    shape = scale.pick((1, 64, 1024), (1, 256, 4096), (8, 1536, 2048))
    for name, channels in (("constant a", False), ("a per channel", True)):
        yield Case(
            "linear_recurrence",
            f"{name}, {_times(shape)}",
            functools.partial(fewer_problem, shape=shape, channels=channels),
            lambda b, a, method: parprims.linear_recurrence(a, b, method=method),
        )


def _times(shape):
    return " x ".join(map(str, shape))


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    return [*scans(scale), *recurrences(scale)]
