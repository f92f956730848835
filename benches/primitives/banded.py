"""Systems with narrow bands: bytes of coefficients, right-hand sides and solutions per second."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale


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


def bands(rng, batch, n, widths):
    """Return dominant banded systems, and their solutions, of which right-hand sides are made."""
    (below, above), x = widths, rng.standard_normal((batch, n))
    ab = rng.standard_normal((batch, sum(widths) + 1, n))
    ab[:, above] += 4.0 * sum(widths)
    b = np.zeros((batch, n))
    for d in range(-above, below + 1):  # row j + d of column j
        rows, columns = slice(max(d, 0), n + min(d, 0)), slice(max(-d, 0), n - max(d, 0))
        b[:, rows] += ab[:, above + d, columns] * x[:, columns]
    return Problem((ab, b), x, 1e-12)


def by_dense(torch, lower, diag, upper, b):
    """Solve by dense matrices, which the call writes."""
    batch, n, k = b.shape
    matrix = torch.zeros((batch, n, k, n, k), dtype=b.dtype, device=b.device)
    for at, part in ((0, diag), (-1, lower), (1, upper)):
        i = torch.arange(max(-at, 0), n - max(at, 0), device=b.device)
        matrix[:, i, :, i + at] = part[:, i].movedim(1, 0)
    return torch.linalg.solve(matrix.reshape(batch, n * k, n * k), b.reshape(batch, n * k)).reshape(batch, n, k)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k = scale.pick(8, 14, 20)
    batch = scale.pick(8, 512, 8192)

    def by_scipy(_, ab, b, widths=(2, 2)):
        from scipy.linalg import solve_banded

        return solve_banded(widths, ab, b)

    make = functools.partial(problem, n=2**k, widths=(2, 2))
    run = functools.partial(parprims.solve_banded, (2, 2))
    of_bands = functools.partial(bands, batch=8 * batch, n=64, widths=(2, 2))
    return [
        Case("solve_banded", f"pentadiagonal, 2^{k}", make, run, {"scipy": by_scipy}),
        Case(
            "solve_banded",
            f"tridiagonal, 2^{k}",
            functools.partial(problem, n=2**k, widths=(1, 1)),
            functools.partial(parprims.solve_banded, (1, 1)),
            {"scipy": functools.partial(by_scipy, widths=(1, 1))},
        ),
        Case("solve_banded", f"pentadiagonal, {8 * batch} systems of 64", of_bands, run),
        *(
            Case(
                "solve_block_tridiagonal",
                f"{k} x {k} blocks, {batch} systems of 32",
                functools.partial(blocks, batch=batch, n=32, k=k),
                parprims.solve_block_tridiagonal,
                {"torch": by_dense},
            )
            for k in (2, 4)
        ),
    ]
