"""Sorts of segments by kernels for GPUs: every dtype, and segments in tiles, across their ends and over several."""

import dataclasses
import itertools

import numpy as np
import pytest

import parprims
from parprims._primitives.segments.by_offsets import sort_cuda as by_offsets_sort_cuda
from tests.emulation import emulator
from tests.primitives.segments.test_segments_kernel import patterns
from tests.primitives.sort.test_sort import REAL, raw
from tests.primitives.sort.test_sort_kernel import VALUES, indices, make
from tests.support.contract import reversed_view, strided

SIZE = 64 * 5  # a tile of `small`


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU whose tiles have 320 elements, so that the number of a segment in a tile can have two digits.

    Three blocks merge.
    """
    emulator.forget(monkeypatch)
    sizes = dataclasses.replace(
        by_offsets_sort_cuda.TUNING[90], tiles=(by_offsets_sort_cuda.Tile(8, 64, 5, 3, 3),), blocks=3
    )
    monkeypatch.setitem(by_offsets_sort_cuda.TUNING, 90, sizes)
    return gpu


def places(keys, offsets, descending):
    """Return the indices that sort every segment along the last axis."""
    found = [indices(keys[..., i:j], descending) + i for i, j in itertools.pairwise(offsets)]
    return np.concatenate(found, axis=-1)


def check(gpu, run, keys, offsets, descending=False, values=("float32",), what="sab", view=None):
    """Sort, argsort and sort by key, and compare every bit."""
    rng = np.random.default_rng(1)
    inputs = [keys]
    for name in values:
        complex_ = (np.arange(keys.size) * (1 - 2j)).reshape(keys.shape)
        inputs.append(make(rng, keys.shape, name) if name in REAL else complex_)
    arrays = [view(gpu, x) if view else gpu.asarray(x) for x in inputs]
    seen = [gpu.to_numpy(x) for x in arrays]
    found = places(seen[0], offsets, descending)
    expected = [np.take_along_axis(x, found, -1) for x in seen]
    options = {"descending": descending, "offsets": gpu.asarray(offsets), "method": "kernel"}
    pairs = []
    if "s" in what:
        pairs.append((run(parprims.sort, arrays[0], **options), expected[0]))
    if "a" in what:
        pairs.append((run(parprims.argsort, arrays[0], **options), found))
    if "b" in what:
        pairs += zip(run(parprims.sort_by_key, *arrays, **options), expected, strict=True)
    for got, right in pairs:
        got = gpu.to_numpy(got)
        assert got.shape == right.shape
        np.testing.assert_array_equal(raw(got), raw(right.astype(got.dtype, copy=False)))
    for before, after in zip(seen, arrays, strict=True):
        np.testing.assert_array_equal(raw(gpu.to_numpy(after)), raw(before))


@pytest.mark.sanitize
@pytest.mark.parametrize("n", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 9 * SIZE + 7])
def test_offsets(small, run, rng, n, subtests):
    """Uneven segments, one, as many as elements, and many that are empty."""
    for number, offsets in enumerate(patterns(rng, n)):
        with subtests.test(pattern=number):
            offsets = offsets.astype(np.int32) if number % 2 else offsets
            check(small, run, make(rng, (n,), "float32"), offsets, number == 3)


def test_ends_of_tiles(small, run, rng, subtests):
    """Segments that begin and end around the ends of tiles, and cross one, several or none."""
    n = 7 * SIZE + 100
    for at, to in ((1, 2), (1, 4), (2, 3), (3, 5), (0, 7), (3, 4)):
        for before, after in ((-1, 1), (0, 0), (1, -1), (-9, 40), (1, 1)):
            with subtests.test(at=at, to=to, before=before, after=after):
                inner = max(0, at * SIZE + before), to * SIZE + after
                offsets = np.array([0, *inner, n])
                check(small, run, make(rng, (n,), "int32"), offsets, what="sb")


def test_more_offsets_than_elements(small, run, rng):
    offsets = np.sort(rng.integers(0, 701, 20_000))
    offsets[0], offsets[-1] = 0, 700
    check(small, run, make(rng, (2, 700), "int16"), offsets)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16"])
def test_every_order(small, run, rng, dtype):
    """Of the kinds of keys, but for floats."""
    check(small, run, make(rng, (700,), dtype), np.array([0, 5, 400, 700]), what="s")


@pytest.mark.parametrize("dtype", REAL)
def test_every_dtype(gpu, run, rng, dtype):
    descending = REAL.index(dtype) % 2 == 0  # each order of signed, unsigned and floating keys
    if not hasattr(gpu.xp, dtype) and gpu.name not in ("emulated", "cupy"):
        pytest.skip(f"{gpu.name} has no {dtype}")
    offsets = np.array([0, 3, 3, 2000, 4700, 11_000, 11_001])
    check(gpu, run, make(rng, (11_001,), dtype), offsets, descending, VALUES if dtype == "float32" else ("int32",))


def test_rows_and_views(small, run, rng):
    offsets = np.array([0, 40, 41, 700, 1000])
    for view in (strided, reversed_view):
        check(small, run, make(rng, (3, 1000), "float32"), offsets, view=view)
    x = small.asarray(make(rng, (1000, 3), "float32"))
    found = run(parprims.argsort, x, axis=0, offsets=small.asarray(offsets), method="kernel")
    expected = places(small.to_numpy(x).T, offsets, descending=False).T
    np.testing.assert_array_equal(small.to_numpy(found), expected)


def test_equal_keys(small, run):
    keys = np.where(np.arange(3000) % 2, np.float32(0), np.float32(-0.0))
    check(small, run, keys, np.array([0, 100, 2900, 3000]))


def test_many_tiles(small, run, rng):
    """More tiles than the threads of the blocks that merge look at together: one segment, and short ones beside it."""
    rows = 200
    x = make(rng, (rows, SIZE + 5), "int32")
    check(small, run, x, np.array([0, 3, 300, SIZE + 1, SIZE + 5]), what="b")


def test_wrong_offsets(small, run, rng):
    """They sort nothing in particular, but within the arrays."""
    x = small.asarray(make(rng, (2000,), "float32"))
    for offsets in ([5, 100, 1000], [0, 5000, 90], [-7, 2**62, -(2**62), 1500, 3, 2000], [2000, 1000, 0]):
        found = run(parprims.sort, x, offsets=small.asarray(np.array(offsets)), method="kernel")
        assert found.shape == x.shape


@pytest.mark.once
def test_memory_of_every_plan(subtests):
    """Another copy of what moves, and 40 bytes for each tile; nothing for one tile."""
    for name, plan in by_offsets_sort_cuda.cases():
        with subtests.test(name):
            (n,), tiles = plan.outputs[0][0], plan.launches[0].grid
            assert len(plan.launches) == 1 + (tiles - 1).bit_length()
            assert plan.scratch_bytes == (40 * tiles if tiles > 1 else 0)
            assert plan.temporary_bytes <= (28 + 8) * n if tiles > 1 else plan.temporary_bytes == 0
