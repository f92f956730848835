"""Linear recurrences by array operations: as scans of affine maps, and by the library's own routine."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._arrays import (
    Array,
    Namespace,
    along,
    cast,
    device,
    dtype_kind,
    dtype_name,
    is_jax,
    library,
    quiet,
    ring_dtype,
)
from parprims._dispatch import Checked
from parprims._operators import BUILT_IN, Operator
from parprims._scan_array import Inclusive, inclusive, interleave, library_inclusive


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recurrence(Checked):
    """One linear recurrence, checked. Its arrays are a, b and, if there is one, the initial element.

    Parameters
    ----------
    shape : tuple of int
        What a and b broadcast to, the shape of the solution.
    constant : bool
        Whether a has no dimension.
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
        """Return an array like the solution, of which nothing is computed."""
        return xp.empty(self.shape, dtype=self.dtype, device=device(self.arrays[1]))


# ---- As a scan of affine maps -----------------------------------------------------------------------------------


def array(xp: Namespace, r: Recurrence) -> Array:
    """Return the solution by a scan of the affine maps x -> a x + b."""
    with quiet(xp):  # of products of coefficients that overflow and leave no trace in the result
        return _solution(xp, r, functools.partial(_by_pairs, inclusive, xp))


def _solution(xp: Namespace, r: Recurrence, solve: Callable[[Array, Array, int], Array]) -> Array:
    """Return the result of a call, given what solves from the front, without an initial element."""
    axis, n = r.axis, r.n
    a, b = (cast(xp, xp.broadcast_to(x, r.shape), ring_dtype(xp, r.dtype)) for x in r.inputs)
    if r.reverse:
        a, b = xp.flip(a, axis=axis), xp.flip(b, axis=axis)
    if r.starts and n > 0:
        first = a[along(axis, 0, 1)] * cast(xp, r.starts[0], b.dtype) + b[along(axis, 0, 1)]
        b = xp.concat([first, b[along(axis, 1, None)]], axis=axis)
    x = solve(a, b, axis) if n > 1 else xp.concat([b], axis=axis)
    if r.reverse:
        x = xp.flip(x, axis=axis)
    return cast(xp, x, r.dtype)


def _product(c: Array, x: Array, zero: Array) -> Array:
    """Return c x, where an overflowed c times a zero is zero."""
    xp = array_api_compat.array_namespace(c)
    product = c * x
    return xp.where((product != product) & zero, xp.zeros_like(product), product)


def _compose(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (c, d) = earlier, later
    return _product(c, a, (c == 0) | (a == 0)), _product(c, b, b == 0) + d


_COMPOSE = Operator(_compose, name="recurrence", components=2)


def _by_pairs(inclusive: Inclusive, xp: Namespace, a: Array, b: Array, axis: int) -> Array:
    """Return the solution of a recurrence with x[0] = b[0]: neighbours are composed by hand, the pairs scanned.

    The coefficients of pairs are products and may have overflowed, so `_compose` watches them. Those here have
    not, which spares half of the watching; one that came as an infinity or NaN is told apart from an overflow by
    making the right-hand side of its pair NaN.
    """
    n = b.shape[axis]
    one, two = along(axis, 0, 1), along(axis, 1, 2)
    evens, odds = along(axis, 2, n - 1, 2), along(axis, min(3, n), n, 2)
    c = xp.concat([a[two], a[odds] * a[evens]], axis=axis)
    nan_if_not_finite = a[evens] - a[evens]
    d = xp.concat([a[two] * b[one] + b[two], a[odds] * b[evens] + b[odds] + nan_if_not_finite], axis=axis)
    op = BUILT_IN["affine"] if dtype_kind(b.dtype) in ("int", "uint") else _COMPOSE
    odd = inclusive(xp, (c, d), op, axis)[1] if n > 3 else d
    rest = along(axis, 2, n, 2)
    even = a[rest] * odd[along(axis, 0, (n - 1) // 2)] + b[rest]
    return interleave(xp, b, even, odd, axis)


# ---- By the library's own routine -------------------------------------------------------------------------------


def native(xp: Namespace, r: Recurrence) -> Array:
    """Return the solution by JAX's associative scan or by SciPy's filter."""
    return _solution(xp, r, functools.partial(_by_pairs, library_inclusive, xp) if is_jax(xp) else _filter)


def native_refusal(xp: Namespace, r: Recurrence) -> str | None:
    """Return the sentence why the library has no routine for the call, or None."""
    if is_jax(xp):
        return None
    if library(xp) != "numpy":
        return f"{xp.__name__} has no linear recurrence"
    if not r.constant:
        return "SciPy filters only with a constant coefficient, an array a of no dimension"
    if dtype_kind(r.dtype) in ("int", "uint"):
        return f"SciPy filters only floats, not {dtype_name(r.dtype)}"
    return None if _has_scipy() else "SciPy is not installed"


def _filter(a: Array, b: Array, axis: int) -> Array:
    from scipy.signal import lfilter

    if 0 in b.shape:
        return np.empty_like(b)
    one = np.ones((), dtype=b.dtype)
    return lfilter(np.stack([one]), np.stack([one, -a[(0,) * a.ndim]]), b, axis=axis)


@functools.cache
def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None
