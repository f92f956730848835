"""Banded and block tridiagonal matrices: their coefficients by row, products with vectors, transposes, and solutions.

Coefficients are the l + u + 1 diagonals (..., n), from the lowest on, the i-th entry of each in row i, or the blocks
below, on and above the diagonal (..., n, k, k). Entries outside the matrix are zero. Right-hand sides are (..., n,
columns), or (..., n, k, columns).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, broadcast_shapes, device, is_jax
from parprims._libraries.steps import repeated
from parprims._primitives.banded import reflections
from parprims._primitives.banded.reflections import product

Coefficients = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Matrices without their coefficients.

    ``widths`` are the numbers of diagonals below and above the main one, or None for blocks; ``n`` counts rows, or rows
    of blocks.
    """

    widths: tuple[int, int] | None
    n: int
    periodic: bool

    def coefficients(self, xp: Namespace, *arrays: Array) -> Coefficients:
        """Return the coefficients by row of diagonals by column, or of blocks, with zeros outside the matrix."""
        if self.widths is None:
            lower, diag, upper = arrays
            if self.periodic:
                return lower, diag, upper
            rows = xp.reshape(xp.arange(self.n, device=device(lower)), (self.n, 1, 1))
            cleared = (
                xp.where(inside, x, xp.zeros_like(x)) for inside, x in ((rows > 0, lower), (rows < self.n - 1, upper))
            )
            return next(cleared), diag, next(cleared)
        (ab,), (below, above) = arrays, self.widths
        diagonals = [ab[..., above + below - c, :] for c in range(below + above + 1)]
        if self.periodic:
            return tuple([xp.roll(diagonal, below - c, axis=-1) for c, diagonal in enumerate(diagonals)])
        zeros = xp.zeros_like(diagonals[0])
        by_row = []
        for c, diagonal in enumerate(diagonals):
            shift = min(c - below, self.n) if c > below else max(c - below, -self.n)  # of the column against the row
            if shift > 0:
                diagonal = xp.concat([diagonal[..., shift:], zeros[..., :shift]], axis=-1)
            elif shift < 0:
                diagonal = xp.concat([zeros[..., :-shift], diagonal[..., :shift]], axis=-1)
            by_row.append(diagonal)
        return tuple(by_row)

    def product(self, xp: Namespace, coefficients: Coefficients, x: Array) -> Array:
        """Return the matrix times x."""
        if self.widths is None:
            return functools.reduce(operator.add, map(functools.partial(product, xp), coefficients, self._read(xp, x)))
        parts = (
            xp.expand_dims(coefficient, axis=-1) * y
            for coefficient, y in zip(coefficients, self._read(xp, x), strict=True)
        )
        return functools.reduce(operator.add, parts)

    def by_coefficients(self, xp: Namespace, y: Array, x: Array) -> Coefficients:
        """Return the derivatives by the coefficients of the sum of y times the product with x, for every system."""
        if self.widths is None:
            return tuple(product(xp, y, xp.matrix_transpose(part)) for part in self._read(xp, x))
        return tuple(xp.sum(y * part, axis=-1, dtype=y.dtype) for part in self._read(xp, x))

    def _read(self, xp: Namespace, x: Array) -> list[Array]:
        """Return the parts of x that each coefficient of a row multiplies."""
        if self.widths is None:
            return [xp.roll(x, 1, axis=-3), x, xp.roll(x, -1, axis=-3)]
        below, above = self.widths
        return [xp.roll(x, below - c, axis=-2) for c in range(below + above + 1)]

    def transposed(self, xp: Namespace, coefficients: Coefficients) -> tuple[Matrix, Coefficients]:
        """Return the transposed matrix."""
        if self.widths is None:
            lower, diag, upper = (xp.matrix_transpose(block) for block in coefficients)
            return self, (xp.roll(upper, 1, axis=-3), diag, xp.roll(lower, -1, axis=-3))
        below, above = self.widths
        moved = tuple(xp.roll(diagonal, above - c, axis=-1) for c, diagonal in enumerate(reversed(coefficients)))
        return dataclasses.replace(self, widths=(above, below)), moved

    def rows(self, xp: Namespace, coefficients: Coefficients) -> tuple[Array, int]:
        """Return the coefficients of every row, (..., rows, diagonals), and the number of diagonals below the main."""
        if self.widths is not None:
            return xp.stack(list(coefficients), axis=-1), self.widths[0]
        side_by_side = xp.concat(_broadcast(xp, coefficients), axis=-1)
        k = side_by_side.shape[-2]
        zeros = xp.zeros_like(side_by_side[..., 0, :k])
        lines = [
            xp.concat([zeros[..., : k - 1 - row], side_by_side[..., row, :], zeros[..., :row]], axis=-1)
            for row in range(k)
        ]
        rows = xp.stack(lines, axis=-2)
        return xp.reshape(rows, (*rows.shape[:-3], self.n * k, 4 * k - 1)), 2 * k - 1


def _broadcast(xp: Namespace, blocks: Coefficients) -> list[Array]:
    shape = broadcast_shapes(*(tuple(x.shape) for x in blocks))
    return [xp.broadcast_to(x, shape) for x in blocks]


# ---- Solutions by array operations ------------------------------------------------------------------------------


def by_reflections(xp: Namespace, matrix: Matrix, coefficients: Coefficients, b: Array) -> Array:
    """Return the solutions, refined once by their residuals."""
    solve = _eliminated(xp, matrix, coefficients)

    def refine(_: Any, x: Array) -> Array:
        solution: Array = x + solve(b - matrix.product(xp, coefficients, x))
        return solution

    if is_jax(xp):  # refines x = 0 twice, so that the program holds the solver once
        return repeated(xp, 2, refine, xp.zeros_like(b))
    return refine(1, solve(b))


def _eliminated(xp: Namespace, matrix: Matrix, coefficients: Coefficients) -> Callable[[Array], Array]:
    """Return a function of right-hand sides: the solutions, without refinement."""
    if matrix.widths is None:
        blocks = _broadcast(xp, coefficients)
        k = blocks[0].shape[-1]
        solve = reflections.eliminated(xp, *reflections.of_blocks(xp, *blocks))

        def solved(r: Array) -> Array:
            rows = xp.reshape(r, (*r.shape[:-3], matrix.n * k, r.shape[-1]))
            return xp.reshape(_by_groups(xp, solve, rows, below=k, d=2 * k), r.shape)

        return solved
    if len(coefficients) == 1:
        return lambda r: r / xp.expand_dims(coefficients[0], axis=-1)
    below, solve = matrix.widths[0], reflections.eliminated(xp, *reflections.of_bands(xp, list(coefficients)))
    return lambda r: _by_groups(xp, solve, r, below=below, d=len(coefficients) - 1)


def _by_groups(xp: Namespace, solve: reflections.Solve, r: Array, below: int, d: int) -> Array:
    """Return the solution for right-hand sides (..., n, columns), in groups of d rows; y[0] begins at x[-below]."""
    n = r.shape[-2]
    groups = -(-n // d)
    missing = groups * d - n
    if missing:
        zeros = xp.zeros((*r.shape[:-2], missing, r.shape[-1]), dtype=r.dtype, device=device(r))
        r = xp.concat([r, zeros], axis=-2)
    y = solve(xp.reshape(r, (*r.shape[:-2], groups, d, r.shape[-1])))
    y = xp.reshape(y, (*y.shape[:-3], groups * d, y.shape[-1]))[..., :n, :]
    return xp.roll(y, -below, axis=-2)
