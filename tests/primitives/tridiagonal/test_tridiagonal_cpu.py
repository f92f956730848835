"""Tridiagonal systems by the kernels for CPUs: every way in which they walk memory, and threads."""

import itertools

import numpy as np
import pytest

import parprims
from examples import backends
from parprims import solve_tridiagonal
from tests.primitives.tridiagonal.test_tridiagonal import backward_error, dense, dominant, dominant_bound, gtsv, thomas
from tests.support.contract import eps, random

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims._cpu import threads  # noqa: E402
from parprims._dispatch import prepared  # noqa: E402
from parprims._primitives.tridiagonal import cpu as tridiagonal_cpu  # noqa: E402
from parprims._primitives.tridiagonal import public as public_tridiagonal  # noqa: E402


def solved(inputs, **options):
    """Return the solutions by the kernel, which is to leave its inputs as they are."""
    before = [np.array(x) for x in inputs]
    x = solve_tridiagonal(*inputs, method="kernel", **options)
    assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(inputs, before, strict=True))
    return x


def check(inputs, axis=-1, pivot="auto"):
    """Hold random systems, of which all arrays have the same shape, against LAPACK's solutions."""
    x = solved(inputs, axis=axis, pivot=pivot)
    rows = [np.ascontiguousarray(np.moveaxis(y, axis, -1)) for y in inputs]
    x = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    allowed = 10 * np.maximum(backward_error(*rows, gtsv(*rows)), eps(x.dtype.name))
    assert np.all(backward_error(*rows, x) <= allowed)
    return x


def layouts(x):
    """Yield views of equal values: C, Fortran, reversed, of every second element, unaligned, between other axes."""
    yield x
    yield np.asfortranarray(x)
    yield np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    yield np.ascontiguousarray(x[::-1])[::-1]
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    raw = np.frombuffer(b"\0" + x.tobytes(), np.uint8).copy()[1:]
    yield raw.view(x.dtype).reshape(x.shape) if x.size else x
    yield np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(-1, *range(x.ndim - 1))


def systems(rng, shape, dtype, pivot):
    """Return random systems, which are dominant where no rows are to be exchanged."""
    lower, diag, upper, rhs = (random(rng, shape, dtype) for _ in range(4))
    return (lower, diag + diag.dtype.type(9), upper, rhs) if pivot == "none" else (lower, diag, upper, rhs)


@pytest.mark.parametrize("pivot", ["auto", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rows_and_columns_have_the_bits_of_systems_alone(rng, dtype, pivot):
    for shape in ((37, 41), (2, 66), (70, 1), (9, 2)):
        inputs = systems(rng, shape, dtype, pivot)
        expected = check(inputs, pivot=pivot).tobytes()
        columns = tuple(np.ascontiguousarray(x.T) for x in inputs)
        assert check(columns, 0, pivot).tobytes() == expected
        alone = np.stack([solved([x[i] for x in inputs], pivot=pivot) for i in range(shape[0])])
        assert alone.tobytes() == expected


@pytest.mark.parametrize("pivot", ["auto", "none"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    ("layout", "changed"), [*((layout, "all") for layout in range(7)), *((1, at) for at in range(4))]
)
def test_every_layout_has_the_same_bits(rng, dtype, pivot, axis, layout, changed):
    """All four arrays in a layout, or one of them beside others in C order."""
    inputs = systems(rng, (5, 12, 9), dtype, pivot)
    arrays = [list(layouts(x))[layout] if changed in ("all", at) else x for at, x in enumerate(inputs)]
    assert check(arrays, axis, pivot).tobytes() == check(inputs, axis, pivot).tobytes()


@pytest.mark.parametrize("pivot", ["partial", "none"])
def test_one_matrix_and_many_right_hand_sides(rng, pivot):
    for n, k in ((1, 5), (2, 300), (33, 2), (64, 70), (65, 257)):
        lower, diag, upper, _ = dominant(rng, (n,), "float64")
        rhs = random(rng, (n, k), "float64")
        alone = np.stack([solved((lower, diag, upper, rhs[:, j].copy()), pivot=pivot) for j in range(k)], axis=1)
        x = solved((lower, diag, upper, rhs), pivot=pivot)
        assert np.ascontiguousarray(x).tobytes() == alone.tobytes()
        rows = solved((lower[None], diag[None], upper[None], np.ascontiguousarray(rhs.T)), pivot=pivot)
        assert np.ascontiguousarray(rows.T).tobytes() == alone.tobytes()
    lower, upper = (random(rng, (6, 1, 20), "float64") for _ in range(2))
    rhs, diag = random(rng, (6, 7, 20), "float64"), 9 + random(rng, (1, 20), "float64")
    whole = [np.ascontiguousarray(np.broadcast_to(x, rhs.shape)) for x in (lower, diag, upper)]
    assert solved((lower, diag, upper, rhs), pivot=pivot).tobytes() == solved((*whole, rhs), pivot=pivot).tobytes()


def test_axes_that_do_not_merge(rng):
    """Five axes of four arrays, each broadcast along others, are copied."""
    shapes = ((3, 1, 4, 1, 2), (1, 2, 4, 3, 1), (3, 2, 4, 1, 1), (1, 2, 4, 3, 2))
    lower, diag, upper, rhs = (random(rng, shape, "float64") for shape in shapes)
    x = solved((lower, diag + 9, upper, rhs), axis=2)
    whole = [np.broadcast_to(y, (3, 2, 4, 3, 2)) for y in (lower, diag + 9, upper, rhs)]
    np.testing.assert_allclose(np.moveaxis(x, 2, 0), thomas(*(np.moveaxis(y, 2, 0) for y in whole)).astype(float))


@pytest.mark.parametrize("pivot", ["partial", "none"])
def test_edges(rng, pivot, monkeypatch):
    """Lengths around one chunk of rows and two, which elimination from both ends halves, and systems around a tile."""
    monkeypatch.setattr(threads, "limit", lambda: 1)
    chunk, wide = tridiagonal_cpu._CHUNK, tridiagonal_cpu._WIDEST
    lengths = (1, 2, 3, 4, chunk - 1, chunk, chunk + 1, chunk + 2, *range(2 * chunk - 1, 2 * chunk + 4))
    for n, systems in itertools.product(lengths, (1, 2, 3, 7, 8, 9, wide - 1, wide, wide + 1)):
        inputs = dominant(rng, (n, systems), "float64")
        expected = thomas(*inputs)
        bound = dominant_bound(*inputs[:3], expected, 0)
        assert np.all(abs(solved(inputs, axis=0, pivot=pivot) - expected) <= bound)
        rows = [np.ascontiguousarray(x.T) for x in inputs]
        assert np.all(abs(solved(rows, pivot=pivot).T - expected) <= bound)


def of_thread_counts(monkeypatch, make):
    """Return what a function returns with 1, 2 and 7 threads."""
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        monkeypatch.setattr(prepared.prepared, "_found", {})
        found.append(make())
    return found


def test_the_number_of_threads_changes_no_bits(rng, monkeypatch):
    for shape, axis in (((40, 3000), 1), (((3000, 40)), 0), ((300, 600), 0), ((30, 100, 50), 1)):
        inputs = tuple(random(rng, shape, "float64") for _ in range(4))
        coefficients = [np.moveaxis(x, axis, 0).reshape(shape[axis], -1)[:, 0] for x in inputs[:3]]
        rhs = np.ascontiguousarray(np.moveaxis(inputs[3], axis, 0).reshape(shape[axis], -1))

        def make(inputs=inputs, axis=axis, coefficients=coefficients, rhs=rhs):
            one = solved(inputs, axis=axis)
            return one, solved(inputs, axis=axis, periodic=True), solved((*coefficients, rhs))

        first, *others = of_thread_counts(monkeypatch, make)
        for other in others:
            assert all(one.tobytes() == x.tobytes() for one, x in zip(first, other, strict=True))


def test_what_is_not_finite_stays_in_its_system(rng):
    """NaN and infinities anywhere, along, across and in one matrix of many right-hand sides; corners are not read."""
    for place, value in itertools.product(range(4), (np.nan, np.inf, -np.inf)):
        for row in (0, 1, 20, 39):
            for pivot in ("partial", "none"):
                inputs = dominant(rng, (40, 19), "float64")
                inputs[place][row, 11] = value
                read = not (place == 0 and row == 0) and not (place == 2 and row == 39)
                expected = np.zeros(19, bool)
                expected[11] = read
                for x in (
                    solved(inputs, axis=0, pivot=pivot),
                    solved([np.ascontiguousarray(y.T) for y in inputs], pivot=pivot).T,
                ):
                    np.testing.assert_array_equal(np.isnan(x), np.broadcast_to(expected, x.shape))
                one = solved([y[:, 11].copy() for y in inputs], pivot=pivot)
                assert np.isnan(one).all() if read else np.isfinite(one).all()
                shared = solved((*(y[:, 11].copy() for y in inputs[:3]), inputs[3]), pivot=pivot)
                spoilt = expected if place == 3 else np.full(19, read)
                np.testing.assert_array_equal(np.isnan(shared), np.broadcast_to(spoilt, shared.shape))


def test_singular_and_nearly_singular():
    ones = np.ones((4, 9))
    diag = np.ones((4, 9))
    diag[1] = 0  # an odd number of rows with a zero diagonal
    diag[2] = 0
    diag[2, 4] = 1e-300  # regular, if barely
    diag[3] = 1e-310  # a diagonal of subnormal numbers
    lower = ones.copy()
    lower[3] = 0
    rhs = np.arange(1.0, 10) * ones
    rhs[3] = 1e-310
    upper = lower.copy()
    for given in ((lower, diag, upper, rhs), *([tuple(np.ascontiguousarray(y.T) for y in (lower, diag, upper, rhs))])):
        axis = -1 if given[0].shape == (4, 9) else 0
        x, status = solve_tridiagonal(*given, axis=axis, method="kernel", return_status=True)
        x = np.moveaxis(x, axis, -1)
        assert status[1] == 1
        assert np.isnan(x[1]).all()
        assert status[3] == 0
        np.testing.assert_allclose(x[3], 1, rtol=1e-10)
        finite = np.isfinite(x[2]).all()
        assert finite == (status[2] != 1)
    assert np.isnan(solve_tridiagonal(np.zeros(5), np.zeros(5), np.zeros(5), np.ones(5), method="kernel")).all()
    x = solve_tridiagonal(np.ones(2), np.zeros(2), np.ones(2), np.asarray([1.0, 2]), method="kernel")
    np.testing.assert_array_equal(x, [2, 1])


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_periodic(rng, dtype):
    """Random systems, and those without a diagonal, against dense elimination."""
    for n in (1, 2, 3, 4, 5, 6, 7, 32, 33, 65):
        inputs = tuple(random(rng, (19, n), dtype) for _ in range(4))
        if n % 2 == 0:
            inputs[1][:4] = 0
        for given, axis in ((inputs, -1), ([np.ascontiguousarray(x.T) for x in inputs], 0)):
            for transpose in (False, True):
                x = np.moveaxis(solved(given, axis=axis, periodic=True, transpose=transpose), axis, -1)
                for index in range(19):
                    a = dense(*(y[index] for y in inputs[:3]), periodic=True)
                    a = a.T if transpose else a
                    wide = x[index].astype(a.dtype)
                    rest = abs(a @ wide - inputs[3][index]) / (abs(a) @ abs(wide) + abs(inputs[3][index]))
                    # A residual is within a few eps of the largest of the numbers that make it.
                    size = max(1.0, np.max(abs(a)) * np.max(abs(wide)) / np.min(abs(a) @ abs(wide)))
                    assert np.max(rest) <= 32 * eps(dtype) * size


def test_periodic_ends():
    """A singular circulant, NaN in one of several systems, and no pivots."""
    ones = np.ones((3, 6))
    rhs = np.arange(18.0).reshape(3, 6)
    diag = np.asarray([[4.0], [np.nan], [0.0]]) * ones
    x, status = solve_tridiagonal(ones, diag, ones, rhs, periodic=True, return_status=True, method="kernel")
    np.testing.assert_array_equal(status[:2], [0, 1])
    assert np.isnan(x[1]).all()
    assert np.isfinite(x[0]).all()
    x = solve_tridiagonal(-ones, diag, -ones, rhs, periodic=True, pivot="none", method="kernel")
    assert np.isfinite(x[0]).all()
    assert np.isnan(solve_tridiagonal(0 * ones, 0 * ones, 0 * ones, rhs, periodic=True, method="kernel")).all()


def test_refusals_and_choice():
    """Systems of every length and batches; a dtype that LAPACK has not is refused."""
    for shape in ((2,), (64,), (5000,), (3, 64)):
        for periodic in (False, True):
            x = np.ones(shape)
            assert parprims.methods(solve_tridiagonal, *(x,) * 4, periodic=periodic)["kernel"] is None
    wide = np.ones(64, np.longdouble)
    if wide.dtype != np.float64:
        assert "does not compute in" in parprims.methods(solve_tridiagonal, *(wide,) * 4)["kernel"]


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_choice_beside_lapack(library):
    """LAPACK's routine reads arrays of few unknowns in less time than the kernel, numbers and corners in more."""
    pytest.importorskip(library)
    x = backends.make(library).asarray(np.full(100, 3.0))
    for arguments, options, expected in (
        ((x, x, x, x), {}, "native"),
        ((x, x, x, x), {"periodic": True}, "kernel"),
        ((-1.0, 3.0, -1.0, x), {}, "kernel"),
    ):
        with parprims.explain() as calls:
            solve_tridiagonal(*arguments, **options)
        assert calls[0].method == expected, (arguments, options, calls)


def test_verdicts_are_one_program(monkeypatch):
    """Of JAX: by one operation after another they take a hundred times as long."""
    pytest.importorskip("jax")
    backend = backends.make("jax")
    x = backend.asarray(np.full(101, 3.0))
    first = solve_tridiagonal(0.5, x, 0.5, x, return_status=True, return_residual=True)
    monkeypatch.setattr(public_tridiagonal, "safe_backward_error", None)
    again = solve_tridiagonal(0.5, x, 0.5, x, return_status=True, return_residual=True)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(one), backend.to_numpy(other))
