"""Tridiagonal solves of systems that are hard to solve: backward errors, and what error and status tell."""

import functools
import importlib
from typing import ClassVar

import numpy as np
import pytest

import parprims
from parprims import solve_tridiagonal
from tests.primitives.tridiagonal.test_tridiagonal import Systems, backward_error, dense, dominant, gtsv
from tests.support.contract import eps, random, within


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


@functools.cache
def hard_systems(lengths, dtype):
    """Return names, systems and the errors of LAPACK, for random right-hand sides and for random solutions."""
    rng, found = np.random.default_rng(3), []
    for n in lengths:
        trials = [stability_classes(rng, n, 1e7 if dtype == "float32" else 1e15) for _ in range(3)]
        names = [f"{name}, n = {n}" for trial in trials for name in trial]
        coefficients = [np.stack([m[k] for trial in trials for m in trial.values()]) for k in range(3)]
        if dtype.startswith("complex"):
            coefficients = [x * np.exp(2j * np.pi * rng.random(x.shape)) for x in coefficients]
        lower, diag, upper = (x.astype(dtype) for x in coefficients)
        lower[:, 0] = upper[:, -1] = 0
        right = random(rng, lower.shape, dtype)
        for rhs in (right, times(lower, diag, upper, right)):
            systems = lower, diag, upper, rhs
            found.append((names, systems, backward_error(*systems, gtsv(*systems))))
    return found


# One dtype shows what XLA's optimisations make of rounding: they take four times as long as the rest of compiling.
OPTIMISED = pytest.param("float64", marks=pytest.mark.optimised)


class TestStability:
    """The backward error is within ten times that of LAPACK's elimination with partial pivoting, or of one eps."""

    methods: ClassVar = ("kernel", "native", "array")

    @pytest.mark.parametrize("dtype", ["float32", OPTIMISED, "complex128"])
    def test_classes(self, backend, run, method, dtype):
        if backend.name == "jax-cuda" and method == "native":
            pytest.skip("cuSPARSE exchanges rows less carefully than LAPACK")
        if backend.name.startswith("jax") and method == "auto":
            pytest.skip("auto takes what is tested by name")
        if backend.name == "jax" and method == "array" and dtype == "float32":
            pytest.skip("XLA compiles the same operations for float64, for a long time")
        lengths = (6, 126) if backend.name.startswith("jax") else (6, 126, 510)
        if backend.name == "jax" and method == "array" and dtype == "float64":
            lengths = (126,)  # complex numbers are of few unknowns too, and take less to compile
        failures = []
        for names, systems, allowed in hard_systems(lengths, dtype):
            x = backend.to_numpy(run(solve_tridiagonal, *map(backend.asarray, systems), method=method))
            for name, one, other in zip(names, backward_error(*systems, x), allowed, strict=True):
                try:
                    measured = "solve_tridiagonal, backward error"
                    within(one, 10 * max(other, eps(dtype)), measured, run.method, dtype, backend)
                except AssertionError as failure:
                    failures.append(f"{name}: {failure}")
        assert not failures, "\n".join(failures)

    @pytest.mark.parametrize("dtype", ["float32", OPTIMISED])
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
