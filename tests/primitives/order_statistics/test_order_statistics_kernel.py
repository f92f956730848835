"""The kernels of order statistics: every way they cut their work, orders that are hard for them, and every dtype.

They run on machines with a GPU, and on the emulator (``--backend emulated``).
"""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.order_statistics import array as order_statistics_array
from parprims._primitives.order_statistics import cuda as order_statistics_cuda
from parprims._primitives.order_statistics.call import Quantiles
from parprims._primitives.order_statistics.quantiles import between
from tests.emulation import emulator
from tests.primitives.sort.test_sort import REAL, extremes
from tests.primitives.sort.test_sort_kernel import indices
from tests.support.contract import compare, strided, unaligned

SIZES = order_statistics_cuda.TUNING[90]


@pytest.fixture
def sizes(monkeypatch):
    """Return a function that changes the sizes of the kernel's work."""
    change = emulator.changing(monkeypatch, order_statistics_cuda)
    return lambda **sizes: change(TUNING={90: dataclasses.replace(SIZES, **sizes)})


def first(x, k, descending):
    """Return the first k of each row and their indices, by NumPy's sort."""
    index = indices(x, descending)[..., :k]
    return np.take_along_axis(x, index, -1), index


def check(backend, run, x, k, descending=True, given=None):
    mode = "largest" if descending else "smallest"
    given = backend.asarray(x) if given is None else given
    with parprims.explain() as calls:
        found = run(parprims.top_k, given, k, mode=mode, method="kernel")
    assert [call.primitive for call in calls] == ["top_k"]
    values, index = first(x, k, descending)
    compare(backend, found[1], index)
    assert backend.to_numpy(found[0]).tobytes() == values.tobytes()


ORDERS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "ascending": lambda _, n: np.arange(n),
    "descending": lambda _, n: np.arange(n)[::-1],
    "equal": lambda _, n: np.zeros(n),
    "few": lambda rng, n: rng.integers(0, 3, n),
    "late": lambda rng, n: np.where(np.arange(n) < n - 700, 0, rng.standard_normal(n)),
}


class TestOrders:
    @pytest.mark.parametrize("order", ORDERS)
    def test_rows(self, gpu, run, rng, order, subtests):
        """Rows of a block, short and long, on whose order it depends how often candidates are sorted."""
        for n in (256, 1000, 8192, 20000) if gpu.name != "jax-cuda" else (1000,):
            for k in (1, 60, 128, 129, 1024):
                if k <= n:
                    with subtests.test(n=n, k=k):
                        x = np.stack([ORDERS[order](rng, n), rng.permutation(n)]).astype(np.float32)
                        check(gpu, run, x, k, descending=bool(k % 2))

    @pytest.mark.parametrize("order", ORDERS)
    def test_parts(self, gpu, run, rng, sizes, order):
        """Rows that several blocks share."""
        sizes(part=600, blocks=14)
        for rows, n, k in (
            ((1, 9001, 100), (2, 8200, 150), (14, 700, 20)) if gpu.name != "jax-cuda" else ((1, 9001, 100),)
        ):
            x = np.stack([ORDERS[order](rng, n) for _ in range(rows)]).astype(np.float32)
            check(gpu, run, x, k)
            check(gpu, run, x, k, descending=False)

    @pytest.mark.parametrize("k", [10, 40, 300, 600])
    def test_more_rows_than_blocks(self, gpu, run, rng, sizes, k):
        """Also in orders of which the first elements tell nothing of the others."""
        sizes(blocks=2)
        for dtype in ("float32", "int64"):
            x = rng.integers(-999, 999, (3, 9001)).astype(dtype)
            x[1].sort()
            x[2] //= 500
            check(gpu, run, x, k)
            check(gpu, run, x, k, descending=False)

    @pytest.mark.sanitize
    def test_small(self, gpu, run, rng, sizes):
        sizes(part=300)
        for n in (1300, 2048 + 3):  # of which the last part has 276, and 3
            for descending in (True, False):
                check(gpu, run, rng.standard_normal(n).astype(np.float32), 30, descending=descending)
        check(gpu, run, rng.integers(0, 9, (2, 300)).astype(np.int64), 20, descending=False)


def check_quantile(backend, run, x, q, **options):
    """Hold quantiles along the last axis against the same of the sorted elements, found by places."""
    with parprims.explain() as calls:
        found = run(parprims.quantile, backend.asarray(x), q, axis=-1, method="kernel", **options)
    assert [call.primitive for call in calls] == ["quantile"]
    by_sort = parprims.quantile(np.take_along_axis(x, indices(x, False), -1), q, axis=-1, method="array", **options)
    np.testing.assert_array_equal(backend.to_numpy(found), by_sort)


class TestPlaces:
    @pytest.mark.parametrize("order", ORDERS)
    def test_orders(self, gpu, run, rng, sizes, order, subtests):
        sizes(part=700, counting_blocks=14)
        for rows, n in ((3, 256), (1, 1401)):
            for q in (0.5, (0.0, 0.999)):
                with subtests.test(rows=rows, n=n, q=q):
                    x = np.stack([ORDERS[order](rng, n) for _ in range(rows)]).astype(np.float32)
                    check_quantile(gpu, run, x, q)

    @pytest.mark.sanitize
    def test_small(self, gpu, run, rng, sizes):
        sizes(part=300)
        check_quantile(gpu, run, rng.standard_normal(1300).astype(np.float32), 0.5)
        check_quantile(gpu, run, rng.integers(0, 9, (2, 300)).astype(np.int64), (0.1, 0.5))

    @pytest.mark.parametrize("dtype", [dtype for dtype in REAL if dtype not in ("bool", "bfloat16")])
    def test_dtypes(self, gpu, run, rng, sizes, dtype):
        """Extreme numbers, with NaN and without, and places at random."""
        if not gpu.supports(dtype):
            pytest.skip(f"{gpu.name} has no {dtype}")
        sizes(part=300)
        numbers = extremes(dtype)
        usual = numbers[numbers == numbers]
        for some in (numbers, usual):
            for n in (280, 600):
                q = tuple(rng.random(3).tolist())
                check_quantile(gpu, run, rng.choice(some, n), q, interpolation=str(rng.choice(["lower", "higher"])))

    def test_neighbours(self, gpu, run, rng, sizes):
        """Where two neighbours differ in the first, a middle or the last digit, and where the second is the largest."""
        sizes(part=300)
        for dtype in ("uint32", "int64"):
            info = np.iinfo(dtype)
            for low, high in ((0, 1), (1023, 1024), (7, info.max), (info.max - 1, info.max)):
                x = rng.permutation(np.repeat(np.array([low, high], dtype), 300))
                found = run(parprims.quantile, gpu.asarray(x), 0.5, interpolation="higher", method="kernel")
                assert float(gpu.to_numpy(found)) == float(high)
                found = run(parprims.quantile, gpu.asarray(x), 0.5, interpolation="lower", method="kernel")
                assert float(gpu.to_numpy(found)) == float(low)


@pytest.mark.parametrize("dtype", [dtype for dtype in REAL if dtype != "bool"])
@pytest.mark.parametrize("descending", [True, False])
def test_dtypes(gpu, run, rng, sizes, dtype, descending):
    """Extreme numbers, NaN and zeros of both signs, whose bits stay."""
    if not gpu.supports(dtype):
        pytest.skip(f"{gpu.name} has no {dtype}")
    sizes(part=1000)
    for shape in ((3, 400), (9000,)):
        check(gpu, run, rng.choice(extremes(dtype), shape), 70, descending)


def test_narrow_indices(gpu, rng, monkeypatch):
    """Indices of 32 bits, which JAX asks for."""
    if gpu.name != "emulated":
        pytest.skip("other libraries than JAX have indices of 64 bits")
    emulator.forget(monkeypatch)
    monkeypatch.setattr(order_statistics_cuda, "index_dtype", lambda _: np.dtype("int32"))
    for n in (700, 9000):
        x = rng.standard_normal(n).astype(np.float32)
        values, index = parprims.top_k(x, 8, method="kernel")
        assert index.dtype == np.int32
        np.testing.assert_array_equal(index, first(x, 8, True)[1])
        np.testing.assert_array_equal(values, x[index])


def test_layouts(gpu, run, rng):
    x = rng.standard_normal((3, 500)).astype(np.float32)
    if gpu.family != "jax":
        for made in (unaligned, strided):
            check(gpu, run, x, 9, given=made(gpu, x))
    found = run(parprims.top_k, gpu.asarray(np.ascontiguousarray(x.T)), 9, axis=0, method="kernel")
    compare(gpu, found, tuple(one.T for one in first(x, 9, True)))


@pytest.mark.sanitize
def test_short_lines_are_sorted_once(gpu, run, rng, monkeypatch):
    """Lines that are too short for the kernel: by one sort, which moves elements too, whatever the axis."""
    if gpu.family != "jax":
        monkeypatch.setattr(order_statistics_array, "gathered", None)
    x = rng.integers(-3, 3, (5, 90)).astype(np.float32)
    x[x == 2] = np.nan
    for k in (1, 7, 90):
        for descending in (True, False):
            check(gpu, run, x, k, descending)
    found = run(parprims.top_k, gpu.asarray(np.ascontiguousarray(x.T)), 9, axis=0, method="kernel")
    compare(gpu, found, tuple(one.T for one in first(x, 9, True)))


def test_derivative(tensors, rng):
    """On PyTorch the kernel finds the elements, and PyTorch moves them, where a derivative is asked for."""
    import torch

    x = tensors.asarray(rng.standard_normal((2, 400))).requires_grad_()
    (got,) = torch.autograd.grad(parprims.median(x, axis=1, method="kernel").sum(), x)
    assert bool((got.sum(1) == 1).all())
    with torch.no_grad():
        found = parprims.median(x, axis=1, method="kernel")
    torch.testing.assert_close(found, torch.quantile(x.detach(), 0.5, dim=1))
    values, index = parprims.top_k(x, 5, method="kernel")
    (got,) = torch.autograd.grad((values * torch.arange(1.0, 6, device=x.device)).sum(), x)
    expected = torch.zeros_like(x).scatter_(1, index, torch.arange(1.0, 6, dtype=x.dtype, device=x.device).expand(2, 5))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_programs(rng, monkeypatch):
    """What JAX programs hold: the kernel, which here is one of a GPU, and the library's way elsewhere."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("takes the CPU for a GPU")
    emulator.install_for_jax(monkeypatch)
    x = rng.standard_normal((3, 300)).astype(np.float32)

    def top(x):
        return parprims.top_k(x, 4, method="kernel")

    assert "xla.gpu.ptx" in jax.jit(top).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    for got, wanted in zip(jax.vmap(top)(x), first(x, 4, True), strict=True):
        np.testing.assert_array_equal(np.asarray(got), wanted)

    def median(x):
        return parprims.median(x, axis=0, method="kernel")

    assert "xla.gpu.ptx" in jax.jit(median).trace(x[0]).lower(lowering_platforms=("cuda",)).as_text()
    np.testing.assert_allclose(np.asarray(jax.vmap(median)(x)), np.median(x, 1), rtol=1e-6)
    got = jax.grad(median)(x[0])
    assert np.count_nonzero(got) == 2
    got = jax.grad(lambda x: top(x)[0].sum())(x[0])
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(got)), np.sort(first(x[0], 4, True)[1]))


class TestBetween:
    """Quantiles between elements, which CuPy and PyTorch would compute by ten operations."""

    STEPS = (0, 1, 0.25), (1, 2, 0.5), (3, 3, 0.0), (0, 3, 0.9)

    def rows(self, gpu, rng, dtype):
        """Return rows of four elements, ascending, with large, equal and infinite ones, zeros of both signs and NaN."""
        if dtype.kind != "f":
            info = np.iinfo(dtype)
            x = rng.integers(info.min, info.max, (1000, 4), dtype, endpoint=True)
        else:
            info = np.finfo(dtype)
            x = rng.standard_normal((1000, 4)).astype(dtype)
            small = info.tiny * (2**10 if gpu.name == "cupy" else 1)  # CuPy's operations take subnormals for zero
            special = np.array([np.inf, -np.inf, info.max, info.min, small, 0.0, -0.0, np.nan], dtype)
            x = np.where(rng.random(x.shape) < 0.5, rng.choice(special, x.shape), x)
        x[::10, 2] = x[::10, 1]
        return np.sort(x, axis=-1)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("count", [1, 3, 40])
    def test_as_by_operations(self, gpu, rng, count, subtests):
        """The bits are those of the operations, also of more quantiles than a launch has."""
        if gpu.name == "jax-cuda":
            pytest.skip("JAX computes the operations in one program")
        xp = gpu.xp
        for name in ("int8", "uint8", "int32", "int64", "float16", "float32", "float64"):
            with subtests.test(name), np.errstate(all="ignore"):
                x = gpu.asarray(self.rows(gpu, rng, np.dtype(name)))
                result = x.dtype if "float" in name else xp.float64
                call = Quantiles(
                    arrays=(None,),
                    results=(((count, 1000), result),),
                    single=True,
                    axes=(1,),
                    steps=(self.STEPS * 10)[:count],
                    many=True,
                    working=xp.float32 if name == "float16" else result,
                )
                found = order_statistics_cuda.prepare_between(xp, call, x, 4)(x)
                expected = between(xp, call, x)
                np.testing.assert_array_equal(gpu.to_numpy(found), gpu.to_numpy(expected))
                signs = np.signbit(gpu.to_numpy(found)) == np.signbit(gpu.to_numpy(expected))
                assert (signs | np.isnan(gpu.to_numpy(expected))).all()

    def test_what_is_launched(self, gpu, rng, monkeypatch):
        """Both ways to the elements end in the kernel: by digits, and by a sort."""
        if gpu.name == "jax-cuda":
            pytest.skip("JAX computes the operations in one program")
        made = []
        plan = order_statistics_cuda.between_plan
        monkeypatch.setattr(
            order_statistics_cuda, "between_plan", lambda *args, **named: made.append(args) or plan(*args, **named)
        )
        emulator.forget(monkeypatch)
        x = rng.standard_normal((3, 1001))
        for q in (0.3, (0.1, 0.2, 0.7, 0.9)):
            found = parprims.quantile(gpu.asarray(x), q, axis=1, method="kernel")
            np.testing.assert_allclose(gpu.to_numpy(found), np.quantile(x, q, axis=1), rtol=1e-15)
        assert len(made) == 2
