"""Weights that CUDA kernels sort by the numbers of their bins, against NumPy in float64 and against the other way."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.histogram import cuda as histogram_cuda
from tests.emulation import emulator
from tests.primitives.histogram.test_histogram import REAL, WEIGHTS, check
from tests.support.contract import compare, eps, random, some_dtypes

ALWAYS, NEVER = -(1 << 60), 1 << 60


def sort_bytes(monkeypatch, value, **sizes):
    """Let weights be sorted always, or never."""
    emulator.forget(monkeypatch)
    tuning = dataclasses.replace(histogram_cuda.TUNING[90], sort_bytes=value, **sizes)
    monkeypatch.setitem(histogram_cuda.TUNING, 90, tuning)


@pytest.fixture
def sorting(gpu, monkeypatch):
    """A GPU, on which weights are sorted, and few blocks work."""
    sort_bytes(monkeypatch, ALWAYS, blocks=2, each=2)
    return gpu


def compare_with_numpy(gpu, run, x, bins, weights, **options):
    """Compare the sums with those of NumPy in float64 between the edges that came back; return the sums."""
    given = gpu.asarray(bins) if isinstance(bins, np.ndarray) else bins
    call = gpu.asarray(x), given
    options["weights"] = gpu.asarray(weights)
    sums, edges = run(parprims.histogram, *call, method="kernel", **options)
    (*_, last) = parprims.launches(parprims.histogram, *call, method="kernel", **options)
    assert last.name.startswith("histogram::number_bins<")
    edges = gpu.to_numpy(edges).astype(np.float64)
    expected, sizes = (
        np.histogram(x.astype(np.float64), edges, weights=one.astype(np.float64))[0] for one in (weights, abs(weights))
    )
    compare(gpu, sums, expected, x.size * eps("float32") * sizes)
    return gpu.to_numpy(sums)


class TestSorted:
    @pytest.mark.sanitize
    def test_lengths(self, sorting, run, rng, subtests):
        """Ends of tiles, numbers of 8 and of 16 bits, and edges that are found first, given as numbers and as array."""
        for n in (1, 31, 33, 255, 257, 4095, 4096, 4097, 9001):
            for bins in (1, 7, 255, 256):
                with subtests.test(n=n, bins=bins):
                    x, weights = random(rng, (n,), "float32"), random(rng, (n,), "float32")
                    compare_with_numpy(sorting, run, x, bins, weights)
                    compare_with_numpy(sorting, run, x, bins, weights, range=(-0.75, 0.5))
                    edges = np.sort(random(rng, (bins + 1,), "float32"))
                    compare_with_numpy(sorting, run, x, edges, weights)

    @pytest.mark.parametrize("bins", [65_535, 65_536, 1 << 18])
    def test_most_bins_are_empty(self, sorting, run, rng, bins):
        """Numbers of 16 bits, and of 32."""
        x, weights = random(rng, (9000,), "float32"), random(rng, (9000,), "float32")
        x[:2] = -1, 1
        sums = compare_with_numpy(sorting, run, x, bins, weights, range=(-1, 1))
        assert np.count_nonzero(sums) <= 9000
        assert sums[0] != 0
        assert sums[-1] != 0

    @pytest.mark.sanitize
    def test_edges_in_shared_and_in_global_memory(self, gpu, run, monkeypatch, rng):
        edges = np.sort(random(rng, (301,), "float32"))
        x, weights = random(rng, (3000,), "float32"), random(rng, (3000,), "float32")
        sums = []
        for sizes in ({}, {"counters": 8, "many_threads": 64, "many_blocks": 3}, {"shared_bytes": 64}):
            sort_bytes(monkeypatch, ALWAYS, **sizes)
            sums.append(compare_with_numpy(gpu, run, x, edges, weights).tobytes())
        assert len(set(sums)) == 1

    @pytest.mark.parametrize("dtype", WEIGHTS)
    def test_weights(self, sorting, run, rng, dtype):
        if dtype not in some_dtypes(sorting, "kernel", WEIGHTS):
            pytest.skip("a kernel for every dtype takes long to compile here")
        x = random(rng, (400,), "float32")
        for bins in (1, 6, 300):
            check(sorting, run, "kernel", x, bins=bins, weights=random(rng, (400,), dtype))

    @pytest.mark.parametrize("dtype", REAL)
    def test_elements(self, sorting, run, rng, dtype):
        if not sorting.supports(dtype):
            pytest.skip(f"{sorting.name} has no {dtype} arithmetic")
        if dtype not in some_dtypes(sorting, "kernel", REAL):
            pytest.skip("a kernel for every dtype takes long to compile here")
        x, weights = random(rng, (7, 30), dtype), random(rng, (7, 30), "float64")
        check(sorting, run, "kernel", x, bins=5, weights=weights)
        check(sorting, run, "kernel", x, bins=np.array([0.0, 1.0, 1.0, 4.0]), weights=weights)

    @pytest.mark.sanitize
    def test_elements_outside(self, sorting, run, rng):
        """NaN, infinities and elements on the edges; the weights of those in no bin, however large, count nowhere."""
        x = np.tile([np.nan, 1.0, -np.inf, 2.0, np.inf, -0.0, 0.5, np.nextafter(2.0, 3.0)], 40)
        weights = np.where((x >= 0) & (x <= 2), random(rng, x.shape, "float64"), np.nan)
        check(sorting, run, "kernel", x, bins=4, range=(0.0, 2.0), weights=weights)
        check(sorting, run, "kernel", x, bins=np.array([0.0, 0.5, 0.5, 2.0]), weights=weights)
        check(sorting, run, "kernel", x, bins=np.array([-np.inf, 0.0, np.inf]), weights=np.nan_to_num(weights))
        sums, edges = run(parprims.histogram, sorting.asarray(x), 4, weights=sorting.asarray(weights), method="kernel")
        assert sorting.to_numpy(sums).tolist() == [0] * 4
        assert np.isnan(sorting.to_numpy(edges)[0])
        nowhere, _ = run(
            parprims.histogram, sorting.asarray(x), 4, range=(7, 8), weights=sorting.asarray(weights), method="kernel"
        )
        assert sorting.to_numpy(nowhere).tolist() == [0] * 4

    def test_one_bin_holds_everything(self, sorting, run, rng):
        weights = random(rng, (20_000,), "float32")
        for x in (np.full(20_000, 0.3, np.float32), np.tile(np.float32([0.3, 0.3, 9.0, np.nan]), 5000)):
            sums = compare_with_numpy(sorting, run, x, 300, weights, range=(0, 1))
            assert np.count_nonzero(sums) == 1

    def test_views(self, sorting, run, rng):
        """Elements and weights at any address, strided, and of several dimensions."""
        x, weights = random(rng, (41, 30), "float32"), random(rng, (41, 30), "float32")
        for part in (
            lambda x: x.reshape(-1)[1:],
            lambda x: x.reshape(-1)[3:1000:2],
            lambda x: x[::2, :],
            lambda x: x.T,
            lambda x: x[:, 3:17],
        ):
            sums, edges = run(
                parprims.histogram,
                part(sorting.asarray(x)),
                50,
                weights=part(sorting.asarray(weights)),
                method="kernel",
            )
            own = part(x), part(weights).astype(np.float64)
            expected, sizes = (
                np.histogram(own[0], sorting.to_numpy(edges), weights=one)[0] for one in (own[1], abs(own[1]))
            )
            compare(sorting, sums, expected, own[0].size * eps("float32") * sizes)

    def test_density(self, sorting, run, rng):
        x, weights = random(rng, (300,), "float64"), abs(random(rng, (300,), "float64"))
        expected, edges = np.histogram(x, [-1, 0, 2], weights=weights, density=True)
        density, _ = run(
            parprims.histogram,
            *map(sorting.asarray, (x, edges)),
            weights=sorting.asarray(weights),
            density=True,
            method="kernel",
        )
        np.testing.assert_allclose(sorting.to_numpy(density), expected, rtol=1e-13)

    def test_like_the_other_way(self, gpu, run, monkeypatch, rng):
        """Integers and edges are the same; sums differ by two bounds at most."""
        x = random(rng, (9001,), "float32")
        for dtype in ("float32", "int32"):
            weights = random(rng, (9001,), dtype)
            found = []
            for value in (ALWAYS, NEVER):
                sort_bytes(monkeypatch, value)
                call = gpu.asarray(x), 300
                options = {"weights": gpu.asarray(weights), "method": "kernel"}
                found.append([gpu.to_numpy(one) for one in run(parprims.histogram, *call, **options)])
                name = parprims.launches(parprims.histogram, *call, **options)[-1].name
                assert ("number_bins" in name) == (value == ALWAYS)
            (sums, edges), (others, same) = found
            assert sums.dtype == others.dtype
            np.testing.assert_array_equal(edges, same)
            sizes, _ = np.histogram(x, edges, weights=abs(weights.astype(np.float64)))
            bound = 2 * 9001 * eps("float32") * sizes if dtype == "float32" else 0
            assert np.all(abs(sums.astype(np.float64) - others) <= bound)

    def test_order_shows(self, sorting, run, rng):
        """The same bits twice, where every other order of additions gives others."""
        x = rng.integers(0, 300, 20_000).astype(np.float32)
        weights = random(rng, (20_000,), "float32") * 10.0 ** rng.integers(-6, 6, 20_000).astype(np.float32)
        first, second = (compare_with_numpy(sorting, run, x, 300, weights) for _ in range(2))
        assert first.tobytes() == second.tobytes()

    @pytest.mark.parametrize("bins", [300, 40_000, 70_000])
    def test_tensors(self, tensors, run, monkeypatch, rng, bins):
        """Numbers of unsigned dtypes that PyTorch hardly computes with."""
        sort_bytes(monkeypatch, ALWAYS)
        x, weights = random(rng, (9000,), "float32"), random(rng, (9000,), "float32")
        compare_with_numpy(tensors, run, x, bins, weights, range=(-0.9, 1))

    def test_jax(self, monkeypatch, rng):
        """In a program for JAX the kernels stand, and what computes the same elsewhere; under vmap too."""
        jax = pytest.importorskip("jax")
        emulator.install_for_jax(monkeypatch)
        sort_bytes(monkeypatch, ALWAYS)
        with jax.default_device(jax.devices("cpu")[0]):  # what stands for the compiler makes no code for a GPU
            x = rng.normal(size=(3, 50)).astype(np.float32)
            weights = rng.normal(size=(3, 50)).astype(np.float32)
            edges = jax.numpy.asarray([-1.5, 0.0, 0.25, 2.0], "float32")
            for options, least in (
                ({"bins": 20_000, "range": (-2, 2)}, 4),  # numbers, sort, offsets and reduction
                ({"bins": 5}, 2),  # numbers and sums in tables
                ({"bins": edges}, 2),
            ):

                def summed(x, weights, options=options):
                    return parprims.histogram(x, **options, weights=weights, method="kernel")

                text = jax.jit(summed).trace(x[0], weights[0]).lower(lowering_platforms=("cuda",)).as_text()
                assert text.count("__gpu$xla.gpu.ptx") >= least
                both = [[one[at] for one in jax.vmap(summed)(x, weights)] for at in range(3)]
                both += [jax.jit(summed)(*row) for row in zip(x, weights, strict=True)]
                for at, (sums, found) in enumerate(both):
                    wide = x[at % 3].astype(np.float64), np.asarray(found, np.float64)
                    np.testing.assert_allclose(
                        sums, np.histogram(*wide, weights=weights[at % 3])[0], rtol=1e-5, atol=1e-6
                    )


@pytest.mark.once
def test_the_way_follows_from_sizes():
    """What reads everything once for each 1024 bins (512 of 8 bytes) is left where that takes longer than a sort."""
    tuning = histogram_cuda.TUNING[90]

    def sorts(n, bins, x="float32", weights=("float32", "float32")):
        return histogram_cuda.is_sorted(histogram_cuda.Kind(x, "float32", "data", weights[1], weights), n, bins, tuning)

    large = 1 << 26
    assert [sorts(large, bins) for bins in (1, 256, 1024, 2000, 5120)] == [False] * 5
    assert [sorts(large, bins) for bins in (5121, 20_000, 65_536, 1 << 20)] == [True] * 4
    assert sorts(large, 4096, weights=("float64", "float64"))
    assert not sorts(1 << 20, 36_864)  # where the calls of a sort take longer
    assert sorts(1 << 20, 36_865)
    assert not sorts(1, 1 << 18)
    assert not sorts(large, 2**31 - 1)  # more segments than can be numbered


@pytest.mark.once
def test_numbers_hold_one_more_than_bins():
    limits = {1: "uint8", 255: "uint8", 256: "uint16", 65_535: "uint16", 65_536: "uint32", 2**31 - 1: "uint32"}
    assert {bins: histogram_cuda.number_dtype(bins) for bins in limits} == limits
