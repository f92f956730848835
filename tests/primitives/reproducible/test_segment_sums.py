"""Sums of segments with the same bits everywhere: those of each segment alone."""

import itertools

import numpy as np
import pytest

import parprims
from tests.primitives.reproducible.test_reproducible_sums import (
    EVERYWHERE,
    METHODS,
    agree,
    arrays,
    dtype_of,
    left_out,  # noqa: F401
    reference,
    terms,
)

KINDS = ("wide", "tiny", "huge", "cancelling", "both", "nan")


def lines(kind, name, n, rng):
    """Return terms of which each third has other magnitudes."""
    parts = [terms(one, name, n, rng) for one in (kind, "normal", "zeros")]
    return np.concatenate([parts[0][: n // 3], parts[1][: n // 3], parts[2][: n - 2 * (n // 3)]])


@pytest.mark.optimised
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [7, 500])
def test_by_offsets(backend, run, rng, kind, name, n, by):
    x = lines(kind, name, n, rng)
    offsets = [0, 0, n // 3, n // 2, n - 1, n, n]
    got = run(parprims.reduce, arrays(backend, x), offsets=offsets, method=by, **EVERYWHERE)
    expected = [reference(x[begin:end], name) for begin, end in itertools.pairwise(offsets)]
    agree(backend.to_numpy(got), np.asarray(expected, dtype_of(name)))


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("in_order", [False, True])
def test_by_ids(backend, run, rng, kind, name, axis, in_order, by):
    """In any order of the elements, and with ids outside of the segments."""
    x, ids = np.stack([lines(kind, name, 60, rng), lines("wide", name, 60, rng)], 1 - axis), rng.integers(-1, 6, 60)
    if in_order:
        ids = np.sort(ids)
    options = {"axis": axis, "indices_are_sorted": in_order, "method": by, **EVERYWHERE}
    got = run(parprims.segment_reduce, arrays(backend, x), backend.asarray(ids), 5, **options)
    rows = np.moveaxis(x, axis, 1)
    expected = [[reference(row[ids == segment], name) for segment in range(5)] for row in rows]
    agree(backend.to_numpy(got), np.moveaxis(np.asarray(expected, name), 1, axis))


def test_narrower_result_and_integers(backend, rng):
    if not backend.supports("float16"):
        pytest.skip("the library lacks the dtype")
    x, ids = terms("normal", "float32", 30, rng), backend.asarray(np.zeros(30, np.int64))
    got = parprims.segment_reduce(backend.asarray(x), ids, 1, dtype=backend.dtype("float16"), **EVERYWHERE)
    whole = parprims.sum(backend.asarray(x), dtype=backend.dtype("float16"), **EVERYWHERE)
    agree(backend.to_numpy(got)[0], backend.to_numpy(whole))
    counts = parprims.segment_reduce(backend.asarray(np.arange(30)), ids, 1, **EVERYWHERE)
    assert backend.to_numpy(counts).tolist() == [435]


def test_wrong(backend):
    x, ids = backend.asarray(np.ones(3, np.float32)), backend.asarray(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="reproducible must be None with op maximum"):
        parprims.segment_reduce(x, ids, 1, "maximum", **EVERYWHERE)
    with pytest.raises(ValueError, match="reproducible must be None with initial"):
        parprims.segment_reduce(x, ids, 1, initial=1.0, **EVERYWHERE)
    with pytest.raises(ValueError, match="reproducible must be None or 'everywhere', got 'no'"):
        parprims.reduce(x, offsets=[0, 3], reproducible="no")
    with pytest.raises(ValueError, match="offsets must ascend"):
        parprims.reduce(x, offsets=[0, 2, 1, 3], **EVERYWHERE)
