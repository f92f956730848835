"""Sorting against Python's own stable sort of numbers, one row after another."""

import importlib
from typing import ClassVar

import numpy as np
import pytest

import parprims
from parprims._primitives.sort.call import bits, computed_bits
from tests.emulation import emulator
from tests.support.contract import Contract, compare, random, some_dtypes

REAL = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()


def order(keys, axis, descending=False):
    """Return the stable indices: numbers by value, NaN above all of them, equals as they come in both directions."""
    rows = np.moveaxis(keys, axis, -1)
    indices = np.empty(rows.shape, dtype=np.int64)
    for row in np.ndindex(rows.shape[:-1]):
        numbers = [value.item() for value in rows[row]]
        above = [(number != number, 0 if number != number else number) for number in numbers]
        indices[row] = sorted(range(len(above)), key=above.__getitem__, reverse=descending)
    return np.moveaxis(indices, -1, axis)


def extremes(dtype):
    """Return the numbers of a dtype that sorts get wrong, as NumPy scalars in no order."""
    if dtype == "bool":
        return np.array([True, False])
    if not dtype.endswith(("float16", "float32", "float64")):
        info = np.iinfo(dtype)
        return np.array([info.max, 0, info.min, 1, info.max - 1, info.min + 1, info.max // 2, 15, 16], dtype)
    numpy_dtype = random(np.random.default_rng(0), (1,), dtype).dtype
    width = 8 * numpy_dtype.itemsize
    fraction = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
    sign, infinity = 1 << (width - 1), ((1 << (width - 1 - fraction)) - 1) << fraction
    magnitudes = [0, 1, 2, (1 << fraction) - 1, 1 << fraction, infinity - 1, infinity, infinity + (1 << fraction - 1)]
    if dtype != "bfloat16":  # JAX moves it as float32, where NaN loses its payload
        magnitudes += [infinity + 1, sign - 1]
    patterns = [one | negative for one in magnitudes for negative in (sign, 0)]
    return np.array(patterns, f"uint{width}").view(numpy_dtype)


def raw(x):
    """Return the bits of an array, which compare equal where NaN and -0 agree too."""
    return np.ascontiguousarray(x).view(np.uint8)


class Sorting(Contract):
    @pytest.fixture(autouse=True)
    def _compile_operations(self, request):
        """Let JAX keep operations, not whole programs, by method array, but in tests that ask for programs.

        It compiles a program anew for every dtype and length, and the same operations come again. Of keys of 16 bits it
        is a short one.
        """
        names = request.fixturenames
        programs = request.function.__name__ in ("test_jit", "test_ranks_in_one_program", "test_same_bits_twice")
        on_jax = "method" in names and request.getfixturevalue("backend").name == "jax"
        by_array = on_jax and request.getfixturevalue("method") == "array"
        if by_array:
            self.plain = "float16"
        if by_array and not programs:
            self.compiled_lengths = (0, 1, 2, 129)
            with importlib.import_module("jax").disable_jit():
                yield
        else:
            yield

    methods: ClassVar = ("kernel", "native", "array")
    dtypes: ClassVar = REAL
    lengths: ClassVar = (0, 1, 2, 128, 129, 300)
    compiled_lengths = lengths

    def make(self, rng, shape, dtype):
        """Return keys of which many are equal and some extreme."""
        keys = random(rng, shape, dtype)
        special = extremes(dtype)
        return (np.where(rng.random(shape) < 0.3, special[rng.integers(0, special.size, shape)], keys),)

    def bound(self, *_inputs, **_options):
        return 0

    def test_dtype(self, backend, run, method, rng, dtype):
        """Nothing is rounded: XLA's optimisations, which take half of the time, are left to whole programs."""
        super().test_dtype(backend, run, method, rng, dtype)

    @classmethod
    def left_out(cls, law, given):
        if law == "test_any_shape" and given["backend"].startswith("jax") and given["method"] == "array":
            return "JAX compiles every step for every shape"
        return super().left_out(law, given)

    @pytest.mark.parametrize("dtype", REAL)
    def test_every_bit(self, backend, run, method, rng, dtype, subtests):
        if not hasattr(backend.xp, dtype):
            pytest.skip(f"{backend.name} has no {dtype}")
        if dtype not in some_dtypes(backend, method, REAL):
            pytest.skip("test_sort_cpu.py has all")
        special = extremes(dtype)
        keys = np.concatenate([special, special[::-1], self.make(rng, (300 - 2 * special.size,), dtype)[0]])
        for descending in (False, True):
            with subtests.test(descending=descending):
                self.check_bits(backend, run, method, rng.permutation(keys), descending=descending)

    def check_bits(self, backend, run, method, keys, descending=False, stable=True):
        """Compare bit for bit; array and the libraries' own sorts move elements and never compute them."""
        arrays = tuple(backend.asarray(x) for x in self.complete(keys))
        inputs = (backend.to_numpy(x) for x in arrays)
        result = run(self.function, *arrays, method=method, descending=descending, stable=stable)
        expected = self.reference(*inputs, axis=-1, descending=descending)
        if not isinstance(result, tuple):
            result, expected = (result,), (expected,)
        for one, other in zip(result, expected, strict=True):
            assert parprims._core.arrays.namespace(result=one) is backend.xp
            found = backend.to_numpy(one)
            assert (found.shape, found.dtype) == (other.shape, other.dtype)
            np.testing.assert_array_equal(raw(found), raw(other))

    def complete(self, keys):
        """Return all inputs for the given keys."""
        return (keys,)

    def test_shape_of_data(self, backend, run, method, rng, subtests):
        n = 300
        ascending = np.sort(random(rng, (n,), "float32"))
        cases = {
            "all equal": np.full(n, 7.0, np.float32),
            "sorted": ascending,
            "reversed": ascending[::-1].copy(),
            "two distinct": np.where(rng.random(n) < 0.5, np.float32(-2.5), np.float32(3.5)),
            "one out of place": np.roll(ascending, 1),
            "zeros of both signs": np.where(rng.random(n) < 0.5, np.float32(-0.0), np.float32(0.0)),
        }
        for name, keys in cases.items():
            with subtests.test(name):
                self.check_bits(backend, run, method, keys)

    def test_unstable_sorts_too(self, backend, run, method, rng):
        keys = rng.permutation(300).astype(np.int32) - 100
        for descending in (False, True):
            self.check_bits(backend, run, method, keys, descending=descending, stable=False)

    def test_broadcast_view(self, backend, run, method, rng):
        inputs = tuple(np.broadcast_to(x, (4, 33)) for x in self.make(rng, (33,), "float32"))
        arrays = tuple(backend.xp.broadcast_to(backend.asarray(x[0].copy()), (4, 33)) for x in inputs)
        self.check(backend, run, method, inputs, arrays)

    def test_no_order_named(self, backend):
        arrays = (backend.asarray(x) for x in self.complete(np.array([1 + 2j, 3j])))
        with pytest.raises(TypeError, match=r"(x|keys) must be"):
            self.function(*arrays)

    def test_too_many_named(self, backend, rng, monkeypatch):
        # With digits of 61 bits the counts of three keys outrun 64-bit indices.
        emulator.forget(monkeypatch)
        monkeypatch.setattr("parprims._primitives.sort.array._DIGIT", 61)
        arrays = [backend.asarray(x) for x in self.make(rng, (3,), "int32")]
        with pytest.raises(parprims.MethodRefused, match="cannot number this many keys"):
            self.function(*arrays, method="array")
        assert "this many keys" in parprims.methods(self.function, *arrays)["array"]

    def test_no_axis_named(self, backend):
        arrays = (backend.asarray(x) for x in self.complete(np.array(3.0)))
        with pytest.raises(IndexError, match="axis"):
            self.function(*arrays)


class TestSort(Sorting):
    def function(self, x, **options):
        return parprims.sort(x, **options)

    def reference(self, x, axis, descending=False):
        return np.take_along_axis(x, order(x, axis, descending), axis)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_numpy_sorts_floats_quickly(self, dtype, rng, monkeypatch, subtests):
        """By the sort that is not stable, many times faster, whatever zeros and NaN there are; bits and order stay."""
        from array_api_compat import numpy as xp

        library, stable = xp.sort, []

        def sort(x, **options):
            stable.append(options["stable"])
            return library(x, **options)

        monkeypatch.setattr(xp, "sort", sort)
        plain = rng.standard_normal((40, 70)).astype(dtype)
        one_nan, zeros, many = plain.copy(), plain.copy(), plain.copy()
        one_nan[3, 5] = -np.nan
        zeros[:, :9] = rng.choice([-0.0, 0.0], (40, 9))
        many[rng.random(many.shape) < 0.3] = np.nan
        many[::3] = np.copysign(many[::3], -1)
        many[rng.random(many.shape) < 0.3] = -0.0
        many[rng.random(many.shape) < 0.2] = 0.0
        for name, x in (
            ("plain", plain),
            ("NaN", one_nan),
            ("zeros", zeros),
            ("many", many),
            ("NaN alone", many * np.nan),
        ):
            for axis in (0, 1):
                for descending in (False, True):
                    with subtests.test(name, axis=axis, descending=descending):
                        result = parprims.sort(x, axis=axis, descending=descending, method="native")
                        order = parprims.argsort(x, axis=axis, descending=descending, method="array")
                        assert result.tobytes() == np.take_along_axis(x, order, axis=axis).tobytes()
        assert not any(stable)

    def test_long_float(self, backend, run, rng):
        # From a thousand elements on NumPy's faster sort is taken, unless -0 or NaN are there.
        for special in (1.0, -0.0, np.nan):
            keys = random(rng, (2000,), "float32")
            keys[rng.integers(0, 2000, 50)] = 0.0
            keys[rng.integers(0, 2000, 50)] = special
            keys[7] = -keys[8]
            for descending in (False, True):
                self.check_bits(backend, run, "auto", keys, descending=descending)


class TestArgsort(Sorting):
    def function(self, x, **options):
        return parprims.argsort(x, **options)

    def reference(self, x, axis, descending=False):
        return order(x, axis, descending)

    def result_dtype(self, _dtype):
        return "int64"

    def test_ranks_in_one_program(self, backend, run, method, rng):
        """The indices of indices, which a compiler may take for a sort that it can leave out."""
        keys = rng.integers(0, 9, 33).astype(np.int8)

        def ranks(x):
            indices = run(parprims.argsort, x, method=method)
            return run(parprims.argsort, backend.xp.astype(indices, x.dtype), method=method)

        if backend.name.startswith("jax"):
            import jax

            ranks = jax.jit(ranks)
        np.testing.assert_array_equal(backend.to_numpy(ranks(backend.asarray(keys))), order(order(keys, 0), 0))


class TestSortByKey(Sorting):
    def function(self, keys, *values, **options):
        return parprims.sort_by_key(keys, *values, **options)

    def complete(self, keys):
        positions = np.arange(keys.size).reshape(keys.shape)
        return keys, positions.astype(np.int16), positions * (1 - 2j)

    def make(self, rng, shape, dtype):
        (keys,) = super().make(rng, shape, dtype)
        return keys, random(rng, shape, "float64"), random(rng, shape, "int8"), random(rng, shape, "bool")

    def reference(self, keys, *values, axis, descending=False):
        indices = order(keys, axis, descending)
        return tuple(np.take_along_axis(one, indices, axis) for one in (keys, *values))

    def test_keys_alone(self, backend, run, method, rng):
        (keys,) = Sorting.make(self, rng, (4, 33), "float64")
        self.check(backend, run, method, (keys,))

    def test_shape_named(self, backend, rng):
        keys, values = (backend.asarray(random(rng, shape, "float32")) for shape in ((3, 4), (4,)))
        with pytest.raises(ValueError, match=r"values\[1\]"):
            parprims.sort_by_key(keys, keys, values)

    def test_no_value_named(self, backend, rng):
        keys = backend.asarray(random(rng, (3, 4), "float32"))
        with pytest.raises(TypeError, match=r"values\[0\]"):
            parprims.sort_by_key(keys, [1.0])


class TestBits:
    """The two ways to the bits of a float: reading them and computing them."""

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_computed(self, dtype, rng):
        from array_api_compat import numpy as xp

        width = 8 * np.dtype(dtype).itemsize
        x = np.concatenate([extremes(dtype), rng.integers(0, 2**width, 5000, dtype=f"uint{width}").view(dtype)])
        number = ~np.isnan(x)
        np.testing.assert_array_equal(computed_bits(xp, x)[number], x.view(f"int{width}")[number])
        assert np.isnan(computed_bits(xp, x)[~number].view(dtype)).all()

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float32", "float64"])
    def test_every_library(self, backend, dtype):
        x = extremes(dtype)
        x = x[x == x]
        np.testing.assert_array_equal(
            backend.to_numpy(bits(backend.xp, backend.asarray(x))), x.view(f"int{8 * x.dtype.itemsize}")
        )

    @pytest.mark.parametrize(
        "dtype", ["bool", "uint8", "int16", "float16", "int32", "uint32", "float32", "int64", "uint64", "float64"]
    )
    def test_stable_order_of_many(self, backend, run, rng, subtests, dtype):
        """From some thousand elements on NumPy finds a stable order by a sort that is not stable."""
        if backend.name.startswith("jax") or not backend.supports(dtype):
            pytest.skip("JAX has one way, for any number of elements")
        for shape, axis in (((2100,), 0), ((70, 40), 0), ((700, 3), 1), ((2500, 1), 1)):
            for most in (1, 30, 10**6):
                x = rng.integers(0, 2 if dtype == "bool" else min(most, 100 if dtype == "uint8" else 30000) + 1, shape)
                x = x.astype(dtype)
                if x.dtype.kind not in "biu":
                    x[rng.random(shape) < 0.2] *= -1  # of which some are zeros
                    x[rng.random(shape) < 0.1] = np.nan
                for descending in (False, True):
                    with subtests.test(shape=shape, axis=axis, most=most, descending=descending):
                        options = {"axis": axis, "descending": descending}
                        order = run(parprims.argsort, backend.asarray(x), method="native", **options)
                        keys = x.astype(np.float64) if x.dtype.kind not in "iu" else x
                        if descending:  # twice flipped, equals keep their order
                            flipped = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
                            expected = x.shape[axis] - 1 - np.flip(flipped, axis)
                        else:
                            expected = np.argsort(keys, axis=axis, kind="stable")
                        compare(backend, order, expected)

    @pytest.mark.parametrize("way", ["native", "array"])
    def test_other_byte_order(self, way, rng):
        x = random(rng, (50,), "float32")
        swapped = x.astype(x.dtype.newbyteorder())
        np.testing.assert_array_equal(parprims.argsort(swapped, method=way), order(x, 0))

    def test_bfloat16_in_numpy(self, rng):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        x = rng.permutation(np.tile(extremes("bfloat16"), 3))
        assert x.dtype == ml_dtypes.bfloat16
        for method in ("native", "array"):
            np.testing.assert_array_equal(parprims.argsort(x, method=method), order(x, 0))


class TestGradient:
    """Derivatives move back to where their elements came from, those of equal elements in their order."""

    methods: ClassVar = ("native", "array")
    KEYS = np.array([[3.0, -0.0, 2.0], [0.0, np.nan, -1.0], [3.0, 0.0, 7.0], [-np.inf, 5.0, -1.0]])

    def expected(self, weights, axis, descending):
        """Return the derivative of sum(weights * sorted), by the reference's indices."""
        found = np.empty_like(weights)
        np.put_along_axis(found, order(self.KEYS, axis, descending), weights, axis)
        return found

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("axis", [0, -1])
    def test_jax(self, method, axis, descending, rng):
        jax = pytest.importorskip("jax")
        # By method array one case is programs. The others are operations, which are the same for all of them.
        operations = method == "array" and (axis, descending) != (-1, False)
        program = jax.jit if method == "array" else lambda function: function
        with jax.enable_x64(True), jax.disable_jit(operations):
            options = {"axis": axis, "descending": descending, "method": method}
            # Keys of 16 bits are few passes to compile. Whole numbers as weights are exact in them.
            by_keys, by_values, values = (rng.integers(-9, 10, self.KEYS.shape).astype(float) for _ in range(3))
            expected = self.expected(by_keys, axis, descending), self.expected(by_values, axis, descending)

            def sort(keys):
                return (parprims.sort(keys, **options) * by_keys).sum()

            def loss(keys, values):
                y, count, z = parprims.sort_by_key(keys, numbers, values, **options)
                assert (count.dtype, count.shape) == (numbers.dtype, numbers.shape)
                return (jax.numpy.where(jax.numpy.isnan(y), 0, y) * by_keys).sum() + (z * by_values).sum()

            keys, values = jax.numpy.asarray(self.KEYS, jax.numpy.float16), jax.numpy.asarray(values)
            numbers = jax.numpy.arange(keys.size).reshape(keys.shape)
            by_sort = program(jax.grad(sort))
            np.testing.assert_array_equal(by_sort(keys), expected[0])
            np.testing.assert_array_equal(jax.jit(jax.grad(loss, 1))(keys, values), expected[1])
            # Forward, and of second order: sum(sorted ** 3 / 6) has the elements for second derivatives.
            index = order(self.KEYS, axis, descending)
            _, moved = jax.jvp(lambda x: parprims.sort(x, **options), (keys,), (values.astype(keys.dtype),))
            np.testing.assert_array_equal(moved, np.take_along_axis(np.asarray(values), index, axis))
            first = jax.grad(lambda x: (parprims.sort_by_key(keys, x, **options)[1] ** 3 / 6).sum())
            second = program(jax.grad(lambda x: first(x).sum()))
            np.testing.assert_allclose(second(values), values, rtol=1e-14)
            batch = jax.numpy.stack([keys, keys[::-1]])
            each = program(jax.vmap(jax.grad(sort)))(batch)
            np.testing.assert_array_equal(each, np.stack([by_sort(x) for x in batch]))

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("axis", [0, -1])
    def test_torch(self, method, axis, descending, rng):
        torch = pytest.importorskip("torch")
        options = {"axis": axis, "descending": descending, "method": method}
        by_keys, by_values, values = (torch.asarray(rng.standard_normal(self.KEYS.shape)) for _ in range(3))
        keys = torch.tensor(self.KEYS, requires_grad=True)
        (parprims.sort(keys, **options) * by_keys).sum().backward()
        np.testing.assert_array_equal(keys.grad, self.expected(by_keys.numpy(), axis, descending))
        values.requires_grad_(True)
        numbers = torch.arange(keys.numel()).reshape(keys.shape)
        _, moved, z = parprims.sort_by_key(keys, numbers, values, **options)
        assert not moved.requires_grad
        (g,) = torch.autograd.grad((z * by_values).sum(), values)
        np.testing.assert_array_equal(g, self.expected(by_values.numpy(), axis, descending))
        (first,) = torch.autograd.grad(
            (parprims.sort_by_key(numbers, values, **options)[1] ** 3).sum(), values, create_graph=True
        )
        (second,) = torch.autograd.grad(first.sum(), values)
        np.testing.assert_allclose(second, 6 * values.detach().numpy(), rtol=1e-14)

    def test_indices_have_none(self):
        torch = pytest.importorskip("torch")
        for method in ("auto", "native", "array"):
            x = torch.tensor(self.KEYS, requires_grad=True)
            assert not parprims.argsort(x, method=method).requires_grad

    def test_indices_have_none_on_jax(self):
        jax = pytest.importorskip("jax")
        for method in ("auto", "native", "array"):
            g = jax.grad(lambda x, method=method: (x[0, parprims.argsort(x, method=method)[0]] * self.KEYS[2]).sum())
            np.testing.assert_array_equal(g(jax.numpy.asarray(self.KEYS, jax.numpy.float16))[0], [7.0, 3.0, 0.0])
