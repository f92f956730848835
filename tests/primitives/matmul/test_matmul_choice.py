"""Where `auto` takes the kernel for a product of matrices in CUDA memory, and the kernel for tiny ones."""

import pytest

import parprims
from parprims import _cuda
from parprims._primitives.matmul.tiles import TUNING, Arithmetic, Least, tiny_tile
from tests.primitives.matmul import test_matmul_kernel
from tests.primitives.matmul.test_matmul import FLOATS, INTEGERS, loop
from tests.primitives.matmul.test_matmul_kernel import (
    TENSOR,
    allowed,
    check,
    gapped,
    lacking,
    make,
    odd,
    plain,
    planned,
    turned,
)
from tests.support.contract import compare

sizes = test_matmul_kernel.sizes
NEVER = {"preferred": {}, "preferred_in_jax": {}, "small": 0}


@pytest.fixture
def prefer(sizes):
    """Return a function that sets from where on the kernel is preferred, for no other family of products."""

    def change(**families):
        least = {name.replace("_", " ").replace("16 bit", "16-bit"): one for name, one in families.items()}
        sizes(**NEVER | {"preferred": least, "preferred_in_jax": least})

    return change


def chosen(gpu, a, b, preferred, **options):
    """Assert which method `auto` takes, by `methods` and by what `explain` says of a call; return the result."""
    preferred = preferred and _cuda.capability(gpu.xp, a) == 90
    found = parprims.methods(parprims.matmul, a, b, **options)
    assert (found["native"] is not None) is preferred
    assert found["kernel"] is None
    with parprims.explain() as calls:
        result = parprims.matmul(a, b, **options)
    assert calls[0].method == ("kernel" if preferred else "native")
    return result


class TestPreferred:
    """On devices of compute capability 9.0, for which the sizes were measured."""

    @pytest.mark.parametrize("precision", ["float32", "tf32", "highest"])
    def test_large_matrices_of_float32(self, gpu, rng, prefer, subtests, precision):
        prefer(**{precision: Least(lines=16, results=16 * 20, depth=32, products=2 * 16 * 20 * 32)})
        for m, k, n, batch, preferred in (
            (16, 32, 20, 2, True),
            (20, 32, 16, 2, True),
            (16, 32, 20, 1, False),  # too few products
            (16, 28, 24, 2, False),  # too short
            (12, 48, 32, 2, False),  # too few rows
            (32, 48, 12, 2, False),  # too few columns
            (16, 64, 16, 2, False),  # too few results
        ):
            for dtype in ("float32", "float64"):
                if dtype == "float64" and precision != "float32":
                    continue
                with subtests.test(m=m, k=k, n=n, batch=batch, dtype=dtype):
                    lacking(gpu, dtype)
                    a, b = (gpu.asarray(x) for x in make(rng, ((batch, m, k), (batch, k, n)), dtype))
                    chosen(gpu, a, b, preferred and dtype == "float32", precision=precision)

    def test_rows_of_any_length(self, gpu, rng, prefer, subtests):
        """Rows of 16-bit floats, or of float32, that are no multiples of 16 bytes have their own least sizes."""
        least = Least(lines=16, depth=304, products=16 * 17 * 304)
        prefer(**{"16_bit_unaligned": least, "float32_unaligned": least})
        row_major = gpu.name == "jax-cuda"  # all arrays of JAX are
        for dtype, vector in (("float16", 8), ("float32", 4)):
            for m, k, n in ((16, 304, 17), (17, 311, 16), (17, 304, 16), (16, 304, 16), (17, 304, 15), (16, 303, 17)):
                large = n >= 16 and k >= 304
                for views in ((plain, plain), (turned, plain)):
                    with subtests.test(dtype=dtype, m=m, k=k, n=n, views=views):
                        factors = make(rng, ((m, k), (k, n)), dtype)
                        a, b = (view(gpu, x) for view, x in zip(views, factors, strict=True))
                        rows = m if views[0] is turned and not row_major else k
                        chosen(gpu, a, b, bool(large and (rows % vector or n % vector)))

    def test_small_matrices(self, gpu, rng, sizes, subtests):
        """Where the call takes longer than the product, but not on JAX or for a derivative."""
        sizes(**NEVER | {"small": 24, "small_matrices": 2})
        for shapes, dtype, options, preferred in (
            (((20, 20), (20, 20)), "float32", {}, True),
            (((20, 20), (20, 20)), "float32", {"precision": "tf32"}, True),
            (((20, 20), (20, 20)), "float64", {}, True),
            (((24, 24), (24, 24)), "float16", {}, True),
            (((24, 20), (20, 24)), "float16", {}, False),  # whose rows would be copied first
            (((12, 12), (12, 12)), "float16", {}, True),
            (((20, 20), (20, 20)), "complex64", {}, False),
            (((2, 18, 20), (20, 3)), "float32", {}, True),
            (((3, 18, 20), (20, 3)), "float32", {}, False),  # too many matrices
            (((5, 8, 8), (8, 8)), "float32", {}, True),  # of tiny ones there may be any number
            (((3, 10, 10), (10, 10)), "float32", {}, False),
            (((7, 20, 20), (20, 3)), "float32", {}, False),
            (((20, 25), (25, 20)), "float32", {}, False),
            (((2, 20, 20), (20, 20)), "float32", {}, False),  # too many products
            (((20,), (20, 20)), "float32", {}, False),
            (((0, 20), (20, 20)), "float32", {}, False),
        ):
            with subtests.test(shapes=shapes, dtype=dtype, **options):
                lacking(gpu, dtype)
                a, b = (gpu.asarray(x) for x in make(rng, shapes, dtype))
                chosen(gpu, a, b, preferred and gpu.name != "jax-cuda", **options)
        a, b = (gpu.asarray(x) for x in make(rng, ((20, 20), (20, 20)), "float32"))
        with parprims.explain() as calls:
            if gpu.name == "jax-cuda":
                import jax

                jax.jit(parprims.matmul)(a, b)
            elif gpu.name == "torch-cuda":
                parprims.matmul(a.requires_grad_(), b)
        assert all(call.method == "native" for call in calls)

    def test_integers(self, gpu, rng, prefer, subtests):
        if gpu.name == "torch-cuda":
            pytest.skip("PyTorch multiplies no integer matrices there")
        prefer(integers=Least(lines=1, products=300))
        for shapes, preferred in (
            (((5, 6), (6, 10)), True),
            (((5, 6), (6, 9)), False),
            (((2, 5, 6), (6, 5)), True),
            (((50, 6), (6,)), True),
            (((6,), (6, 50)), True),
            (((49, 6), (6,)), False),
            (((2, 5, 30), (30,)), True),
            (((300,), (300,)), False),  # inner products were not timed
            (((0, 300), (300, 4)), False),
        ):
            for dtype in ("int32", "uint8", "int64"):
                with subtests.test(shapes=shapes, dtype=dtype):
                    a, b = make(rng, shapes, dtype)
                    result = chosen(gpu, gpu.asarray(a), gpu.asarray(b), preferred)
                    compare(gpu, result, loop(a, b), 0, dtype)

    def test_vectors(self, gpu, rng, prefer, subtests):
        """Of float32 they were timed for one precision alone, and inner products for none."""
        prefer(float32=Least(), tf32=Least(), highest=Least())
        for shapes in (((40, 32), (32,)), ((32,), (32, 40)), ((32,), (32,))):
            for precision in ("float32", "tf32", "highest"):
                with subtests.test(shapes=shapes, precision=precision):
                    a, b = (gpu.asarray(x) for x in make(rng, shapes, "float32"))
                    preferred = precision == "highest" and len(shapes[0]) + len(shapes[1]) == 3
                    chosen(gpu, a, b, preferred, precision=precision)

    def test_what_pytorch_has_been_told(self, gpu, rng, prefer):
        """Its own routine multiplies with 10 fraction bits where it has been told to."""
        if gpu.name != "torch-cuda":
            pytest.skip("needs PyTorch")
        import torch

        prefer(tf32=Least())
        a, b = (gpu.asarray(x) for x in make(rng, ((32, 32), (32, 32)), "float32"))
        before = torch.get_float32_matmul_precision()
        try:
            for told, preferred in (("highest", True), ("high", False)):
                torch.set_float32_matmul_precision(told)
                chosen(gpu, a, b, preferred, precision="tf32")
        finally:
            torch.set_float32_matmul_precision(before)

    @pytest.mark.parametrize("precision", ["float32", "tf32", "highest"])
    def test_gradients(self, gpu, rng, prefer, precision):
        if gpu.name != "torch-cuda":
            pytest.skip("needs PyTorch")
        prefer(**{precision: Least(products=16 * 16 * 300)})
        a, b, weights = make(rng, ((16, 300), (300, 16), (16, 16)), "float32")
        x, y = (gpu.asarray(one).requires_grad_() for one in (a, b))
        with parprims.explain() as calls:
            product = parprims.matmul(x, y, precision=precision)
        preferred = _cuda.capability(gpu.xp, x.detach()) == 90
        assert [call.method for call in calls] == ["kernel" if preferred else "native"]
        product.backward(gpu.asarray(weights))
        for grad, factors in ((x.grad, (weights, b.T)), (y.grad, (a.T, weights))):
            compare(gpu, grad, loop(*factors), allowed(*factors, precision), "float32")

    @pytest.mark.once
    def test_least(self):
        least = Least(lines=2, results=8, depth=3, products=48)
        assert least.reached(2, 4, 3, 2)
        assert least.reached(4, 2, 6, 1)
        for fewer in ((1, 8, 3, 2), (8, 1, 3, 2), (2, 3, 4, 2), (2, 4, 2, 3), (2, 4, 3, 1)):
            assert not least.reached(*fewer)


class TestBatchesByTheLibrary:
    """CuPy's own routine fails for batches of bfloat16, and JAX's sums in 16 bits where there is one row or column."""

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_16_bits(self, gpu, run, rng, subtests, dtype):
        lacking(gpu, dtype)
        for shapes in (
            ((2, 4, 5), (2, 5, 3)),
            ((2, 4, 5), (5, 3)),
            ((4, 5), (2, 5, 3)),
            ((2, 4, 5), (5,)),
            ((5,), (2, 5, 4)),
            ((2, 1, 5), (2, 5, 1)),
            ((1, 4, 5), (1, 5, 3)),
            ((40, 500), (500,)),
            ((500,), (500, 40)),
            ((500,), (500,)),
            ((1, 500), (500, 40)),
            ((40, 500), (500, 1)),
        ):
            with subtests.test(shapes=shapes):
                a, b = make(rng, shapes, dtype)
                result = run(parprims.matmul, gpu.asarray(a), gpu.asarray(b), method="native")
                compare(gpu, result, loop(a, b), allowed(a, b), dtype)


class TestTiny:
    """Matrices of a few rows and columns, of which a batch has many."""

    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [(plain, plain), (turned, odd), (gapped, turned)])
    def test_layouts(self, gpu, run, rng, subtests, views):
        for m, k, n in ((3, 3, 3), (4, 5, 8), (16, 2, 16), (1, 7, 2), (5, 128, 1)):
            with subtests.test(m=m, k=k, n=n):
                check(gpu, run, make(rng, ((7, m, k), (7, k, n)), "float32"), views)

    @pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
    def test_dtypes(self, gpu, run, rng, subtests, dtype):
        lacking(gpu, dtype)
        for m, k, n in (
            (1, 1, 1),
            (2, 2, 2),
            (3, 3, 1),
            (8, 9, 12),
            (16, 16, 16),
            (17, 8, 8),
            (7, 8, 300),
            (300, 8, 7),
        ):
            for batch in ((), (2, 3)):
                with subtests.test(m=m, k=k, n=n, batch=batch):
                    check(gpu, run, make(rng, ((*batch, m, k), (*batch, k, n)), dtype))

    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_precisions(self, gpu, run, rng, dtype, precision):
        lacking(gpu, dtype)
        check(gpu, run, make(rng, ((9, 5, 6), (9, 6, 7)), dtype), precision=precision)

    def test_operators(self, gpu, run, rng):
        """Sums are combined in the order of k."""
        inputs = make(rng, ((9, 5, 6), (9, 6, 7)), "float32")
        expected = (inputs[0][..., None] + inputs[1][:, None]).min(axis=2)
        check(gpu, run, inputs, expected=expected, error=0, add="minimum", multiply="add")

    @pytest.mark.once
    def test_plans(self):
        for lengths, dtype, precision, tile in (
            ((4, 4, 4), "float32", "float32", (8, 4)),
            ((2, 1, 3), "float32", "float32", (8, 4)),
            ((5, 9, 6), "float16", "float32", (8, 8)),
            ((16, 128, 16), "float32", "tf32", (8, 16)),
            ((16, 129, 16), "float32", "tf32", None),
            ((17, 9, 16), "float32", "float32", None),
            ((12, 20, 12), "float64", "float32", (8, 16)),
            ((13, 20, 12), "float64", "float32", None),
            ((13, 20, 12), "float32", "highest", None),
            ((16, 20, 16), "int64", "float32", (8, 16)),
            ((1000, 8, 5), "float64", "float32", (16, 8)),
            ((1000, 9, 5), "float64", "float32", None),
            ((3, 3, 1000), "float32", "float32", (4, 32)),
        ):
            m, k, n = lengths
            shapes = (70, m, k), (70, k, n)
            plan = planned(*shapes, dtype, precision=precision)[1]
            (launch,) = plan.launches
            assert (launch.template == "multiply_naive") == (tile is not None), lengths
            if tile is not None:
                assert launch.arguments[1:] == tile, lengths
                assert launch.block == tile[0] * tile[1]
        # A batch that shares b is one matrix with many rows.
        (launch,) = planned((1000, 4, 4), (4, 4))[1].launches
        assert launch.arguments[1:] == (32, 4)
        # What a call names is what runs.
        for options in ({"kernel": "conflict_free"}, {"kernel": "tensor"}, {"tile": (32, 64, 16)}):
            (launch,) = planned((70, 128, 128), (70, 128, 4), **options)[1].launches
            assert launch.template != "multiply_naive"
        (launch,) = planned((9, 4, 4), (9, 4, 4), kernel="naive")[1].launches
        assert launch.arguments[1:] == TUNING[90].naive[:2]

    @pytest.mark.once
    def test_tiles_of_every_length(self):
        arithmetic = Arithmetic.of("float32", "float32", True, "float32")
        for m in range(1, 40):
            for n in range(1, 40):
                tile = tiny_tile(arithmetic, (m, n, 8))
                assert (tile is not None) == (max(m, n) <= 16 or min(m, n) <= 8)
                if tile is not None:
                    assert tile[0] * tile[1] in (32, 64, 128)
