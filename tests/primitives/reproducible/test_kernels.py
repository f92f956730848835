"""Kernels for CPUs against library operations: lines, columns, segments and bins of several blocks."""

import numpy as np
import pytest

import parprims
from tests.primitives.reproducible.test_reproducible_sums import EVERYWHERE, agree, terms

KINDS = ("wide", "tiny", "huge", "cancelling", "plus", "both", "nan")


def left_out(_test, given):
    """Return the sentence why a case is not tested, or nothing."""
    return "" if given.get("backend", "numpy") == "numpy" else "the kernels are those of arrays of NumPy"


def compare(function):
    """Assert that a kernel and library operations give equal bits."""
    pytest.importorskip("numba")
    with np.errstate(all="ignore"):
        found, expected = (function(method=by, **EVERYWHERE) for by in ("kernel", "array"))
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, other in pairs:
        agree(one, other)


def of_shape(kind, name, shape, rng):
    return terms(kind, name, int(np.prod(shape)), rng).reshape(shape)


@pytest.mark.once
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 17, 20), (700, 40), (1, 1100), (2, 600, 33), (40_000,)], ids=str)
def test_sums_along_every_axis(rng, kind, name, shape):
    """In the layout of C and of Fortran: columns are added side by side, lines one after another."""
    x = of_shape(kind, name, shape, rng)
    axes = [*range(len(shape)), None, *([(0, 1), (-2, -1)] if len(shape) > 2 else [])]
    for given in (x, np.asfortranarray(x)):
        for axis in axes:
            for keepdims in (False, True):
                compare(lambda given=given, axis=axis, keepdims=keepdims, **options: parprims.sum(
                    given, axis=axis, keepdims=keepdims, **options))  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 17, 20), (700, 40), (1, 1100), (2, 600, 33)], ids=str)
def test_running_sums_along_every_axis(rng, kind, name, shape):
    x = of_shape(kind, name, shape, rng)
    whole = np.abs(x)  # whose totals outgrow 53 bits
    for given in (x, whole, np.asfortranarray(x)):
        for axis in range(len(shape)):
            for start in (False, True):
                compare(lambda given=given, axis=axis, start=start, **options: parprims.cumulative_sum(
                    given, axis=axis, include_initial=start, **options))  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 4, 50), (6, 300), (2, 20_000)], ids=str)
def test_products_of_vectors(rng, kind, name, shape):
    """Of every row with its own, with one vector for all rows, along other axes, and with broadcast axes."""
    x = of_shape(kind, name, shape, rng)
    y = of_shape("wide" if kind == "tiny" else "normal", name, shape, rng)
    one = y[(0,) * (len(shape) - 1)]
    few = y[:1]
    for pair, axis in (((x, y), -1), ((x, one), -1), ((one, x), -1), ((x, few), -1), ((few, x), -1)):
        compare(lambda pair=pair, axis=axis, **options: parprims.vecdot(*pair, axis=axis, **options))
    turned = [np.moveaxis(one, -1, 0) for one in (x, y)]
    compare(lambda **options: parprims.vecdot(*[np.moveaxis(one, 0, -1) for one in turned], **options))
    compare(lambda **options: parprims.vecdot(np.swapaxes(x, -1, -2), np.swapaxes(y, -1, -2), **options))


@pytest.mark.once
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axis"), [((40_000,), 0), ((3, 500), 1), ((900, 3), 0), ((2, 300, 9), 1)], ids=str)
def test_segments(rng, kind, name, shape, axis):
    x, n = of_shape(kind, name, shape, rng), shape[axis]
    for segments in (1, 5, 1000):
        ids = rng.integers(-1, segments + 1, n)
        offsets = np.sort(rng.integers(0, n + 1, segments + 1))
        offsets[0], offsets[-1] = 0, n
        for given in (ids, np.sort(ids).astype(np.int32)):
            compare(lambda given=given, count=segments, **options: parprims.segment_reduce(
                x, given, count, axis=axis, **options))  # fmt: skip
        compare(lambda offsets=offsets, **options: parprims.reduce(x, axis=axis, offsets=offsets, **options))


@pytest.mark.once
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(100,), (70_000,), (30, 40)], ids=str)
def test_weights(rng, kind, name, shape):
    weights, x = of_shape(kind, name, shape, rng), rng.normal(size=shape).astype(np.float32)
    x.reshape(-1)[7] = 50.0  # alone in its bin, or outside of all
    for bins, options in ((5, {}), (3000, {}), (7, {"range": (-1.0, 1.0)}), ([-1.0, 0.0, 0.3, 2.0], {})):
        compare(lambda bins=bins, options=options, **more: parprims.histogram(
            x, bins, weights=weights, **options, **more))  # fmt: skip
    whole = rng.integers(0, 9, shape)
    compare(lambda **options: parprims.histogram(whole, [0, 3, 4, 5], weights=weights, **options))


@pytest.mark.once
def test_elements_that_are_not_finite_touch_no_other_result(rng):
    """In columns, segments and bins; and an infinite weight outside of all bins is not counted."""
    x = rng.normal(size=(500, 40)).astype(np.float32)
    spoiled = x.copy()
    spoiled[17, 3], spoiled[18, 5] = np.inf, np.nan
    ids = np.arange(500) % 7
    for function in (
        lambda x, **options: parprims.sum(x, axis=0, **options),
        lambda x, **options: parprims.segment_reduce(x, ids, 7, axis=0, **options),
    ):
        compare(lambda function=function, **options: function(spoiled, **options))
        clean, odd = (function(one, method="kernel", **EVERYWHERE) for one in (x, spoiled))
        assert np.isfinite(odd).sum() == odd.size - 2
        agree(odd[np.isfinite(odd)], clean[np.isfinite(odd)])
    weights = np.ones(100, np.float64)
    weights[0] = np.inf
    counts, _ = parprims.histogram(np.arange(100.0), 3, range=(1.0, 99.0), weights=weights, **EVERYWHERE)
    assert np.isfinite(counts).all()
    assert counts.sum() == 99.0


@pytest.mark.once
def test_offsets_out_of_order_in_a_program_read_no_other_memory():
    jax = pytest.importorskip("jax")
    pytest.importorskip("numba")
    x = jax.numpy.ones(64, jax.numpy.float32)
    function = jax.jit(lambda x, offsets: parprims.reduce(x, offsets=offsets, method="kernel", **EVERYWHERE))
    found = function(x, jax.numpy.asarray([-5, 10, 3, 100_000]))
    assert found.shape == (3,)
    assert (np.asarray(found) <= 64).all()
