"""Sums and products of integers and masks, and casts that would drop what elements hold: right, or refused."""

import functools
import itertools

import numpy as np
import pytest

import parprims

METHODS = ("auto", "kernel", "native", "array")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
OFFSETS, IDS = (0, 2, 2, 5), (0, 0, 2, 2, 2)


def _by_segments(combine, x):
    return np.asarray([combine(x[:2]), combine(x[:0]), combine(x[2:])])


def _scanned(accumulate, x):
    return np.concatenate([accumulate(x[:2]), accumulate(x[2:])])


FUNCTIONS = {
    "sum": (lambda _, x, **o: parprims.sum(x, **o), np.add.reduce),
    "prod": (lambda _, x, **o: parprims.prod(x, **o), np.multiply.reduce),
    "cumulative_sum": (lambda _, x, **o: parprims.cumulative_sum(x, **o), np.add.accumulate),
    "cumulative_prod": (lambda _, x, **o: parprims.cumulative_prod(x, **o), np.multiply.accumulate),
    "reduce": (lambda _, x, **o: parprims.reduce(x, **o), np.add.reduce),
    "scan": (lambda _, x, **o: parprims.scan(x, **o), np.add.accumulate),
    "map_reduce": (lambda _, x, **o: parprims.map_reduce(lambda one: one, x, op="add", **o), np.add.reduce),
    "reduce by offsets": (
        lambda b, x, **o: parprims.reduce(x, offsets=b.asarray(np.array(OFFSETS)), **o),
        functools.partial(_by_segments, np.add.reduce),
    ),
    "scan by offsets": (
        lambda b, x, **o: parprims.scan(x, offsets=b.asarray(np.array(OFFSETS)), **o),
        functools.partial(_scanned, np.add.accumulate),
    ),
    "segment_reduce": (
        lambda b, x, **o: parprims.segment_reduce(x, b.asarray(np.array(IDS)), 3, **o),
        functools.partial(_by_segments, np.add.reduce),
    ),
    "segment_reduce, products": (
        lambda b, x, **o: parprims.segment_reduce(x, b.asarray(np.array(IDS)), 3, "multiply", **o),
        functools.partial(_by_segments, np.multiply.reduce),
    ),
}


def call(function, backend, x, **options):
    """Return the result as NumPy's, or None where the method refuses the call."""
    try:
        return backend.to_numpy(function(backend, backend.asarray(x), **options))
    except parprims.MethodRefused:
        assert options["method"] != "auto"
        return None


def left_out(_test, given):
    """Return the sentence why a case is not tested, or nothing."""
    if (given["backend"], given.get("by")) == ("array-api-strict", "kernel"):
        return "no compiler of kernels takes these arrays"
    return ""


def default_bits(backend):
    return 32 if backend.name.startswith("jax") and not backend.supports("int64") else 64


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("given", UNSIGNED)
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("asked", [None, "the same", "the default"])
def test_unsigned_integers_stay_unsigned(backend, name, given, by, asked):
    if not backend.supports(given):
        pytest.skip(f"{backend.name} has no {given}")
    function, reference = FUNCTIONS[name]
    most, bits = np.iinfo(given).max, default_bits(backend)
    x = np.array([most, most - 1, 3, 2, most], given)
    dtype = {None: None, "the same": given, "the default": f"uint{bits}"}[asked]
    found = call(function, backend, x, method=by, dtype=dtype)
    if found is None:
        return
    wide = np.dtype(dtype or f"uint{max(bits, x.dtype.itemsize * 8)}")
    assert found.dtype == wide
    with np.errstate(over="ignore"):
        expected = reference(x.astype(wide)).astype(wide)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_elements_take_no_real_dtype(backend, name):
    function, _ = FUNCTIONS[name]
    x = np.array([1 + 1j, 2, 3, 4j, 5], np.complex64)
    for dtype, method in itertools.product(("float32", "int32", "bool"), METHODS):
        with pytest.raises(
            (TypeError, parprims.MethodRefused), match=r"dtype must be complex.*xp\.real|refused"
        ) as info:
            function(backend, backend.asarray(x), dtype=dtype, method=method)
        without = method == "kernel" and not backend.kernels  # which refuses before it evaluates a map
        assert info.type is TypeError or without, (method, info.value)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("given", ["int8", "bool"])
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("asked", ["int32", "int16", "float32"])
def test_counters_and_masks(backend, name, given, by, asked):
    """Narrow integers and masks are cast before they are combined, so nothing overflows on the way."""
    function, reference = FUNCTIONS[name]
    x = np.array([100, 120, -7, 0, 90]).astype(given)
    found = call(function, backend, x, method=by, dtype=asked)
    if found is not None:
        assert found.dtype == asked
        np.testing.assert_array_equal(found, reference(x.astype(asked)).astype(asked))
