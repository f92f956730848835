"""Method canonical: the methods that group elements by their places in their line alone, and what `explain` says."""

import json

import numpy as np
import pytest

import parprims
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared, examples
from tests.trust.laws import LAWS, RECORD, own
from tests.trust.laws import equal as equal_bits

EXAMPLES = examples(lambda: Sample((4, 300), dtype="float32"))
REFUSED = {
    "argpartition", "partition", "solve_banded", "solve_block_tridiagonal", "solve_tridiagonal",
}  # fmt: skip
"""Calls on floats whose methods share no canonical order on any device."""


def made(backend, example, **options):
    """Return the results of an example call on arrays of a library, as arrays of NumPy."""
    given = [backend.asarray(x) if isinstance(x, np.ndarray) else x for x in example.args]
    named = {name: backend.asarray(x) if isinstance(x, np.ndarray) else x for name, x in example.options.items()}
    result = example.function(*given, **named, **options)
    flat = []

    def collect(x):
        if isinstance(x, tuple | list):
            for one in x:
                collect(one)
        else:
            flat.append(backend.to_numpy(x))

    collect(result)
    return flat


def refuses_kernels(backend, example):
    """Return whether an example has no kernel that groups canonically: some kernels for GPUs group in tiles."""
    try:
        made(backend, example, method="kernel")
    except parprims.MethodRefused:
        return True
    in_tiles = not {"offsets", "segment_ids"} & {*example.options}
    return backend.cuda and in_tiles and any(x.dtype.kind == "f" for x in example.args if isinstance(x, np.ndarray))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_runs_or_says_why_not(backend, name):
    example = EXAMPLES[name]
    by_kernel_alone = name.startswith("linear_recurrence by ") or name in ("lfilter", "sosfilt")
    if name in REFUSED or (by_kernel_alone and refuses_kernels(backend, example)):
        with pytest.raises(
            parprims.MethodRefused, match=r"every method refused: .*; sums by reproducible='everywhere'"
        ):
            made(backend, example, method="canonical")
        return
    with parprims.explain() as calls:
        found = made(backend, example, method="canonical")
    assert all(call.canonical for call in calls), calls
    assert calls[0].method != "native" or name.endswith(" everywhere")
    again = made(backend, example, method="canonical")
    assert all(map(equal_bits, found, again))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_explain_says_what_every_method_does(backend, name):
    """A call by name is canonical if, and only if, method canonical may take the method."""
    example = EXAMPLES[name]
    reasons = None
    for method in ("kernel", "native", "array"):
        try:
            with parprims.explain() as calls:
                made(backend, example, method=method)
        except parprims.MethodRefused:
            continue
        if method == "native" and not name.endswith(" everywhere"):
            assert not calls[0].canonical
        if calls[0].canonical:
            reasons = reasons or parprims.methods(
                example.function,
                *[backend.asarray(x) if isinstance(x, np.ndarray) else x for x in example.args],
                **{k: backend.asarray(x) if isinstance(x, np.ndarray) else x for k, x in example.options.items()},
                method="canonical",
            )
            assert any(reason is None for reason in reasons.values())


@pytest.mark.parametrize(("operation", "words", "law"), LAWS, ids=lambda one: one if isinstance(one, str) else "")
def test_keeps_the_laws(backend, operation, words, law):
    by_order = words == "in any order of the terms"
    options = {"reproducible": "everywhere"} if by_order else {"method": "canonical"}
    if backend.name == "jax-cuda" and operation == "linear recurrence":
        pytest.skip("XLA may round a b + c once")
    call = own(backend.asarray, backend.to_numpy, **options)[operation]
    for n in (1, 33, 1000, 9001, 140001):
        try:
            assert law(call, np.random.default_rng(n), n), n
        except parprims.MethodRefused:
            assert operation == "matrix product"
            return


@pytest.mark.parametrize("operation", ["sum", "product of vectors", "running sum"])
def test_kernel_and_array_have_the_same_bits(backend, rng, operation):
    if backend.name.startswith("jax") and operation != "sum":
        pytest.skip("XLA may round a b + c once")
    calls = {way: own(backend.asarray, backend.to_numpy, method=way)[operation] for way in ("kernel", "array")}
    for n in (1, 31, 257, 8193, 140001):
        x = rng.standard_normal((2, n)).astype(np.float32)
        try:
            with parprims.explain() as done:
                by_kernel = calls["kernel"](x, -1)
        except parprims.MethodRefused:
            return
        if done[0].canonical:
            assert equal_bits(by_kernel, calls["array"](x, -1)), n


def test_several_devices_are_refused_by_name():
    dask = pytest.importorskip("dask.array")
    with pytest.raises(
        parprims.MethodRefused, match="sum: method 'canonical' refused: several devices hold the arrays"
    ):
        parprims.sum(dask.ones(100, chunks=10), method="canonical")


@pytest.mark.once
def test_every_declaration_says_what_its_methods_do():
    assert all(callable(one.methods.departs) for one in declared.values())
    assert parprims.CANONICAL_BLOCK == 8192


@pytest.mark.parametrize("operation", ["sum", "product of vectors", "running sum"])
def test_programs_of_jax_have_the_bits_of_numpy(backend, rng, operation):
    if backend.name != "jax":
        pytest.skip("is of JAX on CPUs")
    import jax

    x = rng.standard_normal((3, 20_001)).astype(np.float32)
    expected = own(np.asarray, np.asarray, method="canonical")[operation](x, -1)
    call = {
        "sum": lambda x: parprims.sum(x, axis=-1, method="canonical"),
        "product of vectors": lambda x: parprims.vecdot(x, x, method="canonical"),
        "running sum": lambda x: parprims.cumulative_sum(x, axis=-1, method="canonical"),
    }[operation]
    assert equal_bits(np.asarray(jax.jit(call)(x)), expected)
    assert equal_bits(np.asarray(jax.jit(jax.vmap(call))(x)), expected)


@pytest.mark.once
def test_the_page_has_these_laws():
    columns = json.loads(RECORD.read_text())["columns"]
    laws = [f"{operation}: {words}" for operation, words, _ in LAWS]
    assert all(list(column) == laws for column in columns.values())
    assert [law for law, holds in columns["`canonical`"].items() if not holds] == [
        f"{operation}: in any order of the terms" for operation in ("sum", "product of vectors")
    ]
