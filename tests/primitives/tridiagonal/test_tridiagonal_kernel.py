"""The kernel of tridiagonal systems: every way it cuts its work, and what a GPU brings; only machines with one run it,
and ``pytest --backend emulated`` on a CPU.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import parprims
from parprims import _cpu, _cuda, solve_tridiagonal
from parprims._core.layout import row_major
from parprims._cuda import xla
from parprims._dispatch.primitive import declared
from parprims._primitives.tridiagonal import cuda as tridiagonal_cuda
from parprims._primitives.tridiagonal.problem import TUNING, Problem, exchanging_block, fits_block
from tests.emulation import emulator
from tests.primitives.tridiagonal.test_tridiagonal import backward_error, dominant, dominant_bound, gtsv, thomas
from tests.primitives.tridiagonal.test_tridiagonal_stability import stability_classes
from tests.support.contract import eps, few_on_jax, random, reversed_view, strided, transposed, unaligned, within

DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture
def cut(monkeypatch):
    """Return a function that changes how the kernel cuts its work, whatever it changed before."""
    tuning = TUNING[90]

    def cut(**fields):
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(tuning, **fields))

    return cut


def solved(backend, inputs, **options):
    arrays = (backend.asarray(x) for x in inputs)
    return backend.to_numpy(solve_tridiagonal(*arrays, method="kernel", **options))


def check(backend, inputs, axis=-1, **options):
    """Solve random systems, which need exchanges; hold the backward error against LAPACK's."""
    x = np.moveaxis(solved(backend, inputs, axis=axis, **options), axis, -1)
    rows = tuple(np.ascontiguousarray(np.moveaxis(np.broadcast_to(y, np.shape(inputs[3])), axis, -1)) for y in inputs)
    allowed = 10 * np.maximum(backward_error(*rows, gtsv(*rows)), eps(rows[1].dtype.name))
    error, name = backward_error(*rows, x), "solve_tridiagonal, backward error"
    within(error, allowed, name, "kernel", rows[1].dtype.name, backend)


def check_dominant(backend, inputs, axis=-1, pivots=("none", "auto")):
    """Solve dominant systems, without exchanges, both pivots alike; hold the error against the bound documented."""
    inputs[1][...] *= 1.5  # what the kernel sees of complex numbers is short of their size by up to sqrt(2)
    rows = tuple(np.moveaxis(y, axis, 0) for y in inputs)
    expected = np.moveaxis(thomas(*rows), 0, axis)
    found = [solved(backend, inputs, axis=axis, pivot=pivot) for pivot in pivots]
    error, allowed = abs(found[0] - expected), dominant_bound(*inputs[:3], expected, axis)
    within(error, allowed, "solve_tridiagonal", "kernel", inputs[1].dtype.name, backend)
    assert all(x.tobytes() == found[0].tobytes() for x in found)
    return found[0]


def normal(rng, shape, dtype="float64"):
    return tuple(random(rng, shape, dtype) for _ in range(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tile_edges(gpu, rng, dtype, subtests):
    """Lengths around a thread's rows, and around the rows of 1, 2, 4, ... threads, along and across."""
    rows = TUNING[90].rows[np.dtype(dtype).itemsize]
    most = 256 if gpu.name == "emulated" else 2048
    edges = [rows * units for units in itertools.takewhile(lambda k: k <= most // rows, (2**k for k in range(12)))]
    lengths = sorted({n for edge in edges for n in (edge - 1, edge, edge + 1)} | {1, 2, 3})
    for n in few_on_jax(gpu, rng, lengths, 8):
        with subtests.test(n=n):
            check(gpu, normal(rng, (3, n), dtype))
            check(gpu, normal(rng, (n, 3), dtype), axis=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_longest(gpu, rng, dtype):
    """The most unknowns that fit a block, and a few more, which are cut in chunks."""
    n = next(n for n in range(1 << 15, 0, -4) if fits(n, dtype))
    check(gpu, normal(rng, (1, n), dtype))
    assert not fits(n + 4, dtype)
    check(gpu, normal(rng, (1, n + 4), dtype))
    for longer in (n, n + 4):
        check_dominant(gpu, dominant(rng, (1, longer), dtype))


def fits(n, dtype):
    return fits_block(TUNING[90], np.dtype(dtype).itemsize, n)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_every_length_in_order(gpu, rng, dtype):
    """Without exchanges, along and across: the same bits."""
    if gpu.name == "jax-cuda":
        pytest.skip("would compile 1200 programs")
    for n in range(1, 601):
        inputs = dominant(rng, (3, n), dtype)
        x = check_dominant(gpu, inputs, pivots=("none",))
        columns = tuple(np.ascontiguousarray(y.T) for y in inputs)
        assert np.ascontiguousarray(solved(gpu, columns, axis=0, pivot="none").T).tobytes() == x.tobytes(), n


@pytest.mark.parametrize("dtype", DTYPES)
def test_tile_edges_in_order(gpu, rng, dtype, subtests):
    """Lengths around the rows of 1, 2, 4, ... threads, and where a thread has twice as many."""
    size = np.dtype(dtype).itemsize
    rows, threads = TUNING[90].rows_in_order[size], TUNING[90].threads_in_order[size]
    edges = [rows * 2**k for k in range(threads.bit_length() + 1)]
    lengths = sorted({n for edge in edges for n in (edge - 1, edge, edge + 1) if fits(n, dtype)})
    for n in few_on_jax(gpu, rng, lengths, 8):
        with subtests.test(n=n):
            check_dominant(gpu, dominant(rng, (2, n), dtype))
            check_dominant(gpu, dominant(rng, (n, 2), dtype), axis=0)


def test_layouts_in_order(gpu, rng, subtests):
    """Strides, addresses and coefficients that broadcast change no bits; nor do right-hand sides of one system."""
    for n in (24, 300):
        inputs = dominant(rng, (5, n), "float32")
        expected = check_dominant(gpu, inputs)
        for view in (strided, reversed_view, transposed, unaligned):
            with subtests.test(n=n, view=view.__name__):
                arrays = [view(gpu, x) for x in inputs]
                x = gpu.to_numpy(solve_tridiagonal(*arrays, pivot="auto", method="kernel"))
                assert np.ascontiguousarray(x).tobytes() == expected.tobytes()
        for shapes in (((), (1,), (5, 1)), ((n,), (1, n), (5, n)), ((1, n), (), (n,))):
            with subtests.test(n=n, shapes=shapes):
                lower, upper = (random(rng, one, "float32") for one in (shapes[0], shapes[2]))
                diag = np.full(shapes[1], 8, "float32")
                whole = tuple(np.ascontiguousarray(np.broadcast_to(x, (5, n))) for x in (lower, diag, upper))
                x = solved(gpu, (lower, diag, upper, inputs[3]), pivot="auto")
                assert x.tobytes() == solved(gpu, (*whole, inputs[3]), pivot="none").tobytes()
        with subtests.test(n=n, numbers=True):
            whole = tuple(np.full((5, n), value, "float32") for value in (-1, 3, -1))
            x = gpu.to_numpy(solve_tridiagonal(-1, 3.0, -1, gpu.asarray(inputs[3]), pivot="none", method="kernel"))
            assert x.tobytes() == solved(gpu, (*whole, inputs[3]), pivot="none").tobytes()


# Shapes and axes, and how the work is cut, that take between them every way of a block's templates.
SMALL = (
    ((3, 7), -1, {}),  # a thread to a system, of several systems
    ((3, 20), -1, {}),  # threads of a warp
    ((2, 700), -1, {"threads": 256}),  # several warps, of several systems
    ((1, 700), -1, {}),  # a block to each
    ((3, 20), -1, {"waiting_threads": {4: 1}}),  # rows wait in shared memory, as they do where systems are side by side
    ((1, 700), -1, {"waiting_threads": {4: 1}}),
    ((7, 3), 0, {}),  # systems side by side
    ((20, 3), 0, {}),
    ((700, 3), 0, {}),
    ((700, 2), 0, {"interleaved_systems": 1}),
)


@pytest.mark.sanitize
@pytest.mark.parametrize("pivot", ["auto", "partial", "none"])
@pytest.mark.parametrize("periodic", [False, True])
def test_small(gpu, rng, cut, pivot, periodic, subtests):
    """Every way of the template, on systems that fill neither a thread nor a block."""
    for shape, axis, fields in SMALL:
        with subtests.test(shape=shape, axis=axis):
            cut(**fields)
            inputs = dominant(rng, shape, "float32")
            arrays = [gpu.asarray(x) for x in inputs]
            x, error = solve_tridiagonal(
                *arrays, axis=axis, pivot=pivot, periodic=periodic, method="kernel", return_residual=True
            )
            assert np.all(gpu.to_numpy(error) < 16 * eps("float32"))
            if not periodic:
                expected = np.moveaxis(thomas(*(np.moveaxis(y, axis, 0) for y in inputs)), 0, axis)
                np.testing.assert_allclose(gpu.to_numpy(x), expected.astype(np.float64), rtol=0, atol=1e-4)


@pytest.mark.sanitize
@pytest.mark.parametrize("axis", [-1, 0])
def test_blocks_take_systems_in_turn(gpu, rng, cut, axis):
    """One block for all that a launch leaves to the next: random systems to the second, singular ones to the third."""
    cut(blocks=1)
    inputs = normal(rng, (10, 700), "float32")
    for x in inputs[:3]:
        x[::2, 300] = 0
    inputs[1][1::2, 300] = 0.01  # a row that is not dominant
    given = tuple(np.ascontiguousarray(np.moveaxis(x, -1, axis)) for x in inputs)
    x = np.moveaxis(solved(gpu, given, axis=axis), axis, -1)
    assert np.all(np.isnan(x[::2]))
    rows = tuple(y[1::2] for y in inputs)
    allowed = 10 * np.maximum(backward_error(*rows, gtsv(*rows)), eps("float32"))
    assert np.all(backward_error(*rows, x[1::2]) <= allowed)


@pytest.mark.sanitize
def test_every_remainder(gpu, rng, subtests):
    """Of 32 lengths in turn: with exchanges and without, along and across."""
    for n in few_on_jax(gpu, rng, range(97, 129), 2):
        with subtests.test(n=n):
            check_dominant(gpu, dominant(rng, (3, n), "float32"), pivots=("none",))
            check(gpu, normal(rng, (3, n), "float32"))
            check(gpu, normal(rng, (n, 3), "float32"), axis=0)


@pytest.fixture
def long_ones(gpu, cut):
    """Return the array library; all systems but the shortest are long, their chunks short, of 32 threads each."""
    cut(
        shared_bytes=2000,
        rows_in_order=dict.fromkeys((4, 8, 16), 4),
        rows_exchanging={4: 8, 8: 4, 16: 2},
        chunk_threads=32,
        reducing_threads=32,
        reduced_rows={4: 4, 8: 2, 16: 2},
        reduced_threads=32,
        long_blocks=3,
        few_blocks=2,
        few_unknowns=400,
    )
    return gpu


@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_of_long_systems(long_ones, rng, dtype, subtests):
    """One stretch of rows and many, one level and several; what joins 32 chunks, and what joins those."""
    lengths = {128 * parts + more for parts in (3, 8, 9, 128) for more in (-1, 0, 1)}
    for n in few_on_jax(long_ones, rng, sorted(lengths), 3):
        with subtests.test(n=n):
            check_dominant(long_ones, dominant(rng, (2, n), dtype))
            if dtype == "float32":
                check_dominant(long_ones, dominant(rng, (n, 2), dtype), axis=0)
    with subtests.test(n="33 chunks"):
        check(long_ones, normal(rng, (1, 33 * 32 * TUNING[90].rows[np.dtype(dtype).itemsize] // 2), dtype))
    # What is left of so many parts has rows for one part, and for two.
    part = 32 * TUNING[90].rows_exchanging[np.dtype(dtype).itemsize]
    for parts in (part // 2, part // 2 + 1):
        with subtests.test(parts=parts):
            check(long_ones, normal(rng, (1, parts * part), dtype))


def test_long_systems_dominant_or_not(long_ones, rng):
    """Each has the bits of none or of partial, wherever the row stands that is not dominant."""
    n = 1500
    inputs = dominant(rng, (6, n), "float32")
    for system, row in ((1, 0), (3, n // 2), (5, n - 1)):
        inputs[1][system, row] = 1e-3
    x, none, partial = (solved(long_ones, inputs, pivot=pivot) for pivot in ("auto", "none", "partial"))
    assert x[::2].tobytes() == none[::2].tobytes()
    assert x[1::2].tobytes() == partial[1::2].tobytes()
    for system in range(6):
        one = solved(long_ones, tuple(y[system] for y in inputs), pivot="auto")
        assert one.tobytes() == x[system].tobytes()


# A system of few rows, of more, and of so many chunks that what joins them is joined again.
CHUNKS = (((4, 300), -1), ((700, 2), 0), ((1, 8500), -1))


@pytest.mark.sanitize
@pytest.mark.parametrize("pivot", ["auto", "partial", "none"])
@pytest.mark.parametrize("periodic", [False, True])
def test_small_chunks(long_ones, rng, subtests, periodic, pivot):
    for shape, axis in CHUNKS:
        with subtests.test(shape=shape):
            arrays = [long_ones.asarray(x) for x in dominant(rng, shape, "float32")]
            _, error = solve_tridiagonal(
                *arrays, axis=axis, pivot=pivot, periodic=periodic, method="kernel", return_residual=True
            )
            assert np.all(long_ones.to_numpy(error) < 16 * eps("float32"))


@pytest.mark.sanitize
def test_several_warps_solve_the_rest(gpu, rng, cut):
    """What remains of a long system has rows for more threads than a warp has; a block solves for several systems."""
    cut(shared_bytes=2000, reducing_threads=64, few_unknowns=400, long_blocks=1, few_blocks=1)
    kinds = [dominant, normal] * 2
    inputs = tuple(np.stack(x) for x in zip(*(make(rng, 66_000, "float32") for make in kinds), strict=True))
    check(gpu, inputs)
    check_dominant(gpu, dominant(rng, (1, 66_000), "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunk_edges(long_ones, rng, dtype, subtests):
    """One chunk and many, whole ones and parts of one row, numbers of them around powers of two."""
    rows = 32 * TUNING[90].rows[np.dtype(dtype).itemsize] // 2
    lengths = {rows * chunks + more for chunks in (1, 2, 3, 4, 5, 8, 33) for more in (-1, 0, 1)}
    for n in few_on_jax(long_ones, rng, sorted(lengths), 3):
        with subtests.test(n=n):
            check(long_ones, normal(rng, (2, n), dtype))
            if dtype == "float32":
                check(long_ones, normal(rng, (n, 2), dtype), axis=0)


def test_chunks_of_long_systems(long_ones, rng, subtests):
    """Periodic, broadcast, with several right-hand sides and axes; batch as single; losses stay in their system."""
    n = 900
    lower, diag, upper, rhs = normal(rng, (4, n))
    arrays = [long_ones.asarray(x) for x in (lower, diag, upper, rhs)]
    options = {"method": "kernel", "return_residual": True}
    with subtests.test("periodic"):
        x, error = solve_tridiagonal(*arrays, periodic=True, **options)
        assert np.all(long_ones.to_numpy(error) < 1e-14)
    with subtests.test("batch"):
        whole = solved(long_ones, (lower, diag, upper, rhs))
        for i in range(4):
            one = solved(long_ones, (lower[i], diag[i], upper[i], rhs[i]))
            assert one.tobytes() == whole[i].tobytes()
    with subtests.test("right-hand sides"):
        several = solved(long_ones, (lower, diag, upper, np.stack([rhs, rhs[::-1]], axis=-1)))
        assert np.ascontiguousarray(several[..., 0]).tobytes() == whole.tobytes()
    with subtests.test("constant"):
        x = solved(long_ones, (np.asarray(-1.0), np.asarray(2.5), np.ones((4, 1)), rhs), pivot="none")
        rows = tuple(np.full((4, n), value) for value in (-1, 2.5, 1))
        assert np.all(backward_error(*rows, rhs, x) < 1e-14)
    with subtests.test("axes"):
        check(
            long_ones,
            tuple(random(rng, one, "float64") for one in ((3, 1, 1, 1, n), (1, 2, 1, 2, n), (n,), (3, 2, 2, 2, n))),
        )
    with subtests.test("singular"):
        lower[2, n // 3] = diag[2, n // 3] = upper[2, n // 3] = 0
        x = solved(long_ones, (lower, diag, upper, rhs))
        assert np.all(np.isnan(x[2]))
        assert np.all(np.isfinite(x[[0, 1, 3]]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_systems_are_stable(long_ones, dtype, subtests):
    """On the matrices of studies of stability, as in test_tridiagonal.py."""
    rng = np.random.default_rng(5)
    for name, matrix in stability_classes(rng, 510, 1e7 if dtype == "float32" else 1e15).items():
        with subtests.test(matrix=name):
            lower, diag, upper = (x[None].astype(dtype) for x in matrix)
            lower[:, 0] = upper[:, -1] = 0
            check(long_ones, (lower, diag, upper, random(rng, (1, 510), dtype)))


def test_layouts(gpu, rng, subtests):
    """Axes that merge and axes that do not, strides of every kind, coefficients that broadcast."""
    for view in (strided, reversed_view, transposed, unaligned):
        for shape, axis in (((4, 9), 1), ((9, 4), 0), ((2, 9, 3), 1), ((3, 2, 9), 2), ((9, 2, 3), 0)):
            with subtests.test(view=view.__name__, shape=shape, axis=axis):
                inputs = normal(rng, shape)
                arrays = [view(gpu, x) for x in inputs]
                x = gpu.to_numpy(solve_tridiagonal(*arrays, axis=axis, method="kernel"))
                np.testing.assert_array_equal(x, solved(gpu, inputs, axis=axis))
                check(gpu, inputs, axis=axis)
    for shapes in (
        ((9,), (1, 1, 9), (5, 1, 9), (5, 3, 9)),
        ((1,), (3, 1), (5, 3, 9), (5, 3, 9)),
        ((5, 1, 2, 1, 9), (1, 3, 1, 2, 9), (9,), (5, 3, 2, 2, 9)),
    ):
        with subtests.test(shapes=shapes):
            check(gpu, tuple(random(rng, shape, "float64") for shape in shapes))


def test_right_hand_sides_share_a_matrix(gpu, rng, subtests):
    """Several, whatever the layout, give the bits of each alone."""
    for make in (dominant, normal):
        for n in (50, 300):
            lower, diag, upper, _ = make(rng, (3, n), "float64")
            rhs = random(rng, (3, n, 7), "float64")
            with subtests.test(make=make.__name__, n=n):
                several = solved(gpu, (lower, diag, upper, rhs))
                one_system = solved(gpu, (lower[0], diag[0], upper[0], rhs[0]))
                for k in range(7):
                    assert solved(gpu, (lower, diag, upper, rhs[..., k])).tobytes() == several[..., k].tobytes()
                    assert np.ascontiguousarray(one_system[:, k]).tobytes() == several[0, :, k].tobytes()


@pytest.mark.parametrize("shape", [(70,), (13, 70), (70, 5)])
def test_calls_like_one_before(tensors, rng, subtests, monkeypatch, shape):
    """They go straight to their kernel, and those that only resemble one do not."""
    import torch
    from torch.autograd import forward_ad

    axis = -2 if shape == (70, 5) else -1
    for options in ({}, {"pivot": "none"}, {"periodic": True}, {"transpose": True}):
        for at in range(4):
            inputs = normal(rng, shape, "float32")
            inputs[1][...] += 5 * np.sign(inputs[1])
            rows = (x.astype(np.float64) for x in inputs)
            expected = solve_tridiagonal(*rows, axis=axis, method="array", **options)
            with subtests.test(options=options, at=at), monkeypatch.context() as patch:
                if at == 3 and not options.get("transpose"):
                    patch.setattr(declared["solve_tridiagonal"], "methods", None)  # nothing is left to choose
                found = solved(tensors, inputs, axis=axis, **options)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    arrays = [tensors.asarray(x) for x in inputs]

    def solve(*arrays, **options):
        return solve_tridiagonal(*arrays, axis=axis, **options)

    x = solve(*arrays)
    y, error = solve(*arrays, return_residual=True)
    assert torch.equal(x, y)
    assert error.shape == y.sum(axis).shape
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(solve(*arrays[:3], forward_ad.make_dual(arrays[3], arrays[3]))).tangent
    torch.testing.assert_close(tangent, x)
    rhs = arrays[3].clone().requires_grad_(True)
    (derivative,) = torch.autograd.grad(solve(*arrays[:3], rhs).sum(), rhs)
    torch.testing.assert_close(derivative, solve(*arrays[:3], torch.ones_like(rhs), transpose=True))
    with parprims.explain() as told:
        solve(*arrays)
    assert told[0].method == "kernel"


def test_cut_changes_no_bits(gpu, rng, cut):
    """Systems in a block, and where their rows lie."""
    inputs = normal(rng, (13, 70), "float32")
    expected = solved(gpu, inputs)
    columns = tuple(np.ascontiguousarray(x.T) for x in inputs)
    for fields in (
        {"threads": 16},
        {"threads": 256},
        {"interleaved_systems": 2},
        {"interleaved_systems": 8, "interleaved_words": 64},
    ):
        cut(**fields)
        assert solved(gpu, inputs).tobytes() == expected.tobytes()
        assert np.ascontiguousarray(solved(gpu, columns, axis=0).T).tobytes() == expected.tobytes()


@pytest.mark.parametrize("long", [False, True])
def test_registers_suffice(gpu, rng, monkeypatch, cut, long):
    """Systems that a launch solves in registers are not left to the stable way, which is taken away here."""
    cut(**({"shared_bytes": 2000, "reducing_threads": 64} if long else {}))
    name = "make_long_plan" if long else "make_short_plan"
    made = getattr(tridiagonal_cuda, name)

    def without_stable_way(*arguments):
        whole = made(*arguments)
        stable = ("solve_stable", "solve_stably")
        kept = tuple(one for one in whole.launches if one.template not in stable)
        assert len(kept) < len(whole.launches)
        return dataclasses.replace(whole, launches=kept)

    monkeypatch.setattr(tridiagonal_cuda, name, without_stable_way)
    for n, pivot in ((600, "auto"), (1000, "partial")) if long else ((20, "auto"), (700, "partial")):
        check(gpu, dominant(rng, (5, n), "float32"), pivot=pivot)
        if not long:  # one step of refinement serves these
            inputs = normal(rng, (5, n))
            check(gpu, inputs, pivot=pivot)
            check(gpu, tuple(np.ascontiguousarray(x.T) for x in inputs), axis=0, pivot=pivot)


@pytest.fixture
def without_more(monkeypatch, cut):
    """Return a function that makes systems long ones, and takes away all launches from the first of a template on."""
    made = tridiagonal_cuda.make_long_plan

    # What the missing launches would zero.
    text = """
    template <int WORDS>
    __device__ void clear(unsigned* zeroed) {
        for (int k = 0; k < WORDS; ++k) zeroed[k] = 0;
    }
    """

    def than_before(template):
        def shortened(*arguments):
            whole = made(*arguments)
            end = next(at for at, one in enumerate(whole.launches) if one.template == template)
            parameters = (_cuda.Pointer("zeroed", "unsigned"),)
            clearing = _cuda.Launch(text, "clear", (whole.zeroed_bytes // 4,), parameters, 1, 1)
            return dataclasses.replace(whole, launches=(*whole.launches[:end], clearing))

        cut(shared_bytes=2000, reducing_threads=64, few_unknowns=0)
        monkeypatch.setattr(tridiagonal_cuda, "make_long_plan", shortened)

    return than_before


def row_errors(lower, diag, upper, rhs, x):
    """Return the backward error of every row of one system, in eps and in the precision given."""
    zero = np.zeros(1, x.dtype)
    terms = (lower * np.concatenate([zero, x[:-1]]), diag * x, upper * np.concatenate([x[1:], zero]))
    size = sum(abs(y.real) + abs(y.imag) for y in (rhs, *terms))
    rest = abs(rhs - terms[0] - terms[1] - terms[2])
    return np.divide(rest, size, out=np.zeros_like(rest), where=rest > 0) / eps(x.dtype.name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_mended(gpu, rng, without_more, dtype):
    """Rows that a first solution loses, wherever they stand, from the rows around them alone."""
    n = int(rng.integers(30_000, 34_000))
    systems = tuple(random(rng, (3, n), dtype) for _ in range(4))
    systems[0][:, 0] = systems[2][:, -1] = 0
    found = []
    for template in ("refine_windows", "solve_stably"):
        without_more(template)
        found.append([row_errors(*one) for one in zip(*systems, solved(gpu, systems), strict=True)])
    first, mended = found
    assert sum(int(np.sum(errors > 8)) for errors in first) > 20
    # A few rows in a hundred million are excused, and parts of the matrix that are near singular are left.
    assert sum(int(np.sum(errors > 9)) for errors in mended) <= 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_that_are_nearly_singular(gpu, rng, cut, dtype):
    """Some rows of a long system are to rounding a matrix with a null vector, which makes x large there."""
    n = 16_000
    cut(shared_bytes=2000, reducing_threads=64, few_unknowns=0)
    lower, diag, upper, rhs = (random(rng, (1, n), dtype) for _ in range(4))
    for centre in (50, 3000, 5120, 9000, n - 50):
        places = np.arange(centre - 40, centre + 41)
        vector = np.exp(-0.4 * abs(places - centre)) * rng.uniform(0.5, 1, 81) * rng.choice([-1, 1], 81)
        inner = places[1:-1]
        diag[0, inner] = -(lower[0, inner] * vector[:-2] + upper[0, inner] * vector[2:]) / vector[1:-1]
    check(gpu, (lower, diag, upper, rhs))


def test_dominance_is_seen_system_by_system(gpu, rng, subtests):
    """A dominant system gives the bits of pivot none, any other those of partial, whatever its neighbours are."""
    for n in (5, 64, 300):
        for dtype in ("float32", "complex128"):
            with subtests.test(n=n, dtype=dtype):
                stable, other = dominant(rng, (6, n), dtype), normal(rng, (6, n), dtype)
                stable[1][...] *= 2  # what the kernel sees of complex numbers is short of their size by up to sqrt(2)
                for x in other:
                    x[:, n // 2] = 1  # a row that is not dominant
                mixed = tuple(
                    np.where(np.arange(6)[:, None] % 2 == 0, x, y) for x, y in zip(stable, other, strict=True)
                )
                x = solved(gpu, mixed, pivot="auto")
                none, partial = solved(gpu, mixed, pivot="none"), solved(gpu, mixed, pivot="partial")
                assert x[::2].tobytes() == none[::2].tobytes()
                assert x[1::2].tobytes() == partial[1::2].tobytes()


def test_one_row_that_is_not_dominant(gpu, rng):
    """Wherever it stands it is found."""
    n = 100
    lower, diag, upper, rhs = (np.repeat(x, n, axis=0) for x in dominant(rng, (1, n), "float64"))
    np.fill_diagonal(diag, 0)
    check(gpu, (lower, diag, upper, rhs))
    partial = solved(gpu, (lower, diag, upper, rhs), pivot="partial")
    assert solved(gpu, (lower, diag, upper, rhs)).tobytes() == partial.tobytes()


def test_scaling(gpu, subtests):
    """Rows near the ends of the range of exponents, and subnormal ones, are solved as if they were not."""
    rng = np.random.default_rng(2)
    for dtype, exponents in (("float32", (-140, -126, -60, 60, 126, 127)), ("float64", (-1060, -1022, 1000, 1023))):
        lower, diag, upper, _ = (np.round(64 * x) / 64 for x in dominant(rng, (1, 20), "float64"))
        x = rng.integers(1, 8, (1, 20)).astype(float)
        for exponent in exponents:
            with subtests.test(dtype=dtype, exponent=exponent):
                largest = np.max(abs(diag)) * 16
                scale = 2.0 ** (exponent - (np.ceil(np.log2(largest)) if exponent > 0 else 0))
                rows = tuple((y * scale).astype(dtype) for y in (lower, diag, upper))
                wide = tuple(y.astype(np.longdouble) for y in rows)
                rhs = wide[1] * x
                rhs[:, 1:] += wide[0][:, 1:] * x[:, :-1]
                rhs[:, :-1] += wide[2][:, :-1] * x[:, 1:]
                for pivot in ("partial", "none"):
                    y = solved(gpu, (*rows, rhs.astype(dtype)), pivot=pivot)
                    error = backward_error(*rows, rhs.astype(dtype), y)
                    # A residual of subnormal numbers is known to one of them.
                    allowed = 16 * eps(dtype) if exponent > -1000 and (dtype != "float32" or exponent > -120) else 0.05
                    assert np.all(error < allowed)


def test_every_thread_sees_the_loss(gpu, rng):
    """A system that is singular at one place is NaN throughout, and its neighbours are not."""
    for n in (40, 300):
        lower, diag, upper, rhs = normal(rng, (4, n))
        lower[2, n // 3] = diag[2, n // 3] = upper[2, n // 3] = 0
        x = solved(gpu, (lower, diag, upper, rhs))
        assert np.all(np.isnan(x[2]))
        assert np.all(np.isfinite(x[[0, 1, 3]]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *DTYPES])
def test_serves_every_dtype(gpu, rng, dtype):
    """It refuses none, is the first choice of auto, and returns what it was given."""
    if not gpu.supports(dtype):
        pytest.skip(f"{gpu.name} has no {dtype} arithmetic")
    inputs = dominant(rng, (2, 40), dtype)
    arrays = [gpu.asarray(x) for x in inputs]
    assert next(iter(parprims.methods(solve_tridiagonal, *arrays).items())) == ("kernel", None)
    x = solved(gpu, inputs)
    assert x.dtype == inputs[3].dtype
    expected = np.moveaxis(thomas(*(np.moveaxis(y, -1, 0) for y in inputs)), 0, -1)
    assert np.all(abs(x.astype(expected.dtype) - expected) <= dominant_bound(*inputs[:3], expected, -1))


# ---- Plans, which need no GPU -----------------------------------------------------------------------------------


def plan(shape, axis, dtype="float32", shapes=None, *, periodic=False, pivot="auto", columns=0):
    shapes = shapes or (shape,) * 4
    layouts = tuple((row_major(one), 0) for one in shapes)
    problem = Problem(shape, axis, periodic, pivot, dtype, columns, shapes, layouts)
    return tridiagonal_cuda.make_short_plan(problem, TUNING[90])


def test_plans_fit(subtests):
    """Blocks are whole warps of at most 1024 threads, with no more shared memory than there is."""
    for dtype in DTYPES:
        for n in (1, 2, 31, 32, 33, 128, 512, 1000, 1500):
            for axis in (-1, -2):
                with subtests.test(dtype=dtype, n=n, axis=axis):
                    one = plan((1000, n) if axis == -1 else (n, 1000), axis, dtype)
                    for launch in one.launches:
                        assert launch.block % 32 == 0
                        assert launch.block <= 1024
                        assert launch.shared_bytes <= 227 << 10
                    first = one.launches[0]
                    assert first.grid * first.block * first.arguments[1] >= 1000 * n


@pytest.mark.parametrize("shared_bytes", [48 << 10, 64 << 10, 99 << 10, 227 << 10])
def test_rows_fit_shared_memory(shared_bytes):
    """Where a block of the stable solver fits, so do the rows and what warps exchange in elimination by registers."""
    tuning = dataclasses.replace(TUNING[90], shared_bytes=shared_bytes)
    for nbytes in (4, 8, 16):
        lengths = [n for n in range(1, 8300) if fits_block(tuning, nbytes, n)]
        assert len(lengths) > 256
        for n, interleaved in itertools.product(lengths, (False, True)):
            block = exchanging_block(tuning, nbytes, n, interleaved)
            warps = 12 * nbytes * (block.size // 32) + 4 * block.systems
            assert block.shared_bytes + warps <= shared_bytes, (nbytes, n, interleaved)


def test_small_systems_take_every_way(cut):
    """A thread, a warp and more to a system, one and several systems to a block, along and across."""
    found = set()
    for shape, axis, fields in SMALL:
        cut(**fields)
        for launch in plan(shape, axis).launches:
            _, _, threads, systems, interleaved = launch.arguments[:5]
            size = ("1", "warp", "more")[(threads > 1) + (threads > 32)]
            found.add((launch.template, size, systems == 1, interleaved))
    for name in ("solve_in_order", "solve_exchanging", "solve_stable"):
        for interleaved in (False, True):
            for threads, alone in (("1", False), ("warp", False), ("more", False), ("more", True)):
                if (name, threads, alone, interleaved) != ("solve_exchanging", "more", False, False):  # has none such
                    assert (name, threads, alone, interleaved) in found


def test_plans_of_too_many_axes():
    """Four axes that do not merge have no plan; copies of them have."""
    shapes = ((5, 1, 2, 1, 9), (1, 3, 1, 2, 9), (9,), (5, 3, 2, 2, 9))
    assert plan((5, 3, 2, 2, 9), -1, shapes=shapes) is None
    assert plan((5, 3, 2, 2, 9), -1) is not None


@pytest.mark.parametrize("axis", [-1, -2])
def test_jax_plumbing(monkeypatch, axis):
    """Away from a GPU the traced kernel is the array form: jit, vmap and derivatives go through it."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(jax.devices("cpu")[0]):
        _check_jax_plumbing(jax, monkeypatch, axis)


def _check_jax_plumbing(jax, monkeypatch, axis):
    monkeypatch.setattr(_cpu, "on_cpu", lambda *_: False)
    monkeypatch.setattr(_cuda, "has_devices", lambda: True)
    monkeypatch.setattr(_cuda, "refusal", lambda *_: None)
    monkeypatch.setattr(_cuda, "layout", lambda _, x: (row_major(x.shape), 0))
    monkeypatch.setattr(_cuda, "capability", lambda *_: 90)
    monkeypatch.setattr(_cuda, "multiprocessors", lambda *_: None)
    monkeypatch.setattr(
        xla, "embedded", lambda plan, _: tuple(jax.numpy.zeros(shape, name) for shape, name in plan.outputs)
    )
    emulator.forget(monkeypatch)
    rng = np.random.default_rng(1)
    lower, diag, upper, rhs = (np.moveaxis(x, -1, axis) for x in dominant(rng, (2, 3, 9), "float64"))
    expected = solve_tridiagonal(lower, diag, upper, rhs, axis=axis, method="array")
    arrays = tuple(map(jax.numpy.asarray, (lower, diag, upper, rhs)))
    np.testing.assert_allclose(solve_tridiagonal(*arrays, axis=axis, method="kernel"), expected, rtol=1e-12)
    # The array form without exchanges of rows is much the shorter program.
    solve = functools.partial(solve_tridiagonal, axis=axis, method="kernel", pivot="none")
    np.testing.assert_allclose(solve(*arrays), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(solve)(*arrays), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(solve)(*arrays), expected, rtol=1e-12)
    same = solve_tridiagonal(lower[0], diag, upper[0], rhs, axis=axis, method="array")
    mapped = jax.vmap(solve, in_axes=(None, 0, None, 0))(arrays[0][0], arrays[1], arrays[2][0], arrays[3])
    np.testing.assert_allclose(mapped, same, rtol=1e-12)
    several = jax.vmap(lambda *a: solve(*a, jax.numpy.stack([arrays[3][0]] * 4, axis=-1)))(*arrays[:3])
    again = [solve_tridiagonal(lower[k], diag[k], upper[k], rhs[0], axis=axis, method="array") for k in range(2)]
    np.testing.assert_allclose(several[..., 3], np.stack(again), rtol=1e-12)
    slopes = jax.grad(lambda *a: solve(*a).sum(), argnums=(0, 1, 2, 3))(*arrays)
    by_array = functools.partial(solve_tridiagonal, axis=axis, method="array", pivot="none")
    others = jax.jit(jax.grad(lambda *a: by_array(*a).sum(), argnums=(0, 1, 2, 3)))(*arrays)
    for one, other in zip(slopes, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    x = jax.numpy.ones(10_000)
    found = solve_tridiagonal(x, 4 * x, x, 6 * x, method="kernel", pivot="none")
    np.testing.assert_allclose(found[100:-100], 1, rtol=1e-12)
