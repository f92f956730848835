"""Reductions and scans of segments by kernels for GPUs, against loops, where shares, tiles and lanes meet segments."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.scan import tiling as scan_tiling
from parprims._primitives.segments import cuda as segments_cuda
from tests.emulation import emulator
from tests.primitives.segments.test_segments import cuts
from tests.support.contract import compare, numpy_dtype, random


@pytest.fixture
def small(gpu, monkeypatch):
    """A GPU on which several blocks share a line of a thousand elements."""
    emulator.forget(monkeypatch)
    sizes = {"multiprocessors": 2, "resident": ((1 << 30, 5),), "runs": 1, "lane_bytes": 150}
    monkeypatch.setitem(segments_cuda.TUNING, 90, dataclasses.replace(segments_cuda.TUNING[90], **sizes))
    sizes = {"threads": 64, "shared_bytes": 48, "tiles": 2, "chained_lines": 5, "ahead_bytes": 1}
    monkeypatch.setitem(scan_tiling.TUNING, 90, dataclasses.replace(scan_tiling.TUNING[90], **sizes))
    return gpu


def affine(earlier, later):
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


def largest(earlier, later):
    return (np.maximum(earlier[0], later[0]),)


def loop(xs, offsets, op, start):
    """Return the reductions along the last axis, of arrays that are components of elements."""
    shape = (*xs[0].shape[:-1], len(offsets) - 1)
    found = [np.empty(shape, x.dtype) for x in xs]
    for segment in range(len(offsets) - 1):
        total = tuple(np.full(shape[:-1], one, x.dtype) for one, x in zip(start, xs, strict=True))
        for at in range(offsets[segment], offsets[segment + 1]):
            total = op(total, tuple(x[..., at] for x in xs))
        for one, y in zip(total, found, strict=True):
            y[..., segment] = one
    return tuple(found)


def scan_loop(xs, offsets, op, start=None, exclusive=False, reverse=False):
    """Return the scans of segments along the last axis, of arrays that are components of elements."""
    found = [np.empty_like(x) for x in xs]
    for segment in range(len(offsets) - 1):
        places = range(offsets[segment], offsets[segment + 1])
        total = start
        for at in reversed(places) if reverse else places:
            if exclusive:
                for one, y in zip(total, found, strict=True):
                    y[..., at] = one
            one = tuple(x[..., at] for x in xs)
            total = one if total is None else op(total, one)
            if not exclusive:
                for one, y in zip(total, found, strict=True):
                    y[..., at] = one
    return tuple(found)


def patterns(rng, n):
    """Yield offsets of segments: uneven, long, short, and many without elements at one place."""
    yield cuts(rng, n, max(1, n // 9))
    yield np.array([0, n])
    yield np.arange(n + 1)
    middle = int(rng.integers(0, n + 1))
    yield np.sort(np.concatenate([[0], np.full(400, middle), cuts(rng, n, 5), [n, n, n]]))


LENGTHS = (1, 3, 31, 33, 383, 384, 385, 1000, 2561)


@pytest.mark.sanitize
@pytest.mark.parametrize("n", LENGTHS)
def test_offsets(small, run, rng, n, subtests):
    """In shares of every kind, by an operator that does not commute, of integers that wrap."""
    for number, offsets in enumerate(patterns(rng, n)):
        with subtests.test(pattern=number):
            x = random(rng, (n,), "int32")
            found = run(parprims.reduce, small.asarray(x), offsets=small.asarray(offsets), method="kernel")
            (expected,) = loop((x.astype(np.int64),), offsets, lambda a, b: (a[0] + b[0],), (0,))
            compare(small, found, expected, dtype="int64")
            pair = rng.integers(-9, 9, (2, n))
            given = tuple(map(small.asarray, pair))
            options = {"offsets": small.asarray(offsets.astype(np.int32)), "method": "kernel"}
            found = run(parprims.reduce, given, "affine", **options)
            compare(small, found, loop(pair, offsets, affine, (1, 0)))
            found = run(parprims.reduce, given, "affine", initial=(3, 5), **options)
            compare(small, found, loop(pair, offsets, affine, (3, 5)))


@pytest.mark.sanitize
@pytest.mark.parametrize("lines", [1, 9])
def test_long_segments(small, run, rng, lines, subtests, monkeypatch):
    """In many runs of a share no segment ends. Inputs are in order, reversed and apart from each other in memory."""
    one = dataclasses.replace(segments_cuda.TUNING[90], resident=((1 << 30, 1),))
    monkeypatch.setitem(segments_cuda.TUNING, 90, one)
    n = 12_345 if lines == 1 else 3456
    long = np.sort(rng.integers(0, n, 5))
    for offsets in ([0, n], [0, *long, n], np.sort([0, *long, *np.minimum(long + 2, n), n]), [0, n - 1, n], [0, 1, n]):
        offsets = np.asarray(offsets)
        for begin, step, flip in ((0, 1, False), (1, 1, False), (0, 3, False), (0, 1, True)):
            with subtests.test(offsets=offsets.tolist(), begin=begin, step=step, flip=flip):
                wide = rng.integers(-9, 9, (2, lines, begin + n * step)).astype(np.int32)
                views = tuple([np.flip(x, axis=-1) if flip else x[..., begin::step] for x in wide])
                arrays = tuple(map(small.asarray, wide))
                given = tuple([small.xp.flip(x, axis=-1) if flip else x[..., begin::step] for x in arrays])
                options = {"axis": -1, "offsets": small.asarray(offsets), "method": "kernel"}
                found = run(parprims.reduce, given[0], **options)
                (expected,) = loop((views[0].astype(np.int64),), offsets, lambda a, b: (a[0] + b[0],), (0,))
                compare(small, found, expected, dtype="int64")
                found = run(parprims.reduce, given, "affine", **options)
                with np.errstate(over="ignore"):
                    compare(small, found, loop(views, offsets, affine, (1, 0)))


@pytest.mark.sanitize
@pytest.mark.parametrize("n", [1, 4, 63, 767, 768, 769, 3000])
def test_scans(small, run, rng, n, subtests):
    """In tiles of every kind, of integers that wrap, by an operator that does not commute, from either end."""
    for number, offsets in enumerate((*patterns(rng, n), np.sort(rng.integers(0, n + 1, 20 * n + 9)))):
        offsets[0], offsets[-1] = 0, n
        for exclusive, reverse, start in ((False, False, None), (False, True, (3, 5)), (True, number % 2 == 0, (1, 0))):
            with subtests.test(pattern=number, exclusive=exclusive, reverse=reverse):
                options = {"offsets": small.asarray(offsets), "reverse": reverse, "method": "kernel"}
                pair = rng.integers(-9, 9, (2, n))
                given = tuple(map(small.asarray, pair))
                initial = {} if start in (None, (1, 0)) else {"initial": start}
                found = run(parprims.scan, given, "affine", exclusive=exclusive, **initial, **options)
                compare(small, found, scan_loop(pair, offsets, affine, start, exclusive, reverse))
                x = random(rng, (n,), "int32")
                found = run(parprims.scan, small.asarray(x), exclusive=exclusive, **options)
                expected = (x.astype(np.int64),)
                (expected,) = scan_loop(
                    expected, offsets, lambda a, b: (a[0] + b[0],), (0,) if exclusive else None, exclusive, reverse
                )
                compare(small, found, expected, dtype="int64")


@pytest.mark.sanitize
def test_recurrences(small, run, rng, subtests):
    """Whole numbers, whose solutions are exact; an infinity and NaN stay in their segment."""
    for shape in ((2000,), (3, 900), (7, 900)):
        n = shape[-1]
        offsets = cuts(rng, n, 40)
        a, b = (rng.integers(-1, 2, shape).astype(np.float32) for _ in range(2))
        for reverse in (False, True):
            for start in (None, 2.0):
                with subtests.test(shape=shape, reverse=reverse, start=start):
                    options = {"offsets": small.asarray(offsets), "reverse": reverse, "method": "kernel"}
                    options |= {} if start is None else {"initial": start}
                    found = run(parprims.linear_recurrence, *map(small.asarray, (a, b)), **options)
                    first = None if start is None else (np.float32(1), np.float32(start))
                    _, expected = scan_loop((a, b), offsets, affine, first, reverse=reverse)
                    compare(small, found, expected, dtype="float32")
        b[..., n // 2] = np.inf
        a[..., n // 3] = np.nan
        found = run(
            parprims.linear_recurrence, *map(small.asarray, (a, b)), offsets=options["offsets"], method="kernel"
        )
        found = np.isfinite(small.to_numpy(found))
        for segment in range(40):
            part = slice(offsets[segment], offsets[segment + 1])
            inside = [offsets[segment] <= at < offsets[segment + 1] for at in (n // 2, n // 3)]
            assert any(inside) or found[..., part].all()


@pytest.mark.sanitize
def test_scans_of_lines(small, run, rng, subtests):
    """Lines that are chained and that look back, in and out of order in memory, each with its initial element."""
    for shape, axis in (((3, 2000), 1), ((9, 1700), 1), ((40, 50), 1), ((70, 12), 0), ((2, 3, 900), 2)):
        offsets = cuts(rng, shape[axis], 9)
        x = random(rng, shape, "float32")
        start = random(rng, (*shape[:axis], *shape[axis + 1 :]), "float32")
        for flipped, reverse in ((False, False), (True, False), (False, True)):
            with subtests.test(shape=shape, flipped=flipped, reverse=reverse):
                given = small.xp.flip(small.asarray(x), axis=axis) if flipped else small.asarray(x)
                rows = np.moveaxis(np.flip(x, axis) if flipped else x, axis, -1)
                options = {"axis": axis, "offsets": small.asarray(offsets), "reverse": reverse, "method": "kernel"}
                found = run(parprims.scan, given, "maximum", initial=small.asarray(start), **options)
                (expected,) = scan_loop(
                    (rows,), offsets, lambda a, b: (np.maximum(a[0], b[0]),), (start,), reverse=reverse
                )
                compare(small, found, np.moveaxis(expected, -1, axis))


@pytest.mark.sanitize
def test_lines(small, run, rng, subtests):
    """Lines in and out of order in memory, which warps have by themselves or blocks share, each with its initial."""
    for shape, axis in (((3, 700), 1), ((50, 40), 1), ((70, 12), 0), ((2, 300, 3), 1), ((4, 3, 130), 2)):
        offsets = cuts(rng, shape[axis], 9)
        x = random(rng, shape, "float32")
        for view in (x, np.flip(x, axis)):
            with subtests.test(shape=shape, flipped=view is not x):
                given = small.asarray(x)
                given = given if view is x else small.xp.flip(given, axis=axis)
                start = random(rng, (*shape[:axis], *shape[axis + 1 :]), "float32")
                options = {"axis": axis, "initial": small.asarray(start), "method": "kernel"}
                found = run(parprims.reduce, given, "maximum", offsets=small.asarray(offsets), **options)
                rows = np.moveaxis(view, axis, -1)
                (expected,) = loop((rows,), offsets, largest, (-np.inf,))
                compare(small, found, np.moveaxis(np.maximum(expected, start[..., None]), -1, axis))


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "float16", "float32", "float64", "complex64", "complex128"]
)
def test_dtypes(small, run, rng, dtype):
    """Of whole numbers whose sums are exact; of aligned arrays, of others, and with gaps."""
    x = rng.integers(0, 2, 3001).astype(numpy_dtype(dtype))
    views = slice(None), slice(1, None), slice(None, None, 3)
    if small.name == "emulated" and dtype in ("bool", "uint16", "complex64"):
        views = views[:1]  # how elements are loaded depends on their width, and another dtype has it
    for view in views:
        part = x[view]
        offsets = cuts(rng, len(part), 70)
        found = run(parprims.reduce, small.asarray(x)[view], offsets=small.asarray(offsets), method="kernel")
        sums = np.concatenate([[0], np.cumsum(part.astype(np.complex128))])
        expected = sums[offsets[1:]] - sums[offsets[:-1]]
        name = small.dtype_name(found) if hasattr(small, "dtype_name") else str(found.dtype).rsplit(".", 1)[-1]
        compare(small, found, expected.astype(name) if "complex" in name else expected.real.astype(name))
        found = run(parprims.scan, small.asarray(x)[view], offsets=small.asarray(offsets), method="kernel")
        expected = sums[1:] - np.repeat(sums[offsets[:-1]], np.diff(offsets))
        compare(small, found, expected.astype(name) if "complex" in name else expected.real.astype(name))


@pytest.mark.sanitize
def test_many_blocks(small, run, rng, monkeypatch):
    """So many that a thread of the last combines what several have left."""
    one = dataclasses.replace(segments_cuda.TUNING[90], multiprocessors=60, lane_bytes=40)
    monkeypatch.setitem(segments_cuda.TUNING, 90, one)
    x = random(rng, (100_000,), "int32")
    for offsets in (cuts(rng, 100_000, 11), cuts(rng, 100_000, 600)):
        found = run(parprims.reduce, small.asarray(x), offsets=small.asarray(offsets), method="kernel")
        sums = np.concatenate([[0], np.cumsum(x, dtype=np.int64)])
        compare(small, found, sums[offsets[1:]] - sums[offsets[:-1]])


@pytest.mark.sanitize
def test_short_lines(small, run, rng):
    """One warp, or one tile, for each; wide elements; lines of wide elements that are chained."""
    sizes = ((20,), "complex128"), ((200,), "float32"), ((6, 400), "complex128"), ((90, 30), "complex128")
    for shape, dtype in sizes:
        x = rng.integers(-9, 10, shape).astype(dtype)
        offsets = cuts(rng, shape[-1], 6)
        options = {"axis": len(shape) - 1, "offsets": small.asarray(offsets), "method": "kernel"}
        (expected,) = loop((x,), offsets, lambda a, b: (a[0] + b[0],), (0,))
        for given in (small.asarray(x), small.asarray(np.repeat(x, 3, -1))[..., ::3]):
            compare(small, run(parprims.reduce, given, **options), expected, dtype=dtype)
        for reverse in (False, True):
            found = run(parprims.scan, small.asarray(x), reverse=reverse, **options)
            (expected,) = scan_loop((x,), offsets, lambda a, b: (a[0] + b[0],), reverse=reverse)
            compare(small, found, expected, dtype=dtype)


def test_whole_size(gpu, run, rng):
    """As calls are cut on a GPU, and with the same bits twice."""
    n = 400_000
    offsets = cuts(rng, n, 9000)
    x = random(rng, (n,), "float32")
    given = gpu.asarray(x), gpu.asarray(offsets)
    one, other = (gpu.to_numpy(run(parprims.reduce, given[0], offsets=given[1], method="kernel")) for _ in range(2))
    assert one.tobytes() == other.tobytes()
    sums = np.add.reduceat(np.append(x.astype(np.float64), 0), offsets[:-1])
    sums[offsets[1:] == offsets[:-1]] = 0
    np.testing.assert_allclose(one, sums, rtol=1e-4, atol=1e-3)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
def test_ids(small, run, rng, kind, subtests):
    """Of every dtype, some of no segment, in and out of order, of few segments and of many without elements."""
    if not small.supports(kind):
        pytest.skip(f"{small.name} has no {kind}")
    info = np.iinfo(kind)
    for n, count in ((1, 1), (900, 5), (2500, 100), (300, 3000)):
        ids = rng.integers(max(info.min, -3), min(info.max, count + 2) + 1, n).astype(kind)
        ids[: n // 50] = info.max
        x = random(rng, (n,), "int32")
        for in_order in (False, True):
            with subtests.test(n=n, count=count, in_order=in_order):
                own = np.sort(ids) if in_order else ids
                arrays = small.asarray(x), small.asarray(own)
                options = {"indices_are_sorted": in_order, "method": "kernel"}
                found = run(parprims.segment_reduce, *arrays, count, **options)
                inside = (own >= 0) & (own < count)
                expected = np.zeros(count, np.int64)
                np.add.at(expected, own[inside].astype(np.int64), x[inside])
                compare(small, found, expected)
    rows = random(rng, (50, 7), "float32")
    ids = rng.integers(0, 4, 50).astype(kind)
    arrays = small.asarray(rows), small.asarray(ids)
    found = run(parprims.segment_reduce, *arrays, 4, "maximum", initial=-99.0, method="kernel")
    compare(small, found, np.stack([rows[ids == one].max(0, initial=-99) for one in range(4)]))


def test_special_values(small, run, rng):
    """An infinity or NaN stays in its segment, and -0 is kept."""
    x = random(rng, (1500,), "float32")
    offsets = cuts(rng, 1500, 300)
    x[700], x[100], x[1300] = np.nan, np.inf, -np.inf
    found = small.to_numpy(run(parprims.reduce, small.asarray(x), offsets=small.asarray(offsets), method="kernel"))
    for segment in range(300):
        part = x[offsets[segment] : offsets[segment + 1]].astype(np.float64).sum()
        np.testing.assert_allclose(found[segment], part, rtol=1e-4, atol=1e-3)
    zeros = small.asarray(np.full(5, -0.0, np.float32))
    found = run(parprims.reduce, zeros, "maximum", offsets=small.asarray(np.arange(6)), initial=-1.0, method="kernel")
    assert np.signbit(small.to_numpy(found)).all()


def test_wrong_offsets(small, run, rng):
    """They reach no memory outside of the arrays."""
    x = small.asarray(random(rng, (900,), "float32"))

    def call(offsets):
        run(parprims.reduce, x, offsets=offsets, method="kernel")
        for reverse in (False, True):
            run(parprims.scan, x, offsets=offsets, reverse=reverse, method="kernel")

    for wrong in ([0, 3000], [5, 10], [0, 800, 20, 900], [-7, -3, 900], [0, 2**62, -(2**62), 900], [0, 10]):
        call(small.asarray(np.array(wrong)))
    many = rng.integers(-(2**40), 2**40, 500)
    call(small.asarray(many))
    call(small.asarray(rng.integers(-(2**40), 2**40, 20_000)))


def test_jax(monkeypatch, rng):
    """In a program for JAX the kernel stands, and what computes the same elsewhere; under vmap and grad too."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("takes the CPU for a GPU")
    emulator.install_for_jax(monkeypatch)
    offsets = jax.numpy.asarray([[0, 7, 7, 20], [0, 0, 1, 20]], "int32")
    x = jax.numpy.asarray(random(rng, (3, 20), "float32"))

    def total(x, offsets, start=1.5):
        return parprims.reduce(x, offsets=offsets, initial=start, method="kernel")

    assert "gpu" in jax.jit(total).trace(x[0], offsets[0]).lower(lowering_platforms=("cuda",)).as_text()
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(x, 1)], 1)
    for axes, own in (((0, None), [offsets[0]] * 3), ((0, 0), [offsets[0], offsets[1], offsets[0]])):
        found = jax.vmap(total, axes)(x, own[0] if axes[1] is None else jax.numpy.stack(own))
        expected = [line[one[1:]] - line[one[:-1]] + 1.5 for line, one in zip(sums, own, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    found = jax.grad(lambda x: total(x, offsets[0])[2])(x[0])
    np.testing.assert_array_equal(found, np.arange(20) >= 7)

    def scanned(x, offsets):
        return parprims.scan(x, "maximum", offsets=offsets, exclusive=True, initial=-9.0, method="kernel")

    assert "gpu" in jax.jit(scanned).trace(x[0], offsets[0]).lower(lowering_platforms=("cuda",)).as_text()
    for axes, own in (((0, None), [offsets[0]] * 3), ((0, 0), [offsets[0], offsets[1], offsets[0]])):
        found = jax.vmap(scanned, axes)(x, own[0] if axes[1] is None else jax.numpy.stack(own))
        for line, one, row in zip(np.asarray(x), own, found, strict=True):
            (expected,) = scan_loop((line,), np.asarray(one), largest, (np.float32(-9),), exclusive=True)
            np.testing.assert_array_equal(row, expected)
    solved = jax.grad(
        lambda a: parprims.linear_recurrence(a, x[0], offsets=offsets[0], reverse=True, method="kernel")[7]
    )(x[1])
    assert np.isfinite(solved).all()
    assert not np.asarray(solved)[:7].any()

    ids = jax.numpy.asarray(rng.integers(-1, 5, (3, 20)), "int32")

    def summed(x, ids):
        return parprims.segment_reduce(x, ids, 4, method="kernel")

    assert "gpu" in jax.jit(summed).trace(x[0], ids[0]).lower(lowering_platforms=("cuda",)).as_text()
    for line, one, row in zip(np.asarray(x), np.asarray(ids), jax.vmap(summed)(x, ids), strict=True):
        expected = [line[one == number].sum() for number in range(4)]
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)
    found = jax.grad(lambda x: summed(x, ids[0])[2])(x[0])
    np.testing.assert_array_equal(found, np.asarray(ids)[0] == 2)
