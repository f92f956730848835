"""The kernel of scans: every way it cuts its work, stress, and what a GPU brings; needs a GPU or the emulator.

``PARPRIMS_STRESS=10000`` sets the number of random cases (JAX, which compiles each, has few),
``PARPRIMS_STRESS_SEED`` repeats those of a failed run.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_api_compat import device

import parprims
from parprims._primitives.scan import source as scan_source
from parprims._primitives.scan import tiling as scan_tiling
from tests.emulation import emulator
from tests.primitives.scan.test_scan import affine, loop, matrices
from tests.support.contract import compare, few_on_jax, random, reversed_view, strided, transposed, unaligned

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
        numbers = rng.integers(low, self.largest + 1, shape).astype(self.dtypes[index])
        # Integers wrap, and a product of even slopes would become zero and hide what is before.
        return numbers | 1 if self.combine is affine and index == 0 else numbers

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
        monkeypatch.setattr(scan_tiling, "TUNING", {90: dataclasses.replace(scan_tiling.TUNING[90], **fields)})
        emulator.forget(monkeypatch)

    return change


@pytest.fixture
def delay(monkeypatch):
    """Return a function that makes every block run some statements before it publishes its tile's aggregate."""

    def delay(statements):
        monkeypatch.setattr(scan_source, "BEFORE_PUBLISHING", statements)
        emulator.forget(monkeypatch)

    return delay


WAYS_ALONG = {
    "line": {"serial_lines": 1, "serial_parts": 1},
    "part": {"serial_lines": 1, "serial_parts": 9},
    "tile": {"serial_lines": 1, "serial_parts": 10**6, "serial_tiles": 1},
}


@pytest.mark.parametrize("way", list(WAYS_ALONG))
class TestBlocksThatGoAlong:
    """Blocks that go along a line of a recurrence, or a part of one, which it takes many lines for, here with few."""

    @pytest.fixture(autouse=True)
    def along(self, change, way):
        change(**WAYS_ALONG[way])

    @pytest.mark.parametrize("shape", [(40, 5000), (3, 65_537), (1, 100_003)])
    def test_shapes(self, gpu, run, rng, subtests, shape):
        for kind in few_on_jax(gpu, rng, ("none", "scalar", "array"), 2):
            for reverse in (False, True):
                with subtests.test(initial=kind, reverse=reverse):
                    check(gpu, run, RECURRENCE, shape, 1, rng, initial=kind, reverse=reverse)

    def test_layouts(self, gpu, run, rng, subtests):
        for layout in few_on_jax(gpu, rng, LAYOUTS, 2):
            for layouts in ((layout, plain), (plain, layout)):
                with subtests.test(layouts=[one.__name__ for one in layouts]):
                    check(gpu, run, RECURRENCE, (5, 20_003), 1, rng, layouts, untouched=True)

    @pytest.mark.sanitize
    def test_repeated_coefficients(self, gpu, run, rng, subtests):
        for repeat in ((), ((0, 1), ()), ((1,), ()), ((0,), ())):
            with subtests.test(repeat=repeat):
                check(gpu, run, RECURRENCE, (3, 20_000), 1, rng, repeat=repeat, initial="array")


class TestSlowTiles:
    """Look-back past tiles that are late."""

    @pytest.mark.parametrize("pattern", list(DELAYS))
    def test_parts_of_lines(self, streams, run, rng, subtests, change, delay, pattern):
        change(serial_lines=1)
        delay(DELAYS[pattern])
        for shape in ((5, 600_001), (600, 20_011), (1, 3_000_001)):
            for reverse in (False, True):
                with subtests.test(shape=shape, reverse=reverse):
                    check(streams, run, RECURRENCE, shape, 1, rng, reverse=reverse, initial="none")

    @pytest.mark.parametrize("pattern", list(DELAYS))
    def test_in_order(self, streams, run, rng, subtests, delay, pattern):
        delay(DELAYS[pattern])
        shapes = [((5_000_003,), 0), ((5, 600_001), 1), ((200_003, 7), 0), ((100_003, 40), 0), ((3, 70_001, 5), 1)]
        shapes += [((700_003, 7), 0), ((30_001, 201), 0)]
        for shape, axis in shapes:
            for program in (ADD, AFFINE) if len(shape) == 1 else (AFFINE,):
                for turned_round in (False, True):
                    with subtests.test(shape=shape, program=program.name, turned_round=turned_round):
                        options = {"exclusive": turned_round, "reverse": turned_round, "initial": "none"}
                        check(streams, run, program, shape, axis, rng, **options)

    @pytest.mark.parametrize("shape", [(5_000_003,), (100_003, 67), (40_001, 201)])
    def test_same_bits(self, streams, run, rng, delay, shape):
        x = streams.asarray(rng.standard_normal(shape, np.float32))
        found = set()
        for statements in ("", *DELAYS.values()):
            delay(statements)
            found.add(streams.to_numpy(run(parprims.scan, x, axis=0, method="kernel")).tobytes())
        assert len(found) == 1


@pytest.mark.sanitize
class TestSanitized:
    """Small work through every kernel and every way it is cut, for tools that watch each access.

    Tiles that look back bring the next one into the L2 cache.
    """

    @pytest.fixture(autouse=True)
    def near(self, change):
        change(ahead_bytes=1)

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

    def test_many_lines(self, gpu, run, rng, change):
        """Tiles of adjacent lines that wait for the one before alone."""
        change(chained_lines=2)
        for name in ("affine", "half"):
            check(gpu, run, BY_NAME[name], (2, 5001, 33), 1, rng, exclusive=False, reverse=False, initial="none")

    @pytest.mark.parametrize(
        ("shape", "axis", "dtype", "tuning"),
        [
            ((3, 9, 64), 1, "float32", {}),
            ((2, 5001, 32), 1, "float32", {"chained_lines": 2}),
            ((300, 8), 1, "float32", {}),
            ((65, 201), 1, "int8", {}),
            ((2, 30_001), 1, "float32", {}),
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


@pytest.mark.sanitize
class TestStrips:
    """Adjacent lines without aligned vectors, which takes many of them, here in small tiles."""

    @pytest.fixture(autouse=True)
    def small(self, change):
        change(strip_bytes=48 << 10, tiles=1, ahead_bytes=1)

    SHAPES = (
        *(((4001, 7), 0), ((600, 67), 0), ((3, 700, 9), 1), ((2, 500, 130), 1)),
        *(((4001, 8), 0), ((600, 64), 0), ((3, 700, 12), 1)),  # aligned
    )

    @pytest.mark.parametrize(("shape", "axis"), SHAPES)
    def test_every_kernel(self, gpu, run, rng, shape, axis):
        for name in ("add", "affine", "segments", "complex", "half", "bytes"):
            check(gpu, run, BY_NAME[name], shape, axis, rng, exclusive=False, reverse=False, initial="none")
        check(gpu, run, AFFINE, shape, axis, rng, exclusive=True, reverse=True, initial="array")
        check(gpu, run, RECURRENCE, shape, axis, rng, repeat=(tuple(range(len(shape))), ()), initial="scalar")
        check(gpu, run, RECURRENCE, shape, axis, rng, exclusive=False, reverse=True, initial="none")
        check(gpu, run, AFFINE, shape, axis, rng, (unaligned, columns), exclusive=True, reverse=False, initial="array")

    def test_looks_past_groups(self, gpu, run, rng):
        """More tiles than a group of them has."""
        for reverse in (False, True):
            check(gpu, run, ADD, (40_001, 7), 0, rng, exclusive=False, reverse=reverse, initial="none")

    @pytest.mark.parametrize(("shape", "axis"), SHAPES)
    def test_many_lines(self, gpu, run, rng, change, shape, axis):
        """Tiles that wait for the one before alone."""
        change(strip_bytes=48 << 10, tiles=1, chained_lines=1)
        for reverse in (False, True):
            check(gpu, run, AFFINE, shape, axis, rng, exclusive=False, reverse=reverse, initial="none")

    @pytest.mark.parametrize(("shape", "axis"), SHAPES)
    def test_adjoint(self, gpu, rng, shape, axis):
        """Results that depend on the next element, which may belong to the next tile."""
        from tests.primitives.scan import test_scan_rounding  # which imports this module

        for reverse in (False, True):
            a, g, x = (random(rng, shape, "float32") for _ in range(3))
            test_scan_rounding.TestAdjoint().check(gpu, a, g, x, axis, reverse)
