"""Linear recurrences against a sequential loop."""

import sys
from typing import ClassVar

import numpy as np
import pytest

import parprims
from parprims._primitives.recurrence import array as recurrence_array
from tests.primitives.scan.test_scan import METHODS, linear_recurrence, need, recur, recurrence_bound, wide
from tests.support.contract import Contract, compare, compiled_slowly, random


class TestLinearRecurrence(Contract):
    methods = METHODS
    dtypes: ClassVar = ("int8", "int64", "float16", "bfloat16", "float32", "float64", "complex64")
    lengths: ClassVar = (0, 1, 2, 3, 4, 5, 33, 1000)
    compiled_lengths: ClassVar = (0, 1, 2, 3, 5, 33, 1000)

    def function(self, a, b, **options):
        return linear_recurrence(a, b, **options)

    def make(self, rng, shape, dtype):
        return random(rng, shape, dtype), random(rng, shape, dtype)

    def reference(self, a, b, axis):
        return recur(wide(a), wide(b), axis=axis)

    def bound(self, a, b, axis):
        return recurrence_bound(a, b, axis=axis)


class TestRecurrence:
    methods = METHODS

    @pytest.mark.parametrize("reverse", [False, True])
    def test_options(self, backend, run, method, rng, subtests, reverse):
        for shape, axis in (((12,), 0), ((3, 5), 0), ((3, 5), 1), ((2, 0), 1), ((1,), 0)):
            rest = shape[:axis] + shape[axis + 1 :]
            a, b = random(rng, shape, "int64"), random(rng, shape, "int64")
            for initial in (None, 3, random(rng, rest, "int64")):
                with subtests.test(shape=shape, axis=axis, initial=initial):
                    given = backend.asarray(initial) if isinstance(initial, np.ndarray) else initial
                    options = {"axis": axis, "reverse": reverse}
                    arrays = (backend.asarray(a), backend.asarray(b))
                    result = run(parprims.linear_recurrence, *arrays, method=method, initial=given, **options)
                    compare(backend, result, recur(a, b, initial=initial, **options), dtype="int64")

    def test_broadcast(self, backend, run, method, rng, subtests):
        shapes = (((), (7,)), ((5,), (3, 5)), ((3, 1), (5,)), ((2, 1, 4), (3, 1)), ((6,), ()))
        for first, second in shapes:
            for axis in (-1, 0):
                with subtests.test(first=first, second=second, axis=axis):
                    a, b = random(rng, first, "float64"), random(rng, second, "float64")
                    result = run(
                        parprims.linear_recurrence, backend.asarray(a), backend.asarray(b), method=method, axis=axis
                    )
                    bound = recurrence_bound(*np.broadcast_arrays(a, b), axis=axis)
                    compare(backend, result, recur(wide(a), wide(b), axis=axis), bound, "float64")

    def test_promotion(self, backend, run, method, rng):
        for one, other, dtype in (
            ("float32", "float64", "float64"),
            ("complex64", "float64", "complex128"),
            ("int8", "int32", "int32"),
            ("uint8", "int8", "int16"),
        ):
            a, b = random(rng, (9,), one), random(rng, (9,), other)
            result = run(linear_recurrence, backend.asarray(a), backend.asarray(b), method=method)
            expected = recur(a.astype(dtype), b.astype(dtype))
            compare(backend, result, expected, recurrence_bound(a.astype(dtype), b.astype(dtype)), dtype)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
    def test_constant_coefficient(self, backend, run, method, rng, dtype):
        need(backend, dtype)
        if backend.name.startswith("jax") and dtype != "float64":
            pytest.skip("a constant is nothing special to JAX")
        a = np.asarray(0.9, dtype)
        for axis, reverse in ((0, False), (1, True)):
            b, initial = random(rng, (30, 40), dtype), random(rng, (40, 30)[axis : axis + 1], dtype)
            options = {"axis": axis, "reverse": reverse}
            arrays = (backend.asarray(a), backend.asarray(b))
            result = run(
                parprims.linear_recurrence, *arrays, method=method, initial=backend.asarray(initial), **options
            )
            expected = recur(wide(a), wide(b), initial=wide(initial), **options)
            size = {"initial": abs(wide(initial)), "reverse": reverse}
            bound = recurrence_bound(np.broadcast_to(a, b.shape), b, axis=axis, **size)
            compare(backend, result, expected, bound, dtype)

    @pytest.mark.parametrize("loaded", [False, True])
    def test_constant_coefficient_by_either_routine(self, rng, monkeypatch, loaded):
        signal = pytest.importorskip("scipy.signal")
        monkeypatch.setitem(sys.modules, "scipy.signal", signal)
        if not loaded:
            monkeypatch.delitem(sys.modules, "scipy.signal")
        a, b = np.asarray(0.9), random(rng, (3, 200), "float64")
        for axis, reverse, initial in ((0, False, None), (1, False, 2.0), (1, True, None), (0, True, 2.0)):
            options = {"axis": axis, "reverse": reverse, "initial": initial}
            result = parprims.linear_recurrence(a, b, method="native", **options)
            np.testing.assert_array_equal(result, recur(a, b, **options))
        assert ("scipy.signal" in sys.modules) == loaded

    def test_native_refusals(self, monkeypatch):
        pytest.importorskip("scipy")
        b, whole = np.ones(4), np.ones(4, int)
        assert parprims.methods(parprims.linear_recurrence, b, b)["native"] is None
        assert (
            parprims.methods(parprims.linear_recurrence, whole[:, None], np.ones((4, 128), int), axis=0)["native"]
            is None
        )
        with pytest.raises(parprims.MethodRefused, match="floats"):
            parprims.linear_recurrence(whole, whole, method="native")
        monkeypatch.setattr(recurrence_array, "_has_scipy", lambda: False)
        with pytest.raises(parprims.MethodRefused, match="SciPy"):
            parprims.linear_recurrence(b, b, method="native")

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16", "float32", "float64", "complex64"])
    def test_lines_side_by_side(self, backend, run, method, rng, subtests, dtype, reverse):
        need(backend, dtype)
        if backend.name.startswith("jax") and dtype != "float32":
            pytest.skip("the number of lines is nothing special to JAX")
        if dtype in ("int32", "uint8", "float64") and method != "native" and compiled_slowly(backend, "kernel"):
            pytest.skip("the number of lines is nothing special to kernels and array operations")
        # Around the number of lines from which native steps along all at once.
        for shape, axis in (
            ((5, 127), 0),
            ((6, 129), 0),
            ((8, 5, 16), 1),
            ((9, 5, 15), 1),
            ((129, 6), 1),
            ((2, 64, 3), 0),
        ):
            rest = shape[:axis] + shape[axis + 1 :]
            a, b, initial = (random(rng, one, dtype) for one in (shape, shape, rest))
            for start in (None, initial):
                with subtests.test(shape=shape, axis=axis, start=start is not None):
                    arrays = (backend.asarray(a), backend.asarray(b))
                    given = None if start is None else backend.asarray(start)
                    options = {"axis": axis, "reverse": reverse}
                    result = run(linear_recurrence, *arrays, method=method, initial=given, **options)
                    wider = None if start is None else wide(start)
                    expected = recur(wide(a), wide(b), initial=wider, **options)
                    sizes = {"initial": None if start is None else abs(wider)} if a.dtype.kind not in "biu" else {}
                    compare(backend, result, expected, recurrence_bound(a, b, **options, **sizes), dtype)

    def test_program_of_operations_holds_the_call(self, backend, rng):
        """What records the operations on tensors sees those of a call, also of one that was made before."""
        if backend.name != "torch":
            pytest.skip("PyTorch's own tracers")
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        a, b = (backend.asarray(random(rng, (9,), "float64")) for _ in range(2))
        before = parprims.linear_recurrence(a, b)
        program = make_fx(lambda b: parprims.linear_recurrence(a, b))(b)
        torch.testing.assert_close(program(2 * b), 2 * before)

    @pytest.mark.parametrize("reverse", [False, True])
    def test_lines_do_not_touch(self, backend, run, method, rng, reverse):
        for shape, axis in (((6, 9), 1), ((9, 6), 0), ((9, 130), 0)):
            a, b = random(rng, shape, "float64"), random(rng, shape, "float64")
            lines = np.moveaxis(b, axis, 1)
            lines[1, 4], lines[3, 0], lines[4, -1] = np.nan, np.inf, -np.inf
            expected = recur(a, b, axis=axis, reverse=reverse)
            arrays = (backend.asarray(a), backend.asarray(b))
            result = backend.to_numpy(run(linear_recurrence, *arrays, axis=axis, reverse=reverse, method=method))
            finite = np.isfinite(expected)
            np.testing.assert_array_equal(np.isfinite(result), finite)
            bound = recurrence_bound(a, np.nan_to_num(b, posinf=0, neginf=0), axis=axis, reverse=reverse)
            assert (abs(result - expected)[finite] <= bound[finite]).all()

    def test_course_problem(self, backend, run, method):
        rng = np.random.default_rng(10)
        a, b = 2 * rng.random((2, 100))
        result = run(linear_recurrence, backend.asarray(a), backend.asarray(b), method=method)
        compare(backend, result, recur(wide(a), wide(b)), recurrence_bound(a, b), "float64")

    @pytest.mark.optimised
    @pytest.mark.parametrize("dtype", ["float64", "complex128"])
    def test_overflowing_products(self, backend, run, method, rng, dtype):
        # Coefficients whose products overflow within two dozen elements. Zeros among them, and zero elements, keep
        # the loop finite; there the result must be as exact as ever.
        for scale, zeros in ((1e20, 0.3), (1e3, 0.1), (1e-20, 0.1), (1e100, 0.6)):
            for n in (50, 1000):
                a, b = scale * random(rng, (n,), dtype), random(rng, (n,), dtype)
                a[rng.random(n) < zeros] = 0
                b[: n // 2] = 0
                expected = recur(a, b)
                finite = np.isfinite(expected)
                end = n if finite.all() else int(np.argmin(finite))
                assert end > 20
                result = run(linear_recurrence, backend.asarray(a), backend.asarray(b), method=method)
                compare(backend, result[:end], recur(wide(a), wide(b))[:end], recurrence_bound(a, b)[:end], dtype)

    @pytest.mark.parametrize("value", [-np.inf, np.nan])
    @pytest.mark.parametrize("n", [5, 64])
    def test_not_finite_from_there_on(self, backend, run, method, rng, value, n):
        for place in (1, n // 2, n // 2 + 1, n - 1):
            for where in ("a", "b"):
                a, b = random(rng, (n,), "float64"), random(rng, (n,), "float64")
                a[rng.random(n) < 0.2] = 0
                b[rng.random(n) < 0.2] = 0
                {"a": a, "b": b}[where][place] = value
                expected = recur(a, b)
                result = run(linear_recurrence, backend.asarray(a), backend.asarray(b), method=method)
                assert not np.isfinite(expected[place:]).any()
                assert not np.isfinite(backend.to_numpy(result)[place:]).any()
                compare(backend, result[:place], expected[:place], recurrence_bound(a, b)[:place])

    @pytest.mark.optimised
    def test_overflow_is_never_a_wrong_number(self, backend, run, method):
        # Products overflow, but meet an element so small that the loop does not: right, or infinite or NaN.
        a, b = np.full(64, 1e100), np.zeros(64)
        a[32:], b[0] = 1e-100, 1e-300
        a[6:32] = 1.0
        expected = recur(a, b)
        assert np.isfinite(expected).all()
        result = backend.to_numpy(run(linear_recurrence, backend.asarray(a), backend.asarray(b), method=method))
        finite = np.isfinite(result)
        compare(backend, backend.asarray(result[finite]), expected[finite], recurrence_bound(a, b)[finite])

    def test_no_warning_without_a_trace(self):
        a, b = np.full(64, 1e200), np.ones(64)
        a[::2] = 0
        with np.errstate(all="raise"):
            x = parprims.linear_recurrence(a, b, method="array")
        np.testing.assert_array_equal(x, recur(a, b))

    def test_first_coefficient_is_not_read(self, backend, run, method, rng):
        for n in (1, 2, 3, 40):
            a, b = random(rng, (n,), "float64"), random(rng, (n,), "float64")
            a[0] = np.nan
            result = run(linear_recurrence, backend.asarray(a), backend.asarray(b), method=method)
            compare(backend, result, recur(wide(a), wide(b)), recurrence_bound(np.nan_to_num(a), b))

    def test_result_is_not_the_input(self):
        for n in (1, 2, 3):
            a, b = np.ones(n), np.arange(float(n))
            assert not np.shares_memory(parprims.linear_recurrence(a, b), b)


class TestTransformations:
    """Batching by JAX; derivatives have a module of their own."""

    methods: ClassVar = ("native", "array")

    def test_jax_vmap(self, backend, run, method, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("JAX's own transformation")
        import jax

        a, b = random(rng, (3, 20), "float64"), random(rng, (3, 20), "float64")

        def solve(a, b):
            return run(parprims.linear_recurrence, a, b, method=method)

        result = jax.vmap(solve)(backend.asarray(a), backend.asarray(b))
        compare(backend, result, recur(wide(a), wide(b)), recurrence_bound(a, b))
