"""Merges of two sorted arrays by the kernel for GPUs, against NumPy's stable sort of both together."""

import numpy as np
import pytest

import parprims
from parprims import _search_kernel
from tests import emulator
from tests.contract import compare, numpy_dtype


def drawn(rng, shape, dtype, descending=False):
    """Return sorted keys, many of them equal; of floats some NaN and zeros of both signs too."""
    x = rng.integers(0 if dtype[0] == "u" else -20, 100, shape).astype(numpy_dtype(dtype))
    if "float" in dtype:
        x[rng.random(shape) < 0.1] = -0.0
        x[rng.random(shape) < 0.1] = np.nan
    return np.take_along_axis(x, order(x, descending), -1)


def order(x, descending=False):
    """Return the indices that sort the last axis: -0 equal to +0, NaN last, or first if descending."""
    if not descending:
        return np.argsort(x if x.dtype.kind in "iu" else x.astype(np.float64), -1, kind="stable")
    wide = x.astype(np.float64)
    return np.argsort(np.where(np.isnan(wide), -np.inf, -wide), -1, kind="stable")


def check(backend, run, one, other, descending=False, axis=-1):
    """Compare keys and values, which tell where each came from, with a stable sort of all."""
    whole = np.concatenate([one, other], -1)
    index = order(whole, descending)
    expected = np.moveaxis(np.take_along_axis(whole, index, -1), -1, axis)
    given = [backend.asarray(np.ascontiguousarray(np.moveaxis(x, -1, axis))) for x in (one, other)]
    options = {"axis": axis, "descending": descending, "method": "kernel"}
    found = run(parprims.merge, *given, **options)
    assert backend.to_numpy(found).tobytes() == np.ascontiguousarray(expected).tobytes()
    places = np.broadcast_to(np.arange(whole.shape[-1]), whole.shape).astype(np.int32)
    apart = (places[..., : one.shape[-1]], places[..., one.shape[-1] :])
    values = [backend.asarray(np.ascontiguousarray(np.moveaxis(x, -1, axis))) for x in apart]
    found = run(parprims.merge_by_key, given[0], values[0], given[1], values[1], **options)
    assert backend.to_numpy(found[0]).tobytes() == np.ascontiguousarray(expected).tobytes()
    compare(backend, found[1], np.moveaxis(index.astype(np.int32), -1, axis))


@pytest.mark.sanitize
def test_lengths(gpu, run, rng, subtests):
    """Around the ends of tiles, where one array is short, and where all keys are equal or apart."""
    for n1, n2 in ((1, 1), (1, 300), (300, 1), (640, 640), (640, 639), (641, 640), (1279, 2), (2000, 3001)):
        with subtests.test(n1=n1, n2=n2):
            check(gpu, run, drawn(rng, (n1,), "float32"), drawn(rng, (n2,), "float32"))
            check(gpu, run, np.full(n1, 7, np.int32), np.full(n2, 7, np.int32))
    low, high = np.arange(900, dtype=np.int32), np.arange(900, 2000, dtype=np.int32)
    check(gpu, run, low, high)
    check(gpu, run, high, low)
    check(gpu, run, np.arange(0, 3000, 2, dtype=np.int32), np.arange(1, 3000, 2, dtype=np.int32))


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", "int8 uint16 int64 uint64 float16 bfloat16 float32 float64".split())
def test_dtypes(gpu, run, rng, dtype):
    if not gpu.supports(dtype):
        pytest.skip(f"{gpu.name} has no {dtype}")
    for descending in (False, True):
        check(gpu, run, drawn(rng, (3, 700), dtype, descending), drawn(rng, (3, 901), dtype, descending), descending)


@pytest.mark.sanitize
def test_whole_tiles(gpu, run, rng, monkeypatch):
    """In tiles of the size that long arrays have, of keys and values of every width."""
    emulator.forget(monkeypatch)
    one = _search_kernel.TUNING[90]
    monkeypatch.setitem(_search_kernel.TUNING, 90, type(one)(**{**vars(one), "multiprocessors": 0}))
    for dtype in ("int8", "int32", "float64"):
        check(gpu, run, drawn(rng, (6000,), dtype), drawn(rng, (6001,), dtype))
    keys = [np.sort(rng.integers(0, 99, n)).astype(np.int32) for n in (4000, 300)]
    index = order(np.concatenate(keys))
    for dtype in ("int8", "float16", "complex64", "complex128"):
        values = [rng.integers(0, 99, len(x)).astype(dtype) for x in keys]
        given = [gpu.asarray(x) for pair in zip(keys, values, strict=True) for x in pair]
        found = run(parprims.merge_by_key, *given, method="kernel")[1]
        compare(gpu, found, np.concatenate(values)[index])


@pytest.mark.sanitize
def test_layouts(gpu, run, rng):
    """Along every axis, and of views."""
    check(gpu, run, drawn(rng, (4, 50), "float32"), drawn(rng, (4, 31), "float32"), axis=0)
    check(gpu, run, drawn(rng, (2, 3, 50), "int32"), drawn(rng, (2, 3, 31), "int32"), axis=1)
    x, y = np.sort(rng.integers(0, 99, 101)), np.sort(rng.integers(0, 99, 60))
    found = run(parprims.merge, gpu.asarray(x)[1::2], gpu.asarray(y)[3:], method="kernel")
    compare(gpu, found, np.sort(np.concatenate([x[1::2], y[3:]])))


def test_unsorted(gpu, run, rng):
    """No memory outside of the arrays is read."""
    for n1, n2 in ((5, 2000), (1500, 1500), (3000, 1)):
        x, y = (gpu.asarray(rng.integers(0, 9, n)) for n in (n1, n2))
        assert run(parprims.merge, x, y, method="kernel").shape == (n1 + n2,)
        run(parprims.merge_by_key, x, x, y, y, method="kernel")


def test_jax(monkeypatch, rng):
    """In a program for JAX the kernel stands, and what computes the same elsewhere; under vmap and grad too."""
    jax = pytest.importorskip("jax")
    emulator.install_for_jax(monkeypatch)
    x, y = (jax.numpy.asarray(np.sort(rng.normal(size=(3, n)), -1), "float32") for n in (20, 13))

    def merged(x, y):
        return parprims.merge(x, y, method="kernel")

    assert "gpu" in jax.jit(merged).trace(x[0], y[0]).lower(lowering_platforms=("cuda",)).as_text()
    both = np.sort(np.concatenate([x, y], 1), 1)
    np.testing.assert_array_equal(jax.vmap(merged)(x, y), both)
    np.testing.assert_array_equal(jax.vmap(merged, (0, None))(x, y[0])[2], np.sort(np.concatenate([x[2], y[0]])))
    weights = np.arange(33, dtype=np.float32)
    found = jax.grad(lambda x: (merged(x, y[0]) * weights).sum())(x[0])
    np.testing.assert_array_equal(found, np.searchsorted(both[0], np.asarray(x[0])))
