"""Laws of the bits of linear recurrences: a result depends on the elements up to its own, and on no other.

Kernels for CPUs and ``array`` keep them, and kernels for GPUs by method canonical.
"""

import itertools

import numpy as np
import pytest

import parprims
from parprims._cpu import threads
from tests.emulation import emulator
from tests.support.contract import random
from tests.support.laws import by_kernel, require_kernels_for_cpus
from tests.support.recurrences import in_blocks

LENGTHS = (1, 2, 7, 8, 9, 65, 100, 1000, 1041, 5000, 8192, 8193, 20000)
LONG = 2**17 + 8192 + 1500
"""Elements of a line that threads share."""
KINDS = ("decays", "slowly", "still", "turns", "in parts")


def coefficients(rng, kind, shape):
    """Return coefficients of a recurrence that decays, or not, or does so in parts."""
    a = rng.uniform(-1, 1, shape)
    if kind == "slowly":
        a = 0.97 + 0.01 * a
    elif kind == "still":
        a = 1 - 1e-5 * a
    elif kind == "turns":
        a = np.where(a > 0, 1, -1.0)
    elif kind == "in parts":
        n = shape[-1]
        a[..., n // 3 : n // 2], a[..., 2 * n // 3 :] = 1, 0.9
    return a


def solved(backend, a, b, **options):
    """Return the solution for arrays of NumPy."""
    if options.get("initial") is not None:
        options["initial"] = backend.asarray(np.asarray(options["initial"]))
    given = {"axis": -1, **options}
    return backend.to_numpy(parprims.linear_recurrence(backend.asarray(a), backend.asarray(b), **given))


@pytest.fixture(params=["kernel", "array"])
def by(request, backend):
    return by_kernel(backend) if request.param == "kernel" else request.param


@pytest.fixture
def draw(rng):
    """A function that returns coefficients and right-hand sides of a few lines."""

    def lines(kind, n, dtype, count=3):
        a, b = coefficients(rng, kind, (count, n)), random(rng, (count, n), dtype)
        if dtype.startswith("complex"):
            a = a * np.exp(1j * rng.uniform(0, 6, a.shape))
        return a.astype(dtype), b

    return lines


def require(backend, by, dtype):
    """Skip a test if the library lacks the dtype, or may round a product by its place in memory."""
    if not backend.supports(dtype):
        pytest.skip("has no such dtype")
    if by == "array" and dtype.startswith("complex"):
        pytest.skip("the library may round products of complex numbers once")


DTYPES = pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int32"])


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
class TestLaws:
    def test_a_line_is_alone_in_any_company(self, backend, draw, dtype, kind, by):
        require(backend, by, dtype)
        for n in LENGTHS:
            a, b = draw(kind, n, dtype, 5)
            for start in (None, b[:, 0] * 2):
                given = {"method": by, "initial": start}
                alone = np.stack(
                    [
                        solved(backend, a[i], b[i], method=by, initial=None if start is None else start[i])
                        for i in range(len(b))
                    ]
                )
                np.testing.assert_array_equal(solved(backend, a, b, **given), alone)
                columns = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
                np.testing.assert_array_equal(solved(backend, *columns, axis=0, **given).T, alone)
                apart = np.repeat(a, 2, 1)[:, ::2], np.repeat(b, 2, 1)[:, ::2]
                np.testing.assert_array_equal(solved(backend, *apart, **given), alone)
                back = solved(backend, a[:, ::-1], b[:, ::-1], reverse=True, **given)
                np.testing.assert_array_equal(back[:, ::-1], alone)

    def test_a_segment_is_a_line(self, backend, draw, dtype, kind, rng):
        kernel = by_kernel(backend)
        require(backend, "kernel", dtype)
        if kernel == "canonical" and backend.name.startswith("jax"):
            pytest.skip("compiles a program for every length")
        cuts = np.sort(rng.integers(0, 30001, 5))
        offsets = [0, *cuts.tolist(), 30000, 30000]
        a, b = draw(kind, 30000, dtype, 2)
        start = b[:, : len(offsets) - 1] * 2
        for given in ({}, {"initial": start}):
            found = solved(backend, a, b, offsets=offsets, method=kernel, **given)
            for at, (first, behind) in enumerate(itertools.pairwise(offsets)):
                if first < behind:
                    own = {"initial": start[:, at]} if given else {}
                    alone = solved(backend, a[:, first:behind], b[:, first:behind], method=kernel, **own)
                    np.testing.assert_array_equal(found[:, first:behind], alone)

    def test_a_prefix_does_not_see_what_follows(self, backend, draw, dtype, kind, rng, by):
        require(backend, by, dtype)
        a, b = draw(kind, 20000, dtype)
        whole = solved(backend, a, b, method=by)
        for n in (*LENGTHS, int(rng.integers(1, 20000))):
            np.testing.assert_array_equal(solved(backend, a[:, :n], b[:, :n], method=by), whole[:, :n])

    def test_a_line_goes_on_from_its_state(self, backend, draw, dtype, kind, by):
        require(backend, by, dtype)
        if dtype == "float16":
            pytest.skip("a result is its state rounded")
        a, b = draw(kind, 3 * 8192 + 100, dtype)
        for start in (None, b[:, 0] * 2):
            whole = solved(backend, a, b, method=by, initial=start)
            for cut in (8192, 2 * 8192):
                rest = solved(backend, a[:, cut:], b[:, cut:], initial=whole[:, cut - 1], method=by)
                np.testing.assert_array_equal(rest, whole[:, cut:])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [False, True])
def test_a_long_line_is_alone_in_any_company(backend, draw, monkeypatch, dtype, kind, known):
    """Kernels have the grouping of recurrence_loops.py, also where threads share a line."""
    require_kernels_for_cpus(backend)
    require(backend, "kernel", dtype)
    a, b = draw(kind, LONG, dtype, 4)
    start = b[:, 7] if known else None
    expected = in_blocks(a, b, start)
    emulator.forget(monkeypatch)
    for count in (1, 3):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        given = {"method": "kernel", "initial": start}
        np.testing.assert_array_equal(solved(backend, a, b, **given), expected)
        columns = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
        np.testing.assert_array_equal(solved(backend, *columns, axis=0, **given).T, expected)
        for n in (LONG, LONG - 1, 2**17 - 1):
            one = {"method": "kernel", "initial": start[1] if known else None}
            np.testing.assert_array_equal(solved(backend, a[1, :n], b[1, :n], **one), expected[1, :n])


def test_recurrences_of_vectors(backend, rng, by):
    if by == "array" and backend.name.startswith("jax"):
        pytest.skip("XLA may round a b + c once")
    n = 8192 + 700
    a, b = random(rng, (3, n, 2, 2), "float64") / 3, random(rng, (3, n, 2), "float64")
    given = {"method": by, "matrices": True}
    whole = solved(backend, a, b, **given)
    np.testing.assert_array_equal(solved(backend, a[1], b[1], **given), whole[1])
    moved = np.ascontiguousarray(np.moveaxis(a, 0, 1)), np.ascontiguousarray(np.moveaxis(b, 0, 1))
    np.testing.assert_array_equal(np.moveaxis(solved(backend, *moved, **{**given, "axis": 0}), 0, 1), whole)
    for m in (1, 40, 1000):
        np.testing.assert_array_equal(solved(backend, a[:, :m], b[:, :m], **given), whole[:, :m])
    rest = solved(backend, a[:, 8192:], b[:, 8192:], initial=whole[:, 8191], **given)
    np.testing.assert_array_equal(rest, whole[:, 8192:])
