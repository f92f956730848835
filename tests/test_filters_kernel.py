"""Filters by kernels for GPUs, against loops, where samples meet the edges of threads, tiles and groups of tiles."""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims import _filters_kernel
from tests import emulator
from tests.contract import random
from tests.test_filters import FILTERS, NEAR, bound, check, loop, scipy

TILE = 64 * 4
"""Samples of a tile of the fixture below."""


@pytest.fixture
def tuned(monkeypatch):
    """Changes how lines are divided."""

    def change(**sizes):
        emulator.forget(monkeypatch)
        tuning = dataclasses.replace(_filters_kernel.TUNING[90], **sizes)
        monkeypatch.setitem(_filters_kernel.TUNING, 90, tuning)

    return change


@pytest.fixture
def small(gpu, tuned):
    """A GPU on which several blocks share a line of a thousand samples."""
    tiles = {"few": _filters_kernel.Tile(64, 32, 0), "many": _filters_kernel.Tile(64, 16, 2), "tiles": 2}
    tuned(**tiles, chained_lines=5, inside=0, ahead_bytes=1)
    return gpu


def filtered_in_turn(sos, x, zi=None):
    """Return rows filtered by every section in higher precision, and their states after, (sections, rows, 2)."""
    y, states = x.T, []
    for at, row in enumerate(sos):
        y, z, _ = loop(row[:3], row[3:], y, np.zeros((2, 1)) if zi is None else zi[at].T)
        states.append(z.T)
    return y.T, np.stack(states)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["decay", "band", "low"])
def test_tiles_that_look_back(small, run, rng, name):
    """Lengths around the edges of a thread, a warp, a tile, and a group of 32 tiles and of several."""
    lengths = [1, 3, 4, 127, 128, 129, TILE - 1, TILE, TILE + 1, 2 * TILE + 4, 33 * TILE + 8]
    for n in lengths if name == "band" else (TILE + 4, 70 * TILE - 4):
        check(small, run, "kernel", *FILTERS[name], random(rng, (n,), "float64"))


@pytest.mark.sanitize
@pytest.mark.parametrize("lines", [2, 7])
def test_lines_of_several_tiles(small, run, rng, lines):
    """Tiles that look back, and tiles that are chained, with states and without."""
    x, zi = random(rng, (lines, 5 * TILE + 12), "float64"), random(rng, (lines, 2), "float64")
    check(small, run, "kernel", *FILTERS["band"], x, zi=zi)
    check(small, run, "kernel", *FILTERS["band"], x)


@pytest.mark.sanitize
@pytest.mark.parametrize("inside", [0, 1000])
def test_short_lines(small, tuned, run, rng, inside):
    """Lines of a few lanes each, the last block not full, with tables made in the launch or before."""
    tuned(inside=inside)
    for shape in ((9, 13), (130, 16)):
        check(small, run, "kernel", *FILTERS["decay"], random(rng, shape, "float64"))


@pytest.mark.sanitize
def test_lines_that_are_not_aligned(small, run, rng):
    x = random(rng, (3, 1201), "float32")
    b, a = (small.asarray(np.array(one, np.float32)) for one in FILTERS["band"])
    found = run(parprims.lfilter, b, a, small.asarray(x)[:, 1:], method="kernel")
    y, _, largest = loop(*(np.array(one, np.float32) for one in FILTERS["band"]), x[:, 1:].T, np.zeros((2, 1)))
    assert abs(small.to_numpy(found) - y.T).max() <= 2.0**-23 * largest


@pytest.mark.sanitize
@pytest.mark.parametrize("sections", [1, 3, 6])
def test_cascades(small, run, rng, sections):
    """Of six sections, four are filtered by in one launch and two in another."""
    sos = np.stack([[0.5, 0.3 - at / 9, 0.1, 2.0, 0.3 * at - 1, 0.9 - at / 8] for at in range(sections)])
    x, zi = random(rng, (2, 3 * TILE + 2), "float64"), random(rng, (sections, 2, 2), "float64")
    expected = filtered_in_turn(sos, x, zi)
    found = run(parprims.sosfilt, *map(small.asarray, (sos, x)), zi=small.asarray(zi), method="kernel")
    for one, other in zip(found, expected, strict=True):
        assert abs(small.to_numpy(one) - other).max() <= 1e-13 * abs(other).max()


def test_dtypes_in_tiles(small, run, rng):
    """Complex numbers, whose poles are on any side, and 16 bits."""
    b, a = np.array([0.3, 0.2j]), np.poly([0.9j, 0.8j])
    check(small, run, "kernel", b, a, random(rng, (2, 2 * TILE + 2), "complex128"))
    check(small, run, "kernel", *FILTERS["band"], random(rng, (3 * TILE,), "float16"))


NEXT = np.array([0.999, 0.9985, 0.9993 + 1e-4j, 0.9993 - 1e-4j])
CLOSE = {
    "at one": NEXT,
    "at minus one": -NEXT,
    "on both sides": NEXT * [1, -1, 1, 1],
    "two by two": [0.9999, 0.9998, -0.9999, -0.9998],
    "narrow band": [radius * direction for radius in (0.9999, 0.9998) for direction in (1j, -1j)],
    "narrow low band": [
        0.9999 * np.exp(0.3j),
        0.9999 * np.exp(-0.3j),
        0.9998 * np.exp(0.3002j),
        0.9998 * np.exp(-0.3002j),
    ],
    "three": [0.999] * 3,
}


@pytest.mark.parametrize("poles", CLOSE)
def test_many_poles_next_to_each_other(small, run, rng, poles):
    """Poles within a thousandth of each other, in tiles whose powers of M would lose all digits."""
    b, a = np.array([1e-9]), np.real(np.poly(CLOSE[poles]))
    x = random(rng, (20 * TILE,), "float64")
    found = small.to_numpy(run(parprims.lfilter, *map(small.asarray, (b, a, x)), method="kernel"))
    y, _, largest = loop(b, a, x, np.zeros(len(a) - 1))
    serial = scipy().lfilter(b, a, x)
    assert abs(found - y).max() <= min(abs(serial - y).max(), bound(b, a, len(x), largest, "float64"))


def test_a_zero_next_to_poles(small, run, rng):
    """What removes a mean over a million samples: two poles next to a double zero at 1, in float32."""
    signal = scipy()
    b, a = (np.array(one, np.float32) for one in ([1.0, -2.0, 1.0], np.real(np.poly([NEAR, NEAR - 1e-5]))))
    x = random(rng, (20 * TILE,), "float32") + np.float32(100)
    expected = signal.lfilter(*(one.astype(np.float64) for one in (b, a, x)))
    found = run(parprims.lfilter, *map(small.asarray, (b, a, x)), method="kernel")
    assert abs(small.to_numpy(found) - expected).max() <= 2.0**-20 * abs(expected).max()


def test_powers_that_overflow(small, run):
    """A pole outside of the unit circle, where nothing comes in for long."""
    x = np.zeros(9 * TILE)
    x[-3:] = 1
    b, a = np.array([1.0]), np.array([1.0, -2.0])
    found = run(parprims.lfilter, *map(small.asarray, (b, a, x)), method="kernel")
    np.testing.assert_array_equal(small.to_numpy(found)[-5:], [0, 0, 1, 3, 7])
    assert not small.to_numpy(found)[:-3].any()


def test_not_finite_in_tiles(small, run, rng):
    """What is not finite changes nothing before it, and no other line."""
    x = random(rng, (2, 4 * TILE), "float64")
    b, a = (small.asarray(np.array(one)) for one in FILTERS["band"])
    clean = small.to_numpy(run(parprims.lfilter, b, a, small.asarray(x), method="kernel"))
    at = TILE + 77
    x[1, at] = np.nan
    found = small.to_numpy(run(parprims.lfilter, b, a, small.asarray(x), method="kernel"))
    np.testing.assert_array_equal(found[0], clean[0])
    np.testing.assert_array_equal(found[1, :at], clean[1, :at])
    assert not np.isfinite(found[1, at:]).any()


def test_the_same_bits(small, run, rng):
    """Whatever groups have arrived, and by whatever block."""
    x = small.asarray(random(rng, (80 * TILE,), "float64"))
    b, a = (small.asarray(np.array(one)) for one in FILTERS["low"])
    first, second = (small.to_numpy(run(parprims.lfilter, b, a, x, method="kernel")) for _ in range(2))
    assert first.tobytes() == second.tobytes()
