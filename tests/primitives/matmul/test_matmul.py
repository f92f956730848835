"""Matrix products against a sequential loop over k."""

import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parprims
from tests.support.contract import VIEWS, compare, eps, random, some_dtypes

KERNELS = "naive tiled packed conflict_free tensor".split()
INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
FLOATS = "float16 bfloat16 float32 float64 complex64 complex128".split()

SHAPES = (
    ((5,), (5,)),
    ((4, 5), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5, 3)),
    ((2, 4, 5), (2, 5, 3)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((7, 4, 5), (5,)),
    ((5,), (7, 5, 3)),
    ((2, 1, 4, 5), (6, 5, 3)),
    ((1, 3, 1, 1, 1), (2, 1, 4, 1, 1)),
)
EMPTY_SHAPES = (
    ((0,), (0,)),
    ((4, 0), (0, 3)),
    ((4, 0), (0,)),
    ((0, 5), (5, 3)),
    ((4, 5), (5, 0)),
    ((0, 4, 5), (5, 3)),
    ((0, 4, 5), (1, 5, 3)),
    ((2, 0, 4, 5), (5,)),
)


def loop(a, b):
    """Add one outer product after another, exactly for integers and otherwise in long double, the definition."""
    wide = {"i": object, "u": object, "c": np.clongdouble}.get(a.dtype.kind, np.longdouble)
    rows = (a if a.ndim > 1 else a[None, :]).astype(wide)
    columns = (b if b.ndim > 1 else b[:, None]).astype(wide)
    total = rows[..., :, :0].sum(axis=-1, keepdims=True) * columns[..., :0, :].sum(axis=-2, keepdims=True)
    for k in range(a.shape[-1]):
        total = total + rows[..., :, k : k + 1] * columns[..., k : k + 1, :]
    if wide is object:
        total = (total % 2**64).astype(np.uint64).astype(a.dtype)
    if a.ndim == 1:
        total = total[..., 0, :]
    return total[..., 0] if b.ndim == 1 else total


def bound(method, a, b, tile=None):
    """Return steps eps sum |a| |b|: a tree within a tile and one addition per tile; k of them by routine and kernel.

    16-bit floats are summed in float32 and rounded once, float16 below 2^-14 to a multiple of 2^-24; a complex product
    has 4 real ones. The kernel tensor takes a float32 as the sum of two numbers of 11 bits: of each factor 2^-23 is
    lost, and 2^-22 is the product of the smaller ones, so that 4 steps more are allowed.
    """
    k, name = a.shape[-1], a.dtype.name
    if a.dtype.kind in "iu" or k == 0:
        return 0
    length = min(tile or k, k)
    steps = math.ceil(math.log2(length)) + math.ceil(k / length) if method == "array" else k + 1
    steps += 4 * (method in ("auto", "kernel") and name == "float32")
    working = "float32" if name in ("float16", "bfloat16") else name
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    size = loop(abs(a.astype(wide)), abs(b.astype(wide))).astype(np.float64)
    rounding = eps(name) / 2 * abs(loop(a, b)).astype(np.float64) + 2.0**-25 * (name == "float16")
    return (4 if a.dtype.kind == "c" else 1) * steps * eps(working) * size + (rounding if working != name else 0)


def make(rng, shapes, dtype):
    return tuple(random(rng, shape, dtype) for shape in shapes)


def check(backend, run, method, inputs, arrays=None, **options):
    """Multiply by the method and compare with the reference; under jit in JAX, unless arrays are given."""

    def product(a, b):
        return run(parprims.matmul, a, b, method=method, **options)

    if arrays is None:
        arrays = tuple(backend.asarray(x) for x in inputs)
        if backend.name.startswith("jax"):
            import jax

            product = jax.jit(product)
    result = product(*arrays)
    tile = options.get("tile")
    allowed = bound(method, *inputs, tile[2] if isinstance(tile, tuple) else tile)
    compare(backend, result, loop(*inputs), allowed, inputs[0].dtype.name)
    return result


def multiplied(backend, run, method, inputs, **options):
    """Multiply by the method, under jit in JAX."""

    def product(a, b):
        return run(parprims.matmul, a, b, method=method, **options)

    if backend.name.startswith("jax"):
        import jax

        product = jax.jit(product)
    return product(*map(backend.asarray, inputs))


def slopes(backend, function, arrays):
    """Return the derivatives of a function by its two arguments, where the library has such."""
    if backend.name.startswith("jax"):
        import jax

        return jax.jit(jax.grad(function, argnums=(0, 1)))(*arrays)
    if not backend.name.startswith("torch"):
        pytest.skip(f"{backend.name} has no gradients")
    for x in arrays:
        x.requires_grad_()
    function(*arrays).backward()
    return tuple(x.grad for x in arrays)


def problem(n):
    """Return A[i,j] = (i - 0.1 j + 1)/(i + j + 1) and B[i,j] = (j - 0.2 i + 1)(i + j + 1)/(i^2 + j^2 + 1)."""
    i, j = np.indices((n, n), dtype=np.float64)
    return (i - 0.1 * j + 1) / (i + j + 1), (j - 0.2 * i + 1) * (i + j + 1) / (i * i + j * j + 1)


class TestMatmul:
    methods: ClassVar = ("array", "native", "kernel")

    def test_shape(self, backend, run, method, rng, subtests):
        for index, shapes in enumerate(SHAPES + EMPTY_SHAPES):
            with subtests.test(shapes=shapes):
                check(backend, run, method, make(rng, shapes, ("int32", "float64")[index % 2]))

    def test_length(self, backend, run, method, rng, subtests):
        for k in (1, 2, 3, 7, 8, 33, 1000):
            with subtests.test(k=k):
                check(backend, run, method, make(rng, ((3, k), (k, 2)), "float32"))

    @pytest.mark.optimised
    def test_dtype(self, backend, run, method, rng, subtests):
        for dtype in some_dtypes(backend, method, (*INTEGERS, *FLOATS)):
            with subtests.test(dtype=dtype):
                if not hasattr(backend.xp, dtype):
                    pytest.skip(f"{backend.name} has no {dtype}")
                check(backend, run, method, make(rng, ((2, 3, 9), (9, 5)), dtype))

    def test_integers_wrap(self, backend, run, method, rng, subtests):
        for dtype in INTEGERS:
            with subtests.test(dtype=dtype):
                info = np.iinfo(dtype)
                inputs = tuple(
                    rng.integers(info.min, info.max, shape, dtype, endpoint=True) for shape in ((4, 9), (9, 3))
                )
                check(backend, run, method, inputs)

    @pytest.mark.optimised
    def test_sixteen_bits_rounded_once(self, backend, run, method, rng, subtests):
        # Against the float32 product, which 8 eps sum |a| |b| covers at this length, half a unit in the last place.
        for dtype, half_unit in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
            with subtests.test(dtype=dtype):
                if not hasattr(backend.xp, dtype):
                    pytest.skip(f"{backend.name} has no {dtype}")
                a, b = make(rng, ((9, 500), (500, 7)), dtype)
                expected = loop(a, b)
                size = loop(*(abs(x.astype(np.float64)) for x in (a, b)))
                result = run(parprims.matmul, backend.asarray(a), backend.asarray(b), method=method)
                allowed = half_unit * abs(expected) + 8 * 2.0**-23 * size
                compare(backend, result, expected, allowed.astype(np.float64), dtype)

    def test_promotion(self, backend, run, method, rng, subtests):
        pairs = {
            ("int8", "int16"): "int16",
            ("uint8", "int8"): "int16",
            ("int64", "uint8"): "int64",
            ("float32", "float64"): "float64",
            ("float32", "complex64"): "complex64",
            ("complex64", "float64"): "complex128",
        }
        for (one, other), expected in pairs.items():
            with subtests.test(one=one, other=other):
                a, b = random(rng, (3, 2), one), random(rng, (2, 3), other)
                result = run(parprims.matmul, backend.asarray(a), backend.asarray(b), method=method)
                inputs = a.astype(expected), b.astype(expected)
                compare(backend, result, loop(*inputs), bound("native", *inputs), expected)

    def test_view(self, backend, run, method, rng, subtests):
        for view in VIEWS:
            for shapes in (((6, 9), (9, 4)), ((9,), (2, 9, 4))):
                with subtests.test(view=view.__name__, shapes=shapes):
                    inputs = make(rng, shapes, "float64")
                    check(backend, run, method, inputs, tuple(view(backend, x) for x in inputs))

    def test_broadcast_view(self, backend, run, method, rng):
        a, b = make(rng, ((1, 9), (9, 1)), "float64")
        arrays = (
            backend.xp.broadcast_to(backend.asarray(a), (5, 6, 9)),
            backend.xp.broadcast_to(backend.asarray(b), (5, 9, 4)),
        )
        check(backend, run, method, (np.broadcast_to(a, (5, 6, 9)), np.broadcast_to(b, (5, 9, 4))), arrays)

    def test_inputs_untouched(self, backend, run, method, rng):
        inputs = make(rng, ((2, 5, 9), (9, 4)), "float32")
        arrays = tuple(backend.asarray(x.copy()) for x in inputs)
        check(backend, run, method, inputs, arrays)
        for before, after in zip(inputs, arrays, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(after), before)

    def test_device_kept(self, backend, run, method, rng):
        from array_api_compat import device

        arrays = tuple(backend.asarray(x) for x in make(rng, ((5, 9), (9, 4)), "float32"))
        assert device(run(parprims.matmul, *arrays, method=method)) == device(arrays[0])

    def test_same_bits_twice(self, backend, run, method, rng):
        arrays = tuple(backend.asarray(x) for x in make(rng, ((13, 101), (101, 17)), "float32"))
        first, second = (backend.to_numpy(run(parprims.matmul, *arrays, method=method)) for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_nan_and_infinity(self, backend, run, method, rng):
        a, b = make(rng, ((5, 9), (9, 6)), "float64")
        a[0, 7], a[1, 8], b[3, 2], b[4, 4] = np.nan, np.inf, -np.inf, np.nan
        a[2, 3] = 0.0  # meets the infinity of b
        expected = loop(a, b)
        assert np.isnan(expected).any()
        assert np.isinf(expected).any()
        result = run(parprims.matmul, backend.asarray(a), backend.asarray(b), method=method)
        finite = bound("native", *(np.where(np.isfinite(x), x, 0.0) for x in (a, b)))
        compare(backend, result, expected, finite)

    def test_any_shape(self, backend, run, method):
        @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(
            st.tuples(*[st.integers(0, 7)] * 3),
            st.lists(st.integers(0, 3), max_size=2),
            st.tuples(*[st.integers(0, 3)] * 2),
            st.sampled_from(["int32", "float64"]),
            st.integers(0, 2**32),
        )
        def law(edges, batch, ones, dtype, seed):
            # Bit d of a factor's entry of ones makes its batch axis d broadcast.
            m, k, n = edges
            first, second = (
                tuple(1 if bits >> axis & 1 else length for axis, length in enumerate(batch)) for bits in ones
            )
            check(backend, run, method, make(np.random.default_rng(seed), ((*first, m, k), (*second, k, n)), dtype))

        law()

    def test_problem_a(self, backend, run, method, subtests):
        a, b = problem(64)
        expected = loop(a, b)
        for tile in (None, 16, 32):
            with subtests.test(tile=tile):
                arrays = (backend.asarray(x.astype(np.float32)) for x in (a, b))
                result = run(parprims.matmul, *arrays, tile=tile, method=method)
                compare(backend, result, expected, 1e-3, "float32")

    def test_vmap(self, backend, run, method, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX maps")
        import jax

        inputs = make(rng, ((6, 5, 9), (9, 4)), "float32")
        mapped = jax.vmap(lambda a, b: run(parprims.matmul, a, b, method=method), in_axes=(0, None))
        compare(backend, mapped(*map(backend.asarray, inputs)), loop(*inputs), bound("native", *inputs))

    def test_gradient(self, backend, run, method, rng, subtests):
        # The gradient of sum(w * (a b)) is w b^T with respect to a and a^T w with respect to b.
        for tile in (None, (3, 4, 5)):
            with subtests.test(tile=tile):
                a, b, w = make(rng, ((5, 9), (9, 4), (5, 4)), "float64")
                arrays = tuple(map(backend.asarray, (a, b)))

                weights = backend.asarray(w)

                def weighted(a, b, weights=weights, tile=tile):
                    return backend.xp.sum(weights * run(parprims.matmul, a, b, tile=tile, method=method))

                gradients = slopes(backend, weighted, arrays)
                for got, factors in zip(gradients, ((w, b.T), (a.T, w)), strict=True):
                    compare(backend, got, loop(*factors), bound("native", *factors))

    def test_bad_shape_named(self, backend, run, method, rng, subtests):
        cases = (
            ((), (3,), "a must"),
            ((3,), (), "b must"),
            ((4,), (3,), "a and b must agree"),
            ((2, 3), (4, 3), "a and b must agree"),
            ((3,), (4, 3), "a and b must agree"),
            ((2, 3), (4,), "a and b must agree"),
            ((2, 4, 5), (3, 5, 4), "a and b must have batch"),
        )
        for one, other, message in cases:
            with subtests.test(one=one, other=other):
                arrays = (backend.asarray(np.asarray(random(rng, shape, "float32"))) for shape in (one, other))
                with pytest.raises(ValueError, match=message):
                    run(parprims.matmul, *arrays, method=method)

    def test_bad_dtype_named(self, backend, run, method, rng):
        number, truth = (backend.asarray(random(rng, (3, 3), dtype)) for dtype in ("int32", "bool"))
        with pytest.raises(TypeError, match=r"^a must have an"):
            run(parprims.matmul, truth, number, method=method)
        with pytest.raises(TypeError, match=r"^b must have an"):
            run(parprims.matmul, number, truth, method=method)

    def test_bad_tile_named(self, backend, run, method, rng, subtests):
        arrays = tuple(backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        cases = {
            TypeError: (True, 2.0, "2", [2, 2, 2.0], (2, 2, 2.0), (2, True, 2)),
            ValueError: (0, -1, (2, 2, 0), (2, 2), (2, 2, 2, 2), ()),
        }
        for error, tiles in cases.items():
            for tile in tiles:
                with subtests.test(tile=tile), pytest.raises(error, match=r"^tile must"):
                    run(parprims.matmul, *arrays, tile=tile, method=method)


class TestIntegers:
    """Integers wrap around, whichever floats multiply them."""

    @pytest.mark.parametrize(
        "dtypes", ["int8 int8", "int16 uint16", "int32 int32", "uint32 int8", "int64 int64", "uint64 uint64"]
    )
    def test_range(self, backend, run, rng, subtests, dtypes):
        one, other = dtypes.split()
        for name in (one, other):
            if not backend.supports(name):
                pytest.skip(f"{backend.name} has no {name} arithmetic")

        def ends(shape, dtype):
            return rng.choice(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype), shape)

        def whole(shape, dtype):
            return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)

        def small(shape, dtype):
            return rng.integers(0, 3, shape).astype(dtype)

        for first, second in itertools.product((ends, whole, small), repeat=2):
            for shape in ((3, 40, 50, 40), (1, 17, 1500, 5)):
                with subtests.test(first=first.__name__, second=second.__name__, shape=shape):
                    batch, m, k, n = shape
                    a, b = first((batch, m, k), one), second((k, n), other)
                    dtype = np.result_type(a, b)
                    expected = np.einsum("bmk,kn->bmn", a.astype(dtype), b.astype(dtype))
                    result = run(parprims.matmul, backend.asarray(a), backend.asarray(b), method="native")
                    compare(backend, result, expected, dtype=dtype.name)


class TestPrecision:
    """How exactly float32 is multiplied."""

    methods: ClassVar = ("array", "native", "kernel")

    @pytest.mark.optimised
    def test_highest(self, backend, run, method, rng, subtests):
        # Rounded once: half a unit in the last place, 2^-24 |result|, and the error of the sum in float64.
        for shapes in (((5, 300), (300, 7)), ((2, 3, 33), (33,)), ((1,), (1,))):
            with subtests.test(shapes=shapes):
                a, b = make(rng, shapes, "float32")
                a[..., -1] *= 1000.0  # so that a float32 on the way would show
                k, expected = a.shape[-1], loop(a, b)
                size = loop(*(abs(x.astype(np.float64)) for x in (a, b)))
                result = multiplied(backend, run, method, (a, b), precision="highest")
                allowed = 2.0**-24 * abs(expected) + (k + 1) * 2.0**-53 * size
                compare(backend, result, expected, np.asarray(allowed, np.float64), "float32")

    @pytest.mark.optimised
    def test_tf32(self, backend, run, method, rng, subtests):
        # Factors rounded to 10 fraction bits: 2^-11 of each, less than 2^-9 of the product in all with the float32 sum.
        for shapes in (((5, 300), (300, 7)), ((2, 3, 33), (33,)), ((9, 40, 8), (9, 8, 20))):
            with subtests.test(shapes=shapes):
                a, b = make(rng, shapes, "float32")
                result = multiplied(backend, run, method, (a, b), precision="tf32")
                size = loop(*(abs(x.astype(np.float64)) for x in (a, b))).astype(np.float64)
                compare(backend, result, loop(a, b), 2.0**-9 * size + bound("native", a, b), "float32")


def whole(rng, shape, dtype):
    """Return numbers with which operators are exact: integers of the whole range, floats that are small integers."""
    if dtype == "bool":
        return rng.random(shape) < 0.2
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        low, high = (0, 2**32 - 1) if dtype == "int64" else (info.min, info.max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    return rng.integers(-9, 10, shape).astype(random(rng, (1,), dtype).dtype)
