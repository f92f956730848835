"""The record of a checked linear recurrence, and the checks that make it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    broadcast_shapes,
    check_flag,
    check_kind,
    device,
    dtype_kind,
    dtype_name,
    library,
    normalize_axis,
    repr_short,
    sum_dtype,
)
from parprims._core.promotion import promoted
from parprims._core.scalars import NUMBERS, as_array, as_number, is_scalar
from parprims._dispatch.by_device import in_tiles_on_gpus
from parprims._dispatch.composite import fitted
from parprims._dispatch.dispatch import Checked, exact
from parprims._dispatch.primitive import Arguments
from parprims._primitives.scan.call import start_elements


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recurrence(Checked):
    """One linear recurrence, checked. Its arrays are a, b and, if there is one, the initial element.

    Parameters
    ----------
    shape : tuple of int
        The shape that a and b broadcast to, which is the shape of the solution.
    constant : bool
        Whether a is a 0-d array.
    axis : int
        The axis along which the recurrence runs, counted from the front of ``shape``. The initial element has length 1
        along it.
    reverse : bool
        Whether it starts at the end.
    dtype : dtype
        The dtype of the solution.
    """

    shape: tuple[int, ...]
    constant: bool = False
    axis: int
    reverse: bool = False
    dtype: Any

    @property
    def in_blocks(self) -> bool:
        """Whether the canonical grouping is asked for, and matters because the solution is rounded."""
        return self.canonical and dtype_kind(self.dtype) in ("float", "complex")

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The coefficients a and the right-hand side b."""
        return self.arrays[:2]

    @property
    def starts(self) -> tuple[Array, ...]:
        """The initial element, if there is one."""
        return self.arrays[2:]

    @property
    def n(self) -> int:
        """The length along the axis."""
        return self.shape[self.axis]

    def empty(self, xp: Namespace) -> Array:
        """Return an uninitialised array of the shape and dtype of the solution."""
        return xp.empty(self.shape, dtype=self.dtype, device=device(self.arrays[1]))


def checked(asked: Arguments) -> tuple[Namespace, Recurrence]:
    """Return the namespace and the checked call."""
    originals, initial = (asked["a"], asked["b"]), asked["initial"]
    xp, (a, b) = coefficients(*originals)
    reverse = check_flag("reverse", asked["reverse"])
    dtype = promoted(xp, {"a": a, "b": b}, _KINDS)
    shape = broadcast_shape(a, b)
    axis = normalize_axis(asked["axis"], len(shape))
    entries = () if initial is None else (initial,)
    count = len(entries)
    starts, begin = start_elements(xp, entries, like=b, shapes=[shape] * count, dtypes=(dtype,) * count, axis=axis)

    def complete(a: Any, b: Any, *initial: Any) -> tuple[Array, ...]:
        return *_coefficients(xp, a, b), *begin(*initial)

    as_given = a is originals[0] and b is originals[1]
    remembered = all(x is other or type(other) in NUMBERS for x, other in zip((a, b), originals, strict=True))
    return xp, Recurrence(
        arrays=(a, b, *starts),
        key=asked.key if remembered else None,
        complete=None if as_given and initial is None else complete,
        shape=shape,
        constant=a.ndim == 0,
        axis=axis,
        reverse=reverse,
        dtype=dtype,
    )


def broadcast_shape(a: Array, b: Array) -> tuple[int, ...]:
    """Return the shape that coefficients broadcast to."""
    try:
        return tuple(broadcast_shapes(tuple(a.shape), tuple(b.shape)))
    except ValueError:
        hint = "; a coefficient for each line has length 1 along the axis" if 0 < a.ndim < b.ndim else ""
        raise ValueError(
            f"a and b must broadcast against each other, got shapes {tuple(a.shape)} and {tuple(b.shape)}{hint}"
        ) from None


def _coefficients(xp: Namespace, a: Any, b: Any) -> tuple[Array, Array]:
    """Return the coefficients of a later call as arrays; only its numbers are checked."""
    if type(a) in NUMBERS:
        a = _as_coefficient(xp, "a", a, b)
    elif type(b) in NUMBERS:
        b = _as_coefficient(xp, "b", b, a)
    return a, b


def _as_coefficient(xp: Namespace, name: str, number: Any, like: Array) -> Array:
    """Return a number as a 0-d array of the dtype of the other coefficient."""
    return as_array(name, number, xp, like.dtype, device=device(like), shape=())


def coefficients(a: Any, b: Any) -> tuple[Namespace, list[Array]]:
    """Return the namespace and both coefficients as arrays.

    A number, or an array of bool, gets the dtype of the other coefficient. If both are bool, they become integers as
    in `sum`.
    """
    for name, number, other, array in (("a", as_number(a), "b", b), ("b", as_number(b), "a", a)):
        if is_scalar(number) and not is_scalar(as_number(array)):
            xp, (array,) = admit({other: array})
            (array,) = _bool_as_integers(xp, array)
            check_kind(other, array, _KINDS)
            fractional = isinstance(number, float | complex | np.inexact)
            if fractional and dtype_kind(array.dtype) in ("int", "uint"):
                to = dtype_name(array.dtype)
                raise TypeError(f"{name} must fit dtype {to}, got {repr_short(number)}: cast {other} to a float dtype")
            if fractional and isinstance(number, np.generic) and library(xp) == "numpy":
                converted = np.asarray(number)  # NumPy promotes it by its dtype
            else:
                converted = _as_coefficient(xp, name, number, array)
            return xp, [converted, array] if name == "a" else [array, converted]
    xp, arrays = admit({"a": a, "b": b})
    return xp, _bool_as_integers(xp, *arrays)


_KINDS = ("int", "uint", "float", "complex")


def _bool_as_integers(xp: Namespace, *arrays: Array) -> list[Array]:
    """Return the arrays, bool cast to the dtype of the other array, or to the default integer dtype if all are bool."""
    others = [x.dtype for x in arrays if dtype_kind(x.dtype) != "bool"]
    if len(others) == len(arrays):
        return list(arrays)
    dtype = others[0] if others else sum_dtype(xp, xp.bool)
    return [fitted(xp, x, dtype) if dtype_kind(x.dtype) == "bool" else x for x in arrays]


def departs(name: str, xp: Namespace, r: Recurrence) -> str | None:
    """Return the sentence why a method does not group elements canonically, or None."""
    if r.canonical or dtype_kind(r.dtype) not in ("float", "complex"):
        return exact(name, xp, r)
    return in_tiles_on_gpus(name, xp, r)
