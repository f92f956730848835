"""Histograms by the kernels for CPUs: guesses near edges, blocks, threads, layouts, and derivatives."""

import os

import numpy as np
import pytest

import parprims
from tests.cpu.test_cpu import run
from tests.emulation import emulator
from tests.support.contract import numpy_dtype, random

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims._cpu import threads  # noqa: E402
from parprims._primitives.histogram import cpu as histogram_cpu  # noqa: E402


@pytest.fixture
def cut(monkeypatch):
    """Return a function that changes how elements are cut into blocks; calls made before are forgotten."""
    return emulator.changing(monkeypatch, histogram_cpu)


def check(x, *arguments, weights=None, **options):
    """Hold counts against a search of the edges that come back, sums against those in order to the bound documented."""
    before = [one.copy() for one in (x, weights) if one is not None]
    counts, edges = parprims.histogram(x, *arguments, weights=weights, method="kernel", **options)
    flat, last = x.reshape(-1).astype(edges.dtype), len(edges) - 1
    found = np.minimum(np.searchsorted(edges, flat, side="right") - 1, last - 1)
    inside = (flat >= edges[0]) & (flat <= edges[-1])
    if weights is None:
        np.testing.assert_array_equal(counts, np.bincount(found[inside], minlength=last))
    else:
        w = weights.reshape(-1).astype(np.float64)[inside]
        sums, sizes = (np.bincount(found[inside], one, last) for one in (w, abs(w)))
        eps = 0 if counts.dtype.kind in "iu" else np.finfo(counts.dtype).eps
        assert np.all(abs(counts - sums) <= eps * x.size * sizes)
    for one, given in zip(before, [one for one in (x, weights) if one is not None], strict=True):
        np.testing.assert_array_equal(one, given)
    return counts, edges


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_next_to_every_edge(rng, dtype, subtests):
    """Elements that are edges or their neighbours, where a product says the wrong bin or the edges hardly differ."""
    ranges = ((0.0, 1.0), (-1.0, 1.0), (0.1, 0.7), (1e6, 1e6 + 1), (-1e-30, 3e-30), (3.0, 2e30), (-7.0, 250.0))
    for bins in (1, 2, 3, 7, 64, 100, 1000, 1023):
        for ends in ranges:
            with subtests.test(bins=bins, ends=ends):
                _, edges = parprims.histogram(np.zeros(1, dtype), bins, range=ends, method="kernel")
                near = [np.nextafter(edges, edges.dtype.type(to)) for to in (-np.inf, np.inf)]
                inner = rng.uniform(*ends, 500).astype(dtype)
                check(rng.permutation(np.concatenate([edges, *near, inner])), bins, range=ends)


def test_edges_that_are_the_same(rng):
    """So many bins of so small a range that most edges are equal, and guesses of no use."""
    for x in (1 + rng.integers(0, 9, 1000) * 2.0**-52, np.full(300, 1e300), np.array([0.0, 5e-324, 1e-323])):
        check(x, 1000)
        check(x.astype(np.float32), 77)


def test_range_of_the_data(rng, cut):
    """Each block finds its own least and largest element; one that is not finite makes all edges NaN."""
    cut(_BLOCK=50, _EACH=1)
    for n in (1, 2, 63, 64, 65, 129, 1000, 3001):
        x = rng.standard_normal(n)
        _, edges = check(x, 9)
        if n > 1:
            assert (edges[0], edges[-1]) == (x.min(), x.max())
        for odd in (np.nan, np.inf, -np.inf):
            spoiled = x.copy()
            spoiled[rng.integers(n)] = odd
            counts, edges = parprims.histogram(spoiled, 9, method="kernel")
            assert np.isnan(edges).all()
            assert not counts.any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "float64"])
def test_given_edges(rng, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    x = random(rng, (3000,), dtype)
    for count in (2, 3, 17, 300):
        check(x, np.sort(rng.uniform(-3, 12, count)).astype(np.float64 if x.dtype.kind in "iu" else numpy_dtype(dtype)))
    if x.dtype.kind in "iu":
        check(x, np.unique(random(rng, (6,), dtype)))


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "float32", "float64"])
def test_weights(rng, dtype, cut):
    cut(_BLOCK=100, _EACH=1)
    for n in (1, 99, 101, 5000):
        for bins in (1, 10, 3000):
            check(random(rng, (n,), "float32"), bins, weights=random(rng, (n,), dtype))


def test_the_number_of_threads_changes_no_bits(rng, cut, monkeypatch):
    cut(_BLOCK=100)
    x, weights = rng.standard_normal(50_000), rng.standard_normal(50_000) * 10.0 ** rng.integers(-9, 9, 50_000)
    calls = [(bins, given) for bins in (1, 10, 3000, np.linspace(-1, 1, 20)) for given in (None, weights)]
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        found.append([check(x, bins, weights=given) for bins, given in calls])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert [part.tobytes() for part in one] == [part.tobytes() for part in other]


def test_layouts(rng):
    x, weights = rng.standard_normal((30, 40)), rng.standard_normal((30, 40))
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    for view in (x.T, x[::-1, ::3], np.asfortranarray(x), np.broadcast_to(x[:1], x.shape), unaligned):
        check(view, 12)
        check(view, 12, weights=weights[: view.shape[0], : view.shape[1]] if view.shape != (40, 30) else weights.T)


def test_gradients_are_left_to_pytorch():
    torch = pytest.importorskip("torch")
    x, weights = torch.rand(100), torch.rand(100, requires_grad=True)
    with pytest.raises(parprims.MethodRefused, match="a gradient is asked for"):
        parprims.histogram(x, 5, weights=weights, method="kernel")
    with torch.no_grad():
        assert parprims.histogram(x, 5, weights=weights, method="kernel")[0].sum() > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork():
    found = run("""
        import os, warnings
        warnings.simplefilter("ignore")
        import numpy as np, parprims
        from parprims._cpu import threads
        threads.limit = lambda: 3
        x = np.random.default_rng(1).standard_normal(300_000)
        whole = parprims.histogram(x, 20, method="kernel")[0]
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(parprims.histogram(x, 20, method="kernel")[0], whole) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert found.strip() == "0"
