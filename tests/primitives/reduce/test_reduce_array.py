"""The array form of reductions: it goes by blocks, which bounds its memory."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

import parprims
from parprims._primitives.reduce import array as reduce_array
from tests.primitives.reduce.test_reduce import METHODS, loop


class TestBlocks:
    """Where elements are combined block by block, results are the same and memory is bounded."""

    methods = METHODS

    @pytest.fixture(autouse=True)
    def _no_kernel(self, request):
        if "method" in request.fixturenames and request.getfixturevalue("method") in ("kernel", "auto"):
            pytest.skip("a kernel combines everything in one launch")

    @pytest.mark.parametrize("block", [64, 1000])
    def test_every_axis(self, backend, method, rng, monkeypatch, block):
        """Blocks of a few elements, cut along whatever axis, by operators in order and not."""
        if backend.name.startswith("jax"):
            pytest.skip("JAX is given everything at once")
        monkeypatch.setattr(reduce_array, "SMALLEST_BLOCK", block)
        monkeypatch.setattr(reduce_array, "LARGEST_BLOCK", block)
        a, b = (backend.asarray(rng.integers(-2, 3, (5, 3, 14))) for _ in range(2))
        for axis in (None, 0, 1, 2, (0, 1), (0, 2), (1, 2)):
            axes = range(3) if axis is None else axis if isinstance(axis, tuple) else (axis,)
            for keepdims in (False, True):
                rows = [np.moveaxis(backend.to_numpy(x), list(axes), range(len(axes))) for x in (a, b)]
                flat = [x.reshape(-1, *x.shape[len(axes) :]) for x in rows]
                if method == "array":
                    expected = loop(lambda e, f: (f[0] * e[0], f[0] * e[1] + f[1]), *flat, axis=0)
                    got = parprims.reduce((a, b), "affine", axis=axis, keepdims=keepdims, method=method)
                    for one, other in zip(got, expected, strict=True):
                        np.testing.assert_array_equal(backend.to_numpy(one).reshape(other.shape), other)
                for function, expected in (
                    (parprims.sum, flat[0].sum(axis=0)),
                    (parprims.max, flat[0].max(axis=0)),
                    (parprims.any, flat[0].any(axis=0)),
                ):
                    got = function(a, axis=axis, keepdims=keepdims, method=method)
                    assert got.shape == np.sum(backend.to_numpy(a), axis=axis, keepdims=keepdims).shape
                    np.testing.assert_array_equal(backend.to_numpy(got).reshape(expected.shape), expected)
                mapped = parprims.map_reduce(lambda x, y: x * y - 1, a, b, axis=axis, initial=7, method=method)
                np.testing.assert_array_equal(backend.to_numpy(mapped), 7 + (flat[0] * flat[1] - 1).sum(axis=0))
        np.testing.assert_array_equal(
            backend.to_numpy(parprims.vecdot(a, b[:1, ...], axis=-1, method=method)),
            np.sum(backend.to_numpy(a) * backend.to_numpy(b)[:1], axis=-1),
        )

    def test_a_function_of_more_than_an_element_sees_everything(self, backend, method, monkeypatch):
        """One that reads an array of the whole shape beside its argument, which no kernel could."""
        monkeypatch.setattr(reduce_array, "SMALLEST_BLOCK", 64)
        weights = backend.asarray(np.arange(1000.0))
        x = backend.asarray(np.ones(1000))
        total = parprims.map_reduce(lambda one: one * weights, x, method=method)
        assert float(total) == 999 * 500
        if method == "array":
            modulus = backend.asarray(np.arange(2, 102))
            y = backend.asarray(np.arange(1000).reshape(10, 100))
            sums = parprims.reduce(y, lambda earlier, later: (earlier + later) % modulus, axis=0, method=method)
            expected = np.arange(1000).reshape(10, 100).sum(axis=0) % np.arange(2, 102)
            np.testing.assert_array_equal(backend.to_numpy(sums), expected)

    @pytest.mark.parametrize("dtype", ["int8", "float16"])
    def test_memory_of_a_cast(self, backend, method, dtype):
        """Of 8 Mi elements narrower than what they are summed in: less than they would take in that."""
        x = (np.arange(2**23) % 7 == 0).astype(dtype)
        kept = peak_of(
            backend, lambda: int(parprims.sum(backend.asarray(x), dtype=backend.dtype(wider(dtype)), method=method))
        )
        assert kept[0] == -(-(2**23) // 7)
        assert kept[1] < 24 * 2**20

    def test_memory_of_a_view_that_repeats_one_number(self, backend, method):
        """Of 2^26 elements, which would take 512 MiB."""
        x = np.broadcast_to(np.float64(1), (2**26,))
        n = float(2**26)
        for function, expected in (
            (parprims.sum, n),
            (parprims.max, 1.0),
            (parprims.any, True),
            (lambda x, **options: parprims.map_reduce(lambda one: one + 1, x, **options), 2 * n),
            (lambda x, **options: parprims.vecdot(x, x[:, None][:, 0], **options), n),
        ):
            got, peak = peak_of(backend, lambda: function(x, method=method).item())  # noqa: B023
            assert got == expected
            assert peak < 48 * 2**20

    def test_bits_do_not_depend_on_the_call(self, backend, method, rng):
        """Alone or after others, the same blocks; and a copy that lies otherwise in memory is grouped alike."""
        x = rng.standard_normal((1500, 1000)).astype(np.float32)
        one, other = (parprims.map_reduce(lambda x: x * x, backend.asarray(x), method=method) for _ in range(2))
        assert backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()
        # Every term passes a block's tree, or the library's sum of it, and an addition for each doubling of blocks.
        exact = math.fsum((x.astype(np.float64) ** 2).ravel())
        steps = 2 * 21 if method == "array" else 1000
        assert abs(float(one) - exact) <= steps * 2.0**-24 * exact


def wider(dtype: str) -> str:
    return {"int8": "int64", "float16": "float32"}[dtype]


def peak_of(backend: Any, call: Any) -> tuple[Any, int]:
    """Return what a call returns and the most bytes that NumPy had for it at any time."""
    if backend.name not in ("numpy", "emulated"):
        pytest.skip("only NumPy's memory is traced")
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.once
def test_winners_with_equals_and_nan_of_several_lines(rng):
    """One line may have two winners that are equal and another, of NaN, none that equals itself."""
    for case in range(300):
        shape = [(2, 3), (3, 2), (4, 5), (2, 3, 2), (3, 1, 4), (0, 3)][case % 6]
        few = rng.choice([-1.0, -0.0, 0.0, 1.0, np.nan, np.inf], shape, p=[0.3, 0.1, 0.1, 0.3, 0.15, 0.05])
        x = few if case % 2 else rng.permutation(int(np.prod(shape))).reshape(shape) * 1.0
        x = x if case % 3 else np.asfortranarray(x)
        index = rng.permutation(x.size).reshape(shape)
        op, axis = ("argmax", "argmin")[case // 7 % 2], [-1, None, 0, (0, 1)][case // 2 % 4]
        if 0 in shape and axis != -1:
            continue
        for keepdims in (False, True):
            found = parprims.reduce((x, index), op, axis=axis, keepdims=keepdims, method="native")
            expected = parprims.reduce((x, index), op, axis=axis, keepdims=keepdims, method="array")
            for one, other in zip(found, expected, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(
                np.copysign(1, found[0])[found[0] == 0], np.copysign(1, expected[0])[expected[0] == 0]
            )


@pytest.mark.once
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_dtypes_of_sums_of_tensors(name):
    """PyTorch's own routine, given no dtype, widens every integer to int64; sums of unsigned integers are unsigned."""
    torch = pytest.importorskip("torch")
    dtypes = [getattr(torch, one) for one in ("bool", "uint8", "int8", "int32", "int64", "uint16", "uint32")]
    for given in dtypes:
        x = torch.tensor([[1, 2, 3], [4, 100, 6]]).to(given)
        default = torch.int64 if given.is_signed or given == torch.bool else torch.uint64
        for dtype in (None, torch.int8, torch.int32, torch.int64, torch.float32):
            for axis in (None, 0, (0, 1)):
                for method in ("native", "auto"):
                    found = getattr(parprims, name)(x, axis=axis, dtype=dtype, method=method)
                    expected = getattr(parprims, name)(x, axis=axis, dtype=dtype, method="array")
                    assert found.dtype == (dtype or default)
                    assert torch.equal(found, expected)


def test_only_elements_have_memory_of_their_own(backend):
    """Axes of length 1, which a routine might hand back as they are."""
    if backend.name not in ("numpy", "torch"):
        pytest.skip("NumPy and PyTorch go straight to their routine")
    x, index = backend.asarray(np.arange(6.0).reshape(2, 1, 3)), backend.asarray(np.arange(6).reshape(2, 1, 3))
    truth = backend.asarray(np.ones((2, 1, 3), bool))
    calls = {
        "sum": (x, lambda **how: parprims.sum(x, **how)),
        "max": (x, lambda **how: parprims.max(x, **how)),
        "all": (truth, lambda **how: parprims.all(truth, **how)),
        "vecdot": (x, lambda axis, method: parprims.vecdot(x, x, axis=axis - 3, method=method)),
        "map_reduce": (x, lambda **how: parprims.map_reduce(lambda y: y, x, **how)),
        "argmax": (x, lambda **how: parprims.reduce((x, index), "argmax", **how)[0]),
    }
    for given, call in calls.values():
        for _ in range(2):
            found, expected = call(axis=1, method="native"), call(axis=1, method="array")
            np.testing.assert_array_equal(backend.to_numpy(found), backend.to_numpy(expected))
            assert not np.shares_memory(backend.to_numpy(found), backend.to_numpy(given))
    for axis in ((), 1):
        for keepdims in (False, True):
            found = parprims.sum(x, axis=axis, keepdims=keepdims, method="native")
            assert tuple(found.shape) == ((2, 1, 3) if keepdims or axis == () else (2, 3))
            assert not np.shares_memory(backend.to_numpy(found), backend.to_numpy(x))
    scanned = parprims.cumulative_sum(x, axis=1, method="native")
    assert not np.shares_memory(backend.to_numpy(scanned), backend.to_numpy(x))
