"""Searches by kernels for GPUs, against NumPy's own: every dtype, lengths around groups and levels, and views."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.search import cuda as search_cuda
from tests.emulation import emulator
from tests.primitives.sort.test_sort import REAL
from tests.primitives.sort.test_sort_kernel import indices, make
from tests.support.contract import unaligned


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU that holds 40 keys of 4 bytes in shared memory, on which two blocks search, and always by a tree."""
    emulator.forget(monkeypatch)
    sizes = dataclasses.replace(search_cuda.TUNING[90], threads=32, shared_bytes=160, blocks=2, alone=0, alone_keys=0)
    monkeypatch.setitem(search_cuda.TUNING, 90, sizes)
    return gpu


def places(x1, x2, side):
    """Return the places by NumPy, of elements numbered in the order of a sort, equal ones alike."""
    whole = np.concatenate([x1, x2.reshape(-1)])
    order = indices(whole, descending=False)
    if whole.dtype.name == "bfloat16":
        whole = whole.astype(np.float32)
    kept = whole[order]
    same = (kept[1:] == kept[:-1]) | ((kept[1:] != kept[1:]) & (kept[:-1] != kept[:-1]))
    ranks = np.empty(whole.size, np.int64)
    ranks[order] = np.concatenate([[0], np.cumsum(~same)])
    return np.searchsorted(ranks[: x1.size], ranks[x1.size :], side).reshape(x2.shape)


def check(gpu, run, x1, x2, view=None):
    for side in ("left", "right"):
        one, other = (view(gpu, x) if view else gpu.asarray(x) for x in (x1, x2))
        found = run(parprims.searchsorted, one, other, side=side, method="kernel")
        np.testing.assert_array_equal(gpu.to_numpy(found), places(x1, x2, side))


def ordered(x):
    return x[indices(x, descending=False)]


@pytest.mark.sanitize
@pytest.mark.parametrize("n", [1, 7, 15, 17, 39, 40, 41, 64, 639, 640, 655, 656, 2567, 5247, 5248])
def test_lengths(small, run, rng, n):
    """Around groups of 16, around what shared memory holds, and with up to two levels between."""
    for m in (1, 300, 301):
        check(small, run, ordered(make(rng, (n,), "float32")), make(rng, (m,), "float32"))


@pytest.mark.parametrize(
    "dtype", [pytest.param(one, marks=[pytest.mark.sanitize] * (one == "uint8")) for one in REAL if one != "bool"]
)
def test_every_dtype(small, run, rng, dtype):
    if not hasattr(small.xp, dtype) and small.name not in ("emulated", "cupy"):
        pytest.skip(f"{small.name} has no {dtype}")
    check(small, run, ordered(make(rng, (3001,), dtype)), make(rng, (7, 60), dtype))


@pytest.mark.sanitize
def test_views_and_few(gpu, run, rng):
    """Keys that begin anywhere, and so few that each is searched for by itself."""
    for dtype in ("int32", "uint8", "float32"):
        x1, x2 = ordered(make(rng, (9000,), dtype)), make(rng, (150,), dtype)
        check(gpu, run, x1, x2, view=unaligned)
        check(gpu, run, x1, x2[:3])


@pytest.mark.once
@pytest.mark.parametrize(("n", "m", "ways"), [
    (1000, 100, ["tree"]),
    (1000, 1, ["directly"]),
    (32768, 1 << 18, ["tree"]),
    (32769, 1 << 18, ["directly"]),
    (1 << 17, 1 << 24, ["directly"]),
    (1 << 18, 1 << 20, ["keys", "tree"]),
    (1 << 28, 1 << 21, ["directly"]),
    (1 << 28, 1 << 22, ["keys", "tree"]),
])  # fmt: skip
def test_ways(n, m, ways):
    """A tree of more keys than shared memory holds takes a launch of its own, which few wanted keys do not pay for."""
    plan = search_cuda.plan("float32", "int64", n, (m,), right=False, vector=True, tuning=search_cuda.TUNING[90])
    assert [launch.template.rpartition("_")[2] for launch in plan.launches] == ways


@pytest.mark.sanitize
def test_narrow_places(gpu, run, rng, monkeypatch):
    """As JAX has them."""
    if gpu.family == "jax":
        pytest.skip("has them anyway")
    emulator.forget(monkeypatch)
    monkeypatch.setattr(search_cuda, "index_dtype", lambda _: np.dtype("int32"))
    x1, x2 = ordered(make(rng, (9000,), "int32")), make(rng, (150,), "int32")
    check(gpu, run, x1, x2)
    check(gpu, run, x1, x2, view=unaligned)
    check(gpu, run, x1, x2[:3])


def test_equal_keys(small, run):
    check(small, run, np.full(1000, -0.0, np.float32), np.array([0.0, -1.0, 1.0, np.nan] * 9, np.float32))


def test_unsorted(small, run, rng):
    """Places are any from 0 to n."""
    x1, x2 = (small.asarray(make(rng, (n,), "float32")) for n in (3000, 500))
    found = small.to_numpy(run(parprims.searchsorted, x1, x2, method="kernel"))
    assert ((found >= 0) & (found <= 3000)).all()
