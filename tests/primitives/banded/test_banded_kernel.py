"""Banded and block tridiagonal systems by the kernel for GPUs, in batches, against dense matrices and LAPACK."""

import numpy as np
import pytest

import parprims
from tests.primitives.banded.test_banded import FAMILIES, backward_error, dense, dense_blocks, drawn
from tests.support.contract import eps, random


def of_lapack(matrix, b):
    return backward_error(matrix, np.linalg.solve(matrix, b), b)


@pytest.mark.sanitize
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("widths", [(1, 1), (2, 2), (1, 2), (0, 1)])
def test_bands_of_many_systems(gpu, run, rng, widths, periodic):
    """Batches that end within a block of threads, with lengths that leave rows over."""
    for n in (5, 6, 7, 8, 23):
        ab, b = random(rng, (37, sum(widths) + 1, n), "float64"), random(rng, (37, n), "float64")
        options = {"periodic": periodic, "method": "kernel"}
        x = gpu.to_numpy(run(parprims.solve_banded, widths, gpu.asarray(ab), gpu.asarray(b), **options))
        for one, right, found in zip(ab, b, x, strict=True):
            matrix = dense(widths, one, periodic)
            assert backward_error(matrix, found, right) <= max(10 * of_lapack(matrix, right), eps("float64"))


@pytest.mark.sanitize
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_blocks_of_many_systems(gpu, run, rng, k, periodic):
    for n in (3, 4, 9):
        lower, diag, upper = (random(rng, (33, n, k, k), "float64") for _ in range(3))
        b = random(rng, (33, n, k), "float64")
        given = [gpu.asarray(one) for one in (lower, diag, upper, b)]
        x = gpu.to_numpy(run(parprims.solve_block_tridiagonal, *given, periodic=periodic, method="kernel"))
        for at in range(33):
            matrix = dense_blocks(lower[at], diag[at], upper[at], periodic)
            error = backward_error(matrix, x[at].reshape(-1), b[at].reshape(-1))
            assert error <= max(10 * of_lapack(matrix, b[at].reshape(-1)), eps("float64"))


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_the_largest_blocks(gpu, run, rng, dtype):
    """Four rows, with several right-hand sides, and blocks that all systems share."""
    lower, upper = (random(rng, (6, 4, 4), dtype) for _ in range(2))
    diag, b = random(rng, (3, 6, 4, 4), dtype), random(rng, (3, 6, 4, 2), dtype)
    given = [gpu.asarray(one) for one in (lower, diag, upper, b)]
    x = gpu.to_numpy(run(parprims.solve_block_tridiagonal, *given, method="kernel"))
    for at in range(3):
        matrix = dense_blocks(lower, diag[at], upper)
        right = b[at].reshape(24, 2)
        error = backward_error(matrix, x[at].reshape(24, 2), right)
        assert error <= max(10 * of_lapack(matrix, right), eps(dtype))


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_as_well_as_lapack(gpu, run, rng, family, periodic):
    """Long systems, of which LAPACK's error is the measure."""
    ab, b = drawn(rng, (5, 401), "float64", family, 2), random(rng, (401, 3), "float64")
    options = {"periodic": periodic, "method": "kernel"}
    x = gpu.to_numpy(run(parprims.solve_banded, (2, 2), gpu.asarray(ab[None]), gpu.asarray(b[None]), **options))[0]
    matrix = dense((2, 2), ab, periodic)
    assert backward_error(matrix, x, b) <= max(10 * of_lapack(matrix, b), eps("float64"))


def test_strided_arrays(gpu, run, rng):
    """Every other system, and diagonals that run backward."""
    ab, b = random(rng, (8, 3, 20), "float64"), random(rng, (8, 40), "float64")
    ab[:, 1] += 4
    given = gpu.asarray(ab)[::2, :, :], gpu.asarray(b)[::2, ::2]
    x = gpu.to_numpy(run(parprims.solve_banded, (1, 1), *given, method="kernel"))
    for one, right, found in zip(ab[::2], b[::2, ::2], x, strict=True):
        np.testing.assert_allclose(found, np.linalg.solve(dense((1, 1), one), right), atol=1e-13)


@pytest.mark.parametrize("periodic", [False, True])
def test_derivatives_by_the_kernel(tensors, rng, periodic):
    """The transposed system is solved by the kernel too, diagonals by row."""
    import torch

    ab, b = random(rng, (2, 4, 6), "float64"), random(rng, (2, 6), "float64")
    ab[:, 2] += 4
    given = [tensors.asarray(one) for one in (ab, b)]
    given = [one if isinstance(one, torch.Tensor) else torch.from_numpy(one) for one in given]
    leaves = [one.clone().requires_grad_() for one in given]

    def solved(*arrays):
        return parprims.solve_banded((1, 2), *arrays, periodic=periodic, method="kernel")

    assert torch.autograd.gradcheck(solved, leaves)


def test_few_long_systems_go_another_way(gpu):
    in_program = gpu.family == "jax"
    for systems, n, serves in ((3, 70, not in_program), (3, 20_000, False), (600, 70, True)):
        ab, b = np.ones((systems, 1, n)), np.ones((systems, n))
        with parprims.explain() as calls:
            parprims.solve_banded((0, 0), gpu.asarray(ab), gpu.asarray(b))
        assert (calls[0].method == "kernel") is serves
