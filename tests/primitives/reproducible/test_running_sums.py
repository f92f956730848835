"""Running sums with the same bits everywhere: equal to a reference in whole numbers."""

import math

import numpy as np
import pytest

import parprims
from tests.primitives.reproducible.test_reproducible_sums import (
    EVERYWHERE,
    KINDS,
    METHODS,
    Fraction,
    agree,
    arrays,
    dtype_of,
    exponent_of,
    left_out,  # noqa: F401
    nearest,
    on_grid,
    terms,
)


def reference(x, name):
    """Return the running sums of numbers of a dtype. The grid is of the largest finite magnitude of the whole line."""
    numbers = [float(one) for one in x]
    finite = [one if math.isfinite(one) else 0.0 for one in numbers]
    working, exponent = "float64" if name == "float64" else "float32", exponent_of(finite, name)
    total, odd, sums = Fraction(0), 0.0, []
    for one, inside in zip(numbers, finite, strict=True):
        total += on_grid(Fraction(inside), working, len(x), exponent)
        odd += 0.0 if math.isfinite(one) else one
        sums.append(nearest(total, name) if odd == 0.0 else odd)
    return np.asarray(sums, dtype_of(name))


@pytest.mark.optimised
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_equals_whole_numbers(backend, run, rng, kind, name, n, by):
    x = terms(kind, name, n, rng)
    got = run(parprims.cumulative_sum, arrays(backend, x), method=by, **EVERYWHERE)
    agree(backend.to_numpy(got), reference(x, name))


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 3000])
@pytest.mark.parametrize("include_initial", [False, True])
def test_company(backend, run, rng, name, n, include_initial, by):
    """A line has the same sums alone, as a row and as a column; the last of them is the sum of the line."""
    x = terms("wide", name, n, rng)
    options = {"include_initial": include_initial, "method": by, **EVERYWHERE}
    alone = backend.to_numpy(run(parprims.cumulative_sum, arrays(backend, x), **options))
    expected = parprims.cumulative_sum(x, method="array", include_initial=include_initial, **EVERYWHERE)
    agree(alone, expected)
    agree(alone[-1], parprims.sum(x, method="array", **EVERYWHERE))
    batch = np.stack([terms("huge", name, n, rng), x])
    agree(backend.to_numpy(run(parprims.cumulative_sum, arrays(backend, batch), axis=1, **options))[1], expected)
    columns = np.ascontiguousarray(batch.T)
    agree(backend.to_numpy(run(parprims.cumulative_sum, arrays(backend, columns), axis=0, **options))[:, 1], expected)


@pytest.mark.parametrize("include_initial", [False, True])
def test_empty_and_integers(backend, rng, include_initial):
    options = {"include_initial": include_initial, **EVERYWHERE}
    got = parprims.cumulative_sum(backend.asarray(np.zeros((0, 2), np.float32)), axis=0, **options)
    agree(backend.to_numpy(got), np.zeros((int(include_initial), 2), np.float32))
    x = rng.integers(0, 9, 20)
    whole = backend.to_numpy(parprims.cumulative_sum(backend.asarray(x), **options))
    assert whole[int(include_initial) :].tolist() == np.cumsum(x).tolist()


def test_prefixes_share_a_grid(backend, rng):
    """A prefix has the same sums if the largest magnitude is in it, and the line has at most 2^20 elements."""
    x = terms("normal", "float32", 1000, rng)
    x[3] = 100.0
    whole, part = (parprims.cumulative_sum(backend.asarray(one), **EVERYWHERE) for one in (x, x[:500]))
    agree(backend.to_numpy(part), backend.to_numpy(whole)[:500])
