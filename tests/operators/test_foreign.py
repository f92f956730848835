"""Operators and maps that are written with NumPy's, PyTorch's or JAX's own functions, on arrays of every library."""

import importlib.util
import math
import pathlib
import re
import sys

import numpy as np
import pytest
from array_api_compat import array_namespace, device

import parprims
from parprims._operators import tracing
from parprims._operators.foreign import composed, names
from parprims._operators.operator import Operator
from tests.support.contract import random
from tests.support.foreign import BEYOND_THE_STANDARD, HOMES, functions

STRANGE = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.0, 30.0, np.inf, -np.inf, np.nan])
"""Numbers at which functions turn."""


def _functions(home, dtype):
    """Return the module of a library, and its functions for a dtype."""
    for name in ("scipy.special",) if home == "numpy" else (home,):
        pytest.importorskip(name)
    return sys.modules[home], functions(home, dtype)


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


def _check(found, expected, dtype, condition=1.0):
    """Compare within 64 units of the last place, or so many times more; 0 is a unit of 1."""
    assert found.dtype == expected.dtype
    if np.dtype(dtype).kind == "f":
        bound = 64 * np.finfo(dtype).eps * condition * (1 + np.abs(expected))
        near = np.abs(found - expected) <= np.where(np.isfinite(bound), bound, 0)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        np.testing.assert_array_equal(np.where(near | same, expected, found), expected)
    else:
        np.testing.assert_array_equal(found, expected)


TOGETHER = 12
"""Functions that one kernel computes, for each kernel takes a second to compile."""


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
class TestFunctions:
    methods = ("kernel", "array")

    @pytest.mark.filterwarnings("ignore:numpy.fix is deprecated")
    def test_are_those_of_their_library(self, backend, rng, subtests, home, dtype, method):
        module, table = _functions(home, dtype)
        if not backend.supports(dtype) or (method == "kernel" and not _has_kernels(backend)):
            pytest.skip("has no such dtype, or no kernel")
        p, q = (random(rng, (50, 1), dtype) for _ in range(2))
        if dtype.startswith("int"):
            p, q = p % 100 - 50, q % 100 - 50
        else:
            p, q = (
                np.vstack([x, s.reshape(-1, 1)]) for x, s in zip((p, q), np.meshgrid(STRANGE, STRANGE), strict=True)
            )
            p, q = p.astype(dtype), q.astype(dtype)
        names = [name for name in table if backend.name != "array-api-strict" or name not in BEYOND_THE_STANDARD]
        for begin in range(0, len(names), TOGETHER):
            group = [table[name] for name in names[begin : begin + TOGETHER]]
            # One element a line: its reduction is the value of the map itself.
            values = parprims.map_reduce(
                lambda *xs: tuple([function(*xs) for function in group]),  # noqa: B023
                *(backend.asarray(x) for x in (p, q)),
                op=Operator(lambda earlier, _: earlier),
                axis=1,
                method=method,
            )
            for name, function, found in zip(names[begin:], group, values, strict=False):
                with subtests.test(name=name):
                    expected = _by_home(module, home, function, p, q)[:, 0]
                    # Near its poles digamma is 1 / d at a distance d, and d has the error of p.
                    condition = 1 + np.abs(p[:, 0] * expected) if name in ("psi", "digamma") else 1.0
                    found = backend.to_numpy(found)
                    by_cupy = (backend.name, method) == ("cupy", "array") and home != "jax"
                    if by_cupy and name in ("sinc", "xlog1py"):  # of NaN CuPy's own is 1, and 0 if p is
                        found = np.where(np.isnan(p[:, 0]) | np.isnan(q[:, 0]), expected, found)
                    if by_cupy and name in ("remainder", "floor_divide"):
                        # CuPy divides, and rounds the quotient: of an infinity the remainder is NaN.
                        infinite = np.isinf(q[:, 0]) | np.isinf(p[:, 0])
                        found = np.where(infinite, expected, found)
                    _check(found, expected, dtype, condition)

    def test_are_operators(self, backend, rng, home, dtype, method):
        module, _ = _functions(home, "float32")
        if not backend.supports(dtype) or (method == "kernel" and not _has_kernels(backend)):
            pytest.skip("has no such dtype, or no kernel")
        where = {"numpy": np, "torch": module, "jax": getattr(module, "numpy", None)}[home].where
        x = random(rng, (3, 100), dtype)
        for call in (parprims.scan, parprims.reduce):
            largest = call(backend.asarray(x), lambda p, q: where(p > q, p, q), axis=1, method=method)
            expected = np.maximum.accumulate(x, 1) if call is parprims.scan else x.max(1)
            np.testing.assert_array_equal(backend.to_numpy(largest), expected)


@pytest.mark.parametrize("home", HOMES)
class TestElements:
    def test_of_several_arrays(self, backend, rng, home):
        module, _ = _functions(home, "float32")
        xp = module.numpy if home == "jax" else module
        x = random(rng, (200,), "float32")

        def extremes(p, q):
            return {"low": xp.where(p["low"] < q["low"], p["low"], q["low"]), "high": xp.maximum(p["high"], q["high"])}

        for method in ("auto", "array", "kernel") if _has_kernels(backend) else ("auto", "array"):
            found = parprims.scan({"low": backend.asarray(x), "high": backend.asarray(x)}, extremes, method=method)
            np.testing.assert_array_equal(backend.to_numpy(found["low"]), np.minimum.accumulate(x))
            np.testing.assert_array_equal(backend.to_numpy(found["high"]), np.maximum.accumulate(x))

    def test_with_numbers_that_change(self, backend, rng, home):
        module, _ = _functions(home, "float32")
        xp = module.numpy if home == "jax" else module
        x = random(rng, (1000,), "float64") if backend.supports("float64") else random(rng, (1000,), "float32")
        for bound in (0.25, 0.5, 0.75):
            found = parprims.map_reduce(lambda v: xp.where(v > bound, v, v * 0), backend.asarray(x))  # noqa: B023
            np.testing.assert_allclose(float(backend.to_numpy(found)), x[x > bound].sum(), rtol=1e-4)


class TestNumbersAsArrays:
    methods = ("kernel", "array")

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
    def test_of_the_namespace(self, backend, rng, dtype, method):
        if not backend.supports(dtype) or (method == "kernel" and not _has_kernels(backend)):
            pytest.skip("has no such dtype, or no kernel")
        x = (random(rng, (3, 40), "float32") * 8).astype(dtype)

        def combine(p, q):
            xp = array_namespace(p)
            low = xp.asarray(-4, dtype=p.dtype, device=device(p))
            return xp.maximum(xp.maximum(p, q), xp.maximum(low, xp.full_like(p, -4, dtype=p.dtype, device=device(q))))

        found = parprims.scan(backend.asarray(x), combine, axis=1, method=method)
        expected = np.maximum.accumulate(np.concatenate([x[:, :1], np.maximum(x[:, 1:], -4)], 1), 1)
        np.testing.assert_array_equal(backend.to_numpy(found), expected)
        assert parprims.check_associative(combine, backend.asarray(x[0]))


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
    @pytest.mark.parametrize("name", ["bessel", "sum", "transpose", "flip", "branch", "sort"])
    def test_of_functions_of_jax(self, backend, rng, name):
        jax = pytest.importorskip("jax")
        functions = {
            "bessel": (lambda p, q: jax.scipy.special.i0e(p) + q, "bessel_i0e of jax.lax"),
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

    @pytest.mark.parametrize("name", ["i0", "frexp", "gcd", "decimals", "inplace", "asarray", "dtype", "operands"])
    def test_of_functions_of_numpy_and_pytorch(self, backend, rng, name):
        torch = pytest.importorskip("torch")
        refused = {
            "i0": (lambda p, q: torch.special.i0(p) + q, "calls i0,"),
            "frexp": (lambda p, q: np.frexp(p)[0] + q, "calls frexp,"),
            "gcd": (lambda p, q: np.gcd(p, q), "calls gcd,"),
            "decimals": (lambda p, q: np.round(p, 2) + q, "rounds to decimals"),
            "inplace": (lambda p, q: torch.nn.functional.silu(p, inplace=True) + q, "in place"),
            "asarray": (lambda p, q: array_namespace(p).asarray(0.5) * p + q, "give asarray its dtype"),
            "dtype": (lambda p, q: torch.tensor(0.5, dtype=p.dtype) * p + q, "use torch.full_like"),
            "operands": (lambda p, q: np.sign(p) + array_namespace(p).exp(p, q), "calls exp of 2 operands"),
        }
        function, words = refused[name]
        if not _has_kernels(backend):
            pytest.skip("has no kernel")
        x = backend.asarray(random(rng, (20,), "float32"))
        with pytest.raises((parprims.MethodRefused, TypeError), match=words):
            parprims.scan(x, function, method="kernel")
        reason = parprims.methods(parprims.scan, x, function)["kernel"]
        assert words in reason

    def test_of_the_next_number_of_16_bits(self, backend, rng):
        if not _has_kernels(backend) or not backend.supports("float16"):
            pytest.skip("has no kernel, or no such dtype")
        x = backend.asarray(random(rng, (20, 1), "float32").astype("float16"))
        with pytest.raises(parprims.MethodRefused, match="nextafter is not defined for float16"):
            parprims.map_reduce(lambda x: np.nextafter(x, x + 1), x, op="maximum", axis=1, method="kernel")

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


@pytest.mark.once
def test_the_page_lists_the_functions():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
    start = page.index("**Functions that have a translation**")
    table = [line.split("|")[2] for line in page[start:].split("\n\n")[1].splitlines()[2:]]
    listed = {names.standard_name(one) for row in table for one in re.findall(r"`(\w+)`", row)}
    known = {*composed.COMPOSED, *names.SPECIAL, *composed.OF_TORCH} - {"sign"}
    assert listed - set(tracing._ELEMENTWISE) == known - set(tracing._ELEMENTWISE)
