"""Matrix products by the kernel for CPUs: edges of its tiles, threads, layouts, order, and NaN in some pieces."""

import numpy as np
import pytest
from array_api_compat import array_namespace

import parprims
from parprims._primitives.matmul import cpu as matmul_cpu
from tests.support.contract import random

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims._cpu import threads  # noqa: E402

SHORTEST = {"add": "minimum", "multiply": "add"}
LATER = parprims.Operator(lambda earlier, later: later - 0 * earlier, name="later")
# Of 2 x 2 matrices modulo 256, whose four bytes are in one number: neither the sum nor the product commutes.
MATRICES = parprims.Operator(lambda x, y: matrices(x, y), name="matrices")


def matrices(x, y):
    """Multiply 2 x 2 matrices of bytes."""
    a, b, c, d = (x >> shift & 255 for shift in (0, 8, 16, 24))
    e, f, g, h = (y >> shift & 255 for shift in (0, 8, 16, 24))
    rows = (a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)
    return (rows[0] & 255) | ((rows[1] & 255) << 8) | ((rows[2] & 255) << 16) | ((rows[3] & 255) << 24)


def folded(add, multiply, a, b):
    """Combine one outer product after another, the definition."""
    total = multiply(a[..., :, :1], b[..., :1, :])
    for k in range(1, a.shape[-1]):
        total = add(total, multiply(a[..., :, k : k + 1], b[..., k : k + 1, :]))
    return total


def by_kernel(a, b, **options):
    """Multiply by the kernel, and see that the factors stay as they are."""
    before = a.copy(), b.copy()
    found = parprims.matmul(a, b, method="kernel", **options)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])
    return found


def edges():
    """Return lengths of m, k and n around those at which tiles, steps and ways of the kernel end."""
    rows = (1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 127, 128, 129, 260)
    depths = (1, 2, 3, 4, 5, 127, 128, 129, 130, 257)
    columns = (1, 3, 4, 5, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 515)
    rng = np.random.default_rng(9)
    every = [(m, 9, 70) for m in rows] + [(20, k, 70) for k in depths] + [(20, 9, n) for n in columns]
    some = [tuple(int(rng.choice(lengths)) for lengths in (rows, depths, columns)) for _ in range(60)]
    return every + some


def test_sizes_around_every_edge(subtests):
    rng = np.random.default_rng(1)
    for m, k, n in edges():
        with subtests.test(m=m, k=k, n=n):
            a, b = (random(rng, shape, "int64") for shape in ((m, k), (k, n)))
            np.testing.assert_array_equal(by_kernel(a, b), np.matmul(a, b))
            x, y = a.astype(np.float32), b.astype(np.float32)
            np.testing.assert_array_equal(by_kernel(x, y, **SHORTEST), folded(np.minimum, np.add, x, y))


def test_wide_rows():
    a, b = (random(np.random.default_rng(2), shape, "int64") for shape in ((2, 131), (131, 5000)))
    np.testing.assert_array_equal(by_kernel(a, b), np.matmul(a, b))
    np.testing.assert_array_equal(by_kernel(b.T, a.T), np.matmul(b.T, a.T))


def test_order_along_k(subtests):
    """No operator commutes, so that any exchange of factors, of neighbours along k or of pieces shows."""
    rng = np.random.default_rng(3)
    # Of whatever is not zero the last counts.
    last = parprims.Operator(lambda x, y: array_namespace(y).where(y != 0, y, x), identity=0)
    for m, k, n in ((1, 300, 1), (5, 131, 3), (3, 131, 5), (40, 260, 70), (70, 33, 9), (9, 33, 200), (2, 9, 50)):
        for transposed in (False, True):
            with subtests.test(m=m, k=k, n=n, transposed=transposed):
                a, b = (rng.integers(-3, 4, shape) for shape in ((m, k), (k, n)))
                if transposed:
                    a, b = np.asfortranarray(a), np.asfortranarray(b)
                found = by_kernel(a, b, add=last, multiply=lambda x, y: x - 2 * y)
                np.testing.assert_array_equal(found, folded(last.combine, lambda x, y: x - 2 * y, a, b))


def test_long_operators(subtests):
    rng = np.random.default_rng(11)
    for m, k, n in ((1, 300, 1), (3, 31, 5), (40, 160, 70), (70, 33, 9)):
        with subtests.test(m=m, k=k, n=n):
            a, b = (rng.integers(0, 2**32, shape) for shape in ((m, k), (k, n)))
            found = by_kernel(a, b, add=MATRICES, multiply=MATRICES)
            np.testing.assert_array_equal(found, folded(matrices, matrices, a, b))


def test_no_identity():
    a, b = (random(np.random.default_rng(4), shape, "float64") for shape in ((7, 150), (150, 80)))
    found = by_kernel(a, b, add=LATER)
    np.testing.assert_array_equal(found, a[:, -1:] * b[-1:])


def layouts(x):
    """Return arrays of the same elements in memory of every kind."""
    wide = np.zeros((*x.shape[:-2], 3 * x.shape[-2], 2 * x.shape[-1]), x.dtype)
    wide[..., ::3, 1::2] = x
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    transposed = np.ascontiguousarray(np.swapaxes(x, -1, -2))
    return {
        "rows": x,
        "columns": np.swapaxes(transposed, -1, -2),
        "steps": wide[..., ::3, 1::2],
        "backwards": np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
        "columns backwards": np.swapaxes(np.ascontiguousarray(transposed[..., ::-1, :])[..., ::-1, :], -1, -2),
        "unaligned": unaligned,
    }


@pytest.mark.parametrize("options", [{}, SHORTEST], ids=["sum", "minimum"])
def test_layouts(subtests, options):
    rng = np.random.default_rng(5)
    for m, k, n in ((6, 5, 7), (37, 140, 300), (300, 9, 3), (1, 60, 400)):
        a, b = (random(rng, shape, "int32") for shape in ((m, k), (k, n)))
        expected = folded(np.minimum, np.add, a, b) if options else np.matmul(a, b)
        for (one, x), (other, y) in zip(layouts(a).items(), reversed(layouts(b).items()), strict=True):
            with subtests.test(m=m, a=one, b=other):
                np.testing.assert_array_equal(by_kernel(x, y, **options), expected)
        still = np.broadcast_to(a[:1], (m, k)), np.broadcast_to(b[:, :1], (k, n))
        expected = folded(np.minimum, np.add, *still) if options else np.matmul(*still)
        np.testing.assert_array_equal(by_kernel(*still, **options), expected)


def test_batches(subtests):
    rng = np.random.default_rng(6)
    shapes = (
        ((3, 4, 5), (3, 5, 6)),
        ((3, 1, 20, 9), (1, 2, 9, 30)),
        ((2, 3, 20, 9), (9, 30)),
        ((20, 9), (2, 3, 9, 30)),
        ((2, 1, 3, 1, 20, 9), (5, 1, 2, 9, 30)),
        ((40, 1, 9), (9, 30)),
        ((500, 3, 3), (500, 3, 3)),
    )
    for one, other in shapes:
        a, b = random(rng, one, "int64"), random(rng, other, "int64")
        turned = tuple(np.ascontiguousarray(x[..., ::-1, :, :])[..., ::-1, :, :] if x.ndim > 2 else x for x in (a, b))
        outward = tuple(np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0) for x in (a, b))
        for kind, (x, y) in {"rows": (a, b), "backwards": turned, "batch innermost": outward}.items():
            with subtests.test(a=one, b=other, kind=kind):
                np.testing.assert_array_equal(by_kernel(x, y), np.matmul(a, b))


def test_nan_in_any_piece(subtests):
    """The faster minimum runs where no product can be NaN: pieces that have NaN, before and behind others, have it."""
    rng = np.random.default_rng(7)
    for add, multiply in (("minimum", "add"), ("maximum", "multiply")):
        combine, product = getattr(np, add), getattr(np, multiply)
        for place in (0, 1, 127, 128, 200, 299):
            for one, other in ((np.nan, 0.0), (np.inf, np.inf), (np.inf, -np.inf), (-np.inf, -np.inf), (np.inf, 0.0)):
                with subtests.test(add=add, place=place, one=one, other=other), np.errstate(invalid="ignore"):
                    a, b = rng.standard_normal((9, 300)), rng.standard_normal((300, 33))
                    a[4, place], b[place, 20] = one, other
                    expected = folded(combine, product, a, b)
                    np.testing.assert_array_equal(by_kernel(a, b, add=add, multiply=multiply), expected)
    a, b = np.where(rng.random((2, 40, 40)) < 0.5, np.inf, rng.random((2, 40, 40)))
    np.testing.assert_array_equal(by_kernel(a, b, **SHORTEST), folded(np.minimum, np.add, a, b))


def test_the_number_of_threads_changes_no_bits(monkeypatch):
    rng = np.random.default_rng(8)
    shapes = (((300, 400), (400, 301)), ((1, 3000), (3000, 70)), ((3000, 70), (70,)), ((50, 40, 30), (30, 20)))
    calls = [(rng.standard_normal(one), rng.standard_normal(other)) for one, other in shapes]
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        monkeypatch.setattr(matmul_cpu, "_LEAST", 1 << 8)
        found.append([by_kernel(a, b, **options) for a, b in calls for options in ({}, SHORTEST)])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_auto_takes_the_faster(subtests):
    """Integers whose products need many floats, or few elements in all, go to the loops; the others to BLAS."""
    rng = np.random.default_rng(10)
    cases = {(8, 8, 8): "native", (30, 30, 30): "kernel", (3, 1000, 100): "kernel", (100, 100, 100): "native"}
    for (m, k, n), expected in cases.items():
        for dtype in ("int32", "uint64"):
            with subtests.test(m=m, k=k, n=n, dtype=dtype):
                a, b = (rng.integers(0, np.iinfo(dtype).max, shape, dtype) for shape in ((m, k), (k, n)))
                with parprims.explain() as calls:
                    found = parprims.matmul(a, b)
                assert [call.method for call in calls] == [expected]
                np.testing.assert_array_equal(found, np.matmul(a, b))
    with parprims.explain() as calls:
        parprims.matmul(np.ones((9, 9)), np.ones((9, 9)))
        parprims.matmul(np.ones((9, 9)), np.ones((9, 9)), **SHORTEST)
    assert [call.method for call in calls] == ["native", "kernel"]


def test_refusals():
    a = np.ones((3, 3))
    with pytest.raises(parprims.MethodRefused, match="takes no tile"):
        parprims.matmul(a, a, tile=2, method="kernel")
    with pytest.raises(parprims.MethodRefused, match="kernel naive runs in CUDA"):
        parprims.matmul(a, a, kernel="naive")
    with pytest.raises(parprims.MethodRefused, match="cannot be traced"):
        parprims.matmul(a, a, add=lambda x, y: x if x.sum() > 0 else y, method="kernel")
    with pytest.raises(parprims.MethodRefused, match="turns float64 into bool"):
        parprims.matmul(a, a, add="maximum", multiply=lambda x, y: x < y, method="kernel")
