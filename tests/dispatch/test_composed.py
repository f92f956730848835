"""Primitives that are made of others: one call to `explain`, remembered, refused as their parts are, transformed."""

import numpy as np
import pytest

import parprims
from parprims._dispatch import prepared
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared
from tests.support.contract import random

X = np.random.default_rng(3).standard_normal(64).astype(np.float32)
NAMES = (
    "argmax", "cumulative_max with indices", "top_k", "median", "merge", "unique", "reduce by offsets",
    "sort by offsets", "lfilter",
)  # fmt: skip


def called(name):
    """Return the example call of a primitive that is made of others, and the name that it is told by."""
    return declared[name].sampled(Sample(X.shape, fixed=True)), declared[name].name


@pytest.mark.parametrize("name", NAMES)
def test_one_call_is_told_and_remembered(backend, name):
    call, told = called(name)
    arrays = list(map(backend.asarray, call.arrays))
    with parprims.explain() as calls:
        results = [call(*arrays) for _ in range(3)]
    assert [one.primitive for one in calls] == [told] * 3
    assert len({(one.method, tuple(one.refusals.items())) for one in calls}) == 1
    for one in results[1:]:
        for found, expected in zip(*(y if isinstance(y, tuple) else (y,) for y in (one, results[0])), strict=True):
            np.testing.assert_array_equal(backend.to_numpy(found), backend.to_numpy(expected))


SHORT = (
    "cumulative_max with indices", "top_k", "median", "unique", "partition", "argpartition", "quantile",
    "run_lengths", "select", "partition_by", "histogram",
)  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_a_remembered_call_makes_no_other(backend, name, monkeypatch):
    """A short call takes less time than to find another one again."""
    if backend.name not in ("numpy", "torch", "jax"):
        pytest.skip("its parts are calls of other primitives")
    call, told = called(name)
    run = call.bound(*map(backend.asarray, call.arrays))
    for _ in range(3):
        run()
    found, get = [], prepared.prepared.get
    monkeypatch.setattr(prepared.prepared, "get", lambda key: found.append(get(key)) or found[-1])
    run()
    # Most calls do not even ask, for their doors know them, but for those with a tuple among their options.
    assert {one.call.primitive for one in found if one is not None} <= {told}
    assert len(found) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_methods_are_those_that_serve(backend, name):
    # JAX compiles a sort by array operations in a time that grows with the bits.
    few_bits = {"median": "float16", "top_k": "int8", "unique": "int8", "sort by offsets": "int8"}
    dtype = few_bits.get(name, X.dtype.name) if backend.name == "jax" else X.dtype.name
    call, told = declared[name].sampled(Sample(X.shape, dtype=dtype, fixed=True)), declared[name].name
    arrays = list(map(backend.asarray, call.arrays))
    listed = parprims.methods(call, *arrays)
    assert sorted(listed) == ["array", "kernel", "native"]
    assert listed["array"] is None
    with parprims.explain() as calls:
        call(*arrays)
    assert calls[0].method == next(method for method, reason in listed.items() if reason is None)
    for method, reason in listed.items():
        try:
            with parprims.explain() as calls:
                call(*arrays, method=method)
        except parprims.MethodRefused:
            assert reason is not None
            with pytest.raises(parprims.MethodRefused, match=f"^{told}: method '{method}' refused: "):
                call(*arrays, method=method)
        else:
            assert [(one.primitive, one.method) for one in calls] == [(told, method)]


def test_options_are_told_apart(backend):
    """Calls that differ in an option alone are not taken for each other."""
    x, offsets = backend.asarray(X), backend.asarray(np.array([0, 10, 10, 64]))
    for one, other in (
        (lambda: parprims.top_k(x, 2), lambda: parprims.top_k(x, 2, mode="smallest")),
        (lambda: parprims.quantile(x, 0.2), lambda: parprims.quantile(x, 0.9)),
        (lambda: parprims.argmax(x), lambda: parprims.argmin(x)),
        (
            lambda: parprims.reduce(x, offsets=offsets),
            lambda: parprims.reduce(x, "multiply", offsets=offsets),
        ),
    ):
        pairs = [[one(), other()] for _ in range(2)]
        flat = [[backend.to_numpy(y[0] if isinstance(y, tuple) else y) for y in pair] for pair in pairs]
        np.testing.assert_array_equal(flat[0], flat[1])
        assert (flat[0][0] != flat[0][1]).any()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("argmax", "unique")])
def test_torch_func(name, rng):
    """vmap, forward and backward derivatives by torch.func see through the parts."""
    torch = pytest.importorskip("torch")
    call = declared[name].sampled(Sample(X.shape, dtype="float64"))
    *others, last = map(torch.from_numpy, call.arrays)
    at = 0 if name.endswith(" by offsets") else -1
    x = torch.from_numpy(np.sort(random(rng, (3, 64), "float64"), axis=1))
    tangent = torch.from_numpy(random(rng, (3, 64), "float64"))

    def first(x):
        found = call(x, last) if at == 0 else call(*others, x)
        return found[0] if isinstance(found, tuple) else found

    rows = torch.func.vmap(first)(x)
    for row, expected in zip(rows, x, strict=True):
        torch.testing.assert_close(row, first(expected))
    y, forward = torch.func.jvp(first, (x[0],), (tangent[0],))
    g = torch.ones_like(y)
    (backward,) = torch.func.vjp(first, x[0])[1](g)
    torch.testing.assert_close((forward * g).sum(), (backward * tangent[0]).sum())
