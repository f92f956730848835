"""The law of the bits of matrix products: an element depends on its row and its column, and on no others.

Kernels for CPUs and ``array`` keep it, by any operators and precisions; kernels for GPUs by method canonical, except by
residues.
"""

import numpy as np
import pytest

import parprims
from tests.support.contract import random
from tests.support.laws import by_kernel, mixed

LENGTHS = (1, 2, 100, 256, 257, 300, 1000, 4097)


def near(x, y):
    return x * y + 0.5 * x


OPERATORS = {
    "product": {},
    "minimum": {"add": "minimum", "multiply": "add"},
    "logaddexp": {"add": "logaddexp", "multiply": "add"},
    "own": {"add": mixed, "multiply": near},
}


def product(backend, a, b, **options):
    return backend.to_numpy(parprims.matmul(backend.asarray(a), backend.asarray(b), **options))


@pytest.fixture(params=["kernel", "array"])
def by(request, backend):
    if request.param == "kernel":
        return by_kernel(backend)
    if backend.name.startswith("jax"):
        pytest.skip("XLA may round a b + c once")
    return request.param


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_a_row_does_not_see_the_others(backend, rng, by, op, dtype):
    if not backend.supports(dtype):
        pytest.skip("has no such dtype")
    if dtype == "complex64" and (op != "product" or by == "array"):
        pytest.skip("the library may round products of complex numbers once, and has no order for them")
    if op == "own" and by == "canonical" and backend.name.startswith("jax"):
        pytest.skip("kernels for GPUs need an identity, and XLA may round a b + c once")
    if op == "logaddexp" and by == "array" and backend.name.startswith("torch"):
        pytest.skip("PyTorch's exponentials depend on the place of an element in memory")
    for k in LENGTHS:
        m, n = (150, 140) if k < 1000 else (40, 130)
        a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
        if op == "own":
            a, b = (a / 64).astype(dtype), (b / 64).astype(dtype)
        options = {"method": by, **OPERATORS[op]}
        whole = product(backend, a, b, **options)
        for rows in (1, 2, 5, 33):
            np.testing.assert_array_equal(product(backend, a[7 : 7 + rows], b, **options), whole[7 : 7 + rows])
            np.testing.assert_array_equal(product(backend, a, b[:, 3 : 3 + rows], **options), whole[:, 3 : 3 + rows])
            few = product(backend, a[:rows], b[:, :rows], **options)
            np.testing.assert_array_equal(few, whole[:rows, :rows])
        np.testing.assert_array_equal(product(backend, a[5], b, **options), whole[5])
        np.testing.assert_array_equal(product(backend, a, b[:, 6], **options), whole[:, 6])
        np.testing.assert_array_equal(product(backend, a[5], b[:, 6], **options), whole[5, 6])
        turned = np.ascontiguousarray(a.T).T, np.asfortranarray(b)
        np.testing.assert_array_equal(product(backend, *turned, **options), whole)
        np.testing.assert_array_equal(product(backend, a[::-3], b[:, ::-2], **options), whole[::-3, ::-2])
        batch = product(backend, np.stack([a[:20], a[20:40]]), b, **options)
        np.testing.assert_array_equal(batch.reshape(40, n), whole[:40])
        columns = np.stack([b[:, :30], b[:, 30:60]])
        np.testing.assert_array_equal(product(backend, a[:9], columns, **options)[1], whole[:9, 30:60])


@pytest.mark.parametrize(
    "options", [{"precision": "highest"}, {"precision": "residues"}, {"tile": (16, 8, 100)}], ids=str
)
def test_a_row_does_not_see_the_others_by_options(backend, rng, options):
    if backend.name.startswith("jax"):
        pytest.skip("XLA may round a b + c once")
    if not backend.supports("float32"):
        pytest.skip("has no such dtype")
    for k in (257, 3000):
        a, b = random(rng, (60, k), "float32"), random(rng, (k, 70), "float32")
        whole = product(backend, a, b, method="array", **options)
        for rows in (1, 2, 33):
            np.testing.assert_array_equal(product(backend, a[:rows], b, method="array", **options), whole[:rows])
            found = product(backend, a, b[:, :rows], method="array", **options)
            np.testing.assert_array_equal(found, whole[:, :rows])


@pytest.mark.parametrize("options", [{}, {"precision": "highest"}, {"precision": "tf32"}, {"kernel": "tiled"}], ids=str)
@pytest.mark.parametrize("k", [40, 3000])
def test_a_row_does_not_see_the_others_on_a_gpu(backend, rng, options, k):
    """Also where a tensor core would sum, and where the sum of few rows would be split."""
    if not backend.cuda:
        pytest.skip("is of GPUs")
    if options.get("precision") == "highest" and not backend.supports("float64"):
        pytest.skip("sums in float64")
    a, b = random(rng, (200, k), "float32"), random(rng, (k, 300), "float32")
    with parprims.explain() as calls:
        whole = product(backend, a, b, method="canonical", **options)
        np.testing.assert_array_equal(product(backend, a[7], b, method="canonical", **options), whole[7])
        np.testing.assert_array_equal(product(backend, a[:17], b, method="canonical", **options), whole[:17])
        np.testing.assert_array_equal(product(backend, a, b[:, :9], method="canonical", **options), whole[:, :9])
    assert {(call.method, call.canonical) for call in calls} == {("kernel", True)}
    with pytest.raises(parprims.MethodRefused, match="method 'canonical' refused: the kernel for GPUs groups"):
        product(backend, a, b, method="canonical", precision="residues", kernel="tensor")


def test_sums_are_those_of_the_tree(backend, rng):
    """By array, an element is the product of vectors of its row and column, which is a reduction."""
    if backend.name.startswith("jax"):
        pytest.skip("XLA may round a b + c once")
    for k in (5, 257, 5000, 70_001):
        a, b = random(rng, (9, k), "float64"), random(rng, (k, 8), "float64")
        vectors = parprims.vecdot(backend.asarray(a), backend.asarray(b[:, 4].copy()), method="array")
        np.testing.assert_array_equal(product(backend, a, b, method="array")[:, 4], backend.to_numpy(vectors))
