"""Filters by kernels for GPUs, against loops, where samples meet the edges of threads, tiles and groups of tiles."""

import dataclasses
import functools

import numpy as np
import pytest

import parprims
from parprims import _cuda
from parprims._primitives.filters import cuda as filters_cuda
from tests.emulation import emulator
from tests.primitives.filters.test_filters import FILTERS, NEAR, bound, check, loop, scipy, wide
from tests.support.contract import random

TILE = 64 * 4
"""Samples of a tile of the fixture below."""


@pytest.fixture
def tuned(monkeypatch):
    """Changes how lines are divided."""

    def change(**sizes):
        emulator.forget(monkeypatch)
        tuning = dataclasses.replace(filters_cuda.TUNING[90], **sizes)
        monkeypatch.setitem(filters_cuda.TUNING, 90, tuning)

    return change


@pytest.fixture
def small(gpu, tuned):
    """A GPU on which several blocks share a line of a thousand samples."""
    tiles = {"few": filters_cuda.Tile(64, 32, 0), "many": filters_cuda.Tile(64, 16, 2), "tiles": 2}
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
@pytest.mark.parametrize("shape", [(2, 3 * TILE + 2), (2, 3 * TILE + 1), (130, 4), (40, 40), (7, TILE - 2)])
@pytest.mark.parametrize("inside", [0, 1000])
def test_cascades(small, tuned, run, rng, sections, shape, inside):
    """Of six sections, four are filtered by in one launch and two in another, in lines that are aligned and not."""
    tuned(inside=inside, many=filters_cuda.Tile(64, 32, 2))
    sos = np.stack([[0.5, 0.3 - at / 9, 0.1, 2.0, 0.3 * at - 1, 0.9 - at / 8] for at in range(sections)])
    x, zi = random(rng, shape, "float64"), random(rng, (sections, shape[0], 2), "float64")
    expected = filtered_in_turn(sos, x, zi)
    given = tuple(map(small.asarray, (sos, x)))
    found = run(parprims.sosfilt, *given, zi=small.asarray(zi), method="kernel")
    without = run(parprims.sosfilt, *given, method="kernel"), filtered_in_turn(sos, x)[0]
    for one, other in (*zip(found, expected, strict=True), without):
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


# ---- Designs of every order, within a multiple of SciPy's error ------------------------------------------------


def circle(*angles, radius=1.0):
    """Return pairs of poles at these angles."""
    return [radius * np.exp(sign * 1j * angle) for angle in angles for sign in (1, -1)]


def comb(period, gain):
    return np.r_[1.0, np.zeros(period - 1), -1.0], np.r_[1.0, np.zeros(period - 1), -gain]


def cascade(*parts):
    """Return the filters one after another, as one."""
    return tuple(functools.reduce(np.convolve, (part[at] for part in parts)) for at in (0, 1))


DESIGNS = {
    "butter of 1": lambda: scipy().butter(1, 0.02),
    "butter of 2": lambda: scipy().butter(2, 0.02),
    "butter of 3": lambda: scipy().butter(3, 0.02, "high"),
    "butter of 4": lambda: scipy().butter(4, 0.02),
    "notch": lambda: scipy().iirnotch(0.01, 30),
    "a sum": lambda: ([1.0], [1.0, -1.0]),
    "a sum of sums": lambda: ([1.0], [1.0, -2.0, 1.0]),
    "two on the circle": lambda: ([1.0], np.real(np.poly(circle(0.5)))),
    "four on the circle": lambda: ([1.0, 0.5], np.real(np.poly(circle(0.5, 2.5)))),
    "a pair twice": lambda: ([1.0], np.real(np.poly(circle(*[0.3] * 2, radius=0.999)))),
    "delays of 3": lambda: ([0.0, 0.0, 1.0, 0.5], [1.0]),
    "one growing": lambda: ([1.0], [1.0, -1.001]),
    "one of 4 growing": lambda: ([1.0, 0.5], np.poly([1.001, 0.9, 0.5, -0.3])),
    "complex, of 1": lambda: ([1.0, 0.5j], [1.0, -0.999 * np.exp(0.5j)]),
    "complex, of 2 on the circle": lambda: ([1.0], np.poly(np.exp([0.5j, 0.51j]))),
    "complex, of 3 growing": lambda: ([1.0, 0.5j], np.poly([1.001 * np.exp(0.5j), 0.9j, -0.5])),
    "complex, of 4": lambda: ([1.0, 0.5j], np.poly(np.exp([0.5j, 0.5j, 1j, 0]) * [0.99, 0.98, 0.999, -0.5])),
    "butter, low": lambda: scipy().butter(6, 0.02),
    "butter, high": lambda: scipy().butter(7, 0.3, "high"),
    "butter of 10": lambda: scipy().butter(10, 0.1),
    "butter of 12": lambda: scipy().butter(12, 0.1),
    "butter of 16": lambda: scipy().butter(16, 0.3),
    "butter of 24": lambda: scipy().butter(24, 0.5),
    "wide band": lambda: scipy().butter(4, (0.004, 0.3), "band"),
    "narrow band": lambda: scipy().butter(3, (0.2, 0.21), "band"),
    "stop": lambda: scipy().butter(5, (0.4, 0.6), "stop"),
    "EEG": lambda: scipy().butter(4, (0.5, 40), "band", fs=250),
    "cheby1": lambda: scipy().cheby1(8, 0.05, 0.08),
    "cheby1 of 5": lambda: scipy().cheby1(5, 1, 0.3),
    "cheby2": lambda: scipy().cheby2(8, 40, 0.2),
    "ellip": lambda: scipy().ellip(6, 0.1, 60, 0.05),
    "ellip of 9": lambda: scipy().ellip(9, 0.1, 60, 0.4),
    "bessel": lambda: scipy().bessel(7, 0.05),
    "notches": lambda: cascade(*(scipy().iirnotch(at, 30) for at in (0.1, 0.24, 0.4))),
    "comb": lambda: comb(12, 0.95),
    "delays": lambda: ([1.0, *[0.0] * 8, 0.5], [1.0]),
    "sums": lambda: ([0.1] * 6, np.poly([1.0, 1.0, 1.0, -0.2, 0.1])),
    "a comb of sums": lambda: ([1.0], comb(12, 1.0)[1]),
    "on the circle": lambda: ([0.1] * 7, np.real(np.poly([*circle(0.3, 0.31), 0.3, 0.2]))),
    "near the circle": lambda: ([1e-6] * 6, np.poly([NEAR, 2 * NEAR - 1, 0.5, 0.3, 0.2])),
    "pairs near the circle": lambda: ([1e-6], np.real(np.poly(circle(0.5, 1, 2, 2.5, radius=0.9999)))),
    "a pair four times": lambda: ([1.0], np.real(np.poly(circle(*[0.3] * 4, radius=0.97)))),
    "growing": lambda: ([0.1] * 6, np.real(np.poly([*circle(0.3, radius=1.001), 0.5, 0.3, 0.2]))),
    "growing soon": lambda: ([0.1] * 6, np.poly([1.005, 0.5, 0.3, 0.2, -0.9])),
    "complex": lambda: ([0.3, 0.1j], np.poly([0.99j, 0.98j, 0.97j, -0.5, 0.3 - 0.8j])),
    "complex, at 1j": lambda: ([1.0], np.poly([1j, 0.98j, 0.3, -0.5, 0.3 - 0.8j, 0.9])),
    "complex, of 16": lambda: ([1.0, 0.5j], np.poly(0.9 * np.exp(2j * np.pi * np.linspace(0, 0.9, 16)))),
}
"""Filters of SciPy's families, and with poles on the unit circle, near it, and just outside."""


def design(name):
    """Return b and a of one length."""
    b, a = (np.asarray(one) for one in DESIGNS[name]())
    k = max(len(b), len(a)) - 1
    return tuple(np.concatenate([one, np.zeros(k + 1 - len(one))]) for one in (b, a))


def signal_of(name, n, dtype="float64"):
    """Return a signal about a mean, for a filter."""
    complex_too = name.startswith("complex")
    x = random(np.random.default_rng(n), (n,), "complex128" if complex_too else dtype)
    return (x + x.dtype.type(3)).astype(x.dtype)


@functools.cache
def expected_of(name, n, dtype="float64", states=False):
    """Return the results and the last state by a loop in higher precision, and the errors of SciPy's loop."""
    b, a = (one.astype(np.result_type(one, dtype) if one.dtype.kind == "c" else dtype) for one in design(name))
    x = signal_of(name, n, dtype)
    z = given = state_of(len(a) - 1, x.dtype) if states else np.zeros(len(a) - 1, x.dtype)
    serial = scipy().lfilter(b, a, x, zi=given)
    z, y = np.append(wide(given), 0), np.zeros(n, wide(x).dtype)
    later_b, later_a = (np.append(wide(one[1:]) / wide(a)[0], 0) for one in (b, a))
    first = wide(b)[0] / wide(a)[0]
    for i, one in enumerate(wide(x)):
        y[i] = first * one + z[0]
        z[:-1] = z[1:]
        z += later_b * one - later_a * y[i]
    errors = [abs(one - other).max() for one, other in zip(serial, (y, z[:-1]), strict=True)]
    return (b, a, x, given), (y, z[:-1]), errors


def state_of(k, dtype):
    return random(np.random.default_rng(k), (k,), dtype.name)


def check_design(backend, run, name, n, dtype="float64", states=False):
    """The error is within ten times that of SciPy's loop, or ten roundings of the largest result."""
    (b, a, x, given), expected, errors = expected_of(name, n, dtype, states)
    options = {"zi": backend.asarray(given)} if states else {}
    found = run(parprims.lfilter, *map(backend.asarray, (b, a, x)), method="kernel", **options)
    rounding = float(np.finfo(x.dtype).eps) / 2
    for one, other, error in zip(found if states else (found,), expected, errors, strict=False):
        one = backend.to_numpy(one)
        assert one.dtype == x.dtype
        assert np.isfinite(one).all()
        assert abs(one - other).max() <= 10 * max(error, rounding * abs(other).max())


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("name", DESIGNS)
def test_designs(small, run, name, states):
    """Tiles that look back, with states and without."""
    check_design(small, run, name, 9 * TILE + 7, states=states)


@pytest.mark.parametrize("name", DESIGNS)
def test_designs_of_long_signals(gpu, run, name):
    """As the kernel divides lines by itself: threads with many samples, warps, and tiles."""
    check_design(gpu, run, name, 20_000, states=name in ("butter of 3", "butter, low", "wide band", "sums", "complex"))
    if gpu.name != "emulated" and name != "growing soon":
        check_design(gpu, run, name, 300_000)


@pytest.mark.parametrize("name", ["butter of 1", "butter of 3", "cheby1 of 5", "ellip of 9", "notches", "comb", "stop"])
def test_designs_in_float32(gpu, run, name):
    """Far below the error of SciPy, which computes in float32: all but one rounding of the results."""
    check_design(gpu, run, name, 20_000, "float32", states=True)
    (b, a, x, _), (y, _), _ = expected_of(name, 20_000, "float32")
    found = gpu.to_numpy(run(parprims.lfilter, *map(gpu.asarray, (b, a, x)), method="kernel"))
    assert abs(found - y).max() <= 2.0**-23 * abs(y).max()


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["butter of 1", "butter, low"])
@pytest.mark.parametrize("n", [1, 5, 127, 128, 129, 33 * 128 + 5])
def test_designs_at_edges(small, run, n, name):
    """Lengths around the edges of a tile, and of a group of 32 tiles, with states."""
    check_design(small, run, name, n, states=True)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["butter of 24", "complex, of 16"])
def test_the_highest_orders(small, run, name):
    """Orders whose powers are those of 1, 4, 16, ... threads, and whose coefficients are in shared memory."""
    check_design(small, run, name, 5 * TILE + 3, states=True)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["a sum", "butter of 4", "cheby1 of 5"])
@pytest.mark.parametrize("lines", [2, 7, 130])
def test_designs_of_lines(small, run, rng, lines, name):
    """Lines of several tiles, that look back and that are chained, and short lines, not adjacent in memory."""
    b, a = design(name)
    x = random(rng, (3 * TILE + 11 if lines < 100 else 16, 2 * lines), "float64")
    zi = random(rng, (len(a) - 1, lines), "float64")
    given = (*map(small.asarray, (b, a)), small.asarray(x)[:, ::2])
    y, z, largest = loop(b, a, x[:, ::2], zi)
    found = run(parprims.lfilter, *given, axis=0, zi=small.asarray(zi), method="kernel")
    for one, other in zip(found, (y, z), strict=True):
        assert abs(small.to_numpy(one) - other).max() <= 1e-13 * largest


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(130, 16), (130, 4), (9, 13), (3, 500), (70, 60), (7, 3 * 512 + 8)])
def test_designs_of_adjacent_lines(small, tuned, run, rng, shape):
    """Lines of a few lanes, of a block and of several, whose threads have several vectors."""
    tuned(many=filters_cuda.Tile(64, 64, 2))
    b, a = design("cheby1 of 5")
    x, zi = random(rng, shape, "float64"), random(rng, (shape[0], 5), "float64")
    for options, start in (({}, np.zeros((5, 1))), ({"zi": small.asarray(zi)}, zi.T)):
        y, _, largest = loop(b, a, x.T, start)
        found = run(parprims.lfilter, *map(small.asarray, (b, a, x)), method="kernel", **options)
        found = found[0] if options else found
        assert abs(small.to_numpy(found).T - y).max() <= 1e-13 * largest


@pytest.mark.parametrize("poles", [[3.0], [40.0, -50.0], [1e4] * 3])
@pytest.mark.parametrize("order", [3, 6])
def test_poles_far_outside(small, run, poles, order):
    """Powers that overflow, where nothing comes in for long."""
    b, a = np.array([1.0]), np.poly([*poles, *[0.5] * (order - len(poles))])
    x = np.zeros(9 * TILE)
    x[-6:] = 1
    y = loop(b, a, x, np.zeros(order))[0]
    found = small.to_numpy(run(parprims.lfilter, *map(small.asarray, (b, a, x)), method="kernel"))
    assert not found[:-6].any()
    np.testing.assert_allclose(found[-6:], y[-6:].astype(np.float64), rtol=1e-12)


@pytest.mark.parametrize("name", ["butter of 3", "butter, low"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_coefficients_that_are_not_finite(small, run, rng, odd, name):
    """The tables are made, of some basis, and nothing finite comes out."""
    b, a = design(name)
    a[3] = odd
    x = random(rng, (700,), "float64")
    found = small.to_numpy(run(parprims.lfilter, *map(small.asarray, (b, a, x)), method="kernel"))
    assert not np.isfinite(found[6:]).any()


def test_results_that_are_not_finite(small, run, rng):
    """What is not finite changes nothing before it."""
    b, a = map(small.asarray, design("butter, high"))
    x = random(rng, (4 * TILE,), "float64")
    clean = small.to_numpy(run(parprims.lfilter, b, a, small.asarray(x), method="kernel"))
    at = TILE + 77
    x[at] = np.inf
    found = small.to_numpy(run(parprims.lfilter, b, a, small.asarray(x), method="kernel"))
    np.testing.assert_array_equal(found[:at], clean[:at])
    assert not np.isfinite(found[at:]).any()


@pytest.mark.once
def test_plans_fit_every_device():
    """Tables, and what they are made in, have room in the shared memory of a block."""
    for capability in (75, 80, 86, 89, 90, 100, 120):
        tuning = _cuda.tuned(filters_cuda.TUNING, capability)
        for kind, dtypes in (("float", ("float32", "float64")), ("complex", ("complex64", "complex128"))):
            for dtype in dtypes:
                for order in range(1, filters_cuda.MOST_ORDER[kind] + 1):
                    for lines, n in ((1, 1 << 26), (1 << 12, 1 << 14), (1 << 16, 64)):
                        of = filters_cuda.Kind(dtype, (order + 1, 2), True, True)
                        launches = filters_cuda.make_plan(of, tuning, lines, n, step=n).launches
                        *before, last = [one.template for one in launches]
                        assert last == "filters::filter_rows"
                        inside = order <= 4 and launches[-1].grid <= tuning.inside
                        assert before == ([] if inside else ["filters::make_lattice"])
                        assert max(one.shared_bytes for one in launches) <= _cuda.shared_bytes(capability)


def test_orders_that_are_too_high(gpu):
    for dtype, most in (("float64", 24), ("complex128", 16)):
        one, x = (gpu.asarray(np.ones(n, dtype)) for n in (most + 2, 5))
        words = f"no kernel of {dtype} filters above order {most} for GPUs, got order {most + 1}"
        with pytest.raises(parprims.MethodRefused, match=words):
            parprims.lfilter(one, one, x, method="kernel")
