"""Partitions by kernels for GPUs: every dtype, rows around the ends of tiles, and what the parts hold."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.order_statistics import cuda as order_statistics_cuda
from parprims._primitives.order_statistics import partition_cuda as order_statistics_partition_cuda
from tests.emulation import emulator
from tests.primitives.order_statistics.test_order_statistics import gradient
from tests.primitives.sort.test_sort import REAL, raw
from tests.primitives.sort.test_sort_kernel import indices, make
from tests.support.contract import reversed_view

SIZE = 64 * 5  # a tile of `small`


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU that sorts no rows of 256 elements or more, whose tiles have 320."""
    emulator.forget(monkeypatch)
    sizes = dataclasses.replace(
        order_statistics_partition_cuda.TUNING[90], least=256, threads=64, items=((8, 5),), scanning=32
    )
    monkeypatch.setitem(order_statistics_partition_cuda.TUNING, 90, sizes)
    return gpu


def parted(keys, kth):
    """Return the indices that part rows around the element at kth of the sorted ones, equal ones in their order."""
    order = indices(keys, descending=False)
    whole = np.take_along_axis(keys, order, -1)
    if whole.dtype.name == "bfloat16":
        whole = whole.astype(np.float32)
    one, other = whole[..., 1:], whole[..., :-1]
    same = (one == other) | ((one != one) & (other != other))
    ranks = np.concatenate([np.zeros_like(order[..., :1]), np.cumsum(~same, -1)], -1)
    parts = np.empty_like(order)
    np.put_along_axis(parts, order, np.sign(ranks - ranks[..., kth : kth + 1]), -1)
    return np.argsort(parts, axis=-1, kind="stable")


def check(gpu, run, keys, kth, view=None):
    """Partition rows, and compare every bit."""
    x = view(gpu, keys) if view else gpu.asarray(keys)
    seen = gpu.to_numpy(x)
    found = parted(seen, kth)
    got = gpu.to_numpy(run(parprims.partition, x, kth, method="kernel"))
    expected = np.take_along_axis(seen, found, -1)
    np.testing.assert_array_equal(raw(got), raw(expected))
    np.testing.assert_array_equal(gpu.to_numpy(run(parprims.argpartition, x, kth, method="kernel")), found)
    np.testing.assert_array_equal(raw(gpu.to_numpy(x)), raw(seen))


@pytest.mark.sanitize
@pytest.mark.parametrize("n", [256, SIZE - 1, SIZE, SIZE + 1, 7 * SIZE + 9, 40 * SIZE])
def test_lengths(small, run, rng, n):
    """Of one tile, of tiles that are whole or not, and of more tiles than there are threads to go through them."""
    for kth in (0, n // 3, n - 1):
        check(small, run, make(rng, (n,), "float32"), kth)


KINDS = ("uint8", "int16", "uint64")  # with float32, each size and each kind of order


@pytest.mark.parametrize(
    "dtype", [pytest.param(one, marks=[pytest.mark.sanitize] * (one in KINDS)) for one in REAL if one != "bool"]
)
def test_every_dtype(small, run, rng, dtype):
    if not hasattr(small.xp, dtype) and small.name not in ("emulated", "cupy"):
        pytest.skip(f"{small.name} has no {dtype}")
    check(small, run, make(rng, (3, 701), dtype), 350)


@pytest.mark.sanitize
def test_narrow_places(small, run, rng, monkeypatch):
    """As JAX has them."""
    if small.family == "jax":
        pytest.skip("has them anyway")
    monkeypatch.setattr(order_statistics_partition_cuda, "index_dtype", lambda _: np.dtype("int32"))
    x = make(rng, (700,), "float32")
    found = small.to_numpy(run(parprims.argpartition, small.asarray(x), 300, method="kernel"))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, parted(x, 300))


def test_views_and_axes(small, run, rng):
    check(small, run, make(rng, (2, 500), "int32"), 100, view=reversed_view)
    x = make(rng, (500, 3), "float64")
    found = small.to_numpy(run(parprims.argpartition, small.asarray(x), 20, axis=0, method="kernel"))
    np.testing.assert_array_equal(found, parted(x.T, 20).T)


def test_equal_keys(small, run):
    check(small, run, np.where(np.arange(1000) % 2, np.float32(0), np.float32(-0.0)), 500)


def test_own_tiles(gpu, run, rng, monkeypatch):
    """With the sizes that calls have, but for the least length."""
    emulator.forget(monkeypatch)
    table = {90: dataclasses.replace(order_statistics_partition_cuda.TUNING[90], least=256)}
    monkeypatch.setattr(order_statistics_partition_cuda, "TUNING", table)
    check(gpu, run, make(rng, (9001,), "float32"), 4000)


@pytest.mark.once
def test_what_is_sorted():
    """Short rows and several places; rows that the kernels part are long enough for the one that finds the pivot."""
    least = order_statistics_partition_cuda.TUNING[90].least
    assert order_statistics_partition_cuda.serves(least, (5, 5))
    assert not order_statistics_partition_cuda.serves(least, (5, 6))
    assert not order_statistics_partition_cuda.serves(least - 1, (5,))
    assert order_statistics_cuda.finds_places(least, 1)


def test_derivative(backend, run, rng, monkeypatch):
    """Those of JAX go the way of what stands for the kernels elsewhere, in the same order; PyTorch's through a sort."""
    if backend.family not in ("torch", "jax"):
        pytest.skip("has no derivatives")
    emulator.forget(monkeypatch)
    table = {90: dataclasses.replace(order_statistics_partition_cuda.TUNING[90], least=4)}
    monkeypatch.setattr(order_statistics_partition_cuda, "TUNING", table)
    x = rng.permutation(40).reshape(20, 2).astype("float32")
    g = np.where(np.arange(40).reshape(20, 2) // 2 == 7, np.float32(3), np.float32(0))

    def loss(x):
        return (run(parprims.partition, x, 7, axis=0, method="kernel") * backend.asarray(g)).sum()

    expected = np.where(np.argsort(np.argsort(x, axis=0), axis=0) == 7, np.float32(3), np.float32(0))
    np.testing.assert_array_equal(gradient(backend, loss, x), expected)
    places = backend.to_numpy(run(parprims.argpartition, backend.asarray(x), 7, axis=0, method="kernel"))
    np.testing.assert_array_equal(np.take_along_axis(x, places, 0)[7], np.sort(x, axis=0)[7])
