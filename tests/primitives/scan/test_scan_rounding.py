"""Rounding of the kernel of scans, and of the derivatives of recurrences."""

import numpy as np
import pytest

import parprims
from parprims._primitives.recurrence import public as public_recurrence
from tests.primitives.scan import test_scan_kernel
from tests.primitives.scan.test_scan import recur, recurrence_bound, wide
from tests.support.contract import compare, eps, random, reversed_view, strided, transposed, unaligned

change = test_scan_kernel.change


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
    @pytest.mark.parametrize("tuning", [{"serial_parts": 1}, {}])
    def test_blocks_that_go_along(self, gpu, rng, change, dtype, tuning, subtests):
        change(serial_lines=1, **tuning)
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
            found = public_recurrence.adjoint(gpu.xp, a, g, x, axis, reverse, "kernel")
        assert [call.method for call in calls] == ["kernel"]
        return found

    def check(self, gpu, a, g, x, axis, reverse, a_values=None, x_values=None):
        by_b, by_a = self.adjoint(gpu, a, g, x, axis, reverse)
        alone, nothing = public_recurrence.adjoint(
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
