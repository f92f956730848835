"""Rounding of the kernels of matrix products, and what becomes of infinities and NaN."""

import concurrent.futures
import threading

import numpy as np
import pytest

import parprims
from parprims._libraries.settings import UNROUNDED_SUMS
from parprims._primitives.matmul import native as native_matmul
from parprims._primitives.matmul.tiles import TUNING
from tests.emulation import emulator
from tests.primitives.matmul.test_matmul import bound, loop
from tests.primitives.matmul.test_matmul_kernel import TENSOR, allowed, check, lacking, make, plain, size, turned
from tests.support.contract import compare


def chain(a, b):
    """Return the sums of float32 products by fused multiply-adds, one after another in the order of k."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[1]):  # the product is exact in float64, and the sum is but for a rounding 2^-29 as small
        total = (total + a[:, k : k + 1] * b[k]).astype(np.float32)
    return total


class TestAccuracy:
    """Float32 on tensor cores, as the sum of two numbers of 11 bits."""

    def cases(self, rng, k):
        a, b = make(rng, ((16, k), (k, 16)), "float32")
        positive = rng.uniform(0.5, 1, (16, k)).astype(np.float32), rng.uniform(0.5, 1, (k, 16)).astype(np.float32)
        rows, columns = (10.0 ** rng.uniform(-15, 15, shape) for shape in ((16, 1), (1, 16)))
        order = rng.permutation(k)
        cancelling = np.concatenate([a[:, : k // 2], -a[:, : k - k // 2]], axis=1)[:, order]
        again = np.concatenate([b[: k // 2], b[: k - k // 2] * np.float32(1 + 2**-12)])[order]
        return {
            "normal": (a, b),
            "positive": positive,
            "badly scaled": ((a * rows).astype(np.float32), (b * columns).astype(np.float32)),
            "cancelling": (cancelling, again),
            "next to the least": (a * np.float32(2.0**-123), b * np.float32(2.0**100)),
        }

    def test_no_worse_than_a_chain(self, gpu, run, rng, subtests):
        # The error relative to sum |a| |b|, in the mean of squares over 256 sums, against that of simulated chains.
        # Shorter sums than the first are left to chains.
        for k in (TUNING[90].chain, 2000 if gpu.name == "emulated" else 65536):
            for name, (a, b) in self.cases(rng, k).items():
                with subtests.test(name, k=k):
                    expected, scale = loop(a, b), size(a, b)
                    result = check(gpu, run, (a, b), kernel="tensor", tile=(16, 16, 32))
                    found, usual = (
                        np.sqrt(np.mean((abs(x.astype(np.longdouble) - expected) / scale) ** 2))
                        for x in (gpu.to_numpy(result), chain(a, b))
                    )
                    assert found <= usual

    def test_short_sums(self, gpu, run, rng, subtests):
        # All that a split loses has the same sign where numbers are just above the middle of two of 11 bits.
        for k in (1, 2, 7, 64):
            with subtests.test(k=k):
                a, b = ((1 + (4097 + rng.integers(0, 9, shape)) * 2.0**-23) for shape in ((20, k), (k, 20)))
                inputs = tuple(x.astype(np.float32) for x in (a, b))
                check(gpu, run, inputs, kernel="tensor")
                # Which therefore is not what such a product gets.
                check(gpu, run, inputs, error=(k + 1) * 2.0**-23 * size(*inputs))

    def test_tf32_is_rounded_to_10_bits(self, gpu, run, rng):
        # Numbers of 10 fraction bits, and few enough of them, are multiplied exactly. So would others be here, each by
        # one power of two, if they were not rounded.
        a, b = (rng.integers(-1024, 1025, shape).astype(np.float32) for shape in ((20, 8), (8, 20)))
        check(gpu, run, (a, b), error=0, kernel="tensor", precision="tf32")
        a = (1 + (2 * rng.integers(0, 2048, a.shape) + 1) * 2.0**-12).astype(np.float32)
        b = np.where(np.arange(8)[:, None] == rng.integers(0, 8, 20), np.float32(4), np.float32(0))
        result = check(gpu, run, (a, b), kernel="tensor", precision="tf32")
        assert (gpu.to_numpy(result) != loop(a, b)).all()


class TestNotFinite:
    """Infinities, NaN and overflow: what a chain of products gives, on tensor cores too."""

    @pytest.mark.parametrize(
        ("kernel", "dtype", "precision"),
        [
            *(("tensor", *one) for one in TENSOR),
            ("conflict_free", "float32", "float32"),
            ("packed", "float64", "float32"),
        ],
    )
    def test_infinity_and_nan(self, gpu, run, rng, subtests, kernel, dtype, precision):
        lacking(gpu, dtype)
        for k in (8, 40, 700):
            with subtests.test(k=k):
                (a,) = make(rng, ((20, k),), dtype)
                b = rng.integers(-9, 10, (k, 20)).astype(a.dtype)  # exact in 8 bits: what is left of them is zero
                a[0, 3], a[1, 5], a[2, 7], a[3, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
                b[2, 4], b[6, 5] = np.inf, np.nan
                expected = loop(a, b)
                assert np.isinf(expected[:2]).any()
                assert np.isnan(expected[3]).any()
                finite = tuple(np.where(np.isfinite(x.astype(np.float64)), x, x.dtype.type(0)) for x in (a, b))
                error = allowed(*finite, precision)
                check(gpu, run, (a, b), expected=expected, error=error, kernel=kernel, precision=precision)

    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_overflow(self, gpu, run, rng, subtests, dtype, precision):
        # One number near the largest in a row, and the others small: it alone says what overflows.
        lacking(gpu, dtype)
        largest = {"bfloat16": 3.3e38}.get(dtype) or float(np.finfo(dtype).max)
        for k in (8, 33):
            with subtests.test(k=k):
                (a,) = make(rng, ((20, k),), dtype)
                b = rng.integers(-3, 4, (k, 20)).astype(a.dtype)
                a[np.arange(20), rng.integers(0, k, 20)] = 0.9 * largest
                exact, error = loop(a, b), allowed(a, b, precision)
                expected = exact.astype(a.dtype).astype(np.float64)
                assert np.isinf(expected).any()
                assert np.isfinite(expected).any()
                check(gpu, run, (a, b), expected=expected, error=error, kernel="tensor", precision=precision)

    def test_the_largest_number(self, gpu, run, rng):
        # It rounds to infinity in 10 bits, its other part is minus infinity.
        a, b = (np.zeros(shape, np.float32) for shape in ((16, 8), (8, 16)))
        a[:] = rng.choice(np.array([-1, 1]), a.shape) * np.finfo(np.float32).max
        b[rng.integers(0, 8, 16), np.arange(16)] = 2.0 ** -rng.integers(0, 9, 16)
        check(gpu, run, (a, b), kernel="tensor")


def told(torch):
    """Return what PyTorch has been told of sums of products of 16-bit floats."""
    matmul = torch.backends.cuda.matmul
    return (
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_fp16_accumulation,
    )


@pytest.fixture
def losses():
    """PyTorch, which may round parts of all sums, and is told afterwards what it had been told."""
    torch = pytest.importorskip("torch")
    before, matmul = told(torch), torch.backends.cuda.matmul

    def tell(bfloat16, float16, sums):
        matmul.allow_bf16_reduced_precision_reduction = bfloat16
        matmul.allow_fp16_reduced_precision_reduction = float16
        matmul.allow_fp16_accumulation = sums

    tell(True, True, True)
    yield torch
    tell(*before)


class TestSumsOf16BitFloats:
    """They are formed in float32 and rounded once by the library's own routine too, whatever PyTorch allows cuBLAS."""

    @pytest.mark.parametrize(
        ("dtype", "shape", "views"),
        [
            ("bfloat16", (333, 4126, 381), (plain, plain)),
            ("bfloat16", (1333, 4126, 381), (plain, plain)),
            ("bfloat16", (21, 3928, 914), (turned, turned)),
            ("bfloat16", (725, 343, 12), (plain, turned)),
            ("float16", (2047, 2048, 2049), (plain, plain)),
            ("float16", (395, 5273, 1929), (plain, plain)),
        ],
    )
    def test_products(self, gpu, request, rng, dtype, shape, views):
        if gpu.name == "torch-cuda":
            request.getfixturevalue("losses")
        lacking(gpu, dtype)
        if gpu.name in ("cupy", "emulated") and dtype == "bfloat16":
            pytest.skip("CuPy and NumPy have no bfloat16")
        m, k, n = shape
        inputs = make(rng, ((m, k), (k, n)), dtype)
        arrays = [view(gpu, x) for view, x in zip(views, inputs, strict=True)]
        a, b = (x.astype(np.float64) for x in inputs)
        exact, least = a @ b, {"bfloat16": 0, "float16": 2.0**-25}[dtype]
        half = {"bfloat16": 2.0**-9, "float16": 2.0**-12}[dtype]
        error = 2 * half * abs(exact) + (k + 1) * 2.0**-24 * (abs(a) @ abs(b)) + least
        for method in ("auto", "native"):
            result = parprims.matmul(*arrays, method=method)
            compare(gpu, result, exact, error, dtype)

    def test_dot_products(self, gpu, request, rng):
        if gpu.name == "torch-cuda":
            request.getfixturevalue("losses")
        x, y = make(rng, ((5, 100_001),) * 2, "float16")
        products = x.astype(np.float64) * y.astype(np.float64)
        exact = products.sum(axis=1)
        allowed = 2.0**-11 * abs(exact) + 100_002 * 2.0**-24 * abs(products).sum(axis=1) + 2.0**-25
        result = parprims.vecdot(gpu.asarray(x), gpu.asarray(y), method="native")
        compare(gpu, result, exact, allowed, "float16")

    @pytest.mark.once
    @pytest.mark.parametrize("names", [("float16", "float16"), ("int32", "float16"), ("bfloat16", "int8")])
    def test_every_product_in_16_bits(self, monkeypatch, names):
        """Also where a factor is cast before: on a CPU that is taken for a GPU."""
        torch = pytest.importorskip("torch")
        entered = []

        class Sums:
            def __enter__(self):
                entered.append(1)

            def __exit__(self, *_):
                pass

        monkeypatch.setattr(native_matmul, "UNROUNDED_SUMS", Sums())
        monkeypatch.setattr(native_matmul, "may_round_sums", lambda _, dtype: dtype in (torch.float16, torch.bfloat16))
        emulator.forget(monkeypatch)
        a, b = (torch.ones(3, 3, dtype=getattr(torch, name)) for name in names)
        for count in (1, 2):
            assert (parprims.matmul(a, b, method="native") == 3).all()
            assert len(entered) == count

    @pytest.mark.once
    def test_what_pytorch_has_been_told_holds_again(self, losses):
        losses.backends.cuda.matmul.allow_fp16_accumulation = False
        with UNROUNDED_SUMS:
            assert told(losses) == (False, False, False)
        assert told(losses) == (True, True, False)
        with pytest.raises(RuntimeError, match="out of memory"), UNROUNDED_SUMS:
            raise RuntimeError("out of memory")
        assert told(losses) == (True, True, False)

    @pytest.mark.once
    def test_in_many_threads(self, losses):
        """While one of them multiplies nothing is rounded, and what has been told holds again after the last."""
        start, found = threading.Barrier(8), []

        def enter(_):
            start.wait()
            for _ in range(500):
                with UNROUNDED_SUMS:
                    found.append(told(losses))

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(enter, range(8)))
        assert set(found) == {(False, False, False)}
        assert told(losses) == (True, True, True)


class TestBitsInCupy:
    """Products of float32 are as exact as promised, whatever CuPy has been told (CUPY_TF32)."""

    @pytest.fixture(autouse=True)
    def _fewer_bits(self, gpu):
        if gpu.name != "cupy":
            pytest.skip("needs CuPy")
        from cupy._core import _routines_linalg as routines

        before = routines.get_compute_type("f")
        routines.set_compute_type("f", routines.COMPUTE_TYPE_TF32)
        yield
        routines.set_compute_type("f", before)

    @pytest.mark.parametrize("dtype", ["float32", "complex64"])
    @pytest.mark.parametrize("shapes", [((300, 200), (200, 260)), ((2, 64, 1000), (1000, 96)), ((300, 200), (200,))])
    def test_products(self, gpu, rng, dtype, shapes):
        a, b = make(rng, shapes, dtype)
        result = parprims.matmul(gpu.asarray(a), gpu.asarray(b), method="native")
        compare(gpu, result, loop(a, b), bound("native", a, b), dtype)

    def test_dot_products(self, gpu, rng):
        x, y = make(rng, ((5, 1000),) * 2, "float32")
        products = x.astype(np.float64) * y
        result = parprims.vecdot(gpu.asarray(x), gpu.asarray(y), method="native")
        compare(gpu, result, products.sum(axis=1), 1001 * 2.0**-24 * abs(products).sum(axis=1), "float32")
