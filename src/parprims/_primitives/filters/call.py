"""The record of a checked call of a filter, and the checks that make it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    cast,
    compute_dtype,
    device,
    dtype_kind,
    is_jax,
    library,
    mode,
    move_axis,
    namespace_named,
    normalize_axis,
)
from parprims._core.options import is_array, listed_as_array, of_numpy
from parprims._core.promotion import promoted
from parprims._dispatch.ascending import checked_values
from parprims._dispatch.by_device import in_tiles_on_gpus
from parprims._dispatch.composite import Composed
from parprims._dispatch.primitive import Arguments, plainer

Parts = tuple[Array, Array, Array, Array]
"""The coefficients b and a of all sections, (sections, k + 1), lines of a signal, and the states of each line."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Filter(Composed):
    """A checked call. ``arrays`` are the caller's arrays, in order.

    ``sections`` is the number of sections of a cascade, or None for a filter b, a; ``lengths`` are the numbers of
    coefficients of b and a. ``shape`` is the shape of the signal, filtered along ``axis``, counted from the front.
    ``states`` says whether states are given, and returned. ``dtype`` is the dtype of results, ``working`` the dtype of
    computation: wider, because a filter with poles near 1 loses many digits.
    """

    sections: int | None
    lengths: tuple[int, int]
    shape: tuple[int, ...]
    axis: int
    states: bool
    dtype: Any
    working: Any

    @property
    def order(self) -> int:
        """The number k of states of a section."""
        return max(self.lengths) - 1

    def parts(self, xp: Namespace) -> Parts:
        """Return the coefficients, the lines of the signal and their states.

        All are of the dtype computed in; the coefficients are not divided yet.
        """
        *coefficients, x = self.arrays[: len(self.arrays) - self.states]
        n, k, count = self.shape[self.axis], self.order, self.sections or 1
        b, a = self.coefficients(xp, coefficients)
        rows = move_axis(xp, cast(xp, x, self.working), self.axis, -1)
        lines = math.prod(rows.shape[:-1])
        rows = xp.reshape(rows, (lines, n))
        if not self.states:
            return b, a, rows, zeros(xp, (lines, count, k), rows)
        return b, a, rows, self.states_of_lines(xp, cast(xp, self.arrays[-1], self.working))

    def coefficients(self, xp: Namespace, arrays: Sequence[Array]) -> tuple[Array, Array]:
        """Return b and a of all sections, (sections, k + 1), of the dtype computed in."""
        if self.sections is None:
            b, a = (_padded(xp, cast(xp, x, self.working), self.order + 1) for x in arrays)
            return b, a
        sos = cast(xp, arrays[0], self.working)
        return sos[:, :3], sos[:, 3:]

    def states_of_lines(self, xp: Namespace, zi: Array) -> Array:
        """Return the caller's states as states of lines: (lines, sections, k)."""
        zi = xp.broadcast_to(zi, self.state_shape)
        zi = xp.expand_dims(zi, axis=0) if self.sections is None else zi
        order = (*(axis for axis in range(1, zi.ndim) if axis != self.axis + 1), 0, self.axis + 1)
        return xp.reshape(xp.permute_dims(zi, order), (-1, self.sections or 1, self.order))

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of the states, as the caller has them."""
        shape = (*self.shape[: self.axis], self.order, *self.shape[self.axis + 1 :])
        return shape if self.sections is None else (self.sections, *shape)

    def finished(self, xp: Namespace, y: Array, z: Array, *, copy: bool = True) -> Any:
        """Return the results, given lines and their states; ``copy`` False if nothing else uses their memory."""
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        y = move_axis(xp, xp.reshape(y, (*others, self.shape[self.axis])), -1, self.axis)
        y = xp.astype(y, self.dtype, copy=copy)
        if not self.states:
            return y
        return y, xp.astype(self.states_as_given(xp, z), self.dtype, copy=copy)

    def states_as_given(self, xp: Namespace, z: Array) -> Array:
        """Return states of lines as the caller has them."""
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        z = xp.reshape(z, (*others, self.sections or 1, self.order))
        order_end = len(others)
        order = [*range(self.axis), order_end + 1, *range(self.axis, order_end)]
        z = xp.permute_dims(z, (order_end, *order))
        return z if self.sections is not None else z[0, ...]


def _padded(xp: Namespace, x: Array, length: int) -> Array:
    """Return coefficients with zeros behind them, as a row."""
    missing = length - x.shape[0]
    return xp.reshape(xp.concat([x, zeros(xp, (missing,), x)]) if missing else x, (1, length))


def zeros(xp: Namespace, shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the dtype and on the device of an array; by NumPy itself, which is ten times as fast."""
    if library(xp) == "numpy":
        return np.zeros(shape, like.dtype)
    return xp.zeros(shape, dtype=like.dtype, device=device(like))


def with_own_coefficients(asked: Arguments) -> Arguments | None:
    """Return the call with coefficients and states of lists or of NumPy as arrays beside x, and with plain options."""
    x = asked["x"]
    arrays = {name: one if name == "x" else _own(name, one, x) for name, one in asked.arrays.items()}
    if all(arrays[name] is one for name, one in asked.arrays.items()):
        return plainer(asked)
    return asked.on(arrays)


def _own(name: str, numbers: Any, x: Any) -> Any:
    if not isinstance(numbers, list | tuple) or not is_array(x):
        return of_numpy(name, numbers, x)
    if name in ("b", "a"):
        return listed_as_array(name, numbers, namespace_named("x", x), x)
    return numbers


def check_lfilter(asked: Arguments) -> tuple[Namespace, Filter]:
    """Return the namespace and the record of a call of `lfilter`; raise, naming the argument, for wrong arguments."""
    xp, arrays, dtype = _admitted(asked)
    for name in ("b", "a"):
        shape = tuple(arrays[name].shape)
        if len(shape) != 1 or shape[0] == 0:
            raise ValueError(f"{name} must have one dimension and at least one coefficient, got shape {shape}")
    f = _filter(xp, asked, arrays, dtype, lengths=(arrays["b"].shape[0], arrays["a"].shape[0]))
    return xp, dataclasses.replace(f, complete=checked_values(xp, arrays["a"], 1, _check_first))


def check_sosfilt(asked: Arguments) -> tuple[Namespace, Filter]:
    """Return the namespace and the record of a call of `sosfilt`."""
    xp, arrays, dtype = _admitted(asked)
    sos = arrays["sos"]
    if sos.ndim != 2 or sos.shape[1] != 6:
        raise ValueError(f"sos must have shape (sections, 6), got {tuple(sos.shape)}")
    if sos.shape[0] == 0:
        raise ValueError("sos must hold at least one section, got none")
    f = _filter(xp, asked, arrays, dtype, lengths=(3, 3), sections=sos.shape[0])
    return xp, dataclasses.replace(f, complete=checked_values(xp, sos, 0, _check_sections))


def _admitted(asked: Arguments) -> tuple[Namespace, dict[str, Array], Any]:
    """Return the namespace, the arrays by name, and the dtype that they promote to."""
    arrays = asked.given
    xp, admitted = admit(arrays)
    arrays = dict(zip(arrays, admitted, strict=True))
    return xp, arrays, promoted(xp, arrays, ("float", "complex"))


def _filter(
    xp: Namespace,
    asked: Arguments,
    arrays: dict[str, Array],
    dtype: Any,
    *,
    lengths: tuple[int, int],
    sections: int | None = None,
) -> Filter:
    """Return the record without the check of coefficients by value."""
    shape, states = tuple(arrays["x"].shape), "zi" in arrays
    f = Filter(
        arrays=tuple(arrays.values()),
        key=asked.key_of(*arrays.values()),
        results=((shape, dtype),),
        single=not states,
        sections=sections,
        lengths=lengths,
        shape=shape,
        axis=normalize_axis(asked["axis"], len(shape)),
        states=states,
        dtype=dtype,
        working=_widest(xp, dtype),
    )
    if not states:
        return f
    _check_states(f, tuple(arrays["zi"].shape))
    return dataclasses.replace(f, results=(*f.results, (f.state_shape, dtype)))


def _widest(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype that signals of a dtype are filtered in: the widest of its kind that the library has."""
    if is_jax(xp) and not mode(xp):
        return compute_dtype(xp, dtype)
    return xp.complex128 if dtype_kind(dtype) == "complex" else xp.float64


def _check_states(f: Filter, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless states have a shape that SciPy takes: others may broadcast by chance alone."""
    wanted, free_axes = f.state_shape, {f.axis} if f.sections is None else {0, f.axis + 1}
    fits = len(shape) == len(wanted) and all(
        length == right or (length == 1 and axis not in free_axes)
        for axis, (length, right) in enumerate(zip(shape, wanted, strict=True))
    )
    if not fits:
        least = tuple(length if axis in free_axes else 1 for axis, length in enumerate(wanted))
        hint = "" if least == wanted else f", or length 1 along axes that broadcast, as {least}"
        raise ValueError(f"zi must have shape {wanted}{hint}, got {shape}")


def _check_first(a: np.ndarray[Any, Any]) -> None:
    if a[0] == 0:
        raise ValueError("a must not begin with zero, got a[0] = 0: all coefficients are divided by a[0]")


def _check_sections(sos: np.ndarray[Any, Any]) -> None:
    if (sos[:, 3] == 0).any():
        raise ValueError("sos must not have a zero in column 3: a section is divided by its a[0]")


def departs(name: str, xp: Namespace, f: Filter) -> str | None:
    """Return the sentence why a method's results depend on more than the signal up to their own place, or None."""
    if name == "array":
        return "the library multiplies matrices for stretches of the signal, and rounds by their shapes"
    return in_tiles_on_gpus(name, xp, f)
