"""The kernels of matrix products: every step of the ladder, dtype and layout, sums cut in parts, and what a GPU brings.

They run on machines with a GPU, and on the emulator (``--backend emulated``). ``PARPRIMS_STRESS=10000`` sets the number
of random cases (JAX, which compiles each, and the emulator have few), ``PARPRIMS_STRESS_SEED`` repeats those of a
failed run.
"""

import dataclasses
import itertools
import math
import os

import array_api_compat
import numpy as np
import pytest

import parprims
from parprims._primitives.matmul import call as call_matmul
from parprims._primitives.matmul.cuda import Problem, make_plan, semiring
from parprims._primitives.matmul.tiles import TUNING
from tests.emulation import emulator
from tests.primitives.matmul.test_matmul import FLOATS, INTEGERS, KERNELS, bound, loop, whole
from tests.primitives.matmul.test_matmul_semirings import COMPOSE, LAST, compose, folded, last, logaddexp_bound
from tests.support.contract import compare, few_on_jax, random, reversed_view, strided, unaligned

STRESS = int(os.environ.get("PARPRIMS_STRESS", "300"))
SEED = int(os.environ.get("PARPRIMS_STRESS_SEED", np.random.SeedSequence().entropy % 2**64))
TENSOR = (
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float32", "tf32"),
    ("float32", "float32"),
    ("float32", "highest"),
    ("float64", "float32"),
)
"""The dtypes and precisions of the kernel tensor: one for each of its ways, and float32 widened to float64."""


@pytest.fixture
def sizes(monkeypatch):
    """Return a function that changes the sizes of the kernels' work."""

    def change(**sizes):
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(TUNING[90], **sizes))

    return change


def itemsize(dtype):
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def small(kernel, dtype, precision="float32"):
    """Return a small tile of a kernel."""
    if kernel == "tensor":
        return 16, 16, 16 if itemsize(dtype) == 2 else 8
    if kernel == "conflict_free":
        return {4: (32, 64, 4), 8: (32, 32, 4), 16: (16, 32, 4)}[
            8 if precision == "highest" else max(4, itemsize(dtype))
        ]
    return {"naive": (4, 8, 1), "tiled": (8, 4, 5), "packed": (4, 8, 3)}[kernel]


def make(rng, shapes, dtype):
    """Return random numbers: integers over the whole range, others standard normal."""
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return tuple(rng.integers(info.min, info.max, shape, dtype, endpoint=True) for shape in shapes)
    return tuple(random(rng, shape, dtype) for shape in shapes)


def size(a, b):
    """Return sum |a| |b|."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return loop(*(abs(x.astype(wide)) for x in (a, b))).astype(np.float64)


def allowed(a, b, precision="float32"):
    """Return `bound`, with tf32 2^-9 sum |a| |b| more; if highest the rounding to float32 and float64's own bound."""
    if precision == "highest":
        return 2.0**-24 * abs(loop(a, b)).astype(np.float64) + (a.shape[-1] + 1) * 2.0**-53 * size(a, b)
    return bound("kernel", a, b) + (2.0**-9 * size(a, b) if precision == "tf32" else 0)


def plain(backend, x):
    return backend.asarray(x)


def turned(backend, x):
    """Return x as matrices stored column by column."""
    return backend.xp.matrix_transpose(backend.asarray(np.ascontiguousarray(np.swapaxes(x, -1, -2))))


def inset(backend, x):
    """Return x as a part of larger matrices, two numbers from their edge and with rows 4 numbers longer."""
    wide = np.full((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1] + 4), x.reshape(-1)[0], x.dtype)
    wide[..., 1:, 2:-2] = x
    return backend.asarray(wide)[..., 1:, 2:-2]


def odd(backend, x):
    """Return x as every third number of every second row."""
    wide = np.repeat(np.repeat(x, 3, axis=-1), 2, axis=-2)
    wide[..., 1::2, :] = wide[..., ::2, :][..., ::-1]
    wide[..., ::3] = wide[..., 1::3][..., ::-1]
    return backend.asarray(wide)[..., ::2, 1::3]


def gapped(backend, x):
    """Return x as matrices with one number between each two."""
    wide = np.concatenate([x.reshape(len(x), -1), x.reshape(len(x), -1)[:, :1]], axis=1)
    return backend.xp.reshape(backend.asarray(wide)[:, :-1], x.shape)


def check(gpu, run, inputs, views=(plain, plain), *, expected=None, error=None, **options):
    """Multiply by kernel, compare with the reference, and the factors with what they were; return the result."""
    arrays = tuple(view(gpu, x) for view, x in zip(views, inputs, strict=True))
    before = [gpu.to_numpy(x).tobytes() for x in arrays]
    result = run(parprims.matmul, *arrays, method="kernel", **options)
    if expected is None:
        expected = loop(*inputs)
    if error is None:
        error = allowed(*inputs, options.get("precision", "float32"))
    compare(gpu, result, expected, error, inputs[0].dtype.name)
    assert [gpu.to_numpy(x).tobytes() for x in arrays] == before
    return result


def planned(a, b, dtype="float32", *, add="add", multiply="multiply", capability=90, strides=None, **options):
    """Return the kernel and the plan for factors of these shapes, in row-major order unless strides are given."""
    operators = call_matmul.as_operators(add, multiply)
    problem = make_problem(a, b, dtype, operators, **options)
    kernel, reason = problem.choose_kernel(capability)
    assert reason is None, reason
    if strides is None:
        strides = [tuple(math.prod(shape[at + 1 :]) for at in range(len(shape))) for shape in (a, b)]
    layouts = [(one, 0) for one in strides]
    return kernel, make_plan(problem, semiring(problem, immutable=False), layouts, capability)


def make_problem(a, b, dtype, operators=None, **options):
    """Return what the kernels see of a product of factors of these shapes."""
    kind = random(np.random.default_rng(1), (1,), dtype).dtype
    factors = tuple(np.broadcast_to(np.zeros((), kind), shape) for shape in (a, b))
    xp = array_api_compat.array_namespace(*factors)
    operators = operators or call_matmul.as_operators("add", "multiply")
    return Problem.of(call_matmul.Product.of(xp, tuple(factors), operators, **options))


def lacking(gpu, dtype):
    if dtype == "bfloat16" and gpu.name in ("emulated", "cupy"):
        pytest.importorskip("ml_dtypes")
    elif not hasattr(gpu.xp, dtype) and dtype != "bool":
        pytest.skip(f"{gpu.name} has no {dtype}")


class TestEveryDtype:
    """Every step of the ladder with every dtype it serves; integers wrap."""

    @pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
    @pytest.mark.parametrize("kernel", KERNELS[:4])
    def test_ladder(self, gpu, run, rng, kernel, dtype):
        lacking(gpu, dtype)
        inputs = make(rng, ((2, 19, 21), (21, 40)), dtype)
        check(gpu, run, inputs, kernel=kernel, tile=small(kernel, dtype))

    @pytest.mark.parametrize("dtype", ["float32", "int32"])
    @pytest.mark.parametrize("kernel", KERNELS[:4])
    def test_own_tile(self, gpu, run, rng, kernel, dtype):
        check(gpu, run, make(rng, ((65, 70), (70, 131)), dtype), kernel=kernel)

    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_tensor(self, gpu, run, rng, subtests, dtype, precision):
        lacking(gpu, dtype)
        for tile in (small("tensor", dtype), (64, 32, 32), (16, 64, 16), (32, 16, 64), None):
            with subtests.test(tile=tile):
                inputs = make(rng, ((2, 37, 67), (67, 40)), dtype)
                check(gpu, run, inputs, kernel="tensor", tile=tile, precision=precision)

    @pytest.mark.parametrize("kernel", KERNELS[:4])
    def test_highest(self, gpu, run, rng, kernel):
        tile = small(kernel, "float32", "highest")
        check(gpu, run, make(rng, ((33, 100), (100, 36)), "float32"), kernel=kernel, tile=tile, precision="highest")

    def test_chosen(self, gpu, run, rng, subtests):
        for dtype, precision in (*TENSOR, ("int8", "float32"), ("uint64", "float32"), ("complex64", "float32")):
            with subtests.test(dtype=dtype, precision=precision):
                lacking(gpu, dtype)
                check(gpu, run, make(rng, ((70, 33), (33, 65)), dtype), precision=precision)

    def test_integers_of_64_bits(self, gpu, run, rng):
        a = np.array([[2**63 - 1, -(2**63), -1], [2**62, 3, -(2**63)]])
        inputs = a, rng.integers(-(2**63), 2**63 - 1, (3, 5))
        for kernel in KERNELS[:4]:
            check(gpu, run, inputs, kernel=kernel)


def edges(tile):
    """Return lengths of m, n and k around a tile, every pair of two of them."""
    m, n, k = (sorted({1, max(1, one - 1), one, one + 1}) for one in tile)
    return [(one, other, k[(i + j) % len(k)]) for (i, one), (j, other) in itertools.product(enumerate(m), enumerate(n))]


class TestShapes:
    @pytest.mark.parametrize(
        ("kernel", "dtype"),
        [(kernel, "float32") for kernel in KERNELS] + [("tensor", "float16"), ("tensor", "float64")],
    )
    def test_edges(self, gpu, run, rng, subtests, kernel, dtype):
        tile = small(kernel, dtype)
        for m, n, k in edges(tile):
            with subtests.test(m=m, n=n, k=k):
                check(gpu, run, make(rng, ((m, k), (k, n)), dtype), kernel=kernel, tile=tile)

    def test_bands(self, gpu, run, rng, subtests):
        # 19 tiles along m are two bands of 8 and one of 3.
        for kernel, tile, m, n in (
            ("naive", (1, 2, 1), 19, 5),
            ("tiled", (2, 2, 2), 37, 9),
            ("packed", (2, 3, 2), 37, 8),
        ):
            with subtests.test(kernel=kernel):
                check(gpu, run, make(rng, ((m, 5), (5, n)), "int32"), kernel=kernel, tile=tile)
        check(gpu, run, make(rng, ((300, 9), (9, 40)), "float32"), kernel="tensor", tile=(16, 16, 8))

    def test_vectors_and_empty(self, gpu, run, rng, subtests):
        for shapes in (((9,), (9,)), ((9,), (9, 4)), ((4, 9), (9,)), ((3, 4, 9), (9,)), ((9,), (3, 9, 4))):
            for kernel in KERNELS:
                with subtests.test(shapes=shapes, kernel=kernel):
                    check(gpu, run, make(rng, shapes, "float32"), kernel=kernel)
        for shapes in (((0, 5), (5, 3)), ((4, 0), (0, 3)), ((0, 4, 5), (5, 3)), ((0,), (0,))):
            with subtests.test(shapes=shapes):
                check(gpu, run, make(rng, shapes, "float32"))

    def test_skinny(self, gpu, run, rng, subtests):
        for m, k, n in ((1, 300, 300), (300, 300, 1), (1, 2000, 1), (16, 500, 40), (17, 33, 5), (200, 1, 200)):
            for dtype in ("float32", "int64"):
                with subtests.test(m=m, k=k, n=n, dtype=dtype):
                    check(gpu, run, make(rng, ((m, k), (k, n)), dtype))


class TestLayouts:
    """Views are read where they lie."""

    @pytest.mark.parametrize(
        ("kernel", "dtype"),
        [
            *((kernel, "float32") for kernel in KERNELS),
            ("conflict_free", "int8"),
            ("conflict_free", "complex128"),
            ("tensor", "float16"),
            ("tensor", "float64"),
        ],
    )
    def test_rows_and_columns(self, gpu, run, rng, subtests, kernel, dtype):
        for views in itertools.product((plain, turned), repeat=2):
            with subtests.test(views=[view.__name__ for view in views]):
                inputs = make(rng, ((48, 32), (32, 64)), dtype)
                check(gpu, run, inputs, views, kernel=kernel, tile=small(kernel, dtype))

    @pytest.mark.parametrize(
        ("kernel", "dtype"),
        [*((kernel, "float32") for kernel in KERNELS), ("tensor", "bfloat16"), ("tensor", "float64")],
    )
    def test_views(self, gpu, run, rng, subtests, kernel, dtype):
        lacking(gpu, dtype)
        for views in (
            (unaligned, strided),
            (reversed_view, odd),
            (inset, reversed_view),
            (odd, inset),
            (inset, inset),
            (strided, unaligned),
        ):
            with subtests.test(views=[view.__name__ for view in views]):
                inputs = make(rng, ((20, 36), (36, 24)), dtype)
                check(gpu, run, inputs, views, kernel=kernel, tile=small(kernel, dtype))

    def test_rows_from_the_last(self, gpu, run, rng, subtests):
        if not gpu.negative_strides:
            pytest.skip(f"{gpu.name} has no negative strides")
        a, b = make(rng, ((20, 36), (36, 24)), "float32")
        for kernel in KERNELS:
            with subtests.test(kernel=kernel):
                arrays = gpu.asarray(a)[::-1], gpu.asarray(b)[::-1, ::-1]
                result = run(parprims.matmul, *arrays, kernel=kernel, tile=small(kernel, "float32"), method="kernel")
                seen = a[::-1], b[::-1, ::-1]
                compare(gpu, result, loop(*seen), allowed(*seen), "float32")


class TestBatches:
    SHAPES = (
        ((2, 1, 4, 9), (6, 9, 5)),
        ((1, 3, 1, 4, 7), (2, 1, 4, 7, 3)),
        ((5, 4, 9), (9, 5)),
        ((4, 9), (5, 9, 5)),
        ((5, 1, 9), (9, 5)),
        ((2, 3, 1, 9), (2, 1, 9, 5)),
    )

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_broadcast(self, gpu, run, rng, subtests, kernel):
        for shapes in self.SHAPES:
            with subtests.test(shapes=shapes):
                check(gpu, run, make(rng, shapes, "float32"), kernel=kernel, tile=small(kernel, "float32"))

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_views_of_batches(self, gpu, run, rng, subtests, kernel):
        for views in ((turned, plain), (odd, turned), (inset, odd)):
            with subtests.test(views=[view.__name__ for view in views]):
                inputs = make(rng, ((3, 2, 6, 8), (2, 8, 5)), "float32")
                check(gpu, run, inputs, views, kernel=kernel, tile=small(kernel, "float32"))

    @pytest.mark.parametrize(
        ("kernel", "dtype"), [("conflict_free", "float32"), ("tensor", "float32"), ("tensor", "float16")]
    )
    def test_one_number_between_matrices(self, gpu, run, rng, kernel, dtype):
        # Rows of the first matrix are aligned, those of the others are not.
        inputs = make(rng, ((3, 20, 32), (3, 32, 24)), dtype)
        check(gpu, run, inputs, (gapped, gapped), kernel=kernel, tile=small(kernel, dtype))

    def test_batch_axes_in_other_order(self, gpu, run, rng):
        a, b = make(rng, ((2, 3, 6, 8), (3, 2, 8, 5)), "float32")
        x, y = gpu.asarray(a), gpu.xp.permute_dims(gpu.asarray(b), (1, 0, 2, 3))
        expected = a, np.swapaxes(b, 0, 1)
        compare(gpu, run(parprims.matmul, x, y, method="kernel"), loop(*expected), allowed(*expected), "float32")

    def test_nothing_is_copied(self, gpu, rng, monkeypatch):
        if gpu.name != "emulated":
            pytest.skip("the emulator sees what a kernel is given")
        a, b = make(rng, ((9,), (9, 5)), "float32")
        given = []
        launch = emulator.Runner.__call__
        emulator.forget(monkeypatch)
        monkeypatch.setattr(
            emulator.Runner, "__call__", lambda self, *xs: given.append((self.plan, xs)) or launch(self, *xs)
        )
        factors = np.broadcast_to(a, (100, 4, 9)), np.broadcast_to(b.T[:, ::-1].T, (5, 100, 9, 5))
        result = parprims.matmul(*factors, kernel="tiled", method="kernel")
        compare(
            gpu,
            result[-1, -1],
            loop(*(x[(0,) * (x.ndim - 2)] for x in factors)),
            allowed(factors[0][0], factors[1][0, 0]),
        )
        ((plan, arrays),) = given
        for one, other in zip(arrays, factors, strict=True):
            assert np.shares_memory(one, other)
            assert one.strides == other.strides
        assert plan.temporary_bytes == plan.scratch_bytes == plan.zeroed_bytes == 0

    def test_folded_into_rows(self):
        # 100 matrices of 5 rows that meet one b are one of 500 rows; so are 100 rows, whatever lies between them.
        for a, strides in (((100, 5, 8), (40, 8, 1)), ((100, 1, 8), (64, 8, 1)), ((20, 5, 5, 8), (200, 40, 8, 1))):
            _, plan = planned(a, (8, 70), kernel="tiled", tile=(8, 8, 8), strides=[strides, (70, 1)])
            rows = math.prod(a[:-1])
            assert plan.integers[0] == rows
            assert plan.launches[-1].grid == -(-rows // 8) * 9
        for a, strides in (((100, 5, 8), (48, 8, 1)), ((100, 5, 8), (1000, 1, 5))):
            _, plan = planned(a, (8, 70), kernel="tiled", tile=(8, 8, 8), strides=[strides, (70, 1)])
            assert plan.integers[0] == 5
            assert plan.launches[-1].grid == 100 * 9
        _, plan = planned((100, 5, 8), (100, 8, 70), kernel="tiled", tile=(8, 8, 8))
        assert plan.launches[-1].grid == 100 * 9

    def test_folded_results(self, gpu, run, rng, subtests):
        for kernel in KERNELS:
            with subtests.test(kernel=kernel):
                inputs = make(rng, ((3, 2, 5, 9), (9, 7)), "float32")
                check(gpu, run, inputs, kernel=kernel, tile=small(kernel, "float32"))
                check(gpu, run, (inputs[0][:, :, :1], inputs[1]), (odd, plain), kernel=kernel)


CUT = [("conflict_free", dtype, "float32") for dtype in ("int8", "float32", "int64", "complex128")]
CUT += [("tensor", *one) for one in TENSOR]


class TestSplit:
    """Sums cut along k, where there are few tiles and k is long."""

    @pytest.mark.parametrize(("kernel", "dtype", "precision"), CUT)
    def test_few_tiles(self, gpu, run, rng, subtests, kernel, dtype, precision):
        lacking(gpu, dtype)
        tile = small(kernel, dtype, precision)
        for batch, m, n, k in (((), 9, 20, 35 * tile[2] + 3), ((3,), tile[0] + 1, 5, 18 * tile[2])):
            with subtests.test(batch=batch, m=m, n=n, k=k):
                shapes = (*batch, m, k), (k, n)
                options = {"kernel": kernel, "tile": tile, "precision": precision}
                _, plan = planned(*shapes, dtype, **options)
                assert plan.zeroed_bytes > 0
                assert plan.temporary_bytes > 0
                check(gpu, run, make(rng, shapes, dtype), (inset, plain) if m == 9 else (plain, turned), **options)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_same_bits_twice(self, gpu, rng, monkeypatch, dtype):
        a, b = (gpu.asarray(x) for x in make(rng, ((20, 3000), (3000, 18)), dtype))
        assert planned((20, 3000), (3000, 18), dtype)[1].zeroed_bytes > 0
        results = []
        for blocks in (1, 2, 6):
            monkeypatch.setattr(emulator.Runner, "in_flight", blocks)
            results.append(gpu.to_numpy(parprims.matmul(a, b, method="kernel")).tobytes())
        assert results[0] == results[1] == results[2]

    def test_order_of_k(self, gpu, run, rng, subtests):
        for splits, k in ((True, 500), (True, 64), (False, 300)):
            for operators, numpy in (
                ((COMPOSE, "bitwise_xor"), (compose, np.bitwise_xor)),
                ((LAST, "add"), (last, np.add)),
            ):
                with subtests.test(k=k, splits=splits, name=operators[0].name):
                    a, b = (rng.integers(0, 2**32, shape) for shape in ((35, k), (k, 5)))
                    if operators[0] is LAST:  # few sums are not zero
                        a, b = a * (rng.random(a.shape) < 0.02), b * 0 + np.int64(0)
                    tile = (32, 32, 4) if splits else (32, 32, 64)
                    options = {"kernel": "conflict_free", "tile": tile, "add": operators[0], "multiply": operators[1]}
                    assert bool(planned(a.shape, b.shape, "int64", **options)[1].zeroed_bytes) is splits
                    check(gpu, run, (a, b), expected=folded(*numpy, a, b), **options)

    def test_how_sums_are_cut(self, sizes):
        sizes(multiprocessors=4, part=2)
        _, plan = planned((32, 100), (100, 64), kernel="conflict_free", tile=(32, 64, 4))
        tiles, splits, part = plan.integers[7:10]
        assert tiles == 1
        assert plan.launches[-1].grid == splits
        assert part % 4 == 0
        assert (splits - 1) * part < 100 <= splits * part
        assert plan.temporary_bytes == splits * 32 * 64 * 4
        sizes(multiprocessors=1, part=1000)
        assert planned((32, 100), (100, 64), kernel="conflict_free", tile=(32, 64, 4))[1].zeroed_bytes == 0


class TestSemirings:
    CASES = (
        ("int8", "maximum", "add", np.maximum, np.add),
        ("uint16", "minimum", "multiply", np.minimum, np.multiply),
        ("float16", "maximum", "multiply", np.maximum, np.multiply),
        ("bfloat16", "minimum", "add", np.minimum, np.add),
        ("float32", "minimum", "add", np.minimum, np.add),
        ("uint64", "bitwise_or", "bitwise_and", np.bitwise_or, np.bitwise_and),
        ("bool", "logical_or", "logical_and", np.logical_or, np.logical_and),
        ("float64", "maximum", "minimum", np.maximum, np.minimum),
    )

    @pytest.mark.parametrize("kernel", KERNELS[:4])
    def test_ladder(self, gpu, run, rng, subtests, kernel):
        for dtype, add, multiply, *numpy in self.CASES if kernel == "conflict_free" else self.CASES[::3]:
            with subtests.test(dtype=dtype, add=add):
                lacking(gpu, dtype)
                for k in (3, 21, 32):
                    a, b = (whole(rng, shape, dtype) for shape in ((2, 19, k), (k, 40)))
                    tile = small(kernel, dtype)
                    if kernel == "conflict_free" and itemsize(dtype) == 2 and dtype.endswith("float16"):
                        tile = (32, 64, 4)
                    options = {"kernel": kernel, "tile": tile, "add": add, "multiply": multiply}
                    check(gpu, run, (a, b), expected=folded(*numpy, a, b), error=0, **options)

    def test_logaddexp(self, gpu, run, rng, subtests):
        for k in (5, 300):
            with subtests.test(k=k):
                a, b = make(rng, ((20, k), (k, 9)), "float32")
                expected = folded(np.logaddexp, np.add, *(x.astype(np.longdouble) for x in (a, b)))
                check(gpu, run, (a, b), expected=expected, error=logaddexp_bound(a, b), add="logaddexp", multiply="add")

    def test_refused(self, gpu, run, rng):
        a, b = (gpu.asarray(x) for x in make(rng, ((5, 7), (7, 3)), "float32"))
        whole = gpu.asarray(make(rng, ((3, 3),), "int32")[0])
        for arrays, options, message in (
            ((a, b), {"add": "minimum", "multiply": "add", "kernel": "tensor"}, "got add=minimum, multiply=add"),
            ((whole, whole), {"kernel": "tensor"}, "multiplies real floats by sum and product, got int32"),
            ((a, b), {"add": lambda x, y: x + y}, "has no identity, and the kernel's sums begin with it"),
            ((a, b), {"multiply": lambda x, y: x if x > y else y}, "branches on the values"),
            ((a, b), {"tile": (64, 17, 1)}, r"tile \(64, 17, 1\) fits no kernel: it asks for 1088 threads"),
        ):
            with pytest.raises(parprims.MethodRefused, match=message):
                parprims.matmul(*arrays, method="kernel", **options)


class TestStress:
    @pytest.mark.parametrize("part", range(4))
    def test_random_cases(self, gpu, run, part):
        for index in range(part, min(STRESS, 12) if gpu.name in ("emulated", "jax-cuda") else STRESS, 4):
            rng = np.random.default_rng([SEED, index])
            kernel = str(rng.choice(KERNELS))
            dtypes = [one for one, _ in TENSOR] if kernel == "tensor" else [*INTEGERS, *FLOATS]
            dtypes = [one for one in dtypes if hasattr(gpu.xp, one)]
            dtype = str(rng.choice(dtypes))
            precision = str(rng.choice(["float32", "tf32", "highest"])) if dtype == "float32" else "float32"
            tile = small(kernel, dtype, precision)
            m, n = (max(1, int(rng.integers(1, 4)) * one + int(rng.integers(-2, 3))) for one in tile[:2])
            k = int(2 ** rng.uniform(0, 8 if kernel in ("conflict_free", "tensor") else 6))
            batch, other = ([(), (1,), (2,), (3, 1), (1, 2), (3, 2)][int(rng.integers(0, 6))] for _ in range(2))
            views = [[plain, turned, odd, inset, strided, unaligned][int(rng.integers(0, 6))] for _ in range(2)]
            options = {"kernel": kernel, "precision": precision}
            if rng.random() < 0.8:
                options["tile"] = tile
            try:
                check(gpu, run, make(rng, ((*batch, m, k), (*other, k, n)), dtype), views, **options)
            except Exception as error:
                names = [view.__name__ for view in views]
                raise AssertionError(
                    f"case {index} of seed {SEED}: {dtype} {(*batch, m, k)} x {(*other, k, n)}, {names}, {options}"
                ) from error


@pytest.mark.sanitize
class TestSanitized:
    """Small work through every kernel and every way of the one for tensor cores, for tools that watch each access."""

    @pytest.mark.parametrize("kernel", KERNELS[:4])
    def test_ladder(self, gpu, run, rng, kernel):
        tile = small(kernel, "float32")
        m, n, k = (one + 1 for one in tile)
        check(gpu, run, make(rng, ((2, m, k), (k, n)), "float32"), (odd, turned), kernel=kernel, tile=tile)

    def test_semiring(self, gpu, run, rng):
        # Above zero, with which tiles are filled.
        a, b = (rng.integers(1, 2**30, shape, np.int32) for shape in ((33, 35), (35, 40)))
        options = {"kernel": "conflict_free", "tile": (32, 64, 4), "add": "minimum", "multiply": "add"}
        check(gpu, run, (a, b), (inset, plain), expected=folded(np.minimum, np.add, a, b), **options)

    @pytest.mark.parametrize("kernel", ["tiled", "conflict_free", "tensor"])
    def test_every_remainder(self, gpu, run, rng, subtests, kernel):
        """Of 32 lengths in turn."""
        for n in few_on_jax(gpu, rng, range(33, 65), 2):
            with subtests.test(n=n):
                options = {"kernel": kernel, "tile": small(kernel, "float32")}
                check(gpu, run, make(rng, ((n, n), (n, n)), "float32"), **options)

    @pytest.mark.parametrize("views", [(plain, plain), (turned, turned), (unaligned, unaligned)])
    @pytest.mark.parametrize("lengths", [(36, 36, 68), (33, 35, 41)])
    def test_vectors(self, gpu, run, rng, views, lengths):
        """Factors and results whose rows are whole vectors, and those whose rows are not."""
        m, k, n = lengths
        options = {"kernel": "conflict_free", "tile": small("conflict_free", "float32")}
        check(gpu, run, make(rng, ((m, k), (k, n)), "float32"), views, **options)

    @pytest.mark.parametrize(
        ("dtype", "lengths", "views"),
        [
            ("bfloat16", (24, 88, 32), (unaligned, unaligned)),
            ("bfloat16", (24, 88, 32), (plain, turned)),
            ("float32", (24, 89, 33), (plain, plain)),
        ],
    )
    def test_tensor_otherwise(self, gpu, run, rng, dtype, lengths, views):
        lacking(gpu, dtype)
        m, k, n = lengths
        check(gpu, run, make(rng, ((m, k), (k, n)), dtype), views, kernel="tensor", tile=small("tensor", dtype))

    @pytest.mark.parametrize("views", [(plain, plain), (turned, turned)])
    @pytest.mark.parametrize(("dtype", "precision"), [*TENSOR[:4], TENSOR[5]])
    def test_tensor(self, gpu, run, rng, dtype, precision, views):
        lacking(gpu, dtype)
        inputs = make(rng, ((24, 88), (88, 32)), dtype)
        check(gpu, run, inputs, views, kernel="tensor", tile=small("tensor", dtype), precision=precision)

    @pytest.mark.parametrize("kernel", ["conflict_free", "tensor"])
    def test_cut(self, gpu, run, rng, kernel):
        tile, shapes = small(kernel, "float32"), ((17, 131), (131, 20))
        assert planned(*shapes, kernel=kernel, tile=tile)[1].zeroed_bytes > 0
        check(gpu, run, make(rng, shapes, "float32"), kernel=kernel, tile=tile)
