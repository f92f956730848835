"""Tridiagonal solves against sequential elimination and dense solves."""

import importlib
import importlib.util
import math
from typing import ClassVar

import numpy as np
import pytest
from array_api_compat import is_jax_array

import parprims
from parprims import solve_tridiagonal
from parprims._primitives.tridiagonal import native as tridiagonal_native
from tests.support.contract import Contract, compare, eps, random


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

    @classmethod
    def left_out(cls, law, given):
        backend = given.get("backend")
        if (backend, given.get("method")) == ("jax", "auto") and law != "test_one_system_without_jit":
            return "auto takes native here, which is tested by name"
        if law == "test_axis" and backend == "jax":
            return "test_any_shape tests every axis"
        return super().left_out(law, given)

    @classmethod
    def only_refused(cls, law, given):
        backend, method = given.get("backend"), given.get("method")
        if (backend, method) == ("array-api-strict", "native"):
            return True
        if (backend, method) == ("jax", "kernel") and law != "test_one_system_without_jit":
            return True  # calls are programs there
        return super().only_refused(law, given)

    @pytest.fixture(autouse=True)
    def _compile_less(self, request):
        """Save JAX the time of optimising."""
        if "backend" not in request.fixturenames or request.getfixturevalue("backend").name != "jax":
            yield
            return
        self.many = 133
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

    @pytest.mark.parametrize("dtype", ["float32", "complex128"])
    def test_residual_is_small(self, backend, run, method, rng, subtests, dtype):
        """Component by component, |A x - b| <= c eps ceil(log2 n) (|A| |x| + |b|)."""
        for n in (1, 2, 33):
            with subtests.test(n=n):
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

    @pytest.mark.parametrize(
        "places",
        [
            (np.s_[:, :1], np.s_[:], np.s_[0], np.s_[:]),
            (np.s_[0, 0],) * 4,
            (*(np.s_[:1, :1],) * 3, np.s_[:]),
            (*(np.s_[:, :1],) * 3, np.s_[:]),
            (*(np.s_[:],) * 3, np.s_[0]),
            (*(np.s_[:],) * 3, np.s_[0, 0]),
        ],
    )
    def test_batches_broadcast(self, backend, run, method, rng, places):
        inputs = self.make(rng, (3, 2, 9), "float64")
        inputs = dominate(*(one[place] for one, place in zip(inputs, places, strict=True)))
        x = run(self.function, *(backend.asarray(y) for y in inputs), method=method)
        compare(backend, x, self.reference(*np.broadcast_arrays(*inputs), axis=-1), 1e-13, "float64")

    @pytest.mark.parametrize(
        ("shape", "axis", "rhs_shape"),
        [
            ((6,), -1, (6, 4)),
            ((6,), 0, (6, 6)),
            ((6,), 0, (6, 1)),
            ((6,), 0, (6, 0)),
            ((6, 3), 0, (6, 3, 2)),
            ((3, 6), -1, (3, 6, 2)),
            ((3, 6), 1, (1, 6, 2)),
            ((1, 6), -1, (3, 6, 2)),
        ],
    )
    def test_several_right_hand_sides(self, backend, run, method, rng, shape, axis, rhs_shape):
        """The axis that rhs has more than the coefficients is its last, whatever the lengths."""
        lower, diag, upper, _ = self.make(rng, shape, "float64")
        rhs = random(rng, rhs_shape, "float64")
        arrays = tuple(backend.asarray(x) for x in (lower, diag, upper, rhs))
        x, error = run(self.function, *arrays, axis=axis, method=method, return_residual=True)
        inputs = (*(y[..., None] for y in (lower, diag, upper)), rhs)
        expected = self.reference(*np.broadcast_arrays(*inputs), axis=axis % len(shape))
        compare(backend, x, expected, 1e-13, "float64")
        assert error.shape == expected.shape[: axis % len(shape)] + expected.shape[axis % len(shape) + 1 :]
        assert np.all(backend.to_numpy(error) < 1e-14)

    @pytest.mark.parametrize("transpose", [False, True])
    @pytest.mark.parametrize(
        ("shape", "axis", "shapes"),
        [
            ((5, 9), -1, ((5, 1), (1,), (9,))),
            ((5, 9), 0, ((5, 9), (1, 9), (1, 9))),
            ((5, 9), 1, ((), (5, 1), ())),
            ((9,), 0, ((), (9,), ())),
            ((2, 5, 9), 1, ((), (), ())),
            ((5, 1), 1, ((5, 1), (5, 1), ())),
        ],
    )
    def test_constant_coefficients(self, backend, run, method, rng, shape, axis, shapes, transpose):
        """A length of 1 along the axis, or no dimension, stands for the same coefficient in every row."""
        lower, diag, upper = (random(rng, one, "float64") for one in shapes)
        inputs = dominate(lower, diag, upper, random(rng, shape, "float64"))
        arrays = tuple(backend.asarray(np.asarray(x)) for x in inputs)
        x = run(self.function, *arrays, axis=axis, method=method, transpose=transpose)
        whole = [np.broadcast_to(one, shape) for one in inputs]
        if transpose:
            whole[0], whole[2] = np.roll(whole[2], 1, axis), np.roll(whole[0], -1, axis)
        compare(backend, x, self.reference(*whole, axis=axis), 1e-13, "float64")

    @pytest.mark.parametrize("dtype", ["float32", "complex128"])
    def test_numbers(self, backend, run, method, rng, dtype):
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
            if backend.name == "numpy" and importlib.util.find_spec("numba"):
                on_cpu = "kernel"
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
            monkeypatch.setattr(tridiagonal_native, "_has_scipy", lambda: False)
            assert "SciPy" in parprims.methods(solve_tridiagonal, x, 3 * x, x, x)["native"]


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

    @classmethod
    def left_out(cls, law, given):
        if law == "test_same_bits_twice" and given["backend"] == "jax":
            return "as for systems that are not periodic"
        return super().left_out(law, given)

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
