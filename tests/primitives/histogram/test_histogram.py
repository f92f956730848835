"""Histograms against a loop over the elements, which compares each with every edge."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.histogram import cuda as histogram_cuda
from tests.emulation import emulator
from tests.fuzz import values
from tests.support.contract import compare, eps, random, some_dtypes
from tests.support.covering import lacks_dtype

REAL = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()
WEIGHTS = "float16 bfloat16 float32 float64 int8 int32 int64 uint8".split()


def loop(x, edges, weights=None):
    """Return the number of elements, or the sum of weights, of every bin."""
    last = len(edges) - 2
    counts = [0] * (last + 1)
    for at, element in enumerate(x.reshape(-1)):
        for bin in range(last + 1):
            if edges[bin] <= element and (element < edges[bin + 1] or (bin == last and element == edges[-1])):
                counts[bin] += 1 if weights is None else weights.reshape(-1)[at]
                break
    return np.array([float(one) if isinstance(one, float) else int(one) for one in counts])


def wide(x):
    """Return numbers in a dtype that Python compares exactly."""
    return x.astype(np.float64 if x.dtype.kind not in "iu" else object)


def check(backend, run, method, x, *, weights=None, **options):
    """Compare with the loop over the edges that came back; return the edges."""
    arrays = {} if weights is None else {"weights": backend.asarray(weights)}
    if isinstance(options.get("bins"), np.ndarray):
        options["bins"] = backend.asarray(options["bins"])
    counts, edges = run(parprims.histogram, backend.asarray(x), method=method, **options, **arrays)
    found = backend.to_numpy(edges)
    plain = None if weights is None else wide(weights)
    bound = 0
    if weights is not None and weights.dtype.kind not in "iu":
        name = "float32" if weights.dtype.name in ("float16", "bfloat16") else weights.dtype.name
        bound = x.size * eps(name) * loop(wide(x), found, abs(plain))
        bound = bound + (
            0 if name == weights.dtype.name else eps(weights.dtype.name) * loop(wide(x), found, abs(plain))
        )
    compare(backend, counts, loop(wide(x), found, plain), bound)
    return found


def only_refused(_test, given):
    """Return whether a case can only be refused: see covering.py."""
    return lacks_dtype(given) or (given.get("backend"), given.get("method")) == ("array-api-strict", "native")


class TestBins:
    methods = ("kernel", "native", "array")

    @pytest.mark.sanitize
    def test_lengths(self, backend, run, method, rng, subtests):
        compiled = backend.name == "jax"  # for every length and number of bins
        for n in (0, 1, 2, 300) if compiled else (0, 1, 2, 31, 32, 33, 255, 256, 257, 300, 5000):
            for bins in (1, 7) if compiled else (1, 2, 7, 33):
                with subtests.test(n=n, bins=bins):
                    x = random(rng, (n,), "float32")
                    edges = check(backend, run, method, x, bins=bins)
                    if n:
                        assert (edges[0], edges[-1]) == ((x.min(), x.max()) if n > 1 else (x[0] - 0.5, x[0] + 0.5))

    @pytest.mark.parametrize("dtype", REAL)
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        if dtype not in some_dtypes(backend, method, REAL):
            pytest.skip("a kernel for every dtype takes long to compile here")
        x = random(rng, (7, 30), dtype)
        check(backend, run, method, x, bins=5)
        edges = np.array([-2, 0, 1, 4], x.dtype if dtype[0] == "f" else np.float64 if dtype[0] == "u" else "int64")
        check(backend, run, method, x, bins=edges.astype(np.float64) if dtype == "bfloat16" else edges)

    @pytest.mark.parametrize("dtype", [one for one in REAL if one.startswith(("int", "uint"))])
    def test_integers_of_few_values(self, backend, run, method, rng, dtype):
        """As many as NumPy counts by value: at the ends of a dtype, outside the bins, between edges of either kind."""
        if not backend.supports(dtype) or backend.name not in ("numpy", "torch") or method != "native":
            pytest.skip("NumPy counts them by the method native")
        limits = np.iinfo(dtype)
        for low in (int(limits.min), min(int(limits.max), 2**53) - 300 if limits.bits > 8 else int(limits.max) - 100):
            x = (np.array(low, dtype) + rng.integers(0, 100, 1500).astype(dtype)).astype(dtype)
            check(backend, run, method, x, bins=7)
            check(backend, run, method, x, bins=31, range=(low + 3, low + 90.5))
            check(backend, run, method, x, bins=np.array([low + 2.5, low + 2.5, low + 20, low + 21.25]))
            if limits.bits < 64:
                check(backend, run, method, x, bins=np.array([low + 2, low + 2, low + 20, low + 21], np.int64))
        far = np.append(x, x[:1] if limits.bits == 8 else [limits.min, limits.max]).astype(dtype)  # too many values
        check(backend, run, method, far, bins=5)

    def test_edges_are_found_exactly(self, backend, run, method):
        """Elements that are edges, and their neighbours, of edges whose places no division hits."""
        edges = np.linspace(0, 1, 8)
        x = np.concatenate([edges, np.nextafter(edges, -1), np.nextafter(edges, 2)])
        check(backend, run, method, x, bins=7, range=(0.0, 1.0))
        check(backend, run, method, x, bins=edges)
        uneven = np.array([-1.0, 0.25, 0.25, 0.5, 3.0])
        check(backend, run, method, np.append(x, uneven), bins=uneven)

    @pytest.mark.parametrize(
        ("dtype", "edge"), [("float32",) * 2, ("float64",) * 2, ("float32", "float64"), ("float64", "float32")]
    )
    @pytest.mark.parametrize("weighted", [False, True])
    def test_subnormal_elements(self, backend, run, method, rng, dtype, edge, weighted):
        """Elements and edges that the operations of CuPy, and of XLA on a CPU, take for zero."""
        least, tiny = np.finfo(dtype).smallest_subnormal, np.finfo(edge).tiny
        edges = np.array([-1, -tiny / 2, -0.0, tiny / 4, 1], edge)
        some = np.concatenate([edges.astype(dtype), np.array([-3 * least, 0, least, np.nan, np.inf], dtype)])
        x = rng.choice(some, 60)
        check(backend, run, method, x, bins=edges, **({"weights": rng.integers(0, 9, x.shape)} if weighted else {}))

    def test_subnormal_range(self, backend, run, method):
        """Every element is counted where the first or the last edge is subnormal."""
        least = np.finfo(np.float32).smallest_subnormal
        for ends in ((-least, 1), (-1, least), (-least, least), (3 * least, 8 * least), (1e-40, 1)):
            x = np.array([ends[0], *ends], np.float32)
            edges = check(backend, run, method, x, bins=3)
            assert edges[0] <= x.min()
            assert edges[-1] >= x.max()
            check(backend, run, method, x, bins=3, range=tuple(map(float, ends)))

    @pytest.mark.parametrize(
        ("low", "high", "bins", "dtype"),
        [
            (1.0, 1.0 + 2.0**-48, 7, "float64"),
            (1e6, 1e6 + 300, 3000, "float32"),
            (0.0, 2e-320, 5, "float64"),
            (-1.5e308, 1.5e308, 3, "float64"),
            (-1e-3, 1e9, 999, "float32"),
            (0.1, 0.7, 900, "float32"),
        ],
    )
    def test_edges_of_any_range(self, backend, run, method, rng, low, high, bins, dtype):
        """Elements near edges that are rounded as much as bins are wide, that overflow, or that lie as numbers do."""
        if backend.name == "jax":
            pytest.skip("every range is a program of its own")
        edges = np.linspace(low / 2, high / 2, bins + 1).astype(dtype) * np.array(2, dtype)
        x = rng.choice(edges, 200)
        x = np.concatenate([x, np.nextafter(x, -np.inf, dtype=dtype), np.nextafter(x, np.inf, dtype=dtype)])
        check(backend, run, method, x, bins=bins, range=(low, high))

    def test_range(self, backend, run, method, rng):
        x = random(rng, (500,), "float64")
        edges = check(backend, run, method, x, bins=9, range=(-1, 0.5))
        np.testing.assert_allclose(edges, np.linspace(-1, 0.5, 10), rtol=1e-15)
        assert check(backend, run, method, x, bins=2, range=(3.0, 3.0)).tolist() == [2.5, 3.0, 3.5]
        assert check(backend, run, method, x[:0], bins=2).tolist() == [0.0, 0.5, 1.0]

    def test_special_values(self, backend, run, method):
        x = np.array([np.nan, 1.0, -np.inf, 2.0, np.inf, -0.0, 0.0])
        check(backend, run, method, x, bins=2, range=(0.0, 2.0))
        for some in (x, x[1:], x[2:4], x[3:], x[:2]):
            counts, edges = run(parprims.histogram, backend.asarray(some), 3, method=method)
            assert backend.to_numpy(counts).tolist() == [0, 0, 0]
            assert np.isnan(backend.to_numpy(edges)).all()
        check(backend, run, method, x, bins=np.array([-np.inf, 0.0, np.inf]))

    def test_density(self, backend, run, method, rng):
        x = random(rng, (300,), "float64")
        expected, edges = np.histogram(x, [-1, 0, 2], density=True)
        counts, _ = run(parprims.histogram, backend.asarray(x), backend.asarray(edges), density=True, method=method)
        np.testing.assert_allclose(backend.to_numpy(counts), expected, rtol=1e-14)

    def test_views(self, backend, run, method, rng):
        x = random(rng, (40, 30), "float32")
        for view in (x[::2], x.T, x[:, 3:17]):
            array = backend.asarray(x)
            part = {x[::2].shape: array[::2, :], x.T.shape: array.T, (40, 14): array[:, 3:17]}[view.shape]
            counts, edges = run(parprims.histogram, part, 6, method=method)
            compare(backend, counts, loop(view, backend.to_numpy(edges)))

    def test_like_numpy(self, backend, run, method, rng):
        x = rng.normal(size=1000)
        expected, edges = np.histogram(x, 50, range=(-2, 2))
        counts, found = run(parprims.histogram, backend.asarray(x), 50, range=(-2, 2), method=method)
        if backend.name != "jax":  # whose compiler joins a product and a sum
            np.testing.assert_array_equal(backend.to_numpy(found), edges)
            np.testing.assert_array_equal(backend.to_numpy(counts), expected)

    def test_nothing_inside_warns_no_one(self, backend, run, method):
        """A later call is silent too, which goes its own way: the density of no elements is 0 / 0."""
        x = backend.asarray(np.arange(5.0, dtype=np.float32))
        for _ in range(3):
            density, _ = run(parprims.histogram, x, 4, range=(10.0, 20.0), density=True, method=method)
            assert np.isnan(backend.to_numpy(density)).all()


def sums_between(x, edges, weights):
    """Return the sum of weights between edges as they are, by NumPy's search."""
    x, edges = (wide(one) for one in (x, edges))
    last = len(edges) - 2
    found = np.searchsorted(edges, x, "right") - 1
    found[x == edges[-1]] = last
    inside = (x >= edges[0]) & (x <= edges[-1])
    return np.bincount(found[inside].astype(int), weights[inside], minlength=last + 1)


class TestEdges:
    """Elements on edges and beside them: counts agree with the edges as returned."""

    methods = ("kernel", "native", "array")

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32"])
    @pytest.mark.parametrize("given", ["range", "data", "edges"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_counts_agree_with_edges(self, backend, run, method, rng, subtests, dtype, given, weighted):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        rounds = 1 if backend.name in ("jax", "emulated") else 12  # there every range is a program
        for at in range(rounds):
            bins = (6, 7, 3, 49, 10, 93)[at % 6]
            low, high = (-6.0, 6.0) if at == 0 else np.sort(rng.uniform(-60, 60, 2)).round(int(rng.integers(0, 4)))
            if low == high:
                continue
            edges = np.linspace(low, high, bins + 1)
            if dtype.startswith("float"):
                on = edges.astype(dtype)
                # As returned, which a plain call tells: on these, and beside them.
                beside = (np.nextafter(on, np.array(side, dtype)) for side in (-np.inf, np.inf))
                x = np.concatenate([on, *beside, rng.uniform(low, high, 50).astype(dtype)])
            else:
                x = np.concatenate([edges.round(), rng.integers(int(low), int(high) + 1, 60)]).astype(dtype)
            options = {"range": {"bins": bins, "range": (low, high)}, "data": {"bins": bins}}.get(given)
            if options is None:
                uneven = rng.choice(edges, bins + 1)
                options = {
                    "bins": backend.asarray(np.sort(uneven.astype("float64" if dtype == "float64" else "float32")))
                }
            first = backend.to_numpy(run(parprims.histogram, backend.asarray(x), method=method, **options)[1])
            if dtype in ("float32", "float64") and given != "data":
                x = np.concatenate([x, first, np.nextafter(first, -np.inf), np.nextafter(first, np.inf)]).astype(dtype)
            with subtests.test(bins=bins, low=low, high=high):
                weights = rng.integers(1, 9, x.shape).astype(np.float32)
                more = {"weights": backend.asarray(weights)} if weighted else {}
                counts, found = run(parprims.histogram, backend.asarray(x), method=method, **options, **more)
                wanted = sums_between(x, backend.to_numpy(found), weights if weighted else np.ones(x.shape))
                assert backend.to_numpy(counts).tolist() == wanted.tolist()

    def test_a_value_on_an_edge(self, backend, run, method):
        x = np.array([-6, 4, 6, 3.5, 4], np.float32)
        weights = np.array([1, 2, 4, 8, 16], np.float32)
        for given in ({}, {"range": (-6, 6)}):
            counts, edges = run(
                parprims.histogram, backend.asarray(x), 6, weights=backend.asarray(weights), method=method, **given
            )
            assert backend.to_numpy(edges).tolist() == [-6, -4, -2, 0, 2, 4, 6]
            assert backend.to_numpy(counts).tolist() == [1, 0, 0, 0, 8, 22]

    def test_edges_that_do_not_ascend(self, backend, run, method):
        if backend.name in ("cupy", "torch-cuda", "jax-cuda", "emulated"):
            pytest.skip("their values are not looked at")
        x, right = backend.asarray(np.arange(4.0)), np.arange(100.0)
        for wrong in ([3.0, 2.0, 1.0], [0.0, 2.0, 1.0], [0.0, np.nan, 1.0], [np.nan, 0.0], [0.0, np.nan], right[::-1]):
            for dtype in ("float32", "float64"):
                edges = np.array(wrong, dtype)
                for _ in range(2):
                    run(parprims.histogram, x, backend.asarray(right[: len(edges)].astype(dtype)), method=method)
                    with pytest.raises(ValueError, match=r"^bins must be edges that ascend, none of them NaN"):
                        parprims.histogram(x, backend.asarray(edges), method=method)


class TestWeights:
    methods = ("kernel", "native", "array")

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", WEIGHTS)
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        if dtype not in some_dtypes(backend, method, WEIGHTS):
            pytest.skip("a kernel for every dtype takes long to compile here")
        x = random(rng, (400,), "float32")
        for bins in (6,) if backend.name == "jax" else (1, 6):  # test_lengths compiles one bin
            check(backend, run, method, x, bins=bins, weights=random(rng, (400,), dtype))

    def test_order_shows(self, backend, run, rng):
        """The same bits twice, where every other order of additions gives others."""
        x = rng.integers(0, 3, 20_000).astype(np.float32)
        weights = random(rng, (20_000,), "float32") * 10.0 ** rng.integers(-6, 6, 20_000).astype(np.float32)
        arrays = backend.asarray(x), backend.asarray(weights)
        for name in ("kernel", "array"):
            first, second = (
                backend.to_numpy(run(parprims.histogram, arrays[0], 3, weights=arrays[1], method=name)[0])
                for _ in range(2)
            )
            assert first.tobytes() == second.tobytes()


class TestKernel:
    @pytest.fixture
    def small(self, gpu, monkeypatch):
        """A GPU, on which little shared memory and scratch is used."""
        emulator.forget(monkeypatch)
        sizes = {"counters": 20, "sums_bytes": 8 * 4 * 12, "runs": 5, "partial_bytes": 2000, "each": 2, "blocks": 6}
        sizes |= {"shared_bytes": 64, "many_threads": 64, "many_blocks": 3}
        monkeypatch.setitem(histogram_cuda.TUNING, 90, dataclasses.replace(histogram_cuda.TUNING[90], **sizes))
        return gpu

    @pytest.mark.sanitize
    def test_many_bins(self, small, run, rng, subtests):
        """Counters in words, in halves of words and in global memory, and sums by several groups of blocks."""
        for n in (1, 700, 9000):
            for bins in (12, 13, 20, 21, 31, 32, 100):
                with subtests.test(n=n, bins=bins):
                    x = random(rng, (n,), "float32")
                    check(small, run, "kernel", x, bins=bins)
                    check(small, run, "kernel", x, bins=bins, weights=random(rng, (n,), "float32"))
                    check(small, run, "kernel", x, bins=np.sort(rng.normal(size=bins + 1)))

    @pytest.mark.sanitize
    def test_equal_elements(self, gpu, run, rng):
        """All lanes of a warp have one bin, or every other one has none."""
        for x in (np.full(3000, 2.5), np.tile([2.5, np.nan], 1500), np.tile([2.5, 9.0, 1.0], 1000)):
            x = x.astype(np.float32)
            check(gpu, run, "kernel", x, bins=4, range=(0, 4))
            check(gpu, run, "kernel", x, bins=4, range=(0, 4), weights=random(rng, (3000,), "float64"))

    @pytest.mark.sanitize
    def test_totals_stored_by_another_launch(self, gpu, run, rng):
        x = random(rng, (300,), "float32")
        for bins in (1024, 1025, 1500, 8193):
            counts, edges = run(parprims.histogram, gpu.asarray(x), bins, range=(-1, 1), method="kernel")
            compare(gpu, counts, np.histogram(wide(x), wide(gpu.to_numpy(edges)))[0])

    @pytest.mark.sanitize
    def test_counters_of_16_bits(self, gpu, run, monkeypatch, rng):
        """More elements of a bin than its counter holds, of neighbours in one word, in the first and the last bin."""
        emulator.forget(monkeypatch)
        one = dataclasses.replace(histogram_cuda.TUNING[90], counters=8, blocks=1, many_blocks=1)
        monkeypatch.setitem(histogram_cuda.TUNING, 90, one)
        often = np.repeat([0, 4, 5, 8], [70_001, 65_536, 32_768, 98_303])
        for elements in (often, rng.permutation(often), np.full(131_072, 3)):
            counts, _ = run(
                parprims.histogram, gpu.asarray(elements.astype(np.float32)), 9, range=(0, 9), method="kernel"
            )
            compare(gpu, counts, np.bincount(elements, minlength=9))

    def test_jax(self, monkeypatch, rng):
        """In a program for JAX the kernel stands, and what computes the same elsewhere; under vmap too."""
        jax = pytest.importorskip("jax")
        emulator.install_for_jax(monkeypatch)
        x = rng.normal(size=(3, 50)).astype(np.float32)

        edges = jax.numpy.asarray([-1.5, 0.0, 0.25, 2.0], "float32")
        for options in ({"bins": 5, "range": (-2, 2)}, {"bins": 5}, {"bins": edges}):

            def count(x, weights=None, options=options):
                return parprims.histogram(x, **options, weights=weights, method="kernel")

            text = jax.jit(count).trace(x[0]).lower(lowering_platforms=("cuda",)).as_text()
            assert "gpu" in text
            counts, found = jax.vmap(count)(x)
            sums, _ = jax.vmap(count)(x, 2 * x)
            for at, row in enumerate(x):
                np.testing.assert_array_equal(counts[at], loop(wide(row), np.asarray(found[at])))
                np.testing.assert_allclose(sums[at], loop(wide(row), np.asarray(found[at]), wide(2 * row)), rtol=1e-5)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"bins": 0}, ValueError, "bins must be at least 1"),
            ({"bins": -3}, ValueError, "bins must be at least 1"),
            ({"bins": 2**31}, ValueError, "bins must be at least 1 and less than"),
            ({"bins": 2.5}, TypeError, "bins must be an integer or an array of edges"),
            ({"bins": True}, TypeError, "bins must be an integer or an array of edges"),
            ({"bins": [0, "a"]}, TypeError, "bins must hold integers or floats only"),
            ({"bins": [0, 2, 1]}, ValueError, "bins must be edges that ascend"),
            ({"range": (1, 0)}, ValueError, "range must be finite and ascend"),
            ({"range": (0, np.inf)}, ValueError, "range must be finite and ascend"),
            ({"range": 3}, TypeError, "range must be a pair of numbers"),
            ({"range": ("a", "b")}, TypeError, "range must fit"),
            ({"density": 1}, TypeError, "density must be True or False"),
            ({"method": "vendor"}, ValueError, "method must be one of auto, canonical, kernel, native, array"),
        ],
    )
    def test_named(self, backend, rng, options, error, words):
        with pytest.raises(error, match=f"^{words}"):
            parprims.histogram(backend.asarray(random(rng, (5,), "float32")), **options)

    def test_arrays_named(self, backend, rng):
        x = backend.asarray(random(rng, (5,), "float32"))
        for edges in (x[:1], backend.xp.reshape(x[:4], (2, 2))):
            with pytest.raises(ValueError, match=r"^bins must have one dimension and at least two edges"):
                parprims.histogram(x, edges)
        with pytest.raises(ValueError, match=r"^range must be None if bins are edges"):
            parprims.histogram(x, x, range=(0, 1))
        with pytest.raises(ValueError, match=r"^weights must have the shape of x"):
            parprims.histogram(x, weights=x[:3])
        with pytest.raises(TypeError, match=r"^x must have an? .* dtype"):
            parprims.histogram(x > 0)
        with pytest.raises(TypeError, match=r"^x must be an array"):
            parprims.histogram([1.0, 2.0])

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.parametrize("layout", ["strided", "jagged"])
    def test_nested_tensors_named(self, layout):
        torch = pytest.importorskip("torch")
        x = torch.ones(5)
        nested = torch.nested.nested_tensor([x[:3], x[:2]], layout=getattr(torch, layout))
        with pytest.raises(TypeError, match=r"^bins must be a plain tensor"):
            parprims.histogram(x, nested)


def test_remembered(backend, rng):
    """The second call of a kind takes the same way as the first, and tells."""
    x = backend.asarray(random(rng, (100,), "float32"))
    with parprims.explain() as calls:
        results = [parprims.histogram(x, 4)[0] for _ in range(3)]
    assert len({(one.primitive, one.method, tuple(one.refusals.items())) for one in calls}) == 1
    assert len({backend.to_numpy(one).tobytes() for one in results}) == 1


def test_inputs_untouched(backend, run, rng):
    x, weights = random(rng, (300,), "float32"), random(rng, (300,), "float32")
    arrays = backend.asarray(x.copy()), backend.asarray(weights.copy())
    for name in ("native", "array"):
        if backend.name != "array-api-strict" or name == "array":
            run(parprims.histogram, arrays[0], weights=arrays[1], method=name)
    np.testing.assert_array_equal(backend.to_numpy(arrays[0]), x)
    np.testing.assert_array_equal(backend.to_numpy(arrays[1]), weights)


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {
    "bins": (0, -1, 2.5, "ten", None, True, [1, 0], (0, None), 2**31, np.float64(3), {}),
    "range": ((1, 0), (0,), 3, "ab", ("a", "b"), (0, np.inf), (np.nan, 1), {}, (0, 1, 2), [[0], [1]], (1j, 2)),
    "density": (0, 1, None, "yes", [], 0.5),
}


def draw(d, name):
    """Return a valid call, whose result is held against the loop over the edges that come back."""
    x = d.values(d.shape(), d.dtype(*values.REAL))
    array, x = d.array(x)
    options = {}
    if d.chance(0.3):
        edges = np.sort(d.values((int(d.rng.integers(2, 6)),), d.dtype("float32", "float64"), tame=True))
        if x.dtype.kind not in "iu" and x.dtype.name != edges.dtype.name and d.backend.name == "array-api-strict":
            edges = edges.astype(x.dtype)
        options["bins"], _ = d.array(edges)
    else:
        options |= {"bins": int(d.rng.integers(1, 9))} if d.chance(0.8) else {}
        options |= {"range": (-3.0, 2)} if d.chance(0.5) and x.dtype.kind != "u" else {}
    weights = None
    if d.chance(0.3):
        weights = d.values(x.shape, d.dtype("int8", "int32", "float64"), tame=True)
        options["weights"], weights = d.array(weights)

    def check_result(got):
        counts, edges = (d.backend.to_numpy(one) for one in got)
        if counts.shape != (len(edges) - 1,):
            return f"shapes are {counts.shape} and {edges.shape}"
        plain = None if weights is None else wide(weights)
        expected = loop(wide(x), edges, plain)
        close = np.allclose(counts.astype(float), expected.astype(float), rtol=1e-12, atol=1e-12)
        return None if close else f"counts are {counts.tolist()}, not {expected.tolist()}"

    return values.Call(name, [array], options, check_result)


def test_torch_compile(rng):
    """One node of the graph, forward and under vmap, also where the length is a symbol."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(random(rng, (3, 40), "float64"))
    edges = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)

    def counted(x, weights=None):
        return parprims.histogram(x, 4, range=(-1.0, 1.0), weights=weights)

    program = torch.compile(counted, fullgraph=True, dynamic=True, backend="aot_eager")
    for one in (x, x[:2], x[0, :5]):
        for weights in (None, one * 2):
            for found, expected in zip(program(one, weights), counted(one, weights), strict=True):
                assert torch.equal(found, expected)
    by_edges = torch.compile(lambda x: parprims.histogram(x, edges)[0], fullgraph=True, backend="aot_eager")
    assert torch.equal(by_edges(x), parprims.histogram(x, edges)[0])
    rows = torch.compile(torch.func.vmap(lambda x: counted(x)[0]), fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(rows, torch.stack([counted(row)[0] for row in x]))

    class Module(torch.nn.Module):
        def forward(self, x):
            return parprims.histogram(x, 5)[0]

    exported = torch.export.export(Module(), (x,))
    nodes = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert sum("parprims" in node for node in nodes) == 1
