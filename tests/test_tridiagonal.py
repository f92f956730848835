"""Tridiagonal solves against sequential elimination and dense solves."""

import functools
import importlib
import math
from typing import Any, ClassVar

import numpy as np
import pytest
from array_api_compat import is_jax_array

import parprims
from parprims import _tridiagonal_native, solve_tridiagonal
from tests.contract import Contract, compare, eps, random, within


def thomas(lower, diag, upper, rhs):
    """Solve along the first axis by eliminating downwards and substituting upwards, in long double."""
    wide = np.result_type(np.longdouble, *(x.dtype if x.dtype.kind == "c" else np.float32 for x in (diag, rhs)))
    lower, diag, upper, rhs = (x.astype(wide) for x in np.broadcast_arrays(lower, diag, upper, rhs))
    n = len(diag)
    for i in range(1, n):
        factor = lower[i] / diag[i - 1]
        diag[i] -= factor * upper[i - 1]
        rhs[i] -= factor * rhs[i - 1]
    for i in range(n - 1, -1, -1):
        if i < n - 1:
            rhs[i] -= upper[i] * rhs[i + 1]
        rhs[i] /= diag[i]
    return rhs


def dense(lower, diag, upper, *, periodic):
    """Return the matrix of one system in double precision, entry by entry."""
    n = len(diag)
    a = np.zeros((n, n), np.result_type(diag.dtype, np.float64) if diag.dtype.kind == "c" else np.float64)
    for i in range(n):
        a[i, i] += diag[i]
        if i > 0 or periodic:
            a[i, (i - 1) % n] += lower[i]
        if i < n - 1 or periodic:
            a[i, (i + 1) % n] += upper[i]
    return a


def dominant(rng, shape, dtype):
    """Return random systems whose diagonal is at least 1.25 times the sum of the other two entries of its row."""
    wide = dtype if dtype.startswith("complex") else "float64"
    lower, upper, sign, rhs = (random(rng, shape, wide) for _ in range(4))
    diag = sign / abs(sign) * ((abs(lower) + abs(upper)) * (1.3 + rng.random(shape)) + 0.1)
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    return tuple(x.astype(dtype) for x in (lower, diag, upper, rhs))


def dominant_bound(lower, diag, upper, x, axis):
    """Return the error allowed on dominant systems.

    Every step commits a few rounding errors relative to max |x| in rows of unit diagonal, whose inverse has a norm
    of at most 1 / (1 - t) if the other entries of a row sum to at most t. 16-bit floats are rounded once more.
    """
    name = diag.dtype.name
    working = "float32" if name in ("float16", "bfloat16") else name
    lower, diag, upper = (x.astype(complex) for x in (lower, diag, upper))
    t = np.max((abs(lower) + abs(upper)) / abs(diag), axis=axis, keepdims=True, initial=0)
    size = np.max(abs(x), axis=axis, keepdims=True, initial=0).astype(float)
    steps = max(1, math.ceil(math.log2(max(1, diag.shape[axis]))))
    bound = 8 * steps * eps(working) * size / (1 - t)
    return bound + (eps(name) * abs(x).astype(float) if working != name else 0)


def hostile(rng, shape, dtype, *, wild):
    """Return small numbers, many of them zero, and if wild infinities, NaN and the ends of the dtype's range."""
    kind = {"complex64": "float32", "complex128": "float64", "bfloat16": "float32"}.get(dtype, dtype)
    info = np.finfo(kind)
    tame = (0.0, 0.0, -0.0, 1.0, 1.0, -1.0, 2.0, 3.0, 0.5)
    few = (np.inf, -np.inf, np.nan, info.max, -info.max / 2, info.smallest_subnormal, info.tiny, info.max**0.5)
    pool = np.asarray([*(tame * 2), *(few if wild else ())], kind)
    x = rng.choice(pool, shape)
    if dtype.startswith("complex"):
        x = x.astype(dtype)
        x.imag = rng.choice(pool, shape)
    return x.astype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)


def check_error_and_status(inputs, x, error, status, *, periodic, transpose, flushes):
    """Assert that error and status of small systems (systems, n) are what the docstring says, in long double."""
    wide = np.clongdouble if inputs[0].dtype.kind == "c" else np.longdouble
    lower, diag, upper, rhs = (y.astype(wide) for y in inputs)
    count, n = rhs.shape
    matrix, size = np.zeros((count, n, n), wide), np.zeros((count, n, n), np.longdouble)
    for i in range(n):
        for j, y, exists in (
            (i, diag, True),
            ((i - 1) % n, lower, i > 0 or periodic),
            ((i + 1) % n, upper, i < n - 1 or periodic),
        ):
            if exists:
                matrix[:, i, j] += y[:, i]
                size[:, i, j] += abs(y[:, i])
    if transpose:
        matrix, size = (np.swapaxes(y, 1, 2) for y in (matrix, size))
    none = np.isnan(x).any(axis=1)
    np.testing.assert_array_equal(np.isnan(x).all(axis=1), none)  # all of a solution or nothing
    np.testing.assert_array_equal(np.isfinite(x).all(axis=1), ~none)
    read = np.isfinite(size).all(axis=(1, 2)) & np.isfinite(rhs).all(axis=1)
    assert np.all(none[~read])
    np.testing.assert_array_equal(np.isinf(error), none)
    np.testing.assert_array_equal(np.isfinite(error), ~none)
    precision = eps(inputs[0].dtype.name)
    np.testing.assert_array_equal(status, np.where(none, 1, 2 * (error > precision**0.5)))
    matrix, size, rhs, xs = (y[~none] for y in (matrix, size, rhs, x.astype(wide)))
    residual = abs(rhs - (matrix @ xs[..., None])[..., 0])
    size = (size @ abs(xs)[..., None])[..., 0] + abs(rhs)
    ratios = residual / np.where(size == 0, 1, size)
    if flushes:  # XLA and CuPy take subnormal numbers for zero
        assert np.all(error[~none] <= 1 + 4 * precision)
        return
    np.testing.assert_allclose(
        error[~none], ratios.max(axis=1).astype(float), rtol=1e-4, atol=20 * eps(error.dtype.name)
    )


class Systems(Contract):
    """The laws, on diagonally dominant systems."""

    methods: ClassVar = ("kernel", "native", "array")
    dtypes: ClassVar = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    compiled_lengths: ClassVar = (0, 1, 2, 3, 33)

    def function(self, *arrays, method="auto", **options):
        def solve(*arrays):
            return solve_tridiagonal(*arrays, method=method, **options)

        # JAX compiles every operation for every shape: one program for all of a call takes a third of the time.
        if is_jax_array(arrays[-1]) and is_jax_array(arrays[0]):
            return importlib.import_module("jax").jit(solve)(*arrays)
        return solve(*arrays)

    @pytest.fixture(autouse=True)
    def _compile_less(self, request):
        """Save JAX the time of compiling what was tested under another name, and of optimising it."""
        if "backend" not in request.fixturenames or request.getfixturevalue("backend").name != "jax":
            yield
            return
        named = request.function.__name__ == "test_one_system_without_jit"
        if "method" in request.fixturenames and request.getfixturevalue("method") == "auto" and not named:
            pytest.skip("auto takes native here, which is tested by name")
        if request.function.__name__ == "test_view":
            pytest.skip("JAX has no views")
        if request.function.__name__ == "test_axis":
            pytest.skip("test_any_shape tests every axis")
        self.dtypes, self.many = ("bfloat16", "float32", "complex128"), 133
        config = importlib.import_module("jax").config
        config.update("jax_disable_most_optimizations", True)
        yield
        config.update("jax_disable_most_optimizations", False)

    def make(self, rng, shape, dtype):
        return dominant(rng, shape, dtype)

    def test_length(self, backend, run, method, rng, subtests):
        for n in self.compiled_lengths if backend.name.startswith("jax") else self.lengths:
            with subtests.test(n=n):
                self.check(backend, run, method, self.make(rng, (2, n), "float64"))


class TestSolveTridiagonal(Systems):
    lengths: ClassVar = (*range(71), 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)

    def reference(self, *inputs, axis, **_):
        return np.moveaxis(thomas(*(np.moveaxis(x, axis, 0) for x in inputs)), 0, axis)

    def bound(self, lower, diag, upper, rhs, axis, **_):
        return dominant_bound(lower, diag, upper, self.reference(lower, diag, upper, rhs, axis=axis), axis)

    def test_residual_is_small(self, backend, run, method, rng, subtests):
        """Component by component, |A x - b| <= c eps ceil(log2 n) (|A| |x| + |b|)."""
        for dtype in ("float32", "complex128"):
            for n in (1, 2, 33):
                with subtests.test(dtype=dtype, n=n):
                    inputs = self.make(rng, (3, n), dtype)
                    arrays = (backend.asarray(x) for x in inputs)
                    x, error = run(self.function, *arrays, method=method, return_residual=True)
                    expected = backward_error(*inputs, backend.to_numpy(x))
                    assert np.all(expected <= 4 * max(1, math.ceil(math.log2(n))) * eps(dtype))
                    compare(backend, error, expected, 4 * eps(dtype), real_dtype(dtype))

    def test_ignored_corners(self, backend, run, method, rng, subtests):
        for garbage in (np.nan, 1e300):
            for axis in (0, 1):
                with subtests.test(garbage=garbage, axis=axis):
                    inputs = self.make(rng, (7, 5), "float64")
                    spoilt = tuple(x.copy() for x in inputs)
                    np.moveaxis(spoilt[0], axis, 0)[0] = garbage
                    np.moveaxis(spoilt[2], axis, 0)[-1] = garbage
                    arrays = tuple(backend.asarray(x) for x in spoilt)
                    x, error = run(self.function, *arrays, axis=axis, method=method, return_residual=True)
                    compare(backend, x, self.reference(*inputs, axis=axis), self.bound(*inputs, axis=axis))
                    assert np.all(backend.to_numpy(error) < 1e-14)

    def test_batches_broadcast(self, backend, run, method, rng, subtests):
        lower, diag, upper, rhs = self.make(rng, (3, 2, 9), "float64")
        for one in (
            (lower[:, :1], diag, upper[0], rhs),
            (lower[0, 0], diag[0, 0], upper[0, 0], rhs[0, 0]),
            (lower[:1, :1], diag[:1, :1], upper[:1, :1], rhs),
            (lower[:, :1], diag[:, :1], upper[:, :1], rhs),
            (lower, diag, upper, rhs[0]),
            (lower, diag, upper, rhs[0, 0]),
        )[:: 2 if backend.name.startswith("jax") else 1]:
            with subtests.test(shapes=[x.shape for x in one]):
                inputs = dominate(*one)
                x = run(self.function, *(backend.asarray(y) for y in inputs), method=method)
                compare(backend, x, self.reference(*np.broadcast_arrays(*inputs), axis=-1), 1e-13, "float64")

    def test_several_right_hand_sides(self, backend, run, method, rng, subtests):
        """The axis that rhs has more than the coefficients is its last, whatever the lengths."""
        for shape, axis, rhs_shape in (
            ((6,), -1, (6, 4)),
            ((6,), 0, (6, 6)),
            ((6,), 0, (6, 1)),
            ((6,), 0, (6, 0)),
            ((6, 3), 0, (6, 3, 2)),
            ((3, 6), -1, (3, 6, 2)),
            ((3, 6), 1, (1, 6, 2)),
            ((1, 6), -1, (3, 6, 2)),
        )[:: 3 if backend.name.startswith("jax") else 1]:
            with subtests.test(shape=shape, axis=axis, rhs=rhs_shape):
                lower, diag, upper, _ = self.make(rng, shape, "float64")
                rhs = random(rng, rhs_shape, "float64")
                arrays = tuple(backend.asarray(x) for x in (lower, diag, upper, rhs))
                x, error = run(self.function, *arrays, axis=axis, method=method, return_residual=True)
                inputs = (*(y[..., None] for y in (lower, diag, upper)), rhs)
                expected = self.reference(*np.broadcast_arrays(*inputs), axis=axis % len(shape))
                compare(backend, x, expected, 1e-13, "float64")
                assert error.shape == expected.shape[: axis % len(shape)] + expected.shape[axis % len(shape) + 1 :]
                assert np.all(backend.to_numpy(error) < 1e-14)

    def test_constant_coefficients(self, backend, run, method, rng, subtests):
        """A length of 1 along the axis, or no dimension, stands for the same coefficient in every row."""
        for shape, axis, shapes in (
            ((5, 9), -1, ((5, 1), (1,), (9,))),
            ((5, 9), 0, ((5, 9), (1, 9), (1, 9))),
            ((5, 9), 1, ((), (5, 1), ())),
            ((9,), 0, ((), (9,), ())),
            ((2, 5, 9), 1, ((), (), ())),
            ((5, 1), 1, ((5, 1), (5, 1), ())),
        )[:: 3 if backend.name.startswith("jax") else 1]:
            for transpose in (False, True):
                with subtests.test(shape=shape, axis=axis, shapes=shapes, transpose=transpose):
                    lower, diag, upper = (random(rng, one, "float64") for one in shapes)
                    inputs = dominate(lower, diag, upper, random(rng, shape, "float64"))
                    arrays = tuple(backend.asarray(np.asarray(x)) for x in inputs)
                    x = run(self.function, *arrays, axis=axis, method=method, transpose=transpose)
                    whole = [np.broadcast_to(one, shape) for one in inputs]
                    if transpose:
                        whole[0], whole[2] = np.roll(whole[2], 1, axis), np.roll(whole[0], -1, axis)
                    compare(backend, x, self.reference(*whole, axis=axis), 1e-13, "float64")

    def test_numbers(self, backend, run, method, rng):
        for dtype in ("float32", "complex128"):
            rhs = random(rng, (3, 8), dtype)
            x = run(self.function, -1, 2.5, -0.75, backend.asarray(rhs), method=method)
            whole = [np.full((3, 8), value, dtype) for value in (-1, 2.5, -0.75)]
            compare(backend, x, self.reference(*whole, rhs, axis=-1), 64 * eps(dtype), dtype)
        with pytest.raises(TypeError, match="diag"):
            solve_tridiagonal(1.0, 2j, 1.0, backend.asarray(np.ones(3)))

    def test_transposed(self, backend, run, method, rng, subtests):
        for n in (1, 2, 3, 8):
            for axis in (0, 1):
                with subtests.test(n=n, axis=axis):
                    inputs = [np.moveaxis(x, 1, axis) for x in self.make(rng, (3, n), "complex128")]
                    inputs[0], inputs[2] = (0.4 * x for x in (inputs[0], inputs[2]))
                    arrays = tuple(backend.asarray(x) for x in inputs)
                    x, error = run(
                        self.function, *arrays, axis=axis, method=method, transpose=True, return_residual=True
                    )
                    lower, diag, upper, rhs = (np.moveaxis(y, axis, 1) for y in inputs)
                    expected = [
                        np.linalg.solve(dense(lower[i], diag[i], upper[i], periodic=False).T, rhs[i]) for i in range(3)
                    ]
                    compare(backend, x, np.moveaxis(np.stack(expected), 1, axis), 1e-12, "complex128")
                    assert np.all(backend.to_numpy(error) < 1e-14)

    def test_unknown_pivot_named(self, backend):
        x = backend.asarray(np.ones(3))
        with pytest.raises(ValueError, match="pivot must be one of auto, partial, none, got 'full'"):
            solve_tridiagonal(x, x, x, x, pivot="full")

    def test_status(self, backend, run, method):
        """Regular, singular, not finite; several right-hand sides have a status each."""
        diag = np.asarray([[0.0, 0], [1, 1], [np.nan, 1]])
        ones, rhs = np.ones((3, 2)), np.ones((3, 2, 2))
        arrays = (backend.asarray(x) for x in (ones, diag, ones, rhs))
        x, status = run(self.function, *arrays, method=method, return_status=True)
        np.testing.assert_array_equal(backend.to_numpy(status), [[0, 0], [1, 1], [1, 1]])
        np.testing.assert_array_equal(np.isnan(backend.to_numpy(x))[..., 0, :], backend.to_numpy(status) == 1)

    def test_every_length(self, backend, run, method, rng):
        """From 1 to 600, random systems, which need exchanges of rows."""
        if backend.name.startswith("jax") or (method != "kernel" and backend.name not in ("numpy", "emulated")):
            pytest.skip("would compile 600 programs, or run the same operations as NumPy")
        for n in range(1, 601):
            inputs = tuple(random(rng, (2, n), "float64") for _ in range(4))
            x = run(self.function, *(backend.asarray(y) for y in inputs), method=method)
            expected, error = gtsv(*inputs), backward_error(*inputs, backend.to_numpy(x))
            assert np.all(error <= 10 * np.maximum(backward_error(*inputs, expected), eps("float64"))), n

    def test_batch_equals_single(self, backend, run, method, rng, subtests):
        """To the bit, whether a system is alone or in a batch, and wherever it stands there."""
        if backend.name.startswith("jax"):
            pytest.skip("XLA compiles each shape to other instructions")
        for dtype in ("float32", "float64", "complex64", "complex128"):
            for n in (1, 5, 64, 129):
                with subtests.test(dtype=dtype, n=n):
                    if backend.name == "torch" and dtype.startswith("complex"):
                        pytest.skip("PyTorch's complex products depend on where in an array they stand")
                    inputs = tuple(random(rng, (7, n), dtype) for _ in range(4))
                    whole = backend.to_numpy(run(self.function, *(backend.asarray(x) for x in inputs), method=method))
                    columns = (backend.asarray(np.ascontiguousarray(x.T)) for x in inputs)
                    across = backend.to_numpy(run(self.function, *columns, axis=0, method=method)).T
                    assert np.ascontiguousarray(across).tobytes() == whole.tobytes()
                    for i in range(7):
                        one = (backend.asarray(x[i]) for x in inputs)
                        single = backend.to_numpy(run(self.function, *one, method=method))
                        assert single.tobytes() == whole[i].tobytes()

    def test_backward_euler(self, backend, run, method, rng, subtests):
        """M systems of N unknowns in any number of steps, with constant coefficients, by the loop and one call."""
        cases = ((1, 128, 2, 1.0), (3, 100, 5, 0.25), (4, 7, 3, 10.0))
        for m, n, steps, size in cases[:1] if backend.name.startswith("jax") else cases:
            with subtests.test(m=m, n=n, steps=steps):
                start = np.ones((m, n)) if m == 1 else random(rng, (m, n), "float64")
                x, expected = backend.asarray(start), start
                for _ in range(steps):
                    x = run(self.function, -1.0, 2 + size, -1.0, size * x, method=method)
                    rows = (np.broadcast_to(y, (m, n)).T for y in (-1.0, 2 + size, -1.0, size * expected))
                    expected = thomas(*(y.astype(float) for y in rows)).T
                compare(backend, x, expected, 1e-13, "float64")

    def test_no_rows(self, backend, run, method):
        arrays = (backend.asarray(np.ones((2, 0))) for _ in range(4))
        x, error = run(self.function, *arrays, method=method, return_residual=True)
        compare(backend, x, np.ones((2, 0)), 0, "float64")
        compare(backend, error, np.zeros(2), 0, "float64")

    def test_dtypes_promote(self, backend, run, method, rng):
        lower, diag, upper, rhs = self.make(rng, (9,), "float32")
        for changed, dtype in ((rhs.astype("float64"), "float64"), (rhs.astype("complex64"), "complex64")):
            arrays = (backend.asarray(x) for x in (lower, diag, upper, changed))
            x = run(self.function, *arrays, method=method)
            compare(backend, x, self.reference(lower, diag, upper, changed, axis=-1), 1e-5, dtype)

    def test_sixteen_bits_are_computed_in_thirty_two(self, backend, run, rng):
        if not backend.supports("float16"):
            pytest.skip("no float16")
        inputs = self.make(rng, (200,), "float16")
        arrays = tuple(backend.asarray(x) for x in inputs)
        x, error = run(self.function, *arrays, method="array", return_residual=True)
        exact = self.reference(*inputs, axis=-1).astype(np.float64)
        # One rounding to nearest: half a unit in the last place, and what float32 leaves.
        compare(backend, x, exact, np.spacing(abs(exact).astype(np.float16)) * 0.51 + 1e-5, "float16")
        if backend.name == "jax-cuda":
            # XLA may keep more precision than asked for: it sees x before the rounding.
            assert float(error) <= backward_error(*inputs, backend.to_numpy(x)) + 1e-6
        else:
            compare(backend, error, backward_error(*inputs, backend.to_numpy(x)), 1e-6, "float32")

    def test_pivot_of_zero(self, backend, run, method):
        """[[0, 1], [1, 0]] is regular, [[1, 1], [1, 1]] is not: what cannot be eliminated is NaN, and only that."""
        lower, diag, upper = np.ones((3, 2)), np.asarray([[0.0, 0], [1, 1], [3, 3]]), np.ones((3, 2))
        rhs = np.asarray([[1.0, 2], [1, 2], [4, 4]])
        arrays = tuple(backend.asarray(x) for x in (lower, diag, upper, rhs))
        x, error = run(self.function, *arrays, method=method, return_residual=True)
        x, error = backend.to_numpy(x), backend.to_numpy(error)
        assert np.all(np.isnan(x[1]))
        assert error[1] == np.inf
        np.testing.assert_allclose(x[2], [1, 1], rtol=1e-15)
        assert error[2] < 1e-15
        np.testing.assert_array_equal(x[0], [2, 1])
        assert error[0] == 0
        if method == "array":
            x, error = run(self.function, *arrays, method=method, pivot="none", return_residual=True)
            assert np.all(np.isnan(backend.to_numpy(x)[0]))
            assert backend.to_numpy(error)[0] == np.inf

    def test_zero_matrix(self, backend, run, method):
        arrays = (backend.asarray(np.zeros(5)) for _ in range(4))
        x, error = run(self.function, *arrays, method=method, return_residual=True)
        assert np.all(np.isnan(backend.to_numpy(x)))
        assert float(error) == np.inf

    def test_zero_right_hand_side(self, backend, run, method, rng):
        inputs = (*self.make(rng, (5,), "float64")[:3], np.zeros(5))
        arrays = (backend.asarray(x) for x in inputs)
        x, error = run(self.function, *arrays, method=method, return_residual=True)
        np.testing.assert_array_equal(backend.to_numpy(x), 0)
        assert float(error) == 0

    def test_not_finite_stays_in_its_system(self, backend, run, method, rng, subtests):
        for position, value in ((1, np.nan), (3, np.nan), (3, np.inf)):
            with subtests.test(position=position, value=value):
                inputs = self.make(rng, (5, 6), "float64")
                expected = self.reference(*inputs, axis=-1)
                inputs[position][2, 3] = value
                expected[2] = np.nan
                arrays = (backend.asarray(x) for x in inputs)
                compare(backend, run(self.function, *arrays, method=method), expected, 1e-13)

    def test_residual_tells_what_was_lost(self, backend, run, method, rng):
        """With a tiny diagonal the elimination without row exchange is unstable, and says so when asked."""
        lower, upper, rhs = (random(rng, (20, 65), "float64") for _ in range(3))
        diag = 1e-9 * random(rng, (20, 65), "float64")
        arrays = tuple(backend.asarray(x) for x in (lower, diag, upper, rhs))
        gtsv_error = backward_error(lower, diag, upper, rhs, gtsv(lower, diag, upper, rhs))
        for pivot in ("auto", "partial", "none"):
            options = {"method": method, "pivot": pivot, "return_residual": True, "return_status": True}
            x, error, status = (backend.to_numpy(one) for one in run(self.function, *arrays, **options))
            expected = backward_error(lower, diag, upper, rhs, x)
            np.testing.assert_allclose(error, expected, rtol=1e-6, atol=1e-14)
            assert status.dtype == np.int32
            if pivot == "none" and method == "array":
                assert np.median(expected) > 0.1
                np.testing.assert_array_equal(status, np.where(np.isinf(expected), 1, 2 * (expected > 2.0**-26)))
            elif pivot != "none":
                allowed = 1e-11 if method == "native" else 1e-14
                if method in ("auto", "kernel") and not backend.cuda:  # the kernel for CPUs eliminates as LAPACK does
                    allowed = np.maximum(allowed, gtsv_error)
                assert np.all(expected <= allowed)
                assert not np.any(status)

    def test_one_system_without_jit(self, backend, run, method, rng):
        inputs = self.make(rng, (65,), "float64")
        if method == "native":
            inputs[1][:] *= 1e-9
        arrays = tuple(backend.asarray(x) for x in inputs)
        with parprims.explain() as calls:
            x, error = run(solve_tridiagonal, *arrays, method=method, return_residual=True)
        # cuSPARSE, which serves here, exchanges rows less carefully than LAPACK: 1.1e-11 was seen on an H200.
        allowed = 1e-9 if backend.name == "jax-cuda" and method == "native" else 1e-13
        assert backward_error(*inputs, backend.to_numpy(x)) < allowed
        assert float(error) < allowed
        if method == "auto":
            on_cpu = "native" if backend.name in ("numpy", "emulated", "torch", "jax") else "array"
            assert calls[0].method == ("kernel" if backend.name in ("cupy", "torch-cuda", "jax-cuda") else on_cpu)

    def test_definite_and_m_matrices(self, backend, run, method, rng, subtests):
        """Matrices of the stable classes that are not diagonally dominant by rows."""
        n = 33
        scale = np.exp2(rng.integers(-20, 20, n))
        definite = (
            -np.roll(scale, 1) * scale,
            2.01 * scale * scale,
            -np.roll(scale, -1) * scale,
            random(rng, (n,), "float64") * scale,
        )
        m_matrix = (-np.roll(scale, 1), 2.01 * scale, -np.roll(scale, -1), random(rng, (n,), "float64"))
        for name, inputs in (("definite", definite), ("M", m_matrix)):
            with subtests.test(name):
                x = run(self.function, *(backend.asarray(y) for y in inputs), method=method)
                assert np.max(backward_error(*inputs, backend.to_numpy(x))) < 1e-14

    def test_diffusion(self, backend, run, method, rng, subtests):
        """Backward Euler: (2 + L) x[i] - x[i-1] - x[i+1] = L times the old x[i], zero beyond both ends."""
        cases = [(n, np.ones(n), 1.0) for n in (128, 1, 2, 32, 100, 1000)]
        cases.insert(1, (32, rng.random((50, 32)), rng.random((50, 1)) + 0.5))
        if backend.name.startswith("jax"):
            cases = cases[:2]
        for n, start, size in cases:
            with subtests.test(shape=start.shape):
                x, expected = backend.asarray(start), start
                ones = np.ones((*np.shape(size)[:1], n))
                coefficients = (-ones, (2 + size) * ones, -ones)
                arrays = tuple(backend.asarray(y) for y in coefficients)
                for _ in range(2):
                    x = run(self.function, *arrays, backend.asarray(np.asarray(size)) * x, method=method)
                    columns = (np.moveaxis(y, -1, 0) for y in (*coefficients, size * expected))
                    expected = np.moveaxis(thomas(*columns), 0, -1)
                compare(backend, x, expected, 1e-14, "float64")

    def test_shapes_named(self, backend, subtests):
        ones = {n: backend.asarray(np.ones(n)) for n in (1, 2, 3, 4)}
        a, b = backend.asarray(np.ones((2, 4))), backend.asarray(np.ones((3, 4)))
        scalar, deep = backend.asarray(np.ones(())), backend.asarray(np.ones((2, 2, 4, 1)))
        for name, arrays, axis in (
            ("lower", (ones[3], ones[4], ones[4], ones[4]), -1),
            ("upper", (ones[3], ones[1], ones[4], ones[3]), -1),
            ("rhs", (ones[1], ones[4], ones[1], ones[1]), -1),
            ("upper", (ones[4], ones[4], ones[3], ones[4]), -1),
            ("rhs", (ones[4], ones[4], ones[4], ones[3]), -1),
            ("rhs", (ones[4], ones[4], ones[4], a), -1),
            ("rhs", (a, a, a, deep), -1),
            ("rhs", (a, a, a, b), -1),
            ("lower, diag and upper", (a, b, a, a), -1),
            ("diag", (a, ones[4], a, a), 0),
            ("diag", (ones[4], a, a, a), 0),
            ("rhs", (ones[4], ones[4], ones[4], scalar), -1),
        ):
            with subtests.test(shapes=[x.shape for x in arrays]), pytest.raises(ValueError, match=name):
                solve_tridiagonal(*arrays, axis=axis)

    def test_last_axis_is_named_where_it_misleads(self, backend):
        four, rows = backend.asarray(np.ones(4)), backend.asarray(np.ones((3, 4)))
        with pytest.raises(ValueError, match=r"rhs .*3, 4.* last axis of rhs counts right-hand sides"):
            solve_tridiagonal(four, four, four, rows)

    def test_integers_named(self, backend):
        for index, name in enumerate(("lower", "diag", "upper", "rhs")):
            arrays = [backend.asarray(np.ones(4)) for _ in range(4)]
            arrays[index] = backend.asarray(np.ones(4, np.int32))
            with pytest.raises(TypeError, match=name):
                solve_tridiagonal(*arrays)

    def test_native_refusals(self, backend, monkeypatch):
        x = backend.asarray(np.ones(4, np.float32))
        offered = parprims.methods(solve_tridiagonal, x, 3 * x, x, x)
        assert list(offered) == ["kernel", "native", "array"]
        assert offered["array"] is None
        if backend.name in ("numpy", "emulated", "torch", "jax", "jax-cuda"):
            assert offered["native"] is None
        else:
            assert "no tridiagonal solve" in offered["native"]
        if backend.name in ("numpy", "emulated"):
            wide = x.astype(np.longdouble)
            assert "LAPACK" in parprims.methods(solve_tridiagonal, wide, 3 * wide, wide, wide)["native"]
            monkeypatch.setattr(_tridiagonal_native, "_has_scipy", lambda: False)
            assert "SciPy" in parprims.methods(solve_tridiagonal, x, 3 * x, x, x)["native"]


class TestErrorAndStatus:
    """What return_residual and return_status promise, whatever the numbers."""

    methods: ClassVar = ("kernel", "native", "array")
    function = Systems.function

    def test_error_and_status_are_as_promised(self, backend, run, method):
        """Small systems, singular ones too, of zeros, infinities, NaN and the ends of the range."""
        if backend.name.startswith("jax") and method == "auto":
            pytest.skip("auto takes what is tested by name")
        rng = np.random.default_rng(14)
        seen = set()
        dtypes = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
        dtypes = [one for one in dtypes if backend.supports(one)]
        for case in range(1, 3) if backend.name.startswith("jax") else range(60):
            n, dtype, pivot = 1 + case % 6, dtypes[case % len(dtypes)], ("auto", "partial", "none")[case // 2 % 3]
            options = {"periodic": bool(rng.integers(2)), "transpose": bool(rng.integers(2))}
            if method in ("kernel", "native") and dtype in ("float16", "bfloat16"):
                dtype = "float32"
            inputs = tuple(hostile(rng, (16, n), dtype, wild=case % 4 < 2) for _ in range(4))
            if case % 3 == 0:
                inputs[1][...] += np.asarray(3, inputs[1].dtype)
            inputs[3][:3] *= np.asarray(0, inputs[3].dtype)
            arrays = (backend.asarray(x) for x in inputs)
            results = run(
                self.function, *arrays, method=method, pivot=pivot, return_residual=True, return_status=True, **options
            )
            x, error, status = map(backend.to_numpy, results)
            seen |= {*status.tolist()}
            flushes = backend.name.startswith("jax") or backend.name == "cupy"
            check_error_and_status(inputs, x, error, status, flushes=flushes, **options)
        assert seen == {0, 1, 2} or backend.name.startswith("jax")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_sixteen_bits(self, backend, run, rng, dtype):
        """Rounded to few bits, a solution still is one; beyond the largest number there is none."""
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        n = 5 if backend.name.startswith("jax") else 65
        arrays = tuple(backend.asarray(x) for x in dominant(rng, (20, n), dtype))
        _, status = run(self.function, *arrays, method="array", pivot="none", return_status=True)
        assert not np.any(backend.to_numpy(status))
        if dtype == "float16":
            diag, rhs = np.asarray([[1, 1, 1], [1, 2.0**-14, 1]], np.float16), np.full((2, 3), 16, np.float16)
            x, error, status = run(
                self.function,
                0.0,
                backend.asarray(diag),
                0.0,
                backend.asarray(rhs),
                method="array",
                pivot="none",
                return_residual=True,
                return_status=True,
            )
            np.testing.assert_array_equal(backend.to_numpy(x), [[16] * 3, [np.nan] * 3])
            np.testing.assert_array_equal(backend.to_numpy(error), [0, np.inf])
            np.testing.assert_array_equal(backend.to_numpy(status), [0, 1])


class TestUnpivoted(TestSolveTridiagonal):
    """Parallel cyclic reduction, the textbook form."""

    methods: ClassVar = ("kernel", "array")
    options: ClassVar = {"pivot": "none"}
    test_pivot_of_zero = test_residual_tells_what_was_lost = test_status = test_every_length = None
    test_batch_equals_single = test_unknown_pivot_named = test_shapes_named = test_native_refusals = None
    test_integers_named = test_last_axis_is_named_where_it_misleads = test_bad_axis_named = None
    test_unknown_method_named = test_no_array_named = test_mixed_namespaces_named = None
    test_one_system_without_jit = None

    def function(self, *arrays, **options):
        return super().function(*arrays, **{"pivot": "none", **options})


class TestPeriodic(Systems):
    lengths: ClassVar = (*range(10), 16, 17, 33, 64, 65, 257)
    options: ClassVar = {"periodic": True}

    def reference(self, *inputs, axis, periodic, **_):
        columns = tuple(np.moveaxis(x, axis, -1) for x in inputs)
        result = np.zeros(columns[3].shape, complex if columns[3].dtype.kind == "c" else float)
        for index in np.ndindex(columns[0].shape[:-1]):
            lower, diag, upper, rhs = (x[index] for x in columns)
            result[index] = np.linalg.solve(dense(lower, diag, upper, periodic=periodic), rhs.astype(result.dtype))
        return np.moveaxis(result, -1, axis)

    def bound(self, lower, diag, upper, rhs, axis, periodic, **_):
        # Two solves by a matrix that may be half as dominant, and their difference.
        x = self.reference(lower, diag, upper, rhs, axis=axis, periodic=periodic)
        return 4 * dominant_bound(lower, diag, upper, x, axis) + 1e-15

    def test_several_right_hand_sides(self, backend, run, method, rng, subtests):
        for n in (1, 2, 3, 7):
            with subtests.test(n=n):
                lower, diag, upper, _ = self.make(rng, (2, n), "float64")
                rhs = random(rng, (2, n, 3), "float64")
                arrays = (backend.asarray(x) for x in (lower, diag, upper, rhs))
                x, error = run(self.function, *arrays, periodic=True, method=method, return_residual=True)
                wide = (*(np.repeat(y[..., None], 3, axis=-1) for y in (lower, diag, upper)), rhs)
                compare(backend, x, self.reference(*wide, axis=1, periodic=True), 1e-13)
                assert error.shape == (2, 3)
                assert np.all(backend.to_numpy(error) < 1e-14)

    def test_zero_on_the_diagonal(self, backend, run, rng):
        """The rank-one correction does not divide by the diagonal."""
        inputs = self.make(rng, (9,), "float64")
        inputs[1][0] = 0
        arrays = (backend.asarray(x) for x in inputs)
        x, error = run(self.function, *arrays, periodic=True, method="native", return_residual=True)
        compare(backend, x, self.reference(*inputs, axis=-1, periodic=True), 1e-12)
        assert float(error) < 1e-13

    def test_definite(self, backend, run, method):
        """A circulant heat step: definite, dominant by a thousandth only."""
        n = 33
        inputs = (-np.ones(n), 2.002 * np.ones(n), -np.ones(n), np.cos(np.arange(n) ** 2))
        arrays = (backend.asarray(x) for x in inputs)
        x, error = run(self.function, *arrays, periodic=True, method=method, return_residual=True)
        compare(backend, x, self.reference(*inputs, axis=-1, periodic=True), 1e-11)
        assert float(error) < 1e-14

    def test_same_bits_twice(self, backend, run, method, rng):
        if backend.name == "jax":
            pytest.skip("as for systems that are not periodic")
        super().test_same_bits_twice(backend, run, method, rng)

    def test_singular(self, backend, run, method):
        """The rows of a circulant with 1, -2, 1 sum to zero."""
        ones = np.ones(4)
        arrays = (backend.asarray(x) for x in (ones, -2 * ones, ones, np.arange(4.0)))
        x, error = run(self.function, *arrays, periodic=True, method=method, return_residual=True)
        assert not np.all(abs(backend.to_numpy(x)) < 1e14)
        assert not float(error) < 1e-18


def gtsv(lower, diag, upper, rhs):
    """Return the solutions by LAPACK, system by system, in the precision of the arrays."""
    lapack = importlib.import_module("scipy.linalg.lapack")
    solve = getattr(lapack, {"f": "s", "d": "d", "F": "c", "D": "z"}[diag.dtype.char] + "gtsv")
    x = np.empty_like(rhs)
    for index in np.ndindex(diag.shape[:-1]):
        if diag.shape[-1] == 1:  # which LAPACK's wrapper does not take
            x[index] = rhs[index] / diag[index]
        else:
            *_, x[index], info = solve(lower[index][1:], diag[index], upper[index][:-1], rhs[index])
            x[index] = np.nan if info else x[index]
    return x


def by_singular_values(rng, values):
    """Return the coefficients of a symmetric tridiagonal matrix with singular values."""
    hessenberg = importlib.import_module("scipy.linalg").hessenberg
    q, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    h = hessenberg((q * (values * rng.choice([-1, 1], len(values)))) @ q.T)
    return np.append(0, np.diag(h, -1)), np.diag(h).copy(), np.append(np.diag(h, 1), 0)


def stability_classes(rng, n, worst):
    """Return matrices used to study stability, by name; ``worst`` is the largest condition number."""
    ones, i = np.ones(n), np.arange(1, n + 1)
    exponents, smooth = np.exp2(rng.integers(-20, 20, n)), worst ** (-np.arange(n) / n)

    def u():
        return rng.uniform(-1, 1, n)

    step, half = 1e-4 * (n + 1) ** 2, (n + 1) // 2  # Dorr's matrix, a convection that is all but singular
    below = np.where(i <= half, -step, -step + (n + 1) * (0.5 - i / (n + 1)))
    above = np.where(i <= half, -step - (n + 1) * (0.5 - i / (n + 1)), -step)
    near = u(), u(), u()
    for row in near:
        row[n // 2] = 0
    near[1][n // 2] = 1 / worst
    return {
        "random": (u(), u(), u()),
        "1e-8 on the diagonal": (u(), 1e-8 * ones, u()),
        "1e-3 on the diagonal, random": (u(), 1e-3 * u(), u()),
        "zero diagonal": (u(), 0 * ones, u()),
        "half of the couplings zero": (u() * (rng.random(n) < 0.5), u(), u() * (rng.random(n) < 0.5)),
        "one coupling tiny": (np.where(i == n // 2, 1e-30, 1) * u(), u(), u()),
        "lower tiny": (1e-20 * u(), u(), u()),
        "Toeplitz 1, 1e-8, 1": (ones, 1e-8 * ones, ones),
        "Toeplitz 1, 0, 1": (ones, 0 * ones, ones),
        "Toeplitz -1, 1, -1": (-ones, ones, -ones),
        "Toeplitz -1, 1.9, -1": (-ones, 1.9 * ones, -ones),
        "Toeplitz -1, 2, -1": (-ones, 2 * ones, -ones),
        "Toeplitz -1, 4, -1": (-ones, 4 * ones, -ones),
        "Toeplitz 1, 0.5, -1": (ones, 0.5 * ones, -ones),
        "Lesp": (1 / i, -(2.0 * i + 3), i + 1.0),
        "rows graded at random": (exponents * u(), exponents * u(), exponents * u()),
        "columns graded at random": (np.roll(exponents, 1) * u(), exponents * u(), np.roll(exponents, -1) * u()),
        "rows graded": (smooth * u(), smooth * u(), smooth * u()),
        "columns graded": (np.roll(smooth, 1) * u(), smooth * u(), np.roll(smooth, -1) * u()),
        "Dorr": (below, -(below + above), above),
        "near-singular": near,
        "one small singular value": by_singular_values(rng, np.where(i == n, 1 / worst, 1.0)),
        "one large singular value": by_singular_values(rng, np.where(i == 1, 1.0, 1 / worst)),
        "singular values graded": by_singular_values(rng, worst ** (-(i - 1.0) / (n - 1))),
        "singular values in line": by_singular_values(rng, 1 - (i - 1.0) / (n - 1) * (1 - 1 / worst)),
    }


class TestStability:
    """The backward error is within ten times that of LAPACK's elimination with partial pivoting, or of one eps."""

    methods: ClassVar = ("kernel", "native", "array")

    @pytest.mark.optimised
    @pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
    def test_classes(self, backend, run, method, dtype, subtests):
        if backend.name == "jax-cuda" and method == "native":
            pytest.skip("cuSPARSE exchanges rows less carefully than LAPACK")
        rng = np.random.default_rng(3)
        worst = 1e7 if dtype == "float32" else 1e15
        for n in (6, 126) if backend.name.startswith("jax") else (6, 126, 510):
            trials = [stability_classes(rng, n, worst) for _ in range(3)]
            names = [name for trial in trials for name in trial]
            coefficients = [np.stack([m[k] for trial in trials for m in trial.values()]) for k in range(3)]
            if dtype.startswith("complex"):
                coefficients = [x * np.exp(2j * np.pi * rng.random(x.shape)) for x in coefficients]
            lower, diag, upper = (x.astype(dtype) for x in coefficients)
            lower[:, 0] = upper[:, -1] = 0
            right = random(rng, lower.shape, dtype)
            for rhs in (right, times(lower, diag, upper, right)):
                arrays = (backend.asarray(x) for x in (lower, diag, upper, rhs))
                x = backend.to_numpy(run(solve_tridiagonal, *arrays, method=method))
                allowed = backward_error(lower, diag, upper, rhs, gtsv(lower, diag, upper, rhs))
                error = backward_error(lower, diag, upper, rhs, x)
                for name, one, other in zip(names, error, allowed, strict=True):
                    with subtests.test(matrix=name, n=n):
                        measured = "solve_tridiagonal, backward error"
                        within(one, 10 * max(other, eps(dtype)), measured, run.method, dtype, backend)

    @pytest.mark.optimised
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_random_tiny_diagonal(self, backend, run, method, dtype):
        # Solutions grow to 1e20 here, and the condition number is far beyond what float32 tells from singular.
        if backend.name == "jax-cuda" and method == "native":
            pytest.skip("cuSPARSE exchanges rows less carefully than LAPACK")
        rng = np.random.default_rng(11)
        # As many at once as test_classes has, whose program JAX finds again.
        at_once = 3 * len(stability_classes(rng, 6, 1e7))
        lower, diag, upper, rhs = (rng.standard_normal((10 * at_once, 126)) for _ in range(4))
        lower[:, 0] = upper[:, -1] = 0
        arrays = tuple(x.astype(dtype) for x in (lower, 1e-8 * diag, upper, rhs))
        parts = zip(*(np.split(one, 10) for one in arrays), strict=True)
        x = np.concatenate(
            [backend.to_numpy(run(solve_tridiagonal, *map(backend.asarray, part), method=method)) for part in parts]
        )
        allowed = 10 * np.maximum(backward_error(*arrays, gtsv(*arrays)), eps(dtype))
        failed = np.sum(~(backward_error(*arrays, x) <= allowed))
        assert failed <= (0.01 * len(x) if dtype == "float32" else 0)

    @pytest.mark.parametrize("name", ["zero diagonal", "Toeplitz -1, 1, -1", "1e-8 on the diagonal", "random"])
    def test_periodic(self, backend, run, name):
        rng = np.random.default_rng(4)
        for n in (3, 10, 127):
            lower, diag, upper = stability_classes(rng, n, 1e15)[name]
            if name.startswith("Toeplitz"):
                lower = 0.9 * lower  # else a multiple of six would be singular
            rhs = rng.standard_normal(n)
            arrays = (backend.asarray(x) for x in (lower, diag, upper, rhs))
            x, error = run(solve_tridiagonal, *arrays, periodic=True, method="array", return_residual=True)
            a = dense(lower, diag, upper, periodic=True)
            y = backend.to_numpy(x)
            if np.linalg.cond(a) < 1e15:
                assert np.max(abs(a @ y - rhs) / (abs(a) @ abs(y) + abs(rhs))) < 1e-14
                assert float(error) < 1e-14

    def test_auto_does_not_correct_by_rank_one(self):
        x = np.ones(5)
        options = {"periodic": True}
        assert "rank one" in parprims.methods(solve_tridiagonal, x, x, x, x, **options)["native"]
        assert parprims.methods(solve_tridiagonal, x, 3 * x, x, x, pivot="none", **options)["native"] is None


def times(lower, diag, upper, x):
    """Return the product of a tridiagonal matrix with a vector, both along the last axis."""
    y = diag * x
    y[..., 1:] += lower[..., 1:] * x[..., :-1]
    y[..., :-1] += upper[..., :-1] * x[..., 1:]
    return y


def real_dtype(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def dominate(lower, diag, upper, rhs):
    """Return the system with a diagonal that dominates however the others broadcast."""
    return lower, np.sign(diag) * (abs(diag) + np.max(abs(lower)) + np.max(abs(upper))), upper, rhs


def backward_error(lower, diag, upper, rhs, x):
    """Return max |rhs - A x| / (|A| |x| + |rhs|) over the last axis in long double, infinity where x is NaN."""
    wide = np.clongdouble if x.dtype.kind == "c" else np.longdouble
    lower, diag, upper, rhs, x = (y.astype(wide) for y in (lower, diag, upper, rhs, x))
    r, size = rhs - diag * x, abs(rhs) + abs(diag * x)
    r[..., 1:] -= lower[..., 1:] * x[..., :-1]
    r[..., :-1] -= upper[..., :-1] * x[..., 1:]
    size[..., 1:] += abs(lower[..., 1:] * x[..., :-1])
    size[..., :-1] += abs(upper[..., :-1] * x[..., 1:])
    error = np.max(abs(r) / size, axis=-1).astype(float)
    return np.where(np.isnan(error), np.inf, error)


@pytest.fixture
def jax():
    """JAX, in double precision."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


@pytest.mark.parametrize("pivot", ["none", "partial"])
def test_steps_are_the_logarithm(jax, pivot):
    """The program grows by the same number of operations at every doubling of n, and not between."""

    def operations(n: int) -> int:
        x = np.ones(n)
        traced = jax.make_jaxpr(lambda *a: solve_tridiagonal(*a, method="array", pivot=pivot))
        (program,) = traced(*(jax.numpy.asarray(x),) * 4).jaxpr.eqns[-1:]
        (solve,) = program.params["jaxpr"].jaxpr.eqns[-1:]
        return len(solve.params["jaxprs"].solve.jaxpr.eqns)

    counts = {n: operations(n) for n in (3, 4, 5, 8, 9, 16, 17, 33, 512, 513, 1024, 1025)}
    step = counts[8] - counts[4]
    assert 0 < step < (40 if pivot == "none" else 300)
    for n, count in counts.items():
        doublings = math.ceil(math.log2(n)) - 2
        # A number of segments that is not even takes one more.
        allowed = 0 if pivot == "none" or n in (4, 8, 16, 512, 1024) else 40 + 20 * doublings
        assert 0 <= count - counts[4] - step * doublings <= allowed


@pytest.mark.parametrize(("chosen", "pivot"), [("native", "auto"), ("array", "none"), ("array", "auto")])
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_jax_transforms(jax, chosen, pivot, periodic, transpose):
    """Gradients against central differences, with garbage in the corners not read; vmap against a loop."""
    rng = np.random.default_rng(5)
    inputs = dominant(rng, (3, 6), "float64")
    if chosen == "native" and jax.default_backend() != "cpu":
        pytest.skip("native refuses traced arrays on a GPU")
    if not periodic:
        inputs[0][:, 0] = inputs[2][:, -1] = np.nan
    if transpose:
        inputs = tuple(0.4 * x if at in (0, 2) else x for at, x in enumerate(inputs))
    weights = rng.standard_normal((3, 6))

    def solve(*arrays: Any) -> Any:
        return solve_tridiagonal(*arrays, method=chosen, pivot=pivot, periodic=periodic, transpose=transpose)

    @jax.jit
    def loss(*arrays: Any) -> Any:
        return (weights * solve(*arrays)).sum()

    arrays = tuple(map(jax.numpy.asarray, inputs))
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arrays)
    for which, gradient in enumerate(gradients):
        direction = rng.standard_normal((3, 6))
        change = np.zeros((4, 1, 1))
        change[which] = 1e-6
        ends = [loss(*(x + sign * c * direction for x, c in zip(arrays, change, strict=True))) for sign in (1, -1)]
        np.testing.assert_allclose((gradient * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-7)
    alone = jax.jit(solve)
    looped = jax.numpy.stack([alone(*(x[i] for x in arrays)) for i in range(3)])
    np.testing.assert_allclose(jax.jit(jax.vmap(solve))(*arrays), looped, rtol=1e-13)


def test_jax_native_refuses_what_it_gets_wrong(jax, monkeypatch):
    """On a GPU, JAX exchanges no rows in a batch, and a traced system may become one."""
    arrays = (jax.numpy.ones((2, 4)),) * 4
    monkeypatch.setattr(_tridiagonal_native, "_jax_platform", lambda _: ("gpu", False))
    assert "exchanges rows" in parprims.methods(solve_tridiagonal, *arrays)["native"]
    one = tuple(x[0] for x in arrays)
    assert parprims.methods(solve_tridiagonal, *one)["native"] is None
    monkeypatch.setattr(_tridiagonal_native, "_jax_platform", lambda _: ("gpu", True))
    assert "exchanges rows" in parprims.methods(solve_tridiagonal, *one)["native"]


def test_jax_derivatives_of_a_system_that_needs_exchanges(jax):
    """Forward, backward and second derivatives by all arguments, one of them broadcast."""
    from jax.test_util import check_grads

    rng = np.random.default_rng(7)
    lower, upper = rng.standard_normal((2, 6))
    arrays = tuple(jax.numpy.asarray(x) for x in (lower, 1e-9 * np.ones(1), upper, rng.standard_normal((2, 6))))

    def solve(lower, diag, upper, rhs):
        return solve_tridiagonal(lower[None], diag, upper, rhs, method="array")

    check_grads(solve, arrays, order=2, modes=("fwd", "rev"), rtol=1e-4, atol=1e-4)
    _, back = jax.vjp(solve, *arrays)
    assert float(abs(back(jax.numpy.ones((2, 6)))[0][0])) == 0


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("pivot", ["auto", "none"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_torch_gradients(periodic, pivot, transpose, dtype):
    torch = pytest.importorskip("torch")
    inputs = dominant(np.random.default_rng(6), (2, 5), dtype)
    inputs = (0.4 * inputs[0], inputs[1], 0.4 * inputs[2], inputs[3])
    arrays = tuple(torch.from_numpy(x).requires_grad_() for x in inputs)

    def solve(*arrays: Any) -> Any:
        return solve_tridiagonal(*arrays, periodic=periodic, pivot=pivot, transpose=transpose)

    assert torch.autograd.gradcheck(solve, arrays, fast_mode=True)
    assert torch.autograd.gradgradcheck(solve, arrays, fast_mode=True)
    if not periodic:
        _, error = solve_tridiagonal(*arrays, return_residual=True)
        error.sum().backward()
        assert all(torch.all(torch.isfinite(y.grad)) for y in arrays)


@pytest.mark.parametrize("axis", [0, 1])
def test_torch_gradients_of_what_broadcasts(axis):
    """Constant coefficients, several right-hand sides, a zero diagonal, and corners that are not read."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    shape = (6, 2) if axis == 0 else (2, 6)
    lower, rhs = rng.standard_normal(shape), rng.standard_normal((*shape, 3))
    lower[(0,) if axis == 0 else (slice(None), 0)] = np.nan
    given = (lower, np.zeros(()), np.ones((1, 1)), rhs)
    arrays = tuple(torch.from_numpy(np.asarray(x)).requires_grad_() for x in given)
    solve = functools.partial(solve_tridiagonal, axis=axis)
    solve(*arrays).sum().backward()
    derivative = arrays[0].grad.numpy()
    assert np.all(derivative[(0,) if axis == 0 else (slice(None), 0)] == 0)
    direction = rng.standard_normal(rhs.shape)
    ends = [solve(*arrays[:3], arrays[3] + torch.from_numpy(h * direction)).sum() for h in (1e-6, -1e-6)]
    slope = float((ends[0] - ends[1]).detach()) / 2e-6
    np.testing.assert_allclose((arrays[3].grad.numpy() * direction).sum(), slope, rtol=1e-6)
    ends = [solve(arrays[0], arrays[1] + h, *arrays[2:]).sum() for h in (1e-6, -1e-6)]
    np.testing.assert_allclose(float(arrays[1].grad), float((ends[0] - ends[1]).detach()) / 2e-6, rtol=1e-6)


def test_torch_func():
    """torch.func sees through the array form."""
    torch = pytest.importorskip("torch")
    inputs = dominant(np.random.default_rng(9), (3, 6), "float64")
    arrays = tuple(torch.from_numpy(x) for x in inputs)
    mapped = torch.func.vmap(solve_tridiagonal)(*arrays)
    np.testing.assert_allclose(mapped.numpy(), solve_tridiagonal(*arrays).numpy(), rtol=1e-14)
    slopes = torch.func.grad(lambda *a: solve_tridiagonal(*a).sum(), argnums=(0, 1, 2, 3))(*arrays)
    given = tuple(x.clone().requires_grad_() for x in arrays)
    solve_tridiagonal(*given).sum().backward()
    for slope, x in zip(slopes, given, strict=True):
        np.testing.assert_allclose(slope.numpy(), x.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_systems_side_by_side(backend, rng, subtests, dtype):
    """From 512 systems side by side on, native goes along all at once; LAPACK solves those that exchange rows."""
    if backend.name not in ("numpy", "torch"):
        pytest.skip("a way of NumPy")
    for shape, axis in (((5, 511), 0), ((1, 520), 0), ((2, 600), 0), ((7, 600), 0), ((3, 6, 200), 1), ((600, 6), 1)):
        systems = tuple(length for place, length in enumerate(shape) if place != axis)
        lower, diag, upper, rhs = (random(rng, shape, dtype) for _ in range(4))
        diag = diag + np.expand_dims(np.where(rng.random(systems) < 0.5, 9, 0), axis).astype(dtype)
        diag[rng.random(shape) < 0.02] = 0
        diag[rng.random(shape) < 0.01] = np.nan
        rhs[rng.random(shape) < 0.01] = np.inf
        columns = np.stack([rhs, 2 * rhs], axis=-1)
        for right, options in (
            (rhs, {}),
            (columns, {}),
            (rhs, {"transpose": True}),
            (rhs, {"periodic": True}),
        ):
            with subtests.test(shape=shape, columns=right.ndim > rhs.ndim, **options):
                given = [
                    *(np.moveaxis(one, axis, -1) for one in (lower, diag, upper)),
                    np.moveaxis(right, axis, len(shape) - 1),
                ]
                options = {**options, "method": "native", "return_residual": True, "return_status": True}
                along = solve_tridiagonal(*map(backend.asarray, (lower, diag, upper, right)), axis=axis, **options)
                apart = solve_tridiagonal(*map(np.ascontiguousarray, given), **options)
                x, error, status = map(backend.to_numpy, along)
                np.testing.assert_array_equal(status == 1, apart[2] == 1)
                np.testing.assert_array_equal(np.isnan(np.moveaxis(x, axis, len(shape) - 1)), np.isnan(apart[0]))
                solved = status != 1
                assert (error[solved] <= np.maximum(10 * apart[1][solved], 10 * eps(dtype))).all()
