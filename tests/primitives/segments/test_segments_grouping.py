"""Laws of the bits of segments by array operations, which method canonical takes where there is no kernel."""

import itertools

import numpy as np
import pytest

import parprims
from parprims._dispatch.prepared import prepared
from tests.support.contract import compare, random
from tests.support.laws import affine, mixed, require_bits

OPERATORS = {
    "add": "add",
    "multiply": "multiply",
    "mixed": parprims.Operator(mixed, identity=0.0),
    "affine": parprims.Operator(affine, identity=(1.0, 0.0)),
}
CASES = pytest.mark.parametrize(
    ("op", "dtype"),
    [("add", "float16"), ("add", "float32"), ("multiply", "float64"), ("mixed", "float32"), ("affine", "float64")],
)
LAYOUTS = pytest.mark.parametrize(("before", "behind"), [((), ()), ((2,), (3,))])
FORMS = pytest.mark.parametrize(
    "form", [{}, {"reverse": True}, {"exclusive": True}, {"reverse": True, "exclusive": True}], ids=str
)


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch, backend):
    """Kernels refuse every call, so that method canonical takes array operations."""
    if backend.cuda:
        pytest.skip("has kernels that cannot be taken away")
    monkeypatch.setattr(prepared, "_found", {})
    monkeypatch.setattr(parprims._cpu, "refusal", lambda *_, **__: "kernels are taken away")


@pytest.fixture(autouse=True)
def supported(backend, request):
    given = request.node.callspec.params
    if "dtype" in given:
        require_bits(backend, "array", given["op"], given["dtype"])
    if "dtype" in given and not backend.supports(given["dtype"]):
        pytest.skip("has no such dtype")


def offsets_of(rng, n):
    """Return offsets with empty segments, a long one and short ones."""
    cuts = np.sort(rng.integers(0, n // 3, 4))
    return np.array([0, 0, 1, *(1 + cuts), n - 40, n - 7, n, n])


def lines(rng, op, shape, dtype):
    x = random(rng, shape, dtype)
    return (1 + x / 64 if op == "multiply" else x).astype(dtype)


def called(backend, function, op, x, *given, initial=None, **options):
    """Return the result of a call by method canonical in bits; of pairs the second component."""
    if op == "affine":
        x = (np.full_like(x, 0.5), x)
        initial = None if initial is None else (0 * initial, initial)

    def made(one):
        return tuple(map(backend.asarray, one)) if isinstance(one, tuple) else backend.asarray(one)

    if initial is not None:
        options["initial"] = made(initial)
    for name in ("offsets", "segment_ids"):
        if name in options:
            options[name] = backend.asarray(options[name])
    with parprims.explain() as calls:
        found = function(
            made(x),
            *[backend.asarray(x) if isinstance(x, np.ndarray) else x for x in given],
            **{"method": "canonical", "op": OPERATORS[op], **options},
        )
    assert (calls[0].method, calls[0].canonical) == ("array", True)
    return backend.to_numpy(found[1] if op == "affine" else found)


def line_of(x, axis, places):
    return np.ascontiguousarray(np.take(x, places, axis=axis))


@CASES
@LAYOUTS
class TestSegmentsAreLines:
    @FORMS
    @pytest.mark.parametrize("start", ["none", "one", "own"])
    @pytest.mark.parametrize("n", [60, 700, 20000])
    def test_scan_by_offsets(self, backend, rng, op, dtype, before, behind, n, form, start):
        if n == 20000 and (backend.name == "jax" or dtype == "float16"):
            n = 9000
        axis, offsets = len(before), offsets_of(rng, n)
        x = lines(rng, op, (*before, n, *behind), dtype)
        options, starts = {"axis": axis, **form}, None
        if start != "none":
            starts = lines(rng, op, (*before, *((len(offsets) - 1,) if start == "own" else ()), *behind), dtype)
        found = called(backend, parprims.scan, op, x, initial=starts, offsets=offsets, **options)
        for at, (first, end) in enumerate(itertools.pairwise(offsets)):
            if first < end:
                one = starts if start != "own" else np.take(starts, at, axis=axis)
                line = line_of(x, axis, range(first, end))
                alone = called(backend, parprims.scan, op, line, initial=one, **options)
                np.testing.assert_array_equal(np.take(found, range(first, end), axis=axis), alone)

    @pytest.mark.parametrize("start", ["none", "one"])
    @pytest.mark.parametrize("n", [60, 700, 20000])
    def test_reduce_by_offsets(self, backend, rng, op, dtype, before, behind, n, start):
        if n == 20000 and backend.name == "jax":
            n = 3000
        axis, offsets = len(before), offsets_of(rng, n)
        x = lines(rng, op, (*before, n, *behind), dtype)
        starts = None if start == "none" else lines(rng, op, (*before, *behind), dtype)
        options = {"axis": axis, "initial": starts}
        found = called(backend, parprims.reduce, op, x, offsets=offsets, **options)
        for at, (first, end) in enumerate(itertools.pairwise(offsets)):
            alone = called(backend, parprims.reduce, op, line_of(x, axis, range(first, end)), **options)
            np.testing.assert_array_equal(np.take(found, at, axis=axis), alone)

    def test_by_ids(self, backend, rng, op, dtype, before, behind):
        n, axis = 1500, len(before)
        ids = rng.integers(-1, 4, n).astype(np.int32)
        x = lines(rng, op, (*before, n, *behind), dtype)
        options = {"axis": axis}
        totals = called(backend, parprims.segment_reduce, op, x, ids, 5, **options)
        states = called(backend, parprims.scan, op, x, segment_ids=ids, num_segments=5, **options)
        for segment in range(5):
            line = line_of(x, axis, np.flatnonzero(ids == segment))
            alone = called(backend, parprims.reduce, op, line, **options)
            np.testing.assert_array_equal(np.take(totals, segment, axis=axis), alone)
            if line.size:
                alone = called(backend, parprims.scan, op, line, **options)
                np.testing.assert_array_equal(np.take(states, np.flatnonzero(ids == segment), axis=axis), alone)


def advance(earlier, later):
    """Compose affine maps of vectors, the earlier first."""
    (a, x), (b, y) = earlier, later
    return b @ a, (b @ x[..., None])[..., 0] + y


def test_matrices_and_vectors(backend, rng):
    if backend.name in ("jax", "array-api-strict"):
        pytest.skip("XLA may round a b + c once; array-api-strict lacks the index None behind an ellipsis")
    offsets = offsets_of(rng, 900)
    x = tuple(map(backend.asarray, (rng.uniform(-0.5, 0.5, (900, 2, 2)), rng.uniform(-1, 1, (900, 2)))))
    start = tuple(map(backend.asarray, (np.eye(2), np.zeros(2))))
    options = {"op": advance, "axis": 0, "method": "canonical"}
    found = parprims.scan(x, offsets=backend.asarray(offsets), **options)
    totals = parprims.reduce(x, offsets=backend.asarray(offsets), initial=start, **options)
    for at, (first, end) in enumerate(itertools.pairwise(map(int, offsets))):
        if first < end:
            line = tuple(one[first:end] for one in x)
            for one, alone in zip(found, parprims.scan(line, **options), strict=True):
                np.testing.assert_allclose(one[first:end], alone, rtol=1e-12, atol=1e-14)
            for one, alone in zip(totals, parprims.reduce(line, initial=start, **options), strict=True):
                np.testing.assert_allclose(one[at], alone, rtol=1e-12, atol=1e-14)


def test_in_a_program_of_jax(backend, rng):
    if backend.name != "jax":
        pytest.skip("is of JAX")
    import jax

    x, offsets = random(rng, (9000,), "float32"), np.array([0, 5, 8500, 8500, 9000])
    for function in (parprims.scan, parprims.reduce):
        call = jax.jit(lambda x, offsets, function=function: function(x, offsets=offsets, method="canonical"))
        expected = function(x, offsets=offsets, method="canonical")
        compare(backend, call(backend.asarray(x), backend.asarray(offsets)), expected)


@pytest.mark.parametrize("op", ["add", "mixed"])
def test_derivatives_are_those_of_array(backend, rng, op):
    if backend.name != "torch":
        pytest.skip("is of PyTorch")
    import torch

    offsets, given = [0, 0, 3, 50, 300], rng.standard_normal(300) / 8
    for function in (parprims.scan, parprims.reduce):
        gradients = []
        for method in ("canonical", "array"):
            x = torch.tensor(given, requires_grad=True)
            y = function(x, OPERATORS[op], offsets=offsets, method=method)
            (y * torch.arange(1, 1 + len(y))).sum().backward()
            gradients.append(x.grad)
        assert torch.allclose(*gradients, rtol=1e-9)
