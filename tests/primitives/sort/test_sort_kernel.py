"""The kernels of sorts: every way they cut their work, every dtype, stress, and what a GPU brings.

They run on machines with a GPU, and on the emulator (``--backend emulated``). ``PARPRIMS_STRESS=10000`` sets the number
of random cases (JAX, which compiles each, and the emulator have few), ``PARPRIMS_STRESS_SEED`` repeats those of a
failed run.
"""

import concurrent.futures
import contextlib
import dataclasses
import gc
import itertools
import math
import os
import re

import numpy as np
import pytest

import parprims
from parprims import _cuda
from parprims._core.arrays import device
from parprims._primitives.sort import cuda as sort_cuda
from tests.emulation import emulator
from tests.primitives.sort.test_sort import REAL, extremes, order, raw
from tests.support.contract import few_on_jax, reversed_view, strided, transposed, unaligned

STRESS = int(os.environ.get("PARPRIMS_STRESS", "300"))
SEED = int(os.environ.get("PARPRIMS_STRESS_SEED", np.random.SeedSequence().entropy % 2**64))
SIZES = sort_cuda.TUNING[90]
SMALL = _cuda.tuned(sort_cuda.TUNING, 75)  # on a device whose blocks have the least shared memory
EDGES = sorted(
    {32, 64, 128, 512, 2048, 4096}
    | {edge for one in (*SIZES.rows, *SIZES.few) for edge in (one.longest, one.valued)}
    | {tile * threads * items for _, threads, items, _ in (*SIZES.alone, *SIZES.together) for tile in (1, 2)}
)
VALUES = ("bool", "int16", "float32", "int64", "complex128")  # of every size that is moved


@pytest.fixture
def sizes(monkeypatch):
    """Return a function that changes the sizes of the kernels' work."""

    def change(**sizes):
        emulator.forget(monkeypatch)
        monkeypatch.setattr(sort_cuda, "TUNING", {90: dataclasses.replace(SIZES, **sizes)})

    return change


def indices(keys, descending):
    """Return the stable indices along the last axis by NumPy: numbers by value, NaN above all of them."""
    if keys.dtype.name == "bfloat16":
        keys = keys.astype(np.float32)
    if keys.dtype.kind == "b":
        keys = keys.astype(np.uint8)
    above = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(keys.shape, bool)
    keys = np.where(above, keys.dtype.type(0), keys)
    if descending:  # sorted from the end and turned, equals keep their order
        keys, above = keys[..., ::-1], above[..., ::-1]
    found = np.lexsort((keys, above), axis=-1)
    return keys.shape[-1] - 1 - found[..., ::-1] if descending else found


def test_indices_are_the_reference(subtests):
    rng = np.random.default_rng(7)
    for dtype in REAL:
        for descending in (False, True):
            with subtests.test(dtype=dtype, descending=descending):
                keys = make(rng, (3, 50), dtype)
                np.testing.assert_array_equal(indices(keys, descending), order(keys, -1, descending))


def make(rng, shape, dtype):
    """Return keys over the whole range of a dtype, of which many are equal and some extreme."""
    special = extremes(dtype)
    bits = rng.integers(0, 256, (*shape, special.itemsize), np.uint8)
    keys = rng.integers(0, 2, shape).astype(bool) if dtype == "bool" else bits.view(special.dtype)[..., 0]
    if dtype == "bfloat16":  # JAX moves it as float32, where NaN loses its payload
        keys = np.where(np.isnan(keys.astype(np.float32)), special.dtype.type(1), keys)
    keys = np.where(rng.random(shape) < 0.3, special[rng.integers(0, special.size, shape)], keys)
    again = rng.integers(0, max(1, math.prod(shape)), shape)
    return np.where(rng.random(shape) < 0.2, keys.reshape(-1)[again], keys)


def directly(function, *args, **options):
    return function(*args, **options)


def check(gpu, keys, call=directly, descending=False, values=("int32",), axis=-1, view=None, what="sab"):
    """Sort, argsort and sort by key along an axis and compare every bit."""
    inputs = [
        keys,
        *(
            make(np.random.default_rng(at), keys.shape, name)
            if name in REAL
            else (np.arange(keys.size) * (1 - 2j)).reshape(keys.shape)
            for at, name in enumerate(values)
        ),
    ]
    arrays = [view(gpu, x) if view else gpu.asarray(x) for x in inputs]
    seen = [gpu.to_numpy(x) for x in arrays]
    found = np.moveaxis(indices(np.moveaxis(seen[0], axis, -1), descending), -1, axis)
    expected = [np.take_along_axis(x, found, axis) for x in seen]
    options = {"axis": axis, "descending": descending, "method": "kernel"}
    results = []
    if "s" in what:
        results.append((call(parprims.sort, arrays[0], **options), expected[0]))
    if "a" in what:
        results.append((call(parprims.argsort, arrays[0], **options), found))
    if "b" in what:
        results += zip(call(parprims.sort_by_key, *arrays, **options), expected, strict=True)
    for one, other in results:
        one = gpu.to_numpy(one)
        assert one.shape == other.shape
        np.testing.assert_array_equal(raw(one), raw(other.astype(one.dtype, copy=False)))
    for before, after in zip(seen, arrays, strict=True):
        np.testing.assert_array_equal(raw(gpu.to_numpy(after)), raw(before))


class TestEveryDtype:
    """Every dtype in both directions, by each of the three ways."""

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("dtype", REAL)
    def test_ways(self, gpu, run, rng, subtests, dtype, descending):
        if not hasattr(gpu.xp, dtype) and gpu.name not in ("emulated", "cupy"):
            pytest.skip(f"{gpu.name} has no {dtype}")
        for shape in ((5, 29), (3, 150), (2, 8500)):
            with subtests.test(shape=shape):
                values = VALUES if shape[0] != 3 else VALUES[2:3]
                check(gpu, make(rng, shape, dtype), run, descending, values)


class TestShapes:
    @pytest.mark.parametrize("edge", EDGES)
    def test_edges(self, gpu, run, rng, subtests, edge):
        for n in (edge - 1, edge, edge + 1):
            with subtests.test(n=n):
                check(gpu, make(rng, (n,), "float32"), run)

    def test_short(self, gpu, run, rng, subtests):
        for n in range(1, 34):
            with subtests.test(n=n):
                check(gpu, make(rng, (17, n), "int16"), run, bool(n % 2))

    def test_empty(self, gpu, run, subtests):
        for shape in ((0,), (3, 0), (0, 5)):
            with subtests.test(shape=shape):
                check(gpu, np.zeros(shape, np.float32), run)

    def test_many_rows(self, gpu, run, rng, subtests):
        for shape in ((1000, 3), (70, 33), (31, 300), (3, 5, 2000), (3, 2, 8300)):
            with subtests.test(shape=shape):
                check(gpu, make(rng, shape, "int32"), run, values=("int32", "int8"))

    def test_the_ways_of_many_rows(self, gpu, run, rng, subtests, sizes):
        sizes(blocks=1)
        shapes = (
            (601, 7),
            (131, 32),
            (5, 100),
            (5, 300),
            (3, 512),
            (3, 1000),
            (3, 1024),
            (2, 4096),
            (2, 5632),
            (2, 6900),
        )
        for shape in few_on_jax(gpu, rng, shapes, 4):
            with subtests.test(shape=shape):
                check(gpu, make(rng, shape, "float32"), run)
                check(gpu, np.sort(make(rng, shape, "int64"), axis=-1) // 2**40, run, True)
        keys = rng.permuted(np.tile(np.arange(32), (131, 1)), axis=-1)
        check(gpu, keys, run)
        keys[130, 3] = keys[130, 4]  # equal keys in one row
        check(gpu, keys, run)

    def test_axes_and_views(self, gpu, run, rng, subtests):
        for axis in (0, 1, 2):
            for view in (None, strided, reversed_view, transposed, unaligned):
                with subtests.test(axis=axis, view=view):
                    check(gpu, make(rng, (6, 40, 9), "float32"), run, axis=axis, view=view)

    def test_long_unaligned(self, gpu, run, rng, subtests):
        for dtype in ("uint8", "float16", "int32", "float64"):
            if hasattr(gpu.xp, dtype):
                with subtests.test(dtype=dtype):
                    check(gpu, make(rng, (9001,), dtype), run, view=unaligned)

    def test_same_bits_twice(self, gpu, rng):
        x = gpu.asarray(make(rng, (50_001,), "float64"))
        first, second = (gpu.to_numpy(parprims.sort(x, method="kernel")) for _ in range(2))
        np.testing.assert_array_equal(raw(first), raw(second))

    def test_more_than_two_to_the_31(self, gpu):
        if gpu.name != "cupy":
            pytest.skip("one library is enough")
        import cupy

        n = 2**31 + 12_345
        if cupy.cuda.runtime.memGetInfo()[0] < 8 * n:
            pytest.skip("needs 18 GB of memory")
        x = cupy.arange(n, dtype=cupy.uint32) * cupy.uint32(2_654_435_761)  # odd: every number of 32 bits once at most
        y = parprims.sort(x.view(cupy.uint8)[: 2**31 + 5], method="kernel")
        assert bool((y[1:] >= y[:-1]).all())
        assert bool(
            (cupy.bincount(y, minlength=256) == cupy.bincount(x.view(cupy.uint8)[: y.size], minlength=256)).all()
        )
        del y
        y = parprims.sort(x, method="kernel")
        assert bool((y[1:] > y[:-1]).all())


class TestDistributions:
    N = 9000

    def cases(self, rng):
        """Return keys of 32 bits that a radix sort may stumble on, by name."""
        n = self.N
        keys = rng.integers(0, 2**32, n, np.uint32)
        entropy = keys.copy()
        for _ in range(4):  # each bit set once in 32
            entropy &= rng.integers(0, 2**32, n, np.uint32)
        return {
            "all equal": np.full(n, 7, np.uint32),
            "sorted": np.sort(keys),
            "reversed": np.sort(keys)[::-1].copy(),
            "two distinct": np.where(rng.random(n) < 0.5, np.uint32(3), np.uint32(2**31)),
            "few distinct": keys[:7][rng.integers(0, 7, n)],
            "entropy 0.2": entropy,
            "one out of place": np.roll(np.sort(keys), 1),
            "all the largest": np.full(n, 2**32 - 1, np.uint32),
            "the last differs": np.where(np.arange(n) == n - 1, np.uint32(5 << 16), np.uint32(9 << 16)),
        }

    @pytest.mark.parametrize("descending", [False, True])
    def test_skewed(self, gpu, run, rng, subtests, descending):
        for name, keys in self.cases(rng).items():
            for part in (keys, keys[:300]):
                with subtests.test(name, n=part.size):
                    check(gpu, part.view(np.int32), run, descending)
                    check(gpu, part.view(np.float32), run, descending)

    def test_skipped_digits(self, gpu, run, rng, subtests):
        # Which digits differ decides where keys are on the way: all 16 sets of them.
        keys = rng.integers(0, 2**32, self.N, np.uint32)
        for digits in range(16):
            mask = sum(255 << 8 * digit for digit in range(4) if digits >> digit & 1)
            with subtests.test(digits=digits):
                check(gpu, ((keys & mask) | (0x5AA5C33C & ~mask & 0xFFFFFFFF)).astype(np.uint32).view(np.int32), run)

    def test_digits_of_other_rows(self, gpu, run, rng):
        # Every row alone is the same in a digit, and the rows differ in it.
        keys = rng.integers(0, 256, (3, self.N)).astype(np.int32) << np.array([[8], [16], [24]])
        check(gpu, keys.astype(np.int32), run)
        check(gpu, keys[:, :500].astype(np.int32), run)

    def test_wide_keys_of_a_small_range(self, gpu, run, rng):
        check(gpu, rng.integers(0, 2**24, self.N), run)
        check(gpu, rng.integers(-5, 5, self.N), run, True)

    def test_stable(self, gpu, run, rng, subtests):
        for shape in ((2, 31), (2, 900), (20_000,)):
            for dtype in ("int8", "float64"):
                for descending in (False, True):
                    with subtests.test(shape=shape, dtype=dtype, descending=descending):
                        keys = rng.integers(-2, 3, shape).astype(dtype)
                        positions = np.broadcast_to(np.arange(shape[-1]), shape)
                        options = {"descending": descending, "method": "kernel"}
                        y, where = run(
                            parprims.sort_by_key, gpu.asarray(keys), gpu.asarray(positions.copy()), **options
                        )
                        y, where = gpu.to_numpy(y), gpu.to_numpy(where)
                        equal = y[..., 1:] == y[..., :-1]
                        assert equal.any()
                        assert (where[..., 1:] > where[..., :-1])[equal].all()
                        np.testing.assert_array_equal(np.take_along_axis(keys, where, -1), y)


class TestTiles:
    """What blocks tell each other: many in flight, started in any order, and words of 64 bits."""

    @pytest.mark.parametrize("blocks", [1, 2, 6])
    def test_in_flight(self, gpu, run, rng, monkeypatch, sizes, blocks):
        if gpu.name != "emulated":
            pytest.skip("a GPU has its own order")
        monkeypatch.setattr(emulator.Runner, "in_flight", blocks)
        sizes(blocks=10**6)  # tiles as small as may be
        for _ in range(3):
            check(gpu, make(rng, (30_000,), "int32"), run)
            check(gpu, make(rng, (2, 8300), "int16"), run)

    def test_wide_words(self, gpu, run, rng, sizes):
        sizes(counts=100, places=100)
        check(gpu, make(rng, (20_000,), "int32"), run)
        check(gpu, make(rng, (2, 8300), "float64"), run, True)

    @pytest.mark.parametrize("segment", [1, 5000])
    def test_segments(self, gpu, run, rng, sizes, monkeypatch, segment):
        if gpu.name == "emulated":
            monkeypatch.setattr(emulator.Runner, "in_flight", 3)
        sizes(counts=100, segment=segment, blocks=10**6)
        check(gpu, make(rng, (20_000,), "int16"), run)
        check(gpu, make(rng, (3, 8301), "float32"), run, True, ("int8", "complex128"))

    def test_keys_read_through_places(self, gpu, run, rng, sizes):
        # Which digits differ decides which launches leave the keys out.
        sizes(places=100)
        keys = rng.integers(0, 2**63, (2, 8301))
        for mask in (0, 255 << 16, 0xFFFF << 24, 0xFFFFFF, -1):
            check(gpu, keys & mask, run, what="a")

    def test_long_instead_of_short(self, gpu, run, rng, sizes):
        sizes(rows=(), few=())
        for n in (33, 100, 1535, 1537):
            check(gpu, make(rng, (3, n), "float32"), run)

    @pytest.mark.parametrize("chunk", [1000, 16384])
    def test_rows_in_turn(self, gpu, run, rng, subtests, sizes, chunk):
        # Rows without room for their counts, and a last turn of fewer rows than the ones before.
        sizes(besides=0, chunk=chunk)
        for dtype in ("int8", "int32", "float64"):
            for rows in (2, 7):
                with subtests.test(dtype=dtype, rows=rows):
                    keys = make(rng, (rows, 8303), dtype)
                    keys[1] = keys[1, 0]  # in order at once where its turn has no other row
                    check(gpu, keys, run, rows == 7)
        assert len(TestPlan.plan("int32", (7, 8303), (4,), None, True).launches) == 5 * 4
        sizes(besides=0, chunk=chunk, counts=100, segment=5000)
        check(gpu, make(rng, (5, 8303), "int32"), run)

    def test_digits_counted_in_many_blocks(self, gpu, run, rng, sizes):
        sizes(chunk=1000)
        for dtype in ("int8", "int32", "float64"):
            check(gpu, make(rng, (20_001,), dtype), run)
            check(gpu, make(rng, (3, 8301), dtype), run, True)


class TestStress:
    @pytest.mark.parametrize("part", range(16))
    def test_random_cases(self, gpu, run, part):
        for index in range(part, min(STRESS, 20) if gpu.name in ("emulated", "jax-cuda") else STRESS, 16):
            rng = np.random.default_rng([SEED, index])
            edge = int(rng.choice(EDGES)) if rng.random() < 0.7 else int(2 ** rng.uniform(0, 15))
            n = max(1, edge + int(rng.integers(-3, 4)))
            rows = int(rng.integers(1, max(2, 40_000 // n)))
            dtype = str(rng.choice([one for one in REAL if hasattr(gpu.xp, one) or one == "bool"]))
            keys = make(rng, (rows, n) if rng.random() < 0.5 else (n,), dtype)
            if rng.random() < 0.3:
                keys = np.sort(keys, axis=-1)
            values = tuple(str(one) for one in rng.choice(VALUES, int(rng.integers(0, 3))))
            descending = bool(rng.integers(0, 2))
            try:
                check(gpu, keys, run, descending, values)
            except Exception as error:
                raise AssertionError(
                    f"case {index} of seed {SEED}: {dtype}{keys.shape}, descending={descending}, values={values}"
                ) from error


@contextlib.contextmanager
def limited(streams, left):
    """Let a library allocate no more than ``left`` bytes besides what it has; give the error it raises beyond."""
    if streams.name == "cupy":
        import cupy

        pool = cupy.cuda.MemoryPool()  # the default one may have much that is free
        pool.set_limit(size=left)
        with cupy.cuda.using_allocator(pool.malloc):
            yield cupy.cuda.memory.OutOfMemoryError
    else:
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        total, reserved, taken = torch.cuda.mem_get_info()[1], torch.cuda.memory_reserved(), []
        try:
            # What is free beside arrays that other tests left is no part of it.
            torch.cuda.set_per_process_memory_fraction(reserved / total)
            for size in (1 << exponent for exponent in range(30, 18, -1)):
                with contextlib.suppress(torch.cuda.OutOfMemoryError):
                    while True:
                        taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            torch.cuda.set_per_process_memory_fraction((reserved + left) / total)
            yield torch.cuda.OutOfMemoryError
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


class TestStreams:
    def test_streams_and_threads(self, streams):
        from tests.primitives.scan.test_scan_streams import other_stream, wait

        rng = np.random.default_rng(4)
        keys = make(rng, (400_009,), "int32")
        x = streams.asarray(keys)
        flat = streams.asarray(keys[:400_000].reshape(4000, 100))

        def work(index):
            stream, current = other_stream(streams)
            with current:
                results = [
                    (
                        parprims.sort(x[index:], method="kernel"),
                        parprims.argsort(x[index:], method="kernel"),
                        parprims.sort(flat, method="kernel"),
                    )
                    for _ in range(25)
                ]
            stream.synchronize()
            return results

        wait(streams)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for index, results in enumerate(pool.map(work, range(8))):
                found = indices(keys[index:], False)
                expected = keys[index:][found], found, np.sort(keys[:400_000].reshape(4000, 100))
                for result in results:
                    for one, other in zip(result, expected, strict=True):
                        np.testing.assert_array_equal(streams.to_numpy(one), other)

    def test_captured_into_a_graph(self, streams, rng):
        from tests.primitives.scan.test_scan_streams import other_stream, wait

        data = [make(rng, (300_001,), "int32") for _ in range(3)]
        x, waiting = streams.asarray(data[0]), [streams.asarray(one) for one in data]
        checks = []

        def replay(launch):
            for index in (1, 2, 0):
                x[...] = waiting[index]
                launch()
                checks.append((index, streams.xp.asarray(captured, copy=True)))
                checks.append((index, parprims.sort(waiting[index], method="kernel")))

        if streams.name == "cupy":
            wait(streams)
            stream, current = other_stream(streams)
            with current:
                parprims.sort(x, method="kernel")  # CuPy takes no memory from the device while it captures
                stream.begin_capture()
                captured = parprims.sort(x, method="kernel")
                graph = stream.end_capture()
                replay(graph.launch)
            stream.synchronize()
        else:
            import torch

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                captured = parprims.sort(x, method="kernel")
            replay(graph.replay)
        for index, found in checks:
            np.testing.assert_array_equal(streams.to_numpy(found), np.sort(data[index]))

    def test_out_of_memory_leaves_the_library_usable(self, streams, rng):
        keys = make(rng, (100_000,), "int32")
        x = streams.asarray(keys)
        large = streams.xp.zeros(1 << 24, dtype=streams.xp.int32, device=device(x))
        # Its results fit into what is left, but what the kernels need besides does not.
        with limited(streams, 5 << 25) as error, pytest.raises(error):
            parprims.sort_by_key(large, large, method="kernel")
        del large
        np.testing.assert_array_equal(streams.to_numpy(parprims.sort(x, method="kernel")), np.sort(keys))


class TestJax:
    @pytest.fixture
    def jax(self, gpu):
        if gpu.name != "jax-cuda":
            pytest.skip("only JAX traces")
        return pytest.importorskip("jax")

    @pytest.mark.parametrize("shape", [(5, 29), (3, 1500), (2, 9000)])
    def test_jit_vmap_and_gradient(self, jax, gpu, rng, shape):
        keys, weights = make(rng, shape, "int32").astype(np.float64), rng.standard_normal(shape)
        found = indices(keys, False)
        sort = jax.jit(lambda x: parprims.sort(x, method="kernel"))
        np.testing.assert_array_equal(sort(gpu.asarray(keys)), np.sort(keys))
        each = jax.vmap(lambda x: parprims.argsort(x, method="kernel"))
        np.testing.assert_array_equal(each(gpu.asarray(keys)), found)
        expected = np.empty(shape)
        np.put_along_axis(expected, found, weights, -1)
        weights = gpu.asarray(weights)
        for loss in (
            lambda x: (parprims.sort(x, method="kernel") * weights).sum(),
            lambda x: (parprims.sort_by_key(gpu.asarray(keys), x, method="kernel")[1] * weights).sum(),
        ):
            np.testing.assert_array_equal(jax.jit(jax.grad(loss))(gpu.asarray(keys)), expected)


class TestTorch:
    def test_results(self, tensors, run, rng, subtests):
        for shape in ((5, 29), (3, 300), (2, 8500)):
            for dtype in ("bool", "int32", "float64"):
                with subtests.test(shape=shape, dtype=dtype):
                    check(tensors, make(rng, shape, dtype), run, values=("float32", "complex128"), axis=len(shape) - 1)
                    check(tensors, make(rng, shape, dtype), run, True, axis=0)

    @pytest.mark.parametrize("shape", [(5, 29), (3, 1500), (2, 9000)])
    def test_backward(self, tensors, rng, shape):
        gpu = tensors
        keys, weights = make(rng, shape, "int32").astype(np.float64), rng.standard_normal(shape)
        expected = np.empty(shape)
        np.put_along_axis(expected, indices(keys, False), weights, -1)
        x = gpu.asarray(keys).requires_grad_(True)
        y = parprims.sort(x, method="kernel")
        _, z = parprims.sort_by_key(gpu.asarray(keys), x, method="kernel")
        for one in (y, z):
            x.grad = None
            (one * gpu.asarray(weights)).sum().backward()
            np.testing.assert_array_equal(gpu.to_numpy(x.grad), expected)


@pytest.mark.sanitize
class TestSanitized:
    """Small work through every kernel and every way it is cut, for tools that watch each access."""

    @pytest.mark.parametrize("shape", [(40, 7), (9, 32), (5, 100), (3, 700), (2, 3000), (2, 6000), (9001,), (2, 8300)])
    def test_every_kernel(self, gpu, run, rng, shape):
        check(gpu, make(rng, shape, "float32"), run, values=("int8", "complex128"))
        check(gpu, make(rng, shape, "int64"), run, True)
        check(gpu, make(rng, shape, "bool"), run)

    @pytest.mark.parametrize("tiles", [False, True])
    def test_every_remainder(self, gpu, run, rng, subtests, sizes, tiles):
        """Of 32 lengths in turn: rows of a warp, or rows in tiles."""
        if tiles:
            sizes(rows=(), few=(), blocks=10**6)
        for n in few_on_jax(gpu, rng, range(1633, 1665) if tiles else range(97, 129), 2):
            with subtests.test(n=n):
                check(gpu, make(rng, (2, n), "int32"), run, what="s")

    def test_several_rows_of_a_thread(self, gpu, run, rng, sizes):
        sizes(blocks=0)
        check(gpu, make(rng, (70, 7), "uint8"), run)

    def test_rows_of_whole_threads(self, gpu, run, rng):
        check(gpu, make(rng, (5, 128), "uint16"), run)

    def test_segments(self, gpu, run, rng, sizes):
        """Words of 64 bits, and several blocks that count the digits."""
        sizes(counts=100, segment=1, blocks=10**6, chunk=1000)
        keys = make(rng, (9001,), "uint32")
        check(gpu, keys, run)
        check(gpu, keys & 0xFF00FF00, run)  # digits that are not sorted by are counted too

    @pytest.mark.parametrize("dtype", ["int32", "float64", "uint8"])
    def test_order_is_found_wherever_it_ends(self, gpu, run, rng, sizes, subtests, dtype):
        """Keys in order or in reverse but for one, also where blocks that count digits meet; and one row of two."""
        sizes(rows=(), few=(), chunk=1000, counting=32, blocks=10**6)
        n = 3001
        ordered = np.sort(make(rng, (n,), dtype))
        ends = [at for end in (1024, 2048) for at in (end - 1, end, end + 1)]
        different = np.unique(np.concatenate([ordered, np.arange(n).astype(dtype)]))[:n]
        cases = {
            "in order": ordered,
            "in reverse": ordered[::-1].copy(),
            "different, in reverse": different[::-1].copy(),
        }
        places = [1, 2, 31, 32, *ends, n - 1]
        if gpu.name == "emulated" and dtype == "float64":
            places = places[::3]  # the order is found in the same way, and then there are twice as many passes
        for at in few_on_jax(gpu, rng, places, 3):
            cases[f"smaller at {at}"] = np.concatenate([ordered[1 : at + 1], ordered[:1], ordered[at + 1 :]])
            alike = np.zeros(n, dtype)
            alike[at - 1], alike[-1] = 1, 100  # the keys between are like the first
            alike[-1] *= 1000 if dtype != "uint8" else 1
            cases[f"larger before {at}"] = alike
            cases[f"in reverse but at {at}"] = cases[f"smaller at {at}"][::-1].copy()
            falling = different[::-1].copy()
            falling[min(at, falling.size - 1)] = falling[min(at, falling.size - 1) - 1]
            cases[f"in reverse, equals at {at}"] = falling
        for name, keys in cases.items():
            with subtests.test(name):
                check(gpu, keys, run, what="sb")
        for rows in ((ordered, rng.permutation(ordered)), (ordered, ordered[::-1]), (different[::-1],) * 3):
            check(gpu, np.stack(rows), run, what="sa")
        for keys in (ordered[::-1].copy(), different, different[::-1].copy()):
            check(gpu, keys, run, True, what="sab")


class TestPlan:
    """How the kernels cut their work, checked without a GPU."""

    @pytest.mark.once
    @pytest.mark.parametrize("index", [None, "int32", "int64"])
    @pytest.mark.parametrize("dtype", REAL)
    def test_bounds_of_every_plan(self, subtests, dtype, index):
        for shape in (
            (1,),
            (33,),
            (4000,),
            (8192,),
            (8193,),
            (16384,),
            (65, 15_361),
            (100_000,),
            (1 << 28,),
            ((1 << 30) - 1,),
            (1 << 30,),
            ((1 << 32) + 1,),
            (1 << 33,),
            (65536, 1024),
            (65536, 7000),
            (1000, 5700),
            (3000, 8193),
            (3000, 11_000),
            (2000, 40_000),
            (1 << 20, 1 << 13),
            (3, 1 << 31),
        ):
            if index == "int32" and shape[-1] > 2**31:
                continue
            for values in ((), (1,), (4,), (8, 16)):
                with subtests.test(shape=shape, values=values):
                    keyed = bool(values) or index is None
                    for one in self.plan(dtype, shape, values, index, keyed, SMALL).launches:
                        assert one.shared_bytes <= _cuda.shared_bytes(75)
                    plan = self.plan(dtype, shape, values, index, keyed)
                    n = math.prod(shape)
                    for launch in plan.launches:
                        assert 0 < launch.grid < 2**31
                        assert launch.block <= 1024
                        assert launch.template != "sort_rows" or launch.arguments[2] <= 56  # keys of a thread
                        assert launch.shared_bytes <= (200 if n // shape[-1] < SIZES.blocks // 2 else 64) << 10
                    assert plan.zeroed_bytes <= 1 << 23
                    own = plan.temporary_bytes + plan.zeroed_bytes
                    key_bytes = self.key_bytes(dtype)
                    copy = n * (key_bytes + sum(values) + int((index or "int0")[3:]) // 8)
                    if index == "int32" and key_bytes > 2 and not keyed:
                        copy += n * key_bytes
                    # Besides, many rows have what the sizes say; one has up to twice as many tiles as there are
                    # multiprocessors, with 1 KiB of words each, its counts, at most 16 KiB, and its last tile's words.
                    assert own <= 1.05 * copy + 20_000 + (300_000 if n == shape[-1] else SIZES.besides)

    def test_one_launch_for_short_rows(self):
        for key, n, values in (
            ("float32", 8192, ()),
            ("float32", 8192, (1, 16)),
            ("int64", 6912, ()),
            ("int64", 5632, (4,)),
        ):
            assert len(self.plan(key, (65536, n), values, None, True).launches) == 1
        for key, n, values, index in (
            ("float32", 16384, (), None),
            ("uint16", 16383, (), "int64"),
            ("int32", 14_337, (), "int64"),
            ("int32", 8192, (4,), None),
            ("float64", 8192, (4,), "int64"),
        ):
            for rows in (1, SIZES.blocks // 2 - 1):
                assert len(self.plan(key, (rows, n), values, index, not index).launches) == 1
            for one in self.plan(key, (1, n), values, index, not index, SMALL).launches:
                assert one.shared_bytes <= _cuda.shared_bytes(75)
        assert len(self.plan("float32", (SIZES.blocks, 16384), (), None, True).launches) == 5
        assert len(self.plan("float32", (1 << 20,), (), None, True).launches) == 5
        assert len(self.plan("bool", (1 << 20,), (), None, True).launches) == 2

    def test_launches_in_a_jax_program(self, monkeypatch):
        # Every launch updates what the one before gave it, in place.
        jax = pytest.importorskip("jax")
        emulator.install_for_jax(monkeypatch)
        monkeypatch.setattr(_cuda, "layout", lambda *_: ((), 0))
        monkeypatch.setattr(_cuda, "plain", lambda _, x: x)
        monkeypatch.setattr(_cuda, "contiguous", lambda _, x: x)
        keys = np.random.default_rng(1).standard_normal(20_000, np.float32)
        x = jax.ShapeDtypeStruct((20_000,), np.float32)

        def sort(x):
            return parprims.sort(x, method="kernel")

        for function in (sort, jax.grad(lambda x: sort(x)[7])):
            text = jax.jit(function).trace(x).lower(lowering_platforms=("cuda",)).as_text()
            calls = re.findall(r"(%\d+):\d = stablehlo.custom_call @__gpu\$xla\.gpu\.ptx\(([^)]*)\)(.*)", text)
            assert len(calls) == 5
            found = np.sort(keys) if function is sort else np.eye(1, 20_000, np.argsort(keys)[7])[0]
            with jax.default_device(jax.devices("cpu")[0]):  # the library's own sort
                np.testing.assert_array_equal(jax.jit(function)(keys), found)
            results = len(re.findall(r"dense<0>", calls[0][2].split("result_layouts")[1]))
            for (before, _, _), (_, operands, rest) in itertools.pairwise(calls):
                given = [before + "#" + at for at in operands.replace(" ", "").split(before + "#")[1:]]
                given = [one.rstrip(",") for one in given]
                aliases = re.findall(r"output_tuple_indices = \[(\d)\], operand_index = (\d)", rest)
                assert {f"{before}#{out}" for out in range(results)} == set(given)
                assert {(given[int(operand) - 1], int(out)) for out, operand in aliases} == {
                    (f"{before}#{out}", out) for out in range(results)
                }

    @staticmethod
    def key_bytes(dtype):
        return extremes(dtype).itemsize

    @staticmethod
    def plan(dtype, shape, values, index, keyed, tuning=None):
        spec = sort_cuda.Specialisation(dtype, False, keyed, values, index)
        outputs = [(shape, dtype)] * keyed + [(shape, "int8")] * len(values) + [(shape, index)] * bool(index)
        return sort_cuda.plan(spec, tuple(outputs), shape, 0, tuning)
