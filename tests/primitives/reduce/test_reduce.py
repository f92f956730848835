"""Reductions against a sequential loop."""

import itertools
import math
import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest
from array_api_compat import device

import parprims
from tests.support.contract import Contract, compare, eps, numpy_dtype, random

METHODS = ("array", "native", "kernel")
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

# Around every tile edge: powers of two, a warp's and a block's share of float32, several blocks.
LENGTHS = (0, 1, 2, 3, 5, 16, 17, 33, 128, 511, 512, 513, 4096, 4097, 70001)
COMPILED = (0, 1, 2, 3, 17, 512, 4097, 70001)


def loop(combine, *xs, axis):
    """Combine the elements along an axis one after another, the definition of a reduction."""
    columns = [np.moveaxis(x, axis, 0) for x in xs]
    total = tuple(column[0] for column in columns)
    for index in range(1, columns[0].shape[0]):
        total = combine(total, tuple(column[index] for column in columns))
    return total


def rounding(dtype, steps, size):
    """Return the error owed for so many roundings of sums whose terms add up to size in magnitude.

    16-bit floats are summed in float32 and rounded once; a library's own sum may take one step per element.
    """
    if dtype in ("float16", "bfloat16"):
        return (steps * eps("float32") + eps(dtype) / 2) * size
    return steps * eps(dtype) * size


class TestSum(Contract):
    methods = METHODS
    dtypes: ClassVar = ("bool", *INTEGERS, *FLOATS)
    lengths = LENGTHS
    compiled_lengths = COMPILED

    def function(self, x, **options):
        return parprims.sum(x, **options)

    def make(self, rng, shape, dtype):
        return (random(rng, shape, dtype),)

    def reference(self, x, axis):
        wide = {"f": np.float64, "V": np.float64, "c": np.complex128, "u": np.uint64}.get(x.dtype.kind, np.int64)
        return np.add.accumulate(np.insert(x.astype(wide), 0, 0, axis=axis), axis=axis).take(-1, axis=axis)

    def bound(self, x, axis):
        if x.dtype.kind in "biu":
            return 0
        n = x.shape[axis]
        # As documented, by array and kernel: ceil(log2 n) additions. Each errs by half a unit.
        documented = math.ceil(math.log2(max(1, n))) if self.ran in ("array", "kernel") else n + 1
        return rounding(x.dtype.name, min(n + 1, documented), np.sum(abs(x.astype(complex)), axis=axis))

    def result_dtype(self, dtype):
        if dtype.startswith("uint"):
            return None
        return "int64" if dtype == "bool" or dtype.startswith("int") else dtype

    @pytest.mark.optimised
    def test_array_error_is_that_of_a_tree(self, backend, run, rng, subtests):
        for n, method in itertools.product((1000, 4097, 100000), ("array", "kernel")):
            with subtests.test(n=n, method=method):
                x = rng.random(n).astype(np.float32)
                result = run(parprims.sum, backend.asarray(x), method=method)
                # Every term passes at most ceil(log2 n) additions.
                steps = math.ceil(math.log2(n))
                compare(backend, result, math.fsum(x.tolist()), steps * 2.0**-24 * math.fsum(x.tolist()))


class TestProd(Contract):
    methods = METHODS
    dtypes = ("int32", "int64", "uint8", "float16", "float32", "float64", "complex64")

    def function(self, x, **options):
        return parprims.prod(x, **options)

    def make(self, rng, shape, dtype):
        if dtype.startswith(("float", "complex")):
            # Near one, so that long products neither vanish nor overflow.
            return (np.exp(random(rng, shape, "float64") / 64).astype(dtype),)
        return (random(rng, shape, dtype),)

    def reference(self, x, axis):
        wide = {"f": np.float64, "c": np.complex128, "u": np.uint64}.get(x.dtype.kind, np.int64)
        return np.multiply.accumulate(np.insert(x.astype(wide), 0, 1, axis=axis), axis=axis).take(-1, axis=axis)

    def bound(self, x, axis):
        if x.dtype.kind in "iu":
            return 0
        return rounding(x.dtype.name, 2 * x.shape[axis] + 1, abs(self.reference(x, axis)))

    def result_dtype(self, dtype):
        return {"int32": "int64", "uint8": None}.get(dtype, dtype)


class TestMax(Contract):
    methods = METHODS
    dtypes: ClassVar = (*INTEGERS, "float16", "bfloat16", "float32", "float64")
    lengths = tuple(n for n in LENGTHS if n)
    compiled_lengths = COMPILED[1:]

    def function(self, x, **options):
        return parprims.max(x, **options)

    def make(self, rng, shape, dtype):
        return (random(rng, shape, dtype),)

    def reference(self, x, axis):
        (largest,) = loop(lambda e, f: (np.where((e[0] != e[0]) | (e[0] >= f[0]), e[0], f[0]),), x, axis=axis)
        return largest

    def bound(self, x, axis):
        return 0

    def test_any_shape(self, backend, run, method, rng):
        for shape, axis in (((3, 1, 5), 0), ((0, 3), 1), ((2, 7), 1), ((1,), 0)):
            self.check(backend, run, method, self.make(rng, shape, "float64"), axis=axis)

    def test_nan_and_signed_zero_and_infinity(self, backend, run, method):
        x = np.array([[1, np.nan, 2], [-np.inf, -1, -2], [np.inf, 1, np.inf], [-0.0, -1, -2]], dtype=np.float32)
        self.check(backend, run, method, (x,))
        lowest = run(parprims.min, backend.asarray(x), axis=1, method=method)
        compare(backend, lowest, np.array([np.nan, -np.inf, 1, -2]))

    def test_empty_named(self, backend):
        for function in (parprims.max, parprims.min):
            with pytest.raises(ValueError, match="x must not be empty"):
                function(backend.asarray(np.zeros((2, 0), np.float32)), axis=1)


class TestTruth(Contract):
    methods = METHODS
    dtypes: ClassVar = ("bool", "int8", "uint32", "int64", "float32", "float64", "complex64")

    def function(self, x, **options):
        return parprims.any(x, **options)

    def make(self, rng, shape, dtype):
        return ((rng.random(shape) < 0.02).astype(dtype),)

    def reference(self, x, axis):
        return np.insert(x != 0, 0, False, axis=axis).max(axis=axis)

    def bound(self, x, axis):
        return 0

    def result_dtype(self, dtype):
        return "bool"

    def test_all_is_the_dual(self, backend, run, method, rng):
        x = rng.random((40, 50)) < 0.98
        result = run(parprims.all, backend.asarray(x), axis=1, method=method)
        compare(backend, result, ~np.insert(~x, 0, False, axis=1).max(axis=1))

    def test_nan_is_true(self, backend, run, method):
        x = np.array([[np.nan, 0.0], [0.0, -0.0]])
        compare(backend, run(parprims.any, backend.asarray(x), axis=1, method=method), np.array([True, False]))


def affine(earlier, later):
    """Compose x -> a x + b with x -> c x + d: the combine of a recurrence, which does not commute."""
    (a, b), (c, d) = earlier, later
    return c * a, c * b + d


class TestAffine(Contract):
    """A tuple operator that does not commute: a wrong order anywhere shows."""

    methods = ("array", "kernel")
    dtypes = ("int32", "int64", "float32", "float64", "complex64", "complex128")
    lengths = tuple(n for n in LENGTHS if n)
    compiled_lengths = COMPILED[1:]

    def function(self, a, b, **options):
        return parprims.reduce((a, b), affine, **options)

    def make(self, rng, shape, dtype):
        if dtype.startswith("int"):
            return random(rng, shape, dtype), random(rng, shape, dtype)
        # Near one, so that long products neither vanish nor overflow.
        return np.exp(random(rng, shape, "complex128").imag / 64).astype(dtype), random(rng, shape, dtype)

    def reference(self, a, b, axis):
        wide = {"f": np.float64, "c": np.complex128}.get(a.dtype.kind, a.dtype)
        return loop(affine, a.astype(wide), b.astype(wide), axis=axis)

    def bound(self, a, b, axis):
        if a.dtype.kind == "i":
            return 0
        # Three roundings an element, each amplified by at most the product of the |a| after it, as are the terms.
        steps = 3 * a.shape[axis] * eps(a.dtype.name)
        return tuple(4 * steps * one for one in loop(affine, abs(a).astype(float), abs(b).astype(float), axis=axis))

    def test_any_shape(self, backend, run, method, rng):
        for shape, axis in (((3, 2, 5), 1), ((0, 3), 1), ((2, 77), 1), ((300, 5), 0)):
            self.check(backend, run, method, self.make(rng, shape, "int64"), axis=axis)

    def test_no_array_named(self, backend, rng):
        a, b = (backend.asarray(x) for x in self.make(rng, (3,), "float32"))
        with pytest.raises(TypeError, match=r"x\[1\]\[0\] must be an array, got float"):
            parprims.reduce((a, [2.0]), affine)
        with pytest.raises(TypeError, match=r"x\[0\]\[0\] must be an array, got float"):
            parprims.reduce(([2.0], b), affine)

    def test_order_over_several_axes_is_row_major(self, backend, run, method, rng):
        inputs = self.make(rng, (3, 4, 5), "int64")
        arrays = tuple(backend.asarray(x) for x in inputs)
        for axis in (None, (0, 2), (1, 2), (0, 1)):
            axes = (0, 1, 2) if axis is None else axis
            kept = tuple(one for one in range(3) if one not in axes)
            rows = tuple(x.transpose(kept + axes).reshape(*(x.shape[one] for one in kept), -1) for x in inputs)
            result = run(parprims.reduce, arrays, affine, axis=axis, method=method)
            compare(backend, result, loop(affine, *rows, axis=-1))


def fused(x, y, z):
    """Return a value of three inputs, for one pass over all of them."""
    return (x - y) * (x - y) * z


class TestMapReduce(Contract):
    methods = METHODS
    dtypes = ("int64", "float32", "float64", "complex64")

    def function(self, *arrays, **options):
        return parprims.map_reduce(fused, *arrays, **options)

    def make(self, rng, shape, dtype):
        return tuple(random(rng, shape, dtype) for _ in range(3))

    def reference(self, *arrays, axis):
        wide = {"f": np.float64, "c": np.complex128}.get(arrays[0].dtype.kind, np.int64)
        return np.sum(fused(*(x.astype(wide) for x in arrays)), axis=axis)

    def bound(self, x, y, z, axis):
        if x.dtype.kind == "i":
            return 0
        size = np.sum((abs(x.astype(complex)) + abs(y)) ** 2 * abs(z), axis=axis)
        return (x.shape[axis] + 8) * 2 * eps(x.dtype.name) * size

    def test_inputs_broadcast(self, backend, run, method, rng):
        x, y, z = (random(rng, shape, "float64") for shape in ((5, 1, 7), (300, 1), ()))
        arrays = tuple(backend.asarray(one) for one in (x, y, z))
        for axis in (0, 1, 2, None):
            result = run(parprims.map_reduce, fused, *arrays, axis=axis, method=method)
            expected = np.sum(fused(x, y, z), axis=axis)
            compare(backend, result, expected, 1e-9)

    @pytest.mark.optimised
    def test_tuple_values(self, backend, run, rng):
        x = rng.standard_normal((4, 1000))

        def moments(x):
            return x * 0 + 1, x, x * 0

        for method in ("array", "kernel"):
            count, mean, m2 = run(parprims.map_reduce, moments, backend.asarray(x), op="welford", axis=1, method=method)
            compare(backend, count, np.full(4, 1000.0))
            compare(backend, mean, x.mean(axis=1), 1e-12)
            compare(backend, m2, x.var(axis=1) * 1000, 1e-9)


class TestVecdot(Contract):
    methods = METHODS
    dtypes = ("int8", "int32", "int64", "uint8", "float16", "float32", "float64", "complex64", "complex128")

    def function(self, x1, x2, **options):
        return parprims.vecdot(x1, x2, **options)

    def make(self, rng, shape, dtype):
        return random(rng, shape, dtype), random(rng, shape, dtype)

    def reference(self, x1, x2, axis):
        wide = {"f": np.float64, "c": np.complex128}.get(x1.dtype.kind, x1.dtype)
        return np.add.reduce(np.conj(x1.astype(wide)) * x2.astype(wide), axis=axis, dtype=wide)

    def bound(self, x1, x2, axis):
        if x1.dtype.kind in "iu":
            return 0
        size = np.sum(abs(x1.astype(complex)) * abs(x2.astype(complex)), axis=axis)
        return rounding(x1.dtype.name, 2 * x1.shape[axis] + 4, size)

    def test_the_answer_of_the_textbook(self, backend, run, method):
        n = 1024
        x1, x2 = np.arange(n, dtype=np.float64), np.full(n, 2.0)
        result = run(parprims.vecdot, backend.asarray(x1), backend.asarray(x2), method=method)
        compare(backend, result, np.float64(n * (n - 1)))

    @pytest.mark.parametrize("dtype", ["uint16", "uint64"])
    def test_unsigned(self, backend, run, method, rng, dtype):
        """Products wrap around; PyTorch on GPUs has none of unsigned integers of more than 8 bits."""
        x1, x2 = rng.integers(0, np.iinfo(dtype).max, (2, 4, 7), dtype)
        result = run(parprims.vecdot, backend.asarray(x1), backend.asarray(x2), method=method)
        compare(backend, result, np.add.reduce(x1 * x2, axis=-1, dtype=dtype))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_halves_are_rounded_once(self, backend, run, method, rng, dtype):
        """Where the last term leaves little of the others, roundings of products would show."""
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype}")
        x1, x2 = rng.standard_normal((2, 5, 65)).astype(numpy_dtype(dtype))
        x1[:, -1] = 1
        x2[:, -1] = -(x1.astype(float) * x2.astype(float))[:, :-1].sum(axis=-1)
        terms = x1.astype(float) * x2.astype(float)
        exact, size = terms.sum(axis=-1), abs(terms).sum(axis=-1)
        result = run(parprims.vecdot, backend.asarray(x1), backend.asarray(x2), method=method)
        compare(backend, result, exact, eps(dtype) / 2 * abs(exact) + 65 * eps("float32") * size, dtype)

    def test_promotes_and_broadcasts(self, backend, run, method, rng):
        x1, x2 = random(rng, (3, 1, 8), "float32"), random(rng, (5, 8), "float64")
        result = run(parprims.vecdot, backend.asarray(x1), backend.asarray(x2), method=method)
        compare(backend, result, np.sum(x1.astype(np.float64) * x2, axis=-1), 1e-13, "float64")

    def test_bad_shapes_named(self, backend):
        one, two = backend.asarray(np.ones(3)), backend.asarray(np.ones(4))
        with pytest.raises(ValueError, match="x1 and x2 must have equal length"):
            parprims.vecdot(one, two)
        with pytest.raises(ValueError, match="x1 must have at least one dimension"):
            parprims.vecdot(backend.asarray(np.ones(())), one)
        with pytest.raises(TypeError, match="x2 must have an integer, floating or complex dtype"):
            parprims.vecdot(one, backend.asarray(np.ones(3, bool)))


class TestOperators:
    methods = ("array", "kernel")

    def test_every_built_in(self, backend, run, method, rng, subtests):
        n = 3001
        value, index = rng.integers(0, 50, n).astype(np.float32), np.arange(n)
        best = int(np.flatnonzero(value == value.max())[0])
        worst = int(np.flatnonzero(value == value.min())[0])
        bits, truth, x = rng.integers(-100, 100, n), rng.random(n) < 0.999, rng.standard_normal(n)
        cases: list[tuple[str, tuple[Any, ...], Any, float]] = [
            ("add", (bits,), bits.sum(), 0),
            ("maximum", (x,), x.max(), 0),
            ("minimum", (x,), x.min(), 0),
            ("logical_and", (truth,), truth.min(), 0),
            ("logical_or", (~truth,), (~truth).max(), 0),
            ("bitwise_and", (bits,), np.bitwise_and.reduce(bits), 0),
            ("bitwise_or", (bits,), np.bitwise_or.reduce(bits), 0),
            ("bitwise_xor", (bits,), np.bitwise_xor.reduce(bits), 0),
            ("logaddexp", (x,), math.log(math.fsum(np.exp(x))), 1e-12),
            ("argmax", (value, index), (value[best], best), 0),
            ("argmin", (value, index), (value[worst], worst), 0),
        ]
        for op, xs, expected, bound in cases:
            with subtests.test(op=op):
                arrays = tuple(backend.asarray(one) for one in xs)
                result = run(parprims.reduce, arrays if len(xs) > 1 else arrays[0], op, method=method)
                compare(backend, result, expected, bound)

    @pytest.mark.parametrize(
        "places", [[0], [70_000], [3, 4], [16_383, 16_384], [3, 140_000], [139_999], [5, 66_000, 131_500]]
    )
    @pytest.mark.parametrize("special", [9.0, np.nan])
    def test_equal_elements_far_from_each_other(self, places, special):
        """The smallest index among the equals, however far apart, also of NaN."""
        rng = np.random.default_rng(places)
        x, index = rng.standard_normal(140_001), rng.permutation(140_001)
        x[places] = special
        for _ in range(2):
            value, at = parprims.reduce((x, index), "argmax")
            np.testing.assert_array_equal(value, special)
            assert at == index[places].min()

    def test_what_may_not_be_written_is_not_copied(self):
        """NumPy's argmax would: a call needs no memory of the size of its arrays, and leaves them read-only."""
        x, index = np.sin(np.arange(2**20)), np.arange(2**20)
        x.flags.writeable = index.flags.writeable = False
        for search in (lambda: parprims.reduce((x, index), "argmax")[1], lambda: parprims.argmax(x)):
            assert search() == np.argmax(x)
            tracemalloc.start()
            search()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < x.nbytes // 8
            assert not x.flags.writeable

    @pytest.mark.parametrize("op", ["argmax", "argmin"])
    @pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "bfloat16", "float64"])
    def test_equals(self, backend, run, method, rng, subtests, op, dtype):
        """Among equals, zeros of both signs and NaN included, the smallest index wins, wherever it stands."""
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        for shape, axis in (((40,), None), ((3, 17), 0), ((3, 17), 1), ((2, 3, 4), (0, 2)), ((1, 6), 0), ((5, 6), ())):
            if backend.name.startswith("jax") and shape != (3, 17):
                continue  # where each is compiled, two are enough
            for top, share in ((3, 0.0), (3, 0.1), (1, 0.0)):
                x = rng.integers(0, top + 1, shape).astype(numpy_dtype(dtype))
                if x.dtype.kind not in "iu":
                    x[rng.random(shape) < 0.3] *= -1  # of which some are zeros
                    x[rng.random(shape) < share] = np.nan
                most = np.iinfo("int16").max
                for index in (rng.permutation(x.size), np.full(x.size, most), rng.integers(most - 2, most + 1, x.size)):
                    with subtests.test(shape=shape, axis=axis, top=top):
                        index = index.reshape(shape).astype("int16")
                        arrays = backend.asarray(x), backend.asarray(index)
                        value, at = run(parprims.reduce, arrays, op, axis=axis, method=method)
                        axes = tuple(range(x.ndim)) if axis is None else axis
                        wide = x.astype(np.float64)
                        best = (np.max if op == "argmax" else np.min)(wide, axis=axes, keepdims=True)
                        equal = (wide == best) | (np.isnan(wide) & np.isnan(best))
                        compare(backend, value, best.squeeze(axes), dtype=dtype)
                        compare(backend, at, np.min(np.where(equal, index, most), axis=axes), dtype="int16")

    def test_segments(self, backend, run, method, rng):
        x = rng.integers(-9, 9, 5000)
        starts = rng.random(5000) < 0.01
        flag, total = run(
            parprims.reduce,
            (backend.asarray(starts), backend.asarray(x)),
            parprims.segmented("add"),
            method=method,
        )
        compare(backend, flag, starts.max())
        compare(backend, total, x[np.flatnonzero(starts)[-1] :].sum())

    def test_operator_without_identity(self, backend, run, method, rng):
        x = rng.standard_normal((7, 999))
        first = parprims.Operator(lambda earlier, _: earlier)
        last = parprims.Operator(lambda _, later: later)
        compare(backend, run(parprims.reduce, backend.asarray(x), first, axis=1, method=method), x[:, 0])
        compare(backend, run(parprims.reduce, backend.asarray(x), last, axis=0, method=method), x[-1, :])

    def test_rows_in_order(self, backend, run, method, rng):
        """Columns of many rows, and of blocks of rows, of which a kernel for CPUs takes several at a time."""
        for n in (2, 5, 6, 50, 300):
            a, b = rng.choice([-1, 1], (n, 20)), rng.integers(-9, 9, (n, 20))
            got = run(parprims.reduce, (backend.asarray(a), backend.asarray(b)), affine, axis=0, method=method)
            factor, shift = a[0], b[0]
            for one, term in zip(a[1:], b[1:], strict=True):
                factor, shift = one * factor, one * shift + term
            compare(backend, got, (factor, shift))

    def test_initial_comes_first(self, backend, run, method, rng):
        x = rng.integers(0, 9, (4, 100))
        first = parprims.Operator(lambda earlier, _: earlier)
        result = run(parprims.reduce, backend.asarray(x), first, axis=1, initial=42, method=method)
        compare(backend, result, np.full(4, 42))
        total = run(parprims.reduce, backend.asarray(x), initial=backend.asarray(np.arange(4)), axis=1, method=method)
        compare(backend, total, x.sum(axis=1) + np.arange(4))

    def test_sixteen_bit_initial(self, backend, run, method):
        if not backend.supports("float16"):
            pytest.skip(f"{backend.name} has no float16")
        x, start = np.full((2, 3), 0.5, np.float16), np.array([1, 2], np.float16)
        result = run(parprims.reduce, backend.asarray(x), axis=1, initial=backend.asarray(start), method=method)
        compare(backend, result, np.array([2.5, 3.5]), 0, "float16")
        with pytest.raises(TypeError, match="initial must have dtype float16"):
            run(parprims.reduce, backend.asarray(x), initial=backend.asarray(np.float64([0.0])), method=method)

    def test_one_element_is_a_copy(self, backend, run, method):
        if backend.name.startswith("jax"):
            pytest.skip("JAX arrays are never written")
        x = backend.asarray(np.array([[3.0], [4.0]]))
        for axis in (1, ()):
            result = run(parprims.reduce, x, axis=axis, method=method)
            result[...] = 7.0
            compare(backend, x, np.array([[3.0], [4.0]]))

    def test_dtype_and_keepdims(self, backend, run, method, rng):
        x = rng.integers(0, 100, (4, 100)).astype(np.int32)
        result = run(
            parprims.reduce,
            backend.asarray(x),
            dtype=backend.dtype("float32"),
            axis=(0, 1),
            keepdims=True,
            method=method,
        )
        compare(backend, result, np.array([[float(x.sum())]]), 0, "float32")

    def test_no_axes(self, backend, run, method, rng):
        x = rng.standard_normal((4, 5))
        compare(backend, run(parprims.reduce, backend.asarray(x), axis=(), method=method), x)

    def test_empty(self, backend, run, method):
        x = backend.asarray(np.zeros((0, 3), np.float32))
        nothing = run(parprims.reduce, x, axis=0, method=method)
        compare(backend, nothing, np.zeros(3))
        assert device(nothing) == device(x)
        compare(backend, run(parprims.reduce, x, "maximum", axis=0, method=method), np.full(3, -np.inf))
        compare(backend, run(parprims.reduce, x, "maximum", axis=1, method=method), np.zeros(0))
        with pytest.raises(ValueError, match="has no identity: give initial"):
            run(parprims.reduce, x, lambda earlier, _: earlier, axis=0, method=method)

    @pytest.mark.optimised
    def test_negative_zero_and_subnormals_survive(self, backend, run, method):
        zeros = np.full(1000, -0.0)
        result = backend.to_numpy(run(parprims.reduce, backend.asarray(zeros), method=method))
        assert result == 0
        # A library's own sum may start from +0.
        assert np.signbit(result) or method == "auto"
        if backend.name == "jax" or (backend.name == "cupy" and method != "kernel"):
            return  # XLA on a CPU and CuPy flush subnormal numbers
        tiny = np.full(1000, 2.0**-149, np.float32)
        compare(backend, run(parprims.reduce, backend.asarray(tiny), method=method), 1000 * 2.0**-149)

    def test_infinities(self, backend, run, method):
        x = np.array([[1, np.inf, 2], [np.inf, -np.inf, 0], [np.nan, 1, np.inf]])
        compare(backend, run(parprims.reduce, backend.asarray(x), axis=1, method=method), [np.inf, np.nan, np.nan])


class TestErrors:
    def test_arguments_named(self, backend):
        x = backend.asarray(np.arange(6.0).reshape(2, 3))
        flags = backend.asarray(np.array([True, False]))
        bad: list[tuple[type[Exception], str, Any]] = [
            (ValueError, "op must be one of", lambda: parprims.reduce(x, "plus")),
            (ValueError, "dtype must have 1 entries", lambda: parprims.map_reduce(abs, x, dtype=())),
            (TypeError, "op must be a name", lambda: parprims.reduce(x, 3)),
            (ValueError, "op affine works on tuples of 2", lambda: parprims.reduce(x, "affine")),
            (ValueError, "op add works on a single array", lambda: parprims.reduce((x, x), "add")),
            (TypeError, "x must have a floating dtype", lambda: parprims.reduce(flags, "logaddexp")),
            (TypeError, "x must have an integer or floating dtype", lambda: parprims.max(flags)),
            (ValueError, "axis .* twice", lambda: parprims.sum(x, axis=(0, -2))),
            (IndexError, "axis 2", lambda: parprims.sum(x, axis=2)),
            (ValueError, "x must be arrays of equal shape", lambda: parprims.reduce((x, flags), "argmax")),
            (ValueError, "arrays must broadcast", lambda: parprims.map_reduce(lambda a, b: a + b, x, flags)),
            (TypeError, "fn must be callable", lambda: parprims.map_reduce(x, x)),
            (TypeError, "arrays must hold", lambda: parprims.map_reduce(lambda: 0)),
            (TypeError, "x must be an array", lambda: parprims.sum(3.0)),
            (TypeError, "x must be an array", lambda: parprims.sum((x, x))),
            (TypeError, "initial must fit dtype", lambda: parprims.reduce(flags, "logical_or", initial=2.5)),
            (ValueError, "initial must have 1 entries", lambda: parprims.reduce(x, initial=(1.0, 2.0))),
            (ValueError, "initial must broadcast", lambda: parprims.reduce(x, initial=x)),
            (ValueError, "method must be one of", lambda: parprims.sum(x, method="cub")),
            (TypeError, "op .* returned", lambda: parprims.reduce(x, lambda e, f: e < f, method="array")),
        ]
        for kind, message, call in bad:
            with pytest.raises(kind, match=message):
                call()

    def test_mixed_devices_named(self, backend):
        if backend.name != "array-api-strict":
            pytest.skip("needs two devices without a GPU")
        import array_api_strict as xp

        one, other = xp.ones(3), xp.ones(3, device=xp.Device("device1"))
        with pytest.raises(ValueError, match="x2 is on device"):
            parprims.vecdot(one, other)


class TestTransforms:
    methods = METHODS

    def test_jax_vmap_scan_and_gradient(self, backend, run, method, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX transforms")
        import jax

        x = rng.standard_normal((5, 33))
        arrays = backend.asarray(x)

        def total(row):
            return run(parprims.sum, row, method=method)

        compare(backend, jax.vmap(total)(arrays), x.sum(axis=1), 1e-12)
        compare(backend, jax.vmap(total, in_axes=1)(arrays), x.sum(axis=0), 1e-12)
        _, each = jax.lax.scan(lambda carry, row: (carry, total(row)), 0.0, arrays)
        compare(backend, each, x.sum(axis=1), 1e-12)
        gradient = jax.grad(jax.jit(lambda x: run(parprims.prod, x, method=method)))(arrays[0])
        compare(backend, gradient, x[0].prod() / x[0], 1e-9 * abs(x[0].prod() / x[0]))
        compare(backend, jax.vmap(jax.grad(lambda row: total(row * row)))(arrays), 2 * x, 1e-12)

    def test_torch_gradient(self, backend, run, method, rng):
        if not backend.name.startswith("torch") or method == "kernel":
            pytest.skip("PyTorch differentiates the array and native methods")
        import torch

        x = backend.asarray(rng.standard_normal((3, 5))).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: run(parprims.sum, x, axis=0, method=method), (x,))
        assert torch.autograd.gradcheck(lambda x: run(parprims.prod, x, axis=1, method=method), (x,))

    def test_gradient_by_the_kernel(self, backend, rng):
        """A kernel for GPUs refuses, one for CPUs has the derivative of the operations."""
        if not backend.name.startswith("torch"):
            pytest.skip("PyTorch only")
        x = backend.asarray(rng.standard_normal(5)).requires_grad_()
        if backend.kernels and not backend.cuda:
            parprims.prod(x, method="kernel").backward()
            expected = np.prod(backend.to_numpy(x)) / backend.to_numpy(x)
            np.testing.assert_allclose(backend.to_numpy(x.grad), expected, rtol=1e-12)
            return
        with pytest.raises(parprims.MethodRefused, match=r"gradient|CUDA device"):
            parprims.sum(x, method="kernel")
