"""Operators and maps that are written with NumPy's, PyTorch's or JAX's own functions, on arrays of every library."""

import importlib.util
import math
import sys

import numpy as np
import pytest

import parprims
from parprims._operators.operator import Operator
from tests.support.contract import random

FLOATS = {
    "numpy": lambda np: {
        "where": lambda p, q: np.where(p > q, p, q),
        "maximum": np.maximum,
        "minimum": lambda p, q: np.minimum(p, q * 2),
        "fmax": lambda p, q: np.fmax(p, q),
        "logaddexp": lambda p, q: np.logaddexp(p, q),
        "hypot": lambda p, q: np.hypot(p, q),
        "remainder": lambda p, q: np.mod(p, q),
        "fmod": lambda p, q: np.fmod(p, q),
        "clip": lambda p, q: np.clip(p, -0.5, 0.25) + q,
        "exp": lambda p, q: np.exp(np.tanh(p)) + np.log1p(np.abs(q)),
        "powers": lambda p, q: np.power(np.absolute(p), 1.5) + np.square(q),
        "round": lambda p, q: np.rint(p * 3) + np.floor(q) - np.ceil(q) + np.trunc(p),
        "isnan": lambda p, q: np.where(np.isnan(p) | ~np.isfinite(q), 0.0, p / q),
        "arctan2": lambda p, q: np.arctan2(p, q) + np.sign(q),
    },
    "torch": lambda torch: {
        "where": lambda p, q: torch.where(p > q, p, q),
        "maximum": lambda p, q: torch.maximum(p, q) + torch.max(p, q),
        "minimum": lambda p, q: torch.min(p, q),
        "fmax": lambda p, q: torch.fmax(p, q),
        "logaddexp": lambda p, q: torch.logaddexp(p, q),
        "clamp": lambda p, q: torch.clamp(p, -0.5, 0.25) + torch.clamp(q, min=0.0),
        "methods": lambda p, q: p.abs().sqrt() + q.exp() + p.clamp(max=0.5),
        "relu": lambda p, q: torch.relu(p) - torch.sigmoid(q),
        "fmod": lambda p, q: torch.fmod(p, q) + torch.remainder(p, q),
        "hypot": lambda p, q: torch.hypot(p, q) + torch.pow(q, 2),
        "rsqrt": lambda p, q: torch.rsqrt(torch.abs(p) + 1) * q,
    },
    "jax": lambda jax: {
        "where": lambda p, q: jax.numpy.where(p > q, p, q),
        "maximum": jax.numpy.maximum,
        "logaddexp": lambda p, q: jax.numpy.logaddexp(p, q),
        "hypot": lambda p, q: jax.numpy.hypot(p, q),
        "remainder": lambda p, q: jax.numpy.mod(p, q) + p % q,
        "fmod": lambda p, q: jax.numpy.fmod(p, q),
        "clip": lambda p, q: jax.numpy.clip(p, -0.5, 0.25) + q,
        "powers": lambda p, q: p**3 + jax.numpy.power(jax.numpy.abs(q), 1.5) + jax.lax.integer_pow(q * q + 1, -2),
        "exp": lambda p, q: jax.numpy.exp(jax.numpy.tanh(p)) + jax.numpy.log1p(jax.numpy.abs(q)),
        "round": lambda p, q: jax.numpy.round(p * 3) + jax.numpy.floor(q) + jax.lax.round(q * 2),
        "nan": lambda p, q: jax.numpy.nan_to_num(jax.numpy.where(p > 0, p, jax.numpy.nan) + q, nan=0.25),
        "nn": lambda p, q: jax.nn.softplus(p) + jax.nn.relu(q) + jax.nn.sigmoid(p) + jax.nn.silu(q),
        "lax": lambda p, q: (
            jax.lax.select(p > q, p, q) + jax.lax.clamp(q * 0 - 1, p, abs(q)) + jax.lax.rsqrt(q * q + 1)
        ),
        "jit": jax.jit(lambda p, q: jax.numpy.arctan2(p, q) + jax.numpy.sign(q)),
        "cast": lambda p, q: jax.numpy.floor(p * 4).astype("int32").astype(p.dtype) + q,
        "constant": lambda p, q: p + q * jax.numpy.sqrt(2.0) + jax.numpy.asarray(0.5, p.dtype),
    },
}

INTEGERS = {
    "numpy": lambda np: {
        "bits": lambda p, q: np.bitwise_xor(p, np.invert(q)) | np.bitwise_and(p, 6),
        "shifts": lambda p, q: np.left_shift(p & 15, 3) + np.right_shift(q, 2),
        "floor_divide": lambda p, q: np.floor_divide(p, q | 1) + np.mod(p, q | 1),
    },
    "torch": lambda torch: {
        "bits": lambda p, q: torch.bitwise_xor(p, torch.bitwise_not(q)) | torch.bitwise_and(p, 6),
        "shifts": lambda p, q: torch.bitwise_left_shift(p & 15, 3) + torch.bitwise_right_shift(q, 2),
        "remainder": lambda p, q: torch.remainder(p, q | 1) + torch.maximum(p, q),
    },
    "jax": lambda jax: {
        "bits": lambda p, q: jax.numpy.bitwise_xor(p, jax.numpy.invert(q)) | jax.numpy.bitwise_and(p, 6),
        "shifts": lambda p, q: jax.numpy.left_shift(p & 15, 3) + jax.numpy.right_shift(q, 2),
        "floor_divide": lambda p, q: p // (q | 1) + p % (q | 1),
        "lax": lambda p, q: jax.lax.div(p, q | 1) + jax.lax.rem(p, q | 1),
        "select": lambda p, q: jax.lax.select_n(p % 3, p, q, p + q),
    },
}


def _functions(home, table):
    if home != "numpy":
        pytest.importorskip(home)
    module = sys.modules[home]
    if home == "jax":
        import jax.nn  # noqa: F401
    return module, table[home](module)


def _has_kernels(backend):
    on_cpu = backend.name in ("numpy", "torch", "jax")
    return backend.name != "array-api-strict" and (not on_cpu or importlib.util.find_spec("numba") is not None)


def _by_home(module, home, function, *arrays):
    """Return the result of a function by its own library, as NumPy's array."""
    if home == "torch":
        return function(*(module.asarray(x) for x in arrays)).numpy()
    if home == "jax":
        with module.enable_x64(arrays[0].dtype.itemsize == 8):
            return np.asarray(function(*(module.numpy.asarray(x) for x in arrays)))
    with np.errstate(all="ignore"):
        return function(*arrays)


def _check(found, expected, dtype):
    assert found.dtype == expected.dtype
    if np.dtype(dtype).kind == "f":
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(found, expected, rtol=64 * eps, atol=64 * eps)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("home", FLOATS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
class TestFunctions:
    methods = ("kernel", "array")

    def test_are_those_of_their_library(self, backend, rng, subtests, home, dtype, method):
        table = FLOATS if dtype.startswith("float") else INTEGERS
        module, functions = _functions(home, table)
        if not backend.supports(dtype) or (method == "kernel" and not _has_kernels(backend)):
            pytest.skip("has no such dtype, or no kernel")
        p, q = (random(rng, (50, 1), dtype) for _ in range(2))
        if dtype.startswith("int"):
            p, q = p % 100 - 50, q % 100 - 50
        for name, function in functions.items():
            with subtests.test(name=name):
                expected = _by_home(module, home, function, p, q)
                # One element a line: its reduction is the value of the map itself.
                found = parprims.map_reduce(
                    function, backend.asarray(p), backend.asarray(q), op="maximum", axis=1, method=method
                )
                _check(backend.to_numpy(found), expected[:, 0], dtype)

    def test_are_operators(self, backend, rng, home, dtype, method):
        module, _ = _functions(home, FLOATS)
        if not backend.supports(dtype) or (method == "kernel" and not _has_kernels(backend)):
            pytest.skip("has no such dtype, or no kernel")
        where = {"numpy": np, "torch": module, "jax": getattr(module, "numpy", None)}[home].where
        x = random(rng, (3, 100), dtype)
        for call in (parprims.scan, parprims.reduce):
            largest = call(backend.asarray(x), lambda p, q: where(p > q, p, q), axis=1, method=method)
            expected = np.maximum.accumulate(x, 1) if call is parprims.scan else x.max(1)
            np.testing.assert_array_equal(backend.to_numpy(largest), expected)


@pytest.mark.parametrize("home", FLOATS)
class TestElements:
    def test_of_several_arrays(self, backend, rng, home):
        module, _ = _functions(home, FLOATS)
        xp = module.numpy if home == "jax" else module
        x = random(rng, (200,), "float32")

        def extremes(p, q):
            return {"low": xp.where(p["low"] < q["low"], p["low"], q["low"]), "high": xp.maximum(p["high"], q["high"])}

        for method in ("auto", "array", "kernel") if _has_kernels(backend) else ("auto", "array"):
            found = parprims.scan({"low": backend.asarray(x), "high": backend.asarray(x)}, extremes, method=method)
            np.testing.assert_array_equal(backend.to_numpy(found["low"]), np.minimum.accumulate(x))
            np.testing.assert_array_equal(backend.to_numpy(found["high"]), np.maximum.accumulate(x))

    def test_with_numbers_that_change(self, backend, rng, home):
        module, _ = _functions(home, FLOATS)
        xp = module.numpy if home == "jax" else module
        x = random(rng, (1000,), "float64") if backend.supports("float64") else random(rng, (1000,), "float32")
        for bound in (0.25, 0.5, 0.75):
            found = parprims.map_reduce(lambda v: xp.where(v > bound, v, v * 0), backend.asarray(x))  # noqa: B023
            np.testing.assert_allclose(float(backend.to_numpy(found)), x[x > bound].sum(), rtol=1e-4)


class TestTransformations:
    def test_inside_programs_of_jax(self, backend, rng):
        if backend.family != "jax":
            pytest.skip("is of JAX")
        import jax

        x = backend.asarray(random(rng, (100,), "float32"))

        def call(x):
            return parprims.scan(x, lambda p, q: np.maximum(p, np.abs(q)))

        np.testing.assert_array_equal(np.asarray(jax.jit(call)(x)), np.asarray(call(x)))
        slope = jax.grad(lambda x: parprims.scan(x, lambda p, q: p + np.sin(q) * 0 + q, method="array").sum())(x)
        np.testing.assert_allclose(np.asarray(slope), np.arange(100, 0, -1), rtol=1e-6)

    def test_derivatives_of_pytorch(self, backend, rng):
        if backend.family != "torch":
            pytest.skip("is of PyTorch")
        x = backend.asarray(random(rng, (100,), "float32")).requires_grad_()
        parprims.map_reduce(lambda v: np.sin(v) * v, x).backward()
        slope = np.sin(x.detach().cpu().numpy()) + np.cos(x.detach().cpu().numpy()) * x.detach().cpu().numpy()
        np.testing.assert_allclose(x.grad.cpu().numpy(), slope, rtol=1e-5, atol=1e-6)


class TestRefusals:
    @pytest.mark.parametrize("name", ["erf", "sum", "transpose", "flip", "branch", "sort"])
    def test_of_functions_of_jax(self, backend, rng, name):
        jax = pytest.importorskip("jax")
        functions = {
            "erf": (lambda p, q: jax.scipy.special.erf(p) + q, "erf of jax.lax"),
            "sum": (lambda p, q: p + jax.numpy.sum(q), "reduce_sum of jax.lax"),
            "transpose": (lambda p, q: jax.numpy.where(p > 0, p, 0) + q.T, "elementwise"),
            "flip": (lambda p, q: jax.numpy.flip(p, 0) + q, "rev of jax.lax"),
            "sort": (lambda p, q: jax.numpy.sort(p, axis=0) + q, "sort of jax.lax"),
            "branch": (lambda p, q: jax.numpy.sin(p) if p > 0 else q, "branches"),
        }
        function, words = functions[name]
        if not _has_kernels(backend):
            pytest.skip("has no kernel")
        x = backend.asarray(random(rng, (20, 30), "float32"))
        with pytest.raises((parprims.MethodRefused, TypeError), match=words):
            parprims.scan(x, function, method="kernel")

    def test_an_own_error_is_told(self, backend):
        def fails(_, __):
            raise KeyError("of the caller")

        with pytest.raises(KeyError, match="of the caller"):
            parprims.scan(backend.asarray(np.ones(5, np.float32)), fails, method="array")

    def test_no_operator_is_called_without_elements(self, backend):
        def fails(_, __):
            raise KeyError("of the caller")

        x, offsets = backend.asarray(np.zeros(0, np.float32)), backend.asarray(np.zeros(4, np.int64))
        for options in ({}, {"exclusive": True}, {"exclusive": True, "reverse": True}):
            assert parprims.scan(x, fails, offsets=offsets, initial=3.0, method="array", **options).shape == (0,)

    def test_a_result_of_numbers_is_refused(self, backend):
        with pytest.raises(TypeError, match="not an array"):
            parprims.reduce(backend.asarray(np.ones(5, np.float32)), Operator(lambda *_: math.pi), method="array")
