"""Tridiagonal systems whose unknowns are split over devices, against dense solutions."""

import functools

import numpy as np
import pytest

import parprims
from parprims._devices import calls, communicator, tridiagonals
from tests.on_devices.test_devices_scans import mesh_of, put
from tests.on_jax import test_jax
from tests.support import devices

jax = test_jax.jax

N = 24


@pytest.mark.usefixtures("jax")
def test_on_eight_devices(backend, subtests):
    if backend.cuda:
        pytest.skip("is of a CPU")
    devices.hold("tests.on_devices.test_devices_tridiagonal", subtests)


@pytest.mark.once
def test_ends_of_long_systems():
    """One program for all parts has the number of its own in 32 bits, in which 4 * 2^30 would be 0."""
    ones = np.ones((1, 3))
    for rank in (0, 2, 4, 7):
        place = communicator.Place(np.asarray(rank, np.int32), (2**30,) * 8)
        lower, upper = tridiagonals._ends_cleared(np, place, ones, ones)
        assert lower.tolist() == [[rank > 0, 1, 1]]
        assert upper.tolist() == [[1, 1, rank < 7]]


# ---- In the process with eight devices --------------------------------------------------------------------------

RNG = np.random.default_rng(25)
ONES, ZEROS = np.ones(N), np.zeros(N)
SYSTEMS = {
    "random": tuple(RNG.standard_normal((4, N))),
    # Each part of three rows is singular by itself: 0 1 / 1 0 1 / 1 0.
    "singular parts": (ONES, ZEROS, ONES, RNG.standard_normal(N)),
    # Unknowns that change places in pairs, of which parts cut some.
    "permuted": (np.arange(N) % 2 * ONES, ZEROS, 1 - np.arange(N) % 2 * ONES, np.arange(1.0, N + 1)),
    "graded": (10.0 ** -np.arange(N), 10.0 ** -np.arange(N), 3 * 10.0 ** -np.arange(N), 10.0 ** -np.arange(N)),
}  # fmt: skip


def dense(lower, diag, upper, periodic):
    n = diag.size
    matrix = np.diag(diag) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    if periodic:
        matrix[0, -1] += lower[0]
        matrix[-1, 0] += upper[n - 1]
    return matrix


def split_up(arrays, mesh, *spec):
    return tuple(put(x, mesh, *spec) for x in arrays)


def check_systems_on_any_number_of_devices():
    # The bound is the one of the docstring: ten eps, and no more than ten times the error of one device.
    for count, kinds in ((1, (False,)), (2, (True,)), (3, (False,)), (8, (False, True))):
        mesh = mesh_of(count, "Auto" if count == 2 else "Explicit")
        calls.QUICK_SYSTEMS = (
            1 if count == 3 else 2**16
        )  # by blocks where none is singular, and by the driver elsewhere
        for name, arrays in SYSTEMS.items():
            for periodic in kinds:
                transpose = periodic
                if name in ("permuted", "singular parts") and periodic:
                    continue
                with parprims.explain() as told:
                    x, error, status = parprims.solve_tridiagonal(
                        *split_up(arrays, mesh, "i"), periodic=periodic, transpose=transpose,
                        return_residual=True, return_status=True,
                    )  # fmt: skip
                assert [one.devices for one in told] == [count]
                matrix = dense(*arrays[:3], periodic)
                matrix = matrix.T if transpose else matrix
                size = np.abs(matrix) @ np.abs(np.asarray(x)) + np.abs(arrays[3])
                found = np.max(np.abs(arrays[3] - matrix @ np.asarray(x)) / np.where(size == 0, 1, size))
                assert found <= 20 * np.finfo(float).eps, (count, name, periodic)
                np.testing.assert_allclose(float(error), found, atol=2 * np.finfo(float).eps)
                assert int(status) == 0
    zero, rhs = put(ZEROS, mesh, "i"), put(ONES, mesh, "i")
    x, error, status = parprims.solve_tridiagonal(zero, zero, zero, rhs, return_residual=True, return_status=True)
    assert np.isnan(np.asarray(x)).all()
    assert (float(error), int(status)) == (np.inf, 1)


def check_what_is_not_finite_in_16_bits():
    mesh = mesh_of(8)
    big = put(np.full(N, 6e4, np.float16), mesh, "i")
    half = put(np.full(N, 0.5, np.float16), mesh, "i")
    x = parprims.solve_tridiagonal(put(np.zeros(N, np.float16), mesh, "i"), half, 0.0, big)
    assert x.dtype == np.float16
    assert np.isnan(np.asarray(x)).all()  # 120000 is not finite in it, in any part


def check_batches_columns_and_programs():
    import jax

    mesh = mesh_of(8, names=("i", "j"), shape=(4, 2))
    rhs = RNG.standard_normal((N, 2))
    lower, diag, upper, _ = SYSTEMS["random"]
    expected = np.linalg.solve(dense(lower, diag, upper, False), rhs)
    found = parprims.solve_tridiagonal(*split_up((lower, diag, upper), mesh, "i"), put(rhs, mesh, "i", "j"))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert found.sharding.is_equivalent_to(put(rhs, mesh, "i", "j").sharding, 2)
    with parprims.explain() as told:
        found = parprims.solve_tridiagonal(-1.0, 3.0, -1.0, put(rhs.T, mesh, "j"))
    np.testing.assert_allclose(found, np.linalg.solve(dense(-ONES, 3 * ONES, -ONES, False), rhs).T, rtol=1e-10)
    assert not told[0].steps
    spec = jax.sharding.PartitionSpec

    def loss(*arrays):
        return (parprims.solve_tridiagonal(*arrays) ** 2).sum()

    arrays = (ONES, 4 + diag, -ONES, rhs[:, 0])
    expected = jax.grad(loss, (0, 1, 2, 3))(*map(jax.numpy.asarray, arrays))
    gradient = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    for one, other in zip(gradient(*split_up(arrays, mesh, "i")), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    mapped = jax.shard_map(
        lambda *xs: parprims.solve_tridiagonal(*xs, axis_name="i"), mesh=mesh, in_specs=spec("i"), out_specs=spec("i")
    )
    x = np.linalg.solve(dense(*arrays[:3], False), arrays[3])
    np.testing.assert_allclose(jax.jit(mapped)(*split_up(arrays, mesh, "i")), x, rtol=1e-12)
    auto = mesh_of(8, "Auto", ("i", "j"), (4, 2))
    long = split_up([np.tile(x, 20) for x in arrays], auto, "i")
    compiled = jax.jit(parprims.solve_tridiagonal).lower(*long).compile()
    x = np.linalg.solve(dense(*(np.tile(x, 20) for x in arrays[:3]), False), np.tile(arrays[3], 20))
    np.testing.assert_allclose(compiled(*long), x, rtol=1e-12)
    assert f"f64[{20 * N}]" not in compiled.as_text()
    with pytest.raises(parprims.MethodRefused, match="by array"):
        parprims.solve_tridiagonal(*long, method="native")


def check_parts_that_depend_on_others_near_their_ends_alone():
    """They are solved by their ends, and others by the driver."""
    import jax

    mesh = mesh_of(2)
    solve = functools.partial(parprims.solve_tridiagonal, return_residual=True)
    kept = communicator.replaced_unless
    calls.QUICK_SYSTEMS = 1
    try:
        for n, decay, way in ((512, 1e3, lambda serves, x, _: jax.numpy.where(serves, x, np.nan)), (384, 2.5, kept)):
            communicator.replaced_unless = way
            lower, upper, rhs = RNG.uniform(-1, 1, (3, 2, n))
            diag = RNG.uniform(decay, decay + 1, (2, n))
            if decay < 3:
                rhs[:, 3:300] = 0  # where the solution decays to nothing
            for options in ({}, {"periodic": True, "transpose": True}):
                if options and decay < 3:
                    continue
                given = split_up((lower, diag, upper, rhs), mesh, None, "i")
                x, error = jax.jit(functools.partial(solve, **options))(*given)
                expected = parprims.solve_tridiagonal(lower, diag, upper, rhs, **options)
                np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-12, atol=1e-290)
                assert (np.asarray(error) <= 10 * np.finfo(float).eps).all()
    finally:
        communicator.replaced_unless, calls.QUICK_SYSTEMS = kept, 2**16


def check_many_systems_are_solved_piece_by_piece():
    """Pieces of two systems, the last of which overlaps that before it; the quick way by blocks, and the driver."""
    import jax

    mesh = mesh_of(2, names=("i", "j"), shape=(2, 1))
    lower, diag, upper, rhs = (np.stack([x * (1 + k / 8) for k in range(5)]) for x in SYSTEMS["random"])
    matrices = [dense(*rows, False) for rows in zip(lower, diag, upper, strict=True)]
    expected = np.stack([np.linalg.solve(*one) for one in zip(matrices, rhs, strict=True)])
    communicator.PIECE = N
    try:
        for quick in (2**16, 1):
            calls.QUICK_SYSTEMS = quick
            given = split_up((lower, diag, upper, rhs), mesh, None, "i")
            text = str(jax.make_jaxpr(parprims.solve_tridiagonal)(*given))
            assert f"f64[2,{N // 2}]" in text  # a piece
            np.testing.assert_allclose(parprims.solve_tridiagonal(*given), expected, rtol=1e-9)
            turned = split_up([x.T for x in (lower, diag, upper, rhs)], mesh, "i")
            np.testing.assert_allclose(parprims.solve_tridiagonal(*turned, axis=0), expected.T, rtol=1e-9)
        slope = jax.jit(jax.grad(lambda d, *xs: parprims.solve_tridiagonal(*xs, d).sum()))(given[3], *given[:3])
        np.testing.assert_allclose(slope, [np.linalg.solve(one.T, ONES) for one in matrices], rtol=1e-8)
    finally:
        communicator.PIECE, calls.QUICK_SYSTEMS = 2**25, 2**16


if __name__ == "__main__":
    import jax as own

    own.config.update("jax_enable_x64", True)
    devices.run_all(globals())
