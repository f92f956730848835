"""The record of a checked call of a banded or block tridiagonal system, and the checks that make it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from parprims._core.arrays import Array, Namespace, admit, broadcast_shapes, cast, check_flag, compute_dtype, repr_short
from parprims._core.options import integer_of
from parprims._core.promotion import promoted
from parprims._dispatch.composite import Composed
from parprims._dispatch.primitive import Arguments
from parprims._primitives.banded.matrix import Matrix
from parprims._primitives.tridiagonal.call import UNUSED

WIDEST = 32
"""The most diagonals beside the main diagonal, and the most rows of two blocks."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class System(Composed):
    """A checked call. ``widths`` are the numbers of diagonals below and above, or None for blocks.

    ``columns`` says whether the last axis counts right-hand sides of a system; ``working`` is the dtype of computation.
    """

    widths: tuple[int, int] | None
    n: int
    columns: bool
    periodic: bool
    working: Any

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of the axes that count systems."""
        shape = self.results[0][0]
        return shape[: len(shape) - 1 - self.columns - (self.widths is None)]

    @functools.cached_property
    def matrix(self) -> Matrix:
        """The matrix without its coefficients."""
        return Matrix(self.widths, self.n, self.periodic)

    def parts(self, xp: Namespace, *arrays: Array) -> tuple[tuple[Array, ...], Array]:
        """Return the coefficients in the layout of `Matrix`, and the right-hand sides of the full shape with an axis of
        columns.

        All have the dtype ``working``.
        """
        *coefficients, b = [cast(xp, x, self.working) for x in arrays]
        shape = self.results[0][0]
        b = b if self.columns else xp.expand_dims(b, axis=-1)
        shape = shape if self.columns else (*shape, 1)
        return self.matrix.coefficients(xp, *coefficients), b if b.shape == shape else xp.broadcast_to(b, shape)


def check_banded(asked: Arguments) -> tuple[Namespace, System]:
    below, above = _widths(asked["l_and_u"])
    xp, (ab, b) = admit(asked.arrays)
    periodic = check_flag("periodic", asked["periodic"])
    dtype = promoted(xp, {"ab": ab, "b": b}, ("float", "complex"))
    if ab.ndim < 2 or ab.shape[-2] != below + above + 1:
        raise ValueError(f"ab must have shape (..., {below + above + 1}, n), got {tuple(ab.shape)}")
    n = ab.shape[-1]
    if periodic and n <= below + above:
        raise ValueError(f"ab must have more than {below + above} columns in a periodic system, got {n}")
    shape, columns = _right_sides("b", b, (*ab.shape[:-2], n))
    return xp, System(
        arrays=(ab, b),
        key=asked.key_of(ab, b),
        results=((shape, dtype),),
        single=True,
        widths=(below, above),
        n=n,
        columns=columns,
        periodic=periodic,
        working=compute_dtype(xp, dtype),
    )


def check_blocks(asked: Arguments) -> tuple[Namespace, System]:
    xp, arrays = admit(asked.arrays)
    periodic = check_flag("periodic", asked["periodic"])
    dtype = promoted(xp, dict(zip(asked.arrays, arrays, strict=True)), ("float", "complex"))
    for name, blocks in zip(asked.arrays, arrays[:3], strict=False):
        if blocks.ndim < 3 or blocks.shape[-1] != blocks.shape[-2] or blocks.shape[-1] == 0:
            raise ValueError(f"{name} must have shape (..., n, k, k), got {tuple(blocks.shape)}")
        if blocks.shape[-3:] != arrays[1].shape[-3:]:
            short = blocks.shape[-2:] == arrays[1].shape[-2:] and blocks.shape[-3] == arrays[1].shape[-3] - 1
            hint = f": {UNUSED[name]} is not read, so put any number there" if short else ""
            raise ValueError(
                f"{name} must have the blocks of diag, in number and shape, got {tuple(blocks.shape)}{hint}"
            )
    n, k = arrays[1].shape[-3], arrays[1].shape[-1]
    if 2 * k > WIDEST:
        raise ValueError(f"diag must have blocks of at most {WIDEST // 2} rows, got {k}")
    if periodic and n <= 2:
        raise ValueError(f"diag must have more than 2 blocks in a periodic system, got {n}")
    try:
        batch = broadcast_shapes(*(tuple(x.shape[:-3]) for x in arrays[:3]))
    except ValueError:
        shapes = ", ".join(str(tuple(x.shape)) for x in arrays[:3])
        raise ValueError(f"lower, diag and upper must broadcast against each other, got shapes {shapes}") from None
    shape, columns = _right_sides("rhs", arrays[3], (*batch, n, k))
    return xp, System(
        arrays=tuple(arrays),
        key=asked.key_of(*arrays),
        results=((shape, dtype),),
        single=True,
        widths=None,
        n=n,
        columns=columns,
        periodic=periodic,
        working=compute_dtype(xp, dtype),
    )


def _widths(widths: Any) -> tuple[int, int]:
    if not isinstance(widths, tuple) or len(widths) != 2:
        raise TypeError(f"l_and_u must be a pair of integers, got {repr_short(widths)}")
    below, above = [integer_of(f"l_and_u[{i}]", width, 0, WIDEST) for i, width in enumerate(widths)]
    if below + above > WIDEST:
        raise ValueError(f"l_and_u must have a sum of at most {WIDEST}, got {repr_short(widths)}")
    return below, above


def _right_sides(name: str, b: Array, wanted: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the shape of solutions, and whether b has a last axis of columns; ``wanted`` is the shape without it."""
    columns = b.ndim == len(wanted) + 1
    lengths = tuple(b.shape[:-1]) if columns else tuple(b.shape)
    last = 1 if name == "b" else 2
    fits = len(lengths) >= last and lengths[-last:] == wanted[-last:] and len(lengths) <= len(wanted)
    try:
        shape = broadcast_shapes(lengths, wanted)
    except ValueError:
        fits, shape = False, ()
    if not fits:
        rows = columns and name == "b" and b.shape[-1] == wanted[-1]
        hint = "; for a system for each row of b, pass ab[None, ...]" if rows else ""
        raise ValueError(f"{name} must have shape {wanted}, or one axis more, got {tuple(b.shape)}{hint}")
    return ((*shape, b.shape[-1]) if columns else shape), columns
