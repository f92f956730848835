"""Reductions against a sequential loop."""

import dataclasses
import itertools
import math
import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest
from array_api_compat import device

import parprims
from parprims import _reduce_array
from parprims._reduce_kernel import TUNING, make_plan, specialise
from parprims._reduction import Reduction
from tests import emulator
from tests.contract import Contract, compare, eps, few_on_jax, numpy_dtype, random

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
        # As documented, array: 2 ceil(log2 n) additions, kernel: 64 in rows of this length, each half a unit.
        documented = {"array": math.ceil(math.log2(max(1, n))), "kernel": 32}.get(self.ran, n + 1)
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
                # Every term passes at most 2 ceil(log2 n) additions (kernel: 64 up to this length).
                steps = 2 * math.ceil(math.log2(n)) if method == "array" else 64
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
        with pytest.raises(TypeError, match=r"x\[1\] must be an array"):
            parprims.reduce((a, [2.0]), affine)
        with pytest.raises(TypeError, match=r"x\[0\] must be an array"):
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
        # The products of 16-bit floats may be rounded before they are summed.
        return rounding(x1.dtype.name, 2 * x1.shape[axis] + 4, size)

    def test_the_answer_of_the_textbook(self, backend, run, method):
        n = 1024
        x1, x2 = np.arange(n, dtype=np.float64), np.full(n, 2.0)
        result = run(parprims.vecdot, backend.asarray(x1), backend.asarray(x2), method=method)
        compare(backend, result, np.float64(n * (n - 1)))

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
        with pytest.raises(TypeError, match="x2 must have a dtype"):
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
            (TypeError, "x must have a dtype of kind float", lambda: parprims.reduce(flags, "logaddexp")),
            (TypeError, "x must have a dtype", lambda: parprims.max(flags)),
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


class TestKernelShapes:
    """Shapes that reach every kernel and every way the work is cut; only a GPU runs them."""

    SHAPES = (
        ((1 << 22) + 5,),
        (3, 100_003),
        (700, 5000),
        (9000, 4100),
        (70_000, 3),
        (5000, 37),
        (2, 3, 1 << 19),
    )

    def test_rows_and_columns(self, backend, run, rng, subtests):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        for shape in (*self.SHAPES, (1 << 18, 7), (4097, 513), (33, 1001, 3), (2000, 2, 5), (1 << 20, 1, 2)):
            for axis in range(len(shape)):
                with subtests.test(shape=shape, axis=axis):
                    a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
                    arrays = (backend.asarray(a), backend.asarray(b))
                    total = run(parprims.sum, arrays[0], axis=axis, method="kernel")
                    compare(backend, total, a.sum(axis=axis))
                    result = run(parprims.reduce, arrays, affine, axis=axis, method="kernel")
                    compare(backend, result, _affine_by_halves(a, b, axis))

    def test_more_than_two_to_the_31(self, backend, run):
        if not backend.cuda or backend.name == "jax-cuda":
            pytest.skip("needs a CUDA device; JAX would hold two copies")
        xp = backend.xp
        n = 2**31 + 2**20 + 3
        x = xp.ones((n,), dtype=xp.int8, device=backend.asarray(np.zeros(1)).device)
        x[n - 1] = 5
        x[2**31] = 7
        assert int(run(parprims.sum, x, method="kernel")) == n + 10
        y = xp.reshape(x[: 2**31 + 2], (2**30 + 1, 2))
        sums = backend.to_numpy(run(parprims.sum, y, axis=0, method="kernel"))
        assert sums.tolist() == [2**30 + 1 + 6, 2**30 + 1]
        rows = run(parprims.sum, y, axis=1, method="kernel")
        assert int(rows[2**30]) == 8
        assert int(run(parprims.sum, rows, method="kernel")) == 2**31 + 2 + 6

    def test_outputs_are_all_written(self, backend, run, rng):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs an allocator that hands out the same memory again")
        for shape, axis in (((1000, 1000), 0), ((1000, 1000), 1), ((100_000, 8), 1)):
            x = rng.standard_normal(shape)
            array = backend.asarray(x)
            poison = backend.xp.full(np.sum(x, axis=axis).shape, np.nan, dtype=array.dtype, device=array.device)
            del poison
            result = run(parprims.sum, array, axis=axis, method="kernel")
            compare(backend, result, x.sum(axis=axis), 1e-9)

    def test_streams_and_threads(self, backend, rng):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs streams")
        import concurrent.futures

        x = rng.integers(-99, 99, 3_000_001)
        array = backend.asarray(x)

        def work(index):
            if backend.name == "cupy":
                import cupy

                stream = cupy.cuda.Stream(non_blocking=True)
                with stream:
                    results = [parprims.sum(array[index:], method="kernel") for _ in range(50)]
                stream.synchronize()
            else:
                import torch

                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.default_stream())
                with torch.cuda.stream(stream):
                    results = [parprims.sum(array[index:], method="kernel") for _ in range(50)]
                stream.synchronize()
            return {int(one) for one in results}

        if backend.name == "cupy":
            import cupy

            cupy.cuda.Device().synchronize()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for index, found in enumerate(pool.map(work, range(8))):
                assert found == {int(x[index:].sum())}

    def test_what_auto_takes(self, backend, rng):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = backend.asarray(rng.standard_normal(1000))
        with parprims.explain() as calls:
            parprims.sum(x)
            parprims.reduce((x, x), affine)
        plain = "native" if backend.name == "jax-cuda" else "kernel"
        assert [call.method for call in calls] == [plain, "kernel"]

    def test_repeated_calls_see_new_data_and_captures(self, backend, rng):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        state = {"scale": 2}
        for _ in range(3):
            x = rng.integers(-9, 9, (40, 30))
            array = backend.asarray(x)
            assert int(parprims.sum(array, method="kernel")) == x.sum()
            assert int(parprims.max(array, method="kernel")) == x.max()
            compare(backend, parprims.sum(array, axis=1, method="kernel"), x.sum(axis=1))
            compare(backend, parprims.sum(array, axis=1, keepdims=True, method="kernel"), x.sum(axis=1, keepdims=True))
            state["scale"] += 1
            total = parprims.map_reduce(lambda x: x * state["scale"], array, method="kernel")
            assert int(total) == state["scale"] * x.sum()

    def test_another_device_than_the_current(self, backend, rng):
        if not backend.cuda:
            pytest.skip("needs CUDA devices")
        x = rng.integers(-99, 99, 1_234_567)
        if backend.name == "cupy":
            import cupy

            if cupy.cuda.runtime.getDeviceCount() < 2:
                pytest.skip("needs two GPUs")
            with cupy.cuda.Device(1):
                there = cupy.asarray(x)
        elif backend.name == "torch-cuda":
            import torch

            if torch.cuda.device_count() < 2:
                pytest.skip("needs two GPUs")
            there = torch.from_numpy(x).to("cuda:1")
        else:
            import jax

            if len(jax.devices("cuda")) < 2:
                pytest.skip("needs two GPUs")
            there = jax.device_put(x, jax.devices("cuda")[1])
        here = backend.asarray(x)
        for array in (there, here, there):
            for part in (array, array[1:], array[:100]):
                total = parprims.sum(part, method="kernel")
                assert device(total) == device(array)
                assert int(total) == int(backend.to_numpy(part).sum())
        assert device(backend.asarray(x)) == device(here)  # the current device is what it was

    def test_captured_into_a_graph(self, backend, rng):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs graphs")
        first, second = (rng.integers(-99, 99, 1_234_567) for _ in range(2))
        x = backend.asarray(first)
        if backend.name == "cupy":
            import cupy

            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.Device().synchronize()
            with stream:
                parprims.sum(x[1:], method="kernel")  # CuPy takes no memory from the device while it captures
                stream.begin_capture()
                total = parprims.sum(x, method="kernel")
                graph = stream.end_capture()
                x[...] = backend.asarray(second)
                graph.launch()
                graph.launch()
            stream.synchronize()
        else:
            import torch

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                total = parprims.sum(x, method="kernel")
            x.copy_(backend.asarray(second))
            graph.replay()
            graph.replay()
        assert int(total) == second.sum()

    def test_out_of_memory_leaves_the_library_usable(self, backend):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs a device whose memory can be overdrawn")
        xp = backend.xp
        one = xp.ones((1,), dtype=xp.float64, device=backend.asarray(np.zeros(1)).device)
        vast = xp.broadcast_to(one, (1 << 36, 2))  # its sums along an axis would take half a terabyte
        with pytest.raises(Exception, match=r"(?i)out of memory"):
            parprims.sum(vast, axis=1, method="kernel")
        assert float(parprims.sum(one, method="kernel")) == 1.0

    def test_impossible_launch_raises(self, backend):
        if not backend.cuda or backend.name == "jax-cuda":
            pytest.skip("needs a CUDA device")
        from parprims import _cuda

        def plan(block):
            source = "__device__ void set_one(int* y) { *y = 1; }"
            launch = _cuda.Launch(source, "set_one", (), (_cuda.Pointer("out0", "int"),), 1, block)
            return _cuda.Plan((launch,), 1, (((1,), "int32"),), ())

        x = backend.asarray(np.zeros(4, np.int32))
        runner = _cuda.Runner(backend.xp, plan(1), 0)
        runner(x)
        runner.plan, runner._packets = plan(4096), {}
        with pytest.raises(_cuda.CudaError, match="cuLaunchKernel"):
            runner(x)
        assert int(parprims.sum(x, method="kernel")) == 0

    def test_jax_needs_no_cupy(self, backend):
        if backend.name != "jax-cuda":
            pytest.skip("needs JAX on a GPU")
        import subprocess
        import sys

        program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupy_backends", "torch"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import jax, jax.numpy as jnp, parprims
x = jnp.arange(100000.0)
with parprims.explain() as calls:
    total = jax.jit(lambda x: parprims.sum(x * 2, method="kernel"))(x)
assert calls[0].method == "kernel" and abs(float(total) / 9999900000.0 - 1) < 1e-6
"""
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_a_program_finds_its_kernels_on_disk(self, backend, tmp_path, monkeypatch):
        if backend.name != "cupy":
            pytest.skip("needs CuPy")
        import time

        from parprims._cuda import compiler

        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        x = backend.asarray(np.arange(10, dtype=np.float32))
        compiler.compiled.cache_clear()
        start = time.perf_counter()
        parprims.map_reduce(lambda x: x * x - 0.125, x, method="kernel")
        assert time.perf_counter() - start < 0.5
        (file,) = tmp_path.iterdir()
        written = file.stat().st_mtime_ns
        compiler.compiled.cache_clear()
        parprims.map_reduce(lambda x: x * x - 0.125, x, method="kernel")
        assert [one.stat().st_mtime_ns for one in tmp_path.iterdir()] == [written]


@pytest.mark.sanitize
class TestSanitized:
    """Small work through every kernel and every way it is cut, for tools that watch each access."""

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((300, 5), 1),
            ((40, 200), 1),
            ((5, 3000), 1),
            ((2, 40_001), 1),
            ((500, 3), 0),
            ((4000, 40), 0),
            ((3, 9, 130), 1),
            ((65, 7, 5), 1),
        ],
    )
    def test_every_kernel(self, backend, run, rng, shape, axis):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
        arrays = (backend.asarray(a), backend.asarray(b))
        compare(backend, run(parprims.sum, arrays[0], axis=axis, method="kernel"), a.sum(axis=axis))
        result = run(parprims.reduce, arrays, affine, axis=axis, method="kernel")
        compare(backend, result, _affine_by_halves(a, b, axis))
        x = run(parprims.max, backend.asarray(a.astype(np.float16)), axis=axis, method="kernel")
        compare(backend, x, a.max(axis=axis))

    @pytest.mark.parametrize(("shape", "axis"), [((1000, 3), 0), ((9, 2100), 0), ((7, 5, 400), 1)])
    def test_columns_in_one_block(self, backend, run, rng, monkeypatch, shape, axis):
        """Few columns that all threads of a block share, and so many that each of its threads has its own."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(TUNING[90], blocks=1))
        a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
        compare(backend, run(parprims.sum, backend.asarray(a), axis=axis, method="kernel"), a.sum(axis=axis))
        arrays = (backend.asarray(a), backend.asarray(b))
        result = run(parprims.reduce, arrays, affine, axis=axis, method="kernel")
        compare(backend, result, _affine_by_halves(a, b, axis))

    @pytest.mark.parametrize("shape", [(9, 2100), (7, 5, 200)])
    def test_columns_without_vectors(self, backend, run, rng, monkeypatch, shape):
        """Rows begin where no vector does; columns more and fewer than the threads of a block."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(TUNING[90], blocks=1))
        x = rng.integers(-9, 9, (*shape[:-1], shape[-1] + 1)).astype(np.int32)
        y = run(parprims.sum, backend.asarray(x)[..., 1:], axis=-2, method="kernel")
        compare(backend, y, x[..., 1:].sum(axis=-2))

    @pytest.mark.parametrize("shape", [(300, 2), (40, 60)])
    def test_elements_as_large_as_a_vector(self, backend, run, rng, shape):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = np.round(8 * random(rng, shape, "complex128"))
        y = run(parprims.sum, backend.asarray(x), axis=1, method="kernel")
        compare(backend, y, x.sum(axis=1), 0, "complex128")

    @pytest.mark.parametrize("shape", [(300, 2), (40, 60), (3, 5000), (5, 3003)])
    def test_large_elements(self, backend, run, rng, shape):
        """A thread loads one vector of elements at a time; the last vector of a row is not whole."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = rng.integers(-9, 9, shape).astype(np.float64)
        arrays = [backend.asarray(one) for one in (np.ones(shape), x, np.zeros(shape))]
        count, mean, squares = run(parprims.reduce, tuple(arrays), "welford", axis=1, method="kernel")
        assert np.all(backend.to_numpy(count) == shape[1])
        np.testing.assert_allclose(backend.to_numpy(mean), x.mean(axis=1), rtol=0, atol=1e-12)
        np.testing.assert_allclose(backend.to_numpy(squares), x.var(axis=1) * shape[1], rtol=1e-12)

    def test_every_remainder(self, backend, run, rng, subtests):
        """Of 32 lengths in turn: rows, columns, and rows shared by blocks."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        for n in few_on_jax(backend, rng, range(225, 257), 2):
            for shape, axis in (((3, n), 1), ((n, 3), 0), ((1, 32_768 + n), 1)):
                with subtests.test(shape=shape):
                    x = rng.integers(-9, 9, shape).astype(np.int32)
                    y = run(parprims.sum, backend.asarray(x), axis=axis, method="kernel")
                    compare(backend, y, x.sum(axis=axis))

    @pytest.mark.parametrize(("shape", "axis"), [((40_001,), 0), ((4001, 3), 0)])
    def test_states_with_gaps(self, backend, run, rng, shape, axis):
        """What aligns the members of a state takes room between blocks too."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = np.round(8 * random(rng, shape, "complex128"))
        flags = np.zeros(shape, bool)
        flags[shape[0] // 2] = True
        arrays = backend.asarray(flags), backend.asarray(x)
        _, total = run(parprims.reduce, arrays, parprims.segmented("add"), axis=axis, method="kernel")
        compare(backend, total, x[shape[0] // 2 :].sum(axis=axis), 0, "complex128")

    def test_rest_of_a_row(self, backend, run, rng):
        """Elements that make no whole vector end a row that begins with whole ones."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = rng.integers(-9, 9, 3003).astype(np.int32)
        compare(backend, run(parprims.sum, backend.asarray(x), method="kernel"), x.sum())


class TestPlan:
    """How the kernel cuts its work, checked without a GPU."""

    @pytest.mark.once
    def test_bounds_of_every_plan(self, subtests):
        for dtype in ("int8", "float32", "complex128"):
            for shape in (
                (1 << 33,),
                (1 << 20, 1 << 12),
                (1 << 12, 1 << 20),
                (3, 1 << 31),
                (1 << 31, 3),
                (7, 5, 1 << 26),
            ):
                for axis in range(len(shape)):
                    with subtests.test(dtype=dtype, shape=shape, axis=axis):
                        plan = self.plan(dtype, shape, axis)
                        (launch,) = plan.launches
                        assert 0 < launch.grid < 2**31
                        assert plan.zeroed_bytes <= 1 << 18
                        assert plan.scratch_bytes <= 1 << 19

    def test_copies_only_where_unavoidable(self):
        x = np.broadcast_to(np.zeros((), np.float32), (8, 6, 4))
        strided = np.zeros((8, 6, 9), np.float32)[:, :, :4]
        assert self.plan("float32", (8, 6, 4), None) is not None
        assert self.plan("float32", (8, 6, 4), None, x) is not None
        assert self.plan("float32", (8, 6, 4), 2, strided) is not None
        assert self.plan("float32", (8, 6, 4), 0, strided) is not None
        assert self.plan("float32", (6, 8, 4), None, np.zeros((8, 6, 4), np.float32).transpose(1, 0, 2)) is not None
        assert self.plan("float32", (8, 6, 4), (0, 2)) is None
        assert self.plan("float32", (8, 6, 4), None, strided) is None

    def plan(self, dtype, shape, axis, x=None):
        from array_api_compat import numpy as xp

        from parprims._operators import BUILT_IN

        if x is None:
            strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
            x = np.broadcast_to(np.zeros((), dtype), shape)
        else:
            strides = tuple(stride // x.itemsize for stride in x.strides)
        axes = tuple(range(len(shape))) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        r = Reduction(arrays=(x,), shape=shape, single=True, op=BUILT_IN["add"], axes=axes)
        return make_plan(specialise(xp, r, (dtype,)), TUNING[90], r, ((strides, 0),))


def _affine_by_halves(a, b, axis):
    """Compose affine maps along an axis by NumPy's own arithmetic, halves first; integers wrap alike in any order."""
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    while len(a) > 1:
        even = len(a) // 2 * 2
        head = affine((a[0:even:2], b[0:even:2]), (a[1:even:2], b[1:even:2]))
        a, b = (np.concatenate([one, rest[even:]]) for one, rest in zip(head, (a, b), strict=True))
    return a[0], b[0]


class TestBlocks:
    """Where elements are combined block by block, results are the same and memory is bounded."""

    methods = METHODS

    @pytest.fixture(autouse=True)
    def _no_kernel(self, request):
        if "method" in request.fixturenames and request.getfixturevalue("method") in ("kernel", "auto"):
            pytest.skip("a kernel combines everything in one launch")

    @pytest.mark.parametrize("block", [64, 1000])
    def test_every_axis(self, backend, method, rng, monkeypatch, block):
        """Blocks of a few elements, cut along whatever axis, by operators in order and not."""
        if backend.name.startswith("jax"):
            pytest.skip("JAX is given everything at once")
        monkeypatch.setattr(_reduce_array, "SMALLEST_BLOCK", block)
        monkeypatch.setattr(_reduce_array, "LARGEST_BLOCK", block)
        a, b = (backend.asarray(rng.integers(-2, 3, (5, 3, 14))) for _ in range(2))
        for axis in (None, 0, 1, 2, (0, 1), (0, 2), (1, 2)):
            axes = range(3) if axis is None else axis if isinstance(axis, tuple) else (axis,)
            for keepdims in (False, True):
                rows = [np.moveaxis(backend.to_numpy(x), list(axes), range(len(axes))) for x in (a, b)]
                flat = [x.reshape(-1, *x.shape[len(axes) :]) for x in rows]
                if method == "array":
                    expected = loop(lambda e, f: (f[0] * e[0], f[0] * e[1] + f[1]), *flat, axis=0)
                    got = parprims.reduce((a, b), "affine", axis=axis, keepdims=keepdims, method=method)
                    for one, other in zip(got, expected, strict=True):
                        np.testing.assert_array_equal(backend.to_numpy(one).reshape(other.shape), other)
                for function, expected in (
                    (parprims.sum, flat[0].sum(axis=0)),
                    (parprims.max, flat[0].max(axis=0)),
                    (parprims.any, flat[0].any(axis=0)),
                ):
                    got = function(a, axis=axis, keepdims=keepdims, method=method)
                    assert got.shape == np.sum(backend.to_numpy(a), axis=axis, keepdims=keepdims).shape
                    np.testing.assert_array_equal(backend.to_numpy(got).reshape(expected.shape), expected)
                mapped = parprims.map_reduce(lambda x, y: x * y - 1, a, b, axis=axis, initial=7, method=method)
                np.testing.assert_array_equal(backend.to_numpy(mapped), 7 + (flat[0] * flat[1] - 1).sum(axis=0))
        np.testing.assert_array_equal(
            backend.to_numpy(parprims.vecdot(a, b[:1, ...], axis=-1, method=method)),
            np.sum(backend.to_numpy(a) * backend.to_numpy(b)[:1], axis=-1),
        )

    def test_a_function_of_more_than_an_element_sees_everything(self, backend, method, monkeypatch):
        """One that reads an array of the whole shape beside its argument, which no kernel could."""
        monkeypatch.setattr(_reduce_array, "SMALLEST_BLOCK", 64)
        weights = backend.asarray(np.arange(1000.0))
        x = backend.asarray(np.ones(1000))
        total = parprims.map_reduce(lambda one: one * weights, x, method=method)
        assert float(total) == 999 * 500
        if method == "array":
            modulus = backend.asarray(np.arange(2, 102))
            y = backend.asarray(np.arange(1000).reshape(10, 100))
            sums = parprims.reduce(y, lambda earlier, later: (earlier + later) % modulus, axis=0, method=method)
            expected = np.arange(1000).reshape(10, 100).sum(axis=0) % np.arange(2, 102)
            np.testing.assert_array_equal(backend.to_numpy(sums), expected)

    @pytest.mark.parametrize("dtype", ["int8", "float16"])
    def test_memory_of_a_cast(self, backend, method, dtype):
        """Of 8 Mi elements narrower than what they are summed in: less than they would take in that."""
        x = (np.arange(2**23) % 7 == 0).astype(dtype)
        kept = peak_of(
            backend, lambda: int(parprims.sum(backend.asarray(x), dtype=backend.dtype(wider(dtype)), method=method))
        )
        assert kept[0] == -(-(2**23) // 7)
        assert kept[1] < 24 * 2**20

    def test_memory_of_a_view_that_repeats_one_number(self, backend, method):
        """Of 2^26 elements, which would take 512 MiB."""
        x = np.broadcast_to(np.float64(1), (2**26,))
        n = float(2**26)
        for function, expected in (
            (parprims.sum, n),
            (parprims.max, 1.0),
            (parprims.any, True),
            (lambda x, **options: parprims.map_reduce(lambda one: one + 1, x, **options), 2 * n),
            (lambda x, **options: parprims.vecdot(x, x[:, None][:, 0], **options), n),
        ):
            got, peak = peak_of(backend, lambda: function(x, method=method).item())  # noqa: B023
            assert got == expected
            assert peak < 48 * 2**20

    def test_bits_do_not_depend_on_the_call(self, backend, method, rng):
        """Alone or after others, the same blocks; and a copy that lies otherwise in memory is grouped alike."""
        x = rng.standard_normal((1500, 1000)).astype(np.float32)
        one, other = (parprims.map_reduce(lambda x: x * x, backend.asarray(x), method=method) for _ in range(2))
        assert backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()
        # Every term passes a block's tree, or the library's sum of it, and an addition for each doubling of blocks.
        exact = math.fsum((x.astype(np.float64) ** 2).ravel())
        steps = 2 * 21 if method == "array" else 1000
        assert abs(float(one) - exact) <= steps * 2.0**-24 * exact


def wider(dtype: str) -> str:
    return {"int8": "int64", "float16": "float32"}[dtype]


def peak_of(backend: Any, call: Any) -> tuple[Any, int]:
    """Return what a call returns and the most bytes that NumPy had for it at any time."""
    if backend.name not in ("numpy", "emulated"):
        pytest.skip("only NumPy's memory is traced")
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
