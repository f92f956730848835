"""Reductions by segment numbers by the kernels for CPUs, and by what NumPy and PyTorch combine at indices."""

import os

import numpy as np
import pytest

import parprims
from parprims._operators import Operator
from tests import emulator
from tests.contract import numpy_dtype, random

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims import _segments_cpu  # noqa: E402


@pytest.fixture
def cut(monkeypatch):
    """Return a function that changes how elements are cut into blocks; calls made before are forgotten."""
    return emulator.changing(monkeypatch, _segments_cpu)


def loop(x, ids, count, op, start):
    """Return the combinations along the first axis, one row after another; start where a segment has none."""
    found = [None if start is None else np.full(x.shape[1:], start, x.dtype)] * count
    for row, number in zip(x, ids, strict=True):
        if 0 <= number < count:
            found[number] = row if found[number] is None else op(found[number], row)
    return np.stack([np.zeros(x.shape[1:], x.dtype) if one is None else one for one in found])


def last(earlier, later):  # noqa: ARG001
    return later


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "complex64"])
def test_dtypes(cut, rng, dtype):
    """Blocks of few rows, numbers of several dtypes, some of which are of no segment."""
    cut(_BLOCK=64, _EACH=1)
    # Of float16 such whose sums are exact.
    x = rng.integers(-9, 10, (200, 3)).astype(dtype) if dtype == "float16" else random(rng, (200, 3), dtype)
    for kind in ("int8", "uint32", "int64"):
        ids = rng.integers(0 if kind == "uint32" else -2, 9, 200).astype(kind)
        found = parprims.segment_reduce(x, ids, 7, method="kernel")
        wide = np.result_type(x, numpy_dtype(found.dtype.name))
        expected = loop(x.astype(wide), ids, 7, np.add, None)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_order_and_initial(cut, rng):
    """An operator that does not commute, from the left an initial element, and segments without elements."""
    cut(_BLOCK=16, _EACH=1)
    x, ids = rng.integers(0, 99, (50, 2)), rng.integers(0, 5, 50)
    op = Operator(last, name="last")
    for axis, given in ((0, x), (1, x.T.copy()), (0, x[::-1])):
        found = parprims.segment_reduce(given, ids, 6, op, axis=axis, initial=-7, method="kernel")
        expected = loop(np.moveaxis(given, axis, 0), ids, 6, last, -7)
        np.testing.assert_array_equal(np.moveaxis(found, axis, 0), expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_no_bits(rng, threads, monkeypatch):
    x, ids = random(rng, (300_000,), "float32"), rng.integers(0, 100, 300_000)
    emulator.forget(monkeypatch)
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", "1")
    expected = parprims.segment_reduce(x, ids, 100, method="kernel")
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", str(threads))
    assert parprims.segment_reduce(x, ids, 100, method="kernel").tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_derivatives(rng, name):
    """Of the kernel and of PyTorch's own additions, of second order too."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((20, 2))).requires_grad_()
    ids = torch.from_numpy(rng.integers(-1, 5, 20))
    for method in ("kernel", "native") if name == "add" else ("kernel",):

        def value(x, method=method):
            return parprims.segment_reduce(x * x, ids, 4, name, method=method)

        assert torch.autograd.gradcheck(value, x)
        assert torch.autograd.gradgradcheck(value, x)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_library(rng, name):
    """NumPy and PyTorch combine at numbers, of which some are of no segment, as a loop does."""
    torch = pytest.importorskip("torch")
    ids = rng.integers(-2, 9, 60)
    for x in (random(rng, (60,), "float32"), rng.integers(-3, 4, 60), random(rng, (60,), "float16")):
        for initial in (None, 2):
            for make in (np.asarray, torch.from_numpy):
                arrays = make(x), make(ids)
                found, other = (
                    np.asarray(parprims.segment_reduce(*arrays, 8, name, initial=initial, method=method))
                    for method in ("native", "array")
                )
                assert found.dtype == other.dtype
                np.testing.assert_allclose(found, other, rtol=4e-3 if x.dtype == "float16" else 1e-5, atol=1e-5)
