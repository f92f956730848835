"""The kernel of merges: every dtype, lengths around the edges of tiles, and runs whose places an array holds."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._core.arrays import namespace_of
from parprims._primitives.search import merge_cuda as search_merge_cuda
from tests.emulation import emulator
from tests.primitives.sort.test_sort import REAL, raw
from tests.primitives.sort.test_sort_kernel import VALUES, indices, make

TILES = {one.key_bytes: one.threads * one.items for one in search_merge_cuda.TUNING[90].tiles}


def in_order(keys, descending=False):
    """Return keys, sorted along the last axis."""
    return np.take_along_axis(keys, indices(keys, descending), -1)


def same(gpu, found, expected):
    found = gpu.to_numpy(found)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(raw(found), raw(expected.astype(found.dtype, copy=False)))


def check(gpu, run, first, second, descending=False, values=()):
    """Merge along the last axis, with and without values, and compare every bit with a stable sort."""
    whole = np.concatenate([first, second], axis=-1)
    found = indices(whole, descending)
    n = first.shape[-1]
    arrays = [gpu.asarray(x) for x in (first, second)]
    seen = [gpu.to_numpy(x) for x in arrays]
    options = {"descending": descending, "method": "kernel"}
    same(gpu, run(parprims.merge, *arrays, **options), np.take_along_axis(np.concatenate(seen, -1), found, -1))
    for before, after in zip(seen, arrays, strict=True):
        np.testing.assert_array_equal(raw(gpu.to_numpy(after)), raw(before))
    for value in values:
        moved = (
            make(np.random.default_rng(1), whole.shape, value)
            if value in REAL
            else (np.arange(whole.size) * (1 - 2j)).reshape(whole.shape)
        )
        given = [arrays[0], gpu.asarray(moved[..., :n]), arrays[1], gpu.asarray(moved[..., n:])]
        got = run(parprims.merge_by_key, *given, **options)
        same(gpu, got[1], np.take_along_axis(gpu.to_numpy(gpu.asarray(moved)), found, -1))


@pytest.fixture(params=[1, 10_000])
def alone(request, monkeypatch):
    """Merges in one launch where there are so many tiles, and otherwise in two."""
    emulator.forget(monkeypatch)
    table = {90: dataclasses.replace(search_merge_cuda.TUNING[90], alone=request.param)}
    monkeypatch.setattr(search_merge_cuda, "TUNING", table)


@pytest.mark.usefixtures("alone")
class TestMerge:
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("dtype", [name for name in REAL if name != "bool"])
    def test_every_dtype(self, gpu, run, rng, dtype, descending):
        if not hasattr(gpu.xp, dtype) and gpu.name not in ("emulated", "cupy"):
            pytest.skip(f"{gpu.name} has no {dtype}")
        first, second = (in_order(make(rng, (3, n), dtype), descending) for n in (2000, 3001))
        check(gpu, run, first, second, descending, VALUES if dtype == "float32" else ("int32",))

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
    def test_around_tiles(self, gpu, run, rng, subtests, dtype):
        tile = next(size for nbytes, size in TILES.items() if nbytes >= np.dtype(dtype).itemsize)
        lengths = ((1, 1), (tile - 1, 1), (1, tile), (tile, tile), (17, 2 * tile), (2 * tile - 16, 17), (5000, 4))
        for n, m in lengths if gpu.family != "jax" else lengths[:4]:
            with subtests.test(n=n, m=m):
                check(gpu, run, *(in_order(make(rng, (one,), dtype)) for one in (n, m)), values=("float32",))

    def test_equal_keys(self, gpu, run):
        first, second = np.zeros((1, 9000), np.float32), np.full((1, 5000), -0.0, np.float32)
        check(gpu, run, first, second, values=("float32",))

    def test_unsorted_runs_are_merged_somehow(self, gpu, rng):
        """Whatever the order, the kernel reads and writes nothing beside the arrays."""
        first, second = (gpu.asarray(rng.standard_normal(n).astype(np.float32)) for n in (9000, 7001))
        found = gpu.to_numpy(parprims.merge(first, second, method="kernel"))
        assert np.isin(found, np.concatenate([gpu.to_numpy(first), gpu.to_numpy(second)])).all()

    def test_large(self, gpu, run, rng):
        if gpu.name == "emulated":
            pytest.skip("many blocks")
        check(gpu, run, *(in_order(make(rng, (n,), "uint32")) for n in (1_000_003, 700_001)), values=("float32",))


@pytest.mark.sanitize
@pytest.mark.parametrize("distinct", [1, 3, 100_000])
@pytest.mark.parametrize(("n", "m"), [(9000, 7001), (16_001, 5), (4096, 4096)])
def test_many_small_tiles(gpu, run, rng, monkeypatch, n, m, distinct):
    """Warps find where tiles begin: of one row, and of the ends of two rows."""
    emulator.forget(monkeypatch)
    tiles = (search_merge_cuda.Tile(8, 64, 2),)
    table = {90: dataclasses.replace(search_merge_cuda.TUNING[90], alone=1, tiles=tiles)}
    monkeypatch.setattr(search_merge_cuda, "TUNING", table)
    first, second = (in_order(rng.integers(0, distinct, (2, size)).astype(np.int32)) for size in (n, m))
    check(gpu, run, first, second, values=("int32",))
    apart = second + distinct  # one run comes before the other
    check(gpu, run, first, apart)
    check(gpu, run, apart, first)


@pytest.mark.usefixtures("alone")
@pytest.mark.sanitize
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_runs_that_an_array_tells(gpu, rng, descending, turned):
    """Where runs begin and how long they are is data, and so is the length of the result; the rest is left alone."""
    begins, lengths, n, m, out = ((7, 0), (3, 3999)), ((4000, 1), (0, 1000)), 5000, 6000, 5500
    keys = [make(rng, (2, size), "float32") for size in (n, m)]
    values = [rng.integers(0, 1000, (2, size)).astype(np.int32) for size in (n, m)]
    bounds = np.array([[[begins[row][at], lengths[row][at]] for at in range(2)] for row in range(2)], np.int32)
    for row in range(2):
        for at in range(2):
            own = slice(begins[row][at], begins[row][at] + lengths[row][at])
            keys[at][row, own] = in_order(keys[at][row, own], descending)
    given = [gpu.asarray(x) for x in (keys[0], values[0], keys[1], values[1])]
    places = gpu.asarray(np.concatenate([bounds.reshape(2, 4), np.full((2, 1), turned, np.int32)], axis=1))
    xp = namespace_of(given[0])

    def otherwise(*arrays):  # which no GPU runs
        return tuple(xp.zeros((2, out), dtype=x.dtype) for x in arrays[:2])

    run = search_merge_cuda.merger(xp, tuple(given), out, descending, "int32", otherwise)
    found = run(*given, places)
    for row in range(2):
        parts = [
            [x[at][row, begins[row][at] : begins[row][at] + lengths[row][at]] for at in range(2)]
            for x in (keys, values)
        ]
        whole, moved = (np.concatenate(part[::-1] if turned else part) for part in parts)
        order = indices(whole, descending)
        own_keys, own_values = (gpu.to_numpy(x[row, : whole.size]) for x in found)  # the rest holds nothing
        np.testing.assert_array_equal(raw(own_keys), raw(whole[order]))
        np.testing.assert_array_equal(own_values, moved[order])
