"""Filters against a loop over the samples in higher precision."""

import os

import numpy as np
import pytest

import parprims
from tests.contract import check_derivatives, compare, eps, numpy_dtype, random
from tests.fuzz import values

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
        (lambda: parprims.lfilter(b, b[:0], x), ValueError, "a must have one dimension and a coefficient"),
        (lambda: parprims.lfilter(whole, b, x), TypeError, "b must have a dtype of kind float"),
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
