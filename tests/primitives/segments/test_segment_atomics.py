"""Reductions by numbers of segments by atomic operations, against loops, wherever elements are combined."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.segments.tables import atomics as segment_atomics
from tests.emulation import emulator
from tests.support.contract import compare, numpy_dtype, random

OPERATORS = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU on which several blocks have words of their own, of which few segments are stored by the last block."""
    emulator.forget(monkeypatch)
    sizes = {"multiprocessors": 2, "threads": 64, "blocks": 3, "shared_bytes": 3 << 10}
    sizes |= {"stored": 50, "flushed": 1, "looked": 1}
    table = segment_atomics.TUNING
    monkeypatch.setitem(table, 90, dataclasses.replace(table[90], **sizes))
    return gpu


def identity(name, dtype):
    kind = np.dtype(dtype).kind
    if name in ("maximum", "minimum"):
        if kind == "f":
            return -np.inf if name == "maximum" else np.inf
        return getattr(np.iinfo(dtype), "min" if name == "maximum" else "max")
    return {"bitwise_and": np.array(-1).astype(dtype)[()], "logical_and": True}.get(name, np.dtype(dtype).type(0))


def loop(x, ids, count, name, start=None):
    """Return the reductions, of elements one after another."""
    found = np.full(count, identity(name, x.dtype) if start is None else start, x.dtype)
    for one, number in zip(x, ids, strict=True):
        if 0 <= number < count:
            found[number] = OPERATORS[name](found[number], one)
    return found


def draws(rng, n, count):
    """Yield ids: in no order, in order, of long and short runs, all equal, and mostly of no segment."""
    ids = rng.integers(-1, count + 1, n)
    yield ids
    yield np.sort(ids)
    yield np.repeat(rng.integers(0, count, n), rng.integers(1, 40, n))[:n]
    yield np.full(n, count - 1)
    yield np.where(rng.random(n) < 0.9, rng.choice([-1, count, 2**31, -(2**40), 2**40], n), ids)


SIZES = ((1, 1), (9, 40), (700, 3), (5000, 1), (2600, 49), (3000, 200), (900, 900), (700, 5000))


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["add", "maximum", "bitwise_and", "bitwise_xor"])
@pytest.mark.parametrize(("n", "count"), SIZES)
def test_ids(small, run, rng, name, n, count, subtests):
    """Of every kind, few and many, in integers that wrap."""
    for number, ids in enumerate(draws(rng, n, count)):
        with subtests.test(number=number):
            x = rng.integers(-(2**62), 2**62, n) * 2
            arrays = small.asarray(x), small.asarray(ids)
            found = run(parprims.segment_reduce, *arrays, count, name, method="kernel")
            compare(small, found, loop(x, ids, count, name), dtype="int64")


@pytest.mark.sanitize
@pytest.mark.parametrize("count", [20, 600])
@pytest.mark.parametrize("dtype", "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
def test_dtypes(small, run, rng, dtype, count, subtests):
    """Of every number that a dtype has among them, the extremes too."""
    if not small.supports(dtype):
        pytest.skip(f"{small.name} has no {dtype}")
    kind, n = numpy_dtype(dtype), 1200
    x = np.frombuffer(rng.bytes(n * kind.itemsize), kind).copy()
    if kind.kind == "f":
        x = np.where(np.isnan(x), kind.type(1), x)
        x[:6] = np.inf, -np.inf, np.finfo(kind).max, -np.finfo(kind).max, np.finfo(kind).smallest_subnormal, -1
    else:
        x[:2] = np.iinfo(kind).min, np.iinfo(kind).max
    ids = rng.integers(0, count, n).astype(np.int32)
    names = ("maximum", "minimum") if kind.kind == "f" else ("maximum", "minimum", "bitwise_and", "bitwise_or", "add")
    for name in names:
        for start in (None, x[7]):
            with subtests.test(name=name, start=start):
                arrays = small.asarray(x), small.asarray(ids)
                options = {} if start is None else {"initial": small.asarray(np.array(start, kind))}
                options |= {"dtype": dtype} if name == "add" else {}
                found = run(parprims.segment_reduce, *arrays, count, name, method="kernel", **options)
                compare(small, found, loop(x, ids, count, name, start), dtype=dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor", "add"])
def test_truth_values(small, run, rng, name, subtests):
    for count in (9, 600):
        for start in (None, not name.endswith("and")):
            with subtests.test(count=count, start=start):
                x, ids = rng.random(700) < 0.3, rng.integers(0, count, 700).astype(np.int32)
                arrays = small.asarray(x), small.asarray(ids)
                options = {"method": "kernel", **({} if start is None else {"initial": start})}
                found = run(parprims.segment_reduce, *arrays, count, name, **options)
                expected = loop(x.astype(np.int64) if name == "add" else x, ids, count, name, start)
                compare(small, found, expected)
                assert name == "add" or small.to_numpy(found).view(np.uint8).max() <= 1


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
def test_kinds_of_ids(small, run, rng, kind, subtests):
    if not small.supports(kind):
        pytest.skip(f"{small.name} has no {kind}")
    info = np.iinfo(kind)
    for n, count in ((900, 5), (300, 3000)):
        with subtests.test(count=count):
            ids = rng.integers(max(info.min, -3), min(info.max, count + 2) + 1, n).astype(kind)
            ids[: n // 50] = info.max
            x = random(rng, (n,), "int32")
            found = run(parprims.segment_reduce, small.asarray(x), small.asarray(ids), count, method="kernel")
            compare(small, found, loop(x.astype(np.int64), ids.astype(object), count, "add"), dtype="int64")


@pytest.mark.sanitize
def test_views(small, run, rng, subtests):
    """Elements and ids with gaps between them, and in reverse."""
    x, ids = random(rng, (900,), "int32"), rng.integers(0, 7, 900)
    for one in (slice(1, None, 3), slice(None, None, -1)):
        with subtests.test(view=one):
            arrays = (small.asarray(whole) for whole in (x, ids))
            flip = small.xp.flip
            arrays = [flip(whole) if one.step == -1 else whole[one] for whole in arrays]
            found = run(parprims.segment_reduce, *arrays, 7, "minimum", method="kernel")
            compare(small, found, loop(x[one], ids[one], 7, "minimum"), dtype="int32")


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_special_values(small, run, rng, dtype, subtests):
    """NaN of any kind is the result wherever it is one, and of zeros the greatest is +0, whatever the order."""
    if not small.supports(dtype) and small.name != "emulated":
        pytest.skip(f"{small.name} has no {dtype}")
    kind = numpy_dtype(dtype)
    bits = f"u{kind.itemsize}"
    infinite = int(np.array(np.inf).astype(kind).view(bits))
    sign = 1 << (8 * kind.itemsize - 1)
    nans = np.array([infinite + 1, infinite | (infinite - 1), sign + infinite + 1, 2 * sign - 1], bits).view(kind)
    for count in (12, 600):
        x, ids = np.zeros(600, kind), rng.permutation(np.arange(600, dtype=np.int32) % 6)
        x[::2] = -0.0
        x[ids == 1] = -0.0
        x[ids == 2] = 0.0
        x[np.flatnonzero(ids == 4)[:2]], x[np.flatnonzero(ids == 5)[:2]] = nans[:2], nans[2:]
        x[ids == 3] = -np.inf
        for name, mixed in (("maximum", False), ("minimum", True)):
            with subtests.test(count=count, name=name):
                arrays = small.asarray(x), small.asarray(ids)
                found = small.to_numpy(run(parprims.segment_reduce, *arrays, count, name, method="kernel"))
                again = (small.asarray(x[::-1].copy()), small.asarray(ids[::-1].copy()))
                again = small.to_numpy(run(parprims.segment_reduce, *again, count, name, method="kernel"))
                assert found.tobytes() == again.tobytes()
                assert np.isnan(found[4:6]).all()
                assert found[4:5].tobytes() == found[5:6].tobytes()
                assert (found[:3] == 0).all()
                assert np.signbit(found[:3]).tolist() == [mixed, True, False]
                assert found[3] == -np.inf
                assert (found[6:] == (np.inf if mixed else -np.inf)).all()
                start = small.asarray(np.array(np.nan).astype(kind))
                found = run(parprims.segment_reduce, *arrays, count, name, initial=start, method="kernel")
                assert np.isnan(small.to_numpy(found)).all()


def test_whole_size(gpu, run, rng):
    """As calls are cut on a GPU, in one launch and in several."""
    for n, count in ((200_000, 1000), (100_000, 30_000)):
        x, ids = random(rng, (n,), "float32"), rng.integers(0, count, n)
        expected = np.full(count, -np.inf, np.float32)
        np.maximum.at(expected, ids, x)
        found = run(parprims.segment_reduce, gpu.asarray(x), gpu.asarray(ids), count, "maximum", method="kernel")
        compare(gpu, found, expected, dtype="float32")


def test_words_that_no_cache_holds(gpu, run, rng, monkeypatch):
    """Of so many segments elements are sorted."""
    if gpu.family == "jax":
        pytest.skip("has one program for a call")
    emulator.forget(monkeypatch)
    table = segment_atomics.TUNING
    monkeypatch.setitem(table, 90, dataclasses.replace(table[90], words_bytes=400))
    x = rng.integers(-9, 9, 3000).astype(np.int32)
    for count in (100, 101):
        ids = rng.integers(0, count, 3000)
        expected = np.full(count, np.iinfo(np.int32).min, np.int32)
        np.maximum.at(expected, ids, x)
        call = parprims.segment_reduce, gpu.asarray(x), gpu.asarray(ids), count, "maximum"
        compare(gpu, run(*call, method="kernel"), expected)
        names = [launch.name for launch in parprims.launches(*call, method="kernel")]
        assert any("atomics" in name for name in names) is (count == 100)


@pytest.mark.once
def test_launches():
    """One where there are few segments; of many the words are those of the result where these are as wide."""
    for result, segments, launches, temporary in (
        ("float32", 1000, 1, 0),
        ("float32", 1 << 20, 3, 0),
        ("int64", 1 << 20, 3, 0),
        ("uint32", 1 << 20, 2, 0),
        ("uint8", 1 << 20, 3, 4 << 20),
    ):
        kind = segment_atomics.Kind(result, "int32", result, "MAXIMUM")
        plan = segment_atomics.make_plan(kind, 1 << 24, segments, (1, 1), segment_atomics.TUNING[90])
        assert (len(plan.launches), plan.temporary_bytes) == (launches, temporary)


def test_jax(monkeypatch, rng):
    """In a program for JAX the kernel stands, and what computes the same elsewhere; under vmap and grad too."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("takes the CPU for a GPU")
    emulator.install_for_jax(monkeypatch)
    x = jax.numpy.asarray(random(rng, (3, 20), "float32"))
    ids = jax.numpy.asarray(rng.integers(-1, 5, (3, 20)), "int32")
    starts = jax.numpy.asarray([-9.0, 0.5, 3.0], "float32")

    def largest(x, ids, start=None):
        return parprims.segment_reduce(x, ids, 4, "maximum", initial=start, method="kernel")

    text = jax.jit(largest).trace(x[0], ids[0]).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.ptx") == 1
    for axes in ((0, 0, None), (0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)):
        given = [
            one if axis == 0 else None if one is starts else one[0]
            for axis, one in zip(axes, (x, ids, starts), strict=True)
        ]
        for row, found in enumerate(jax.vmap(largest, axes)(*given)):
            own = [one if axis is None else one[row] for axis, one in zip(axes, given, strict=True)]
            expected = loop(np.asarray(own[0]), np.asarray(own[1]), 4, "maximum", own[2])
            np.testing.assert_array_equal(found, expected)
    found = jax.grad(lambda x: largest(x, ids[0])[2])(x[0])
    wins = np.flatnonzero(np.asarray(ids)[0] == 2)
    expected = np.zeros(20)
    if len(wins):
        expected[wins[np.argmax(np.asarray(x)[0, wins])]] = 1
    np.testing.assert_array_equal(found, expected)
