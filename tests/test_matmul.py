"""Matrix products against a sequential loop over k."""

import math
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parprims
from tests.contract import VIEWS, compare, eps, random

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
    """Return steps eps sum |a| |b|: a tree within a tile and one addition per tile; k of them by a library's routine.

    16-bit floats are summed in float32 and rounded once; a complex product has 4 real ones.
    """
    k, name = a.shape[-1], a.dtype.name
    if a.dtype.kind in "iu" or k == 0:
        return 0
    length = min(tile or k, k)
    steps = math.ceil(math.log2(length)) + math.ceil(k / length) if method == "array" else k + 1
    working = "float32" if name in ("float16", "bfloat16") else name
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    size = loop(abs(a.astype(wide)), abs(b.astype(wide))).astype(np.float64)
    rounding = eps(name) / 2 * (size if method != "array" else abs(loop(a, b)).astype(np.float64))
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


def problem(n):
    """Return A[i,j] = (i - 0.1 j + 1)/(i + j + 1) and B[i,j] = (j - 0.2 i + 1)(i + j + 1)/(i^2 + j^2 + 1)."""
    i, j = np.indices((n, n), dtype=np.float64)
    return (i - 0.1 * j + 1) / (i + j + 1), (j - 0.2 * i + 1) * (i + j + 1) / (i * i + j * j + 1)


class TestMatmul:
    methods: ClassVar = ("array", "native")

    def test_shape(self, backend, run, method, rng, subtests):
        for index, shapes in enumerate(SHAPES + EMPTY_SHAPES):
            with subtests.test(shapes=shapes):
                check(backend, run, method, make(rng, shapes, ("int32", "float64")[index % 2]))

    def test_length(self, backend, run, method, rng, subtests):
        for k in (1, 2, 3, 7, 8, 33, 1000):
            with subtests.test(k=k):
                check(backend, run, method, make(rng, ((3, k), (k, 2)), "float32"))

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

                if backend.name.startswith("jax"):
                    import jax

                    gradients = jax.jit(jax.grad(weighted, argnums=(0, 1)))(*arrays)
                elif backend.name.startswith("torch"):
                    for x in arrays:
                        x.requires_grad_()
                    weighted(*arrays).backward()
                    gradients = tuple(x.grad for x in arrays)
                else:
                    pytest.skip(f"{backend.name} has no gradients")
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


class TestArguments:
    def test_no_array_named(self, backend, rng):
        a = backend.asarray(random(rng, (3, 3), "float32"))
        with pytest.raises(TypeError, match=r"^a must be an array"):
            parprims.matmul([[1.0]], a)
        with pytest.raises(TypeError, match=r"^b must be an array"):
            parprims.matmul(a, 2.0)

    def test_mixed_namespaces_named(self, backend, rng):
        a, b = make(rng, ((3, 3), (3, 3)), "float32")
        if backend.name == "numpy":
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
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        assert parprims.methods(parprims.matmul, a, b) == {"native": None, "array": None}
        with parprims.explain() as calls:
            parprims.matmul(a, b)
            parprims.matmul(a, b, tile=2)
        assert [call.method for call in calls] == ["native", "array"]
        assert "takes no tile" in calls[1].refusals["native"]
        with pytest.raises(parprims.MethodRefused, match="takes no tile"):
            parprims.matmul(a, b, tile=2, method="native")
        with pytest.raises(ValueError, match=r"^method must be one of auto, native, array, got 'vendor'"):
            parprims.matmul(a, b, method="vendor")


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

    def test_packed_blocks_in_double(self, backend, run, rng):
        check(backend, run, "array", make(rng, ((30, 32), (32, 17)), "float64"), tile=16)

    def test_same_bits_in_other_m_and_n(self, backend, run, rng):
        arrays = tuple(backend.asarray(x) for x in make(rng, ((3, 6), (6, 4)), "float32"))
        one, other = (
            backend.to_numpy(run(parprims.matmul, *arrays, tile=tile, method="array"))
            for tile in ((2, 4, 3), (3, 2, 3))
        )
        assert one.tobytes() == other.tobytes()

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
