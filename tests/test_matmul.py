"""Matrix products against a sequential loop over k."""

import itertools
import math
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from array_api_compat import array_namespace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parprims
from parprims._dispatch import Methods
from tests.contract import VIEWS, compare, eps, random

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
    rounding = eps(name) / 2 * (size if method != "array" else abs(loop(a, b)).astype(np.float64))
    rounding = rounding + 2.0**-25 * (name == "float16")
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
        for dtype in (*INTEGERS, *FLOATS):
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
        with pytest.raises(TypeError, match=r"^a must have a dtype"):
            run(parprims.matmul, truth, number, method=method)
        with pytest.raises(TypeError, match=r"^b must have a dtype"):
            run(parprims.matmul, number, truth, method=method)

    def test_bad_tile_named(self, backend, run, method, rng, subtests):
        arrays = tuple(backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        cases = {
            TypeError: (True, 2.0, "2", [2, 2, 2], (2, 2, 2.0), (2, True, 2)),
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


class TestArguments:
    def test_no_array_named(self, backend, rng):
        a = backend.asarray(random(rng, (3, 3), "float32"))
        with pytest.raises(TypeError, match=r"^a must be an array"):
            parprims.matmul([[1.0]], a)
        with pytest.raises(TypeError, match=r"^b must be an array"):
            parprims.matmul(a, 2.0)

    def test_mixed_namespaces_named(self, backend, rng):
        a, b = make(rng, ((3, 3), (3, 3)), "float32")
        if backend.name in ("numpy", "emulated"):
            pytest.skip("needs two libraries")
        with pytest.raises(TypeError, match=r"^b is an array of .* one library"):
            parprims.matmul(backend.asarray(a), b)

    def test_dtypes_that_do_not_promote_named(self, backend, rng):
        pair = {"array-api-strict": ("int32", "float32"), "torch": ("uint16", "int32")}.get(backend.name)
        if pair is None:
            pytest.skip(f"{backend.name} promotes every pair")
        arrays = (backend.asarray(random(rng, (3, 3), dtype)) for dtype in pair)
        with pytest.raises(TypeError, match=f"a and b must have dtypes that promote together, got {pair[0]}"):
            parprims.matmul(*arrays)

    def test_method(self, backend, rng):
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float64"))
        refusals = parprims.methods(parprims.matmul, a, b)
        if backend.cuda:
            assert refusals.pop("kernel") is None
        elif backend.kernels:
            assert refusals.pop("kernel") == f"{backend.name} has a routine for it"
        else:
            assert "not on a CUDA device" in refusals.pop("kernel")
        assert refusals == {"native": None, "array": None}
        with parprims.explain() as calls:
            parprims.matmul(a, b)
            parprims.matmul(a, b, tile=2)
            parprims.matmul(a, b, add="minimum", multiply="add")
        for_small = backend.cuda or (backend.kernels and backend.name != "jax")
        tiled, tropical = ("kernel" if one else "array" for one in (backend.cuda, for_small))
        assert [call.method for call in calls] == ["native", tiled, tropical]
        assert "takes no tile" in calls[1].refusals["native"]
        assert "no matrix product by minimum of add" in calls[2].refusals["native"]
        with pytest.raises(parprims.MethodRefused, match="takes no tile"):
            parprims.matmul(a, b, tile=2, method="native")
        with pytest.raises(parprims.MethodRefused, match="no matrix product by minimum of add"):
            parprims.matmul(a, b, add="minimum", multiply="add", method="native")
        with pytest.raises(ValueError, match=r"^method must be one of auto, native, kernel, array, got 'vendor'"):
            parprims.matmul(a, b, method="vendor")

    def test_kernel_named(self, backend, rng):
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        for kernel in KERNELS:
            if backend.cuda:
                with parprims.explain() as calls:
                    parprims.matmul(a, b, kernel=kernel)
                assert [call.method for call in calls] == ["kernel"]
            else:
                with pytest.raises(parprims.MethodRefused, match="not on a CUDA device"):
                    parprims.matmul(a, b, kernel=kernel)

    def test_bad_precision_or_kernel_named(self, backend, rng, subtests):
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        whole, wide, narrow = (backend.asarray(random(rng, (3, 3), one)) for one in ("int32", "float64", "complex64"))
        tropical = {"add": "minimum", "multiply": "add"}
        cases = (
            (a, {"precision": "double"}, r"^precision must be one of float32, tf32, highest, got 'double'"),
            (a, {"precision": None}, r"^precision must be one of"),
            (a, {"kernel": "fast"}, r"^kernel must be one of naive, tiled, packed, conflict_free, tensor, got 'fast'"),
            (whole, {"precision": "tf32"}, r"^precision 'tf32' is for sums of products of float32, got int32"),
            (wide, {"precision": "highest"}, r"^precision 'highest' is for sums of products of float32, got float64"),
            (narrow, {"precision": "tf32"}, r"got complex64"),
            (a, {"precision": "highest", **tropical}, r"^precision 'highest' is for .* got minimum of add"),
            (
                a,
                {"kernel": "naive", "method": "array"},
                r"^kernel names a kernel of method 'kernel', got method 'array'",
            ),
            (a, {"kernel": "tensor", "method": "native"}, r"got method 'native'"),
            (a, {"kernel": "naive", "method": "vendor"}, r"^method must be one of .* got 'vendor'"),
        )
        for factor, options, message in cases:
            with subtests.test(**options), pytest.raises(ValueError, match=message):
                parprims.matmul(factor, b if factor is a else factor, **options)

    def test_impossible_tile_named(self, backend, rng, subtests):
        cases = (
            ("naive", (32, 33, 1), "float32", "it asks for 1056 threads of a block, which has at most 1024"),
            ("tiled", (32, 64, 8), "float32", "it asks for 2048 threads"),
            ("tiled", (32, 32, 2048), "float32", "it asks for 524288 bytes of shared memory, a block has 232448"),
            ("packed", (1, 1025, 1), "float32", "it asks for 1025 threads"),
            ("conflict_free", (48, 64, 16), "float32", "m and n must be multiples of 32 and 64, the tile of a warp"),
            ("conflict_free", (8, 32, 16), "complex128", "m and n must be multiples of 16 and 32"),
            ("conflict_free", (256, 256, 1), "float32", "it asks for 32 warps of a block"),
            ("conflict_free", (32, 64, 12), "float32", "k must be a power of two"),
            ("conflict_free", (128, 128, 256), "float32", "bytes of shared memory"),
            ("tensor", (8, 16, 16), "float32", "m must be a multiple of 16, and of 32 if it is more"),
            ("tensor", (48, 64, 32), "float32", "m must be a multiple of 16, and of 32 if it is more"),
            ("tensor", (64, 64, 24), "float32", "k must be a power of two, at least 8"),
            ("tensor", (16, 16, 4), "float64", "k must be a power of two, at least 8"),
            ("tensor", (256, 128, 16), "float64", "it asks for 16 warps of a block, whose registers suffice for 8"),
            ("tensor", (128, 128, 256), "float32", "bytes of shared memory"),
        )
        for kernel, tile, dtype, reason in cases:
            with subtests.test(kernel=kernel, tile=tile, dtype=dtype):
                a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), dtype))
                with pytest.raises(
                    ValueError, match=rf"^tile \({tile[0]}, .*\) does not fit kernel '{kernel}': .*{reason}"
                ):
                    parprims.matmul(a, b, kernel=kernel, tile=tile)

    def test_operator_named(self, backend, rng):
        a = backend.asarray(random(rng, (3, 3), "float32"))
        whole, truth = (backend.asarray(random(rng, (3, 3), dtype)) for dtype in ("int32", "bool"))
        for name in ("add", "multiply"):
            with pytest.raises(ValueError, match=rf"^{name} must be one of add, .*, got 'plus'"):
                parprims.matmul(a, a, **{name: "plus"})
            with pytest.raises(TypeError, match=rf"^{name} must be a name, an Operator or a function .* got int"):
                parprims.matmul(a, a, **{name: 3})
            with pytest.raises(ValueError, match=r"^op affine works on tuples of 2 arrays, a has 1"):
                parprims.matmul(a, a, **{name: "affine"})
        with pytest.raises(TypeError, match=r"^a must have a dtype of kind float for op logaddexp, got int32"):
            parprims.matmul(whole, whole, add="logaddexp", multiply="add")
        with pytest.raises(TypeError, match=r"^a must have a dtype of kind bool for op logical_and, got float32"):
            parprims.matmul(a, a, add="maximum", multiply="logical_and")
        with pytest.raises(TypeError, match=r"^a must have a dtype of kind int or uint or float or complex for op add"):
            parprims.matmul(truth, truth, add="logical_or", multiply="add")
        with pytest.raises(TypeError, match=r"returned bool for component 0"):
            parprims.matmul(a, a, add="maximum", multiply=lambda x, y: x < y, method="array")

    def test_highest_needs_wide_jax(self, backend, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX can lack float64")
        import jax

        a = backend.asarray(random(rng, (3, 3), "float32"))
        jax.config.update("jax_enable_x64", False)
        try:
            with pytest.raises(ValueError, match=r"^precision 'highest' sums in float64, .* jax_enable_x64 only"):
                parprims.matmul(a, a, precision="highest")
        finally:
            jax.config.update("jax_enable_x64", True)


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


def folded(add, multiply, a, b, identity=None):
    """Combine what NumPy makes of one outer product after another, in the order of k, from the first on."""
    rows, columns = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
    if a.shape[-1] == 0:
        shape = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
        total = np.full((*shape, rows.shape[-2], columns.shape[-1]), identity, a.dtype)
    else:
        total = multiply(rows[..., :, :1], columns[..., :1, :])
    for k in range(1, a.shape[-1]):
        total = add(total, multiply(rows[..., :, k : k + 1], columns[..., k : k + 1, :]))
    if a.ndim == 1:
        total = total[..., 0, :]
    return total[..., 0] if b.ndim == 1 else total


def logaddexp_bound(a, b):
    """Return (k + 1) eps (S + log k + 3), S the largest |a + b|.

    A step log(exp(p) + exp(q)) = max + log1p(exp(-d)) passes the errors of p and q on with weights that sum to 1. It
    adds the roundings of its result, at most eps (S + log k) / 2 for no partial sum is larger, those of d, weighed by
    d / (1 + exp(d)) < 0.3, and those of exp and log1p, a few eps of numbers below 1: less than 3 eps.
    """
    k, name = a.shape[-1], a.dtype.name
    largest = folded(np.maximum, lambda x, y: abs(x + y), a.astype(np.float64), b.astype(np.float64))
    working = "float32" if name in ("float16", "bfloat16") else name
    allowed = (k + 1) * eps(working) * (largest + math.log(k) + 3)
    return allowed + (eps(name) * (largest + math.log(k)) if working != name else 0)


def compose(earlier, later):
    """Compose the maps c x + d that integers hold, c in the lowest 16 bits and d in the next: order matters."""
    c, d, e, f = earlier & 65535, (earlier >> 16) & 65535, later & 65535, (later >> 16) & 65535
    return ((e * d + f & 65535) << 16) | (e * c & 65535)


def last(earlier, later):
    """Return the later number unless it is zero."""
    return array_namespace(later).where(later != 0, later, earlier)


LAST = parprims.Operator(last, identity=0)
COMPOSE = parprims.Operator(compose, identity=1, name="compose")
MIX = parprims.Operator(lambda earlier, later: earlier + later + earlier * later, identity=0, name="mix")

# Name, add and multiply as the library and as NumPy has them, and dtypes.
SEMIRINGS = (
    ("shortest", ("minimum", "add"), (np.minimum, np.add), ("int32", "int64", "float16", "float32", "float64")),
    ("likeliest", ("maximum", "multiply"), (np.maximum, np.multiply), ("uint8", "int16", "bfloat16", "float32")),
    ("longest", ("maximum", "add"), (np.maximum, np.add), ("int8", "int16", "uint16", "uint32", "uint64", "float64")),
    ("reachable", ("logical_or", "logical_and"), (np.logical_or, np.logical_and), ("bool",)),
    ("parity", ("bitwise_xor", "bitwise_and"), (np.bitwise_xor, np.bitwise_and), ("bool", "uint8", "int64")),
    ("composed", (COMPOSE, "bitwise_xor"), (compose, np.bitwise_xor), ("int64",)),
    ("mixed", (MIX, lambda x, y: x - y), (MIX.combine, np.subtract), ("int8", "int32", "uint8")),
    ("added up", ("add", lambda x, y: x - y - y), (np.add, lambda x, y: x - y - y), ("int16", "int64")),
)


def whole(rng, shape, dtype):
    """Return numbers with which operators are exact: integers of the whole range, floats that are small integers."""
    if dtype == "bool":
        return rng.random(shape) < 0.2
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        low, high = (0, 2**32 - 1) if dtype == "int64" else (info.min, info.max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    return rng.integers(-9, 10, shape).astype(random(rng, (1,), dtype).dtype)


class TestSemirings:
    """Any two operators, against the same sequence of NumPy's."""

    methods: ClassVar = ("array", "kernel")

    @pytest.mark.parametrize("name", [one[0] for one in SEMIRINGS])
    def test_dtype(self, backend, run, method, rng, subtests, name):
        _, (add, multiply), numpy, dtypes = next(one for one in SEMIRINGS if one[0] == name)
        for dtype in dtypes:
            with subtests.test(dtype=dtype):
                if not backend.supports(dtype):
                    pytest.skip(f"{backend.name} has no {dtype} arithmetic")
                a, b = (whole(rng, shape, dtype) for shape in ((2, 3, 37), (37, 5)))
                result = multiplied(backend, run, method, (a, b), add=add, multiply=multiply)
                compare(backend, result, folded(*numpy, a, b), dtype=dtype)

    def test_shape(self, backend, run, method, rng, subtests):
        for shapes in SHAPES:
            for dtype, (name, operators, numpy, _) in (("int64", SEMIRINGS[5]), ("float32", SEMIRINGS[0])):
                with subtests.test(shapes=shapes, name=name):
                    a, b = (whole(rng, shape, dtype) for shape in shapes)
                    add, multiply = operators
                    result = multiplied(backend, run, method, (a, b), add=add, multiply=multiply)
                    compare(backend, result, folded(*numpy, a, b), dtype=dtype)

    def test_nothing_to_sum(self, backend, run, method, rng, subtests):
        for shapes in EMPTY_SHAPES:
            for dtype, identity in (("float32", np.inf), ("float16", np.inf), ("int32", 2**31 - 1), ("int8", 127)):
                with subtests.test(shapes=shapes, dtype=dtype):
                    if not hasattr(backend.xp, dtype):
                        pytest.skip(f"{backend.name} has no {dtype}")
                    a, b = (whole(rng, shape, dtype) for shape in shapes)
                    result = multiplied(backend, run, method, (a, b), add="minimum", multiply="add")
                    compare(backend, result, folded(np.minimum, np.add, a, b, identity), dtype=dtype)

    def test_no_identity(self, backend, run, method, rng):
        later = parprims.Operator(lambda _, later: later, name="later")
        a, b = make(rng, ((3, 17), (17, 5)), "float32")
        arrays = tuple(backend.asarray(x) for x in (a, b))
        if method == "kernel" and (backend.cuda or not backend.kernels):
            with pytest.raises(parprims.MethodRefused, match=r"not on a CUDA device|op later has no identity"):
                parprims.matmul(*arrays, add=later, method=method)
        else:
            result = run(parprims.matmul, *arrays, add=later, method=method)
            compare(backend, result, a[:, -1:] * b[-1:], dtype="float32")
        nothing = tuple(backend.asarray(x) for x in make(rng, ((3, 0), (0, 5)), "float32"))
        with pytest.raises(ValueError, match=r"^a and b must have a length summed over of at least 1: op later has no"):
            parprims.matmul(*nothing, add=later, method=method)

    def test_keep_the_later(self, backend, run, method, rng):
        # Of whatever is not zero the last counts, so that any exchange along k shows.
        a, b = (rng.integers(-3, 4, shape).astype(np.int32) for shape in ((4, 61), (61, 6)))
        result = multiplied(backend, run, method, (a, b), add=LAST)
        compare(backend, result, folded(last, np.multiply, a, b), dtype="int32")

    @pytest.mark.optimised
    def test_logaddexp(self, backend, run, method, rng, subtests):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for k in (1, 2, 33, 300):
                with subtests.test(dtype=dtype, k=k):
                    if not hasattr(backend.xp, dtype):
                        pytest.skip(f"{backend.name} has no {dtype}")
                    a, b = (10 * x for x in make(rng, ((4, k), (k, 3)), dtype))
                    expected = folded(np.logaddexp, np.add, a.astype(np.longdouble), b.astype(np.longdouble))
                    result = multiplied(backend, run, method, (a, b), add="logaddexp", multiply="add")
                    compare(backend, result, expected, logaddexp_bound(a, b), dtype)

    def test_nan_and_infinity(self, backend, run, method, rng):
        a, b = (whole(rng, shape, "float32") for shape in ((5, 19), (19, 6)))
        a[0, 7], a[1, 8], b[3, 2], a[2] = np.nan, -np.inf, np.inf, np.inf
        b[11, 5] = np.nan
        for add, combine in (("minimum", np.minimum), ("maximum", np.maximum)):
            result = multiplied(backend, run, method, (a, b), add=add, multiply="add")
            expected = folded(combine, np.add, a, b)
            assert np.isnan(expected).any()
            assert np.isinf(expected).any()
            compare(backend, result, expected, dtype="float32")

    def test_promotion(self, backend, run, method, rng):
        a, b = whole(rng, (3, 9), "int8"), whole(rng, (9, 4), "int16")
        result = multiplied(backend, run, method, (a, b), add="maximum", multiply="add")
        compare(backend, result, folded(np.maximum, np.add, a.astype(np.int16), b), dtype="int16")

    def test_tile(self, backend, run, method, rng, subtests):
        for tile in (2, (2, 3, 4), (5, 7, 100)):
            with subtests.test(tile=tile):
                a, b = (whole(rng, shape, "int64") for shape in ((2, 3, 7), (7, 4)))
                result = multiplied(backend, run, method, (a, b), add=COMPOSE, multiply="bitwise_xor", tile=tile)
                compare(backend, result, folded(compose, np.bitwise_xor, a, b), dtype="int64")

    def test_jit_and_vmap(self, backend, run, method, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX traces")
        import jax

        a, b = (whole(rng, shape, "float32") for shape in ((3, 4, 9), (9, 5)))

        def shortest(a, b):
            return run(parprims.matmul, a, b, add="minimum", multiply="add", method=method)

        for mapped, factors in (
            (jax.jit(shortest), (a, b)),
            (jax.vmap(shortest, in_axes=(0, None)), (a, b)),
            (jax.jit(jax.vmap(shortest, in_axes=(None, 0))), (b.T, a.mT)),
        ):
            expected = folded(np.minimum, np.add, *factors)
            compare(backend, mapped(*map(backend.asarray, factors)), expected, dtype="float32")

    def test_gradient(self, backend, run, method, rng):
        # With s = log(sum exp(a + b)), ds[i,j]/da[i,k] = exp(a[i,k] + b[k,j] - s[i,j]) is a product of weights
        # exp(p - s) of at most k steps. Each has the errors of two sums, 2 E with E from `logaddexp_bound`, and of exp,
        # less than 2 E.
        if method == "kernel" and backend.name.startswith("torch"):
            pytest.skip("PyTorch differentiates the array method")
        a, b, w = make(rng, ((5, 9), (9, 4), (5, 4)), "float64")
        arrays, weights = tuple(map(backend.asarray, (a, b))), backend.asarray(w)

        def weighted(a, b):
            return backend.xp.sum(weights * run(parprims.matmul, a, b, add="logaddexp", multiply="add", method=method))

        gradients = slopes(backend, weighted, arrays)
        shares = w[:, None] * np.exp(a[:, :, None] + b - np.log(np.exp(a) @ np.exp(b))[:, None])  # of i, k, j
        allowed = 4 * 9 * np.max(logaddexp_bound(a, b)) * abs(w).sum()
        for got, expected in zip(gradients, (shares.sum(axis=2), shares.sum(axis=0)), strict=True):
            compare(backend, got, expected, allowed)


MEMORY = """
import tracemalloc
import numpy as np
import parprims

# Beside the result, a tile of 4 MiB, half of it again while it is summed, and the sums of the tiles before.
for m, n in (((512, 512), (512, 512)), ((96, 64, 64), (64, 64)), ((8, 2**20), (2**20,)), ((2**20, 8), (8, 1))):
    a, b = np.ones(m, np.float32), np.ones(n, np.float32)
    parprims.matmul(a, b, method="array")  # imports what it needs
    tracemalloc.start()
    result = parprims.matmul(a, b, method="array")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= result.nbytes + 1.75 * 2**22, (m, n, peak)
"""


class TestTiles:
    """The array method alone: ragged edges, and what a tile bounds."""

    def test_ragged_edges(self, backend, run, rng, subtests):
        cases = (
            (1, ((2, 3), (3, 2)), "int16"),
            (2, ((3, 5), (5, 4)), "float32"),
            ((1, 2, 3), ((2, 1, 2, 7), (3, 7, 3)), "int16"),
            ((4, 3, 2), ((5, 4), (4, 6)), "float32"),
            ((5, 4, 7), ((5, 8), (8, 5)), "float32"),
            (np.int64(3), ((7,), (7, 4)), "int16"),
            (3, ((2, 4, 3), (3,)), "float32"),
            (100, ((5, 7), (7, 4)), "float32"),
        )
        for tile, shapes, dtype in cases:
            with subtests.test(tile=tile, shapes=shapes, dtype=dtype):
                check(backend, run, "array", make(rng, shapes, dtype), tile=tile)

    @pytest.mark.once
    def test_any_tile(self):
        @settings(max_examples=200, deadline=None, derandomize=True)
        @given(st.tuples(*[st.integers(0, 9)] * 3), st.tuples(*[st.integers(1, 9)] * 3), st.integers(0, 2**32))
        def law(edges, tile, seed):
            m, k, n = edges
            a, b = make(np.random.default_rng(seed), ((m, k), (k, n)), "int8")
            np.testing.assert_array_equal(parprims.matmul(a, b, tile=tile), loop(a, b))

        law()

    def test_dtype(self, backend, run, rng, subtests):
        for dtype in (*INTEGERS, *FLOATS):
            with subtests.test(dtype=dtype):
                if not hasattr(backend.xp, dtype):
                    pytest.skip(f"{backend.name} has no {dtype}")
                check(backend, run, "array", make(rng, ((2, 9), (9, 3)), dtype), tile=(2, 3, 5))

    def test_four_by_four_in_tiles_of_two(self, backend, run, rng):
        inputs = tuple(x.astype(np.float64) for x in make(rng, ((4, 4), (4, 4)), "int64"))
        result = run(parprims.matmul, *map(backend.asarray, inputs), tile=2, method="array")
        np.testing.assert_array_equal(backend.to_numpy(result), loop(*inputs).astype(np.float64))

    @pytest.mark.optimised
    def test_packed_blocks_in_double(self, backend, run, rng):
        check(backend, run, "array", make(rng, ((30, 32), (32, 17)), "float64"), tile=16)

    @pytest.mark.optimised
    def test_same_bits_in_other_m_and_n(self, backend, run, rng):
        arrays = tuple(backend.asarray(x) for x in make(rng, ((3, 6), (6, 4)), "float32"))
        one, other = (
            backend.to_numpy(run(parprims.matmul, *arrays, tile=tile, method="array"))
            for tile in ((2, 4, 3), (3, 2, 3))
        )
        assert one.tobytes() == other.tobytes()

    @pytest.mark.once
    def test_memory(self):
        # In a process of its own: what torch.compile has done to one makes arrays live longer.
        done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_program_length(self, subtests):
        jax = pytest.importorskip("jax")
        for shapes in (((1024, 1024), (1024, 1024)), ((2048, 2048), (2048, 2048)), ((500, 64, 300), (300, 200))):
            with subtests.test(shapes=shapes):
                factors = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
                program = jax.make_jaxpr(lambda a, b: parprims.matmul(a, b, method="array"))(*factors)
                assert str(program).count(" mul ") <= 256


class TestRemembered:
    """Calls like one before go straight to what computed it, by every method that takes arrays of NumPy or PyTorch."""

    CALLS = (
        {},
        {"method": "array"},
        {"method": "native"},
        {"tile": 3},
        {"add": "minimum", "multiply": "add"},
        {"add": lambda x, y: x + y, "multiply": lambda x, y: x * y, "method": "array"},
    )

    @pytest.fixture
    def choices(self, monkeypatch):
        """Return a list that grows whenever a method is chosen anew."""
        chosen = []
        choose = Methods.__call__
        monkeypatch.setattr(Methods, "__call__", lambda *args: chosen.append(args[1]) or choose(*args))
        return chosen

    def test_same_route_and_bits(self, backend, rng, choices, subtests):
        if backend.name not in ("numpy", "torch", "jax"):
            pytest.skip("what has no signature is chosen anew")
        for options in self.CALLS:
            for shapes in (((5, 4), (4, 3)), ((4,), (2, 4, 3)), ((4,), (4,))):
                with subtests.test(options=options, shapes=shapes):
                    arrays = [backend.asarray(x) for x in make(rng, shapes, "float32")]
                    seen = []
                    for _ in range(4):
                        with parprims.explain() as calls:
                            result = parprims.matmul(*arrays, **options)
                        seen.append((backend.to_numpy(result).tobytes(), result.shape, result.dtype, calls))
                    assert seen[1:] == seen[:1] * 3
                    assert len(choices) <= 2  # the very first array of a type is not known yet
                    choices.clear()

    def test_options_are_told_apart(self, backend, rng, choices):
        a, b = (backend.asarray(x) for x in make(rng, ((5, 4), (4, 3)), "float32"))
        for options in self.CALLS:
            parprims.matmul(a, b, **options)
        for tile in (2.0, True, (2, 2), [2, 2, 2]):
            parprims.matmul(a, b, tile=2)
            with pytest.raises((TypeError, ValueError), match="tile"):
                parprims.matmul(a, b, tile=tile)
        with pytest.raises((TypeError, ValueError), match="method"):
            parprims.matmul(a, b, method=["array"])

    def test_precision_of_torch(self, backend, rng, choices):
        """What PyTorch is told of products of float32 is a part of what a call is known by."""
        if backend.name != "torch":
            pytest.skip("PyTorch's switch")
        import torch

        a, b = make(rng, ((40, 50), (50, 30)), "float32")
        x, y = (backend.asarray(one).requires_grad_(True) for one in (a, b))
        told = torch.get_float32_matmul_precision()
        try:
            for precision in ("highest", "medium", "highest", "medium"):
                torch.set_float32_matmul_precision(precision)
                product = parprims.matmul(x, y, method="native")
                compare(backend, product.detach(), loop(a, b), bound("native", a, b), "float32")
                assert product.requires_grad
        finally:
            torch.set_float32_matmul_precision(told)
        assert len(choices) <= 3
