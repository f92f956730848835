"""Plans for GPUs: a guess of the largest magnitude from a sample, right and wrong, and lines that are not finite."""

import numpy as np
import pytest

import parprims
from parprims._primitives.reproducible import cuda
from parprims._primitives.reproducible.grid import MAGNITUDES, Grid
from tests.conftest import ON_GPU
from tests.primitives.reproducible.test_reproducible_sums import EVERYWHERE, agree, arrays, terms

PLACES = ("nowhere", "first", "between", "last", "ascending")


def left_out(_test, given):
    """Return the sentence why a case is not tested, or nothing."""
    return "" if given.get("backend", ON_GPU[0]) in ON_GPU else "the plans are those of GPUs"


@pytest.fixture
def short_samples(monkeypatch, backend):
    """Let lines of 512 elements be sampled, and return the factor by which lines must be longer on a device."""
    if backend.name == "emulated":
        monkeypatch.setattr(cuda, "_SAMPLED", 1 << 9)
        return 1
    return 1 << 10


def with_outlier(x, place, value):
    """Return lines with a value that no sample has, one that every sample has, or with rising magnitudes."""
    x = x.copy()
    n = x.shape[-1]
    if place == "ascending":
        return np.sort(np.abs(x), axis=-1)
    at = {"first": 0, "between": n // 2 + 3, "last": n - 1}.get(place)
    if at is not None:
        x[-1, at] = value  # in one of the lines alone
    return x


def expected(x, **options):
    with np.errstate(all="ignore"):
        return parprims.sum(x, method="array", **options, **EVERYWHERE)


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [1e4, np.inf, np.nan])
@pytest.mark.parametrize(("lines", "n"), [(1, 517), (3, 1031), (70, 600)], ids=str)
@pytest.mark.parametrize("kind", ["normal", "wide", "tiny", "zeros"])
def test_guesses(backend, run, rng, short_samples, *, name, place, value, lines, n, kind):
    lines = lines if short_samples == 1 else min(lines, 5)
    x = with_outlier(terms(kind, name, lines * n * short_samples, rng).reshape(lines, -1), place, value)
    own = arrays(backend, x)
    got = run(parprims.sum, own, axis=1, method="kernel", **EVERYWHERE)
    agree(backend.to_numpy(got), expected(x, axis=1))
    y = terms("normal", name, x.shape[-1], rng)
    got = run(parprims.vecdot, own, arrays(backend, y), method="kernel", **EVERYWHERE)
    with np.errstate(all="ignore"):
        agree(backend.to_numpy(got), parprims.vecdot(x, y, method="array", **EVERYWHERE))


@pytest.mark.once
@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
@pytest.mark.parametrize("kind", ["normal", "wide", "tiny", "huge", "zeros"])
def test_a_sample_with_the_largest_magnitudes_guesses_right(rng, kind, name, product):
    """Wherever each array has its largest: then no line is added again, which takes as long as the sum itself."""
    working = "float64" if name == "float64" else "float32"
    kind_of_sum = cuda._Kind(Grid.of(working, 1000), (name,) * (1 + product), name)
    x = [terms(one, name, 64, rng) for one in (kind, "wide")][: 1 + product]
    found = [MAGNITUDES[8 * one.itemsize](one.view(f"i{one.itemsize}")) for one in x]
    with np.errstate(all="ignore"):
        of_sample = [one.min() for one in cuda._guesses(kind_of_sum)(*found)]
        mark, *_ = cuda._checks(kind_of_sum, True)(
            *map(np.asarray, of_sample), *[np.asarray(one.max()) for one in found]
        )
    assert len(of_sample) == kind_of_sum.guesses
    assert mark == 0


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
@pytest.mark.parametrize("value", [1e4, np.inf, np.nan])
@pytest.mark.parametrize("inner", [1, 2, 40])
def test_guesses_of_columns(backend, run, rng, short_samples, *, name, value, inner):
    x = terms("normal", name, 601 * short_samples * inner, rng).reshape(-1, inner)
    x[300 * short_samples + 17, 0] = value
    own = arrays(backend, x)
    for options in ({"axis": 0}, {"axis": 0, "keepdims": True}, {}):
        agree(
            backend.to_numpy(run(parprims.sum, own, method="kernel", **options, **EVERYWHERE)), expected(x, **options)
        )
    every_other = arrays(backend, np.repeat(x[:, 0], 2))[::2]
    agree(backend.to_numpy(run(parprims.sum, every_other, method="kernel", **EVERYWHERE)), expected(x[:, 0]))


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
@pytest.mark.parametrize(("shape", "axis"), [((5000,), 0), ((3, 700), 1), ((70, 33), 0), ((2, 65, 9), 1)], ids=str)
@pytest.mark.parametrize("include_initial", [False, True])
def test_running_sums_that_are_not_finite(backend, run, rng, *, name, value, shape, axis, include_initial):
    """One element of one line is not finite: lines before it, beside it and behind it are as without it."""
    for kind in ("normal", "tiny", "huge"):
        x = terms(kind, name, int(np.prod(shape)), rng).reshape(shape)
        x[(-1,) * (len(shape) - 1) + (shape[-1] // 2,) if axis == len(shape) - 1 else (0, shape[1] // 2)] = value
        options = {"axis": axis, "include_initial": include_initial, **EVERYWHERE}
        got = run(parprims.cumulative_sum, arrays(backend, x), method="kernel", **options)
        with np.errstate(all="ignore"):
            agree(backend.to_numpy(got), parprims.cumulative_sum(x, method="array", **options))
