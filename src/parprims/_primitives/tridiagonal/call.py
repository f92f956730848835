"""The record of a checked tridiagonal system, and the checks that make it."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    broadcast_shapes,
    check_choice,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_name,
    is_jax,
    move_axis,
    normalize_axis,
    quiet,
)
from parprims._core.scalars import NUMBERS, as_scalar, is_scalar, number_as_array
from parprims._dispatch.composite import fitted, stand_in
from parprims._dispatch.dispatch import Checked
from parprims._dispatch.primitive import Arguments
from parprims._dispatch.watch import listing

LAPACK = {"float32": "sgtsv", "float64": "dgtsv", "complex64": "cgtsv", "complex128": "zgtsv"}
"""Maps the dtypes of computation of LAPACK and the kernel to LAPACK's routine."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class System(Checked):
    """A checked call: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i].

    ``arrays`` are lower, diag, upper and rhs, of the dtype computed in. The coefficients broadcast to ``rows``, and
    with rhs to ``shape``, the shape of the solution. Several right-hand sides of a system are along an axis of rhs
    before the axes of the coefficients. ``axis`` counts from the end.
    """

    rows: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int
    periodic: bool
    pivot: str

    @property
    def rhs(self) -> Array:
        """The right-hand sides."""
        return self.arrays[3]

    @property
    def n(self) -> int:
        """The number of unknowns of a system."""
        return self.shape[self.axis]

    @property
    def is_single(self) -> bool:
        """Whether the coefficients belong to a single system."""
        return math.prod(self.rows) == self.n

    def coefficients(self, xp: Namespace) -> tuple[Array, Array, Array]:
        """Return lower, diag and upper, each broadcast to ``rows``."""
        lower, diag, upper = (
            x if tuple(x.shape) == self.rows else xp.broadcast_to(x, self.rows) for x in self.arrays[:3]
        )
        return lower, diag, upper

    def for_rhs(self, rhs: Array) -> System:
        """Return the system for right-hand sides of the full shape."""
        return dataclasses.replace(self, arrays=(*self.arrays[:3], rhs), key=None)

    def transposed(self, xp: Namespace, rhs: Array) -> System:
        """Return the system of the transposed matrix for right-hand sides of the full shape."""
        lower, diag, upper, _ = self.arrays
        lower, upper = transposed(xp, lower, upper, self.axis)
        return dataclasses.replace(self, arrays=(lower, diag, upper, rhs), key=None)


@dataclasses.dataclass(frozen=True)
class Solution:
    """A system, and the results that the caller asks for.

    Parameters
    ----------
    system : System
        The system to solve.
    dtype : dtype
        The dtype of the solution.
    columns : bool
        Whether the last axis of the caller's rhs counts right-hand sides.
    return_residual, return_status : bool
        Whether the backward error and the status are results too.
    """

    system: System
    dtype: Any
    columns: bool
    return_residual: bool
    return_status: bool


_VERDICTS = ("return_residual", "return_status")


def transposed(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper of the transposed matrix. Corners are read only if a system is periodic."""

    def moved(x: Array, distance: int) -> Array:
        return x if x.ndim == 0 or x.shape[axis] == 1 else xp.roll(x, distance, axis=axis)

    return moved(upper, 1), moved(lower, -1)


def slice_rows(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    """Return the index that takes rows start to stop along an axis counted from the end."""
    return (..., slice(start, stop), *(slice(None),) * (-1 - axis))


def ends_cleared(xp: Namespace, lower: Array, upper: Array, axis: int) -> tuple[Array, Array]:
    """Return lower and upper with zeros for lower[0] and upper[n-1]."""
    n = lower.shape[axis]
    if n == 0:
        return lower, upper
    zero = xp.zeros_like(lower[slice_rows(axis, 0, 1)])
    return (
        xp.concat([zero, lower[slice_rows(axis, 1, n)]], axis=axis),
        xp.concat([upper[slice_rows(axis, 0, n - 1)], zero], axis=axis),
    )


def nan(xp: Namespace, x: Array, axis: int) -> Array:
    """Return an array with NaN for each solution: version 2023.12 of the standard has no `where` of numbers."""
    return xp.full_like(x[slice_rows(axis, 0, 1)] if x.shape[axis] else x, math.nan)


def whole(xp: Namespace, x: Array, axis: int) -> Array:
    """Return x, with NaN for all unknowns of a solution that is not finite."""
    return xp.where(xp.all(xp.isfinite(x), axis=axis, keepdims=True), x, nan(xp, x, axis))


_ROUNDED_TO_INFINITY = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least number that rounds to infinity."""


def rounded(xp: Namespace, x: Array, dtype: Any, axis: int) -> Array:
    """Return x in a 16-bit dtype, with NaN for all unknowns of a solution that is not finite in this dtype."""
    within = xp.abs(x) < _ROUNDED_TO_INFINITY[dtype_name(dtype)]
    return xp.astype(xp.where(xp.all(within, axis=axis, keepdims=True), x, nan(xp, x, axis)), dtype)


# ---- Checks -----------------------------------------------------------------------------------------------------

PIVOTS = ("auto", "partial", "none")


def checked(asked: Arguments, *, sharded: bool = False) -> tuple[Namespace, Solution]:
    """Return the namespace and the checked call; ``sharded`` lets arrays of JAX be spread over several devices."""
    pivot = check_choice("pivot", asked["pivot"], PIVOTS)
    flags = {name: check_flag(name, asked[name]) for name in ("periodic", "transpose", *_VERDICTS)}
    axis, callers = asked["axis"], asked.flat
    arrays = dict(asked.arrays)
    numbers = [name for name, x in arrays.items() if name != "rhs" and is_scalar(x)]
    xp, admitted = admit({name: x for name, x in arrays.items() if name not in numbers}, sharded=sharded)
    arrays |= zip((name for name in arrays if name not in numbers), admitted, strict=True)
    rhs = arrays["rhs"]
    check_kind("rhs", rhs, ("float", "complex"))
    if rhs.ndim == 0:
        raise ValueError("rhs must have at least one dimension")
    if numbers:
        arrays = dict(zip(arrays, _completed(xp, *arrays.values()), strict=True))
    for name in ("lower", "diag", "upper"):
        check_kind(name, arrays[name], ("float", "complex"))
    lower, diag, upper = coefficients = tuple(arrays[name] for name in ("lower", "diag", "upper"))
    ndim = max(x.ndim for x in coefficients) or rhs.ndim
    trailing = normalize_axis(axis, ndim) - ndim
    columns = rhs.ndim > ndim
    if rhs.ndim > ndim + 1:
        raise ValueError(f"rhs must have at most {ndim + 1} dimensions, one more than the coefficients, got {rhs.ndim}")
    _check_lengths(arrays, axis, trailing, columns)
    if columns:
        by_columns = (rhs.shape[-1], *rhs.shape[:-1])
        jax_listing = listing() and is_jax(xp)  # which has no views
        rhs = stand_in(xp, rhs, by_columns, rhs.dtype) if jax_listing else move_axis(xp, rhs, -1, 0)
    if flags["transpose"]:
        lower, upper = (upper, lower) if listing() else transposed(xp, lower, upper, trailing)
    rows = _broadcast_shape("lower, diag and upper", lower.shape, diag.shape, upper.shape)
    n = rhs.shape[trailing]
    if len(rows) < -trailing or rows[trailing] != n:
        rows = _broadcast_shape("coefficients and rhs", rows, (n, *(1,) * (-1 - trailing)))
    shape = rows if tuple(rhs.shape) == rows else _broadcast_shape("rhs and the coefficients", rhs.shape, rows)
    parts = lower, diag, upper, rhs
    dtype = diag.dtype
    if not lower.dtype == dtype == upper.dtype == rhs.dtype:
        dtype = xp.result_type(*parts)
    working = compute_dtype(xp, dtype)
    if not lower.dtype == diag.dtype == upper.dtype == rhs.dtype == working:
        parts = tuple(fitted(xp, x, working) for x in parts)
    same = all(x is other or type(other) in NUMBERS for x, other in zip(parts, callers, strict=True))
    system = System(
        arrays=parts,
        key=asked.key if same and not any(flags[name] for name in ("transpose", *_VERDICTS)) else None,
        complete=functools.partial(_completed, xp) if numbers else None,
        rows=rows,
        shape=shape,
        axis=trailing,
        periodic=flags["periodic"],
        pivot=pivot,
    )
    return xp, Solution(system, dtype, columns, *[flags[name] for name in _VERDICTS])


UNUSED = {"lower": "lower[0]", "upper": "upper[n-1]"}
"""Elements that are read only if a system is periodic."""


def _check_lengths(arrays: dict[str, Array], axis: Any, trailing: int, columns: bool) -> None:
    """Raise ValueError unless all lengths along the axis are n, or 1 for coefficients."""
    shapes = {name: x.shape[:-1] if columns and name == "rhs" else x.shape for name, x in arrays.items()}
    lengths = {name: shape[trailing] if len(shape) >= -trailing else None for name, shape in shapes.items()}
    # The array with the length to compare with: diag, unless it is constant.
    first = next((name for name in ("diag", "lower", "upper") if lengths[name] not in (1, None)), "rhs")
    for name, length in lengths.items():
        constant = name != "rhs" and (length == 1 or not shapes[name])
        if not constant and (length is None or length != lengths[first]):
            n = lengths[first]
            hint = (
                f": {UNUSED[name]} is not read, so put any number there"
                if (name in UNUSED and n is not None and length == n - 1)
                else ""
            )
            if columns and name == "rhs" and arrays["rhs"].shape[-1:] == (lengths[first],):
                hint = f"; for a system for each row of rhs, give the coefficients shape (1, {lengths[first]})"
            raise ValueError(
                f"{name} must have the length of {first} along axis {axis} of the coefficients, got shapes "
                f"{arrays[name].shape} and {arrays[first].shape}"
                f"{' (the last axis of rhs counts right-hand sides)' if columns and name == 'rhs' else ''}{hint}"
            )


def _broadcast_shape(names: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(broadcast_shapes(*shapes))
    except ValueError:
        raise ValueError(f"{names} must have shapes that broadcast, got {', '.join(map(str, shapes))}") from None


def _completed(xp: Namespace, *arguments: Any) -> tuple[Array, ...]:
    """Return coefficients and right-hand side with 0-d arrays for numbers."""
    rhs = arguments[3]
    dtype, on = rhs.dtype, device(rhs)
    arrays = list(arguments)
    with quiet(xp):
        for index, name in enumerate(("lower", "diag", "upper")):
            if is_scalar(arguments[index]):
                arrays[index] = number_as_array(xp, as_scalar(name, arguments[index], dtype), dtype, on)
    return tuple(arrays)
