"""Primitives that are made of others: one call to `explain`, remembered, refused as their parts are, transformed."""

import numpy as np
import pytest

import parprims
from parprims._dispatch import dispatch
from tests.contract import random

X = np.random.default_rng(3).standard_normal(64).astype(np.float32)
OFFSETS = np.array([0, 10, 10, 64])
FILTER = np.array([0.2, 0.1], X.dtype), np.array([1.0, -0.5], X.dtype)

CALLS = {
    "argmax": lambda x, **m: parprims.argmax(x, **m),
    "cumulative_max": lambda x, **m: parprims.cumulative_max(x, return_indices=True, **m),
    "top_k": lambda x, **m: parprims.top_k(x, 3, **m),
    "median": lambda x, **m: parprims.median(x, **m),
    "merge": lambda x, **m: parprims.merge(x, x, **m),
    "unique": lambda x, **m: parprims.unique(x, size=64, **m),
    "reduce": lambda x, **m: parprims.reduce(x, offsets=like(x, OFFSETS), **m),
    "sort": lambda x, **m: parprims.sort(x, offsets=like(x, OFFSETS), **m),
    "lfilter": lambda x, **m: parprims.lfilter(*(like(x, one) for one in FILTER), x, **m),
}


def like(x, other):
    """Return an array of NumPy as one of the library of x, on its device."""
    from array_api_compat import array_namespace, device

    return array_namespace(x).asarray(other, device=device(x))


@pytest.mark.parametrize("name", CALLS)
def test_one_call_is_told_and_remembered(backend, name):
    x = backend.asarray(np.sort(X))
    with parprims.explain() as calls:
        results = [CALLS[name](x) for _ in range(3)]
    assert [call.primitive for call in calls] == [name] * 3
    assert len({(call.method, tuple(call.refusals.items())) for call in calls}) == 1
    for one in results[1:]:
        for found, expected in zip(*(y if isinstance(y, tuple) else (y,) for y in (one, results[0])), strict=True):
            np.testing.assert_array_equal(backend.to_numpy(found), backend.to_numpy(expected))


SHORT = {
    **{name: CALLS[name] for name in ("cumulative_max", "top_k", "median", "unique")},
    "partition": lambda x: parprims.partition(x, 3),
    "argpartition": lambda x: parprims.argpartition(x, 3),
    "quantile": lambda x: parprims.quantile(x, (0.1, 0.9)),
    "run_lengths": lambda x: parprims.run_lengths(x),
    "select": lambda x: parprims.select(x, x > 0),
    "partition_by": lambda x: parprims.partition_by(x, x > 0),
    "histogram": lambda x: parprims.histogram(x, 10),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_remembered_call_makes_no_other(backend, name, monkeypatch):
    """A short call takes less time than to find another one again."""
    if backend.name not in ("numpy", "torch", "jax"):
        pytest.skip("its parts are calls of other primitives")
    x = backend.asarray(X)
    for _ in range(3):
        SHORT[name](x)
    found, get = [], dispatch._prepared.get
    monkeypatch.setattr(dispatch._prepared, "get", lambda key: found.append(get(key)) or found[-1])
    SHORT[name](x)
    # Most calls do not even ask, for their doors know them, but for those with a tuple among their options.
    assert {one.call.primitive for one in found if one is not None} <= {name}
    assert len(found) <= 1


@pytest.mark.parametrize("name", CALLS)
def test_methods_are_those_that_serve(backend, name):
    # JAX compiles a sort by array operations in a time that grows with the bits; integers have no median.
    few_bits = {"median": "float16", "top_k": "int8", "unique": "int8", "sort": "int8"}
    dtype = few_bits.get(name, X.dtype) if backend.name == "jax" else X.dtype
    x = backend.asarray(np.sort(X).astype(dtype))
    listed = parprims.methods(CALLS[name], x)
    assert sorted(listed) == ["array", "kernel", "native"]
    assert listed["array"] is None
    with parprims.explain() as calls:
        CALLS[name](x)
    assert calls[0].method == next(method for method, reason in listed.items() if reason is None)
    for method, reason in listed.items():
        try:
            with parprims.explain() as calls:
                CALLS[name](x, method=method)
        except parprims.MethodRefused:
            assert reason is not None
            with pytest.raises(parprims.MethodRefused, match=f"^{name}: method '{method}' refused: "):
                CALLS[name](x, method=method)
        else:
            assert [(call.primitive, call.method) for call in calls] == [(name, method)]


def test_options_are_told_apart(backend):
    """Calls that differ in an option alone are not taken for each other."""
    x, offsets = backend.asarray(X), backend.asarray(OFFSETS)
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


@pytest.mark.parametrize("name", ["cumulative_max", "top_k", "median", "merge", "reduce", "sort", "lfilter"])
def test_torch_func(name, rng):
    """vmap, forward and backward derivatives by torch.func see through the parts."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(np.sort(random(rng, (3, 64), "float64"), axis=1))
    tangent = torch.from_numpy(random(rng, (3, 64), "float64"))

    def first(x):
        found = CALLS[name](x)
        return found[0] if isinstance(found, tuple) else found

    rows = torch.func.vmap(first)(x)
    for row, expected in zip(rows, x, strict=True):
        torch.testing.assert_close(row, first(expected))
    y, forward = torch.func.jvp(first, (x[0],), (tangent[0],))
    g = torch.ones_like(y)
    (backward,) = torch.func.vjp(first, x[0])[1](g)
    torch.testing.assert_close((forward * g).sum(), (backward * tangent[0]).sum())
