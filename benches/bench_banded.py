"""Systems with narrow bands: bytes of coefficients, right-hand sides and solutions per second."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.cases import Case, Problem, Scale


def problem(rng, n, widths):
    """Return a dominant system of float64, and LAPACK's solution."""
    from scipy.linalg import solve_banded

    ab = rng.standard_normal((sum(widths) + 1, n))
    ab[widths[1]] += 4.0 * sum(widths)
    b = rng.standard_normal(n)
    return Problem((ab, b), solve_banded(widths, ab, b), 1e-12)


def blocks(rng, batch, n, k):
    """Return dominant block tridiagonal systems, and their solutions by dense matrices."""
    lower, diag, upper = rng.standard_normal((3, batch, n, k, k))
    diag = diag + 8.0 * k * np.eye(k)
    x = rng.standard_normal((batch, n, k))
    b = np.einsum("bnij,bnj->bni", diag, x)
    b[:, 1:] += np.einsum("bnij,bnj->bni", lower[:, 1:], x[:, :-1])
    b[:, :-1] += np.einsum("bnij,bnj->bni", upper[:, :-1], x[:, 1:])
    return Problem((lower, diag, upper, b), x, 1e-12)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k = scale.pick(8, 14, 20)
    batch = scale.pick(8, 512, 8192)

    def by_scipy(_, ab, b):
        from scipy.linalg import solve_banded

        return solve_banded((2, 2), ab, b)

    make = functools.partial(problem, n=2**k, widths=(2, 2))
    run = functools.partial(parprims.solve_banded, (2, 2))
    many = functools.partial(blocks, batch=batch, n=32, k=2)
    return [
        Case("solve_banded", f"pentadiagonal, 2^{k}", make, run, {"scipy": by_scipy}),
        Case("solve_block_tridiagonal", f"2 x 2 blocks, {batch} systems of 32", many, parprims.solve_block_tridiagonal),
    ]
