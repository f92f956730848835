"""Functions and operators of the caller's compute with 16-bit floats in float32, and results are rounded once.

All sums and products here are exact in float32, so that every method has the same bits, and one more rounding shows.
"""

import itertools
from typing import Any

import numpy as np
import pytest

import parprims
from tests.support.contract import numpy_dtype

METHODS = ("array", "native", "kernel")
DTYPES = ("float16", "bfloat16")
N, OFFSETS = 40, (0, 13, 13, 30, 40)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest, backend: Any) -> str:
    if backend.name == "array-api-strict":
        pytest.skip("array-api-strict has no 16-bit floats")
    constants = "map" in request.node.name and "initial" not in request.node.name
    if request.param == "bfloat16" and (backend.family == "numpy" or backend.name == "cupy") and constants:
        pytest.skip("bfloat16 times a number of Python is float32 in NumPy and CuPy")
    return str(request.param)


def eighths(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return eighths from 0 to 16, which both dtypes have, and float32 adds without an error."""
    return (rng.integers(0, 128, shape) / 8).astype(numpy_dtype(dtype))


def segments(x: np.ndarray) -> list[np.ndarray]:
    return [x[..., begin:end] for begin, end in itertools.pairwise(OFFSETS)]


def plus(earlier: Any, later: Any) -> Any:
    return earlier + later


PLUS = parprims.Operator(plus, identity=0)


def ours(call: Any, **options: Any) -> Any:
    try:
        return call(**options)
    except parprims.MethodRefused as refusal:
        pytest.skip(str(refusal))


def check(backend: Any, got: Any, expected: np.ndarray, dtype: str) -> None:
    """Assert that a result has the values of float64 rounded to float32, where they are exact, and to the dtype."""
    assert (expected == expected.astype(np.float32)).all()
    got = backend.to_numpy(got)
    assert got.dtype.name == dtype
    with np.errstate(over="ignore"):
        wanted = expected.astype(np.float32).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


class TestSixteenBits:
    methods = METHODS

    @pytest.mark.parametrize("result", [None, "float32"])
    @pytest.mark.parametrize("op", ["add", PLUS])
    def test_map(self, backend, method, dtype, result, op):
        """Products that overflow 16 bits on the way, and constants that they cannot hold."""
        x = np.full(N, 2.0**9, numpy_dtype(dtype))
        given = backend.asarray(x)
        options = {} if result is None else {"dtype": result}
        got = ours(
            lambda **options: parprims.map_reduce(
                lambda v: v * v * (1 + 2.0**-16) * 2.0**-18, given, op=op, **options
            ),
            method=method, **options,
        )  # fmt: skip
        check(backend, got, np.asarray(N * (1 + 2.0**-16)), result or dtype)

    def test_map_of_several(self, backend, method, dtype, rng):
        """Several arrays, and several values, of which an integer keeps its dtype."""
        x, y = (eighths(rng, (3, N), dtype) for _ in range(2))
        a, b = backend.asarray(x), backend.asarray(y)
        got = ours(lambda **options: parprims.map_reduce(lambda v, w: v * w, a, b, axis=1, **options), method=method)
        check(backend, got, (x.astype(float) * y).sum(axis=1), dtype)
        if method in ("array", "kernel"):
            op = parprims.Operator(lambda e, f: (e[0] + f[0], e[1] + f[1]), identity=(0, 0), components=2)
            found = ours(
                lambda **options: parprims.map_reduce(lambda v: (v * 1.0009765625, v > 3), a, op=op, axis=1,
                                                      dtype=(dtype, "int32"), **options),
                method=method,
            )  # fmt: skip
            check(backend, found[0], (x.astype(float) * 1.0009765625).sum(axis=1), dtype)
            check(backend, found[1], (x > 3).sum(axis=1), "int32")

    def test_map_reads_its_dtype(self, backend, method, dtype):
        """What a map asks of its argument's dtype is the same by every method."""
        x = backend.asarray(np.full(N, 1.5, numpy_dtype(dtype)))
        got = ours(
            lambda **options: parprims.map_reduce(
                lambda v: parprims._core.arrays.namespace_of(v).astype(v + 2.0**-16, v.dtype),
                x, dtype="float32", **options,
            ),
            method=method,
        )  # fmt: skip
        check(backend, got, np.asarray(N * (1.5 + 2.0**-16)), "float32")

    @pytest.mark.parametrize("initial", [None, 1000])
    @pytest.mark.parametrize("op", ["add", PLUS])
    def test_segments(self, backend, method, dtype, rng, initial, op):
        x = eighths(rng, (5, N), dtype)
        given, offsets = backend.asarray(x), backend.asarray(np.asarray(OFFSETS))
        begin = float(np.asarray(initial or 0, numpy_dtype(dtype)))
        sums = np.stack([begin + one.astype(float).sum(axis=1) for one in segments(x)], axis=1)
        products = np.stack([begin + (one.astype(float) ** 2).sum(axis=1) for one in segments(x)], axis=1)
        scans = np.concatenate([begin + one.astype(float).cumsum(axis=1) for one in segments(x)], axis=1)
        options = {"axis": 1, "method": method, **({} if initial is None else {"initial": begin})}
        try:
            check(backend, parprims.reduce(given, op, offsets=offsets, **options), sums, dtype)
            mapped = parprims.map_reduce(lambda v: v * v, given, op=op, offsets=offsets, **options)
            check(backend, mapped, products, dtype)
            check(backend, parprims.scan(given, op, offsets=offsets, **options), scans, dtype)
            ids = backend.asarray(np.repeat(np.arange(4), np.diff(OFFSETS)))
            check(backend, parprims.segment_reduce(given, ids, 4, op, **options), sums, dtype)
        except parprims.MethodRefused:
            assert method in ("native", "kernel")

    def test_initial_array_of_a_map(self, backend, method, dtype, rng):
        x, start = eighths(rng, (5, N), dtype), np.full(5, 1000, numpy_dtype(dtype))
        given, offsets = backend.asarray(x), backend.asarray(np.asarray((0, N)))
        got = ours(
            lambda **options: parprims.map_reduce(
                lambda v: v + v + v, given, offsets=offsets, axis=1, initial=backend.asarray(start), **options
            ),
            method=method,
        )
        check(backend, got[:, 0], start.astype(float) + 3 * x.astype(float).sum(axis=1), dtype)

    def test_operators(self, backend, method, dtype, rng):
        """An operator whose steps overflow 16 bits: of reductions, scans and products of matrices."""
        op = parprims.Operator(lambda e, f: e * f * 2.0**-12, identity=2.0**12)
        x = backend.asarray((2.0 ** rng.integers(11, 14, (2, N))).astype(numpy_dtype(dtype)))
        wide = backend.to_numpy(x).astype(float)
        steps = 2.0**12 * np.cumprod(wide * 2.0**-12, axis=1)
        for function, expected in ((parprims.reduce, steps[:, -1]), (parprims.scan, steps)):
            got = ours(lambda **options: function(x, op, axis=1, **options), method=method)  # noqa: B023
            check(backend, got, expected, dtype)
        y = backend.asarray(eighths(rng, (3, 7), dtype))
        wide = backend.to_numpy(y).astype(float)
        got = ours(
            lambda **options: parprims.matmul(
                y, backend.xp.permute_dims(y, (1, 0)), add="maximum",
                multiply=lambda a, b: a * b * 4096 * 2.0**-12, **options,
            ),
            method=method,
        )  # fmt: skip
        check(backend, got, np.max(wide[:, None, :] * wide[None, :, :], axis=2), dtype)

    def test_the_result_of_a_map_is_rounded_once(self, backend, method, dtype, rng):
        x = eighths(rng, (N,), dtype)
        given = backend.asarray(x)
        got = ours(lambda **options: parprims.map_reduce(lambda v: v * 1.0009765625, given, **options), method=method)
        check(backend, got, np.asarray((x.astype(float) * 1.0009765625).sum()), dtype)


class TestDtypeAskedFor:
    """Elements of float32 and results of 16 bits: one rounding, at the end, in segments as in whole arrays."""

    methods = METHODS

    @pytest.mark.parametrize("initial", [None, "number", "array"])
    def test_singles_to_halves(self, backend, method, dtype, rng, initial):
        x = rng.integers(-(2**17), 2**17, N).astype(np.float32)  # which no 16 bits hold, nor most partial sums
        for part in segments(x):
            part[-1:] -= part.sum() - 2049
        given, offsets = backend.asarray(x), backend.asarray(np.asarray(OFFSETS))
        ids = backend.asarray(np.repeat(np.arange(4), np.diff(OFFSETS)))
        start = {None: 0, "number": 3, "array": 3}[initial]
        begin = {"array": backend.asarray(np.asarray(start, numpy_dtype(dtype))), "number": float(start)}
        options = {"dtype": dtype, "method": method, **({} if initial is None else {"initial": begin[initial]})}
        sums = np.array([part.astype(float).sum() + start for part in segments(x)])
        scans = np.concatenate([part.astype(float).cumsum() + start for part in segments(x)])
        for expected, call in (
            (x.astype(float).sum() + start, lambda: parprims.reduce(given, **options)),
            (sums, lambda: parprims.reduce(given, offsets=offsets, **options)),
            (sums, lambda: parprims.map_reduce(lambda v: v, given, offsets=offsets, **options)),
            (scans, lambda: parprims.scan(given, offsets=offsets, **options)),
            (sums, lambda: parprims.segment_reduce(given, ids, 4, **options)),
        ):
            try:
                check(backend, call(), expected, dtype)
            except parprims.MethodRefused:
                assert method in ("native", "kernel")


@pytest.mark.once
@pytest.mark.parametrize("initial", [None, 1.0])
def test_bfloat16_of_ml_dtypes(rng, initial):
    """NumPy has the dtype by another package, and under no name of its own."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = (rng.integers(0, 128, 600) / 8).astype(ml_dtypes.bfloat16)
    whole, start = x.astype(np.float64), {} if initial is None else {"initial": initial}
    for method in ("auto", *METHODS):
        for op in ("add", PLUS):
            try:
                found = parprims.map_reduce(lambda v: v + v, x, op=op, method=method, **start)
            except parprims.MethodRefused:
                assert method in ("native", "kernel")
                continue
            expected = 2 * whole.sum() + (initial or 0.0)
            assert found.dtype == x.dtype
            assert found == np.float32(expected).astype(ml_dtypes.bfloat16), (method, op)


def test_compiled_by_torch():
    torch = pytest.importorskip("torch")
    x, offsets = torch.full((N,), 2.0**9, dtype=torch.float16), torch.tensor([0, N // 2, N])
    for options in ({}, {"offsets": offsets}):

        @torch.compile(backend="eager", fullgraph=True)
        def total(x, options=options):
            return parprims.map_reduce(lambda v: v * v * 2.0**-18, x, **options)

        got = total(x)
        assert got.dtype == torch.float16
        assert float(got.sum()) == N


def test_transformed_by_jax():
    jax = pytest.importorskip("jax")
    x = jax.numpy.full(N, 2.0**9, "float16")

    def total(x):
        return parprims.map_reduce(lambda v: v * v * 2.0**-18, x)

    assert float(jax.jit(total)(x)) == N
    assert float(jax.vmap(total)(x[None])[0]) == N
    assert float(jax.grad(total)(x)[0]) == 2.0**-8
