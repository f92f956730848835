"""Filters against a loop over the samples in higher precision."""

import functools
import os
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest

import parprims
from tests.fuzz import values
from tests.support.contract import check_derivatives, compare, eps, numpy_dtype, random

METHODS = ("kernel", "native", "array")


def wide(x):
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def loop(b, a, x, z):
    """Return the filtered rows of x (n, ...) and their states after, by the definition, and the largest state."""
    k = max(len(b), len(a)) - 1
    b, a = (np.concatenate([wide(one), np.zeros(k + 1 - len(one))]) / wide(a)[0] for one in (b, a))
    x = wide(x)
    y = np.zeros(x.shape, np.result_type(x, b, a))
    state = np.zeros((k + 1, *x.shape[1:]), y.dtype)
    state[:k] = z
    largest = abs(state).max(initial=0)
    for n in range(len(x)):
        y[n] = b[0] * x[n] + state[0]
        for i in range(k):
            state[i] = state[i + 1] + b[i + 1] * x[n] - a[i + 1] * y[n]
        largest = max(largest, abs(state).max(initial=0), abs(y[n]).max(initial=0))
    return y, state[:k], float(largest)


def bound(b, a, n, largest, dtype, working="float64"):
    """Return the error that docs/filters.md states: what the filter makes of rounding its states, and one rounding."""
    k = max(len(b), len(a)) - 1
    a = np.concatenate([a, np.zeros(k + 1 - len(a), a.dtype)]).astype(np.complex128) / a[0]
    companion = np.eye(k, k, 1, dtype=np.complex128)
    if k:
        companion[:, 0] = -a[1:]
    power, gain, norm = np.eye(k), 1.0, 1.0
    for _ in range(n):
        gain += abs(power[0]).sum() if k else 0.0
        norm = max(norm, abs(power).sum(axis=1).max(initial=0.0))
        power = companion @ power
    return 16 * (k + 2) * eps(working) * gain * norm * largest + eps(dtype) * largest


FILTERS = {
    "gain": ([0.5], [2.0]),
    "average": ([0.25] * 4, [1.0]),
    "decay": ([0.1], [1.0, -0.9]),
    "slow": ([1e-3], [1.0, -0.999999]),
    "band": ([0.2, 0.0, -0.2], [1.5, -0.7, 0.9]),
    "low": ([0.0048, 0.0193, 0.0289, 0.0193, 0.0048], [1.0, -2.3695, 2.3140, -1.0547, 0.1874]),
    "comb": ([1.0, *[0.0] * 12, 0.3], [1.0, *[0.0] * 13, -0.5]),
}


NEAR = 1 - 1e-6
POLES = {
    "one": [NEAR],
    "two": [NEAR, NEAR],
    "two at -1": [-NEAR, -NEAR],
    "close pair": [NEAR * np.exp(0.01j), NEAR * np.exp(-0.01j)],
    "pair": [NEAR * np.exp(1j), NEAR * np.exp(-1j)],
    "pair and others": [NEAR * np.exp(0.5j), NEAR * np.exp(-0.5j), 0.5, -0.7],
    "two pairs": [NEAR * np.exp(one * 1j) for one in (0.5, -0.5, 1, -1)],
    "one and others": [NEAR, 0.5, 0.3, -0.7],
}
"""Poles at 1 - 1e-6 from the origin; two at the same place are moved on the unit circle by rounding to float32."""


def check(backend, run, method, b, a, x, axis=-1, zi=None):
    b, a = (np.asarray(one, x.dtype if x.dtype.kind != "c" else None) for one in (b, a))
    given = [backend.asarray(one) for one in (b, a, x)]
    options = {} if zi is None else {"zi": backend.asarray(zi)}
    found = run(parprims.lfilter, *given, axis=axis, method=method, **options)
    k = max(len(b), len(a)) - 1
    start = (
        np.zeros((k, 1))
        if zi is None
        else np.moveaxis(zi, axis, 0).astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
    )
    rows = np.moveaxis(x, axis, 0)
    start = np.broadcast_to(start.reshape(k, *(1,) * (rows.ndim - 1)) if zi is None else start, (k, *rows.shape[1:]))
    y, z, largest = loop(b, a, rows, start)
    name = x.dtype.name
    allowed = bound(b, a, len(rows), largest, name)
    expected = np.moveaxis(y, 0, axis).astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    if zi is None:
        compare(backend, found, expected, allowed, name)
    else:
        states = np.moveaxis(z, 0, axis).astype(expected.dtype)
        compare(backend, found, (expected, states), allowed)


class TestLfilter:
    methods = METHODS

    @pytest.mark.parametrize("name", FILTERS)
    def test_filters(self, backend, run, method, rng, name):
        scipy()
        for n in (40, 1100) if backend.name == "jax" else (1, 2, 31, 32, 33, 1100):
            check(backend, run, method, *FILTERS[name], random(rng, (2, n), "float64"))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "complex128"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        scipy()
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        b, a = ([0.5, 0.25], [1.0, -0.75]) if dtype != "complex128" else ([0.5, 1j], [1.0, -0.5 - 0.5j])
        check(
            backend, run, method, *(np.asarray(one, numpy_dtype(dtype)) for one in (b, a)), random(rng, (3, 70), dtype)
        )

    def test_states(self, backend, run, method, rng):
        """The state after one part is that before the next, along every axis."""
        scipy()
        b, a = FILTERS["band"]
        for axis in (0, 1, 2):
            shape = [3, 4, 2]
            shape[axis] = 50
            zi = random(rng, tuple(2 if at == axis else n for at, n in enumerate(shape)), "float64")
            x = random(rng, tuple(shape), "float64")
            check(backend, run, method, b, a, x, axis, zi)
        given = [backend.asarray(np.asarray(one)) for one in (b, a)]
        x = random(rng, (90,), "float64")
        start = backend.asarray(np.zeros(2))
        first, state = run(parprims.lfilter, *given, backend.asarray(x[:37]), zi=start, method=method)
        second, _ = run(parprims.lfilter, *given, backend.asarray(x[37:]), zi=state, method=method)
        whole = run(parprims.lfilter, *given, backend.asarray(x), method=method)
        parts = np.concatenate([backend.to_numpy(one) for one in (first, second)])
        np.testing.assert_allclose(parts, backend.to_numpy(whole), atol=1e-12)

    def test_nothing(self, backend, run, method):
        scipy()
        b, a = (backend.asarray(np.array(one)) for one in FILTERS["band"])
        for shape in ((0,), (0, 5), (5, 0)):
            x = backend.asarray(np.ones(shape))
            y, z = run(parprims.lfilter, b, a, x, zi=backend.asarray(np.ones((*shape[:-1], 2))), method=method)
            assert (y.shape, z.shape) == (shape, (*shape[:-1], 2))
            assert (backend.to_numpy(z) == 1).all() or shape[-1]

    @pytest.mark.parametrize("odd", [np.inf, np.nan])
    def test_not_finite(self, backend, run, method, rng, odd):
        """What comes before such a sample, and other lines, know nothing of it."""
        scipy()
        b, a = (np.array(one) for one in FILTERS["band"])
        x = random(rng, (2, 80), "float64")
        y, _, largest = loop(b, a, x.T, np.zeros((2, 1)))
        x[1, 45] = odd
        found = run(parprims.lfilter, *(backend.asarray(one) for one in (b, a, x)), method=method)
        found = np.array(backend.to_numpy(found))
        assert not np.isfinite(found[1, 45:]).any()
        found[1, 45:] = y.T[1, 45:]
        assert (abs(found - y.T) <= bound(b, a, 80, largest, "float64")).all()

    @pytest.mark.parametrize("poles", POLES)
    def test_poles_next_to_one_in_float32(self, backend, run, method, rng, poles):
        """The result of float32 is that of float64 rounded, where a filter in float32 has lost all digits."""
        if backend.name == "jax" and poles not in ("two", "pair and others"):
            pytest.skip("much to compile")
        signal = scipy()
        a = np.real(np.poly(POLES[poles])).astype(np.float32)
        b, x = np.array([1e-6], np.float32), random(rng, (100_000,), "float32")
        expected = signal.lfilter(*(one.astype(np.float64) for one in (b, a, x)))
        found = run(parprims.lfilter, *(backend.asarray(one) for one in (b, a, x)), method=method)
        compare(backend, found, expected, 2.0**-20 * abs(expected).max(), "float32")

    def test_derivatives(self, backend, run, method, rng):
        scipy()
        b, a = np.array([0.4, 0.3, -0.2]), np.array([1.3, -0.6, 0.5])
        inputs = b, a, random(rng, (2, 37), "float64"), random(rng, (2, 2), "float64")

        def filtered(b, a, x, zi):
            return run(parprims.lfilter, b, a, x, zi=zi, method=method)

        check_derivatives(backend, filtered, inputs)


def scipy():
    """Return scipy.signal, with which the library's own method serves."""
    return pytest.importorskip("scipy.signal")


# ---- The families of filters that people use -------------------------------------------------------------------


def families():
    """Return filters by name: designs of orders 1 to 12, narrow bands, poles on the unit circle, unstable ones."""
    signal = scipy()
    found = {f"butter {k} {low}": signal.butter(k, low) for k in range(1, 13) for low in (0.02, 0.3)}
    found |= {f"high {k}": signal.butter(k, 0.02, "high") for k in (1, 2, 3, 5, 8)}
    pole, away = np.exp(0.5j), 0.999
    return found | {
        "band": signal.butter(4, (0.004, 0.3), "band"),
        "EEG": signal.butter(4, (0.5 / 128, 40 / 128), "band"),
        "narrow": signal.butter(3, (0.1, 0.102), "band"),
        "stop": signal.butter(3, (0.1, 0.11), "bandstop"),
        "cheby1": signal.cheby1(8, 0.05, 0.08),
        "cheby2": signal.cheby2(7, 40, 0.1),
        "ellip": signal.ellip(6, 0.1, 60, 0.05),
        "bessel": signal.bessel(5, 0.03),
        "notch": signal.iirnotch(0.01, 30),
        "peak": signal.iirpeak(0.3, 100),
        "comb": signal.iircomb(0.1, 30),
        "echo": ([1.0], [1.0, *[0.0] * 1115, -0.7]),
        "taps": (signal.firwin(150, 0.1), [1.0]),
        "many taps": (np.hanning(700), [2.0]),
        "sum": ([1.0], [1.0, -1.0]),
        "sum of sums": ([1.0], [1.0, -2.0, 1.0]),
        "three on the circle": ([1.0], np.real(np.poly([1, pole, 1 / pole]))),
        "two on the circle": ([1.0], np.real(np.poly([pole, 1 / pole]))),
        "both sides": ([1.0], np.poly([away, -away])),
        "unstable": ([1.0], [1.0, -1.001]),
        "unstable, 4": ([1.0, 0.5], np.poly([1.001, 0.9, 0.5, -0.3])),
        "no poles": ([0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]),
        "complex": ([1.0, 0.5j], np.poly([0.99 * pole, 0.98 * pole, 0.999 * pole**2, -0.5])),
    }


NAMES = [
    *(f"butter {k} {low}" for k in range(1, 13) for low in (0.02, 0.3)),
    *(f"high {k}" for k in (1, 2, 3, 5, 8)),
    *("band", "EEG", "narrow", "stop", "cheby1", "cheby2", "ellip", "bessel", "notch", "peak", "comb", "echo"),
    *("taps", "many taps", "sum", "sum of sums", "three on the circle", "two on the circle", "both sides", "unstable"),
    *("unstable, 4", "no poles", "complex"),
]


def exactly(b, a, x):
    """Return the filtered line x, in the precision of long double."""
    k = max(len(b), len(a)) - 1
    b, a = (np.concatenate([wide(one), np.zeros(k + 1 - len(one))]) / wide(a)[0] for one in map(np.asarray, (b, a)))
    x, state = wide(x), np.zeros(k + 1, np.result_type(wide(x), b, a))
    y = np.zeros(len(x), state.dtype)
    for n in range(len(x)):
        y[n] = b[0] * x[n] + state[0]
        state[:-1] = state[1:] + b[1:] * x[n] - a[1:] * y[n]
    return y


def far(found, expected):
    """Return the error, in parts of the largest result; of nothing where a result is not finite."""
    scale = abs(expected).max(initial=0) or 1
    return float((abs(np.asarray(found) - expected) / scale).max(initial=0))


@functools.cache
def family(name, dtype, n=20_000):
    """Return b, a and noise of a dtype, the exact result, and the error that SciPy's lfilter makes in that dtype."""
    b, a = (np.asarray(one) for one in families()[name])
    b, a = (one.astype(np.result_type(dtype, np.complex64) if one.dtype.kind == "c" else dtype) for one in (b, a))
    x = np.random.default_rng(n).standard_normal(n).astype(dtype)
    y = exactly(b, a, x)
    with np.errstate(all="ignore"):
        return b, a, x, y, far(scipy().lfilter(b, a, x), y)


class TestFamilies:
    methods = METHODS

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_error(self, backend, run, method, name, dtype):
        """The error is at most ten times that of SciPy in the same dtype, or of a rounding of the result."""
        b, a, x, y, by_scipy = family(name, dtype, 500 if backend.name == "emulated" else 20_000)
        if not np.isfinite(by_scipy) or by_scipy > 0.1:
            pytest.skip("rounded coefficients make a filter of which SciPy's result has no digits")
        if backend.name == "jax" and dtype == "float32":
            pytest.skip("float64 rounded; float32 alone is another test")
        found = backend.to_numpy(run(parprims.lfilter, *map(backend.asarray, (b, a, x)), method=method))
        assert far(found, y) <= 10 * max(by_scipy, eps(dtype) / 2)

    @pytest.mark.parametrize(
        "name", ["butter 6 0.02", "band", "cheby1", "notch", "echo", "taps", "three on the circle"]
    )
    def test_derivatives(self, backend, run, method, name):
        """So is that of derivatives: filters from the other end, and sums of products with what these return."""
        b, a, x, y, _ = family(name, "float64", 2000)
        weights = np.random.default_rng(1).standard_normal(len(x))
        signal = scipy()

        def expected(y, filtered):
            back = filtered([1.0], a, weights[::-1])[::-1]
            by_b, by_a = (
                sign * np.array([np.sum(back[j:] * one[: len(one) - j]) for j in range(count)])
                for sign, one, count in ((1, x, len(b)), (-1, y, len(a)))
            )
            return by_b, by_a[1:], filtered(b, a, weights[::-1])[::-1], back

        exact = expected(y, exactly)
        by_scipy = expected(signal.lfilter(b, a, x), signal.lfilter)
        allowed = max(eps("float64"), *(far(one, other) for one, other in zip(by_scipy, exact, strict=True)))
        by_b, by_a, by_x = gradients(backend, run, method, (b, a, x), weights)
        for found, one in zip((by_b, by_a[1:], by_x), exact[:3], strict=True):
            assert far(found, one) <= 10 * allowed


def gradients(backend, run, method, arrays, weights):
    """Return the derivatives of the weighted sum of results."""

    def loss(*arrays):
        return (run(parprims.lfilter, *arrays, method=method) * backend.asarray(weights)).sum()

    if backend.name == "jax":
        import jax

        return jax.grad(loss, (0, 1, 2))(*map(backend.asarray, arrays))
    if not backend.name.startswith("torch"):
        pytest.skip("has no derivatives")
    leaves = [backend.asarray(one).requires_grad_() for one in arrays]
    loss(*leaves).backward()
    return [backend.to_numpy(one.grad) for one in leaves]


@pytest.mark.parametrize("name", NAMES)
def test_families_in_float32_alone(name):
    """JAX without jax_enable_x64 computes in float32, with an error within ten times that of SciPy in float32."""
    jax = pytest.importorskip("jax")
    b, a, x, y, by_scipy = family(name, "float32")
    if not np.isfinite(by_scipy) or by_scipy > 0.1:
        pytest.skip("rounded coefficients make a filter of which SciPy's result has no digits")
    with jax.enable_x64(False):
        found = np.asarray(parprims.lfilter(*map(jax.numpy.asarray, (b, a, x)), method="array"))
    assert found.dtype.itemsize == x.dtype.itemsize * (2 if name == "complex" else 1)
    assert far(found, y) <= 10 * max(by_scipy, eps("float32") / 2)


@pytest.mark.once
@pytest.mark.parametrize("size", [150, 1117, 20_000])
@pytest.mark.parametrize("poles", [False, True])
def test_memory(size, poles):
    """Long filters take the memory that docs/filters.md states, by operations: no matrix of all their coefficients."""
    n = 20_000
    c = np.zeros(size)
    c[0], c[-1] = 1, 0.5
    b, a = (c[:1], c) if poles else (c, c[:1])
    x = np.random.default_rng(0).standard_normal(n)
    parprims.lfilter(b, a, x[:100], method="array")  # what is kept from call to call
    tracemalloc.start()
    y = parprims.lfilter(b, a, x, method="array")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 8 * (12 * (n + size) + 128 * size * poles + 7 * 256**2)
    delayed = np.concatenate([np.zeros(size - 1), x])[:n] * 0.5
    if not poles:
        np.testing.assert_allclose(y, x + delayed, atol=1e-12)


def test_transformed_coefficients(rng):
    """Every line has a filter of its own, on JAX and PyTorch, and derivatives nest."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    signal = scipy()
    b, a = signal.butter(4, 0.1)
    many = np.stack([b, 2 * b]), np.stack([a, a * [1, 0.99, 1, 1, 1]])
    x, z = rng.standard_normal((2, 60)), rng.standard_normal((2, 4))
    expected = [signal.lfilter(*(one[i] for one in (*many, x)), zi=z[i]) for i in range(2)]

    def at_end(a, b, x):
        return parprims.lfilter(b, a, x)[50]

    with jax.enable_x64(True):
        given = [jax.numpy.asarray(one) for one in (*many, x, z)]
        of_jax = jax.vmap(lambda b, a, x, z: parprims.lfilter(b, a, x, zi=z))(*given)
        hessian = np.asarray(jax.hessian(at_end)(*map(jax.numpy.asarray, (a, b, x[0]))))
    given = [torch.tensor(one) for one in (*many, x, z)]
    of_torch = torch.func.vmap(lambda b, a, x, z: parprims.lfilter(b, a, x, zi=z))(*given)
    for found in (of_jax, of_torch):
        for i in range(2):
            for one, other in zip(found, expected[i], strict=True):
                np.testing.assert_allclose(np.asarray(one[i]), other, atol=1e-8)
    forward, backward = torch.func.jacfwd, torch.func.jacrev
    arguments = [torch.tensor(one) for one in (a, b, x[0])]
    for outer in (forward, backward):
        for inner in (forward, backward):
            found = outer(inner(at_end))(*arguments)
            np.testing.assert_allclose(found.numpy(), hessian, atol=1e-8 * abs(hessian).max())


# ---- Arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [False, True])
def test_divided_by_zero(backend, warm):
    """Coefficients that are divided by zero are refused wherever they can be read, in calls like earlier ones too."""
    x = backend.asarray(np.ones(9))
    good, bad = (backend.asarray(np.array([first, 0.5, 0.25])) for first in (1.0, 0.0))
    rows = [backend.asarray(np.array([[1.0, 0, 0, 1, 0, 0], [1, 0, 0, one, 0, 0]])) for one in (2.0, 0.0)]
    for call in (
        lambda a, _: parprims.lfilter(good, a, x),
        lambda a, _: parprims.lfilter(good, a, x, zi=good[:2]),
        lambda _, sos: parprims.sosfilt(sos, x),
    ):
        if warm:
            call(good, rows[0])
            call(good, rows[0])
        if backend.cuda and not isinstance(x, np.ndarray):
            assert not np.isfinite(backend.to_numpy(call(bad, rows[1])[0])).all()
            continue
        with pytest.raises(ValueError, match=r"^(a must not begin with zero|sos must not have a zero).*a\[0\]"):
            call(bad, rows[1])


def test_divided_by_zero_while_traced():
    """Coefficients without values are not looked at: results are not finite."""
    jax = pytest.importorskip("jax")
    found = jax.jit(parprims.lfilter)(*map(jax.numpy.asarray, ([1.0], [0.0, 1.0], [1.0, 2.0])))
    assert not np.isfinite(np.asarray(found)).any()


@pytest.mark.parametrize(
    ("function", "shape", "axis", "zi", "fits"),
    [
        ("lfilter", (3, 9), -1, (3, 2), True),
        ("lfilter", (3, 9), -1, (1, 2), True),
        ("lfilter", (9, 3), 0, (2, 3), True),
        ("lfilter", (9,), 0, (2,), True),
        ("lfilter", (2, 9), -1, (2,), False),  # of lfilter_zi, for channels as many as states
        ("lfilter", (2, 9), -1, (2, 1), False),
        ("lfilter", (9, 2), 0, (2,), False),
        ("lfilter", (9,), 0, (1,), False),
        ("lfilter", (9,), 0, (1, 2), False),
        ("lfilter", (9,), 0, (), False),
        ("sosfilt", (3, 9), -1, (3, 3, 2), True),
        ("sosfilt", (2, 9), -1, (3, 1, 2), True),
        ("sosfilt", (9,), -1, (3, 2), True),
        ("sosfilt", (3, 9), -1, (3, 2), False),  # of sosfilt_zi, for channels as many as sections
        ("sosfilt", (9,), -1, (1, 2), False),
        ("sosfilt", (9,), -1, (3, 1), False),
        ("sosfilt", (9, 3), 0, (3, 2), False),
    ],
)
def test_shapes_of_states(backend, function, shape, axis, zi, fits):
    """States have the shape that SciPy takes, with 1 for channels that begin alike: nothing broadcasts by chance."""
    x, states = backend.asarray(np.ones(shape)), backend.asarray(np.ones(zi))
    sos = np.tile([0.5, 0.25, 0.0, 1.0, -0.5, 0.25], (3, 1))
    coefficients = [sos] if function == "sosfilt" else [sos[0, :3], sos[0, 3:]]
    given = [backend.asarray(one) for one in coefficients]
    if not fits:
        with pytest.raises(ValueError, match=r"^zi must have shape"):
            getattr(parprims, function)(*given, x, axis=axis, zi=states)
        return
    y, end = getattr(parprims, function)(*given, x, axis=axis, zi=states)
    whole = list(shape)
    whole[axis] = 2
    wanted = np.broadcast_to(np.ones(zi), (*((3,) if function == "sosfilt" else ()), *whole))
    expected = getattr(scipy(), function)(*coefficients, np.ones(shape), axis, np.array(wanted))
    compare(backend, (y, end), expected, 1e-12)


@pytest.mark.once
def test_native_is_scipy():
    """By name the native method imports SciPy, whose own bits it returns; `auto` takes the same before and after."""
    scipy()
    program = """
        import sys, numpy as np, parprims
        sos = np.tile([0.5, 0.25, 0.0, 1.0, -0.5, 0.25], (3, 1))
        x = np.random.default_rng(0).standard_normal((2, 100)).astype("float64")
        b, a = sos[0, :3], sos[0, 3:]
        calls = [(parprims.sosfilt, sos, x), (parprims.lfilter, b, a, x)]
        before = [parprims.methods(*one) for one in calls]
        assert "scipy.signal" not in sys.modules
        found = [function(*arrays, method="native") for function, *arrays in calls]
        assert [parprims.methods(*one) for one in calls] == before
        assert all(one["native"] is None for one in before), before
        from scipy import signal
        assert found[0].tobytes() == signal.sosfilt(sos, x).tobytes()
        assert found[1].tobytes() == signal.lfilter(b, a, x).tobytes()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_not_finite_among_taps(backend, run, rng, odd):
    """A filter without feedback forgets such a sample; one of high order knows nothing of it before."""
    x = random(rng, (200,), "float64")
    x[90] = odd
    taps = random(rng, (20,), "float64")
    poles = np.real(np.poly([0.9, 0.8, 0.7, 0.6]))
    for b, a, lost in ((taps, np.ones(1), slice(90, 110)), (taps, poles, slice(90, None))):
        found = backend.to_numpy(run(parprims.lfilter, *map(backend.asarray, (b, a, x)), method="array"))
        expected = exactly(b, a, np.where(np.isfinite(x), x, 0))
        assert not np.isfinite(found[lost]).any()
        kept = np.ones(200, bool)
        kept[lost] = False
        np.testing.assert_allclose(found[kept], expected[kept].astype(np.float64), atol=1e-11)


class TestSosfilt:
    methods = METHODS

    def test_like_scipy(self, backend, run, method, rng):
        signal = scipy()
        sos = signal.butter(5, 0.2, output="sos")
        for shape, axis in (((70,), 0), ((2, 70, 3), 1)):
            x = random(rng, shape, "float64")
            zi = random(rng, (3, *(2 if at == axis else n for at, n in enumerate(shape))), "float64")
            expected = signal.sosfilt(sos, x, axis, zi)
            arrays = backend.asarray(sos), backend.asarray(x)
            found = run(parprims.sosfilt, *arrays, axis=axis, zi=backend.asarray(zi), method=method)
            compare(backend, found, expected, 1e-12)
            plain = run(parprims.sosfilt, *arrays, axis=axis, method=method)
            compare(backend, plain, signal.sosfilt(sos, x, axis), 1e-12)

    @pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
    def test_divisors(self, backend, run, method, rng, dtype):
        """a[0] of a section is any number but zero: a complex one divided by itself is not always one."""
        scipy()
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        poles = rng.uniform(0.1, 0.7, 24) * np.exp(1j * rng.uniform(0, np.pi, 24))
        a = np.stack([np.ones(24), -2 * poles.real, abs(poles) ** 2], axis=1)
        sos = (np.concatenate([random(rng, (24, 3), dtype), a], axis=1) * random(rng, (24, 1), dtype)).astype(dtype)
        x = random(rng, (30,), dtype)
        y = x
        for section in sos:
            y = loop(section[:3], section[3:], y, np.zeros((2,)))[0]
        found = backend.to_numpy(run(parprims.sosfilt, backend.asarray(sos), backend.asarray(x), method=method))
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, y.astype(np.complex128), rtol=0, atol=3000 * np.finfo(dtype).eps * abs(y).max()
        )

    def test_poles_next_to_one_in_float32(self, backend, run, method, rng):
        """Cascades of sections with poles next to 1, next to each other, and elsewhere on the circle."""
        signal = scipy()
        rows = [[1e-9, 0, 0, *np.real(np.poly(POLES[one]))] for one in ("two", "pair")]
        rows.append([0.5, 0.5, 0, 1, -NEAR, 0])
        sos, x = np.array(rows, np.float32), random(rng, (10_000,), "float32")
        expected = signal.sosfilt(sos.astype(np.float64), x.astype(np.float64))
        found = run(parprims.sosfilt, backend.asarray(sos), backend.asarray(x), method=method)
        compare(backend, found, expected, 2.0**-20 * abs(expected).max(), "float32")

    def test_derivatives(self, backend, run, method, rng):
        sos = scipy().butter(3, 0.3, output="sos")
        inputs = sos, random(rng, (35,), "float64"), random(rng, (2, 2), "float64")

        def filtered(sos, x, zi):
            return run(parprims.sosfilt, sos, x, zi=zi, method=method)

        check_derivatives(backend, filtered, inputs)


@pytest.mark.once
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_no_bits(rng, threads, monkeypatch):
    pytest.importorskip("numba")
    b, a = (np.array(one) for one in FILTERS["low"])
    x = random(rng, (9, 40_000), "float64")
    expected = np.stack([parprims.lfilter(b, a, row, method="kernel") for row in x])
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", str(threads))
    assert parprims.lfilter(b, a, x, method="kernel").tobytes() == expected.tobytes()


def test_transformed(rng):
    jax = pytest.importorskip("jax")
    b, a = (np.array(one) for one in FILTERS["band"])
    x = random(rng, (3, 50), "float64")
    expected = [parprims.lfilter(b, a, row, method="array") for row in x]
    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(parprims.lfilter, (None, None, 0)))(b, a, x)
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-13)


@pytest.mark.parametrize("poles", ["two", "two at -1"])
def test_two_poles_in_float32_alone(rng, poles):
    """JAX without jax_enable_x64 computes in float32, in which sums of states keep the digits that states lose."""
    jax = pytest.importorskip("jax")
    signal = scipy()
    a, x = np.real(np.poly(POLES[poles])).astype(np.float32), random(rng, (1000,), "float32")
    b = np.array([1e-3], np.float32)
    expected = signal.lfilter(*(one.astype(np.float64) for one in (b, a, x)))
    with jax.enable_x64(False):
        found = parprims.lfilter(*map(jax.numpy.asarray, (b, a, x)), method="array")
    assert found.dtype == np.float32
    assert abs(np.asarray(found) - expected).max() <= 2.0**-18 * abs(expected).max()


def test_torch_compile(rng):
    torch = pytest.importorskip("torch")
    inputs = [torch.from_numpy(np.array(one)) for one in (*FILTERS["band"], rng.standard_normal((2, 50)))]

    def loss(b, a, x):
        y, z = parprims.lfilter(b, a, x, zi=x[:, :2])
        return (y * y).sum() + z.sum()

    results = []
    for function in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss):
        leaves = [one.clone().requires_grad_() for one in inputs]
        function(*leaves).backward()
        results.append([one.grad for one in leaves])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_arguments_named(backend):
    x, sos = (backend.asarray(np.ones(shape)) for shape in ((2, 9), (3, 6)))
    b = x[0, :3]
    whole = backend.asarray(np.arange(3))
    for call, error, words in (
        (lambda: parprims.lfilter(x, b, x), ValueError, "b must have one dimension"),
        (lambda: parprims.lfilter(b, b[:0], x), ValueError, "a must have one dimension and at least one coefficient"),
        (lambda: parprims.lfilter(whole, b, x), TypeError, "b must have a floating or complex dtype"),
        (lambda: parprims.lfilter(b, b, x, zi=b), ValueError, r"zi must have shape \(2, 2\)"),
        (lambda: parprims.sosfilt(b, x), ValueError, r"sos must have shape \(sections, 6\)"),
        (lambda: parprims.sosfilt(sos[:0, :], x), ValueError, "sos must hold at least one section"),
        (lambda: parprims.sosfilt(sos, x, zi=x), ValueError, r"zi must have shape \(3, 2, 2\)"),
        (lambda: parprims.lfilter(b, b, x, axis=2), IndexError, "axis"),
        (lambda: parprims.lfilter(b, b, x, zi=3.0), TypeError, "zi must be an array"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            call()


def test_inputs_untouched(backend, rng):
    x = random(rng, (3, 40), "float64")
    zi = random(rng, (3, 2), "float64")
    arrays = backend.asarray(x.copy()), backend.asarray(zi.copy())
    b, a = (backend.asarray(np.array(one)) for one in FILTERS["band"])
    for method in ("auto", "array"):
        parprims.lfilter(b, a, arrays[0], zi=arrays[1], method=method)
    np.testing.assert_array_equal(backend.to_numpy(arrays[0]), x)
    np.testing.assert_array_equal(backend.to_numpy(arrays[1]), zi)


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {"zi": ("text", 3, [0.0], {}, (1, 2), 1.5)}


def draw(d, name):
    """Return a valid call, whose result is held against the loop."""
    dtype = d.dtype("float32", "float64", "complex128")
    shape = d.shape(1)
    axis = int(d.axis(len(shape)))
    x = d.values(shape, dtype, tame=True)
    array, x = d.array(x)
    count = 1 if name == "lfilter" else int(d.rng.integers(1, 4))
    k = 2 if name == "sosfilt" else int(d.rng.integers(0, 5))
    rows = [d.values((2, k + 1), dtype, tame=True) * 0.3 for _ in range(count)]
    for row in rows:
        row[1, 0] = 1.5
    rows = [row.astype(x.dtype) for row in rows]
    args = (
        [d.plain(row) for row in rows[0]] if name == "lfilter" else [d.plain(np.concatenate(rows, 1).reshape(count, 6))]
    )
    if name == "sosfilt":
        rows = list(np.concatenate(rows, 1).reshape(count, 2, 3))
    y = np.moveaxis(x, axis, 0)
    allowed, scale = 0.0, 1.0
    for b, a in rows:
        a = np.where(np.arange(len(a)) == 0, 1.5, a).astype(a.dtype) if name == "lfilter" else a
        y, _, largest = loop(b, a, y, np.zeros((k, *(1,) * (y.ndim - 1))))
        one = bound(b, a, len(y), max(largest, 1.0), dtype)
        allowed, scale = allowed * largest + one, largest
    unknown = not np.isfinite(allowed * scale)
    with np.errstate(over="ignore"):
        y = y.astype(dtype)  # what is beyond the range of results is infinite in them
    expected = values.Expected(np.moveaxis(y, 0, axis), dtype, 100 * allowed, unknown)
    return values.Call(name, [*args, array], {"axis": axis}, lambda got: values.differs(d.backend, got, expected))
