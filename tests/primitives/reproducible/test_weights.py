"""Histograms with weights that have the same bits everywhere."""

import math

import numpy as np
import pytest

import parprims
from tests.primitives.reproducible.test_reproducible_sums import (
    EVERYWHERE,
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

KINDS = ("wide", "tiny", "huge", "cancelling", "both", "nan")


def sums(places, weights, name, bins):
    numbers = [float(one) for one in weights]
    finite = [one if math.isfinite(one) else 0.0 for one in numbers]
    working, exponent = "float64" if name == "float64" else "float32", exponent_of(finite, name)
    found = []
    for place in range(bins):
        inside = [at for at in range(len(numbers)) if places[at] == place]
        odd = sum(numbers[at] - finite[at] if math.isfinite(numbers[at]) else numbers[at] for at in inside)
        total = sum(on_grid(Fraction(finite[at]), working, len(numbers), exponent) for at in inside)
        found.append(nearest(total, name) if odd == 0.0 else odd)
    return np.asarray(found, dtype_of(name))


@pytest.mark.optimised
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["even", "range", "edges"])
def test_equals_whole_numbers(backend, run, rng, kind, name, given, by):
    places, weights = rng.integers(0, 4, 200), terms(kind, name, 200, rng)
    places[:2] = 0, 3
    x = (places + 0.5).astype(np.float32)
    bins = {"even": 4, "range": 4, "edges": [0.0, 1.0, 2.0, 3.0, 4.0]}[given]
    options = {"range": (0.0, 4.0)} if given == "range" else {}
    options |= {"weights": arrays(backend, weights), "method": by, **EVERYWHERE}
    counts, edges = run(parprims.histogram, arrays(backend, x), bins, **options)
    agree(backend.to_numpy(counts), sums(places, weights, name, 4))
    assert edges.shape == (5,)


def test_counts_and_wrong(backend):
    x = backend.asarray(np.asarray([0.0, 1.0, 3.0], np.float32))
    assert backend.to_numpy(parprims.histogram(x, 3, **EVERYWHERE)[0]).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="reproducible must be None with density"):
        parprims.histogram(x, 3, density=True, weights=x, **EVERYWHERE)
