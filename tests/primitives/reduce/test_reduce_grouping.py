"""The laws of the bits of reductions: a result is that of a tree over the elements of its line, by their position.

Kernels and ``array`` keep them, but for segments on GPUs.
"""

import itertools

import numpy as np
import pytest

import parprims
from parprims._primitives.reduce import array
from parprims._primitives.reduce.grouping import LARGEST_BLOCK, block_elements
from tests.support.contract import random
from tests.support.laws import affine, by_kernel, mixed, require_bits, require_kernels_for_cpus

LENGTHS = (1, 2, 3, 5, 15, 16, 31, 100, 255, 256, 257, 511, 512, 1000, 4097, 20000)


def multiply(earlier, later):
    """Return products. Of complex ones, NumPy does not round each real product on some processors."""
    if earlier.dtype.kind == "f":
        return earlier * later
    product = np.empty_like(earlier)
    product.real = earlier.real * later.real - earlier.imag * later.imag
    product.imag = earlier.real * later.imag + earlier.imag * later.real
    return product


def add(earlier, later):
    return earlier + later


OPERATORS = {"add": add, "multiply": multiply, "mixed": mixed, "affine": affine}
COMMUTE = ("add", "multiply")


def neighbours(op, x):
    """Return the combination along the last axis by the tree over neighbours, in plain NumPy."""
    while x.shape[-1] > 1:
        whole = x.shape[-1] // 2 * 2
        earlier, later = x[..., 0:whole:2], x[..., 1:whole:2]
        pairs = np.asarray(OPERATORS[op](earlier, later))
        x = np.concatenate([pairs, x[..., whole:]], axis=-1)
    return x[..., 0]


def expected(op, x):
    """Return the combination along the last axis by the grouping that grouping.py defines."""
    groups = x.shape[-1] // 256 if op in COMMUTE else 0
    nodes = []
    if groups:
        rows = x[..., : 256 * groups].reshape(*x.shape[:-1], groups, 8, 32)
        nodes.append(neighbours(op, neighbours(op, np.moveaxis(rows, -2, -1))))
    if x.shape[-1] > 256 * groups:
        nodes.append(neighbours(op, x[..., 256 * groups :])[..., None])
    return neighbours(op, np.concatenate(nodes, axis=-1))


def reduced(backend, op, x, **options):
    """Return the reduction of an array of NumPy; of pairs the second component."""
    options = {"axis": -1, **options}
    if op == "affine":
        given = (backend.asarray(x), backend.asarray(x / 2))
        return backend.to_numpy(parprims.reduce(given, "affine", **options)[1])
    operator = parprims.Operator(mixed, identity=0) if op == "mixed" else op
    return backend.to_numpy(parprims.reduce(backend.asarray(x), operator, **options))


@pytest.fixture(params=["kernel", "array"])
def by(request, backend):
    if request.param == "kernel" and not backend.cuda:
        require_kernels_for_cpus(backend)
    return request.param


@pytest.fixture
def lines(rng):
    """A function that returns a few lines of random numbers of an operator."""

    def draw(op, n, dtype, count=3):
        x = random(rng, (count, n), dtype)
        return (x if op == "add" else 1 + x / 64 if op == "multiply" else x / 64).astype(dtype)

    return draw


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("add", "float16"),
        ("add", "float64"),
        ("multiply", "float32"),
        ("multiply", "complex64"),
        ("mixed", "float32"),
        ("affine", "float64"),
    ],
)
class TestLaws:
    @pytest.fixture(autouse=True)
    def supported(self, backend, op, dtype):
        if not backend.supports(dtype):
            pytest.skip("has no such dtype")

    def test_a_line_is_alone_in_any_company(self, backend, lines, op, dtype, by):
        require_bits(backend, by, op, dtype)
        for n in LENGTHS:
            x = lines(op, n, dtype)
            alone = np.stack([reduced(backend, op, line.copy(), method=by) for line in x])
            np.testing.assert_array_equal(reduced(backend, op, x, method=by), alone)
            columns = np.ascontiguousarray(x.T)
            np.testing.assert_array_equal(reduced(backend, op, columns, axis=0, method=by), alone)
            np.testing.assert_array_equal(reduced(backend, op, np.repeat(x, 2, 1)[:, ::2], method=by), alone)
            wide = np.ascontiguousarray(np.tile(x, (12, 1)).T)
            np.testing.assert_array_equal(reduced(backend, op, wide, axis=0, method=by)[:3], alone)

    @pytest.mark.sanitize
    def test_a_segment_is_a_line(self, backend, lines, op, dtype, rng):
        kernel = by_kernel(backend)
        if kernel == "canonical" and backend.name.startswith("jax"):
            pytest.skip("compiles a program for every length")
        cuts = np.sort(rng.integers(0, 40001, 12))
        offsets = [0, *cuts.tolist(), 40000, 40000]
        (x,) = lines(op, 40000, dtype, 1)
        rows = np.ascontiguousarray(np.broadcast_to(x, (20, len(x))).T)
        found = reduced(backend, op, x, offsets=offsets, method=kernel)
        of_rows = reduced(backend, op, rows, axis=0, offsets=offsets, method=kernel)
        for at, (first, behind) in enumerate(itertools.pairwise(offsets)):
            if first < behind:
                alone = reduced(backend, op, x[first:behind], method=kernel)
                np.testing.assert_array_equal(found[at], alone)
                np.testing.assert_array_equal(of_rows[at], np.broadcast_to(alone, (20,)))

    def test_the_tree(self, backend, lines, op, dtype, by):
        require_bits(backend, by, op, dtype)
        for n in (*LENGTHS, 70001):
            x = lines(op, n, dtype)
            if op == "affine":
                tree = expected(op, np.stack([x, x / 2]))[1]
            else:
                tree = expected(op, x.astype("float32") if dtype == "float16" else x).astype(dtype)
            np.testing.assert_array_equal(reduced(backend, op, x, method=by), tree)

    def test_the_tree_whatever_the_blocks(self, backend, lines, op, dtype, monkeypatch):
        """Method array combines block by block, along one axis or several."""
        require_bits(backend, "array", op, dtype)
        monkeypatch.setattr(array, "SMALLEST_BLOCK", 4096)
        monkeypatch.setattr(array, "LARGEST_BLOCK", 4096)
        x = lines(op, 7 * 31 * 10, dtype, 2)
        whole = reduced(backend, op, x, method="array")
        for axis, order in (((1, 2, 3), (0, 1, 2, 3)), ((0, 1, 3), (1, 2, 0, 3)), ((0, 2, 3), (1, 0, 2, 3))):
            moved = np.ascontiguousarray(x.reshape(2, 7, 31, 10).transpose(order))
            np.testing.assert_array_equal(reduced(backend, op, moved, axis=axis, method="array"), whole)
            moved = np.asfortranarray(moved)
            np.testing.assert_array_equal(reduced(backend, op, moved, axis=axis, method="array"), whole)


def test_products_of_vectors_are_sums(backend, lines, by):
    require_bits(backend, by, "vecdot", "float32")
    for n in LENGTHS:
        x, y = lines("add", n, "float32"), lines("add", n, "float32")
        found = parprims.vecdot(backend.asarray(x), backend.asarray(y), method=by)
        np.testing.assert_array_equal(backend.to_numpy(found), expected("add", x * y))


def test_errors_grow_with_the_logarithm(backend, rng, by):
    for shape in ((1 << 20,), (1 << 16, 20)):
        given = rng.random(shape, np.float32)
        found = backend.to_numpy(parprims.sum(backend.asarray(given), axis=0, method=by)).astype(np.float64)
        exact = given.sum(axis=0, dtype=np.float64)
        assert np.all(np.abs(found - exact) <= np.ceil(np.log2(len(given))) * 2.0**-24 * exact)


@pytest.mark.parametrize("state_bytes", [1, 4, 8, 12, 16, 40, 200, 4096])
def test_blocks_are_nodes_of_the_tree(state_bytes):
    block = block_elements(state_bytes)
    assert block >= 256
    assert block & (block - 1) == 0
    assert block == 256 or block * state_bytes <= 4 * LARGEST_BLOCK


def test_long_and_empty_segments_by_offsets(backend, rng):
    """Segments of several nodes, of more nodes than a warp has lanes, of one element, and of none."""
    kernel = by_kernel(backend)
    offsets = [0, 0, 1, 70_000, 70_000, 72_048, 72_100, 170_000]
    x = random(rng, (2, offsets[-1]), "float32")
    for given in ({}, {"initial": 0.5}):
        options = {"axis": 1, "method": kernel, **given}
        found = backend.to_numpy(parprims.reduce(backend.asarray(x), "add", offsets=offsets, **options))
        for at, (first, behind) in enumerate(itertools.pairwise(offsets)):
            alone = parprims.reduce(backend.asarray(x[:, first:behind].copy()), "add", **options)
            np.testing.assert_array_equal(found[:, at], backend.to_numpy(alone))


def test_elements_of_a_segment_are_a_line(backend, rng):
    """Segments by ids, in any order; an element without a segment counts in none."""
    kernel = "canonical"
    if backend.name == "array-api-strict":
        pytest.skip("has no kernels")
    pytest.importorskip("numba")
    x, ids = random(rng, (9000,), "float32"), rng.integers(-1, 4, 9000).astype(np.int32)
    for order in (np.arange(9000), np.argsort(ids, kind="stable")):
        given = backend.asarray(x[order]), backend.asarray(ids[order])
        with parprims.explain() as calls:
            found = backend.to_numpy(parprims.segment_reduce(*given, 5, method=kernel))
        assert (calls[0].method, calls[0].canonical) == ("kernel", True)
        for segment in range(5):
            alone = parprims.sum(backend.asarray(x[ids == segment]), method=kernel)
            np.testing.assert_array_equal(found[segment], backend.to_numpy(alone))
