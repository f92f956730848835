"""Faults that other libraries had, each with the case that shows it; their places are in the docstrings."""

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

import parprims
from tests.support.contract import VIEWS, compare, eps
from tests.support.covering import lacks_dtype

METHODS = ("array", "native", "kernel")
_NOT_NATIVE = ("linear_recurrence", "solve_tridiagonal")


def jitted(backend: Any, function: Any) -> Any:
    """Return the function, on JAX as one program, which takes less time to compile than its operations one by one."""
    if not backend.name.startswith("jax"):
        return function

    def call(*arrays: Any, **options: Any) -> Any:
        import jax

        return jax.jit(lambda *xs: function(*xs, **options))(*arrays)

    return call


def left_out(test: str, given: dict[str, Any]) -> str:
    """Return the sentence why a case is not tested, or nothing."""
    on_jax, method = given.get("backend", "").startswith("jax"), given.get("method")
    if method == "auto" and test not in ("test_nan", "test_edges"):
        return "auto takes what is tested by name"
    if test == "test_every_primitive" and on_jax:
        return "JAX has no views"
    if test == "test_every_primitive" and method == "native" and given["name"] in _NOT_NATIVE:
        return "no library has a routine for all of these views"
    if test == "test_every_sign_and_payload" and on_jax and method == "array":
        return "would compile for long what test_sort.py has compiled"
    return ""


def only_refused(_test: str, given: dict[str, Any]) -> bool:
    """Return whether a case can only be refused: see covering.py."""
    return given.get("backend") == "array-api-strict" and lacks_dtype(given)


class TestManySystems:
    """A batched solve with k = 524281 right-hand sides gave wrong numbers without a word (pytorch/pytorch#187717)."""

    methods: ClassVar = METHODS

    @pytest.mark.parametrize("columns", [524_281, 65_536 * 8 + 1])
    def test_right_hand_sides(self, backend, run, method, rng, columns):
        if backend.name == "emulated":
            columns = 70_001  # beyond what the second dimension of a grid can count
        bands = [np.asarray(one, np.float32) for one in ((0, 1, -1), (4, -5, 3), (1, 2, 0))]
        rhs = rng.standard_normal((3, columns)).astype(np.float32)
        matrix = np.diag(bands[1]) + np.diag(bands[0][1:], -1) + np.diag(bands[2][:-1], 1)
        arrays = (backend.asarray(x) for x in (*bands, rhs))
        x = run(jitted(backend, parprims.solve_tridiagonal), *arrays, axis=0, method=method)
        compare(backend, x, np.linalg.inv(matrix.astype(np.float64)) @ rhs, 40 * eps("float32"), "float32")

    def test_batch(self, backend, run, method, rng):
        """One more than a grid counts in its second and third dimension."""
        lower, upper, rhs = (rng.standard_normal((65_537, 2)).astype(np.float32) for _ in range(3))
        diag = np.full((65_537, 2), 8, np.float32)
        determinant = diag[:, 0].astype(float) * diag[:, 1] - upper[:, 0].astype(float) * lower[:, 1]
        expected = np.stack(
            [
                (rhs[:, 0].astype(float) * diag[:, 1] - upper[:, 0].astype(float) * rhs[:, 1]) / determinant,
                (rhs[:, 1].astype(float) * diag[:, 0] - lower[:, 1].astype(float) * rhs[:, 0]) / determinant,
            ],
            axis=1,
        )
        arrays = (backend.asarray(x) for x in (lower, diag, upper, rhs))
        x = run(jitted(backend, parprims.solve_tridiagonal), *arrays, method=method)
        compare(backend, x, expected, 20 * eps("float32"), "float32")


class TestNoSystems:
    """An empty batch, of shape (0, 3, n), crashed a tridiagonal solve (tensorflow/tensorflow#126681)."""

    methods: ClassVar = METHODS

    @pytest.mark.parametrize("n", [0, 1, 2])
    def test_empty_batch(self, backend, run, method, n):
        x = backend.asarray(np.ones((0, 3, n)))
        options = {"method": method, "return_residual": True, "return_status": True}
        for periodic in (False, True):
            solution, error, status = run(parprims.solve_tridiagonal, x, x, x, x, periodic=periodic, **options)
            compare(backend, solution, np.ones((0, 3, n)), dtype="float64")
            compare(backend, error, np.ones((0, 3)), dtype="float64")
            compare(backend, status, np.ones((0, 3), np.int32), dtype="int32")

    @pytest.mark.parametrize("n", [0, 1, 2])
    def test_no_right_hand_side(self, backend, run, method, n):
        x, rhs = backend.asarray(np.ones(n)), backend.asarray(np.ones((n, 0)))
        solution, error = run(parprims.solve_tridiagonal, x, x, x, rhs, method=method, return_residual=True)
        compare(backend, solution, np.ones((n, 0)), dtype="float64")
        compare(backend, error, np.ones(0), dtype="float64")


class TestZeroDiagonal:
    """Where every pivot is zero until rows are exchanged, NaN came out (jax-ml/jax#36644)."""

    methods: ClassVar = METHODS

    def test_chain(self, backend, run, method, rng):
        """Of [[0, 1], [1, 0]], regular for n even; for n odd one diagonal number makes it so."""
        lengths = (2, 3, 6, 9, 64, 65, 256, 257, 1025)
        for n in {"jax": (3, 6), "emulated": (3, 6, 65)}.get(backend.name.removesuffix("-cuda"), lengths):
            diag, ones = np.zeros(n), np.ones(n)
            if n % 2:
                diag[n // 4 * 2] = 1.0  # at an even place, or the determinant is zero still
            for periodic in (False, True) if n == 6 and method != "native" else (False,):
                exact = rng.integers(-4, 5, n).astype(float)
                before, behind = np.roll(exact, 1), np.roll(exact, -1)
                if not periodic:
                    before[0] = behind[-1] = 0.0
                rhs = before + diag * exact + behind
                arrays = (backend.asarray(x) for x in (ones, diag, ones, rhs))
                solve = jitted(backend, parprims.solve_tridiagonal)
                x, error = run(solve, *arrays, periodic=periodic, method=method, return_residual=True)
                compare(backend, x, exact, 1e-9, "float64")
                assert float(error) <= 8 * eps("float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
class TestNaN:
    """A NaN with a sign came first (pytorch/pytorch#190781)."""

    methods: ClassVar = METHODS

    def numbers(self, rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return floats, a fifth of them NaN of either sign and any payload, and where NaN are."""
        floats = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
        fraction = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
        integers = np.dtype(f"u{floats.itemsize}")
        x = rng.standard_normal(shape).astype(floats)
        x[rng.random(shape) < 0.2] = 0
        bits = x.view(integers).copy()
        nan = rng.random(shape) < 0.2
        top = 8 * floats.itemsize - 1
        exponent = ((1 << top) - (1 << fraction)) & ((1 << top) - 1)
        payload = rng.integers(1, 1 << min(fraction, 62), shape).astype(integers) | integers.type(1 << (fraction - 1))
        sign = rng.integers(0, 2, shape).astype(integers) << integers.type(top)
        bits[nan] = (payload | integers.type(exponent) | sign)[nan]
        return bits.view(floats), nan

    @pytest.mark.parametrize("function", [parprims.argsort, parprims.sort_by_key, parprims.sort])
    @pytest.mark.parametrize("descending", [False, True])
    def test_every_sign_and_payload(self, backend, run, method, rng, dtype, descending, function):
        if not backend.supports(dtype) and not (backend.name == "numpy" and dtype == "bfloat16"):
            pytest.skip(f"{backend.name} has no {dtype}")
        shape = (3, 40) if backend.name in ("emulated", "jax") else (3, 700)
        x, nan = self.numbers(rng, dtype, shape)
        wide = np.where(nan, np.inf, x.astype(np.float64)) + 0.0  # -0 equal to +0; no infinities but for NaN
        order = np.argsort(-wide if descending else wide, axis=-1, kind="stable")
        given = backend.asarray(x)
        options = {"descending": descending, "method": method}
        if function is parprims.argsort:
            np.testing.assert_array_equal(backend.to_numpy(run(function, given, **options)), order)
            return
        if function is parprims.sort:
            result = run(function, given, **options)
        else:
            places = backend.asarray(np.broadcast_to(np.arange(shape[1]), shape).copy())
            result, moved = run(function, given, places, **options)
            np.testing.assert_array_equal(backend.to_numpy(moved), order)
        result = backend.to_numpy(result)
        expected = np.take_along_axis(x, order, axis=-1)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        numbers = ~np.isnan(expected)
        assert result[numbers].tobytes() == expected[numbers].tobytes()
        if backend.name in ("numpy", "emulated"):  # others may change a NaN where it is handed over
            assert result.tobytes() == expected.tobytes()


class TestExtremaOfMany:
    """XLA lost NaN where it found extrema of some thousand elements on CPUs (openxla/xla#21461)."""

    methods: ClassVar = METHODS

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_nan(self, backend, run, method, rng, subtests, dtype):
        """Auto too: it is this routine that it takes on JAX."""
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype}")
        x = rng.standard_normal((70, 80)).astype(dtype)
        x[3, 5] = x[60, 79] = np.nan
        given = backend.asarray(x)
        calls = {
            "max": (lambda x, **options: parprims.max(x, **options), np.max),
            "min": (lambda x, **options: parprims.min(x, **options), np.min),
            "reduce": (lambda x, **options: parprims.reduce(x, "maximum", **options), np.max),
            "map_reduce": (lambda x, **options: parprims.map_reduce(lambda x: -x, x, op="minimum", **options), None),
        }
        for (name, (call, expected)), axis in itertools.product(calls.items(), (None, 0, 1)):
            wanted = np.min(-x, axis=axis) if expected is None else expected(x, axis=axis)
            with subtests.test(call=name, axis=axis):
                compare(backend, run(jitted(backend, call), given, axis=axis, method=method), wanted)
        for call in (parprims.max, parprims.min):
            compare(backend, run(call, given, method=method), np.asarray(np.nan, dtype))

    def test_edges(self, backend, run, method, rng):
        """A histogram has no bins between such ends."""
        x = rng.standard_normal(9000)
        x[77] = np.nan
        counts, edges = run(parprims.histogram, backend.asarray(x), 8, method=method)
        assert np.isnan(backend.to_numpy(edges)).all()
        assert not backend.to_numpy(counts).any()


class TestReverseScan:
    """A reverse scan of two dimensions was wrong (pytorch/pytorch#137943, triton-lang/triton#4362)."""

    methods: ClassVar = METHODS

    @pytest.mark.parametrize("exclusive", [False, True])
    def test_shape_of_two_and_nine(self, backend, run, method, rng, exclusive):
        a, b = (rng.integers(-2, 3, (2, 9)) for _ in range(2))
        expected_a, expected_b = np.empty_like(a), np.empty_like(b)
        for row in range(2):
            total = (1, 0)
            for at in reversed(range(9)):
                if exclusive:
                    expected_a[row, at], expected_b[row, at] = total
                total = (a[row, at] * total[0], a[row, at] * total[1] + b[row, at])
                if not exclusive:
                    expected_a[row, at], expected_b[row, at] = total
        arrays = tuple(backend.asarray(x) for x in (a, b))
        result = run(parprims.scan, arrays, "affine", reverse=True, exclusive=exclusive, method=method)
        compare(backend, result, (expected_a, expected_b))


def with_zero_stride(backend: Any, x: np.ndarray) -> Any:
    """Return the first row, repeated without memory of its own."""
    return backend.xp.broadcast_to(backend.asarray(np.ascontiguousarray(x[:1])), x.shape)


def overlapping(backend: Any, x: np.ndarray) -> Any:
    """Return rows of which each begins one element behind the one before, where the library has such views."""
    flat = x.reshape(-1)[: x.shape[0] + x.shape[1] - 1]
    if backend.name.startswith("torch"):
        return backend.asarray(flat).unfold(0, x.shape[1], 1)
    windows = np.lib.stride_tricks.sliding_window_view(flat, x.shape[1])
    return windows if backend.name in ("numpy", "emulated") else backend.asarray(np.ascontiguousarray(windows))


class TestStrides:
    """Arrays that are not contiguous were read as if they were (pytorch/pytorch#162602, pytorch/pytorch#62645)."""

    methods: ClassVar = METHODS

    ALONG: ClassVar = {
        "sum": lambda x: x.sum(axis=-1),
        "max": lambda x: x.max(axis=-1),
        "scan": lambda x: x.cumsum(axis=-1),
        "sort": lambda x: np.sort(x, axis=-1),
        "argsort": lambda x: np.argsort(x, axis=-1, kind="stable"),
        "vecdot": lambda x: (x * x).sum(axis=-1),
    }

    @pytest.mark.parametrize("view", [*VIEWS, with_zero_stride, overlapping], ids=lambda view: view.__name__)
    @pytest.mark.parametrize("name", [*ALONG, "linear_recurrence", "solve_tridiagonal", "matmul"])
    def test_every_primitive(self, backend, run, method, rng, view, name):
        x = rng.integers(-5, 6, (6, 9)).astype(np.float32)
        given = view(backend, x)
        plain = np.ascontiguousarray(backend.to_numpy(given))
        before, function, columns = plain.copy(), getattr(parprims, name), backend.xp.matrix_transpose(given)
        if name in self.ALONG:
            want = self.ALONG[name](plain)
            for array, axis, expected in ((given, -1, want), (columns, -2, want.T if want.ndim > 1 else want)):
                arrays = (array,) * (2 if name == "vecdot" else 1)
                compare(backend, run(function, *arrays, axis=axis, method=method), expected)
        elif name == "linear_recurrence":
            loop = plain / 16
            for at in range(1, 9):
                loop[:, at] += plain[:, at] / 16 * loop[:, at - 1]
            a = given / 16
            compare(backend, run(function, a, a, method=method), loop, 1e-6)
        elif name == "solve_tridiagonal":
            solved = run(function, 1.0, 4.0, -1.0, columns, axis=-2, method=method)
            matrix = 4 * np.eye(9) + np.eye(9, k=-1) - np.eye(9, k=1)
            compare(backend, solved, np.linalg.solve(matrix, plain.T.astype(np.float64)), 1e-5)
        else:
            compare(backend, run(function, given, columns, method=method), plain @ plain.T)
        np.testing.assert_array_equal(backend.to_numpy(given), before)


class TestLogaddexp:
    """A scan of logaddexp over -inf gave NaN (pytorch/pytorch#52213, intel/torch-xpu-ops#2816)."""

    methods: ClassVar = METHODS

    def test_infinities(self, backend, run, method):
        inf, nan = np.inf, np.nan
        x = np.asarray(
            [[-inf, 1, -inf], [-inf, -inf, -inf], [inf, 1, -inf], [-inf, inf, inf], [0, nan, 1], [nan, -inf, inf]]
        )
        scanned = np.asarray(
            [[-inf, 1, 1], [-inf, -inf, -inf], [inf, inf, inf], [-inf, inf, inf], [0, nan, nan], [nan, nan, nan]]
        )
        for dtype in ("float32", "float64"):
            given = backend.asarray(x.astype(dtype))
            compare(backend, run(parprims.scan, given, "logaddexp", method=method), scanned, eps(dtype), dtype)
            backwards = run(parprims.scan, given[:, ::1], "logaddexp", reverse=True, exclusive=True, method=method)
            behind = np.asarray(
                [[1, -inf, -inf], [-inf] * 3, [1, -inf, -inf], [inf, inf, -inf], [nan, 1, -inf], [inf, inf, -inf]]
            )
            compare(backend, backwards, behind, eps(dtype), dtype)
        if method != "native":
            total = run(parprims.reduce, given, "logaddexp", axis=1, method=method)
            compare(backend, total, scanned[:, -1], eps(dtype), dtype)
