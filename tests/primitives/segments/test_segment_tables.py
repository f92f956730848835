"""Reductions by numbers of few segments by tables, against loops, by operators that do not commute."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._core.arrays import namespace_of
from parprims._primitives.segments.tables import tables as segment_tables
from tests.emulation import emulator
from tests.primitives.segments.test_segment_atomics import draws
from tests.support.contract import compare, numpy_dtype, random


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU on which several blocks have tables of their own, of which few segments are stored by the last block."""
    emulator.forget(monkeypatch)
    sizes = {
        "multiprocessors": 2,
        "warps": 4,
        "resident": ((1 << 30, 3),),
        "shared_bytes": 16 << 10,
        "each": 8,
        "stored": 270,
    }
    table = segment_tables.TUNING
    monkeypatch.setitem(table, 90, dataclasses.replace(table[90], **sizes))
    return gpu


def latest(earlier, later):
    """Return the last of two numbers that is not zero."""
    return namespace_of(later).where(later != 0, later, earlier)


def last(earlier, later):
    return later or earlier


def loop(x, ids, count, combine, start=None):
    """Return the reductions, of elements one after another; None where there is neither an element nor a start."""
    found = [start] * count
    for one, number in zip(x.tolist(), ids.tolist(), strict=True):
        if 0 <= number < count:
            found[number] = one if found[number] is None else combine(found[number], one)
    return found


SIZES = ((1, 1), (9, 40), (31, 2), (700, 3), (1500, 1), (1300, 49), (900, 90), (900, 130), (127, 300))
LATEST = parprims.Operator(latest, identity=0, name="latest")


@pytest.mark.sanitize
@pytest.mark.parametrize(("n", "count"), SIZES)
def test_order(small, run, rng, n, count, subtests):
    """Operands stay in order, in every kind of table, from an initial element too."""
    for number, ids in enumerate(draws(rng, n, count)):
        with subtests.test(number=number):
            x = rng.integers(0, 9, n) * (rng.random(n) < 0.4)
            arrays = small.asarray(x), small.asarray(ids)
            found = run(parprims.segment_reduce, *arrays, count, LATEST, method="kernel")
            expected = [0 if one is None else one for one in loop(x, ids, count, last)]
            compare(small, found, np.array(expected), dtype="int64")
            found = run(parprims.segment_reduce, *arrays, count, LATEST, initial=77, method="kernel")
            compare(small, found, np.array(loop(x, ids, count, last, 77)), dtype="int64")


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_sums(small, run, rng, dtype, subtests):
    """Whole numbers are exact; a sum of nothing but -0 is -0, and of nothing +0."""
    if not small.supports(dtype) and small.name != "emulated":
        pytest.skip(f"{small.name} has no {dtype}")
    for n, count in ((300, 7), (900, 40), (900, 100)):
        with subtests.test(count=count):
            ids = rng.integers(1, count, n)
            x = rng.integers(-3, 4, n).astype(numpy_dtype(dtype))
            x[ids == 2], x[ids == 3] = -0.0, np.nan
            found = small.to_numpy(
                run(parprims.segment_reduce, small.asarray(x), small.asarray(ids), count, method="kernel")
            )
            wide = np.zeros(count, np.complex128)
            np.add.at(wide, ids, x.astype(np.complex128))
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wide))
            rest = ~np.isnan(wide)
            np.testing.assert_array_equal(found[rest].astype(np.complex128), wide[rest])
            assert not np.signbit(found[0].real)
            assert np.signbit(found[2].real) == (2 in ids)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
def test_kinds_of_ids(small, run, rng, kind):
    if not small.supports(kind):
        pytest.skip(f"{small.name} has no {kind}")
    info, n, count = np.iinfo(kind), 700, 5
    ids = rng.integers(max(info.min, -3), min(info.max, count + 2) + 1, n).astype(kind)
    ids[: n // 50] = info.max
    x = rng.integers(-9, 9, n).astype(np.float32)
    expected = [one or 0 for one in loop(x, ids.astype(object), count, lambda a, b: a + b)]
    found = run(parprims.segment_reduce, small.asarray(x), small.asarray(ids), count, method="kernel")
    compare(small, found, np.array(expected, np.float32), dtype="float32")


@pytest.mark.sanitize
def test_views(small, run, rng, subtests):
    """Elements and ids with gaps between them, and in reverse."""
    x, ids = rng.integers(-9, 9, 900).astype(np.float32), rng.integers(0, 7, 900)
    for one in (slice(1, None, 3), slice(None, None, -1)):
        with subtests.test(view=one):
            arrays = (small.asarray(whole) for whole in (x, ids))
            flip = small.xp.flip
            arrays = [flip(whole) if one.step == -1 else whole[one] for whole in arrays]
            found = run(parprims.segment_reduce, *arrays, 7, method="kernel")
            expected = loop(x[one], ids[one], 7, lambda a, b: a + b)
            compare(small, found, np.array(expected, np.float32), dtype="float32")


def test_whole_size(gpu, run, rng):
    """As calls are cut on a GPU, in one launch, in two, and by a sort; the same bits again."""
    for n, count, tables in ((1000, 100, 1), (3000, 100, 1), (50_000, 1000, 2), (2000, 60_000, 0)):
        x, ids = random(rng, (n,), "float32"), rng.integers(0, count, n)
        arrays = gpu.asarray(x), gpu.asarray(ids)
        found = gpu.to_numpy(run(parprims.segment_reduce, *arrays, count, method="kernel"))
        again = gpu.to_numpy(run(parprims.segment_reduce, *arrays, count, method="kernel"))
        assert found.tobytes() == again.tobytes()
        wide, sizes = (np.bincount(ids, weights, count) for weights in (x.astype(np.float64), np.abs(x)))
        assert (np.abs(found - wide) <= 1e-5 * sizes).all()
        if gpu.family != "jax":
            launches = parprims.launches(parprims.segment_reduce, *arrays, count, method="kernel")
            assert sum("tables" in launch.name for launch in launches) == tables


def test_jax(monkeypatch, rng):
    """In a program for JAX the kernel stands, and what computes the same elsewhere; under vmap and grad too."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("takes the CPU for a GPU")
    emulator.install_for_jax(monkeypatch)
    x = jax.numpy.asarray(random(rng, (2, 3, 20), "float32"))
    ids = jax.numpy.asarray(rng.integers(-1, 5, (2, 3, 20)), "int32")
    starts = jax.numpy.asarray([[-9.0, 0.5, 3.0], [1.0, 2.0, 4.0]], "float32")

    def total(x, ids, start=None):
        return parprims.segment_reduce(x, ids, 4, initial=start, method="kernel")

    def expected_of(x, ids, start):
        start = 0.0 if start is None else start
        return np.bincount(np.clip(ids, -1, 4) + 1, x, 6)[1:5] + np.asarray(start, np.float64)

    text = jax.jit(total).trace(x[0, 0], ids[0, 0]).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.ptx") == 1
    assert "sort" not in text
    for axes in ((0, 0, None), (0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)):
        given = [
            one[0] if axis == 0 else None if one is starts else one[0, 0]
            for axis, one in zip(axes, (x, ids, starts), strict=True)
        ]
        batch = jax.vmap(total, axes)
        text = jax.jit(batch).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("xla.gpu.ptx") == 1
        for row, found in enumerate(batch(*given)):
            own = [one if axis is None else one[row] for axis, one in zip(axes, given, strict=True)]
            np.testing.assert_allclose(found, expected_of(*own), rtol=1e-5, atol=1e-5)
    for pair, found in enumerate(jax.vmap(jax.vmap(total))(x, ids)):
        for row, one in enumerate(found):
            np.testing.assert_allclose(one, expected_of(x[pair, row], ids[pair, row], None), rtol=1e-5, atol=1e-5)
    found = jax.grad(lambda x: total(x, ids[0, 0])[2])(x[0, 0])
    np.testing.assert_array_equal(found, np.asarray(ids)[0, 0] == 2)
    found = jax.grad(lambda x: jax.vmap(total)(x, ids[0])[:, 2].sum())(x[0])
    np.testing.assert_array_equal(found, np.asarray(ids)[0] == 2)
