"""The kernel of scans: every way it cuts its work, stress, and what a GPU brings; needs a GPU or the emulator.

``PARPRIMS_STRESS=10000`` sets the number of random cases (JAX, which compiles each, has few),
``PARPRIMS_STRESS_SEED`` repeats those of a failed run.
"""

import concurrent.futures
import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_api_compat import device

import parprims
from parprims import _recurrence, _scan_kernel, _scan_special
from parprims._arrays import sum_dtype
from parprims._layout import row_major
from parprims._operators import BUILT_IN
from parprims._recurrence_array import Recurrence
from parprims._scan_array import Scan
from parprims._trace import state_size
from tests import emulator
from tests.contract import compare, eps, few_on_jax, random, reversed_view, strided, transposed, unaligned
from tests.test_scan import affine, loop, matrices, recur, recurrence_bound, wide

TILES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 32 * 8192)
STRESS = int(os.environ.get("PARPRIMS_STRESS", "300"))
SEED = int(os.environ.get("PARPRIMS_STRESS_SEED", np.random.SeedSequence().entropy % 2**64))


# ---- The reference --------------------------------------------------------------------------------------------


def by_pairs(combine, xs):
    """Scan along the first axis with few calls of NumPy; exact where combine is associative to the last bit."""
    n = len(xs[0])
    if n < 2:
        return xs
    odd = by_pairs(combine, combine(tuple(x[0 : n - 1 : 2] for x in xs), tuple(x[1::2] for x in xs)))
    even = combine(tuple(y[: (n - 1) // 2] for y in odd), tuple(x[2::2] for x in xs))
    outs = tuple(np.empty_like(x) for x in xs)
    for out, x, o, e in zip(outs, xs, odd, even, strict=True):
        out[0], out[1::2], out[2::2] = x[0], o, e
    return outs


def reference(combine, xs, axis=-1, exclusive=False, reverse=False, start=None):
    """Return the scan of integers or the like along an axis, begun with the element start if there is one."""
    xs = tuple(np.moveaxis(x, axis, 0) for x in xs)
    if reverse:
        xs = tuple(x[::-1] for x in xs)
    if start is not None:
        xs = tuple(
            np.concatenate([np.broadcast_to(np.asarray(one, x.dtype), x[:1].shape if len(x) else (1, *x.shape[1:])), x])
            for one, x in zip(start, xs, strict=True)
        )
    ys = by_pairs(combine, xs)
    if start is not None:
        ys = tuple(y[:-1] if exclusive else y[1:] for y in ys)
    if reverse:
        ys = tuple(y[::-1] for y in ys)
    return tuple(np.moveaxis(y, 0, axis) for y in ys)


def test_reference_is_the_loop(subtests):
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 10, 33):
        for exclusive, reverse, start in ((False, False, None), (True, True, (3, 4)), (False, True, (-2, 5))):
            with subtests.test(n=n, exclusive=exclusive, reverse=reverse):
                xs = tuple(random(rng, (2, n, 3), "int32") for _ in range(2))
                options = {"axis": 1, "exclusive": exclusive, "reverse": reverse}
                got = reference(affine, xs, start=start, **options)
                first = start and tuple(np.int32(x) for x in start)
                for one, other in zip(got, loop(affine, *xs, initial=first, **options), strict=True):
                    np.testing.assert_array_equal(one, other)


# ---- Operators ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Program:
    """A call and its meaning in NumPy, exact for the numbers it is given.

    ``combine`` works in the dtypes ``wide``, which are those of the result unless ``results`` says otherwise.
    """

    name: str
    op: Any
    dtypes: tuple[str, ...]
    combine: Callable[..., Any]
    identity: tuple[Any, ...] | None
    wide: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    dtype: str | None = None
    largest: int = 9

    def make(self, rng, index, shape):
        """Return random numbers for one component: small, so that floats too are exact."""
        if self.dtypes[index] == "bool":
            return rng.random(shape) < 0.1
        low = 0 if self.dtypes[index].startswith("uint") else -self.largest
        return rng.integers(low, self.largest + 1, shape).astype(self.dtypes[index])

    def __call__(self, call, gpu, arrays, **options):
        """Scan by the kernel."""
        if self.op is None:
            return call(parprims.linear_recurrence, *arrays, method="kernel", **options)
        if self.dtype:
            options["dtype"] = gpu.dtype(self.dtype)
        xs = arrays if len(arrays) > 1 else arrays[0]
        return call(parprims.scan, xs, self.op, method="kernel", **options)

    def expected(self, xs, start, exclusive=False, **options):
        """Return the result by NumPy."""
        xs = tuple(x.astype(name) for x, name in zip(xs, self.wide or self.dtypes, strict=True))
        if start is None and exclusive:
            start = self.identity
        if self is SEGMENTED and exclusive:
            return by_key(xs, start, **options)
        ys = reference(self.combine, xs, start=start, exclusive=exclusive, **options)
        return ys[1] if self.op is None else ys if len(ys) > 1 else ys[0]


def one(function):
    return lambda earlier, later: (function(earlier[0], later[0]),)


def largest_first(earlier, later):
    """Return the larger value with its index, the smaller index among equals."""
    (value, index), (other, position) = earlier, later
    take = (other > value) | ((other == value) & (position < index))
    return np.where(take, other, value), np.where(take, position, index)


def segmented_sum(earlier, later):
    (flag, total), (starts, x) = earlier, later
    return flag | starts, np.where(starts, x, total + x)


def by_key(xs, start, axis, **options):
    """Return the exclusive sums of segments that each begin with the start, and the flags met before."""
    flags, x = xs
    first = np.asarray(start[1], x.dtype)
    first = np.expand_dims(first, axis) if first.ndim else first
    begun = flags, np.where(flags, first + x, x)
    seen, sums = reference(segmented_sum, begun, start=start, exclusive=True, axis=axis, **options)
    return seen, np.where(flags, first, sums)


def keep_first(earlier, _):
    return earlier


AFFINE = Program("affine", "affine", ("int32",) * 2, affine, (1, 0))
ADD = Program("add", "add", ("int32",), one(np.add), (0,), ("int64",), ("int64",))
RECURRENCE = Program("recurrence", None, ("int32",) * 2, affine, None)
SEGMENTED = Program("segments", parprims.segmented("add"), ("bool", "int32"), segmented_sum, (False, 0))
PROGRAMS = (
    ADD,
    AFFINE,
    RECURRENCE,
    SEGMENTED,
    Program("bytes", "add", ("int8",), one(np.add), (0,), dtype="int8"),
    Program("maximum", "maximum", ("int16",), one(np.maximum), (-(2**15),)),
    Program("xor", "bitwise_xor", ("uint8",), one(np.bitwise_xor), (0,)),
    Program("or", "logical_or", ("bool",), one(np.logical_or), (False,)),
    Program("matrices", parprims.Operator(matrices, components=4), ("int32",) * 4, matrices, None),
    Program("first", parprims.Operator(keep_first), ("int64",), one(lambda earlier, _: earlier), None),
    Program("argmax", "argmax", ("float32", "int32"), largest_first, (-np.inf, 2**31 - 1)),
    # Sums of at most a hundred thousand terms of these sizes are integers that the dtype holds.
    Program("complex", "add", ("complex64",), one(np.add), (0,)),
    Program("half", "maximum", ("float16",), one(np.maximum), (-np.inf,), ("float64",), ("float16",)),
    Program("wide", "affine", ("int64",) * 2, affine, (1, 0)),
)
BY_NAME = {program.name: program for program in PROGRAMS}


# ---- Layouts --------------------------------------------------------------------------------------------------


def plain(gpu, x):
    return gpu.asarray(x)


def columns(gpu, x):
    """Return x as columns sliced out of a wider array."""
    return gpu.asarray(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)]))[..., 1:-2]


def middle(gpu, x):
    """Return x as the middle of an array that is longer along the first axis."""
    return gpu.asarray(np.pad(x, [(2, 1)] + [(0, 0)] * (x.ndim - 1)))[2:-1]


def turned(gpu, x):
    """Return x as a view with its last two axes exchanged."""
    if x.ndim < 2:
        return gpu.asarray(x)
    axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return gpu.xp.permute_dims(gpu.asarray(np.ascontiguousarray(x.transpose(axes))), axes)


LAYOUTS = (plain, unaligned, columns, middle, strided, reversed_view, transposed, turned)


def check(gpu, call, program, shape, axis, rng, layouts=(plain,), repeat=(), **given):
    """Scan random numbers by the kernel, with options drawn at random where they are not given, and compare.

    ``repeat`` holds, for every component, the axes along which it is a broadcast.
    """
    exclusive = given.get("exclusive", bool(rng.integers(2))) and program.op is not None
    reverse = given.get("reverse", bool(rng.integers(2)))
    kind = given.get("initial", ("none", "scalar", "array")[rng.integers(3)])
    if kind == "none" and exclusive and program.identity is None:
        kind = "scalar"
    rest = shape[:axis] + shape[axis + 1 :]
    smaller = [
        tuple(1 if at in axes else length for at, length in enumerate(shape))
        for axes in (repeat or [()] * len(program.dtypes))
    ]
    small = [program.make(rng, index, one) for index, one in enumerate(smaller)]
    xs = tuple(np.broadcast_to(x, shape) for x in small)
    arrays = tuple(
        gpu.xp.broadcast_to(array, shape) if array.shape != shape else array
        for array in (layouts[index % len(layouts)](gpu, x) for index, x in enumerate(small))
    )
    options: dict[str, Any] = {"axis": axis, "reverse": reverse}
    if program.op is not None:
        options["exclusive"] = exclusive
    start = None
    if kind != "none":
        results = program.results or program.wide or program.dtypes
        places = () if kind == "scalar" else rest
        starts = tuple(program.make(rng, index, places).astype(name) for index, name in enumerate(results))
        start = starts
        if program.op is None:
            starts = starts[1:]
            start = (1, *starts)
        passed = tuple(value.item() if kind == "scalar" else gpu.asarray(value) for value in starts)
        options["initial"] = passed if len(passed) > 1 else passed[0]
    before = [gpu.to_numpy(array).copy() for array in arrays] if given.get("untouched") else []
    result = program(call, gpu, arrays, **options)
    options.pop("initial", None)
    expected = program.expected(xs, start, **options)
    names = program.results or program.wide or program.dtypes
    compare(gpu, result, expected, 0, names[-1] if not isinstance(expected, tuple) else None)
    for array, old in zip(arrays, before, strict=False):
        np.testing.assert_array_equal(gpu.to_numpy(array), old)


def directly(function, *args, **options):
    """Call without asking which method runs, as users do: repeated calls then take a shorter way."""
    return function(*args, **options)


class TestShapes:
    """Lengths around every edge, batches of every size, axes inside and outside."""

    def test_short_and_empty(self, gpu, run, rng, subtests):
        shapes = [((0,), 0), ((3, 0), 1), ((0, 3), 1), ((0, 3), 0), ((1,), 0), ((4, 1), 1), ((1, 4), 0), ((1, 1, 1), 1)]
        for shape, axis in few_on_jax(gpu, rng, shapes, 3):
            for program in (ADD, AFFINE, RECURRENCE):
                for kind in ("none", "array"):
                    with subtests.test(shape=shape, axis=axis, program=program.name, initial=kind):
                        check(gpu, run, program, shape, axis, rng, initial=kind)

    def test_lengths(self, gpu, run, rng, subtests):
        lengths = [*range(1, 71), *(tile + step for tile in TILES for step in (-1, 0, 1)), 10**6 + 3]
        for n in few_on_jax(gpu, rng, lengths, 8):
            for program in (ADD, AFFINE):
                with subtests.test(n=n, program=program.name):
                    check(gpu, run, program, (n,), 0, rng)

    def test_long(self, gpu, run, rng, subtests):
        for program in (ADD, AFFINE, SEGMENTED):
            for exclusive, reverse in ((False, False), (True, True)):
                with subtests.test(program=program.name, exclusive=exclusive):
                    check(gpu, run, program, (3 * 10**7 + 1,), 0, rng, exclusive=exclusive, reverse=reverse)

    def test_rows(self, gpu, run, rng, subtests):
        shapes = [
            *((70_000, n) for n in (1, 2, 3, 4, 7, 8, 31, 33, 40)),
            *((rows, n) for rows in (1, 2, 3, 31, 132, 133, 264, 1000) for n in (5, 32, 129, 500, 1023, 1025)),
            *((rows, n) for rows in (2, 7, 64, 133, 529) for n in (2000, 4096, 4097, 5000, 8191, 8193, 16_385)),
            *((rows, n) for rows in (2, 3, 17, 132) for n in (20_000, 32_769, 65_537, 100_003)),
            (3, 1_000_003),
        ]
        for shape in few_on_jax(gpu, rng, shapes, 8):
            for program in (ADD, AFFINE):
                with subtests.test(shape=shape, program=program.name):
                    check(gpu, run, program, shape, 1, rng)

    def test_columns(self, gpu, run, rng, subtests):
        inners = (1, 2, 3, 5, 7, 8, 16, 30, 33, 64, 130, 1000, 4096)
        shapes = [(n, inner) for n in (2, 9, 100, 1000, 4097) for inner in inners]
        shapes += [(n, inner) for n in (33_000, 200_003) for inner in (1, 2, 3, 7, 8, 16, 33)]
        for shape in few_on_jax(gpu, rng, shapes, 8):
            for program in (ADD, AFFINE):
                with subtests.test(shape=shape, program=program.name):
                    check(gpu, run, program, shape, 0, rng)

    def test_inner_axis(self, gpu, run, rng, subtests):
        shapes = [
            (outer, n, inner)
            for outer, n in ((2, 7), (5, 100), (70, 3), (3, 2049), (300, 33))
            for inner in (1, 2, 3, 5, 7, 8, 16, 30, 33, 64, 130)
        ]
        shapes += [(2, 100, 4096), (3, 5000, 1000), (20_000, 4, 3), (2, 50_001, 5)]
        for shape in few_on_jax(gpu, rng, shapes, 8):
            for program in (ADD, AFFINE):
                with subtests.test(shape=shape, program=program.name):
                    check(gpu, run, program, shape, 1, rng)

    def test_every_operator(self, gpu, run, rng, subtests):
        shapes = [((50_001,), 0), ((300, 40), 1), ((3, 6000), 1), ((3000, 7), 0), ((2, 700, 130), 1)]
        for program in PROGRAMS:
            for shape, axis in few_on_jax(gpu, rng, shapes, 1):
                with subtests.test(program=program.name, shape=shape):
                    check(gpu, run, program, shape, axis, rng, untouched=True)

    def test_layouts(self, gpu, run, rng, subtests):
        shapes = [
            ((70_001,), 0),
            ((33, 3001), 1),
            ((3001, 33), 0),
            ((5, 300, 9), 1),
            ((5, 300, 8), 2),
            ((4, 3, 5, 6), 1),
        ]
        for layout in few_on_jax(gpu, rng, LAYOUTS, 2):
            for shape, axis in few_on_jax(gpu, rng, shapes, 1):
                for program, layouts in ((ADD, (layout,)), (AFFINE, (layout, plain)), (RECURRENCE, (plain, layout))):
                    with subtests.test(layout=layout.__name__, shape=shape, program=program.name):
                        check(gpu, run, program, shape, axis, rng, layouts, untouched=True)

    def test_broadcasts(self, gpu, run, rng, subtests):
        shapes = [((70_001,), 0), ((40, 3001), 1), ((3001, 40), 0), ((4, 500, 30), 1)]
        for shape, axis in few_on_jax(gpu, rng, shapes, 1):
            every = tuple(range(len(shape)))
            others = tuple(at for at in every if at != axis)
            for repeat in ((every, ()), ((axis,), ()), (others, ()), ((), (axis,)), ((axis,), others), (every, every)):
                for program in (AFFINE, RECURRENCE):
                    with subtests.test(shape=shape, repeat=repeat, program=program.name):
                        check(gpu, run, program, shape, axis, rng, repeat=repeat)

    def test_coefficients_are_not_materialised(self, gpu, run, rng, subtests):
        # As users write it: shapes that broadcast, and a constant of no dimension.
        for shape, axis in (((3_000_001,), 0), ((4, 33, 2000), 2), ((2000, 130), 0), ((3, 40_000, 5), 1)):
            b = random(rng, shape, "int32")
            channels = tuple(1 if at == axis else length for at, length in enumerate(shape[1:], 1))
            for small in ((), channels, shape[axis:]):
                with subtests.test(shape=shape, small=small):
                    a = random(rng, small, "int32")
                    arrays = (gpu.asarray(a), gpu.asarray(b))
                    result = run(parprims.linear_recurrence, *arrays, axis=axis, method="kernel")
                    expected = reference(affine, (np.broadcast_to(a, shape), b), axis=axis)[1]
                    compare(gpu, result, expected, dtype="int32")

    def test_standard_functions(self, gpu, run, rng, subtests):
        for shape, axis in (((100_003,), 0), ((70, 5000), 1), ((5000, 70), 0)):
            x = random(rng, shape, "int32")
            odd = 2 * x + 1  # products of odd numbers wrap around without ever becoming zero
            start = tuple(1 if at == axis else length for at, length in enumerate(shape))
            for initial in (False, True):
                with subtests.test(shape=shape, include_initial=initial):
                    options = {"axis": axis, "include_initial": initial, "method": "kernel"}
                    sums = run(parprims.cumulative_sum, gpu.asarray(x), **options)
                    expected = np.cumsum(x, axis=axis, dtype=np.int64)
                    zeros = [np.zeros(start, np.int64)] * initial
                    compare(gpu, sums, np.concatenate([*zeros, expected], axis=axis), dtype="int64")
                    products = run(parprims.cumulative_prod, gpu.asarray(odd), **options)
                    expected = np.cumprod(odd, axis=axis, dtype=np.int64)
                    ones = [np.ones(start, np.int64)] * initial
                    compare(gpu, products, np.concatenate([*ones, expected], axis=axis), dtype="int64")

    def test_more_than_two_to_the_31(self, gpu, run):
        if gpu.name == "jax-cuda":
            pytest.skip("JAX would hold two copies")
        xp = gpu.xp
        n = 2**31 + 2**20 + 3
        x = xp.zeros((n,), dtype=xp.int8, device=device(gpu.asarray(np.zeros(1))))
        x[5], x[2**31 + 7] = 1, 2
        for reverse in (False, True):
            y = run(parprims.scan, x, "maximum", reverse=reverse, method="kernel")
            assert y.dtype == xp.int8
            places = [0, 4, 5, 6, 2**31 - 1, 2**31, 2**31 + 6, 2**31 + 7, 2**31 + 8, n - 1]
            steps = [0, 0, 1, 1, 1, 1, 1, 2, 2, 2] if not reverse else [2, 2, 2, 2, 2, 2, 2, 2, 0, 0]
            assert [int(y[place]) for place in places] == steps
            total = 2 * n - 5 - (2**31 + 7) if not reverse else 2 * (2**31 + 8)
            assert int(parprims.sum(y)) == total
            del y
        x[...] = 1
        y = run(parprims.scan, x, "bitwise_xor", method="kernel")
        assert int(parprims.sum(y)) == n // 2 + n % 2
        assert [int(y[place]) for place in (0, 1, 2**31 - 1, 2**31, n - 1)] == [1, 0, 0, 1, 1 - (n - 1) % 2]
        del y
        pairs = xp.reshape(x[: 2**31 + 2], (2**30 + 1, 2))
        y = run(parprims.scan, pairs, "bitwise_xor", axis=0, exclusive=True, method="kernel")
        assert int(parprims.sum(y)) == 2**30
        assert gpu.to_numpy(y[-3:, :]).tolist() == [[0, 0], [1, 1], [0, 0]]
        del y
        y = run(parprims.scan, pairs, "bitwise_xor", axis=1, method="kernel")
        assert int(parprims.sum(y[:, 0])) == 2**30 + 1
        assert int(parprims.sum(y)) == 2**30 + 1


def stress_shape(rng, most):
    """Return a shape of up to four axes and up to so many elements, often at a power of two, and an axis."""
    ndim = int(rng.integers(1, 5))
    shares = rng.dirichlet(np.full(ndim, 0.7)) * np.sqrt(rng.random()) * np.log(most)
    shape = []
    for share in shares:
        n = max(1, int(np.exp(share)))
        if n > 3 and rng.random() < 0.3:
            n = 2 ** (n.bit_length() - 1) + int(rng.integers(-1, 2))
        shape.append(n)
    return tuple(shape), int(rng.integers(ndim))


def stress(gpu, call, seed, index, rare=30):
    """Check one random case, which the seed and its index make anew at any time."""
    rng = np.random.default_rng([seed, index])
    program = PROGRAMS[rng.integers(len(PROGRAMS))]
    shape, axis = stress_shape(rng, 2_000_000 if rng.integers(rare) == 0 else 20_000)
    layouts, repeat = (plain,), ()
    choice = rng.integers(3)
    if choice == 1:
        layouts = tuple(LAYOUTS[rng.integers(len(LAYOUTS))] for _ in program.dtypes)
    elif choice == 2 and rng.random() < 0.5:
        repeat = tuple(tuple(np.flatnonzero(rng.random(len(shape)) < 0.4)) for _ in program.dtypes)
    names = [layout.__name__ for layout in layouts]
    try:
        check(gpu, call, program, shape, axis, rng, layouts, repeat)
    except Exception as error:
        raise AssertionError(
            f"PARPRIMS_STRESS_SEED={seed} case {index}: {program.name} of {shape} along axis {axis}, {names}, "
            f"broadcast along {repeat}: {type(error).__name__}: {error}"
        ) from error


class TestStress:
    @pytest.mark.parametrize("part", range(64))
    def test_random_cases(self, gpu, run, rng, part):
        check(gpu, run, ADD, (10,), 0, rng)  # skips where the kernel refuses
        for index in range(part, min(STRESS, 20) if gpu.name == "jax-cuda" else STRESS, 64):
            stress(gpu, run if index % 4 == 0 else directly, SEED, index)


DELAYS = {
    "first": "if (tile == 0) for (int i = 0; i < 2000; ++i) __nanosleep(1000);",
    "some": "if (tile % 37 == 5) for (int i = 0; i < 200; ++i) __nanosleep(1000);",
    "last of 32": "if (tile % 32 == 31) for (int i = 0; i < 200; ++i) __nanosleep(1000);",
    "first of 32": "if (tile % 32 == 0) for (int i = 0; i < 100; ++i) __nanosleep(1000);",
    "any": "if (((unsigned)tile * 2654435761u) >> 28 == 3) for (int i = 0; i < 300; ++i) __nanosleep(1000);",
    "all": "__nanosleep(((unsigned)tile * 2654435761u) >> 16);",
}


@pytest.fixture
def change(monkeypatch):
    """Return a function that changes how kernels cut their work, and forgets those that were made before."""

    def change(**fields):
        monkeypatch.setattr(_scan_kernel, "TUNING", {90: dataclasses.replace(_scan_kernel.TUNING[90], **fields)})
        emulator.forget(monkeypatch)

    return change


@pytest.fixture
def delay(monkeypatch):
    """Return a function that makes every block run some statements before it publishes its tile's aggregate."""

    def delay(statements):
        monkeypatch.setattr(_scan_special, "BEFORE_PUBLISHING", statements)
        emulator.forget(monkeypatch)

    return delay


class TestSerialBlocks:
    """Blocks that go along a line each, which it takes many long lines for, here with few."""

    @pytest.fixture(autouse=True)
    def serial(self, change):
        change(serial_lines=1)

    @pytest.mark.parametrize("shape", [(40, 5000), (3, 65_537), (1, 100_003)])
    def test_every_operator(self, gpu, run, rng, subtests, shape):
        for program in few_on_jax(gpu, rng, PROGRAMS, 3):
            for turned_round in (False, True):
                with subtests.test(program=program.name, turned_round=turned_round):
                    check(gpu, run, program, shape, 1, rng, exclusive=turned_round, reverse=turned_round)

    def test_layouts(self, gpu, run, rng, subtests):
        for layout in few_on_jax(gpu, rng, LAYOUTS, 2):
            for program, layouts in ((ADD, (layout,)), (AFFINE, (layout, plain)), (RECURRENCE, (plain, layout))):
                with subtests.test(layout=layout.__name__, program=program.name):
                    check(gpu, run, program, (5, 20_003), 1, rng, layouts, untouched=True)

    @pytest.mark.sanitize
    def test_recurrence(self, gpu, run, rng, subtests):
        for repeat in ((), ((0, 1), ()), ((1,), ()), ((0,), ())):
            with subtests.test(repeat=repeat):
                check(gpu, run, RECURRENCE, (3, 20_000), 1, rng, repeat=repeat, initial="array")


class TestSlowTiles:
    """Look-back past tiles that are late."""

    @pytest.mark.parametrize("pattern", list(DELAYS))
    def test_in_order(self, streams, run, rng, subtests, delay, pattern):
        delay(DELAYS[pattern])
        shapes = [((5_000_003,), 0), ((5, 600_001), 1), ((200_003, 7), 0), ((100_003, 40), 0), ((3, 70_001, 5), 1)]
        for shape, axis in shapes:
            for program in (ADD, AFFINE) if len(shape) == 1 else (AFFINE,):
                for turned_round in (False, True):
                    with subtests.test(shape=shape, program=program.name, turned_round=turned_round):
                        options = {"exclusive": turned_round, "reverse": turned_round, "initial": "none"}
                        check(streams, run, program, shape, axis, rng, **options)

    def test_same_bits(self, streams, run, rng, delay):
        x = streams.asarray(rng.standard_normal(5_000_003, np.float32))
        found = set()
        for statements in ("", *DELAYS.values()):
            delay(statements)
            found.add(streams.to_numpy(run(parprims.scan, x, method="kernel")).tobytes())
        assert len(found) == 1


def other_stream(backend):
    """Return a new stream, and the context in which it is the current one."""
    if backend.name == "cupy":
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        return stream, stream
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    return stream, torch.cuda.stream(stream)


def wait(backend):
    """Wait for all work on the device."""
    if backend.name == "cupy":
        import cupy

        cupy.cuda.Device().synchronize()
    elif backend.name == "torch-cuda":
        import torch

        torch.cuda.synchronize()


class TestReproducible:
    """The same input gives the same bits."""

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [((5_000_007,), 0), ((7, 300_001), 1), ((1000, 5000), 1), ((100_003, 33), 0), ((9, 3001, 40), 1)],
    )
    def test_same_bits(self, gpu, run, rng, shape, axis):
        x = gpu.asarray(rng.standard_normal(shape, np.float32))
        a = gpu.asarray(np.exp(rng.standard_normal(shape, np.float32) / 64))
        count, zero = gpu.asarray(np.ones(shape, np.float32)), gpu.asarray(np.zeros(shape, np.float32))
        calls = (
            functools.partial(run, parprims.scan, x),
            functools.partial(run, parprims.scan, (a, x), "affine"),
            functools.partial(run, parprims.scan, (count, x, zero), "welford"),
            functools.partial(run, parprims.linear_recurrence, a, x),
        )
        for call in calls:
            found = set()
            for turn in range(20):
                if turn == 10 and gpu.streams:
                    wait(gpu)
                    stream, current = other_stream(gpu)
                    with current:  # from here on the device has other work beside
                        y = x
                        for _ in range(200):
                            y = y * 0.5 + 1.0
                result = call(axis=axis, method="kernel")
                ones = result if isinstance(result, tuple) else (result,)
                found.add(b"".join(gpu.to_numpy(one).tobytes() for one in ones))
            if gpu.streams:
                stream.synchronize()
            assert len(found) == 1


class TestStreams:
    """Streams, threads, graphs and devices."""

    def test_streams_and_threads(self, streams):
        rng = np.random.default_rng(4)
        a, b = (random(rng, (400_009,), "int32") for _ in range(2))
        arrays = tuple(streams.asarray(x) for x in (a, b))
        flat = streams.asarray(b[:400_000].reshape(4000, 100))

        def work(index):
            stream, current = other_stream(streams)
            with current:
                results = [
                    (
                        parprims.scan(arrays[1][index:], method="kernel"),
                        parprims.linear_recurrence(arrays[0][index:], arrays[1][index:], method="kernel"),
                        parprims.scan(flat, axis=index % 2, method="kernel"),
                    )
                    for _ in range(25)
                ]
            stream.synchronize()
            return results

        wait(streams)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for index, results in enumerate(pool.map(work, range(8))):
                expected = (
                    np.cumsum(b[index:], dtype=np.int64),
                    reference(affine, (a[index:], b[index:]))[1],
                    np.cumsum(b[:400_000].reshape(4000, 100), axis=index % 2, dtype=np.int64),
                )
                for result in results:
                    compare(streams, result, expected)

    def test_captured_into_a_graph(self, streams):
        rng = np.random.default_rng(5)
        data = [tuple(random(rng, (1_234_567,), "int32") for _ in range(2)) for _ in range(4)]
        a, b = (streams.asarray(x) for x in data[0])
        waiting = [tuple(streams.asarray(x) for x in pair) for pair in data]

        def captured():
            return parprims.scan(b, method="kernel"), parprims.linear_recurrence(a, b, method="kernel")

        def eager(index):
            rows = streams.xp.reshape(waiting[index][1][:1_200_000], (1200, 1000))
            return parprims.scan(waiting[index][1][5:], method="kernel"), parprims.scan(rows, axis=0, method="kernel")

        checks = []

        def replay(launch):
            for index in (1, 2, 3, 1):
                a[...], b[...] = waiting[index]
                first = eager(index)
                launch()
                launch()
                last = eager(index)
                checks.append((index, tuple(streams.xp.asarray(y, copy=True) for y in results), first, last))

        if streams.name == "cupy":
            wait(streams)
            stream, current = other_stream(streams)
            with current:
                kept = captured()  # CuPy takes no memory from the device while it captures
                del kept
                stream.begin_capture()
                results = captured()
                graph = stream.end_capture()
                replay(graph.launch)
            stream.synchronize()
        else:
            import torch

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = captured()
            replay(graph.replay)
        for index, found, *others in checks:
            one, other = data[index]
            sums = np.cumsum(other, dtype=np.int64)
            compare(streams, found, (sums, reference(affine, (one, other))[1]))
            rows = np.cumsum(other[:1_200_000].reshape(1200, 1000), axis=0, dtype=np.int64)
            for pair in others:
                compare(streams, pair, (sums[5:] - sums[4], rows))

    def test_another_device_than_the_current(self, gpu, rng):
        x = random(rng, (1_234_567,), "int32")
        if gpu.name == "cupy":
            import cupy

            if cupy.cuda.runtime.getDeviceCount() < 2:
                pytest.skip("needs two GPUs")
            with cupy.cuda.Device(1):
                there = cupy.asarray(x)
        elif gpu.name == "torch-cuda":
            import torch

            if torch.cuda.device_count() < 2:
                pytest.skip("needs two GPUs")
            there = torch.from_numpy(x).to("cuda:1")
        else:
            import jax

            if len(jax.devices("cuda")) < 2:
                pytest.skip("needs two GPUs")
            there = jax.device_put(x, jax.devices("cuda")[1])
        here = gpu.asarray(x)
        for array in (there, here, there):
            for part in (array, array[1:], array[:100]):
                sums = parprims.scan(part, method="kernel")
                assert device(sums) == device(array)
                compare(gpu, sums, np.cumsum(gpu.to_numpy(part), dtype=np.int64))
        assert device(gpu.asarray(x)) == device(here)  # the current device is what it was


class TestTorch:
    """Calls like one before, which go straight to their kernel."""

    def test_transformations(self, tensors, rng):
        import torch
        from torch.autograd import forward_ad

        x = tensors.asarray(rng.standard_normal((3, 50)))
        for function in (lambda x: parprims.linear_recurrence(x, x), parprims.scan):
            for _ in range(3):
                y = function(x)
            torch.testing.assert_close(torch.func.vmap(function)(x), y)
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x))))
            torch.testing.assert_close(found.primal, y)
            assert found.tangent is not None

    @pytest.mark.parametrize("shape", [(3, 50, 4), (50, 1), (1, 1), ()])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_backward(self, tensors, rng, subtests, monkeypatch, shape, reverse):
        import torch

        def derivatives(a, b, g, method, **options):
            x = parprims.linear_recurrence(a, b, axis=1, reverse=reverse, method=method)
            return [x, *torch.autograd.grad(x, [one for one in (a, b) if one.requires_grad], g, **options)]

        for asked_for in ((True, True), (True, False), (False, True)):
            for dtype in ("float64", "complex128", "float32"):
                with subtests.test(asked_for=asked_for, dtype=dtype):
                    calls = []
                    for _ in range(4):
                        shapes = (shape, (3, 50, 4), (3, 50, 4))
                        a, b, g = (tensors.asarray(random(rng, one, dtype) / 4) for one in shapes)
                        a.requires_grad_(asked_for[0]), b.requires_grad_(asked_for[1])
                        calls.append((a, b, g, derivatives(a, b, g, "array")))
                    for at, (a, b, g, expected) in enumerate(calls):
                        with monkeypatch.context() as patch:
                            if at == 3:  # nothing is left to choose
                                patch.setattr(_recurrence, "_METHODS", None)
                                patch.setattr(_recurrence, "_ADJOINT", None)
                            found = derivatives(a, b, g, "kernel")
                        torch.testing.assert_close(found, expected)
                    with parprims.explain() as told:
                        derivatives(a, b, g, "kernel")
                    assert told[0].method == "kernel"
                    with torch.no_grad():
                        plain = parprims.linear_recurrence(a, b, axis=1, reverse=reverse, method="kernel")
                    assert not plain.requires_grad
                    twice = [derivatives(a, b, g, method, create_graph=True)[1:] for method in ("auto", "array")]
                    if asked_for[0]:
                        twice = [torch.autograd.grad(sum((one * one).sum().real for one in ones), a) for ones in twice]
                    torch.testing.assert_close(*twice)


class TestMemory:
    """What the kernel reads, writes and takes."""

    def test_outputs_are_all_written(self, streams, run, rng):
        xp = streams.xp
        for shape, axis in (
            ((1_000_003,), 0),
            ((1000, 1000), 0),
            ((1000, 1000), 1),
            ((100_000, 7), 1),
            ((7, 100_001), 1),
        ):
            x = random(rng, shape, "float64")
            array = streams.asarray(x)
            poison = [xp.full(shape, np.nan, dtype=array.dtype, device=device(array)) for _ in range(2)]
            del poison
            expected = np.cumsum(x, axis=axis)
            bound = shape[axis] * eps("float64") * np.cumsum(abs(x), axis=axis)
            compare(streams, run(parprims.scan, array, axis=axis, method="kernel"), expected, bound)
            start = random(rng, (), "float64").item()
            result = run(parprims.scan, array, axis=axis, exclusive=True, initial=start, method="kernel")
            expected = start + expected - x
            compare(streams, result, expected, 4 * (bound + eps("float64") * (1 + abs(x)) * shape[axis]))

    def test_out_of_memory_leaves_the_library_usable(self, streams):
        xp = streams.xp
        one = xp.ones((1,), dtype=xp.float64, device=device(streams.asarray(np.zeros(1))))
        vast = xp.broadcast_to(one, (1 << 36, 2))  # its sums would take a terabyte
        for axis in (0, 1):
            with pytest.raises(Exception, match=r"(?i)out of memory"):
                parprims.scan(vast, axis=axis, method="kernel")
        compare(streams, parprims.scan(one, method="kernel"), np.ones(1))

    def test_result_is_not_the_input(self, streams, run):
        for n in (1, 2, 3, 9000):
            x = streams.asarray(np.arange(float(n)))
            run(parprims.scan, x, method="kernel")[...] = 7.0
            run(parprims.linear_recurrence, x, x, method="kernel")[...] = 7.0
            compare(streams, x, np.arange(float(n)))

    def test_repeated_calls_see_new_data_and_captures(self, gpu, rng):
        state = {"mask": 1}
        for _ in range(3):
            x = random(rng, (40, 3000), "int32")
            array = gpu.asarray(x)
            compare(gpu, parprims.scan(array, method="kernel"), np.cumsum(x, axis=1, dtype=np.int64))
            compare(gpu, parprims.scan(array, axis=0, method="kernel"), np.cumsum(x, axis=0, dtype=np.int64))
            compare(gpu, parprims.scan(array[:, 1:], method="kernel"), np.cumsum(x[:, 1:], axis=1, dtype=np.int64))
            start = random(rng, (40,), "int64")
            result = parprims.scan(array, initial=gpu.asarray(start), method="kernel")
            compare(gpu, result, start[:, None] + np.cumsum(x, axis=1, dtype=np.int64))
            first = int(rng.integers(100))
            result = parprims.scan(array, initial=first, exclusive=True, method="kernel")
            compare(gpu, result, first + np.cumsum(x, axis=1, dtype=np.int64) - x)
            result = parprims.linear_recurrence(array, array, initial=first, method="kernel")
            compare(gpu, result, reference(affine, (x, x), start=(1, first))[1])
            state["mask"] = 2 * state["mask"] + 1
            result = parprims.scan(array, lambda e, f: (e ^ f) & state["mask"], method="kernel")
            # The first element of a row has met no mask yet.
            expected = np.bitwise_xor.accumulate(x, axis=1)
            compare(gpu, result[:, 1:], expected[:, 1:] & state["mask"])
            compare(gpu, result[:, :1], x[:, :1])


def recurrence_case(rng, shape, axis, kind, dtype):
    """Return coefficients of a kind, and right-hand sides, whose recurrence stays in the range of the dtype."""
    n = shape[axis]
    a, b = random(rng, shape, "float64"), random(rng, shape, "float64")
    if kind == "shrinking":
        a = rng.uniform(-1, 1, shape)
    elif kind == "near one":
        a = np.exp(a / 64 / np.sqrt(n / 1000 + 1))
    elif kind == "growing":
        a = np.full(shape, np.exp(60 / n))
    elif kind == "above and below one":
        a = np.exp(np.where(rng.random(shape) < 0.5, 3.0, -3.0) + 0.01 * a - 0.02)
        along = np.moveaxis(a, axis, 0)
        along[::8] = 0.01 * np.sign(along[::8])  # at most e^21 between two of these
    elif kind == "zeros":
        a = np.where(rng.random(shape) < 0.1, 0, 1.2 * a)
    elif kind == "overflowing products":
        # Over the first half coefficients overflow together, but meet zeros only.
        a = np.where(rng.random(shape) < 0.4, 0, 10 * a)
        along, right = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
        along[: n // 2] = 1e3 * np.sign(along[: n // 2] + 0.5)
        right[: n // 2] = 0
    return a.astype(dtype), b.astype(dtype)


KINDS = ("shrinking", "near one", "growing", "above and below one", "zeros", "overflowing products")
PLACES = (((50_001,), 0), ((20, 5000), 1), ((5000, 20), 0), ((200, 300), 1), ((3, 12_000, 5), 1))


class TestAccuracy:
    """Against higher precision, within the bounds the docstrings state."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_recurrence(self, gpu, run, rng, subtests, kind):
        for (shape, axis), dtype in zip(PLACES, ("float32", "float64", "float32", "complex64", "float32"), strict=True):
            with subtests.test(shape=shape, axis=axis, dtype=dtype):
                a, b = recurrence_case(rng, shape, axis, kind, "complex128" if "complex" in dtype else "float64")
                a, b = a.astype(dtype), b.astype(dtype)
                expected = recur(wide(a), wide(b), axis=axis)
                # Runs of coefficients without a zero are the shorter the rarer; a long one may overflow the dtype.
                limit = np.finfo(dtype).max / 1e6
                size = recur(abs(wide(a)), abs(wide(b)), axis=axis)
                fine = np.logical_and.accumulate(size < limit, axis=axis)
                assert np.mean(fine) > 0.6
                result = run(parprims.linear_recurrence, gpu.asarray(a), gpu.asarray(b), axis=axis, method="kernel")
                bound = recurrence_bound(a, b, axis=axis)
                got = gpu.to_numpy(result)
                compare(gpu, gpu.asarray(got[fine]), expected[fine], bound[fine], dtype)

    def test_constant_coefficient(self, gpu, run, rng, subtests):
        for value in (0.999, -1.0, 1.0001, 0.0, 1e-30):
            for shape, axis in PLACES:
                with subtests.test(value=value, shape=shape):
                    a, b = np.asarray(value, np.float32), random(rng, shape, "float32")
                    start = random(rng, shape[:axis] + shape[axis + 1 :], "float32")
                    arrays = (gpu.asarray(a), gpu.asarray(b))
                    options = {"axis": axis, "reverse": True}
                    result = run(
                        parprims.linear_recurrence, *arrays, initial=gpu.asarray(start), method="kernel", **options
                    )
                    expected = recur(wide(a), wide(b), initial=wide(start), **options)
                    bound = recurrence_bound(np.broadcast_to(a, shape), b, initial=abs(wide(start)), **options)
                    compare(gpu, result, expected, bound, "float32")

    @pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
    def test_not_finite_from_there_on(self, gpu, run, rng, subtests, value):
        n = 70_001
        for place in (1, 31, 4095, 4096, 40_000, n - 1):
            for where in (0, 1):
                with subtests.test(place=place, where="ab"[where]):
                    pair = [rng.uniform(-1, 1, n).astype(np.float32) for _ in range(2)]
                    pair[0][rng.random(n) < 0.2] = 0
                    clean = [x[:place] for x in pair]
                    pair[where][place] = value
                    result = run(parprims.linear_recurrence, *(gpu.asarray(x) for x in pair), method="kernel")
                    assert not np.isfinite(gpu.to_numpy(result)[place:]).any()
                    expected = recur(*(x.astype(np.float64) for x in clean))
                    compare(gpu, result[:place], expected, recurrence_bound(*clean))

    def test_sums(self, gpu, run, rng, subtests):
        for shape, axis in (((3 * 10**7 + 1,), 0), ((20, 1_000_003), 1), ((1_000_003, 20), 0), ((3000, 5000), 1)):
            for uniform in (True, False):
                with subtests.test(shape=shape, uniform=uniform):
                    x = rng.random(shape, np.float32) if uniform else rng.standard_normal(shape, np.float32)
                    result = run(parprims.scan, gpu.asarray(x), axis=axis, method="kernel")
                    n = shape[axis]
                    # What the docstring states of the kernel, each rounding to half a unit in the last place.
                    steps = 4 * np.log2(n) + n / 2**18 + 64
                    size = np.cumsum(abs(x), axis=axis, dtype=np.float64)
                    expected = size if uniform else np.cumsum(x, axis=axis, dtype=np.float64)
                    compare(gpu, result, expected, steps * 2.0**-24 * size, "float32")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_precision_is_rounded_once(self, gpu, run, rng, subtests, dtype):
        if not gpu.supports(dtype):
            pytest.skip(f"{gpu.name} has no {dtype}")
        for shape, axis in PLACES:
            with subtests.test(shape=shape, axis=axis):
                # Integers that float32 holds exactly and 16 bits do not.
                a, b = 2.0 * rng.integers(0, 2, shape) - 1, rng.integers(-9, 10, shape) + 0.0
                exact = recur(a, b, axis=axis)
                kind = random(rng, (1,), dtype).dtype
                arrays = tuple(gpu.asarray(x.astype(kind)) for x in (a, b))
                result = run(parprims.linear_recurrence, *arrays, axis=axis, method="kernel")
                compare(gpu, result, exact.astype(kind), 0, dtype)
                sums = run(parprims.scan, arrays[1], axis=axis, method="kernel")
                compare(gpu, sums, np.cumsum(b, axis=axis).astype(kind), 0, dtype)

    def test_half_precision_of_any_number(self, gpu, run, rng, subtests):
        for dtype in ("float16", "bfloat16"):
            for shape, axis in PLACES:
                with subtests.test(dtype=dtype, shape=shape):
                    if not gpu.supports(dtype):
                        pytest.skip(f"{gpu.name} has no {dtype}")
                    kind = random(rng, (1,), dtype).dtype
                    a, b = rng.uniform(-1, 1, shape).astype(kind), random(rng, shape, dtype)
                    arrays = (gpu.asarray(a), gpu.asarray(b))
                    result = run(parprims.linear_recurrence, *arrays, axis=axis, method="kernel")
                    compare(gpu, result, recur(wide(a), wide(b), axis=axis), recurrence_bound(a, b, axis=axis), dtype)

    def test_signed_zeros_and_subnormals_survive(self, gpu, run):
        for n in (3, 5000, 100_001):
            zeros = gpu.asarray(np.full(n, -0.0))
            assert np.signbit(gpu.to_numpy(run(parprims.scan, zeros, method="kernel"))).all()
            tiny = gpu.asarray(np.full(n, 2.0**-149, np.float32))
            expected = np.arange(1, n + 1) * 2.0**-149
            compare(gpu, run(parprims.scan, tiny, method="kernel"), expected)


class TestJax:
    """The kernel inside JAX programs."""

    @pytest.fixture
    def jax(self, gpu):
        if gpu.name != "jax-cuda":
            pytest.skip("needs JAX on a GPU")
        import jax

        return jax

    def test_jit(self, jax, gpu, run, rng):
        a, b = (random(rng, (3, 5000), "int32") for _ in range(2))

        @jax.jit
        def program(a, b):
            sums = run(parprims.scan, 2 * b, method="kernel")
            x = run(parprims.linear_recurrence, a + 1, b, reverse=True, method="kernel")
            return sums[:, 1:] + 1, x * 3

        for _ in range(2):
            sums, x = program(gpu.asarray(a), gpu.asarray(b))
            compare(gpu, sums, np.cumsum(2 * b, axis=1, dtype=np.int64)[:, 1:] + 1)
            compare(gpu, x, 3 * reference(affine, (a + 1, b), reverse=True)[1])

    @pytest.mark.parametrize("axis", [0, 1])
    def test_vmap(self, jax, gpu, run, rng, axis):
        a, b = (random(rng, (6, 7, 500), "int32") for _ in range(2))
        arrays = tuple(gpu.asarray(x) for x in (a, b))

        def solve(a, b):
            return run(parprims.linear_recurrence, a, b, axis=axis, method="kernel")

        def expected(a, b):
            return reference(affine, (a, b), axis=axis + 1)[1]

        compare(gpu, jax.vmap(solve)(*arrays), expected(a, b))
        compare(gpu, jax.jit(jax.vmap(solve))(*arrays), expected(a, b))
        one = jax.vmap(solve, in_axes=(0, None))(arrays[0], arrays[1][2])
        compare(gpu, one, expected(a, np.broadcast_to(b[2], b.shape)))
        moved = jax.vmap(solve, in_axes=(2, 0))(gpu.asarray(a.transpose(1, 2, 0)), arrays[1])
        compare(gpu, moved, expected(a, b))
        out = jax.vmap(solve, out_axes=1)(*arrays)
        compare(gpu, out, expected(a, b).transpose(1, 0, 2))
        nested = jax.vmap(jax.vmap(lambda row: run(parprims.scan, row, method="kernel")))(arrays[1])
        compare(gpu, nested, np.cumsum(b, axis=2, dtype=np.int64))

    def test_inside_a_loop(self, jax, gpu, run, rng):
        x = random(rng, (5, 3000), "int32")

        def step(carry, row):
            sums = run(parprims.scan, row + carry, method="kernel", dtype=row.dtype)
            return sums, sums[-1]

        last, ends = jax.lax.scan(step, gpu.asarray(np.zeros(3000, np.int32)), gpu.asarray(x))
        carry, totals = np.zeros(3000, np.int32), []
        for row in x:
            carry = np.cumsum(row + carry, dtype=np.int32)
            totals.append(carry[-1])
        compare(gpu, last, carry)
        compare(gpu, ends, np.array(totals))


class TestAuto:
    def test_what_auto_takes(self, gpu, run, rng):
        x = gpu.asarray(rng.standard_normal(1000))
        run(parprims.scan, x, method="kernel")
        with parprims.explain() as calls:
            parprims.scan(x, lambda earlier, later: earlier * later)
            parprims.scan((x, x), "affine")
            parprims.linear_recurrence(x, x)
        assert [call.method for call in calls] == ["kernel"] * 3

    def test_what_cannot_be_traced_is_refused_with_the_reason(self, gpu):
        x = gpu.asarray(np.arange(5.0))

        def untraceable(earlier, later):
            return later if float(later[0]) > 0 else earlier

        with pytest.raises(parprims.MethodRefused, match="untraceable cannot be traced"):
            parprims.scan(x, untraceable, method="kernel")


class TestAdjoint:
    """The derivatives of a linear recurrence in one launch, as PyTorch's gradients take them."""

    SHAPES = (((300, 5), 1), ((65, 500), 1), ((5, 5000), 1), ((300, 5), 0), ((4001, 33), 0), ((3, 9, 130), 1))
    LONG = (((30_001,), 0), ((130, 3000), 1), ((40, 33), 1), ((3, 20_001), 1), ((700, 700), 0), ((3, 1), 1))

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize(
        ("shape", "axis", "dtype"),
        [
            *(pytest.param(*one, "complex128", marks=pytest.mark.sanitize) for one in SHAPES),
            *(pytest.param(*one, dtype) for one in (*SHAPES, *LONG) for dtype in ("float16", "float32")),
            *(pytest.param(*one, dtype) for one in LONG for dtype in ("float64", "complex64")),
        ],
    )
    def test_equals_loop(self, gpu, rng, shape, axis, dtype, reverse):
        a, g, x = (random(rng, shape, dtype) for _ in range(3))
        a = (a / (1 + abs(a))).astype(dtype)
        a[rng.random(shape) < 0.01] = 0
        self.check(gpu, a, g, x, axis, reverse)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
    def test_serial_blocks(self, gpu, rng, change, dtype, subtests):
        change(serial_lines=1)
        for shape in ((6, 5000), (2, 20_001)):
            for reverse in (False, True):
                a, g, x = (random(rng, shape, dtype) for _ in range(3))
                a = (a / (1 + abs(a))).astype(dtype)
                with subtests.test(shape=shape, reverse=reverse):
                    self.check(gpu, a, g, x, 1, reverse)

    def test_layouts(self, gpu, rng, subtests):
        for shape, axis in (((70, 900), 1), ((900, 70), 0), ((9, 800, 30), 1)):
            a, g, x = (random(rng, shape, "float32") for _ in range(3))
            a = (a / (1 + abs(a))).astype("float32")
            for change in (strided, transposed, unaligned, reversed_view):
                with subtests.test(shape=shape, axis=axis, change=change.__name__):
                    self.check(gpu, change(gpu, a), g, change(gpu, x), axis, False, a, x)
            for lines in range(len(shape)):
                one = a[(slice(None),) * lines + (slice(1),)]
                with subtests.test(shape=shape, axis=axis, constant=lines):
                    self.check(gpu, gpu.xp.broadcast_to(gpu.asarray(one), shape), g, x, axis, True, one)

    def test_infinities_and_nans_stay_where_they_belong(self, gpu, rng):
        a, g, x = (np.full((40, 3000), 0.5) for _ in range(3))
        a[:, ::7] = 0
        rows = np.arange(40)
        for one, value in ((a, np.inf), (g, -np.inf), (g, np.nan), (x, np.inf), (x, np.nan)):
            one[rows, rng.integers(0, 3000, 40)] = value
        a_first = a.copy()
        a_first[:, 0] = np.nan  # is not read
        by_b, by_a = (gpu.to_numpy(y) for y in self.adjoint(gpu, a_first, g, x, 1, False))
        with np.errstate(invalid="ignore"):
            expected_b, expected_a = self.loop(a, g, x, 1, False)
        for got, expected in ((by_b, expected_b), (by_a, expected_a)):
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
            known = np.isfinite(expected)
            np.testing.assert_allclose(got[known], expected[known], rtol=1e-13)
        assert (by_a[:, 0] == 0).all()

    def test_same_bits(self, gpu, rng):
        a, g, x = (gpu.asarray(random(rng, (200_001,), "float32")) for _ in range(3))
        first, *others = (self.adjoint(gpu, a, g, x, 0, False) for _ in range(5))
        for other in others:
            for one, same in zip(first, other, strict=True):
                assert gpu.to_numpy(one).tobytes() == gpu.to_numpy(same).tobytes()

    def adjoint(self, gpu, a, g, x, axis, reverse):
        """Return the kernel's derivatives, having seen that it ran."""
        if gpu.name.startswith("jax"):
            pytest.skip("JAX differentiates the array form")
        a, g, x = (gpu.asarray(one) if isinstance(one, np.ndarray) else one for one in (a, g, x))
        with parprims.explain() as calls:
            found = _recurrence.adjoint(gpu.xp, a, g, x, axis, reverse, "kernel")
        assert [call.method for call in calls] == ["kernel"]
        return found

    def check(self, gpu, a, g, x, axis, reverse, a_values=None, x_values=None):
        by_b, by_a = self.adjoint(gpu, a, g, x, axis, reverse)
        alone, nothing = _recurrence.adjoint(
            gpu.xp, gpu.asarray(a) if isinstance(a, np.ndarray) else a, gpu.asarray(g), None, axis, reverse, "auto"
        )
        assert nothing is None
        a = a if a_values is None else a_values
        x = x if x_values is None else x_values
        expected_b, expected_a = self.loop(a, g, x, axis, reverse)
        coefficients = np.roll(np.broadcast_to(a, g.shape), 1 if reverse else -1, axis)
        # Each step multiplies the sum of two terms instead of one, and the last step multiplies by x.
        bound = recurrence_bound(coefficients, g, axis=axis, reverse=not reverse) * (1 + 2 / g.shape[axis])
        before = abs(self.before(wide(x), axis, reverse))
        bound_a = bound * before + 4 * eps(g.dtype.name) * abs(expected_a) + 1e-7 * (g.dtype == np.float16)
        compare(gpu, (by_b, by_a, alone), (expected_b, expected_a, expected_b), (bound, bound_a, bound))
        assert by_b.dtype == by_a.dtype == alone.dtype

    def loop(self, a, g, x, axis, reverse):
        a, g, x = (np.broadcast_to(wide(one), g.shape) for one in (a, g, x))
        coefficients = np.roll(np.conj(a), 1 if reverse else -1, axis)
        by_b = recur(coefficients, g, axis=axis, reverse=not reverse)
        by_a = by_b * np.conj(self.before(x, axis, reverse))
        np.moveaxis(by_a, axis, 0)[-1 if reverse else 0] = 0
        return by_b, by_a

    def before(self, x, axis, reverse):
        return np.roll(x, -1 if reverse else 1, axis)


@pytest.mark.sanitize
class TestSanitized:
    """Small work through every kernel and every way it is cut, for tools that watch each access."""

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((40_001,), 0),
            ((300_001,), 0),
            ((700, 3), 1),
            ((300, 40), 1),
            ((65, 200), 1),
            ((17, 1000), 1),
            ((5, 5000), 1),
            ((3, 20_000), 1),
            ((300, 5), 0),
            ((30_001, 3), 0),
            ((40, 700), 0),
            ((4001, 130), 0),
            ((3, 9, 130), 1),
            ((65, 7, 5), 1),
            ((2, 5001, 33), 1),
        ],
    )
    def test_every_kernel(self, gpu, run, rng, shape, axis):
        for name in ("add", "affine", "segments", "complex", "half"):
            check(gpu, run, BY_NAME[name], shape, axis, rng, exclusive=False, reverse=False, initial="none")
        check(gpu, run, AFFINE, shape, axis, rng, (unaligned, columns), exclusive=True, reverse=True, initial="array")
        check(gpu, run, RECURRENCE, shape, axis, rng, repeat=(tuple(range(len(shape))), ()), initial="scalar")
        x = random(rng, shape, "complex128")
        x = np.round(8 * x.real) + 1j * np.round(8 * x.imag)
        result = run(parprims.scan, gpu.asarray(x), axis=axis, method="kernel")
        compare(gpu, result, np.cumsum(x, axis=axis), 0, "complex128")

    @pytest.mark.parametrize(("shape", "axis"), [((3, 20_000), 1), ((2, 5001, 33), 1)])
    def test_many_lines(self, gpu, run, rng, change, shape, axis):
        """Tiles that wait for the one before alone, whose elements stay in registers or do not."""
        change(chained_lines=2)
        for name in ("affine", "half"):
            check(gpu, run, BY_NAME[name], shape, axis, rng, exclusive=False, reverse=False, initial="none")

    @pytest.mark.parametrize(
        ("shape", "axis", "dtype", "tuning"),
        [
            ((3, 9, 64), 1, "float32", {}),
            ((2, 5001, 32), 1, "float32", {"chained_lines": 2}),
            ((300, 8), 1, "float32", {}),
            ((65, 201), 1, "int8", {}),
            ((2, 30_001), 1, "float32", {"chained_lines": 2}),
            ((2, 30_001), 1, "float32", {"serial_lines": 1}),
        ],
    )
    def test_vectors(self, gpu, run, rng, change, shape, axis, dtype, tuning):
        """Elements that are loaded as vectors, or one by one, where the tests above do the other."""
        change(**tuning)
        x = rng.integers(-8, 9, shape).astype(dtype)
        found = run(parprims.scan, gpu.asarray(x), "maximum", axis=axis, method="kernel")
        compare(gpu, found, np.maximum.accumulate(x, axis), 0, dtype)

    def test_every_remainder(self, gpu, run, rng, subtests):
        """Of 32 lengths in turn: rows of a warp, rows of several tiles, columns."""
        for n in few_on_jax(gpu, rng, range(225, 257), 2):
            for shape, axis in (((3, n), 1), ((2048 + n,), 0), ((n, 3), 0)):
                with subtests.test(shape=shape):
                    check(gpu, run, ADD, shape, axis, rng, exclusive=False, reverse=False, initial="none")

    @pytest.mark.parametrize("n", [1003, 40_003])
    def test_rest_of_a_line(self, gpu, run, rng, n):
        """Elements that make no whole vector end a line; one that is read from its end by vectors has none such."""
        for reverse in (False, True):
            check(gpu, run, AFFINE, (n + reverse,), 0, rng, exclusive=False, reverse=reverse, initial="none")

    @pytest.mark.parametrize(("shape", "axis"), [((40_001,), 0), ((4001, 3), 0)])
    def test_states_with_gaps(self, gpu, run, rng, shape, axis):
        """What aligns the members of a state takes room between blocks too."""
        x = np.round(8 * random(rng, shape, "complex128"))
        flags = rng.random(shape) < 1e-3
        arrays = gpu.asarray(flags), gpu.asarray(x)
        _, found = run(parprims.scan, arrays, parprims.segmented("add"), axis=axis, method="kernel")
        at = np.arange(shape[axis]).reshape([-1] + [1] * (len(shape) - 1))
        starts = np.maximum.accumulate(np.where(flags, at, 0), axis=axis)
        sums = np.cumsum(x, axis=axis)
        before = np.where(starts > 0, np.take_along_axis(sums, np.maximum(starts - 1, 0), axis), 0)
        compare(gpu, found, sums - before, 0, "complex128")

    def test_looks_past_groups(self, gpu, run, rng):
        """Four groups of tiles, of which the one before a tile's own may not be done while those before it are."""
        for _ in range(6):  # which depends on what the machine does
            check(gpu, run, AFFINE, (100_001,), 0, rng, exclusive=False, reverse=False, initial="none")


class TestPlan:
    """How the kernel cuts its work, checked without a GPU."""

    SHAPES = (
        (1 << 33,),
        (1 << 20, 1 << 12),
        (1 << 12, 1 << 20),
        (3, 1 << 31),
        (1 << 31, 3),
        (7, 5, 1 << 26),
        (5, 1 << 20, 33),
    )

    @pytest.mark.once
    @pytest.mark.parametrize("recurrence", [False, True])
    @pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
    def test_bounds_of_every_plan(self, subtests, dtype, recurrence):
        # A state of int8 takes as many registers as one of int32: tiles of its recurrence are no longer, 256 elements
        # of a column for every 16 bytes published, and its results are a quarter of the bytes.
        share = 0.07 if dtype == "int8" and recurrence else 0.03
        for shape in self.SHAPES:
            for axis in range(len(shape)):
                for reverse in (False, True):
                    with subtests.test(shape=shape, axis=axis, reverse=reverse):
                        x = np.broadcast_to(np.zeros((), dtype), shape)
                        plan = self.plan(x, axis, *(x,) * recurrence, reverse=reverse, strides=row_major(shape))
                        (launch,) = plan.launches
                        assert 0 < launch.grid < 2**31
                        assert launch.block <= 1024
                        assert launch.shared_bytes <= 48 << 10
                        result = sum(math.prod(out) * np.dtype(name).itemsize for out, name in plan.outputs)
                        assert plan.status_bytes <= max(share * result, 1 << 20)

    def test_copies_only_where_unavoidable(self, subtests):
        whole = np.zeros((4, 6, 8), np.float32)
        for axis in range(3):
            for a in (
                np.zeros((1, 6, 1), np.float32),
                np.zeros((1, 1, 1), np.float32),
                np.broadcast_to(whole[:1], whole.shape),
            ):
                with subtests.test(shape=a.shape, axis=axis):
                    assert self.plan(whole, axis, a) is not None
            assert self.plan(np.zeros((4, 6, 9), np.float32)[:, :, 1:], axis) is not None
            assert self.plan(whole[::2, ::-1, ::3], axis) is not None
            assert self.plan(whole.transpose(2, 0, 1), axis) is not None
        for axis in (0, 1):
            assert self.plan(np.zeros((30, 50), np.float32).T, axis) is not None
            assert self.plan(np.zeros((30, 50), np.float32)[:, 3:20], axis) is not None
        assert self.plan(np.zeros((2, 3, 4, 5, 6), np.float32), 2) is not None
        assert self.plan(np.zeros((3, 4, 5, 8), np.float32)[:, ::2, ::2, ::2], 0) is not None
        assert self.plan(np.zeros((3, 4, 5, 6, 8), np.float32)[:, ::2, ::2, ::2, ::2], 0) is None

    def test_size_of_states(self, rng):
        """As C++ compilers, and NumPy, align the members of a structure; complex numbers by their own size."""
        for _ in range(100):
            names = tuple(rng.choice(["bool", "int16", "uint32", "float32", "float64", "int64"], rng.integers(1, 6)))
            assert state_size(names) == np.dtype([(f"v{at}", one) for at, one in enumerate(names)], True).itemsize
        assert state_size(("bool", "complex128")) == 32
        assert state_size(("complex64", "float16")) == 16

    def test_depends_on_nothing_but_shape_and_layout(self, rng):
        for shape, axis in (
            ((300, 5000), 1),
            ((40, 900, 60), 1),
            ((1 << 20,), 0),
            ((1, 9000, 1), 1),
            ((1, 900, 60), 1),
        ):
            a, b, c = (rng.standard_normal(shape, np.float32) for _ in range(3))
            assert self.plan(a, axis, b) == self.plan(c, axis, c)
            steps = tuple(7 if n == 1 else step for n, step in zip(shape, row_major(shape), strict=True))
            assert self.plan(a, axis) == self.plan(a, axis, strides=steps)  # nobody steps along a length of 1

    def plan(self, b, axis, a=None, *, reverse=False, strides=None):
        """Return the plan of a sum, or of a recurrence if there are coefficients; every address is aligned."""
        from array_api_compat import numpy as xp

        arrays = (b,) if a is None else (a, b)
        call: Scan | Recurrence
        if a is None:
            to = (sum_dtype(xp, b.dtype),)
            sums = {"single": True, "op": BUILT_IN["add"], "n": b.shape[axis], "working": to, "dtypes": to}
            call = Scan(arrays=arrays, shape=b.shape, axis=axis, reverse=reverse, **sums)
        else:
            call = Recurrence(arrays=arrays, shape=b.shape, axis=axis, reverse=reverse, dtype=b.dtype)
        layouts = tuple((strides or tuple(step // x.itemsize for step in x.strides), 0) for x in arrays)
        shapes = tuple(x.shape for x in arrays)
        special, tuning = _scan_special.specialised(xp, call), _scan_kernel.TUNING[90]
        return _scan_kernel.make_plan(special, tuning, b.shape, axis, reverse, call.n, shapes, layouts)
