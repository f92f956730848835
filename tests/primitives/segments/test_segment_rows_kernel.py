"""Reductions of segments of rows by a kernel for GPUs, against loops, where shares and strips meet segments."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.segments.tables import rows as segment_rows
from tests.emulation import emulator
from tests.primitives.segments.test_segments_kernel import affine, largest, loop, patterns
from tests.support.contract import compare, numpy_dtype, random


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU on which several blocks share a strip, and a row has several strips."""
    emulator.forget(monkeypatch)
    sizes = {"multiprocessors": 2, "threads": 128, "lanes": 4, "resident": ((1 << 30, 3),), "least": 2}
    table = segment_rows.TUNING
    monkeypatch.setitem(table, 90, dataclasses.replace(table[90], **sizes))
    return gpu


def along(xs, axis, offsets, op, start):
    """Return the reductions along an axis, of arrays that are components of elements."""
    found = loop(tuple([np.moveaxis(x, axis, -1) for x in xs]), offsets, op, start)
    return tuple([np.moveaxis(one, -1, axis) for one in found])


def added(earlier, later):
    return (earlier[0] + later[0],)


SHAPES = (((1, 2), 0), ((9, 3), 0), ((40, 16), 0), ((700, 40), 0), ((3000, 2), 0), ((4, 150, 3), 1), ((2, 3, 60, 4), 2))


@pytest.mark.sanitize
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_offsets(small, run, rng, shape, axis, subtests):
    """In shares of every kind, by an operator that does not commute, of integers that wrap."""
    for number, offsets in enumerate(patterns(rng, shape[axis])):
        with subtests.test(pattern=number):
            x = random(rng, shape, "int32")
            given = {"axis": axis, "method": "kernel"}
            found = run(parprims.reduce, small.asarray(x), offsets=small.asarray(offsets), **given)
            compare(small, found, *along((x.astype(np.int64),), axis, offsets, added, (0,)), dtype="int64")
            pair = rng.integers(-9, 9, (2, *shape))
            arrays = tuple(map(small.asarray, pair))
            given |= {"offsets": small.asarray(offsets.astype(np.int32))}
            found = run(parprims.reduce, arrays, "affine", **given)
            compare(small, found, along(pair, axis, offsets, affine, (1, 0)))
            found = run(parprims.reduce, arrays, "affine", initial=(3, 5), **given)
            compare(small, found, along(pair, axis, offsets, affine, (3, 5)))


@pytest.mark.sanitize
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_ids(small, run, rng, shape, axis, subtests):
    """In an order and in their own, with an initial element for each column; some rows are of no segment."""
    n = shape[axis]
    for count in (1, 7, n + 3):
        for in_order in (False, True):
            with subtests.test(count=count, in_order=in_order):
                ids = rng.integers(-1, count + 1, n).astype(np.int32)
                ids = np.sort(ids) if in_order else ids
                x, start = random(rng, shape, "float32"), random(rng, (*shape[:axis], *shape[axis + 1 :]), "float32")
                order = np.argsort(ids, kind="stable")
                order = order[(ids[order] >= 0) & (ids[order] < count)]
                offsets = np.searchsorted(ids[order], np.arange(count + 1))
                rows = np.take(x, order, axis)
                (expected,) = along((rows,), axis, offsets, largest, (-np.inf,))
                arrays = small.asarray(x), small.asarray(ids)
                options = {"axis": axis, "indices_are_sorted": in_order, "method": "kernel"}
                found = run(parprims.segment_reduce, *arrays, count, "maximum", **options)
                compare(small, found, expected, dtype="float32")
                found = run(parprims.segment_reduce, *arrays, count, "maximum", initial=small.asarray(start), **options)
                compare(small, found, np.maximum(expected, np.expand_dims(start, axis)), dtype="float32")


@pytest.mark.sanitize
def test_own_operator(small, run, rng, subtests):
    """The first, and the last, of every segment: elements stay in their order."""
    x, ids = random(rng, (500, 3), "int32"), rng.integers(0, 9, 500)
    firsts = np.stack([x[ids == one][0] for one in range(9)])
    lasts = np.stack([x[ids == one][-1] for one in range(9)])
    for expected, combine in ((firsts, lambda earlier, _: earlier), (lasts, lambda _, later: later)):
        with subtests.test():
            op = parprims.Operator(combine, identity=0)
            found = run(parprims.segment_reduce, small.asarray(x), small.asarray(ids), 9, op, method="kernel")
            compare(small, found, expected)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float64", "complex64", "complex128"])
def test_dtypes(small, run, rng, dtype, subtests):
    """Of whole numbers whose sums are exact; of aligned rows, and of others."""
    whole = rng.integers(0, 2, (600, 17)).astype(numpy_dtype(dtype))
    ids = rng.integers(0, 20, 600)
    for view in ((slice(None), slice(16)), (slice(1, None, 2), slice(None)), (slice(None), slice(1, 6))):
        with subtests.test(view=view):
            x, own = whole[view], ids[view[0]]
            expected = np.stack([x[own == one].astype(np.complex128).sum(0) for one in range(20)])
            arrays = small.asarray(whole)[view], small.asarray(own)
            found = small.to_numpy(run(parprims.segment_reduce, *arrays, 20, method="kernel"))
            np.testing.assert_array_equal(found.astype(np.complex128), expected)
            order = np.argsort(own, kind="stable")
            offsets = np.searchsorted(own[order], np.arange(21))
            found = run(parprims.reduce, arrays[0], axis=0, offsets=small.asarray(offsets), method="kernel")
            sums = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x.astype(np.complex128), 0)])
            expected = sums[offsets[1:]] - sums[offsets[:-1]]
            np.testing.assert_array_equal(small.to_numpy(found).astype(np.complex128), expected)


@pytest.mark.sanitize
def test_layouts(small, run, rng, subtests):
    """Rows in reverse, with gaps between columns, and columns that lie one after another in memory."""
    x, ids = random(rng, (90, 24), "float32"), rng.integers(0, 5, 90)
    device = small.asarray(x)
    views = {
        "flipped": (small.xp.flip(device, axis=0), x[::-1]),
        "gaps": (device[:, ::3], x[:, ::3]),
        "turned": (small.xp.permute_dims(small.asarray(x.T.copy()), (1, 0)), x),
    }
    for name, (given, own) in views.items():
        with subtests.test(name=name):
            expected = np.stack([own[ids == one].max(0, initial=-np.inf) for one in range(5)])
            found = run(parprims.segment_reduce, given, small.asarray(ids), 5, "maximum", method="kernel")
            compare(small, found, expected, dtype="float32")
            (expected,) = along((own,), 0, [0, 7, 7, 90], largest, (-np.inf,))
            options = {"axis": 0, "offsets": small.asarray(np.array([0, 7, 7, 90])), "method": "kernel"}
            compare(small, run(parprims.reduce, given, "maximum", **options), expected, dtype="float32")


@pytest.mark.sanitize
def test_wrong_offsets(small, run, rng):
    """They reach no memory outside of the arrays."""
    x = small.asarray(random(rng, (300, 6), "float32"))
    wrong = [[0, 3000], [5, 10], [0, 200, 20, 300], [-7, -3, 300], [0, 2**62, -(2**62), 300], [0, 10]]
    for offsets in (*wrong, rng.integers(-(2**40), 2**40, 500)):
        given = small.asarray(np.array(offsets))
        run(parprims.reduce, x, axis=0, offsets=given, check=False, method="kernel")


def test_whole_size(gpu, run, rng):
    """As calls are cut on a GPU, with the same bits twice, of one long segment and of many."""
    for shape, count in (((20_000, 5), 900), ((3000, 64), 2)):
        x, ids = random(rng, shape, "float32"), rng.integers(0, count, shape[0])
        arrays = gpu.asarray(x), gpu.asarray(ids)
        one, other = (gpu.to_numpy(run(parprims.segment_reduce, *arrays, count, method="kernel")) for _ in range(2))
        assert one.tobytes() == other.tobytes()
        expected = np.zeros((count, shape[1]))
        np.add.at(expected, ids, x)
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-3)


def test_jax(monkeypatch, rng):
    """In a program for JAX the kernel stands, and what computes the same elsewhere; under vmap and grad too."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("takes the CPU for a GPU")
    emulator.install_for_jax(monkeypatch)
    x = jax.numpy.asarray(random(rng, (3, 20, 4), "float32"))
    ids = jax.numpy.asarray(rng.integers(-1, 5, (3, 20)), "int32")

    def summed(x, ids):
        return parprims.segment_reduce(x, ids, 4, initial=1.5, method="kernel")

    assert "gpu" in jax.jit(summed).trace(x[0], ids[0]).lower(lowering_platforms=("cuda",)).as_text()
    for axes in ((0, 0), (0, None), (None, 0)):
        given = [one if axis == 0 else one[0] for axis, one in zip(axes, (x, ids), strict=True)]
        for row, found in enumerate(jax.vmap(summed, axes)(*given)):
            one, own = (np.asarray(one if axis is None else one[row]) for axis, one in zip(axes, given, strict=True))
            expected = [one[own == number].sum(0) + 1.5 for number in range(4)]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    found = jax.grad(lambda x: summed(x, ids[0])[2, 1])(x[0])
    expected = np.zeros((20, 4))
    expected[np.asarray(ids)[0] == 2, 1] = 1
    np.testing.assert_array_equal(found, expected)
