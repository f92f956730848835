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
from parprims import _cuda, _derivatives, _matmul
from parprims._matmul_kernel import Problem, make_plan, semiring
from parprims._matmul_tiles import TUNING, impossible, shared_bytes
from tests import emulator
from tests.conftest import _backend
from tests.contract import compare, eps, few_on_jax, random, reversed_view, strided, unaligned
from tests.test_matmul import (
    COMPOSE,
    FLOATS,
    INTEGERS,
    KERNELS,
    LAST,
    bound,
    compose,
    folded,
    last,
    logaddexp_bound,
    loop,
    whole,
)

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
CAPABILITIES = (75, 80, 86, 90)


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
    operators = _matmul.as_operators(add, multiply)
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
    operators = operators or _matmul.as_operators("add", "multiply")
    return Problem.of(_matmul.Product.of(xp, *factors, operators, **options))


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


# A small tile of each kind.
GROUPS = {"HALF": (64, 64, 64), "TF32": (64, 64, 32), "SPLIT": (64, 64, 32), "DOUBLE": (64, 128, 16)}


def kind_of(dtype, precision):
    """Return the kind of instructions for a dtype and precision, as the sizes of groups name it."""
    by_precision = {"tf32": "TF32", "highest": "DOUBLE", "float32": "SPLIT"}
    return {"float16": "HALF", "bfloat16": "HALF", "float64": "DOUBLE"}.get(dtype) or by_precision[precision]


class TestGroups:
    """Tensor cores by the instructions of groups of four warps, where the factors lie as these ask for."""

    @pytest.fixture
    def groups(self, sizes):
        """Return a function that tells, with small tiles for groups, the tile of a dtype and whether it is theirs."""
        sizes(groups={kind: (tile,) for kind, tile in GROUPS.items()}, at_once=0)

        def tile(dtype, precision, views):
            kind = kind_of(dtype, precision)
            one_along_k = views[0] is plain or views[1] is turned
            return GROUPS[kind], kind in ("HALF", "DOUBLE") or one_along_k

        return tile

    @pytest.mark.parametrize("views", [*itertools.product((plain, turned), repeat=2)])
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_layouts(self, gpu, run, rng, subtests, groups, dtype, precision, views):
        lacking(gpu, dtype)
        tile, fits = groups(dtype, precision, views)
        for a, b in (((72, 136), (136, 88)), ((2, 64, 64), (64, 128)), ((72, 8), (3, 8, 56)), ((40, 1200), (1200, 56))):
            with subtests.test(a=a, b=b):
                options = {"kernel": "tensor", "tile": tile, "precision": precision}
                strides = [
                    (
                        *(math.prod(one[at + 1 :]) for at in range(len(one) - 2)),
                        *((one[-1], 1) if view is plain else (1, one[-2])),
                    )
                    for one, view in zip((a, b), views, strict=True)
                ]
                _, plan = planned(a, b, dtype, strides=strides, **options)
                assert plan.launches[-1].template.endswith("by_groups") == fits
                assert bool(plan.zeroed_bytes) == (a[-1] // (TUNING[90].part * tile[2]) > 1)  # is cut
                check(gpu, run, make(rng, (a, b), dtype), views, **options)
                (launch,) = planned(a, b, dtype, strides=strides, capability=86, **options)[1].launches
                assert launch.template == "multiply_tensor"

    @pytest.mark.parametrize("views", [*itertools.product((plain, turned), repeat=2)])
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_copied_by_threads(self, gpu, run, rng, subtests, groups, sizes, dtype, views):
        lacking(gpu, dtype)
        options = {"kernel": "tensor", "tile": groups(dtype, "float32", views)[0]}
        sizes(at_once=2**40)
        for shapes in (((72, 136), (136, 88)), ((2, 64, 64), (64, 128)), ((40, 1200), (1200, 56))):
            with subtests.test(shapes=shapes):
                assert "BY_THREADS" in planned(*shapes, dtype, **options)[1].launches[-1].arguments
                check(gpu, run, make(rng, shapes, dtype), views, **options)

    def test_bulk_copies(self, groups):
        """They are of 16-bit floats and the right factor of tf32, wherever a tensor map can tell where these lie."""
        a, b, row_major = (72, 136), (136, 88), ((136, 1), (88, 1))
        batch, two = (3, 72, 136), (2, 3, 136, 88)
        for way, dtype, shapes, strides in (
            ("AT_ONCE", "float16", (a, b), row_major),
            ("AT_ONCE", "float16", (a, b), ((1, 72), (1, 136))),
            ("AT_ONCE", "float16", (batch, (3, *b)), ((9792, 136, 1), (11968, 88, 1))),
            ("AT_ONCE", "float16", (batch, (3, *b)), ((9792, 136, 1), (0, 88, 1))),
            ("BY_THREADS", "float16", (batch, (3, *b)), ((9792, 136, 1), (-11968, 88, 1))),
            ("BY_THREADS", "float16", (a, two), (row_major[0], (100000, 11968, 88, 1))),
            ("BY_THREADS", "float16", (a, b), ((0, 1), (88, 1))),
            ("BY_THREADS", "float16", (a, b), ((-136, 1), (88, 1))),
            ("RIGHT_AT_ONCE", "float32", (a, b), ((136, 1), (1, 136))),
            ("RIGHT_AT_ONCE", "float32", (a, b), row_major),  # turned: a is the right one
            ("BY_THREADS", "float32", (a, b), ((0, 1), (88, 1))),
        ):
            precision = "tf32" if dtype == "float32" else "float32"
            options = {"kernel": "tensor", "tile": GROUPS[kind_of(dtype, precision)], "precision": precision}
            plan = planned(*shapes, dtype, strides=strides, **options)[1]
            assert way in plan.launches[-1].arguments, (shapes, strides)
            assert bool(plan.scratch_bytes) == (way != "BY_THREADS")

    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_own_tiles(self, gpu, run, rng, subtests, dtype, precision):
        lacking(gpu, dtype)
        for tile in TUNING[90].groups[kind_of(dtype, precision)]:
            with subtests.test(tile=tile):
                options = {"kernel": "tensor", "tile": tile, "precision": precision}
                shapes = (tile[0] + 8, 136), (136, tile[1] + 8)
                check(gpu, run, make(rng, shapes, dtype), (plain, turned), **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_blocks_go_on(self, gpu, run, rng, groups, sizes, dtype, precision):
        """Few blocks, each with several tiles of several products, whose sums have from 1 to 8 tiles along k."""
        lacking(gpu, dtype)
        views = plain, turned
        tile, _ = groups(dtype, precision, views)
        sizes(multiprocessors=3)
        options = {"kernel": "tensor", "tile": tile, "precision": precision}
        for k in (8, 136, 264):
            shapes = (3, 72, k), (k, 200)
            strides = (72 * k, k, 1), (1, k)
            _, plan = planned(*shapes, dtype, strides=strides, **options)
            (launch,) = plan.launches
            assert launch.template.endswith("by_groups")
            assert launch.grid == 3
            check(gpu, run, make(rng, shapes, dtype), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [(turned, plain), (odd, plain), (turned, gapped), (inset, inset)])
    @pytest.mark.parametrize("precision", ["float32", "tf32"])
    def test_laid_along_k(self, gpu, run, rng, subtests, groups, sizes, precision, views):
        """Neither factor lies as groups ask for: the smaller one is copied so."""
        tile, _ = groups("float32", precision, views)
        sizes(packed=40)
        for a, b in (((72, 141), (141, 50)), ((3, 50, 70), (3, 70, 131)), ((2, 45, 1201), (1201, 40))):
            with subtests.test(a=a, b=b):
                options = {"kernel": "tensor", "tile": tile, "precision": precision}
                strides = [(*(math.prod(one[at:]) * 3 for at in range(1, len(one))), 3) for one in (a, b)]
                packing, multiply = planned(a, b, "float32", strides=strides, **options)[1].launches
                assert packing.template == "pack_lines"
                assert multiply.template.endswith("by_groups")
                check(gpu, run, make(rng, (a, b), "float32"), views, **options)

    @pytest.mark.parametrize("views", [(plain, turned), (plain, plain)])
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_not_finite(self, gpu, run, rng, groups, dtype, precision, views):
        lacking(gpu, dtype)
        tile, _ = groups(dtype, precision, views)
        (a,) = make(rng, ((72, 136),), dtype)
        b = rng.integers(-9, 10, (136, 88)).astype(a.dtype)
        a[0, 3], a[1, 5], a[2, 7], a[70, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
        expected = loop(a, b)
        finite = np.where(np.isfinite(a.astype(np.float64)), a, a.dtype.type(0))
        options = {"kernel": "tensor", "tile": tile, "precision": precision}
        check(gpu, run, (a, b), views, expected=expected, error=allowed(finite, b, precision), **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [(plain, turned), (plain, plain)])
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_sanitized(self, gpu, run, rng, groups, dtype, precision, views):
        lacking(gpu, dtype)
        options = {"kernel": "tensor", "tile": groups(dtype, precision, views)[0], "precision": precision}
        check(gpu, run, make(rng, ((72, 136), (136, 72)), dtype), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize(
        ("dtype", "views", "n"), [("bfloat16", (turned, turned), 88), ("float64", (turned, plain), 73)]
    )
    def test_sanitized_otherwise(self, gpu, run, rng, groups, sizes, dtype, views, n):
        """Copied by threads; numbers that are copied one by one."""
        lacking(gpu, dtype)
        options = {"kernel": "tensor", "tile": groups(dtype, "float32", views)[0]}
        sizes(at_once=2**40)
        check(gpu, run, make(rng, ((72, 136), (136, n)), dtype), views, **options)


class TestPreferred:
    def test_large_matrices_of_float32(self, gpu, rng, sizes, subtests):
        """On devices with groups of four warps, auto takes the kernel where it is faster."""
        sizes(preferred=16, preferred_products=16 * 16 * 300, small=0)
        for dtype, k, options, preferred in (
            ("float32", 300, {}, True),
            ("float32", 299, {}, False),
            ("float32", 300, {"precision": "tf32"}, False),
            ("float64", 300, {}, False),
        ):
            with subtests.test(dtype=dtype, k=k, **options):
                if dtype == "float64":
                    lacking(gpu, dtype)
                a, b = (gpu.asarray(x) for x in make(rng, ((16, k), (k, 16)), dtype))
                found = parprims.methods(parprims.matmul, a, b, **options)
                preferred = preferred and _cuda.capability(gpu.xp, a) == 90
                assert (found["native"] is not None) is preferred
                assert found["kernel"] is None
                with parprims.explain() as calls:
                    parprims.matmul(a, b, **options)
                assert calls[0].method == ("kernel" if preferred else "native")

    def test_small_matrices_of_float32(self, gpu, rng, sizes, subtests):
        """Where the call takes longer than the product, but not inside of JAX's programs or for a derivative."""
        sizes(small=16, preferred=2**20)
        for shapes, dtype, preferred in (
            (((16, 16), (16, 16)), "float32", True),
            (((4, 2, 16), (16, 3)), "float32", True),
            (((16, 17), (17, 16)), "float32", False),
            (((2, 16, 16), (16, 16)), "float32", False),
            (((16, 16), (16, 16)), "float64", False),
            (((16,), (16, 16)), "float32", False),
        ):
            with subtests.test(shapes=shapes, dtype=dtype):
                if dtype == "float64":
                    lacking(gpu, dtype)
                a, b = (gpu.asarray(x) for x in make(rng, shapes, dtype))
                preferred = preferred and _cuda.capability(gpu.xp, a) == 90
                with parprims.explain() as calls:
                    parprims.matmul(a, b)
                assert calls[0].method == ("kernel" if preferred else "native")
        a, b = (gpu.asarray(x) for x in make(rng, ((16, 16), (16, 16)), "float32"))
        with parprims.explain() as calls:
            if gpu.name == "jax-cuda":
                import jax

                jax.jit(parprims.matmul)(a, b)
            elif gpu.name == "torch-cuda":
                parprims.matmul(a.requires_grad_(), b)
        assert all(call.method == "native" for call in calls)

    def test_gradients(self, gpu, rng, sizes):
        if gpu.name != "torch-cuda":
            pytest.skip("needs PyTorch")
        sizes(preferred=16, preferred_products=16 * 16 * 300, small=0)
        a, b, weights = make(rng, ((16, 300), (300, 16), (16, 16)), "float32")
        x, y = (gpu.asarray(one).requires_grad_() for one in (a, b))
        with parprims.explain() as calls:
            product = parprims.matmul(x, y)
        preferred = _cuda.capability(gpu.xp, x.detach()) == 90
        assert [call.method for call in calls] == ["kernel" if preferred else "native"]
        product.backward(gpu.asarray(weights))
        for grad, factors in ((x.grad, (weights, b.T)), (y.grad, (a.T, weights))):
            compare(gpu, grad, loop(*factors), allowed(*factors), "float32")


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
            ((a, b), {"add": "minimum", "multiply": "add", "kernel": "tensor"}, "got minimum of add"),
            ((whole, whole), {"kernel": "tensor"}, "multiplies real floats by sum and product, got int32"),
            ((a, b), {"add": lambda x, y: x + y}, "has no identity, from which the kernel's sums begin"),
            ((a, b), {"multiply": lambda x, y: x if x > y else y}, "branches on the values"),
            ((a, b), {"tile": (64, 17, 1)}, r"tile \(64, 17, 1\) fits no kernel: it asks for 1088 threads"),
        ):
            with pytest.raises(parprims.MethodRefused, match=message):
                parprims.matmul(*arrays, method="kernel", **options)


def chain(a, b):
    """Return the sums of float32 products by fused multiply-adds, one after another in the order of k."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[1]):  # the product is exact in float64, and the sum is but for a rounding 2^-29 as small
        total = (total + a[:, k : k + 1] * b[k]).astype(np.float32)
    return total


class TestAccuracy:
    """Float32 on tensor cores, as the sum of two numbers of 11 bits."""

    def cases(self, rng, k):
        a, b = make(rng, ((16, k), (k, 16)), "float32")
        positive = rng.uniform(0.5, 1, (16, k)).astype(np.float32), rng.uniform(0.5, 1, (k, 16)).astype(np.float32)
        rows, columns = (10.0 ** rng.uniform(-15, 15, shape) for shape in ((16, 1), (1, 16)))
        order = rng.permutation(k)
        cancelling = np.concatenate([a[:, : k // 2], -a[:, : k - k // 2]], axis=1)[:, order]
        again = np.concatenate([b[: k // 2], b[: k - k // 2] * np.float32(1 + 2**-12)])[order]
        return {
            "normal": (a, b),
            "positive": positive,
            "badly scaled": ((a * rows).astype(np.float32), (b * columns).astype(np.float32)),
            "cancelling": (cancelling, again),
            "next to the least": (a * np.float32(2.0**-123), b * np.float32(2.0**100)),
        }

    def test_no_worse_than_a_chain(self, gpu, run, rng, subtests):
        # The error relative to sum |a| |b|, in the mean of squares over 256 sums, against that of simulated chains.
        # Shorter sums than the first are left to chains.
        for k in (TUNING[90].chain, 2000 if gpu.name == "emulated" else 65536):
            for name, (a, b) in self.cases(rng, k).items():
                with subtests.test(name, k=k):
                    expected, scale = loop(a, b), size(a, b)
                    result = check(gpu, run, (a, b), kernel="tensor", tile=(16, 16, 32))
                    found, usual = (
                        np.sqrt(np.mean((abs(x.astype(np.longdouble) - expected) / scale) ** 2))
                        for x in (gpu.to_numpy(result), chain(a, b))
                    )
                    assert found <= usual

    def test_short_sums(self, gpu, run, rng, subtests):
        # All that a split loses has the same sign where numbers are just above the middle of two of 11 bits.
        for k in (1, 2, 7, 64):
            with subtests.test(k=k):
                a, b = ((1 + (4097 + rng.integers(0, 9, shape)) * 2.0**-23) for shape in ((20, k), (k, 20)))
                inputs = tuple(x.astype(np.float32) for x in (a, b))
                check(gpu, run, inputs, kernel="tensor")
                # Which therefore is not what such a product gets.
                check(gpu, run, inputs, error=(k + 1) * 2.0**-23 * size(*inputs))

    def test_tf32_is_rounded_to_10_bits(self, gpu, run, rng):
        # Numbers of 10 fraction bits, and few enough of them, are multiplied exactly. So would others be here, each by
        # one power of two, if they were not rounded.
        a, b = (rng.integers(-1024, 1025, shape).astype(np.float32) for shape in ((20, 8), (8, 20)))
        check(gpu, run, (a, b), error=0, kernel="tensor", precision="tf32")
        a = (1 + (2 * rng.integers(0, 2048, a.shape) + 1) * 2.0**-12).astype(np.float32)
        b = np.where(np.arange(8)[:, None] == rng.integers(0, 8, 20), np.float32(4), np.float32(0))
        result = check(gpu, run, (a, b), kernel="tensor", precision="tf32")
        assert (gpu.to_numpy(result) != loop(a, b)).all()


class TestNotFinite:
    """Infinities, NaN and overflow: what a chain of products gives, on tensor cores too."""

    @pytest.mark.parametrize(
        ("kernel", "dtype", "precision"),
        [
            *(("tensor", *one) for one in TENSOR),
            ("conflict_free", "float32", "float32"),
            ("packed", "float64", "float32"),
        ],
    )
    def test_infinity_and_nan(self, gpu, run, rng, subtests, kernel, dtype, precision):
        lacking(gpu, dtype)
        for k in (8, 40, 700):
            with subtests.test(k=k):
                (a,) = make(rng, ((20, k),), dtype)
                b = rng.integers(-9, 10, (k, 20)).astype(a.dtype)  # exact in 8 bits: what is left of them is zero
                a[0, 3], a[1, 5], a[2, 7], a[3, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
                b[2, 4], b[6, 5] = np.inf, np.nan
                expected = loop(a, b)
                assert np.isinf(expected[:2]).any()
                assert np.isnan(expected[3]).any()
                finite = tuple(np.where(np.isfinite(x.astype(np.float64)), x, x.dtype.type(0)) for x in (a, b))
                error = allowed(*finite, precision)
                check(gpu, run, (a, b), expected=expected, error=error, kernel=kernel, precision=precision)

    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_overflow(self, gpu, run, rng, subtests, dtype, precision):
        # One number near the largest in a row, and the others small: it alone says what overflows.
        lacking(gpu, dtype)
        largest = {"bfloat16": 3.3e38}.get(dtype) or float(np.finfo(dtype).max)
        for k in (8, 33):
            with subtests.test(k=k):
                (a,) = make(rng, ((20, k),), dtype)
                b = rng.integers(-3, 4, (k, 20)).astype(a.dtype)
                a[np.arange(20), rng.integers(0, k, 20)] = 0.9 * largest
                exact, error = loop(a, b), allowed(a, b, precision)
                expected = exact.astype(a.dtype).astype(np.float64)
                assert np.isinf(expected).any()
                assert np.isfinite(expected).any()
                check(gpu, run, (a, b), expected=expected, error=error, kernel="tensor", precision=precision)

    def test_the_largest_number(self, gpu, run, rng):
        # It rounds to infinity in 10 bits, its other part is minus infinity.
        a, b = (np.zeros(shape, np.float32) for shape in ((16, 8), (8, 16)))
        a[:] = rng.choice(np.array([-1, 1]), a.shape) * np.finfo(np.float32).max
        b[rng.integers(0, 8, 16), np.arange(16)] = 2.0 ** -rng.integers(0, 9, 16)
        check(gpu, run, (a, b), kernel="tensor")


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


class TestTorch:
    @pytest.mark.parametrize("shapes", [((5, 9), (9, 4)), ((2, 1, 5, 9), (3, 9, 4)), ((9,), (3, 9, 4)), ((9,), (9,))])
    @pytest.mark.parametrize("dtype", ["float32", "complex128"])
    def test_backward(self, tensors, rng, shapes, dtype):
        # Of sum(w * (a b)) the derivatives are w b^H and a^H w, summed over what was broadcast.
        a, b = make(rng, shapes, dtype)
        (w,) = make(rng, (loop(a, b).shape,), dtype)
        x, y = (tensors.asarray(one).requires_grad_(True) for one in (a, b))
        product = parprims.matmul(x, y, method="kernel")
        compare(tensors, product, loop(a, b), bound("kernel", a, b), dtype)
        product.backward(tensors.asarray(w))
        rows, columns = (a if a.ndim > 1 else a[None]), (b if b.ndim > 1 else b[:, None])
        w = w if b.ndim > 1 else w[..., None]
        w = w if a.ndim > 1 else w[..., None, :]
        for got, factors, given in (
            (x.grad, (w, np.swapaxes(columns, -1, -2).conj()), a),
            (y.grad, (np.swapaxes(rows, -1, -2).conj(), w), b),
        ):
            expected, error = loop(*factors), bound("kernel", *factors)
            two = given if given.ndim > 1 else expected[(0,) * (expected.ndim - 2)]
            shape = (1,) * (expected.ndim - two.ndim) + two.shape
            over = tuple(at for at, (one, other) in enumerate(zip(shape, expected.shape, strict=True)) if one != other)
            # Summed in at most 6 more steps.
            error = (error + 6 * eps(dtype) * size(*factors)).sum(axis=over)
            compare(tensors, got, expected.sum(axis=over).reshape(given.shape), error.reshape(given.shape), dtype)

    def test_backward_of_backward(self, tensors, rng):
        a, b, w, v = make(rng, ((5, 9), (9, 4), (5, 4), (5, 9)), "float64")
        x, y, u = (tensors.asarray(one).requires_grad_(True) for one in (a, b, w))
        import torch

        product = parprims.matmul(x, y, method="kernel")
        (by_x,) = torch.autograd.grad(product, x, u, create_graph=True)  # u y^T
        by_y, by_u = torch.autograd.grad(by_x, (y, u), tensors.asarray(v))
        compare(tensors, by_y, loop(v.T, w), bound("kernel", v.T, w))
        compare(tensors, by_u, loop(v, b), bound("kernel", v, b))

    def test_no_other_operators(self, tensors, rng):
        x, y = (tensors.asarray(one).requires_grad_(True) for one in make(rng, ((5, 9), (9, 4)), "float32"))
        if tensors.name == "torch":
            pytest.skip("the emulator refuses nothing")
        with pytest.raises(parprims.MethodRefused, match="a gradient is asked for"):
            parprims.matmul(x, y, add="minimum", multiply="add", method="kernel")
        parprims.matmul(x, y, add="minimum", multiply="add").sum().backward()
        assert x.grad is not None


class TestDerivatives:
    """The rules that go with the kernel, carried out by array on any machine."""

    @pytest.mark.parametrize(
        "shapes",
        [((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (2, 4, 3))],
    )
    @pytest.mark.parametrize(
        "dtypes", [("float64", "float64"), ("complex128", "complex128"), ("float64", "complex128")]
    )
    def test_torch(self, rng, shapes, dtypes):
        torch = pytest.importorskip("torch")
        from parprims import _derivatives_torch

        product = _derivatives_torch.product(
            lambda a, b: parprims.matmul(a, b, method="array"), precision="float32", kernel=None, method="array"
        )
        factors = [
            torch.from_numpy(np.asarray(random(rng, shape, dtype))).requires_grad_(True)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        assert torch.autograd.gradcheck(product, factors)
        assert torch.autograd.gradgradcheck(product, factors)

    def test_torch_options_are_kept(self, rng, monkeypatch):
        torch = pytest.importorskip("torch")
        asked = []
        matmul = _matmul.matmul

        def watched(a, b, **options):
            asked.append(options)
            return matmul(a, b, precision=options["precision"], method="array")

        monkeypatch.setattr(_matmul, "matmul", watched)
        a, b = (torch.from_numpy(x).requires_grad_(True) for x in make(rng, ((3, 4), (4, 2)), "float32"))
        from array_api_compat import torch as xp

        operators = _matmul.as_operators("add", "multiply")
        p = _matmul.Product.of(xp, a, b, operators, precision="tf32", kernel="tensor")
        run = _derivatives.product(xp, p, lambda x, y: p.on(x, y).by_array(xp), "array")
        run(a, b).sum().backward()
        assert asked == [{"precision": "tf32", "kernel": "tensor", "method": "array"}] * 2

    @pytest.fixture
    def jax(self, monkeypatch):
        """Return JAX, which takes its CPU for a GPU until it compiles: programs for both can be had."""
        jax = pytest.importorskip("jax")
        _backend("jax")
        emulator.install_for_jax(monkeypatch)
        return jax

    @pytest.mark.parametrize("kernel", [None, "packed"])
    def test_jax(self, jax, rng, kernel, subtests):
        a, b, c, w = make(rng, ((5, 9), (9, 4), (6, 9), (6, 4)), "float32")
        more_a, more_b = make(rng, ((3, 5, 9), (3, 9, 4)), "float32")
        many_a, vectors = make(rng, ((2, 3, 5, 9), (7, 9)), "float32")

        def product(x, y):
            return parprims.matmul(x, y, kernel=kernel, method="kernel")

        def same(x):
            return x

        def swapped(x):
            return np.swapaxes(x, -1, -2)

        cases = {  # the function, its arguments, the factors, and how the result lies
            "plain": (product, (a, b), (a, b), same),
            "a mapped": (jax.vmap(product, in_axes=(0, None)), (more_a, b), (more_a, b), same),
            "b mapped": (jax.vmap(product, in_axes=(None, 0)), (a, more_b), (a, more_b), same),
            "both mapped": (jax.vmap(product), (more_a, more_b), (more_a, more_b), same),
            "twice": (jax.vmap(jax.vmap(product, (0, None)), (0, None)), (many_a, b), (many_a, b), same),
            "another axis": (
                jax.vmap(product, in_axes=(1, None)), (np.swapaxes(many_a, 0, 1), b), (many_a, b), same,
            ),
            "vectors": (jax.vmap(product, in_axes=(None, 0)), (a, vectors), (a, vectors.T), swapped),
        }  # fmt: skip
        for name, (function, inputs, factors, moved) in cases.items():
            with subtests.test(name):
                text = jax.jit(function).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
                assert text.count("@__gpu$xla.gpu.ptx(") == (3 if kernel == "packed" else 1)
                with jax.default_device(jax.devices("cpu")[0]):
                    found = jax.jit(function)(*inputs)
                compare(_backend("jax"), found, moved(loop(*factors)), moved(bound("native", *factors)), "float32")
        with subtests.test("gradient"), jax.default_device(jax.devices("cpu")[0]):
            loss = jax.grad(lambda x, y: (product(x, y) * w).sum(), argnums=(0, 1))
            for got, factors in zip(jax.jit(loss)(c, b), ((w, b.T), (c.T, w)), strict=True):
                assert np.all(abs(np.asarray(got) - loop(*factors)) <= bound("native", *factors))


class TestJax:
    @pytest.fixture
    def jax(self, gpu):
        if gpu.name != "jax-cuda":
            pytest.skip("only JAX traces")
        return pytest.importorskip("jax")

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_jit_vmap_and_gradient(self, jax, gpu, rng, subtests, kernel):
        a, b, more_a, more_b, w = make(rng, ((20, 33), (33, 18), (3, 20, 33), (4, 33, 18), (20, 18)), "float32")

        def product(x, y):
            return parprims.matmul(x, y, kernel=kernel)

        for name, function, inputs in (
            ("jit", jax.jit(product), (a, b)),
            ("a", jax.vmap(product, in_axes=(0, None)), (more_a, b)),
            ("b", jax.jit(jax.vmap(product, in_axes=(None, 0))), (a, more_b)),
        ):
            with subtests.test(name):
                compare(gpu, function(*map(gpu.asarray, inputs)), loop(*inputs), bound("kernel", *inputs), "float32")
        with subtests.test("gradient"):
            loss = jax.jit(jax.grad(lambda x, y: (product(x, y) * w).sum(), argnums=(0, 1)))
            for got, factors in zip(loss(*map(gpu.asarray, (a, b))), ((w, b.T), (a.T, w)), strict=True):
                compare(gpu, got, loop(*factors), bound("native", *factors))


class TestPlan:
    """How the kernels cut their work, checked without a GPU."""

    SHAPES = (
        ((1, 1), (1, 1)),
        ((1, 4096), (4096, 4096)),
        ((4096, 4096), (4096, 1)),
        ((17, 100_000), (100_000, 17)),
        ((8192, 8192), (8192, 8192)),
        ((1000, 33, 65), (1000, 65, 129)),
        ((3, 1, 5, 7), (4, 7, 9)),
    )

    @pytest.mark.once
    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_bounds_of_every_plan(self, subtests, capability):
        most = {75: 64, 80: 163, 86: 99, 90: 227}[capability] << 10
        for dtype, precision in (
            *TENSOR,
            ("int8", "float32"),
            ("int64", "float32"),
            ("complex64", "float32"),
            ("complex128", "float32"),
        ):
            for shapes in self.SHAPES:
                with subtests.test(dtype=dtype, precision=precision, shapes=shapes):
                    kernel, plan = planned(*shapes, dtype, precision=precision, capability=capability)
                    short = (dtype, precision) == ("float32", "float32") and shapes[0][-1] < 128  # better by a chain
                    floats = dtype.startswith(("float", "bfloat"))
                    assert (kernel == "tensor") == (capability >= 80 and floats and not short)
                    for launch in plan.launches:
                        assert 0 < launch.grid < 2**31
                        assert launch.block <= 1024
                        assert launch.block % 32 == 0
                        assert launch.shared_bytes <= most
                    # Parts of sums are as many as blocks that are resident at once, and no more.
                    assert plan.zeroed_bytes <= 4 * plan.launches[-1].grid
                    assert plan.temporary_bytes <= 132 * 8 * 128 * 256 * 8
                    assert bool(plan.zeroed_bytes) == bool(plan.temporary_bytes)

    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_ladder(self, subtests, capability):
        most = {75: 64, 80: 163, 86: 99, 90: 227}[capability] << 10
        for kernel in KERNELS[: 4 if capability < 80 else 5]:
            for dtype in ("float16", "float32", "float64") if kernel == "tensor" else (*INTEGERS, *FLOATS):
                with subtests.test(kernel=kernel, dtype=dtype):
                    found, plan = planned((300, 400), (400, 500), dtype, kernel=kernel, capability=capability)
                    assert found == kernel
                    assert len(plan.launches) == (3 if kernel == "packed" else 1)
                    assert all(launch.shared_bytes <= most and launch.block <= 1024 for launch in plan.launches)
                    if kernel == "packed":  # what is packed has the size of the factors, rounded up to tiles
                        rows, columns = (-(-one // 32) * 32 for one in (300, 500))
                        least = (rows + columns) * 416 * itemsize(dtype)
                        assert least <= plan.temporary_bytes <= least + 256
                    elif kernel in ("naive", "tiled"):
                        assert plan.temporary_bytes == 0

    def test_tensor_needs_80(self):
        problem = make_problem((3, 3), (3, 3), "float32", kernel="tensor")
        assert "compute capability 8.0" in problem.choose_kernel(75)[1]
        assert problem.choose_kernel(80) == ("tensor", None)

    @pytest.mark.once
    def test_possible_tiles(self, rng, subtests):
        # Tiles at random: those that are possible have plans a device can run, the others are refused with the reason.
        possible = 0
        for _ in range(600):
            kernel, capability = str(rng.choice(KERNELS)), int(rng.choice(CAPABILITIES[1:]))
            dtype = str(rng.choice(FLOATS[:4] if kernel == "tensor" else [*INTEGERS, *FLOATS]))
            tile = tuple(int(2.0 ** rng.integers(0, 9)) * int(rng.choice([1, 1, 1, 3])) for _ in range(3))
            problem = dataclasses.replace(make_problem((3, 3), (3, 3), dtype), kernel=kernel, tile=tile)
            reason = impossible(kernel, tile, problem.arithmetic, capability)
            with subtests.test(kernel=kernel, capability=capability, dtype=dtype, tile=tile, reason=reason):
                named = problem.choose_kernel(capability)[1]
                if reason is not None:
                    assert named == f"tile {tile} fits no kernel: {reason}"
                    continue
                assert named is None
                possible += 1
                _, plan = planned((70, 200), (200, 90), dtype, kernel=kernel, tile=tile, capability=capability)
                for launch in plan.launches:
                    assert launch.block <= 1024
                    assert launch.shared_bytes <= shared_bytes(capability)
        assert 100 < possible < 500

    def test_vectors(self, subtests):
        # How many numbers are read at once, by the address, the strides and the order in memory.
        for strides, expected in (
            ((64, 1), (4, True)),
            ((66, 1), (2, True)),
            ((65, 1), (1, True)),
            ((1, 48), (4, False)),
            ((1, 50), (2, False)),
            ((1, 49), (1, False)),
            ((128, 2), (1, True)),
            ((-64, 1), (4, True)),
            ((64, -1), (1, True)),
        ):
            with subtests.test(strides=strides):
                _, plan = planned(
                    (48, 64), (64, 32), kernel="conflict_free", tile=(32, 64, 16), strides=[strides, (32, 1)]
                )
                (launch,) = plan.launches
                assert launch.template == "multiply_conflict_free"
                assert launch.arguments[-5:] == (*expected, 4, False, True)
